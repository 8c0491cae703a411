"""Writes testdata/golden/ranking.json: the listwise ranking loss and its gradient by PyTorch.

    python scripts/fixtures_ranking.py [testdata/golden/ranking.json]

The loss is torch.nn.functional.cross_entropy with probabilities as targets, of the group's
sequence log-probabilities against softmax(score/tau), in float64; the gradient is autograd's.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def run(name, tau, groups):
    leaves = [torch.tensor(logp, requires_grad=True) for logp, _ in groups]
    losses = [F.cross_entropy(x.unsqueeze(0), F.softmax(torch.tensor(score) / tau, 0).unsqueeze(0))
              for x, (_, score) in zip(leaves, groups)]
    loss = torch.stack(losses).mean()
    loss.backward()
    return dict(name=name, tau=tau, logp=[logp for logp, _ in groups],
                score=[score for _, score in groups], loss=loss.item(),
                grad=[x.grad.tolist() for x in leaves])


def drawn(g, sizes, length, spread):
    return [((-length * torch.rand(n, generator=g)).tolist(),
             (spread * torch.randn(n, generator=g)).tolist()) for n in sizes]


def main(path):
    g = torch.Generator().manual_seed(28)
    cases = [run("two answers", .5, [([-10.0, -11.0], [1.0, 1.5])]),
             run("an answer far below the others", 1, [([-3.0, -900.0, -4.0], [0.0, 1.0, 0.0])]),
             run("right and wrong", .1, [([-20.0, -18.0, -25.0], [1.0, 0.0, 1.0])]),
             run("equal scores", .3, [([-5.0, -2.0], [4.0, 4.0])]),
             run("large scores", .1, [([-5.0, -2.0, -1.0], [1e4, -1e4, 9.9e3])])]
    for i, tau in enumerate([1.0, .55, .1]):
        cases.append(run(f"groups of several sizes, {i}", tau, drawn(g, [2, 9, 5, 3], 60, 2)))
    out = dict(torch=torch.__version__.split("+")[0], cases=cases)
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/ranking.json"))
