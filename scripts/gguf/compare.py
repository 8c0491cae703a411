"""Loads GGUF files that gad wrote into llama.cpp and compares them with the Hugging Face
folder of the same student, as gad and transformers read it:

    python scripts/gguf/compare.py GAD HELD STUDENT [STUDENT ...]

STUDENT is a path without suffix: STUDENT.hf and STUDENT.{f16,bf16,q8_0}.gguf, as
students.sh makes them; HELD a text.

tokens      of the strings below and pieces of HELD, trusted (control tokens are cut out),
            not trusted, and with the tokens around a text, against Hugging Face's tokenizers;
            and the bytes that the tokens become again
greedy      continuations of prompts from HELD, llama.cpp with the f16 file against gad on the
            folder; where they part, how far apart the two tokens' log-probabilities are there
            (transformers, float32)
perplexity  of HELD by each file, and by transformers in float32; the largest difference of a
            token's log-probability
template    what gad's folder renders for a chat (transformers), and what the file holds

Exit status 0 if the tokens are equal, greedy answers part at near ties only (0.02 nat) and
q8_0's perplexity is within 1 % of float32's. With --tokens the first part alone. Needs llama-cpp-python built from its source,
torch, transformers, tokenizers.
"""
import json
import math
import os
import random
import subprocess
import sys
import unicodedata

import llama_cpp
import numpy as np
import tokenizers
import torch
import transformers

ODD = ["", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r\n", "\r\n\r\n  x", "\t", "\t\tx", "a\tb", "  leading", "trailing  ", " \n \n x ", "\u00a0x", "x\u3000y",
       "1", "12", "123", "1234", "12345678901", "3.14159", "1,000,000", "-17", "x1y22z333", "²³½", "٣٤٥", "１２３",
       "don't", "DON'T", "we'll WE'LL they've I'm I'D 's 'S", "it''s", "'", "''", "rock'n'roll", "O’Neill’s",
       "!", "!!!", "?!...", "...\n", " ...", "a.b,c;d", "(x)[y]{z}", "<>", "<|", "|>", "<|im", "#include <stdio.h>", "a+b==c&&d", "$100 €5 £3",
       "naïve café", "Übergröße", "Ελληνικά", "русский язык", "中文字符", "日本語のテキスト", "한국어", "العربية", "हिन्दी में", "ไทย", "עברית",
       "😀", "😀😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪🇫🇷", "a😀b", " 😀 ", "e\u0301"[:1], "\u200b", "\ufeffx", "\u0000", "\u0001\u0002", "\u2028", "ﬁ", "Å", "ǅ", "ª", "𝔘𝔫𝔦", "𠀀",
       "<|endoftext|>", "<|im_start|>user\nhi<|im_end|>\n", "x<|im_end|>y", "<|im_end|><|im_end|>", " <|im_end|> ", "<|im_end|", "<tool_call>",
       "CamelCaseWord", "snake_case_word", "ALLCAPS", "a" * 300, "ab" * 150, "1" * 100, " " * 100, "\n" * 50, "日" * 60, "😀" * 40, "'s" * 20, "x " * 50,
       "https://example.com/a?b=c&d=%20", "user@example.com", "2026-11-22T16:00:00Z", "{\"a\": [1, 2.5, null]}", "def f(x):\n    return x\n", "for (i=0;i<10;i++) {\n\t;\n}", "| a | b |\n|---|---|\n"]
NOT_NFC = ["e\u0301", "A\u030a", "n\u0303o", "\u1100\u1161", "\u212b"]
failed = []

# llama.cpp's AMX kernels for q8_0 crash on batches of small matrices, of files that it
# quantised itself too: weights stay as they are in the file.
defaults = llama_cpp.llama_cpp.llama_model_default_params


def as_in_file():
    params = defaults()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = as_in_file


def verdict(ok, text):
    print(("  " if ok else "  NOT ") + text)
    if not ok:
        failed.append(text)


def llama(path, **more):
    return llama_cpp.Llama(path, n_ctx=1024, n_batch=1024, verbose=False, logits_all=True, n_threads=1, n_threads_batch=1, **more)


def tokens(model, text, special, parse):
    return model.tokenize(text.encode(), add_bos=special, special=parse)


def pieces(model, ids):
    vocab, out = llama_cpp.llama_model_get_vocab(model.model), b""
    buf = (llama_cpp.ctypes.c_char * 512)()
    for i in ids:
        n = llama_cpp.llama_token_to_piece(vocab, i, buf, 512, 0, True)
        out += bytes(buf[:n])
    return out


def strings(held, n):
    rng, out = random.Random(1), list(ODD)
    while len(out) < n:
        at, size = rng.randrange(len(held)), rng.randrange(1, 200)
        out.append(held[at:at + size])
    alphabet = "ab AB'12.\n\t éÉ中😀ß_<|>"
    return out + ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 60))) for _ in range(n)]


def same_tokens(student, model, held):
    hf = tokenizers.Tokenizer.from_file(f"{student}.hf/tokenizer.json")
    count = wrong = decoded = 0
    for text in strings(held, 200):
        if unicodedata.normalize("NFC", text) != text:
            continue
        for special, parse in [(False, True), (False, False), (True, True)]:
            hf.encode_special_tokens = not parse
            expected = hf.encode(text, add_special_tokens=special).ids
            got = tokens(model, text, special, parse)
            if got != expected:
                wrong += 1
                if wrong < 5:
                    print("   ", repr(text)[:80], got[:20], expected[:20])
            decoded += pieces(model, got) != text.encode() and not special
        count += 1
    verdict(wrong == 0 and decoded == 0, f"tokens: {count} strings in 3 ways, {wrong} differ, {decoded} do not decode to the string")
    hf.encode_special_tokens = False
    other = [text for text in NOT_NFC if tokens(model, text, False, True) != hf.encode(text, add_special_tokens=False).ids]
    print(f"  of {len(NOT_NFC)} strings that are not in NFC {len(other)} differ")


def greedy(student, gad, model, reference, held, prompts=40, new=64):
    rng, total, margins = random.Random(2), 0, []
    ends = set(json.load(open(f"{student}.hf/generation_config.json"))["eos_token_id"])
    for _ in range(prompts):
        at = rng.randrange(len(held) - 200)
        prompt = held[at:at + rng.randrange(20, 120)]
        line = subprocess.run([gad, "generate", "--model", f"{student}.hf", "--raw", "--json", "--temperature", "0", "--max-new-tokens", str(new), "--prompt", prompt],
                              check=True, capture_output=True, text=True).stdout
        ids, answer = json.loads(line)["prompt_ids"], json.loads(line)["response_ids"]
        model.reset()
        model.eval(ids)
        mine = []
        while len(mine) < new and not (mine and mine[-1] in ends):
            mine.append(int(np.argmax(model.scores[model.n_tokens - 1])))
            model.eval(mine[-1:])
        n = min(len(mine), len(answer))
        where = next((i for i in range(n) if mine[i] != answer[i]), None)
        total += n if where is None else where
        if where is not None:
            with torch.no_grad():
                logp = reference(torch.tensor([ids + answer[:where]])).logits[0, -1].log_softmax(-1)
            margins.append(float(logp[answer[where]] - logp[mine[where]]))
    worst = max(map(abs, margins), default=0)
    verdict(worst <= 0.02, f"greedy: {prompts} prompts, {prompts - len(margins)} continuations of up to {new} tokens equal to gad's, {total} tokens in all; "
            f"{len(margins)} part at a near tie, the widest {worst:.1e} nat")


def perplexity(student, reference, held):
    hf = tokenizers.Tokenizer.from_file(f"{student}.hf/tokenizer.json")
    ids = hf.encode(held).ids
    chunks = [ids[i:i + 256] for i in range(0, len(ids) - 255, 256)][:24]

    def score(logits, chunk):
        logp = torch.tensor(logits).double().log_softmax(-1)
        return logp[torch.arange(len(chunk) - 1), torch.tensor(chunk[1:])].numpy()

    with torch.no_grad():
        exact = np.concatenate([score(reference(torch.tensor([c])).logits[0, :-1].numpy(), c) for c in chunks])
    base = math.exp(-exact.mean())
    print(f"  perplexity of {len(exact)} tokens in float32 {base:.4f}")
    for kind in ["f16", "bf16", "q8_0"]:
        model, got = llama(f"{student}.{kind}.gguf"), []
        for c in chunks:
            model.reset()
            model.eval(c)
            got.append(score(model.scores[:len(c) - 1].copy(), c))
        got = np.concatenate(got)
        p = math.exp(-got.mean())
        verdict(abs(p / base - 1) < 0.01, f"{kind}: {p:.4f}, {100 * (p / base - 1):+.3f} %; a token's log-probability differs by at most {np.abs(got - exact).max():.1e}, on average {np.abs(got - exact).mean():.1e}")


def main():
    torch.set_num_threads(1)
    only = "--tokens" in sys.argv
    if only:
        sys.argv.remove("--tokens")
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    gad, held = os.path.abspath(sys.argv[1]), open(sys.argv[2], encoding="utf-8").read()
    print(f"llama-cpp-python {llama_cpp.__version__}, transformers {transformers.__version__}")
    for student in sys.argv[3:]:
        print(os.path.basename(student))
        if only:
            same_tokens(student, llama(f"{student}.f16.gguf"), held)
            continue
        reference = transformers.AutoModelForCausalLM.from_pretrained(f"{student}.hf", dtype=torch.float32, attn_implementation="eager").eval()
        model = llama(f"{student}.f16.gguf")
        same_tokens(student, model, held)
        chat = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
        expected = transformers.AutoTokenizer.from_pretrained(f"{student}.hf").apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        meta = model.metadata
        eos = model.detokenize([int(meta["tokenizer.ggml.eos_token_id"])], special=True).decode()
        formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter(template=meta["tokenizer.chat_template"], eos_token=eos, bos_token="")
        verdict(formatter(messages=chat).prompt == expected, f"chat template renders as the folder's; an answer ends with {eos}")
        greedy(student, gad, model, reference, held)
        perplexity(student, reference, held)
    print("all within bounds" if not failed else f"{len(failed)} not")
    sys.exit(bool(failed))


main()
