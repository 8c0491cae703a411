#!/usr/bin/env python3
"""Print the table of scripts/study/signs.sh: how well each sign orders a game's checkpoints.

    RUNS=runs/ladder scripts/study/signs.py SIZE ...

For each game the Spearman rank correlation over its checkpoints between a sign and the exact reverse
and forward KL, signs turned so that larger should be better; mean and range over games. Signs of the
log are means over the ten steps up to the checkpoint. best is the reverse KL (nats per token) of the
checkpoint that the sign would keep, above that of the best checkpoint, mean over games.
"""
import glob
import json
import os
import re
import sys

from ranking import correlation, ranks

RUNS = os.environ.get("RUNS", "runs/ladder")
# sign: which way is better: +1 larger, -1 smaller, or the value that it should be near to
LOG = {"critic/d_acc": 0.5, "critic/d_acc_fresh": 0.5, "critic/d_acc_distinct": 0.5, "critic/d_loss": +1,
       "critic/group_std": +1, "critic/score_gap": -1, "reward/mean": +1, "rollout/len_ratio": 1.0,
       "actor/entropy": +1, "actor/pg_clipfrac": -1, "actor/kl_loss": -1, "step": +1}
HELD = {"teacher_nll": -1, "rouge_l": +1, "len_ratio": 1.0, "distinct_2": +1, "repeat_frac": -1,
        "disc_acc": 0.5}


def turned(value, way):
    """Return a sign's value such that larger should be better."""
    return way * value if way in (1, -1) else -abs(value - way)


def games(size):
    """Return for each game (stage, [(step, held-out figures, log's signs)])."""
    found = {}
    for path in glob.glob(f"{RUNS}/{size}/signs/*.json"):
        stage, step = re.match(r"(.*)-(\d+)\.json$", os.path.basename(path)).groups()
        held = json.load(open(path, encoding="utf-8"))
        rows = [json.loads(x) for x in open(f"{RUNS}/{size}/study/stages/{stage}/run/metrics.jsonl", encoding="utf-8")]
        rows = [r for r in rows if int(step) - 10 < r["step"] <= int(step)]
        log = {k: sum(r[k] for r in rows if k in r) / len(rows) for k in LOG if any(k in r for r in rows)}
        log["step"] = int(step)
        found.setdefault(stage, []).append((int(step), held, log))
    return {k: sorted(v, key=lambda x: x[0]) for k, v in sorted(found.items())}


for size in sys.argv[1:]:
    all_ = {k: v for k, v in games(size).items() if len(v) >= 4}
    print(f"# {size}: {len(all_)} games")
    for stage, points in all_.items():
        print(f"# {stage}: reverse KL " + " ".join(f"{p[0]}:{p[1]['reverse_kl']:.3f}" for p in points)
              + "; forward " + " ".join(f"{p[1]['forward_kl']:.3f}" for p in points)
              + "; d_acc_distinct " + " ".join(f"{p[2].get('critic/d_acc_distinct', float('nan')):.2f}" for p in points))
    print("sign\treverse KL\trange\tforward KL\tbest")
    for where, signs in (("log", LOG), ("held", HELD)):
        for sign, way in signs.items():
            rev, fwd, lost = [], [], []
            for points in all_.values():
                have = [p for p in points if sign in (p[2] if where == "log" else p[1])]
                if len(have) < 4:
                    continue
                s = [turned((p[2] if where == "log" else p[1])[sign], way) for p in have]
                kl = [p[1]["reverse_kl"] for p in have]
                for out, ys in ((rev, kl), (fwd, [p[1]["forward_kl"] for p in have])):
                    r = correlation(ranks(s), ranks([-y for y in ys]))
                    if r is not None:
                        out.append(r)
                lost.append(kl[max(range(len(s)), key=lambda i: s[i])] - min(kl))
            if rev:
                print(f"{where} {sign}\t{sum(rev) / len(rev):.2f}\t{min(rev):.2f} to {max(rev):.2f}\t"
                      f"{sum(fwd) / max(len(fwd), 1):.2f}\t+{sum(lost) / len(lost):.3f}")
