"""Writes testdata/golden/sft.json: cross entropy with soft labels and a tail, by PyTorch.

    python scripts/fixtures_sft.py [testdata/golden/sft.json]

transformers loads testdata/model/qwen2_tied in float32 and gives the logits of the sequences of
its expected.json. The labels are random; the loss is written out token by token in float64 from
torch.log_softmax, and the gradients of the weights are autograd's. Per case
  weight      of the soft labels
  labels      for each sequence, for each response token: ids and log-probabilities, or null
  loss        mean over all response tokens
  kl          mean of KL(label, model) over the tokens with labels, the tail as one event
  grad_norm   of all weights together
"""

import json
import math
import pathlib
import sys

import torch
import transformers

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
ROOT = pathlib.Path(__file__).resolve().parent.parent / "testdata"
FOLDER = ROOT / "model" / "qwen2_tied"


def label(g, vocab, own, kind):
    """Tokens with probabilities, the answer's own first; of kind 'whole' without a tail."""
    if kind == "none":
        return None
    k = int(torch.randint(1, 9, (1,), generator=g))
    ids = [i for i in torch.randperm(vocab, generator=g).tolist() if i != own][:k]
    if kind != "without own":
        ids = [own] + ids
    p = torch.rand(len(ids), generator=g, dtype=torch.float64) + .01
    p = p / p.sum() * (1 if kind == "whole" else float(torch.rand(1, generator=g)) * .98 + .01)
    return dict(ids=ids, logprobs=[float(x.log().float()) for x in p])


def case(model, sequences, g, weight, kinds):
    vocab = model.config.vocab_size
    labels, losses, kls = [], [], []
    for s in sequences:
        ids, prompt = s["ids"], s["prompt"]
        logits = model(torch.tensor([ids])).logits[0].double()
        logq = torch.log_softmax(logits, -1)[prompt - 1:-1]
        row = []
        for t, own in enumerate(ids[prompt:]):
            kind = kinds[int(torch.randint(0, len(kinds), (1,), generator=g))]
            l = label(g, vocab, own, kind)
            row.append(l)
            hard = -logq[t, own]
            if l is None:
                losses.append(hard)
                continue
            k = torch.tensor(l["ids"])
            p = torch.tensor(l["logprobs"], dtype=torch.float64).exp()
            rest = max(0., 1 - float(p.sum()))
            outside = torch.ones(vocab, dtype=torch.bool)
            outside[k] = False
            cross = -(p * logq[t, k]).sum()
            entropy = -float((p * p.log()).sum())
            if rest > 1e-6:  # what is left of 1 by float32 is nothing
                cross = cross - rest * torch.logsumexp(logq[t, outside], 0)
                entropy -= rest * math.log(rest)
            kls.append(cross.item() - entropy)
            losses.append((1 - weight) * hard + weight * cross)
        labels.append(row)
    loss = torch.stack(losses).mean()
    model.zero_grad()
    loss.backward()
    norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()))
    return dict(weight=weight, labels=labels, loss=loss.item(),
                kl=sum(kls) / max(1, len(kls)), grad_norm=norm)


def main(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32,
                                                              attn_implementation="eager")
    model.train(False)
    sequences = json.loads((FOLDER / "expected.json").read_text())["sequences"]
    g = torch.Generator().manual_seed(29)
    cases = [case(model, sequences, g, w, kinds) for w, kinds in [
        (1, ["tail"]), (1, ["tail", "none", "without own", "whole"]),
        (.3, ["tail", "none"]), (.5, ["without own", "tail", "whole"]), (0, ["tail", "none"])]]
    out = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
               model="qwen2_tied", cases=cases)
    path.write_text(json.dumps(out) + "\n")
    for c in cases:
        print(c["weight"], c["loss"], c["kl"], c["grad_norm"])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "golden" / "sft.json"))
