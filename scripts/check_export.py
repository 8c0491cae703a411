"""Checks a model folder that gad wrote: transformers loads it without a missing
or unexpected tensor, and finds the log-probabilities that gad reported. A folder
of LoRA adapters is loaded by peft, on the base that it names.

    gad logprobs --model DIR --data FILE --json > LINES
    python scripts/check_export.py DIR LINES [--temperature 1] [--tolerance 1e-3]

LINES holds one object a row with prompt_ids, response_ids and logprobs. With a
*ForSequenceClassification folder, lines hold prompt_ids, response_ids and score.
Exit status 0: all within the tolerance; 1: not; 2: nothing was compared.
"""

import argparse
import json
import os
import sys
import warnings

import torch
import transformers


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("dir")
    a.add_argument("lines")
    a.add_argument("--temperature", type=float, default=1.0)
    a.add_argument("--tolerance", type=float, default=1e-3)
    a = a.parse_args()

    adapter = os.path.exists(os.path.join(a.dir, "adapter_config.json"))
    if adapter:
        import peft
        lora = peft.PeftConfig.from_pretrained(a.dir)
        kind, base = lora.task_type, lora.base_model_name_or_path
        scorer = kind == "SEQ_CLS"
    else:
        base = a.dir
        kind = transformers.AutoConfig.from_pretrained(a.dir).architectures[0]
        scorer = kind.endswith("ForSequenceClassification")
    auto = transformers.AutoModelForSequenceClassification if scorer else transformers.AutoModelForCausalLM
    more = dict(num_labels=1) if adapter and scorer else {}
    model, info = auto.from_pretrained(base, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **more)
    if adapter:
        if scorer:
            info["missing_keys"] = set(info["missing_keys"]) - {"score.weight"}  # the adapter has it
            model.config.pad_token_id = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # peft warns of adapter keys that are missing
            model = peft.PeftModel.from_pretrained(model, a.dir)
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
    print(f"{a.dir}: {kind}, {count} values, largest difference {worst:.3g} "
          f"(tolerance {a.tolerance:g}; transformers {transformers.__version__}, torch {torch.__version__})")
    if count == 0:
        return 2
    return 0 if worst <= a.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
