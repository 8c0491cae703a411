#!/usr/bin/env python3
"""Print what rewards know beyond the length of an answer, from the --output of gad fidelity.

    scripts/study/given-length.py ANSWERS.jsonl

For each discriminator: the mean over prompts of its rank correlation with the exact log-ratio, and of
the partial rank correlation given the number of tokens, by the usual formula on ranks.
"""
import json
import sys
from collections import defaultdict


def ranks(values):
    """Return centred ranks; equal values share their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            out[order[k]] = (i + j) / 2
        i = j + 1
    middle = sum(out) / len(out)
    return [r - middle for r in out]


def correlation(a, b):
    """Return the correlation of two centred lists, 0 if one does not vary."""
    norm = (sum(x * x for x in a) * sum(x * x for x in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b)) / norm if norm > 0 else 0.0


def partial(a, b, given):
    """Return the correlation of a and b given a third list."""
    ab, ac, bc = correlation(a, b), correlation(a, given), correlation(b, given)
    norm = ((1 - ac * ac) * (1 - bc * bc)) ** 0.5
    return (ab - ac * bc) / norm if norm > 1e-6 else 0.0


groups = defaultdict(list)
with open(sys.argv[1], encoding="utf-8") as f:
    for line in f:
        row = json.loads(line)
        groups[row["row"]].append(row)
names = sorted(next(iter(groups.values()))[0]["scores"])
print("discriminator\trank correlation\tgiven length")
for name in names:
    plain, beyond = [], []
    for rows in groups.values():
        truth = ranks([r["log_ratio"] for r in rows])
        length = ranks([len(r["response_ids"]) for r in rows])
        score = ranks([r["scores"][name] for r in rows])
        plain.append(correlation(truth, score))
        beyond.append(partial(truth, score, length))
    print(f"{name}\t{sum(plain) / len(plain):.3f}\t{sum(beyond) / len(beyond):.3f}")
