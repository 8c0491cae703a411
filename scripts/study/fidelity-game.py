#!/usr/bin/env python3
"""Print the table of scripts/study/fidelity-game.sh: fidelity before each game, exact KL after it.

    RUNS=runs/fidelity scripts/study/fidelity-game.py

reverse and forward are KL(student || teacher) and KL(teacher || student), nats per token; reverse is
the mean of three samples of the held-out prompts. rho is the rank correlation of the discriminator
that the game began with.
"""
import glob
import json
import os
import re

RUNS = os.environ.get("RUNS", "runs/fidelity")


def find(node, key):
    """Return the first value of a key in nested JSON, or None."""
    if isinstance(node, dict):
        if key in node:
            return node[key]
        node = list(node.values())
    if isinstance(node, list):
        for x in node:
            found = find(x, key)
            if found is not None:
                return found
    return None


def mean(xs):
    return sum(xs) / len(xs)


rho = {}
for path in glob.glob(f"{RUNS}/*.json"):
    for r in json.load(open(path, encoding="utf-8")).get("rewards", []):
        m = re.search(r"/half-([^/]+)-(\d+)/global_step_(\d+)$", r["reward"])
        if m:
            rho[m[1], int(m[3]), int(m[2])] = r["rho"]
games = sorted({re.sub(r"\.\d\.json$", "", p) for p in glob.glob(f"{RUNS}/game-*.json")})
print("game\tupdates\tseed\trho\treverse\tforward")
for g in games:
    reports = [json.load(open(p, encoding="utf-8")) for p in sorted(glob.glob(f"{g}.?.json"))]
    reverse, forward = (mean([find(r, k) for r in reports]) for k in ("reverse_kl", "forward_kl"))
    m = re.search(r"/game-(.+)-(\d+)-(\d+)$", g)
    arm, step, seed = (m[1], int(m[2]), int(m[3])) if m else ("start", 0, 0)
    x = rho.get((arm, step, seed))
    print(f"{arm}\t{30 * step}\t{seed}\t{'-' if x is None else f'{x:.2f}'}\t{reverse:.3f}\t{forward:.3f}")
