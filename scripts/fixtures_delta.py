"""Writes testdata/golden/delta.json: the gated delta rule and its convolution as transformers'
Qwen3.5 computes them, in chunks and token by token, with torch's gradients.

    python scripts/fixtures_delta.py [testdata/golden/delta.json]

The rule is called as the model's layer calls it: by what its projections of decays and betas would
give, with A_log and dt_bias. Two sequences, each by itself; nothing of gad is asked.
"""

import json
import pathlib
import sys
from importlib.metadata import version

import torch
import torch.nn.functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5 as m

torch.set_num_threads(1)
torch.manual_seed(1)
K, H, E, V, J, CHUNK = 2, 4, 6, 5, 4, 16
C = 2 * K * E + H * V
LENGTHS = [37, 3]

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/delta.json")
N = sum(LENGTHS)
leaf = lambda t: t.round(decimals=4).requires_grad_()
x, a, b = leaf(torch.randn(N, C)), leaf(2 * torch.randn(N, H)), leaf(2 * torch.randn(N, H))
A, dt, w = leaf(torch.randn(H)), leaf(torch.randn(H)), leaf(torch.randn(C, J))
do = torch.randn(N, H * V).round(decimals=4)


def run(rule, chunks):
    outs, convs, at = [], [], 0
    for n in LENGTHS:
        rows = slice(at, at + n)
        at += n
        y = m.causal_conv1d_fn(x[rows].T[None], w, None, "silu").transpose(1, 2)
        q, k, v = y.split([K * E, K * E, H * V], dim=-1)
        g = -A.exp() * F.softplus(a[rows] + dt)
        o, _ = rule(q.reshape(1, n, K, E), k.reshape(1, n, K, E), v.reshape(1, n, H, V), g=g[None],
                    beta=b[rows].sigmoid()[None], use_qk_l2norm_in_kernel=True, **chunks)
        outs.append(o.reshape(n, H * V))
        convs.append(y[0])
    return torch.cat(convs), torch.cat(outs)


y, chunked = run(m.torch_chunk_gated_delta_rule, {"chunk_size": CHUNK})
_, recurrent = run(m.torch_recurrent_gated_delta_rule, {})
(chunked * do).sum().backward()
row = lambda t: [float(f"{v:.8g}") for v in t.detach().flatten().tolist()]
values = {"made_by": "scripts/fixtures_delta.py", "torch": version("torch"),
          "transformers": version("transformers"), "K": K, "H": H, "E": E, "F": V, "J": J,
          "lengths": LENGTHS}
tensors = {"x": x, "a": a, "b": b, "A": A, "dt": dt, "w": w, "do": do, "y": y, "chunked": chunked,
           "recurrent": recurrent, "dx": x.grad, "da": a.grad, "db": b.grad, "dA": A.grad,
           "ddt": dt.grad, "dw": w.grad}
rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row(t))}" for name, t in tensors.items())
out.write_text(json.dumps(values)[:-1] + ', "tensors": {\n' + rows + "\n}}\n")
