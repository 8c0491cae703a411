"""Compares gad with transformers on one GGUF file:

    python scripts/gguf/read.py GAD FILE.gguf [PART ...]

weights   gad export --model FILE.gguf against gguf-py's values of every tensor, put back into
          Hugging Face's order: values that differ in a bit
config    config.json of that folder, as transformers reads it, beside its own of the file
logp      log-probabilities of the tokens of 100 paragraphs of this repository's documents
          (up to 128 tokens each): differences of gad, transformers, and transformers in
          float64 on the same weights, of the 20 that differ most
greedy    100 answers of 32 tokens through the chat template: how many are equal; where they
          part, how far apart the two tokens' log-probabilities are there (a tie is < 1e-4)
load      seconds and peak memory until the first token, of gad and of transformers, each in a
          process of its own; of llama.cpp too, where LLAMA_SIMPLE names its llama-simple

Words behind FILE.gguf choose parts: weights, config, logp, greedy, load. Exit status 0 if no
weight differs, one log-probability of a thousand at most is further than 1e-4 from that of
transformers and none further than 5e-4, and answers part at ties only. Needs torch,
transformers, gguf, numpy, safetensors.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

gad, path = sys.argv[1], os.path.abspath(sys.argv[2])
folder, name = os.path.split(path)

if sys.argv[3:] == ["child"]:  # the process whose time and memory are taken
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.generate(**tok("The", return_tensors="pt"), max_new_tokens=1, do_sample=False, pad_token_id=0)
    sys.exit()

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

failed = []


def run(*args):
    done = subprocess.run([gad, *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gad {' '.join(args)}: {done.stderr}")
    return done.stdout


def weights(hf):
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    heads = reader.fields[f"{arch}.attention.head_count"].contents()
    groups = reader.fields[f"{arch}.attention.head_count_kv"].contents()
    ours = {}
    for file in glob.glob(f"{hf}/*.safetensors"):
        ours.update(load_file(file))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH_NAMES and next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), 1000)
    theirs = {names.get_name(k, try_suffixes=(".weight", ".bias")): k for k in ours}
    values = differ = 0
    for t in reader.tensors:
        if t.name == "rope_freqs.weight":
            continue
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(list(t.shape)[::-1])
        part = re.search(r"attn_([qk])\.", t.name)
        if part and arch in ("llama", "granite", "smollm3"):  # rows 2j and 2j+1 are j and j + half
            n = heads if part[1] == "q" else groups
            x = x.reshape(n, x.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)
        if arch == "gemma3" and t.name.endswith("norm.weight"):
            x = x - np.float32(1)
        y = ours.pop(theirs[t.name])
        values += x.size
        differ += int((x.view(np.uint32) != y.view(np.uint32)).sum())
    print(f"weights   {len(reader.tensors)} tensors, {values} values: {differ} differ in a bit; {len(ours)} tensors are gad's alone")
    if differ or ours:
        failed.append("weights")


def config(hf):
    a, b = AutoConfig.from_pretrained(hf).to_dict(), AutoConfig.from_pretrained(folder, gguf_file=name).to_dict()
    known = ("transformers_version", "_name_or_path", "architectures", "dtype", "quantization_config", "use_cache")
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key) and key not in known:
            print(f"config    {key}: gad {a.get(key)}, transformers {b.get(key)}")


def paragraphs(tok):
    out = []
    for file in sorted(glob.glob("doc/*.md")) + ["README.md"]:
        for text in open(file, encoding="utf-8").read().split("\n\n"):
            ids = tok(text, add_special_tokens=False)["input_ids"][:128]
            if len(ids) >= 48:
                out.append(ids)
    return out[:: max(1, len(out) // 100)][:100]


def logp(model, tok, tmp):
    texts = paragraphs(tok)
    rows = f"{tmp}/texts.jsonl"
    with open(rows, "w") as f:
        for ids in texts:
            f.write(json.dumps({"prompt_ids": ids[:1], "response_ids": ids[1:]}) + "\n")
    got = [json.loads(line)["logprobs"] for line in run("logprobs", "--model", path, "--data", rows).splitlines()]

    def of(ids):
        x = torch.tensor([ids])
        with torch.no_grad():
            return torch.log_softmax(model(x).logits[0, :-1], -1).gather(-1, x[0, 1:, None])[:, 0].double().numpy()

    ours, theirs = [np.array(g) for g in got], [of(ids) for ids in texts]

    def show(name, a, b):
        d = np.abs(np.concatenate(a) - np.concatenate(b))
        print(f"logp      {name}: {len(d)} tokens, largest difference {d.max():.1e}, mean {d.mean():.1e}, above 1e-4: {(d > 1e-4).sum()}")
        return d

    d = show(f"gad, transformers, {len(texts)} texts", ours, theirs)
    if d.max() > 5e-4 or (d > 1e-4).mean() > 1e-3:
        failed.append("logp")
    worst = sorted(range(len(texts)), key=lambda i: -np.abs(ours[i] - theirs[i]).max())[:20]
    torch.nn.Module.double(model)  # transformers' own refuses what comes from a GGUF file
    exact = [of(texts[i]) for i in worst]
    torch.nn.Module.float(model)
    show("gad, float64, the 20 texts that differ most", [ours[i] for i in worst], exact)
    show("transformers, float64, the same", [theirs[i] for i in worst], exact)


TOPICS = ["the moon", "bread", "a violin", "photosynthesis", "the number seven", "rain", "Rome", "a bicycle", "glass", "chess", "salt", "the heart", "a lighthouse",
          "coal", "honey", "an atom", "the sea", "gold", "sleep", "a river", "trees", "steel", "music", "a clock", "ice"]
ASKS = ["What is {}?", "Write one sentence about {}.", "Why do people care about {}?", "Give me three words that go with {}."]


def greedy(model, tok, tmp):
    prompts = [ask.format(topic) for topic in TOPICS for ask in ASKS]
    rows, out = f"{tmp}/prompts.jsonl", f"{tmp}/answers.jsonl"
    with open(rows, "w") as f:
        for p in prompts:
            f.write(json.dumps({"content": p}) + "\n")
    run("generate", "--model", path, "--data", rows, "--output", out, "--temperature", "0", "--max-new-tokens", "32")
    answers = [json.loads(line) for line in open(out)]
    equal, gaps = 0, []
    for p, a in zip(prompts, answers, strict=True):
        ids = tok.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            got = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
        ours = a["response_ids"] if "response_ids" in a else None
        text = next(a[k] for k in ("response", "answer", "student_response", "text") if k in a)
        if ours is None and tok.decode(got, skip_special_tokens=True).strip() == text.strip() or ours is not None and ours == got[: len(ours)]:
            equal += 1
            continue
        mine = ours if ours is not None else tok(text, add_special_tokens=False)["input_ids"]
        at = next((i for i, (x, y) in enumerate(zip(mine, got)) if x != y), min(len(mine), len(got)) - 1)
        with torch.no_grad():
            lp = torch.log_softmax(model(torch.tensor([ids[0].tolist() + got[:at]])).logits[0, -1].float(), -1)
        gaps.append(abs(float(lp[got[at]] - lp[mine[at]])))
        print(f"greedy    {p!r} parts at token {at}, {gaps[-1]:.1e} apart: {text!r} and {tok.decode(got, skip_special_tokens=True)!r}")
    print(f"greedy    {equal} of {len(prompts)} answers equal, {sum(g < 1e-4 for g in gaps)} part at a tie")
    if any(g >= 1e-4 for g in gaps):
        failed.append("greedy")


# A child's peak includes what its parent had before exec: the parent is a small process.
LAUNCHER = """
import os, sys, time
begin = time.time()
null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
_, status, use = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=null), 0)
print(f"{time.time() - begin:.1f} s, {use.ru_utime + use.ru_stime:.1f} s of CPU, peak {use.ru_maxrss / 1024:.0f} MB" + (f", status {status}" if status else ""))
"""


def load(what, *args):
    print(f"load      {what}: " + subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *args], capture_output=True, text=True, check=True).stdout.strip())


parts = sys.argv[3:] or ["weights", "config", "logp", "greedy", "load"]
with tempfile.TemporaryDirectory() as tmp:
    hf = f"{tmp}/hf"
    if {"weights", "config"} & set(parts):
        run("export", "--model", path, "--output", hf, "--dtype", "float32")
    if "weights" in parts:
        weights(hf)
    if "config" in parts:
        config(hf)
    if {"logp", "greedy"} & set(parts):
        tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    if "logp" in parts:
        logp(model, tok, tmp)
    if "greedy" in parts:
        greedy(model, tok, tmp)
    for _ in range(2 if "load" in parts else 0):  # the second has the file in memory
        load("gad", gad, "generate", "--model", path, "--prompt", "The", "--temperature", "0", "--max-new-tokens", "1")
        load("transformers", sys.executable, __file__, gad, path, "child")
        if simple := os.environ.get("LLAMA_SIMPLE"):
            load("llama.cpp", simple, "-m", path, "-n", "1", "The")
print("failed: " + ", ".join(failed) if failed else "all equal")
sys.exit(bool(failed))
