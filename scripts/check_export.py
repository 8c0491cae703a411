"""Checks a model folder that gad wrote: transformers loads it without a missing
or unexpected tensor, and finds the log-probabilities that gad reported.

    gad logprobs --model DIR --data FILE --json > LINES
    python scripts/check_export.py DIR LINES [--temperature 1] [--tolerance 1e-3]

LINES holds one object a row with prompt_ids, response_ids and logprobs. With a
*ForSequenceClassification folder, lines hold prompt_ids, response_ids and score.
Exit status 0: all within the tolerance; 1: not; 2: nothing was compared.
"""

import argparse
import json
import sys

import torch
import transformers


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("dir")
    a.add_argument("lines")
    a.add_argument("--temperature", type=float, default=1.0)
    a.add_argument("--tolerance", type=float, default=1e-3)
    a = a.parse_args()

    config = transformers.AutoConfig.from_pretrained(a.dir)
    scorer = config.architectures[0].endswith("ForSequenceClassification")
    auto = transformers.AutoModelForSequenceClassification if scorer else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(a.dir, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(key):
            print(f"{a.dir}: {key}: {info[key]}")
            return 1
    model.eval()

    worst, count = 0.0, 0
    with torch.no_grad(), open(a.lines, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = json.loads(line)
            prompt, response = row["prompt_ids"], row["response_ids"]
            logits = model(torch.tensor([prompt + response])).logits[0]
            if scorer:
                got, want = [logits[0].item()], [row["score"]]
            else:
                logp = torch.log_softmax(logits[len(prompt) - 1:-1] / a.temperature, -1)
                got = logp.gather(1, torch.tensor(response, dtype=torch.long)[:, None])[:, 0].tolist()
                want = row["logprobs"]
            if len(got) != len(want):
                print(f"{a.lines}:{number}: {len(want)} values for {len(got)} tokens")
                return 1
            diff = max((abs(g - w) for g, w in zip(got, want)), default=0.0)
            if not diff <= a.tolerance:
                print(f"{a.lines}:{number}: differs by {diff:.3g}")
            worst, count = max(worst, diff if diff == diff else float("inf")), count + len(got)
    print(f"{a.dir}: {config.architectures[0]}, {count} values, largest difference {worst:.3g} "
          f"(tolerance {a.tolerance:g}; transformers {transformers.__version__}, torch {torch.__version__})")
    if count == 0:
        return 2
    return 0 if worst <= a.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
