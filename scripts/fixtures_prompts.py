"""Writes testdata/golden/prompts.safetensors and prompts.json: gradients of on-policy
distillation whose teacher reads a prompt of its own for some rows.

    python scripts/fixtures_prompts.py [testdata]

Student and teacher are folders of testdata/model, computed by transformers and PyTorch in float64.
The student reads (prompt, answer), the teacher (its prompt, answer); both give a distribution at
each token of the answer. The losses are means over the tokens of all answers:

  policy    -A log S(y), A = log T(y) - log S(y) without gradient
  exact     KL(S||T) over the whole vocabulary
  topk      KL(T||S) of the teacher's four most probable tokens, and of all others as one more
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
TOP = 4
PAIR = ("llama_yarn", "olmo2")


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").eval()


def at_answer(model, prompt, answer):
    logits = model(torch.tensor([prompt + answer])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1:-1], -1)


def loss_of(name, student, teacher, answer):
    y = torch.tensor(answer)[:, None]
    if name == "policy":
        own, theirs = student.gather(1, y)[:, 0], teacher.gather(1, y)[:, 0]
        return -((theirs - own).detach() * own).sum()
    if name == "exact":
        return (student.exp() * (student - teacher)).sum()
    p, at = teacher.exp().topk(TOP)
    q = student.exp().gather(1, at)
    p_rest, q_rest = 1 - p.sum(1), 1 - q.sum(1)
    return (p * (p / q).log()).sum() + (p_rest * (p_rest / q_rest).log()).sum()


def main(root):
    torch.manual_seed(5)
    student, teacher = (load(root / "model" / name) for name in PAIR)

    def ids(n):
        return torch.randint(3, 97, (n,)).tolist()

    rows = []
    for n, own, answers in ((5, 9, (6, 3)), (7, 0, (4, 5)), (3, 12, (1, 8))):
        prompt = ids(n)
        rows += [{"prompt": prompt, "teacher_prompt": ids(own) if k == 0 and own else None,
                  "answer": ids(m)} for k, m in enumerate(answers)]
        if own:  # both answers to a prompt
            rows[-1]["teacher_prompt"] = rows[-2]["teacher_prompt"]
    tokens = sum(len(r["answer"]) for r in rows)
    losses, tensors = {}, {}
    for name in ("policy", "exact", "topk"):
        student.zero_grad()
        total = 0
        for r in rows:
            with torch.no_grad():
                theirs = at_answer(teacher, r["teacher_prompt"] or r["prompt"], r["answer"])
            own = at_answer(student, r["prompt"], r["answer"])
            loss = loss_of(name, own, theirs, r["answer"]) / tokens
            loss.backward()
            total += loss.item()
        losses[name] = total
        for p, x in student.named_parameters():
            tensors[f"{name}/{p}"] = x.grad.float()
    save_file(tensors, root / "golden" / "prompts.safetensors")
    text = {"torch": torch.__version__, "transformers": transformers.__version__,
            "student": PAIR[0], "teacher": PAIR[1], "top": TOP, "rows": rows, "losses": losses}
    (root / "golden" / "prompts.json").write_text(json.dumps(text) + "\n")
    print(len(rows), "rows", losses)


main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata"))
