#!/bin/sh
# Four ranks on one machine of 32 cores. Needs gad built with -tags mpi, and openmpi-bin.
# With GPUs, one for each rank: --bind-to none and --device cuda, and no --threads.
#
# Ctrl-C or SIGTERM to this script saves the run, which then ends with status 75.
exec sh "$(dirname "$0")/mpirun.sh" -n 4 --map-by slot:PE=8 \
  gad train --resume /data/warmup --data /data/train.jsonl --output /data/game \
  --ranks 4 --threads 8 trainer.shards=4
