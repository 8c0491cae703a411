#!/usr/bin/env python3
"""Print what rewards know beyond the length of an answer, from the --output of gad fidelity.

    scripts/study/given-length.py ANSWERS.jsonl

For each discriminator, and for the mean of each two that differ only in the seed (runs named ...-1,
...-2): the mean over prompts of its rank correlation with the exact log-ratio, and of the partial
rank correlation given the number of tokens, by the usual formula on ranks.
"""
import json
import re
import sys
from collections import defaultdict
from itertools import combinations

from ranking import correlation, ranks


def partial(a, b, given):
    """Return the correlation of a and b given a third list."""
    ab, ac, bc = (correlation(x, y) or 0.0 for x, y in ((a, b), (a, given), (b, given)))
    norm = ((1 - ac * ac) * (1 - bc * bc)) ** 0.5
    return (ab - ac * bc) / norm if norm > 1e-6 else 0.0


groups = defaultdict(list)
with open(sys.argv[1], encoding="utf-8") as f:
    for line in f:
        row = json.loads(line)
        groups[row["row"]].append(row)
names = sorted(next(iter(groups.values()))[0]["scores"])
alike = defaultdict(list)
for name in names:
    alike[re.sub(r"-\d+/", "-*/", name)].append(name)
means = [two for same in alike.values() for two in combinations(same, 2)]
print("discriminator\trank correlation\tgiven length")
for of in [(name,) for name in names] + means:
    plain, beyond = [], []
    for rows in groups.values():
        truth = ranks([r["log_ratio"] for r in rows])
        length = ranks([len(r["response_ids"]) for r in rows])
        score = ranks([sum(r["scores"][name] for name in of) for r in rows])
        plain.append(correlation(truth, score) or 0.0)
        beyond.append(partial(truth, score, length))
    print(f"{' and '.join(of)}\t{sum(plain) / len(plain):.3f}\t{sum(beyond) / len(beyond):.3f}")
