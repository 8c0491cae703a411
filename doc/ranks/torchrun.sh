#!/bin/sh
# Four ranks on two machines with two GPUs each. Run it on both:
#   NODE_RANK=0 LEADER=node0 sh torchrun.sh     NODE_RANK=1 LEADER=node0 sh torchrun.sh
# The ranks meet at the port behind torchrun's own, 29501 here, and then connect with each
# other on any port. The secret's file has the same text on all machines:
#   openssl rand -hex 16 > /data/ranks.secret; chmod 600 /data/ranks.secret
export GAD_RANKS_SECRET_FILE=/data/ranks.secret
exec torchrun --nnodes=2 --nproc-per-node=2 --node-rank="${NODE_RANK:?}" \
  --master-addr="${LEADER:?}" --master-port=29500 --no-python \
  gad train --resume /data/warmup --data /data/train.jsonl --output /data/game \
  --ranks 4 --device cuda trainer.shards=4
