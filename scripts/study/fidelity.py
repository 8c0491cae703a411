#!/usr/bin/env python3
"""Print the table of scripts/study/fidelity.sh from what gad fidelity has measured.

    RUNS=runs/fidelity scripts/study/fidelity.py [PAIR ...]

A line an arm and number of updates: mean over the seeds of the rank correlation with the truth
(and each seed's), of the one given fluency, the share of pairs in the right order, d_acc on held-out
rows, and the seconds that the warm-up took.
"""
import collections
import glob
import json
import os
import re
import sys

RUNS = os.environ.get("RUNS", "runs/fidelity")
UPDATES = 30  # a step


def seconds(run, step):
    """Return the seconds of a run's steps up to step, or None."""
    try:
        lines = [json.loads(x) for x in open(f"{RUNS}/{run}/metrics.jsonl", encoding="utf-8")]
    except OSError:
        return None
    return sum(x.get("timing_s/step", 0) for x in lines if x["step"] <= step)


def mean(xs):
    xs = [x for x in xs if x is not None]
    return sum(xs) / len(xs) if xs else float("nan")


rows = collections.defaultdict(dict)
trivial = {}
for path in sorted(glob.glob(f"{RUNS}/*.json")):
    report = json.load(open(path, encoding="utf-8"))
    pair = None
    if "rewards" not in report:
        continue  # of the games
    for r in report["rewards"]:
        m = re.search(r"/(cool|pirate|half)-([^/]+)-(\d+)/global_step_(\d+)$", r["reward"])
        if m:
            pair, arm, seed, step = m.groups()
            rows[pair, arm, int(step)][int(seed)] = (r, seconds(f"{pair}-{arm}-{seed}", int(step)))
    for r in report["rewards"]:
        if r["reward"] in ("mean log p_S", "sum log p_S", "length"):
            trivial[pair, r["reward"]] = r
wanted = sys.argv[1:] or ["cool", "pirate", "half"]
print("pair\tarm\tupdates\tseeds\trho\teach\tpartial\tpairs\td_acc\tspread")
for (pair, arm, step), by in sorted(rows.items(), key=lambda x: (x[0][0], x[0][1], x[0][2])):
    if pair not in wanted:
        continue
    rs = [by[s][0] for s in sorted(by)]
    rho = [r["rho"] for r in rs]
    print(f"{pair}\t{arm}\t{step * UPDATES}\t{len(rs)}\t{mean(rho):.2f}\t"
          f"{' '.join(f'{x:.2f}' for x in rho)}\t{mean([r.get('partial_rho') for r in rs]):.2f}\t"
          f"{mean([r['pairs'] for r in rs]):.2f}\t{mean([r.get('d_acc') for r in rs]):.2f}\t"
          f"{mean([r['spread'] for r in rs]):.2f}")
for (pair, name), r in sorted(trivial.items(), key=str):
    if pair in wanted:
        lo, hi = r["rho_ci95"]
        print(f"{pair}\t{name}\t-\t-\t{r['rho']:.2f}\t{lo:.2f} to {hi:.2f}\t-\t{r['pairs']:.2f}\t-\t-")
