#!/usr/bin/env python3
"""Print the table of scripts/study/twin.sh: every checkpoint, and what it is minus its student before.

    RUNS=runs/ladder scripts/study/twin.py SIZE

reverse_kl and forward_kl are KL(student || teacher) and KL(teacher || student), nats per token, exact; after
them the length ratio, the share of cut answers, distinct 2-grams, the differences of both KLs to the
student before, and the operations of the whole run.
"""
import glob
import json
import os
import re
import sys

from reports import find

root = os.path.join(os.environ.get("RUNS", "runs/ladder"), sys.argv[1], "twin")


def tflop(run):
    """Return the operations of a run's steps, from their rate and time; a step taken again counts once."""
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as f:
        rows = {r.get("step"): r for r in map(json.loads, f)}
    return sum(r.get("perf/tflops", 0) * r.get("timing_s/step", 0) for r in rows.values())


names = ["reverse_kl", "forward_kl", "len_ratio", "truncated_frac", "distinct_2"]
found = {}
for path in glob.glob(f"{root}/*.json"):
    m = re.search(r"/([a-z-]+)-(\d+)-(\d+)\.json$", path)
    with open(path, encoding="utf-8") as f:
        report = json.load(f)
    found[m[1], int(m[2]), int(m[3])] = [find(report, n) for n in names]
print("arm\tseed\tstep\t" + "\t".join(names) + "\treverse_minus\tforward_minus\tTFLOP")
for arm, seed, step in sorted(found):
    x, before = found[arm, seed, step], found.get(("sft", seed, 2000))
    minus = "\t".join(f"{a - b:+.3f}" for a, b in zip(x[:2], before)) if before else "\t"
    cost = f"{tflop(f'{root}/{arm}-{seed}'):.1f}" if os.path.exists(f"{root}/{arm}-{seed}/metrics.jsonl") else ""
    print(f"{arm}\t{seed}\t{step}\t" + "\t".join(f"{v:.3f}" for v in x) + f"\t{minus}\t{cost}")
