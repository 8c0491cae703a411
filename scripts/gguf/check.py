"""Reads a GGUF file that gad wrote with gguf-py, the format's own library, and compares
it with the Hugging Face folder of the same student (gad export --dtype float32):

    python scripts/gguf/check.py STUDENT.gguf FOLDER [STUDENT.gguf FOLDER ...]

Tensors: gguf-py's own table of names for the architecture must lead from every tensor of
the folder to one of the file and leave none; the bytes must be those that gguf-py makes
of the folder's float32 weights (quantize), with Llama's rows of q and k in llama.cpp's
order. Metadata: the sizes of config.json; the vocabulary, types, merges and end tokens of
tokenizer.json, tokenizer_config.json and generation_config.json; the chat template.
Exit status 0 if all is equal. Needs gguf, numpy, safetensors.
"""
import glob
import json
import math
import os
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

bad = 0


def want(what, got, expected):
    global bad
    if got != expected:
        bad += 1
        print(f"  {what}: {str(got)[:200]}, expected {str(expected)[:200]}")


def check(path, folder):
    print(path)
    reader = gguf.GGUFReader(path)
    kv = reader.fields

    def get(key):
        return kv[key].contents() if key in kv else None

    config = json.load(open(f"{folder}/config.json"))
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    heads, groups, layers = config["num_attention_heads"], config["num_key_value_heads"], config["num_hidden_layers"]
    # transformers 5 writes the rotation's base into rope_parameters
    base = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    for key, expected in {
        "general.architecture": arch, "general.name": os.path.basename(path)[:-5],
        f"{arch}.block_count": layers, f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"], f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": heads, f"{arch}.attention.head_count_kv": groups,
        f"{arch}.attention.key_length": width, f"{arch}.attention.value_length": width,
        f"{arch}.rope.dimension_count": width, f"{arch}.vocab_size": config["vocab_size"],
        f"{arch}.rope.freq_base": float(np.float32(base)),
        f"{arch}.attention.layer_norm_rms_epsilon": float(np.float32(config["rms_norm_eps"])),
    }.items():
        want(key, get(key), expected)

    tok = json.load(open(f"{folder}/tokenizer.json"))
    conf = json.load(open(f"{folder}/tokenizer_config.json"))
    ends = json.load(open(f"{folder}/generation_config.json"))["eos_token_id"]
    tokens, types = [None] * config["vocab_size"], [None] * config["vocab_size"]
    for text, i in tok["model"]["vocab"].items():
        tokens[i], types[i] = text, gguf.TokenType.NORMAL
    for a in tok["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    got = get("tokenizer.ggml.tokens")
    for i, t in enumerate(tokens):
        if t is None:
            tokens[i], types[i] = got[i], gguf.TokenType.UNUSED
    want("tokens", got, tokens)
    want("texts of tokens that come twice", len(set(got)), len(got))
    want("types", [int(t) for t in get("tokenizer.ggml.token_type")], [int(t) for t in types])
    want("merges", get("tokenizer.ggml.merges"), [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    of = {a["content"]: a["id"] for a in tok["added_tokens"]}
    want("eos", get("tokenizer.ggml.eos_token_id"), of[conf["eos_token"]])
    want("eot", get("tokenizer.ggml.eot_token_id"), of[conf["eos_token"]])
    want("all ends", sorted(get("tokenizer.ggml.eos_token_ids")), sorted(ends if isinstance(ends, list) else [ends]))
    want("pad", get("tokenizer.ggml.padding_token_id"), of[conf["pad_token"]])
    post = tok["post_processor"]
    first = post["single"][0].get("SpecialToken", {}).get("id") if post["type"] == "TemplateProcessing" else None
    want("add_bos", get("tokenizer.ggml.add_bos_token"), first is not None)
    if first:
        want("bos", get("tokenizer.ggml.bos_token_id"), of[first])
    beside = f"{folder}/chat_template.jinja"
    want("template", get("tokenizer.chat_template"), open(beside).read() if os.path.exists(beside) else conf["chat_template"])

    weights = {}
    for f in glob.glob(f"{folder}/*.safetensors"):
        weights |= load_file(f)
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    left = {t.name: t for t in reader.tensors}
    kinds = {}
    for name, w in weights.items():
        t = left.pop(names.get_name(name, (".weight", ".bias")), None)
        if t is None:
            want(name, "missing", "a tensor")
            continue
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            n = heads if "q_proj" in name else groups
            w = np.stack([w.reshape(n, 2, width // 2, -1)[:, h] for h in (0, 1)], axis=2).reshape(w.shape)
        want(f"{name}: shape", [int(d) for d in t.shape][::-1], list(w.shape))
        kind = gguf.GGMLQuantizationType(t.tensor_type)
        if w.ndim == 1:
            want(f"{name}: type", kind.name, "F32")
        bytes_ = gguf.quantize(w, kind).tobytes()
        want(f"{name}: bytes as {kind.name}", t.data.tobytes() == bytes_, True)
        n, worst = kinds.get(kind.name, (0, 0))
        diff = np.abs(gguf.dequantize(t.data, kind).reshape(w.shape).astype(np.float64) - w)
        kinds[kind.name] = n + 1, max(worst, float(diff.max()))
    rope = config.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        t = left.pop("rope_freqs.weight", None)
        expected = []
        for e in range(0, width, 2):
            wave = 2 * math.pi * base ** (e / width)
            old, low, high, factor = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
            smooth = min(1, max(0, (old / wave - low) / (high - low)))
            expected.append(1 / ((1 - smooth) / factor + smooth))
        want("rope_freqs", t is not None and bool(np.allclose(t.data, expected, rtol=1e-6)), True)
    want("tensors left over", sorted(left), [])
    print("  " + ", ".join(f"{n} tensors {k} (largest difference from float32 {d:.2g})" for k, (n, d) in sorted(kinds.items())) + f", {len(kv)} keys")


args = sys.argv[1:]
if not args or len(args) % 2:
    sys.exit(__doc__)
for path, folder in zip(args[::2], args[1::2]):
    check(path, folder)
print("all equal" if not bad else f"{bad} differences")
sys.exit(bad > 0)
