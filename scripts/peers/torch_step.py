#!/usr/bin/env python3
"""The training step and the generation of gad's benchmarks, in PyTorch.

Models of Qwen2.5's shapes with random weights do what BenchmarkStep and
BenchmarkDecode of model/cuda_bench_test.go do: a step is 8 sequences of 2,048
tokens, 512 of each a prompt, forward and backward pass of the answers' cross
entropy and AdamW; generation is 256 tokens for each of 8 answers to each of 32
prompts of 512 tokens. Weights and activations are bfloat16, master weights and
moments float32, attention is scaled_dot_product_attention, AdamW is fused. Modes:

  eager         as written
  compile       torch.compile: the blocks and the loss of a step; the whole token's
                step of generation, with CUDA graphs
  transformers  generate() of Hugging Face's library, where it is installed

Each result is one line of JSON on standard output. --against FILE, the output of
gad's benchmarks, adds a table of ratios. Nothing is downloaded.
"""
import argparse
import gc
import json
import math
import re
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# Legend: B sequences, T tokens of one, D width, L layers, H query heads, K
# key/value heads, E width of a head, M feed-forward width, V vocabulary.
SHAPES = {
    "tiny": dict(D=128, L=2, H=2, K=1, E=64, M=192, V=320),
    "0.5B": dict(D=896, L=24, H=14, K=2, E=64, M=4864, V=151936),
    "1.5B": dict(D=1536, L=28, H=12, K=2, E=128, M=8960, V=151936),
    "3B": dict(D=2048, L=36, H=16, K=2, E=128, M=11008, V=151936),
}


class Load:
    """How much is done; the same as in gad's benchmarks."""

    def __init__(self, tiny, new):
        self.seqs, self.length, self.prompt = (2, 32, 8) if tiny else (8, 2048, 512)
        self.prompts, self.n, self.new = (2, 2, 4) if tiny else (32, 8, 256)
        if new:
            self.new = new


class Block(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        D, q, kv = s["D"], s["H"] * s["E"], s["K"] * s["E"]
        self.norm1, self.norm2 = torch.nn.RMSNorm(D, eps=1e-6), torch.nn.RMSNorm(D, eps=1e-6)
        self.qkv = torch.nn.Linear(D, q + 2 * kv)
        self.o = torch.nn.Linear(q, D, bias=False)
        self.gate_up = torch.nn.Linear(D, 2 * s["M"], bias=False)
        self.down = torch.nn.Linear(s["M"], D, bias=False)

    def heads(self, x, cos, sin):
        """Queries [B,H,T,E], keys and values [B,K,T,E], rotated."""
        s, (B, T, _) = self.s, x.shape
        q, k, v = self.qkv(self.norm1(x)).split([s["H"] * s["E"], s["K"] * s["E"], s["K"] * s["E"]], -1)
        q, k, v = (t.view(B, T, -1, s["E"]).transpose(1, 2) for t in (q, k, v))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def rest(self, x, attended):
        B, _, T, _ = attended.shape
        x = x + self.o(attended.transpose(1, 2).reshape(B, T, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def forward(self, x, cos, sin):
        q, k, v = self.heads(x, cos, sin)
        return self.rest(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)), k, v


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Qwen2(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = torch.nn.Embedding(s["V"], s["D"])
        self.blocks = torch.nn.ModuleList(Block(s) for _ in range(s["L"]))
        self.norm = torch.nn.RMSNorm(s["D"], eps=1e-6)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                torch.nn.init.zeros_(p)

    def angles(self, T, device):
        E = self.s["E"]
        f = 1e6 ** (-torch.arange(0, E, 2, device=device).float() / E)
        a = torch.arange(T, device=device).float()[:, None] * f
        return a.cos().to(self.norm.weight.dtype), a.sin().to(self.norm.weight.dtype)

    def forward(self, ids, recompute=False):
        """Hidden states [B,T,D], the final norm's."""
        x = self.embed(ids)
        cos, sin = self.angles(ids.shape[1], ids.device)
        for b in self.blocks:
            if recompute:
                x = checkpoint(lambda x, b=b: b(x, cos, sin)[0], x, use_reentrant=False)
            else:
                x = b(x, cos, sin)[0]
        return self.norm(x)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(device, warm, times, f):
    for _ in range(warm):
        f()
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        f()
    wait(device)
    return (time.perf_counter() - began) / times


def build(s, device):
    with torch.device(device):
        torch.manual_seed(1)
        return Qwen2(s).to(torch.bfloat16)


def losses(model, h, targets, again):
    """Sum of the cross entropies, some rows at a time; again computes logits twice instead of keeping them."""
    def part(h, t):
        return F.cross_entropy(F.linear(h, model.embed.weight).float(), t, reduction="sum")
    total = 0
    for h, t in zip(h.split(4096), targets.split(4096)):
        total = total + (checkpoint(part, h, t, use_reentrant=False) if again else part(h, t))
    return total


def train(s, load, device, compiled, recompute, times):
    model = build(s, device)
    params = list(model.parameters())
    masters = [p.detach().float().clone() for p in params]
    decay, plain = [m for m in masters if m.dim() == 2], [m for m in masters if m.dim() != 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
                            lr=1e-6, betas=(0.9, 0.95), eps=1e-8, fused=True)
    ids = torch.randint(s["V"], (load.seqs, load.length), device=device)
    targets = ids[:, load.prompt:].reshape(-1)

    def loss(ids):
        h = model(ids, recompute == "all")[:, load.prompt - 1:-1].reshape(-1, s["D"])
        return losses(model, h, targets, recompute != "nothing") / targets.numel()

    if compiled:
        for b in model.blocks:
            b.compile()
        model.norm.compile()

    last = []

    def step():
        l = loss(ids)
        l.backward()
        with torch.no_grad():
            grads = [p.grad.float() for p in params]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, torch.clamp(1 / (norm + 1e-6), max=1.0))
            for m, g in zip(masters, grads):
                m.grad = g
            opt.step()
            torch._foreach_copy_(params, masters)
            for p in params:
                p.grad = None
            for m in masters:
                m.grad = None
        last[:] = [l.detach()]

    t = seconds(device, 2, times, step)
    loss_value = last[0].item()
    if not math.isfinite(loss_value):
        raise ValueError(f"the loss is {loss_value}")
    return t, {"tokens_per_s": load.seqs * load.length / t, "loss": loss_value, "recompute": recompute}


@torch.inference_mode()
def generate(s, load, device, compiled, times):
    model = build(s, device).eval()
    B, total, G = load.prompts * load.n, load.prompt + load.new, s["H"] // s["K"]
    prompts = torch.randint(s["V"], (load.prompts, load.prompt), device=device)
    kv = [torch.zeros(2, B, s["K"], total, s["E"], dtype=torch.bfloat16, device=device) for _ in model.blocks]
    for cache in kv:  # changed in place by the compiled step: CUDA graphs want to know
        torch._dynamo.mark_static_address(cache)
    cos, sin = model.angles(total, device)
    places = torch.arange(total, device=device)

    def draw(h):
        p = torch.softmax(F.linear(h, model.embed.weight).float(), -1)
        # The largest of p/e, e exponential, is drawn by p; multinomial does the same in more kernels.
        return (p / torch.empty_like(p).exponential_(1)).argmax(-1)

    def token(ids, at):
        """One token for every row; at is its position, a tensor, so that a graph serves all."""
        x = model.embed(ids)[:, None]
        c, n = cos.index_select(0, at), sin.index_select(0, at)
        for b, cache in zip(model.blocks, kv):
            q, k, v = b.heads(x, c, n)
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            # The queries that share a key/value head are one product's rows.
            z = (q.view(B, s["K"], G, s["E"]) @ cache[0].transpose(-1, -2)).float() / math.sqrt(s["E"])
            p = torch.softmax(z.masked_fill(places > at, -math.inf), -1).to(x.dtype)
            x = b.rest(x, (p @ cache[1]).view(B, s["H"], 1, s["E"]))
        return draw(model.norm(x)[:, 0])

    def token_eager(ids, at):
        """As token, over the filled part of the cache alone: eager code may change its shapes."""
        x, n = model.embed(ids)[:, None], at + 1
        for b, cache in zip(model.blocks, kv):
            q, k, v = b.heads(x, cos[at:n], sin[at:n])
            cache[0][:, :, at:n], cache[1][:, :, at:n] = k, v
            x = b.rest(x, F.scaled_dot_product_attention(q, cache[0][:, :, :n], cache[1][:, :, :n], enable_gqa=True))
        return draw(model.norm(x)[:, 0])

    one = torch.compile(token, mode="reduce-overhead" if device == "cuda" else None, fullgraph=True) if compiled else token_eager
    ats = [torch.tensor([t], device=device) for t in range(total)]

    def run():
        x = model.embed(prompts)
        for b, cache in zip(model.blocks, kv):
            x, k, v = b(x, cos[:load.prompt], sin[:load.prompt])
            for c, t in zip(cache, (k, v)):
                c[:, :, :load.prompt] = t.repeat_interleave(load.n, 0)
        ids = draw(model.norm(x)[:, -1].repeat_interleave(load.n, 0))
        out = [ids]
        for t in range(load.prompt, total - 1):
            if compiled and device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            ids = one(ids, ats[t] if compiled else t).clone()
            out.append(ids)
        out = torch.stack(out, 1).cpu()
        if out.shape != (B, load.new) or out.max() >= s["V"]:
            raise ValueError(f"answers of shape {tuple(out.shape)}")

    t = seconds(device, 2 if compiled else 1, times, run)
    return t, {"tokens_per_s": B * load.new / t, "ms_per_token_step": 1e3 * t / load.new}


@torch.inference_mode()
def generate_transformers(s, load, device, times):
    import transformers
    config = transformers.Qwen2Config(
        hidden_size=s["D"], num_hidden_layers=s["L"], num_attention_heads=s["H"], num_key_value_heads=s["K"], intermediate_size=s["M"],
        vocab_size=s["V"], max_position_embeddings=32768, tie_word_embeddings=True, rms_norm_eps=1e-6, eos_token_id=None, pad_token_id=None, bos_token_id=None)
    with torch.device(device):
        model = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    prompts = torch.randint(s["V"], (load.prompts, load.prompt), device=device)

    def run():
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                             num_return_sequences=load.n, max_new_tokens=load.new, min_new_tokens=load.new, eos_token_id=None, pad_token_id=0)
        if out.shape != (load.prompts * load.n, load.prompt + load.new):
            raise ValueError(f"answers of shape {tuple(out.shape)}")

    t = seconds(device, 1, times, run)
    return t, {"tokens_per_s": load.prompts * load.n * load.new / t, "ms_per_token_step": 1e3 * t / load.new, "transformers": transformers.__version__}


def attempt(what, model, mode, device, f):
    """Runs one case and prints its line; a failure is a line too."""
    line = {"what": what, "model": model, "mode": mode}
    began = time.perf_counter()
    try:
        gc.collect()  # what a failed case held
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        torch._dynamo.reset()
        t, more = f()
        line |= {"seconds": t, **more}
        if device == "cuda":
            line["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        line["setup_s"] = time.perf_counter() - began - t
    except Exception as e:  # whatever a library throws, the other cases go on
        line["error"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:300]
    print(json.dumps(line), flush=True)
    return line


def ratios(path, lines):
    """A table of tokens a second, gad's and PyTorch's, and gad's share of PyTorch's best."""
    ours = {}
    with open(path) as f:
        for text in f:
            m = re.match(r"Benchmark(Step|Decode)/(\S+?)(?:-\d+)?\s.*?([\d.e+]+) tokens/s", text)
            if m:
                ours[m[2], {"Step": "step", "Decode": "generate"}[m[1]]] = float(m[3])
    print("\n| model | what | gad tokens/s | PyTorch, by mode | gad / fastest PyTorch |\n| --- | --- | ---: | --- | ---: |")
    for model in SHAPES:
        for what in ("step", "generate"):
            theirs = {l["mode"]: l["tokens_per_s"] for l in lines if (l["model"], l["what"]) == (model, what) and "tokens_per_s" in l}
            gad = ours.get((model, what))
            if gad is None and not theirs:
                continue
            by_mode = ", ".join(f"{k} {v:.0f}" for k, v in theirs.items()) or "not measured"
            ratio = f"{gad / max(theirs.values()):.2f}" if gad and theirs else "-"
            print(f"| {model} | {what} | {f'{gad:.0f}' if gad else 'not measured'} | {by_mode} | {ratio} |")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--models", nargs="+", default=["0.5B", "1.5B", "3B"], choices=list(SHAPES))
    a.add_argument("--what", nargs="+", default=["step", "generate"], choices=["step", "generate"])
    a.add_argument("--modes", nargs="+", default=["eager", "compile", "transformers"], choices=["eager", "compile", "transformers"])
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--times", type=int, default=3, help="timed repetitions")
    a.add_argument("--new", type=int, default=0, help="tokens to generate instead of 256")
    a.add_argument("--against", help="output of gad's benchmarks, for the ratios")
    o = a.parse_args()
    if o.device == "cpu" and o.models != ["tiny"]:
        sys.exit("torch_step.py: PyTorch sees no GPU: only --models tiny runs on the CPU")
    torch.set_float32_matmul_precision("high")
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name() if o.device == "cuda" else "cpu"}), flush=True)
    lines = []
    for model in o.models:
        s, load = SHAPES[model], Load(model == "tiny", o.new)
        for mode in o.modes:
            if "step" in o.what and mode != "transformers":
                for recompute in ("nothing", "logits", "all"):  # as much as the memory forces
                    lines.append(attempt("step", model, mode, o.device, lambda: train(s, load, o.device, mode == "compile", recompute, o.times)))
                    if "OutOfMemory" not in lines[-1].get("error", ""):
                        break
            if "generate" in o.what:
                if mode == "transformers":
                    lines.append(attempt("generate", model, mode, o.device, lambda: generate_transformers(s, load, o.device, 1)))
                else:
                    lines.append(attempt("generate", model, mode, o.device, lambda: generate(s, load, o.device, mode == "compile", o.times)))
    if o.against:
        ratios(o.against, lines)
    if all("error" in l for l in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
