#!/bin/sh
# Four ranks on one machine of 32 cores. Needs gad built with -tags mpi, and openmpi-bin.
# With GPUs, one for each rank: --bind-to none and --device cuda, and no --threads.
#
# Ctrl-C or SIGTERM to mpirun saves; the timeout is the time that saving may take.
exec mpirun -n 4 --map-by slot:PE=8 --mca odls_base_sigkill_timeout 600 \
  gad train --resume /data/warmup --data /data/train.jsonl --output /data/game \
  --ranks 4 --threads 8 trainer.shards=4
