"""Writes testdata/golden/dpo.json: preference losses as TRL's own DPOTrainer computes them.

    python scripts/fixtures_dpo.py [testdata/golden/dpo.json]

DPOTrainer._compute_loss runs unchanged, in float64, on a stand-in for the trainer and for
both models: the models give fixed log-probabilities per token, whose sums are the case's.
Gradients are PyTorch autograd's, of the loss by the sums.
"""

import json
import pathlib
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
import trl
from trl.trainer.dpo_trainer import DPOTrainer

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

LOSSES = ["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard",
          "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"]
SMOOTHED = {"exo_pair": (1e-3, .1), "robust": (.1, .3), "aot": (.1,), "aot_unpaired": (.1,)}
PROMPT = 2  # tokens before the response


class Model:
    """Gives the sums [2n], chosen first, spread evenly over each response's tokens."""

    training = True

    def __init__(self, sums, lens):
        self.sums, self.lens = sums, lens

    def __call__(self, completion_mask=None, **kwargs):
        shifted = mask_of(self.lens)[:, 1:]
        logps = self.sums.unsqueeze(1) / self.lens.unsqueeze(1) * shifted
        zero = torch.zeros_like(logps)
        return SimpleNamespace(log_probs=logps, entropy=zero, mean_logits=zero, is_top1=zero.bool(), aux_loss=None)


def mask_of(lens):
    at = torch.arange(PROMPT + int(lens.max()))
    return ((at >= PROMPT) & (at < PROMPT + lens.unsqueeze(1))).long()


def run(loss_type, beta, smoothing, tau, c, r, rc, rr, len_c, len_r, name):
    chosen = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor(r, dtype=torch.float64, requires_grad=True)
    lens = torch.tensor(len_c + len_r)
    mask = mask_of(lens)
    policy = Model(torch.cat([chosen, rejected]), lens)
    gather = lambda x: x
    trainer = SimpleNamespace(
        model=policy, ref_model=Model(torch.tensor(rc + rr, dtype=torch.float64), lens),
        accelerator=SimpleNamespace(device="cpu", gather=gather, gather_for_metrics=gather, unwrap_model=gather),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None, discopop_tau=tau),
        aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=False, f_divergence_type="reverse_kl",
        loss_types=[loss_type], loss_weights=[1.0], beta=beta, label_smoothing=smoothing, use_weighting=False,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1)
    policy.is_gradient_checkpointing = False
    inputs = dict(input_ids=torch.zeros_like(mask), attention_mask=torch.ones_like(mask), completion_mask=mask)
    loss = DPOTrainer._compute_loss(trainer, policy, inputs, False)
    loss.backward()
    grad = lambda x: (x.grad if x.grad is not None else torch.zeros_like(x)).tolist()
    m = {k: v[-1] for k, v in trainer._metrics["train"].items()}
    return dict(name=name, loss_type=loss_type, beta=beta, label_smoothing=smoothing, tau=tau,
                chosen=c, rejected=r, ref_chosen=rc, ref_rejected=rr, len_chosen=len_c, len_rejected=len_r,
                loss=loss.item(), grad_chosen=grad(chosen), grad_rejected=grad(rejected),
                rewards_chosen=m["rewards/chosen"], rewards_rejected=m["rewards/rejected"],
                accuracy=m["rewards/accuracies"], margin=m["rewards/margins"])


def inputs(g, n, spread):
    len_c, len_r = (torch.randint(1, 40, (n,), generator=g).tolist() for _ in range(2))
    sums = lambda lens: [round(-1.3 * k + x, 6) for k, x in zip(lens, (torch.randn(n, generator=g) * spread).tolist())]
    c, r = sums(len_c), sums(len_r)
    near = lambda xs: [round(x + y, 6) for x, y in zip(xs, (torch.randn(n, generator=g) * spread).tolist())]
    return c, r, near(c), near(r), len_c, len_r


def main():
    path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/golden/dpo.json")
    g = torch.Generator().manual_seed(11)
    cases = []
    for loss_type in LOSSES:
        for smoothing in SMOOTHED.get(loss_type, (0.0,)):
            for beta in (.1, .5, 2.0):
                cases.append(run(loss_type, beta, smoothing, .05, *inputs(g, 5, 3), "five pairs"))
            # log-ratios of up to 100 and more: discopop's exp stays finite
            cases.append(run(loss_type, .1, smoothing, .05, *inputs(g, 7, 60), "far from the reference"))
            c, r, _, _, len_c, len_r = inputs(g, 3, 3)
            cases.append(run(loss_type, .1, smoothing, .05, c, r, c, r, len_c, len_r, "policy is the reference"))
            cases.append(run(loss_type, .3, smoothing, .05, *inputs(g, 1, 3), "one pair"))
    cases.append(run("discopop", .1, 0.0, .5, *inputs(g, 4, 3), "another tau"))
    cases.append(run("aot", .2, 0.0, .05, *inputs(g, 6, 3), "no smoothing"))
    cases.append(run("aot_unpaired", .2, 0.0, .05, *inputs(g, 6, 3), "no smoothing"))
    head = dict(made_by="scripts/fixtures_dpo.py", library="trl", version=trl.__version__,
                torch=torch.__version__.split("+")[0], function="DPOTrainer._compute_loss", dtype="float64")
    lines = ",\n".join(json.dumps(c) for c in cases)
    path.write_text(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    print(path, len(cases), "cases")


main()
