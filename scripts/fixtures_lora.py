"""Writes testdata/lora: adapters that peft saves, and the values that peft, transformers
and PyTorch compute with them on the folders of testdata/model.

    python scripts/fixtures_lora.py [testdata/lora [testdata/model [folder...]]]

Each folder holds adapter_config.json and adapter_model.safetensors as save_pretrained
writes them, and
  expected.json             library versions, sequences, and per sequence the response
                            tokens' log-probabilities (temperature 1), or scores
  expected_step.safetensors by tensor name of the adapter file: grad.NAME, the gradient
                            of the mean of -logp over all response tokens, or of
                            sum_i (i+1)*score_i; step.NAME, the weight after one step of
                            AdamW (lr 1e-2, betas 0.9, 0.999, eps 1e-8, weight decay 0.01)
All arithmetic is float32 on the CPU with eager attention.
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

# folder: (base, task, settings of LoRA)
ADAPTERS = {
    "qwen2_tied": ("qwen2_tied", "CAUSAL_LM", dict(r=4, lora_alpha=6, target_modules="all-linear")),
    "llama3": ("llama3_sharded", "CAUSAL_LM", dict(r=3, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"])),
    "qwen2_scorer": ("qwen2_tied", "SEQ_CLS", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    # Fused projections: one A for q, k and v, and one for gate and up.
    "phi3": ("phi3", "CAUSAL_LM", dict(r=3, lora_alpha=2, target_modules="all-linear")),
    "olmo3": ("olmo3", "CAUSAL_LM", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "granite4": ("granite4", "CAUSAL_LM", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "ministral3": ("ministral3", "CAUSAL_LM", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "lfm2": ("lfm2", "CAUSAL_LM", dict(r=3, lora_alpha=5, target_modules="all-linear")),
    "lfm2_some": ("lfm2", "CAUSAL_LM", dict(r=2, lora_alpha=5, target_modules=["q_proj", "out_proj", "w2"])),
    "qwen3_5": ("qwen3_5", "CAUSAL_LM", dict(r=2, lora_alpha=1, target_modules="all-linear")),
    # The output of attention alone, and of the delta rule alone; one that attention's gate is a part of.
    "qwen3_5_some": ("qwen3_5", "CAUSAL_LM", dict(r=2, lora_alpha=1, target_modules=["q_proj", "o_proj", "in_proj_qkv", "in_proj_a"])),
}

# Seeds that are not the folder's place: see SEEDS of fixtures_model.py.
SEEDS = {"qwen3_5": 21}


def sequences(vocab):
    g = torch.Generator().manual_seed(7)
    return [dict(ids=torch.randint(3, vocab, (n,), generator=g).tolist(), prompt=p) for n, p in [(7, 3), (30, 11), (2, 1)]]


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/lora")
    models = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "testdata/model")
    for seed, (name, (base, task, settings)) in enumerate(ADAPTERS.items()):
        if len(sys.argv) > 3 and name not in sys.argv[3:]:
            continue
        seed = SEEDS.get(name, seed)
        kind = transformers.AutoModelForCausalLM if task == "CAUSAL_LM" else transformers.AutoModelForSequenceClassification
        more = {} if task == "CAUSAL_LM" else dict(num_labels=1)
        torch.manual_seed(seed)
        model = kind.from_pretrained(models / base, dtype=torch.float32, attn_implementation="eager", **more)
        model.config.pad_token_id = 0
        model = peft.get_peft_model(model, peft.LoraConfig(task_type=task, **settings))
        g = torch.Generator().manual_seed(100 + seed)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for p in trained.values():
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        model.peft_config["default"].base_model_name_or_path = "../../model/" + base
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        for file in folder.iterdir():
            file.chmod(0o644)
        seqs = sequences(model.config.vocab_size)
        loss, count = 0, 0
        for i, s in enumerate(seqs):
            ids = torch.tensor([s["ids"]])
            if task == "CAUSAL_LM":
                logp = torch.log_softmax(model(ids).logits[0], -1)
                rows = [logp[t - 1, s["ids"][t]] for t in range(s["prompt"], len(s["ids"]))]
                s["logp"] = [float(x) for x in rows]
                loss, count = loss - sum(rows), count + len(rows)
            else:
                score = model(ids, attention_mask=torch.ones_like(ids)).logits[0, 0]
                s["score"] = float(score)
                loss, count = loss + (i + 1) * score, 1
        (loss / count).backward()
        # The names of the adapter file, by peft's own rule.
        saved = {n.replace(".default", "").replace("modules_to_save.", ""): p for n, p in trained.items()}
        tensors = {"grad." + n: p.grad.clone().contiguous() for n, p in saved.items()}
        torch.optim.AdamW(list(saved.values()), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01).step()
        tensors |= {"step." + n: p.detach().clone().contiguous() for n, p in saved.items()}
        save_file(tensors, folder / "expected_step.safetensors")
        (folder / "expected_step.safetensors").chmod(0o644)
        versions = dict(torch=torch.__version__, transformers=transformers.__version__, peft=peft.__version__)
        (folder / "expected.json").write_text(json.dumps(dict(versions=versions, base=base, sequences=seqs), indent=1) + "\n")


main()
