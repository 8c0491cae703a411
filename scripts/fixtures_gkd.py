"""Writes testdata/golden/gkd.json: divergences as TRL's own GKDTrainer computes them.

    python scripts/fixtures_gkd.py [testdata/golden/gkd.json]

GKDTrainer.generalized_jsd_loss runs unchanged, in float64, on random logits of one token.
Gradients are PyTorch autograd's, by the student's logits.
"""

import json
import pathlib
import sys

import torch
import trl
from trl.experimental.gkd.gkd_trainer import GKDTrainer

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def case(beta, temperature, vocab, spread):
    # float32 is what a head's product gives
    student = (spread * torch.randn(1, 1, vocab)).float().double().requires_grad_()
    teacher = (spread * torch.randn(1, 1, vocab)).float().double()
    loss = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature,
                                           reduction="sum")
    loss.backward()
    return {"beta": beta, "temperature": temperature, "student": student[0, 0].tolist(),
            "teacher": teacher[0, 0].tolist(), "loss": loss.item(),
            "gradient": student.grad[0, 0].tolist()}


def main(path):
    torch.manual_seed(1)
    cases = [case(beta, temperature, vocab, spread)
             for beta in (0, .1, .5, .9, 1)
             for temperature in (1, .7)
             for vocab in (3, 10)
             for spread in (.1, 1, 3, 8, 20)
             for _ in range(2)]
    text = {"trl": trl.__version__, "torch": torch.__version__, "cases": cases}
    pathlib.Path(path).write_text(json.dumps(text) + "\n")
    print(len(cases), "cases")


main(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/gkd.json")
