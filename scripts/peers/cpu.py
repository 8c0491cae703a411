#!/usr/bin/env python3
"""gad and PyTorch side by side on the CPU: the same work, in turn.

Every program is a server that keeps its models warm and runs the case that its
standard input names: gad as `gad bench --serve`, PyTorch as this file with
--serve MODE. A round asks all of them for one case, so that all meet the same
machine; the table has medians and bests over the rounds, and how many times as
fast as the fastest peer of the same precision gad is. Nothing is downloaded:
weights are random. The cases, on the 25M shape of gad bench:

  sft        forward, backward, clip, AdamW: 8 x 256 tokens
  generate   32 prompts of 32 tokens, 128 new tokens each, key/value cache
  gad        8 prompts x 8 answers x 128 tokens: rollout, old and reference
             log-probabilities, scores, critic update, four actor updates (GSPO + KL)
  linear     products of N rows, of this shape and Qwen2.5-0.5B's; operands rotate
             through 128 MiB

and the modes, for float32 (f32), bfloat16 weights with float32 masters (bf16) and
autocast:

  eager      as written; scaled_dot_product_attention, fused AdamW, a cache that is
             written in place and read as far as it is filled
  compile    torch.compile of the training functions; one compiled function for a
             token's step over a static cache
  frozen     the same with weights packed for good (inductor's freezing): generation alone
  hf         generate() of Hugging Face's transformers

Exit status 1 if gad could run no case.
"""
import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

SHAPE = dict(D=384, L=6, H=6, K=2, E=64, M=2816, V=8192)
SEQS, LENGTH = 8, 256
SAMPLES, PROMPT, NEW = 32, 32, 128
PROMPTS, N, MICRO = 8, 8, 16
PARTS = ["rollout", "old log-probabilities", "critic scores", "reference log-probabilities", "critic update", "actor update"]
ROTATED = 128 << 20
PRODUCTS = [(i, o) for i, o in ((384, 384), (384, 2816), (2816, 384), (384, 8192), (896, 896), (896, 4864), (4864, 896))]
MODES = ["eager-f32", "compile-f32", "frozen-f32", "hf-f32", "eager-bf16", "compile-bf16", "frozen-bf16", "hf-bf16", "eager-autocast", "compile-autocast"]

quiet = contextlib.nullcontext  # around each measurement, for machines where others must be kept still


def linears(rows):
    return [f"linear {n} {i} {o}" for n in rows for i, o in PRODUCTS]


CASES = {"sft": ["sft"], "generate": ["generate"], "gad": ["gad"], "linear": linears((256, 1024, 2048)), "rows": linears((1, 32))}


class Torch:
    """The cases in PyTorch. Weights that are trained have float32 masters in every mode."""

    def __init__(self, mode, threads):
        import torch
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import torch_step
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch, self.F, self.step = torch, torch.nn.functional, torch_step
        self.style, self.precision = mode.split("-")
        self.graph = self.style in ("compile", "frozen")
        self.dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        if self.style == "frozen":
            import torch._inductor.config
            torch._inductor.config.freezing = True
        self.made, self.operands = {}, {}

    def cast(self):
        t = self.torch
        return t.autocast("cpu", dtype=t.bfloat16) if self.precision == "autocast" else contextlib.nullcontext()

    def compiled(self, f):
        return self.torch.compile(f, fullgraph=True, dynamic=False) if self.graph else f

    # Models by role, made when a case first needs them.

    def model(self, role):
        t, F = self.torch, self.F
        if role in self.made:
            return self.made[role]
        m = self.step.Qwen2(SHAPE).to(self.dtype)
        m.score = t.nn.Linear(SHAPE["D"], 1, bias=False, dtype=self.dtype) if role == "critic" else None
        params = [p for n, p in m.named_parameters()]
        if role != "reference":
            masters = [p.detach().float().clone() for p in params] if self.precision == "bf16" else params
            opt = t.optim.AdamW([{"params": [m for m in masters if m.dim() == 2], "weight_decay": 0.01},
                                 {"params": [m for m in masters if m.dim() != 2], "weight_decay": 0.0}],
                                lr=1e-6, betas=(0.9, 0.999), eps=1e-8, fused=True)
            m.update = lambda: self.update(params, masters, opt)

        def loglik(ids, prompt):
            """Log-probabilities of the tokens after the prompt, [B, T-prompt]."""
            with self.cast():
                h = m(ids)[:, prompt - 1:-1]
                z = F.linear(h, m.embed.weight)
            return -F.cross_entropy(z.float().flatten(0, 1), ids[:, prompt:].flatten(), reduction="none").view(ids.shape[0], -1)

        def values(ids):
            with self.cast():
                return m.score(m(ids)[:, -1]).float().squeeze(-1)

        def nll(ids):
            return -loglik(ids, 1).mean()

        def gspo(ids, old, ref, adv):
            """The sequence ratio's clipped objective and the KL to the reference, as gad's defaults are."""
            logp = loglik(ids, PROMPT)
            ratio = t.exp((logp - old).mean(-1))
            pg = t.maximum(-adv * ratio, -adv * ratio.clamp(1 - 3e-4, 1 + 4e-4)).mean()
            d = ref - logp
            return pg + 1e-3 * (t.exp(d) - d - 1).mean()

        m.loglik, m.values, m.nll, m.gspo = self.compiled(loglik), self.compiled(values), self.compiled(nll), self.compiled(gspo)
        self.made[role] = m
        return m

    def update(self, params, masters, opt):
        t = self.torch
        with t.no_grad():
            if masters is not params:
                for m, p in zip(masters, params):
                    m.grad = p.grad.float()
            t.nn.utils.clip_grad_norm_(masters, 0.2, foreach=True)
            opt.step()
            if masters is not params:
                t._foreach_copy_(params, masters)
            for p in params + masters:
                p.grad = None

    def ids(self, *shape):
        return self.torch.randint(SHAPE["V"], shape)

    # Generation.

    def sample(self, m, h, temperature=1.0):
        t, F = self.torch, self.F
        with self.cast():
            z = F.linear(h, m.embed.weight).float() / temperature
        return t.multinomial(t.softmax(z, -1), 1).squeeze(-1)

    def generate(self, m, prompts, n):
        """NEW tokens for each of n answers to each prompt: one loop, a key/value cache."""
        t, F, s = self.torch, self.F, SHAPE
        B, total = prompts.shape[0] * n, PROMPT + NEW
        key = ("cache", B)
        narrow = t.float32 if self.precision == "f32" else t.bfloat16
        if key not in self.made:
            cos, sin = m.angles(total, "cpu")
            self.made[key] = [t.zeros(2, B, s["K"], total, s["E"], dtype=narrow) for _ in m.blocks], cos, sin, [t.tensor([i]) for i in range(total)]
        kv, cos, sin, ats = self.made[key]
        places = t.arange(total)

        def compiled_token(ids, at):
            with self.cast():
                x = m.embed(ids)[:, None]
                c, z = cos.index_select(0, at), sin.index_select(0, at)
                seen = (places <= at).view(1, 1, 1, total)
                for b, cache in zip(m.blocks, kv):
                    q, k, v = b.heads(x, c, z)
                    cache[0].index_copy_(2, at, k.to(narrow))
                    cache[1].index_copy_(2, at, v.to(narrow))
                    x = b.rest(x, F.scaled_dot_product_attention(q.to(narrow), cache[0], cache[1], attn_mask=seen, enable_gqa=True))
                return m.norm(x)[:, 0]

        def eager_token(ids, at):
            with self.cast():
                x, end = m.embed(ids)[:, None], at + 1
                for b, cache in zip(m.blocks, kv):
                    q, k, v = b.heads(x, cos[at:end], sin[at:end])
                    cache[0][:, :, at:end], cache[1][:, :, at:end] = k, v
                    x = b.rest(x, F.scaled_dot_product_attention(q.to(narrow), cache[0][:, :, :end], cache[1][:, :, :end], enable_gqa=True))
                return m.norm(x)[:, 0]

        if ("token", B) not in self.made:
            self.made["token", B] = self.compiled(compiled_token) if self.graph else eager_token
        token = self.made["token", B]
        with t.inference_mode():
            with self.cast():
                x = m.embed(prompts)
                for b, cache in zip(m.blocks, kv):
                    x, k, v = b(x, cos[:PROMPT], sin[:PROMPT])
                    for c, y in zip(cache, (k, v)):
                        c[:, :, :PROMPT] = y.repeat_interleave(n, 0)
                h = m.norm(x)[:, -1].repeat_interleave(n, 0)
            out = [self.sample(m, h)]
            for at in range(PROMPT, total - 1):
                out.append(self.sample(m, token(out[-1], ats[at] if self.graph else at)))
            return t.cat((prompts.repeat_interleave(n, 0), t.stack(out, 1)), 1)

    def hf(self):
        t = self.torch
        if "hf" not in self.made:
            import transformers
            s = SHAPE
            c = transformers.Qwen2Config(hidden_size=s["D"], num_hidden_layers=s["L"], num_attention_heads=s["H"], num_key_value_heads=s["K"],
                                         intermediate_size=s["M"], vocab_size=s["V"], tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, pad_token_id=None)
            self.made["hf"] = transformers.Qwen2ForCausalLM(c).to(self.dtype).eval()
        ids = self.ids(SAMPLES, PROMPT)
        with t.inference_mode():
            out = self.made["hf"].generate(ids, attention_mask=t.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                                           max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=None, pad_token_id=0)
        if out.shape != (SAMPLES, PROMPT + NEW):
            raise ValueError(f"answers of shape {tuple(out.shape)}")

    # Cases.

    def run_sft(self, parts):
        m = self.model("actor")
        loss = m.nll(self.ids(SEQS, LENGTH))
        loss.backward()
        m.update()
        if not math.isfinite(loss.item()):
            raise ValueError("the loss is not finite")

    def run_generate(self, parts):
        if self.style == "hf":
            return self.hf()
        out = self.generate(self.model("actor"), self.ids(SAMPLES, PROMPT), 1)
        if out.shape != (SAMPLES, PROMPT + NEW):
            raise ValueError(f"answers of shape {tuple(out.shape)}")

    def run_gad(self, parts):
        t = self.torch
        actor, critic, ref = self.model("actor"), self.model("critic"), self.model("reference")
        prompts, at = self.ids(PROMPTS, PROMPT), [time.perf_counter()]
        teachers = t.cat((prompts, self.ids(PROMPTS, NEW)), 1)

        def done(part):
            at.append(time.perf_counter())
            parts[part] = at[-1] - at[-2]

        seqs = self.generate(actor, prompts, N)
        done(PARTS[0])
        with t.inference_mode():
            old = t.cat([actor.loglik(b, PROMPT) for b in seqs.split(MICRO)])
            done(PARTS[1])
            score = t.cat([critic.values(b) for b in t.cat((seqs, teachers)).split(MICRO + MICRO // N)])[:PROMPTS * N]
            done(PARTS[2])
            refs = t.cat([ref.loglik(b, PROMPT) for b in seqs.split(MICRO)])
            done(PARTS[3])
            g = score.view(PROMPTS, N)
            adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).flatten()
        seqs, old, refs, adv = seqs.clone(), old.clone(), refs.clone(), adv.clone()  # no longer tensors of inference
        at.append(time.perf_counter())
        k = MICRO // N  # prompts of a part: their answers and teachers in one batch
        for s, p in zip(seqs.split(MICRO), teachers.split(k)):
            v = critic.values(t.cat((s, p)))
            loss = -self.F.logsigmoid(v[MICRO:].repeat_interleave(N) - v[:MICRO]).sum() / (PROMPTS * N)
            loss.backward()
        critic.update()
        done(PARTS[4])
        for b in zip(*(x.split(MICRO) for x in (seqs, old, refs, adv))):
            loss = actor.gspo(*b)
            loss.backward()
            actor.update()
        if not math.isfinite(loss.item()):
            raise ValueError("the loss is not finite")
        done(PARTS[5])

    def linear(self, n, i, o):
        t, F = self.torch, self.F
        size = 2 if self.dtype == t.bfloat16 else 4
        if (n, i, o) not in self.operands:
            copies = 1 + int(ROTATED / max(size * (n * (i + o) + i * o), ROTATED / 64))
            self.operands[n, i, o] = [(t.randn(n, i).to(self.dtype), t.randn(o, i).to(self.dtype)) for _ in range(copies)]
        ops = self.operands[n, i, o]
        with t.inference_mode():
            began = time.perf_counter()
            for x, w in ops:
                F.linear(x, w)
            batch = max(1, int(1e-3 * len(ops) / (time.perf_counter() - began)))
            times, at = [], 0
            while len(times) < 3 or time.perf_counter() - began < 0.1:
                begun = time.perf_counter()
                for _ in range(batch):
                    F.linear(*ops[at % len(ops)])
                    at += 1
                times.append((time.perf_counter() - begun) / batch)
        return statistics.median(times)

    def answer(self, case):
        words = case.split()
        if words[0] == "linear":
            if self.style != "eager" or self.precision == "autocast":
                raise NotImplementedError("a product is the same as in eager mode")
            return {"seconds": self.linear(*map(int, words[1:]))}
        if self.style in ("hf", "frozen") and case != "generate":
            raise NotImplementedError(f"{self.style} only generates")
        parts = {}
        began = time.perf_counter()
        getattr(self, "run_" + case)(parts)
        return {"seconds": time.perf_counter() - began, "parts": parts}


def serve(mode, threads):
    torch = Torch(mode, threads)
    version = torch.torch.__version__
    for line in sys.stdin:
        a = {"case": line.strip(), "device": f"torch {version} {mode}"}
        try:
            a |= torch.answer(line.strip())
        except Exception as e:  # whatever a library throws, the other cases go on
            a["error"] = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"[:200]
        print(json.dumps(a), flush=True)


class Server:
    def __init__(self, name, command):
        self.name, self.device = name, "?"
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, case):
        try:
            self.p.stdin.write(case + "\n")
            self.p.stdin.flush()
            line = self.p.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": "ended"}
        a = json.loads(line)
        self.device = a.get("device", self.device)
        return a

    def peak(self):
        """Bytes that were resident at the most, or 0 where that cannot be had."""
        with contextlib.suppress(OSError), open(f"/proc/{self.p.pid}/status") as f:
            for line in f:
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
        return 0

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.p.stdin.close()
        self.p.wait()


def precision(name):
    return "f32" if name.endswith("f32") else "bf16"


def table(times, parts, peaks, notes):
    """One line a case and program; ratios against the fastest peer of the same precision."""
    print(f"\n{'case':<22} {'program':<18} {'rounds':>6} {'median':>11} {'best':>11}   gad is x times as fast")
    for case, by in times.items():
        for name, ts in by.items():
            gad = by.get("gad-" + precision(name))
            ratio = ""
            if gad and not name.startswith("gad"):
                ratio = f"{statistics.median(ts) / statistics.median(gad):5.2f}  (best against best {min(ts) / min(gad):.2f})"
            print(f"{case:<22} {name:<18} {len(ts):>6} {1e3 * statistics.median(ts):>8.3f} ms {1e3 * min(ts):>8.3f} ms   {ratio}")
        for p in ("f32", "bf16"):
            peers = {n: statistics.median(ts) for n, ts in by.items() if precision(n) == p and not n.startswith("gad")}
            if peers and "gad-" + p in by:
                best = min(peers, key=peers.get)
                print(f"{case:<22} {p}: gad / {best}: {peers[best] / statistics.median(by['gad-' + p]):.2f}")
    if parts:
        names = list(next(iter(parts.values())))
        programs = list(parts)
        print(f"\n{'part of the GAD step':<30}" + "".join(f"{p:>18}" for p in programs))
        for part in PARTS:
            print(f"{part:<30}" + "".join(f"{1e3 * statistics.median(parts[p][part]):>15.0f} ms" if part in parts[p] else f"{'-':>18}" for p in programs))
    if any(peaks.values()):
        print("\npeak of resident memory: " + ", ".join(f"{name} {b / 1e6:.0f} MB" for name, b in peaks.items()))
    for n in notes:
        print(n)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--serve", choices=MODES, help="be PyTorch's server")
    a.add_argument("--gad", help="the gad binary; without it the repository is built")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    a.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    a.add_argument("--precisions", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"], help="of gad")
    a.add_argument("--json", help="file for all times")
    o = a.parse_args()
    if o.serve:
        return serve(o.serve, o.threads)
    here = os.path.dirname(os.path.abspath(__file__))
    gad = o.gad
    if not gad:
        gad = os.path.join(here, "gad-for-peers")
        subprocess.run(["go", "build", "-o", gad, "./cmd/gad"], check=True, cwd=os.path.join(here, "..", ".."))
    servers = [Server("gad-" + p, [gad, "bench", "--serve", "--threads", str(o.threads), "--precision", p]) for p in o.precisions]
    env = [sys.executable, os.path.abspath(__file__), "--threads", str(o.threads), "--serve"]
    servers += [Server(m, env + [m]) for m in o.modes]
    times, parts, notes, limits = {}, {}, [], {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for group in o.cases:
            for case in CASES[group]:
                asked = []
                for s in servers:  # warm: models, compilation, caches
                    for _ in range(2):
                        r = s.ask(case)
                        if "error" in r:
                            break
                    if "error" not in r:
                        asked.append(s)
                    elif "NotImplemented" not in r["error"]:
                        notes.append(f"{case}: {s.name}: {r['error']}")
                for k in range(o.rounds):
                    for s in asked if k % 2 == 0 else asked[::-1]:
                        with quiet():
                            time.sleep(0.05)  # the one before lets its threads sleep
                            r = s.ask(case)
                        if "error" in r:
                            notes.append(f"{case}: {s.name}: round {k}: {r['error']}")
                            continue
                        times.setdefault(case, {}).setdefault(s.name, []).append(r["seconds"])
                        if case == "gad":
                            for part, t in r["parts"].items():
                                parts.setdefault(s.name, {}).setdefault(part, []).append(t)
                print(f"{case}: " + ", ".join(f"{s.name} {1e3 * statistics.median(times[case][s.name]):.3f} ms" for s in asked), file=sys.stderr, flush=True)
        with quiet():
            limits = servers[0].ask("limits").get("limits", {})
        peaks = {s.name: s.peak() for s in servers}
    except KeyboardInterrupt:  # what has been measured is printed all the same
        notes.append("interrupted")
        peaks = {s.name: s.peak() for s in servers}
        for s in servers:
            s.p.kill()
    finally:
        for s in servers:
            s.close()
    print("; ".join(f"{s.name}: {s.device}" for s in servers) + f"; {o.threads} threads; Python {sys.version.split()[0]}")
    if limits:
        print("limits: " + ", ".join(f"{k} {v / 1e9:.1f} G" for k, v in limits.items()))
    table(times, parts, peaks, notes)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"times": times, "parts": parts, "peaks": peaks, "notes": notes, "limits": limits}, f)
    if not any(n.startswith("gad") for by in times.values() for n in by):
        sys.exit(1)


if __name__ == "__main__":
    main()
