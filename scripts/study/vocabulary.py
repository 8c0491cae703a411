#!/usr/bin/env python3
"""Cuts a model's vocabulary to what a task uses (scripts/study/ladder.sh).

    vocabulary.py MODEL OUT FILE.jsonl ...

Reads MODEL, a folder with a byte-level BPE tokenizer and tied embeddings in float32, and writes OUT:
the same model over the tokens of the files' prompts (content), those that their answers (response)
have at least four times, their parts by merges, all bytes and all added tokens, with new ids in the
old order. A text whose tokens are all kept has the
same tokens as before. The next-token distribution is the old one given that the token is kept. The
chat template is ChatML without a system message. Needs the package tokenizers.
"""
import collections
import json
import os
import struct
import sys

from tokenizers import Tokenizer

model, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
os.makedirs(out, exist_ok=True)
tok = json.load(open(f"{model}/tokenizer.json", encoding="utf-8"))
bpe = tok["model"]
name = {i: t for t, i in bpe["vocab"].items()}
encode = Tokenizer.from_file(f"{model}/tokenizer.json").encode
used, answers = set(), collections.Counter()
for file in files:
    for line in open(file, encoding="utf-8"):
        row = json.loads(line)
        c = row.get("content", "")
        texts = [m["content"] for m in c] if isinstance(c, list) else [c]
        for text in texts:
            used.update(name[i] for i in encode(text, add_special_tokens=False).ids if i in name)
        answers.update(name[i] for i in encode(row.get("response", ""), add_special_tokens=False).ids if i in name)
used.update(t for t, n in answers.items() if n >= 4)
for text in ("system\n", "user\n", "assistant\n", "\n"):
    used.update(name[i] for i in encode(text, add_special_tokens=False).ids)
merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in bpe["merges"]]
made = {a + b: (a, b) for a, b in merges}
keep, todo = set(), list(used)
while todo:  # a token and the parts that it is merged from
    t = todo.pop()
    if t not in keep:
        keep.add(t)
        todo.extend(made.get(t, ()))
keep.update(t for t in bpe["vocab"] if t not in made)  # bytes
keep.update(t["content"] for t in tok["added_tokens"])
old = sorted(bpe["vocab"][t] for t in keep if t in bpe["vocab"])
new = {o: n for n, o in enumerate(old)}
bpe["vocab"] = {name[o]: n for o, n in new.items()}
bpe["merges"] = [[a, b] for a, b in merges if a + b in keep and a in keep and b in keep]
for t in tok["added_tokens"]:
    t["id"] = new[t["id"]]
json.dump(tok, open(f"{out}/tokenizer.json", "w", encoding="utf-8"), ensure_ascii=False)

with open(f"{model}/model.safetensors", "rb") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    head = json.loads(f.read(n))
    body = f.read()
head.pop("__metadata__", None)
parts, at, wide = [], 0, {}
for key, t in sorted(head.items(), key=lambda kv: kv[1]["data_offsets"][0]):
    a, b = t["data_offsets"]
    data, shape = body[a:b], t["shape"]
    if key.endswith("embed_tokens.weight"):
        row = len(data) // shape[0]
        data = b"".join(data[o * row:(o + 1) * row] for o in old)
        shape = [len(old), shape[1]]
    wide[key] = {"dtype": t["dtype"], "shape": shape, "data_offsets": [at, at + len(data)]}
    parts.append(data)
    at += len(data)
text = json.dumps(wide).encode()
text += b" " * (-len(text) % 8)
with open(f"{out}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.writelines(parts)

for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
    c = json.load(open(f"{model}/{file}", encoding="utf-8"))
    for k in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(c.get(k), list):
            c[k] = [new[i] for i in c[k]]
        elif c.get(k) is not None:
            c[k] = new[c[k]]
    if "vocab_size" in c:
        c["vocab_size"] = len(old)
    c.pop("chat_template", None)
    json.dump(c, open(f"{out}/{file}", "w", encoding="utf-8"), indent=2)
with open(f"{out}/chat_template.jinja", "w") as f:
    f.write("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
kept = sum(n for t, n in answers.items() if t in keep) / max(sum(answers.values()), 1)
print(f"{kept:.1%} of the answers' tokens;", f"{len(old)} of {len(name)} tokens kept")
