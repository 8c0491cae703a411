#!/usr/bin/env python3
"""Print the table of scripts/study/fidelity-game.sh: fidelity before each game, exact KL after it.

    RUNS=runs/fidelity scripts/study/fidelity-game.py [PLOT.svg]

reverse and forward are KL(student || teacher) and KL(teacher || student), nats per token; reverse is
the mean of three samples of the held-out prompts. steps are those of the game, or of SFT; rho is the
rank correlation of the discriminator that the game began with. The plot has the games of four steps.
"""
import glob
import json
import os
import re
import sys

from reports import find

RUNS = os.environ.get("RUNS", "runs/fidelity")


def mean(xs):
    return sum(xs) / len(xs)


rho = {}
for path in glob.glob(f"{RUNS}/*.json"):
    for r in json.load(open(path, encoding="utf-8")).get("rewards", []):
        m = re.search(r"/half-([^/]+)-(\d+)/global_step_(\d+)$", r["reward"])
        if m:
            rho[m[1], int(m[3]), int(m[2])] = r["rho"]
games = sorted({re.sub(r"\.\d\.json$", "", p) for p in glob.glob(f"{RUNS}/game-*.json")})
points, start = [], None
print("game\tsteps\tupdates\tseed\trho\treverse\tforward")
for g in games:
    reports = [json.load(open(p, encoding="utf-8")) for p in sorted(glob.glob(f"{g}.?.json"))]
    reverse, forward = (mean([find(r, k) for r in reports]) for k in ("reverse_kl", "forward_kl"))
    m = re.search(r"/game-(.+?)-(\d+)-(\d+)(?:-at-(\d+))?$", g)
    arm, step, seed, at = (m[1], int(m[2]), int(m[3]), m[4]) if m else ("start", 0, 0, "0")
    x = rho.get((arm, step, seed))
    steps = at or ("28" if arm.startswith("sft") else "4")
    print(f"{arm}\t{steps}\t{30 * step}\t{seed}\t{'-' if x is None else f'{x:.2f}'}\t{reverse:.3f}\t{forward:.3f}")
    start = reverse if arm == "start" else start
    if x is not None and at is None:
        points.append((x, reverse, arm))

# The plot: what a game gained, over the fidelity of the reward that it followed.
if len(sys.argv) > 1:
    gains = [(x, start - y, arm) for x, y, arm in points]
    low, high = min(g for _, g, _ in gains) - 0.03, max(g for _, g, _ in gains) + 0.03
    colours = {"likelihood": "#2a78b8", "value": "#c0504d", "large-head": "#7f7f7f"}

    def place(x, y):
        """Return the point of the picture where a game stands."""
        return 70 + (x + 0.2) / 0.6 * 400, 260 - (y - low) / (high - low) * 230

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="520" height="320" font-family="sans-serif" font-size="12">',
           '<rect width="520" height="320" fill="#fff"/>']
    for tick in (-0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4):
        px = place(tick, low)[0]
        out.append(f'<path d="M{px:.0f} 260V30" stroke="#eee"/>'
                   f'<text x="{px:.0f}" y="276" text-anchor="middle">{tick:g}</text>')
    for k in range(int(low * 20), int(high * 20) + 1):
        py = place(0, k / 20)[1]
        if 30 <= py <= 260:
            out.append(f'<path d="M70 {py:.0f}H470" stroke="{"#999" if k == 0 else "#eee"}"/>'
                       f'<text x="64" y="{py + 4:.0f}" text-anchor="end">{k / 20:g}</text>')
    for x, y, arm in gains:
        px, py = place(x, y)
        out.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" fill="{colours.get(arm, "#000")}" fill-opacity="0.75"/>')
    for i, (arm, colour) in enumerate(colours.items()):
        out.append(f'<circle cx="{90 + 110 * i}" cy="16" r="5" fill="{colour}"/><text x="{100 + 110 * i}" y="20">{arm}</text>')
    out.append('<text x="270" y="298" text-anchor="middle">rank correlation of the reward with the truth, before the game</text>')
    out.append('<text transform="translate(20 145) rotate(-90)" text-anchor="middle">fall of reverse KL, nats a token</text></svg>')
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")
