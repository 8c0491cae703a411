"""Writes testdata/golden/soft.json: losses of soft labels with a tail, by TRL's own functions.

    python scripts/fixtures_soft.py [testdata/golden/soft.json]

_add_tail_bucket and _jsd_divergence of TRL's server distillation run unchanged, in float64, on
random logits of one token and a teacher's most probable tokens; TRL bounds the sum of their
probabilities by 1 - 1e-7, so cases stay below that. Gradients are PyTorch autograd's.
"""

import json
import pathlib
import sys

import torch
import trl
from trl.experimental.server_distillation import server_distillation_trainer as server

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def case(temperature, vocab, k, spread):
    # float32 is what a head's product gives
    student = (spread * torch.randn(1, 1, vocab)).float().double().requires_grad_()
    teacher = torch.log_softmax(spread * torch.randn(1, 1, vocab), -1)
    top = teacher.topk(k, dim=-1)
    own = torch.log_softmax(student / temperature, -1).gather(-1, top.indices)
    if max(own.exp().sum().item(), top.values.exp().sum().item()) > 1 - 1e-6:
        return None
    there = torch.ones_like(top.indices, dtype=torch.bool)
    student_with, mask = server._add_tail_bucket(own, there)
    teacher_with, _ = server._add_tail_bucket(top.values, there)
    loss = server._jsd_divergence(student_with, teacher_with, beta=0.0, support_mask=mask).sum()
    loss.backward()
    return {"temperature": temperature, "student": student[0, 0].tolist(),
            "ids": top.indices[0, 0].tolist(), "logp": top.values[0, 0].tolist(),
            "loss": loss.item(), "gradient": student.grad[0, 0].tolist()}


def main(path):
    torch.manual_seed(1)
    cases = []
    for temperature in (1, .7):
        for vocab, k in ((4, 1), (10, 1), (10, 4), (12, 11)):
            for spread in (.1, 1, 3):
                some = []
                while len(some) < 5:
                    c = case(temperature, vocab, k, spread)
                    if c is not None:
                        some.append(c)
                cases += some
    text = {"trl": trl.__version__, "torch": torch.__version__, "cases": cases}
    pathlib.Path(path).write_text(json.dumps(text) + "\n")
    print(len(cases), "cases")


main(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/soft.json")
