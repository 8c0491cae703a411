"""Writes testdata/golden/grgc.json: GRGC (arXiv 2609.39757) by PyTorch autograd in float64.

    python scripts/fixtures_grgc.py [testdata/golden/grgc.json]

The formulas are those of the paper, written here with PyTorch's own operations; nothing
of gad is asked. Two kinds of cases:

  discriminator   L = mean over pairs of softplus(student - teacher[group])
                      + lambda * mean over groups of (1/N) sum_j (r_(j) - mean - q_j)^2,
                  q_j = Phi^-1((j - 0.5)/N); the gradient goes through the sorted values and
                  the mean, not through the order. Ties keep the order of the responses.
                  group_term is the term before lambda.
  power_advantage z = (r - mean)/(std + 1e-6), shaped = sign(z)|z|^gamma,
                  advantages = the same z-score of shaped; std unbiased. A group of one has
                  mean 0 and std 1 (in float32, as verl has it), in both places.
"""

import json
import pathlib
import sys

import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def rows_of(group):
    rows = {}
    for i, g in enumerate(group):
        rows.setdefault(g, []).append(i)
    return list(rows.values())


def discriminator(name, lam, student, teacher, group):
    s = torch.tensor(student, dtype=torch.float64, requires_grad=True)
    t = torch.tensor(teacher, dtype=torch.float64, requires_grad=True)
    bt = torch.nn.functional.softplus(s - t[torch.tensor(group)], threshold=700).mean()
    terms = []
    for rows in rows_of(group):
        r, n = s[torch.tensor(rows)], len(rows)
        ordered, _ = torch.sort(r, stable=True)
        q = torch.special.ndtri((torch.arange(1, n + 1) - 0.5) / n)
        terms.append(((ordered - r.mean() - q) ** 2).sum() / n)
    term = torch.stack(terms).mean()
    loss = bt + lam * term
    loss.backward()
    return dict(kind="discriminator", name=name, lam=lam, student=student, teacher=teacher, group=group,
                loss=loss.item(), bt=bt.item(), group_term=term.item(),
                grad_student=s.grad.tolist(), grad_teacher=t.grad.tolist())


def zscore(r):
    if len(r) == 1:
        return r / (torch.tensor(1.0, dtype=torch.float32) + 1e-6)
    return (r - r.mean()) / (r.std() + 1e-6)


def power_advantage(name, gamma, scores, group):
    r = torch.tensor(scores, dtype=torch.float64)
    shaped, adv = torch.zeros_like(r), torch.zeros_like(r)
    for rows in rows_of(group):
        at = torch.tensor(rows)
        z = zscore(r[at])
        shaped[at] = torch.sign(z) * z.abs() ** gamma
        adv[at] = zscore(shaped[at])
    return dict(kind="power_advantage", name=name, gamma=gamma, scores=scores, group=group,
                shaped=shaped.tolist(), advantages=adv.tolist())


def draws(g, n, scale=1.0):
    return [round(x, 6) for x in (torch.randn(n, generator=g) * scale).tolist()]


def main():
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/grgc.json")
    g = torch.Generator().manual_seed(7)
    cases = []
    whole = [(n, [p for p in range(3) for _ in range(n)]) for n in (2, 3, 4, 8)]
    mixed = [0, 1, 2, 3, 3, 2, 1, 0, 3, 2, 1, 3, 2, 3, 3, 3, 3]  # groups of 2, 3, 4 and 8, interleaved
    for lam in (0.01, 0.05):
        for n, group in whole:
            cases.append(discriminator(f"groups of {n}", lam, draws(g, len(group), 1.5), draws(g, 3, 1.5), group))
        cases.append(discriminator("groups of 2, 3, 4 and 8, interleaved", lam, draws(g, len(mixed), 2), draws(g, 4, 2), mixed))
        cases.append(discriminator("ties", lam, [1, 1, 0, 2, -1, -1, -1, 3, .5, .5], [.5, 1.5, 0], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]))
        cases.append(discriminator("a group of one", lam, [.3, 1, -1], [.1, .2], [0, 1, 1]))
        cases.append(discriminator("all equal", lam, [.7] * 4, [.7], [0] * 4))
        cases.append(discriminator("far apart", lam, [30, -30, 12, 0], [-20, 25], [0, 0, 1, 1]))
    for gamma in (1, 1.2, 1.5, 1.6):
        cases.append(power_advantage("by hand", gamma, [1, 2, 3, 6], [0] * 4))
        cases.append(power_advantage("groups of one", gamma, [1.7, -.4, 0], [0, 1, 2]))
        cases.append(power_advantage("constant groups", gamma, [2, 2, 2, -.5, -.5], [0, 0, 0, 1, 1]))
        cases.append(power_advantage("ties", gamma, [1, 1, 2, 0, 0, 3], [0, 0, 0, 1, 1, 1]))
        cases.append(power_advantage("interleaved", gamma, draws(g, len(mixed), 2), mixed))
        cases.append(power_advantage("groups of 8", gamma, draws(g, 16, .3), [0] * 8 + [1] * 8))
    head = dict(made_by="scripts/fixtures_grgc.py", torch=torch.__version__.split("+")[0], dtype="float64")
    lines = ",\n".join(json.dumps(c) for c in cases)
    path.write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    print(path, len(cases), "cases")


main()
