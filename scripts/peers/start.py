#!/usr/bin/env python3
"""Start and evaluation beside the peers a user would take, on the CPU.

Each case is a program that a user would run, as a process of its own; in a round every
program of a case runs once, one after the other. The table has medians over the rounds:
wall time, processor time (all threads) and peak memory of the process; for Python also
the wall time without imports. Texts are the sources of Python's own library; models have
random weights; nothing is downloaded. The cases:

  encode  100,000 rows from JSON lines to token ids, prompts in the chat template
            gad         gad data validate (which also looks for faults and duplicates)
            tokenizers  json, ChatML by a format string, encode_batch
            datasets    load_dataset, map in batches with encode_batch; its cache is new
  start   the same rows until the first step of SFT with 8 rows is done
            gad cold    with an empty data.cache_dir
            gad warm    again: the rows are read from it
            datasets    load_dataset and map from the cache of the case before, and 8 rows read
  load    from the start of the process to the log-probabilities of one row, 517 MB of float32
            gad           gad logprobs
            safetensors   load_file and a copy of each tensor: no model, no forward pass
            transformers  from_pretrained and one forward pass
  eval    64 rows: greedy answers of 128 tokens, then the teacher's answers' log-probabilities
            gad           gad eval (which also times a plan, ROUGE-L and 95 % intervals)
            transformers  generate in one batch of 64, forward in batches of 16

Needs the packages tokenizers, safetensors, torch, transformers and datasets. Exit status 1 if a
program of gad fails.
"""
import argparse
import glob
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import threading
import time

TINY = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=192)
SMALL = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, intermediate_size=2816)
LARGE = dict(hidden_size=768, num_hidden_layers=14, num_attention_heads=12, num_key_value_heads=4, intermediate_size=2560)
VOCAB, EVAL_ROWS, NEW = 32000, 64, 128


def make(work, gad, rows):
    """Rows and models, once."""
    text = []
    for name in sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True)):
        if "site-packages" not in name:
            with open(name, encoding="utf-8", errors="ignore") as f:
                text.append(f.read())
    text = "\n".join(text)
    for name, n in (("rows", rows), ("few", EVAL_ROWS), ("one", 1)):
        rng = random.Random(1)
        with open(f"{work}/{name}.jsonl", "w", encoding="utf-8") as f:
            for _ in range(n):
                at, p, t = rng.randrange(len(text) - 4000), rng.randrange(100, 600), rng.randrange(300, 1500)
                row = {"content": [{"role": "user", "content": text[at:at + p]}], "teacher_response": text[at + p:at + p + t]}
                f.write(json.dumps(row, ensure_ascii=False) + "\n")
    with open(f"{work}/corpus.txt", "w", encoding="utf-8") as f:
        f.write(text[:20_000_000])
    for name, shape in (("tiny", TINY), ("small", SMALL), ("large", LARGE)):
        if os.path.exists(f"{work}/{name}"):
            continue
        with open(f"{work}/{name}.json", "w") as f:
            json.dump(dict(shape, architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=VOCAB, max_position_embeddings=4096, rope_theta=10000.0,
                           rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu", torch_dtype="float32"), f)
        subprocess.run([gad, "init", "--config", f"{work}/{name}.json", "--corpus", f"{work}/corpus.txt", "--output", f"{work}/{name}"], check=True, stderr=subprocess.DEVNULL)


# The peers: each prints the seconds that it took without imports.

def rows_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def chatml(row):
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in row["content"]) + "<|im_start|>assistant\n"


def answer(text):
    return text.rstrip(" \t\r\n") + "<|im_end|>"  # as gad reads a teacher's answer


def lengths(encodings):
    return sum(len(e.ids) for e in encodings)


def peer_tokenizers(work):
    import tokenizers
    begun = time.perf_counter()
    tok = tokenizers.Tokenizer.from_file(f"{work}/tiny/tokenizer.json")
    tokens = 0
    rows = rows_of(f"{work}/rows.jsonl")
    for lo in range(0, len(rows), 1000):
        some = rows[lo:lo + 1000]
        tokens += lengths(tok.encode_batch([chatml(r) for r in some]))
        tokens += lengths(tok.encode_batch([answer(r["teacher_response"]) for r in some]))
    return begun, f"{tokens} tokens"


def peer_datasets(work):
    import datasets
    import tokenizers
    datasets.disable_progress_bars()
    begun = time.perf_counter()
    tok = tokenizers.Tokenizer.from_file(f"{work}/tiny/tokenizer.json")

    def encode(some):
        rows = [dict(content=c) for c in some["content"]]
        return {"prompt": [e.ids for e in tok.encode_batch([chatml(r) for r in rows])],
                "answer": [e.ids for e in tok.encode_batch([answer(a) for a in some["teacher_response"]])]}
    rows = datasets.load_dataset("json", data_files=f"{work}/rows.jsonl", split="train", cache_dir=f"{work}/datasets")
    rows = rows.map(encode, batched=True, new_fingerprint="encoded")
    return begun, f"{sum(len(rows[i]['prompt']) for i in range(0, len(rows), len(rows) // 8))} tokens of 9 rows"


def peer_safetensors(work):
    import torch
    from safetensors.torch import load_file
    torch.set_num_threads(2)
    begun = time.perf_counter()
    weights = {k: v.clone() for k, v in load_file(f"{work}/large/model.safetensors").items()}
    return begun, f"{len(weights)} tensors"


def encoded(work, name, tok):
    out = []
    for r in rows_of(f"{work}/{name}.jsonl"):
        p, a = tok(chatml(r), add_special_tokens=False).input_ids, tok(answer(r["teacher_response"]), add_special_tokens=False).input_ids
        out.append((p, a))
    return out


def loglik(torch, m, pairs, batch):
    """Sum of log-probabilities of the answers, in batches of equal width."""
    total, n = 0.0, 0
    pairs = sorted(pairs, key=lambda x: len(x[0]) + len(x[1]))
    for lo in range(0, len(pairs), batch):
        some = pairs[lo:lo + batch]
        width = max(len(p) + len(a) for p, a in some)
        ids, label = torch.zeros(len(some), width, dtype=torch.long), torch.full((len(some), width), -100)
        for i, (p, a) in enumerate(some):
            ids[i, :len(p) + len(a)] = torch.tensor(p + a)
            label[i, len(p):len(p) + len(a)] = torch.tensor(a)
        logits = m(ids).logits[:, :-1]
        total -= torch.nn.functional.cross_entropy(logits.flatten(0, 1), label[:, 1:].flatten(), ignore_index=-100, reduction="sum").item()
        n += int((label[:, 1:] >= 0).sum())
    return total, n


def peer_transformers_load(work):
    import torch
    import transformers
    torch.set_num_threads(2)
    begun = time.perf_counter()
    tok = transformers.AutoTokenizer.from_pretrained(f"{work}/large")
    m = transformers.AutoModelForCausalLM.from_pretrained(f"{work}/large", dtype=torch.float32).eval()
    with torch.inference_mode():
        total, n = loglik(torch, m, encoded(work, "one", tok), 1)
    return begun, f"{total / n:.5f} a token"


def peer_transformers_eval(work):
    import torch
    import transformers
    torch.set_num_threads(2)
    begun = time.perf_counter()
    tok = transformers.AutoTokenizer.from_pretrained(f"{work}/small")
    m = transformers.AutoModelForCausalLM.from_pretrained(f"{work}/small", dtype=torch.float32).eval()
    pairs = [(p, a[:NEW]) for p, a in encoded(work, "few", tok)]  # longer answers are cut, as gad cuts them
    width = max(len(p) for p, _ in pairs)
    ids, mask = torch.zeros(len(pairs), width, dtype=torch.long), torch.zeros(len(pairs), width, dtype=torch.long)
    for i, (p, _) in enumerate(pairs):
        ids[i, width - len(p):], mask[i, width - len(p):] = torch.tensor(p), 1
    end = tok.convert_tokens_to_ids("<|im_end|>")
    with torch.inference_mode():
        out = m.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, eos_token_id=end, pad_token_id=0)
        sampled = time.perf_counter()
        total, n = loglik(torch, m, pairs, 16)
    said = f"answers {sampled - begun:.2f} s, log-probabilities {time.perf_counter() - sampled:.2f} s, NLL {-total / n:.5f}, {out.shape[1] - width} tokens"
    return begun, said


PEERS = {"tokenizers": peer_tokenizers, "datasets": peer_datasets, "safetensors": peer_safetensors, "transformers load": peer_transformers_load, "transformers eval": peer_transformers_eval}


def cases(work, gad):
    def peer(name):
        return [sys.executable, os.path.abspath(__file__), "--work", work, "--peer", name]
    sft = [gad, "sft", "--model", f"{work}/tiny", "--data", f"{work}/rows.jsonl", "--output", f"{work}/run", "--steps", "1", "--threads", "2", f"data.cache_dir={work}/cache",
           "data.train_batch_size=8", "data.max_prompt_length=1024", "data.max_response_length=2048", "data.overlong_prompts=filter", "trainer.save_freq=0"]
    return {
        "encode": [("gad", [gad, "data", "validate", "--data", f"{work}/rows.jsonl", "--model", f"{work}/tiny"], []), ("tokenizers", peer("tokenizers"), []),
                   ("datasets", peer("datasets"), [f"{work}/datasets"])],
        "start": [("gad cold", sft, [f"{work}/run", f"{work}/cache"]), ("gad warm", sft, [f"{work}/run"]), ("datasets", peer("datasets"), [])],
        "load": [("gad", [gad, "logprobs", "--model", f"{work}/large", "--data", f"{work}/one.jsonl", "--threads", "2"], []), ("safetensors", peer("safetensors"), []),
                 ("transformers", peer("transformers load"), [])],
        "eval": [("gad", [gad, "eval", "--model", f"{work}/small", "--data", f"{work}/few.jsonl", "--max-response-length", str(NEW), "--disc-steps", "0", "--threads", "2", "--json"], []),
                 ("transformers", peer("transformers eval"), [])],
    }


def run(command, fresh):
    """Runs one program; wall and processor seconds, peak MB, output, status."""
    for path in fresh:
        shutil.rmtree(path, ignore_errors=True)
    env = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS="2", OMP_NUM_THREADS="2", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    begun = time.perf_counter()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    out, err = p.stdout, p.stderr
    said = []
    reader = threading.Thread(target=lambda: said.append(err.read()))
    reader.start()
    text = out.read()
    _, status, use = os.wait4(p.pid, 0)
    wall = time.perf_counter() - begun
    reader.join()
    p.returncode = os.waitstatus_to_exitcode(status)
    return dict(wall=wall, cpu=use.ru_utime + use.ru_stime, mb=use.ru_maxrss / 1024, out=text, err=said[0], status=p.returncode)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--gad", default="./gad", help="the program (default: ./gad)")
    a.add_argument("--work", default="/tmp/gad-start", help="folder for rows, models and caches (default: /tmp/gad-start)")
    a.add_argument("--rows", type=int, default=100_000)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--cases", nargs="+", default=["encode", "start", "load", "eval"])
    a.add_argument("--peer", help=argparse.SUPPRESS)
    a = a.parse_args()
    a.work = os.path.abspath(a.work)
    if a.peer == "make":
        make(a.work, a.gad, a.rows)
        return 0
    if a.peer:
        begun, said = PEERS[a.peer](a.work)
        print(json.dumps(dict(seconds=time.perf_counter() - begun, said=said)))
        return 0
    gad = shutil.which(a.gad) or os.path.abspath(a.gad)
    os.makedirs(a.work, exist_ok=True)
    made = f"{a.work}/made-{a.rows}"
    if not os.path.exists(made):
        # In a process of its own: a child's peak memory is at least its parent's size when it began.
        subprocess.run([sys.executable, os.path.abspath(__file__), "--gad", gad, "--work", a.work, "--rows", str(a.rows), "--peer", "make"], check=True)
        open(made, "w").close()
    status = 0
    for case in a.cases:
        programs = cases(a.work, gad)[case]
        got = {name: [] for name, _, _ in programs}
        for r in range(a.rounds):
            for name, command, fresh in programs:
                m = run(command, fresh)
                if m["status"] != 0:
                    print(f"{case}: {name}: status {m['status']}: {m['err'].strip()[-400:]}", file=sys.stderr)
                    status = max(status, int(name.startswith("gad")))
                    continue
                if not name.startswith("gad"):
                    said = json.loads(m["out"].strip().splitlines()[-1])
                    m["inside"] = said["seconds"]
                    print(f"{case}: {name}: {said['said']}", file=sys.stderr)
                got[name].append(m)
        print(f"\n{case}\n\n| | wall | without imports | processor | peak memory |\n|---|---:|---:|---:|---:|")
        for name, _, _ in programs:
            if got[name]:
                def mid(key):
                    return statistics.median(m[key] for m in got[name])
                inside = f"{mid('inside'):.2f} s" if "inside" in got[name][0] else ""
                print(f"| {name} | {mid('wall'):.2f} s | {inside} | {mid('cpu'):.2f} s | {mid('mb'):.0f} MB |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
