#!/usr/bin/env python3
"""gad beside transformers' own code of a family, in turn: an SFT step and generation.

    python scripts/peers/families.py FOLDER [--gad BINARY] [--threads 2] [--rounds 3]

The weights are random, in the shape of FOLDER's config.json, which both read; nothing is
downloaded. Both are servers that keep their model and take turns, as in cpu.py. The cases:

  sft        forward, backward, clip, AdamW: 8 x 256 tokens, float32
  generate   32 prompts of 32 tokens, 128 new tokens each, by generate() and its cache

transformers runs what it has for this processor: sdpa, and of linear attention the plain form
where the kernels of flash-linear-attention and causal-conv1d do not load. With --bf16 both
compute in bfloat16 (transformers with float32 masters, by autocast).
"""
import argparse
import os
import statistics
import sys
import time

sys.argv, given = sys.argv[:1], sys.argv[1:]  # cpu.py reads its own flags where it is imported
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpu  # noqa: E402

sys.argv += given


class Theirs:
    def __init__(self, folder, threads, bf16):
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch, self.bf16 = torch, bf16
        config = transformers.AutoConfig.from_pretrained(folder)
        config.use_cache = True
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
        self.vocab = config.vocab_size

    def cast(self):
        return self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.bf16)

    def ids(self, rows, length):
        return self.torch.randint(self.vocab, (rows, length))

    def sft(self):
        t, ids = self.torch, self.ids(cpu.SEQS, cpu.LENGTH)
        with self.cast():
            logits = self.model(ids, use_cache=False).logits[:, :-1]
            loss = t.nn.functional.cross_entropy(logits.reshape(-1, self.vocab).float(), ids[:, 1:].reshape(-1))
        loss.backward()
        t.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()

    def generate(self):
        ids = self.ids(cpu.SAMPLES, cpu.PROMPT)
        with self.torch.inference_mode(), self.cast():
            self.model.generate(ids, attention_mask=self.torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=cpu.NEW,
                                min_new_tokens=cpu.NEW, pad_token_id=0)

    def answer(self, case):
        if case not in ("sft", "generate"):
            return {}
        began = time.perf_counter()
        getattr(self, case)()
        return {"seconds": time.perf_counter() - began}


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("folder")
    a.add_argument("--gad", help="the gad binary; without it the repository is built")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--cases", nargs="+", default=["sft", "generate"], choices=["sft", "generate"])
    a.add_argument("--bf16", action="store_true")
    a.add_argument("--serve", action="store_true", help="be transformers' server")
    o = a.parse_args()
    if o.serve:
        theirs = Theirs(o.folder, o.threads, o.bf16)
        return cpu.answers("transformers " + __import__("transformers").__version__, theirs.answer)
    gad, precision = o.gad or cpu.build(), "bf16" if o.bf16 else "f32"
    threads = ["--threads", str(o.threads)]
    for case in o.cases:  # each afresh: a peak is that case's own
        servers = [
            cpu.Server("gad-" + precision, [gad, "bench", "--serve", "--shape", o.folder, "--precision", precision, *threads]),
            cpu.Server("transformers-" + precision, [sys.executable, os.path.abspath(__file__), o.folder, "--serve", *threads] + ["--bf16"] * o.bf16),
        ]
        with cpu.running(servers):
            found = cpu.interleaved(servers, [case], o.rounds, print)[case]
            best = {name: statistics.median(r["seconds"] for r in rs) for name, rs in found.items()}
            ours, theirs = (best[s.name] for s in servers)
            print(f"{case}: gad {ours:.2f} s, {servers[0].peak() / 1e9:.2f} GB; transformers {theirs:.2f} s, {servers[1].peak() / 1e9:.2f} GB; {theirs / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
