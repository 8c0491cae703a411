#!/usr/bin/env python3
"""Compares gad's tokenizer with transformers on the lines of real texts.

    python3 scripts/tokenizer_compare.py FOLDER [--lines 20000] TEXT...

FOLDER is a model's tokenizer folder; each TEXT is a file, or a folder whose text files are
taken. Lines are drawn evenly over the files, so that a long file does not crowd out others.
Needs the packages transformers and tokenizers; runs the Go test TestPeerLines, which prints
lines and differences of ids and of decoded texts.
"""
import argparse, json, os, subprocess, sys, tempfile

import tokenizers
import transformers

KINDS = (".md", ".txt", ".go", ".py", ".c", ".h", ".cpp", ".cu", ".json", ".jsonl", ".po", ".rst", ".html", ".inp", ".utf-8", ".csv", ".xml", ".tex", "")


def lines_of(path):
    """Its lines of at most 2000 characters; none of a file that is not UTF-8."""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            return [s.rstrip("\n")[:2000] for s in f if s.strip()]
    except (UnicodeDecodeError, OSError):
        return []


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--lines", type=int, default=20000)
    p.add_argument("texts", nargs="+")
    a = p.parse_args()
    files = []
    for t in a.texts:
        for at, dirs, names in os.walk(t) if os.path.isdir(t) else [(os.path.dirname(t), [], [os.path.basename(t)])]:
            dirs[:] = sorted(d for d in dirs if not d.startswith("."))
            files += [os.path.join(at, n) for n in sorted(names) if not os.path.isdir(t) or os.path.splitext(n)[1] in KINDS and not n.startswith(".")]
    lists = [l for l in map(lines_of, files) if l]
    # Every list gives its share; what short ones lack, longer ones give.
    lines, seen, left = [], set(), a.lines
    for k, l in enumerate(sorted(lists, key=len)):
        share = left // (len(lists) - k)
        took = 0
        for i in range(len(l)):
            if took >= share:
                break
            s = l[i * max(len(l) // max(share, 1), 1) % len(l)]
            if s not in seen:
                seen.add(s)
                lines.append(s)
                took += 1
        left -= took
    t = transformers.AutoTokenizer.from_pretrained(a.folder)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "lines.json")
        with open(path, "w") as f:
            for s in lines:
                ids = t.encode(s, add_special_tokens=False)
                f.write(json.dumps({"text": s, "ids": ids, "back": t.decode(ids, clean_up_tokenization_spaces=False)}) + "\n")
        wide = sum(any(ord(c) > 127 for c in s) for s in lines)
        print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}: {len(lines)} lines of {len(lists)} files, {wide} not ASCII, {sum(len(s.encode()) for s in lines)} bytes", flush=True)
        env = dict(os.environ, GAD_PEER_LINES=path, GAD_PEER_TOKENIZER=os.path.abspath(a.folder))
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        return subprocess.run(["go", "test", "-count=1", "-v", "-run", "^TestPeerLines$", "./tokenizer"], cwd=root, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
