#!/usr/bin/env python3
"""gad and PyTorch side by side on the CPU: the same work, in turn.

Every program is a server that keeps its models loaded and runs the case that its
standard input names: gad as `gad bench --serve`, PyTorch as this file with
--serve MODE. A round asks all of them for one case, so that all meet the same
machine; each case and precision starts its servers afresh, so that a peak of memory
is that case's own. The tables (Markdown) have medians and bests over the rounds, and
how many times as fast as each peer of the same precision gad is. Nothing is
downloaded: weights are random. The cases, on the 25M shape of gad bench, or on the
shape of --model FOLDER, with --lora-rank adapters on one frozen base for all roles:

  sft        forward, backward, clip, AdamW: 8 x 256 tokens
  generate   32 prompts of 32 tokens, 128 new tokens each, key/value cache
  gad        8 prompts of 32 tokens x 8 answers x 128 tokens: rollout, critic update,
             reference log-probabilities, four actor updates (GSPO + KL)
  gad-long   the same with prompts of 512 tokens
  linear     products of N rows, of this shape and Qwen2.5-0.5B's; operands rotate
             through 128 MiB
  rows       the same with 1 and 32 rows, as in decoding

and the modes, for float32 (f32), bfloat16 weights with float32 masters (bf16) and
autocast:

  eager         as verl or TRL would do it: scaled_dot_product_attention, fused AdamW,
                a cache that is written in place and read as far as it is filled; a
                GAD step takes every pass (old log-probabilities, scores, reference,
                both updates) over whole sequences
  compile       torch.compile of the training functions; one compiled function for a
                token's step over a static cache
  lean          a GAD step with everything that gad does: a prompt passes each network
                once for all its answers, old log-probabilities are the sampler's, and
                scores are those of the critic update's own forward pass
  lean-compile  the same with torch.compile
  frozen        weights packed for good (inductor's freezing): generation alone
  hf            generate() of Hugging Face's transformers

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
import tempfile
import time

SHAPE = dict(D=384, L=6, H=6, K=2, E=64, M=2816, V=8192)
SEQS, LENGTH = 8, 256
SAMPLES, PROMPT, NEW = 32, 32, 128
PROMPTS, N, MICRO = 8, 8, 16
LONG = 512  # tokens of a prompt in gad-long
TINY = dict(D=64, L=2, H=2, K=1, E=32, M=160, V=96), 16, 64  # shape, tokens of an answer, of a long prompt
if "--tiny" in sys.argv:
    SHAPE, NEW, LONG = TINY
LONG_MICRO = MICRO // N * (LONG + (N + 1) * NEW)  # gad's pack there: as many groups as the peers', the teacher's answers too
PARTS = ["rollout", "old log-probabilities", "critic scores", "critic update", "reference log-probabilities", "actor update"]
ROTATED = 128 << 20
PRODUCTS = [(i, o) for i, o in ((384, 384), (384, 2816), (2816, 384), (384, 8192), (896, 896), (896, 4864), (4864, 896))]
MODES = ["eager-f32", "compile-f32", "lean-f32", "lean-compile-f32", "frozen-f32", "hf-f32",
         "eager-bf16", "compile-bf16", "lean-bf16", "lean-compile-bf16", "frozen-bf16", "hf-bf16", "eager-autocast", "compile-autocast"]

for flag, value in zip(sys.argv[1:], sys.argv[2:]):
    if flag == "--prompts":
        PROMPTS = int(value)
    if flag == "--model":
        with open(os.path.join(value, "config.json")) as f:
            c = json.load(f)
        SHAPE = dict(D=c["hidden_size"], L=c["num_hidden_layers"], H=c["num_attention_heads"], K=c["num_key_value_heads"],
                     E=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], M=c["intermediate_size"], V=c["vocab_size"])

quiet = contextlib.nullcontext  # around each measurement, for machines where others must be kept still


def config(s):
    """config.json of a Qwen2 of this shape."""
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": s["D"], "num_hidden_layers": s["L"], "num_attention_heads": s["H"],
            "num_key_value_heads": s["K"], "intermediate_size": s["M"], "vocab_size": s["V"], "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "tie_word_embeddings": True, "torch_dtype": "float32", "hidden_act": "silu"}


def linears(rows):
    return [f"linear {n} {i} {o}" for n in rows for i, o in PRODUCTS]


# What a group of cases is called in the tables, and the lines that its servers are asked.
CASES = {"sft": ["sft"], "generate": ["generate"], "gad": ["gad"], "gad-long": ["gad"], "linear": linears((256, 1024, 2048)), "rows": linears((1, 32))}
TITLES = {"sft": f"SFT step, {SEQS} x {LENGTH} tokens", "generate": f"generation, {SAMPLES} x {NEW} tokens",
          "gad": f"GAD step, {PROMPTS} prompts of {PROMPT} tokens x {N} answers x {NEW} tokens",
          "gad-long": f"GAD step, {PROMPTS} prompts of {LONG} tokens x {N} answers x {NEW} tokens"}


def does(mode, group):
    """Whether a mode has something of its own to do in a group of cases."""
    style, kind = mode.rsplit("-", 1)
    if group in ("linear", "rows"):
        return style == "eager" and kind != "autocast"
    if style in ("hf", "frozen"):
        return group == "generate"
    if style.startswith("lean"):
        return group.startswith("gad")
    return True


class Torch:
    """The cases in PyTorch. Weights that are trained have float32 masters in every mode."""

    def __init__(self, mode, threads, shape=SHAPE, prompt=PROMPT, new=NEW, rank=0):
        import torch
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import torch_step
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch, self.F, self.step = torch, torch.nn.functional, torch_step
        self.shape, self.prompt, self.new, self.rank = shape, prompt, new, rank
        self.style, self.precision = mode.rsplit("-", 1)
        self.graph = self.style in ("compile", "lean-compile", "frozen")
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
        s = self.shape
        m = self.adapted(role) if self.rank else self.step.Qwen2(s).to(self.dtype)
        m.score = t.nn.Linear(s["D"], 1, bias=False, dtype=self.dtype) if role == "critic" else None
        params = [p for p in m.parameters() if p.requires_grad]
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

        def shared(prompts, answers):
            """Hidden states of prompts [G,D], the last token's, and of answers [G*n,T,D]: a prompt's rows pass once for its n answers."""
            (G, P), (_, n, T) = prompts.shape, answers.shape
            x = m.embed(t.cat((prompts.flatten(), answers.flatten())))  # all tokens are rows of the same products
            c, z = m.angles(P + T, "cpu")
            c, z = (t.cat((a[:P].repeat(G, 1), a[P:].repeat(G * n, 1)))[:, None] for a in (c, z))
            seen = t.cat((t.ones(T, P, dtype=t.bool), t.ones(T, T, dtype=t.bool).tril()), 1)
            for b in m.blocks:
                q, k, v = b.qkv(b.norm1(x)).split([s["H"] * s["E"], s["K"] * s["E"], s["K"] * s["E"]], -1)
                q, k, v = (y.unflatten(-1, (-1, s["E"])) for y in (q, k, v))
                q, k = self.step.rotate(q, c, z), self.step.rotate(k, c, z)
                (qp, kp, vp), (qa, ka, va) = ([y[at].unflatten(0, (-1, length)).transpose(1, 2) for y in (q, k, v)]
                                              for at, length in ((slice(0, G * P), P), (slice(G * P, None), T)))
                op = F.scaled_dot_product_attention(qp, kp, vp, is_causal=True, enable_gqa=True)
                kp, vp = (t.cat((y.repeat_interleave(n, 0), a), 2) for y, a in ((kp, ka), (vp, va)))
                oa = F.scaled_dot_product_attention(qa, kp, vp, attn_mask=seen, enable_gqa=True)
                x = x + b.o(t.cat([y.transpose(1, 2).flatten(2).flatten(0, 1) for y in (op, oa)]))
                gate, up = b.gate_up(b.norm2(x)).chunk(2, -1)
                x = x + b.down(F.silu(gate) * up)
            h = m.norm(t.cat((x[P - 1:G * P:P], x[G * P:])))
            return h[:G], h[G:].view(G * n, T, -1)

        def lean_loglik(prompts, answers):
            """As loglik, of the answers [G,n,T] to each of prompts [G,P]: [G*n,T]."""
            hp, ha = shared(prompts, answers)
            z = F.linear(t.cat((hp.repeat_interleave(answers.shape[1], 0)[:, None], ha[:, :-1]), 1), m.embed.weight)
            return -F.cross_entropy(z.float().flatten(0, 1), answers.flatten(), reduction="none").view(-1, answers.shape[2])

        def lean_values(prompts, answers):
            return m.score(shared(prompts, answers)[1][:, -1]).float().squeeze(-1)

        def objective(logp, old, ref, adv):
            """The sequence ratio's clipped objective and the KL to the reference, as gad's defaults are."""
            ratio = t.exp((logp - old).mean(-1))
            pg = t.maximum(-adv * ratio, -adv * ratio.clamp(1 - 3e-4, 1 + 4e-4)).mean()
            d = ref - logp
            return pg + 1e-3 * (t.exp(d) - d - 1).mean()

        def gspo(ids, old, ref, adv):
            return objective(loglik(ids, self.prompt), old, ref, adv)

        def lean_gspo(prompts, answers, old, ref, adv):
            return objective(lean_loglik(prompts, answers), old, ref, adv)

        for f in (loglik, values, nll, gspo, lean_loglik, lean_values, lean_gspo):
            setattr(m, f.__name__, self.compiled(f))
        self.made[role] = m
        return m

    def adapted(self, role):
        """The base, which all roles share, with this role's adapters on every linear layer; the reference has none."""
        t, s = self.torch, self.shape
        if "base" not in self.made:
            self.made["base"] = self.step.Qwen2(s).to(self.dtype).state_dict()
        with t.device("meta"):
            m = self.step.Qwen2(s)
        m.load_state_dict(self.made["base"], assign=True)
        m.requires_grad_(False)

        class Adapted(t.nn.Module):
            """y = Wx + BAx, one A and B for each of the matrices that W joins (peft's, with its dropout 0 and alpha = rank)."""

            def __init__(self, base, outs, rank):
                super().__init__()
                self.base = base
                self.a = t.nn.Linear(base.in_features, rank * len(outs), bias=False, dtype=base.weight.dtype)
                self.b = t.nn.ModuleList(t.nn.Linear(rank, n, bias=False, dtype=base.weight.dtype) for n in outs)
                for b in self.b:
                    t.nn.init.zeros_(b.weight)

            def forward(self, x):
                return self.base(x) + t.cat([b(h) for b, h in zip(self.b, self.a(x).chunk(len(self.b), -1))], -1)

        if role != "reference":
            for b in m.blocks:
                b.qkv = Adapted(b.qkv, [s["H"] * s["E"], s["K"] * s["E"], s["K"] * s["E"]], self.rank)
                b.o, b.down = Adapted(b.o, [s["D"]], self.rank), Adapted(b.down, [s["D"]], self.rank)
                b.gate_up = Adapted(b.gate_up, [s["M"], s["M"]], self.rank)
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
        return self.torch.randint(self.shape["V"], shape)

    # Generation.

    def draw(self, m, h, temperature):
        """Tokens [B] after hidden states [B,D], and their log-probabilities; the likeliest tokens at temperature 0."""
        t = self.torch
        with self.cast():
            z = self.F.linear(h, m.embed.weight).float()
        if temperature == 0:
            return z.argmax(-1), None
        p = t.softmax(z / temperature, -1)
        ids = t.multinomial(p, 1)
        return ids.squeeze(-1), p.gather(1, ids).log().squeeze(-1)

    def generate(self, m, prompts, n, new, temperature=1.0, first=lambda: None):
        """new tokens for each of n answers to each of prompts [G,P], and their log-probabilities, [G*n,new]: one loop, a
        key/value cache. A prompt passes once. first is called when every answer has its first token."""
        t, F, s = self.torch, self.F, self.shape
        (G, P), R = prompts.shape, s["H"] // s["K"]
        B, total = G * n, P + new
        narrow = t.float32 if self.precision == "f32" else t.bfloat16
        lean = self.style.startswith("lean")  # a prompt's keys are read once for its answers
        begin = P if lean else 0  # position of the first row of an answer's own cache
        key = ("cache", G, n, P, new)
        if key not in self.made:
            cos, sin = m.angles(total, "cpu")
            self.made[key] = [(t.zeros(2, B, s["K"], total - begin, s["E"], dtype=narrow), t.zeros(2, G, s["K"], P, s["E"], dtype=narrow) if lean else None)
                              for _ in m.blocks], cos, sin, [t.tensor([i]) for i in range(total)]
        kv, cos, sin, ats = self.made[key]
        places = t.arange(begin, total)

        def attend(q, own, prompt, seen):
            if prompt is None:
                return F.scaled_dot_product_attention(q, own[0], own[1], attn_mask=seen, enable_gqa=True)
            E, K = s["E"], s["K"]
            z = q.view(G, n, K, R, E).transpose(1, 2).reshape(G, K, n * R, E) @ prompt[0].transpose(-1, -2)
            z = z.view(G, K, n, R, P).transpose(1, 2).reshape(B, K, R, P)
            y = q.view(B, K, R, E) @ own[0].transpose(-1, -2)
            z = t.cat((z, y if seen is None else y.masked_fill(~seen, -math.inf)), -1).float() / math.sqrt(E)
            p = t.softmax(z, -1).to(q.dtype)
            y = p[..., :P].view(G, n, K, R, P).transpose(1, 2).reshape(G, K, n * R, P) @ prompt[1]
            y = y.view(G, K, n, R, E).transpose(1, 2).reshape(B, K, R, E) + p[..., P:] @ own[1]
            return y.view(B, s["H"], 1, E)

        def compiled_token(ids, at):
            with self.cast():
                x = m.embed(ids)[:, None]
                c, z = cos.index_select(0, at), sin.index_select(0, at)
                seen = (places <= at).view(1, 1, 1, total - begin)
                for b, (own, prompt) in zip(m.blocks, kv):
                    q, k, v = b.heads(x, c, z)
                    own[0].index_copy_(2, at - begin, k.to(narrow))
                    own[1].index_copy_(2, at - begin, v.to(narrow))
                    x = b.rest(x, attend(q.to(narrow), own, prompt, seen))
                return m.norm(x)[:, 0]

        def eager_token(ids, at):
            with self.cast():
                x, end = m.embed(ids)[:, None], at + 1 - begin
                for b, (own, prompt) in zip(m.blocks, kv):
                    q, k, v = b.heads(x, cos[at:at + 1], sin[at:at + 1])
                    own[0][:, :, end - 1:end], own[1][:, :, end - 1:end] = k, v
                    x = b.rest(x, attend(q.to(narrow), own[:, :, :, :end], prompt, None))
                return m.norm(x)[:, 0]

        if ("token", key) not in self.made:
            self.made["token", key] = self.compiled(compiled_token) if self.graph else eager_token
        token = self.made["token", key]
        with t.inference_mode():
            with self.cast():
                x = m.embed(prompts)
                for b, (own, prompt) in zip(m.blocks, kv):
                    x, k, v = b(x, cos[:P], sin[:P])
                    for i, y in enumerate((k, v)):
                        if lean:
                            prompt[i].copy_(y)
                        else:
                            own[i][:, :, :P] = y.repeat_interleave(n, 0)
                h = m.norm(x)[:, -1].repeat_interleave(n, 0)
            drawn = [self.draw(m, h, temperature)]
            first()
            for at in range(P, total - 1):
                drawn.append(self.draw(m, token(drawn[-1][0], ats[at] if self.graph else at), temperature))
            ids, logp = zip(*drawn)
            return t.stack(ids, 1), None if temperature == 0 else t.stack(logp, 1)

    def hf(self):
        t = self.torch
        if "hf" not in self.made:
            import transformers
            s = self.shape
            c = transformers.Qwen2Config(hidden_size=s["D"], num_hidden_layers=s["L"], num_attention_heads=s["H"], num_key_value_heads=s["K"],
                                         intermediate_size=s["M"], vocab_size=s["V"], tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, pad_token_id=None)
            self.made["hf"] = transformers.Qwen2ForCausalLM(c).to(self.dtype).eval()
        ids = self.ids(SAMPLES, self.prompt)
        with t.inference_mode():
            out = self.made["hf"].generate(ids, attention_mask=t.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                                           max_new_tokens=self.new, min_new_tokens=self.new, eos_token_id=None, pad_token_id=0)
        if out.shape != (SAMPLES, self.prompt + self.new):
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
        out, _ = self.generate(self.model("actor"), self.ids(SAMPLES, self.prompt), 1, self.new)
        if out.shape != (SAMPLES, self.new):
            raise ValueError(f"answers of shape {tuple(out.shape)}")

    def run_gad(self, parts):
        """A GAD step. Each kind of pass takes MICRO answers, those of MICRO/N prompts, at a time."""
        t, k, lean = self.torch, MICRO // N, self.style.startswith("lean")
        actor, critic, ref = self.model("actor"), self.model("critic"), self.model("reference")
        prompts, teachers = self.ids(PROMPTS, self.prompt), self.ids(PROMPTS, 1, self.new)
        at = [time.perf_counter()]

        def done(part):
            at.append(time.perf_counter())
            parts[part] = at[-1] - at[-2]

        answers, old = self.generate(actor, prompts, N, self.new)
        answers, old = answers.clone().view(PROMPTS, N, self.new), old.clone()  # no tensors of inference mode
        seqs = t.cat((prompts.repeat_interleave(N, 0), answers.flatten(0, 1)), 1)
        taught = t.cat((prompts, teachers[:, 0]), 1)
        done("rollout")
        with t.inference_mode():
            if not lean:
                old = t.cat([actor.loglik(b, self.prompt) for b in seqs.split(MICRO)]).clone()
                done("old log-probabilities")
                score = t.cat([critic.values(b) for b in t.cat((seqs, taught)).split(MICRO + k)])[:PROMPTS * N].clone()
                done("critic scores")
        fresh = []  # the scores before the update, from its own forward passes
        for p, a, s, y in zip(prompts.split(k), t.cat((teachers, answers), 1).split(k), seqs.split(MICRO), taught.split(k)):
            if lean:
                v = critic.lean_values(p, a).view(k, N + 1)
            else:
                v = critic.values(t.cat((y, s)))
                v = t.cat((v[:k, None], v[k:].view(k, N)), 1)
            fresh.append(v[:, 1:].detach())
            loss = -self.F.logsigmoid(v[:, :1] - v[:, 1:]).sum() / (PROMPTS * N)
            loss.backward()
        critic.update()
        done("critic update")
        with t.inference_mode():
            refs = t.cat([ref.lean_loglik(*b) for b in zip(prompts.split(k), answers.split(k))] if lean else [ref.loglik(b, self.prompt) for b in seqs.split(MICRO)])
        refs = refs.clone()
        done("reference log-probabilities")
        g = t.cat(fresh) if lean else score.view(PROMPTS, N)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).flatten()
        for b in zip(*(x.split(MICRO) for x in (seqs, old, refs, adv)), prompts.split(k), answers.split(k)):
            loss = actor.lean_gspo(*b[4:], *b[1:4]) if lean else actor.gspo(*b[:4])
            loss.backward()
            actor.update()
        if not math.isfinite(loss.item()):
            raise ValueError("the loss is not finite")
        done("actor update")

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
            return {"seconds": self.linear(*map(int, words[1:]))}
        parts = {}
        began = time.perf_counter()
        getattr(self, "run_" + case)(parts)
        return {"seconds": time.perf_counter() - began, "parts": parts}


def answers(device, answer):
    """A server: a case a line of standard input, a line of JSON for each."""
    for line in sys.stdin:
        a = {"case": line.strip(), "device": device}
        try:
            a |= answer(line.strip())
        except Exception as e:  # whatever a library throws, the other cases are still run
            a["error"] = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"[:200]
        print(json.dumps(a), flush=True)


def serve(mode, threads, prompt, rank):
    torch = Torch(mode, threads, prompt=prompt, rank=rank)
    answers(f"PyTorch {torch.torch.__version__}, {torch.torch.backends.cpu.get_cpu_capability()}", torch.answer)


class Server:
    """A program that is asked for cases. Its name ends in its precision."""

    def __init__(self, name, command, **env):
        self.name, self.device, self.libraries = name, "did not answer", 0
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | env)

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


@contextlib.contextmanager
def running(servers):
    """Servers that are ended with the block. What is resident before the first case are libraries."""
    try:
        for s in servers:
            s.ask("hello")
            s.libraries = s.peak()
        yield servers
    except BaseException:
        for s in servers:
            s.p.kill()
        raise
    finally:
        for s in servers:
            s.close()


def interleaved(servers, cases, rounds, note, warm=lambda server, case: [case]):
    """Answers by case and server's name: those to warm's cases are not measured, then rounds in which every server is asked in turn."""
    out = {}
    for case in cases:
        asked = []
        for s in servers:
            for first in warm(s, case):
                r = s.ask(first)
                if "error" in r:
                    note(f"{s.name}: {first}: {r['error']}")
                    break
            else:
                asked.append(s)
        for k in range(rounds):
            for s in asked if k % 2 == 0 else asked[::-1]:
                with quiet():
                    time.sleep(0.05)  # the one before lets its threads sleep
                    r = s.ask(case)
                if "error" in r:
                    note(f"{s.name}: {case}: round {k + 1}: {r['error']}")
                else:
                    out.setdefault(case, {}).setdefault(s.name, []).append(r)
        print(f"{case}: " + ", ".join(f"{n} {1e3 * statistics.median(r['seconds'] for r in rs):.3f} ms" for n, rs in out.get(case, {}).items()), file=sys.stderr, flush=True)
    return out


def warm(group, name, case):
    """What a server is asked before it is measured. A long GAD step would take minutes: an SFT step
    starts threads and makes memory and libraries ready too, but compiles nothing."""
    if group == "gad-long" and "compile" not in name:
        return ["sft"]
    return [case] if group.startswith("gad") else [case, case]


def precision(name):
    return "f32" if name.endswith("f32") else "f16" if name.endswith("f16") and not name.endswith("bf16") else "bf16"


def machine():
    """A line about this machine."""
    model, flags = "?", ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        for line in f:
            key, _, value = line.partition(":")
            model, flags = (value.strip() if key.strip() == "model name" else model), (value if key.strip() == "flags" else flags)
    known = [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16") if f in flags.split()]
    return f"{os.cpu_count()} cores, {model} ({', '.join(known)})"


def programs(devices, threads):
    """A line about the programs that were measured, those of one description together."""
    by = {}
    for name, device in devices.items():
        by.setdefault(device, []).append(name)
    return f"{threads} threads. " + "; ".join(f"{', '.join(names)}: {device}" for device, names in by.items())


def rows(*cells):
    return "| " + " | ".join(cells) + " |"


def step_table(title, by, peaks):
    """Medians and bests of a case by program. Peaks are pairs: resident memory, and that of libraries alone."""
    rounds = max(len(ts) for ts in by.values())
    print(f"\n{title} ({rounds} rounds):\n")
    print(rows("", "median", "best", "speed of gad relative to it", "peak memory", "of it libraries", "gad's memory relative to it", "libraries left out"))
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, ts in by.items():
        gad, speed, whole, rest = "gad-" + precision(name), "", "", ""
        peak, libraries = peaks.get(name, (0, 0))
        if gad in by and name != gad:
            speed = f"{statistics.median(ts) / statistics.median(by[gad]):.2f} (best against best {min(ts) / min(by[gad]):.2f})"
            ours, own = peaks.get(gad, (0, 0))
            if peak and ours:
                whole, rest = f"{ours / peak:.2f}", f"{(ours - own) / max(peak - libraries, 1):.2f}"
        print(rows(name, f"{1e3 * statistics.median(ts):.0f} ms", f"{1e3 * min(ts):.0f} ms", speed, f"{peak / 1e6:.0f} MB", f"{libraries / 1e6:.0f} MB", whole, rest))


def part_table(parts):
    print("\n" + rows("part", *parts))
    print("|---" + "|---:" * len(parts) + "|")
    for part in PARTS:
        print(rows(part, *(f"{1e3 * statistics.median(p[part]):.0f} ms" if part in p else "" for p in parts.values())))


def product_table(times, limits):
    """Products: gad's times and shares of the limits, and PyTorch's. A product of one row is limited by memory."""
    print("\nLimits: " + "; ".join(f"{p}: {l['product_flops'] / 1e9:.0f} GFLOP/s, memory {l['read_bytes'] / 1e9:.0f} GB/s" for p, l in limits.items()))
    print("\n" + rows("rows x in -> out", *(h for p in ("float32", "bfloat16") for h in (p, "share", "PyTorch", "ratio"))))
    print("|---" + "|---:" * 8 + "|")
    for case, by in times.items():
        n, i, o = map(int, case.split()[1:])
        cells = [f"{n} x {i} -> {o}"]
        for p, size in (("f32", 4), ("bf16", 2)):
            gad, torch = (statistics.median(by[k]) if k in by else 0 for k in ("gad-" + p, "eager-" + p))
            least = 0
            if p in limits:
                least = size * (n * (i + o) + i * o) / limits[p]["read_bytes"] if n == 1 else 2 * n * i * o / limits[p]["product_flops"]
            cells += [f"{1e3 * gad:.3f} ms", f"{100 * least / gad:.0f} %" if gad else "", f"{1e3 * torch:.3f} ms", f"{torch / gad:.2f}" if gad and torch else ""]
        print(rows(*cells))


def build():
    """The repository's gad, built."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    gad = os.path.join(tempfile.mkdtemp(prefix="gad-peers-"), "gad")
    subprocess.run(["go", "build", "-o", gad, "./cmd/gad"], check=True, cwd=root)
    return gad


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--serve", choices=MODES, help="be PyTorch's server")
    a.add_argument("--prompt", type=int, default=PROMPT, help="tokens of a prompt, of --serve")
    a.add_argument("--gad", help="the gad binary; without it the repository is built")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    a.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    a.add_argument("--precisions", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    a.add_argument("--micro", type=int, help=f"tokens of a pack in gad's GAD steps; without it gad's own default, and {LONG_MICRO} in gad-long")
    a.add_argument("--model", help="a model folder, whose shape is taken")
    a.add_argument("--prompts", type=int, default=PROMPTS, help="prompts of a GAD step, two or a multiple of it")
    a.add_argument("--lora-rank", type=int, default=0, help="adapters of this rank on one frozen base, instead of all weights")
    a.add_argument("--tiny", action="store_true", help="a tiny shape, to test this script")
    a.add_argument("--json", help="file for all times")
    o = a.parse_args()
    if o.serve:
        return serve(o.serve, o.threads, o.prompt, o.lora_rank)
    gad = o.gad or build()
    sizes = ["--new-tokens", str(NEW)]
    if o.tiny:
        folder = tempfile.mkdtemp(prefix="gad-peers-")
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config(SHAPE), f)
        sizes += ["--shape", folder]
    shape = ["--model", o.model] * bool(o.model) + ["--lora-rank", str(o.lora_rank), "--prompts", str(o.prompts)] + ["--tiny"] * o.tiny
    sizes += ["--prompts", str(o.prompts)]
    if o.model:
        sizes += ["--shape", o.model]
    if o.lora_rank:
        sizes += ["--lora-rank", str(o.lora_rank)]
    times, parts, peaks, limits, notes, devices = {}, {}, {}, {}, [], {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for group in o.cases:
            for p in o.precisions:
                prompt, micro = (LONG, o.micro or LONG_MICRO) if group == "gad-long" else (PROMPT, o.micro)
                command = [gad, "bench", "--serve", "--threads", str(o.threads), "--precision", p, "--prompt-tokens", str(prompt)] + sizes
                servers = [Server("gad-" + p, command + (["--micro", str(micro)] if micro else []))]
                for mode in o.modes:
                    if precision(mode) == p and does(mode, group):
                        servers.append(Server(mode, [sys.executable, os.path.abspath(__file__), "--threads", str(o.threads), "--prompt", str(prompt), "--serve", mode] + shape))
                with running(servers):
                    found = interleaved(servers, CASES[group], o.rounds, notes.append, lambda s, case: warm(group, s.name, case))
                    for case, by in found.items():
                        key = case if case.startswith("linear") else group
                        for name, rs in by.items():
                            times.setdefault(group, {}).setdefault(key, {})[name] = [r["seconds"] for r in rs]
                            for part in rs[0].get("parts", {}) if key == group else ():
                                parts.setdefault(group, {}).setdefault(name, {})[part] = [r["parts"][part] for r in rs]
                    if group in ("linear", "rows"):
                        with quiet():
                            limits.setdefault(group, {})[p] = servers[0].ask("limits").get("limits", {})
                    peaks.setdefault(group, {}).update((s.name, (s.peak(), s.libraries)) for s in servers)
                    devices.update((s.name, s.device) for s in servers)
    except KeyboardInterrupt:  # what has been measured is printed all the same
        notes.append("interrupted")
    print(f"{machine()}, {programs(devices, o.threads)}")
    for group, by in times.items():
        if group in TITLES:
            step_table(TITLES[group], by[group], peaks.get(group, {}))
            if any(len(p) > 1 for p in parts.get(group, {}).values()):
                part_table(parts[group])
        else:
            product_table(by, limits.get(group, {}))
    for n in notes:
        print(n)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"times": times, "parts": parts, "peaks": peaks, "notes": notes, "limits": limits, "devices": devices}, f)
    if not any(n.startswith("gad") for by in times.values() for at in by.values() for n in at):
        sys.exit(1)


if __name__ == "__main__":
    main()
