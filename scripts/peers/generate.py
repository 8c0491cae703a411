#!/usr/bin/env python3
"""Generation by gad, llama.cpp, OpenVINO, transformers and a PyTorch loop: the same model, the same prompts, in turn.

`gad init` writes a Qwen2 with random weights; every program loads those weights in
the same precision and answers B prompts of 32 tokens with 128 new tokens each, on the
same number of threads. Nothing ends an answer early. Programs are servers that take
turns, as in cpu.py. For each batch size, greedy and sampled (temperature 1, no filter),
the tables have tokens per second of decoding (after the first token of every answer)
and the time to those first tokens; with --start, the time from starting a process to
the first token of one answer.

  gad           gad bench --serve
  llama.cpp     through its C interface (llama-cpp-python, built from its source
                package for this processor): one batch with a token of every sequence,
                its own samplers; flash attention and a cache of float16, its defaults,
                but in float32, where they would change the answers
  openvino      openvino-genai's LLMPipeline with paged attention, a cache of the
                model's precision, and no prefix cache, since prompts come again
  transformers  generate()
  loop          the hand-written PyTorch loop of cpu.py

llama.cpp has a half precision more, float16, which is the faster one on some
processors. A program that is not installed is named and left out. Converted models are
kept in --work. --openvino-python is a Python that has optimum-intel, which converts for
OpenVINO; it needs an older transformers than the newest.

With --check nothing is timed: the first greedy tokens of every program are compared
with those of gad in float32. Where they part, the table says how far apart the two tokens'
logits are there (computed by PyTorch in float32), so that a near tie can be told
from a wrong result; exit status 1 if a float32 program parts at more than 1e-3.
"""
import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpu

# S: the initial standard deviation, large enough that greedy answers do not repeat one token.
SHAPES = {
    "25m": cpu.SHAPE | {"S": 0.1},
    "361m": dict(D=960, L=32, H=15, K=5, E=64, M=2560, V=49152, S=0.06),
    "tiny": dict(D=128, L=2, H=4, K=2, E=32, M=256, V=512, S=0.15),
}
PROGRAMS = ["gad", "llama.cpp", "openvino", "transformers", "loop"]
PROMPT, NEW = 32, 128


def ids(n, salt, vocab):
    """n tokens; the same as ids in apps/bench."""
    return [(i * 7919 + salt * 104729 + 1) % vocab for i in range(n)]


def prompts(B, P, vocab):
    return [ids(P, 1000 + i, vocab) for i in range(B)]


# Models.


def make(shape, work, gad):
    """The folder of a shape's model, written by gad init."""
    folder = os.path.join(work, shape)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        with tempfile.TemporaryDirectory() as t:
            with open(os.path.join(t, "config.json"), "w") as f:
                json.dump(cpu.config(SHAPES[shape]) | {"initializer_range": SHAPES[shape]["S"]}, f)
            with open(os.path.join(t, "corpus.txt"), "w") as f:
                f.write(__doc__)  # the tokenizer is not used
            subprocess.run([gad, "init", "--config", t, "--corpus", os.path.join(t, "corpus.txt"), "--output", folder], check=True, stdout=sys.stderr)
    return folder


def whole(path, write):
    """path, written by write(a path beside it) if it is not there."""
    if not os.path.exists(path):
        shutil.rmtree(path + ".part", ignore_errors=True)
        write(path + ".part")
        os.rename(path + ".part", path)
    return path


def bf16_folder(folder):
    """The model with weights in bfloat16, as released models have them."""
    def write(to):
        import torch
        from safetensors.torch import load_file, save_file
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors", "*.gguf", "openvino*"))
        with open(os.path.join(folder, "config.json")) as f:
            c = json.load(f)
        with open(os.path.join(to, "config.json"), "w") as f:
            json.dump(c | {"torch_dtype": "bfloat16"}, f)
        save_file({k: v.to(torch.bfloat16) for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}, os.path.join(to, "model.safetensors"), {"format": "pt"})
    return whole(folder + "-bf16", write)


def gguf_file(folder, precision):
    """The model as a GGUF file without a vocabulary; matrices in the precision, vectors in float32, as llama.cpp's converter writes them."""
    def write(to):
        import gguf
        from safetensors import safe_open
        with open(os.path.join(folder, "config.json")) as f:
            c = json.load(f)
        w = gguf.GGUFWriter(to, "qwen2")
        w.add_name("random")
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(c["num_hidden_layers"])
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_rope_freq_base(c["rope_theta"])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_vocab_size(c["vocab_size"])
        w.add_tokenizer_model("no_vocab")
        kind = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}[precision]
        w.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[precision])
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, c["num_hidden_layers"])
        with safe_open(os.path.join(folder, "model.safetensors"), "np") as f:
            for name in f.keys():
                x, to = f.get_tensor(name), names.get_name(name, (".weight", ".bias"))
                if x.ndim == 1:
                    w.add_tensor(to, x)
                else:
                    w.add_tensor(to, gguf.quants.quantize(x, kind), raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
    return whole(os.path.join(folder, f"model-{precision}.gguf"), write)


def openvino_folder(folder, python):
    """The model as OpenVINO's, in float32; its runtime rounds weights itself."""
    def write(to):
        if not python:
            raise ModuleNotFoundError("no converted model: give --openvino-python")
        code = ("import sys; from optimum.exporters.openvino import main_export; from optimum.intel import OVConfig; "
                "main_export(sys.argv[1], output=sys.argv[2], task='text-generation-with-past', ov_config=OVConfig(dtype='fp32'), library_name='transformers')")
        subprocess.run([python, "-c", code, folder, to], check=True, stdout=sys.stderr)
    return whole(os.path.join(folder, "openvino"), write)


def model_of(program, precision, folder, python):
    """What a program loads."""
    if program == "llama.cpp":
        return gguf_file(folder, precision)
    if program == "openvino":
        return openvino_folder(folder, python)
    return bf16_folder(folder) if precision == "bf16" else folder


# Servers. Each has the method sample(B, P, N, temperature), which gives the seconds of the
# call, the seconds until every answer has its first token, and the tokens.


class LlamaCpp:
    def __init__(self, path, precision, threads):
        import llama_cpp as c
        self.c, self.precision, self.threads = c, precision, threads
        self.device = f"llama-cpp-python {c.__version__} ({', '.join(w.split()[0] for w in c.llama_print_system_info().decode().replace('CPU : ', '').split('|') if '= 1' in w)})"
        self.silent = c.llama_log_callback(lambda *_: None)
        c.llama_log_set(self.silent, ctypes.c_void_p(0))
        self.path, self.model, self.made = path, None, {}

    def context(self, B, length):
        c = self.c
        if self.model is None:
            c.llama_backend_init()
            self.model = c.llama_model_load_from_file(self.path.encode(), c.llama_model_default_params())
            if not self.model:
                raise ValueError(f"{self.path}: not loaded")
            self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        if (B, length) not in self.made:
            for ctx in self.made.values():
                c.llama_free(ctx)
            p = c.llama_context_default_params()
            p.n_ctx, p.n_seq_max, p.n_batch = B * -(-length // 256) * 256, B, max(512, B * PROMPT)
            p.n_threads = p.n_threads_batch = self.threads
            if self.precision == "f32":  # with its flash attention, answers differ from everyone else's; and it is not faster
                p.type_k = p.type_v = c.GGML_TYPE_F32
                p.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_DISABLED
            self.made = {(B, length): c.llama_init_from_model(self.model, p)}
        return self.made[B, length]

    def sample(self, B, P, N, temperature):
        c = self.c
        ctx = self.context(B, P + N)
        c.llama_memory_clear(c.llama_get_memory(ctx), False)
        draws = [c.llama_sampler_init_dist(i) if temperature else c.llama_sampler_init_greedy() for i in range(B)]
        batch = c.llama_batch_init(max(B * P, B), 0, 1)
        began = time.perf_counter()

        def run(tokens, at):
            """Tokens [B][n] at positions from at on; gives the index of each row's last one."""
            n = len(tokens[0])
            batch.n_tokens = B * n
            for s, row in enumerate(tokens):
                for i, id in enumerate(row):
                    k = s * n + i
                    batch.token[k], batch.pos[k], batch.n_seq_id[k], batch.seq_id[k][0], batch.logits[k] = id, at + i, 1, s, i == n - 1
            if c.llama_decode(ctx, batch):
                raise ValueError("llama_decode failed")
            return [c.llama_sampler_sample(draws[s], ctx, s * n + n - 1) for s in range(B)]

        out = [run(prompts(B, P, self.vocab), 0)]
        first = time.perf_counter() - began
        for t in range(N - 1):
            out.append(run([[id] for id in out[-1]], P + t))
        seconds = time.perf_counter() - began
        c.llama_batch_free(batch)
        for s in draws:
            c.llama_sampler_free(s)
        return seconds, first, [list(row) for row in zip(*out)]


class OpenVINO:
    def __init__(self, folder, precision, threads):
        import numpy
        import openvino
        import openvino_genai
        self.np, self.ov, self.genai = numpy, openvino, openvino_genai
        self.device = f"openvino-genai {openvino_genai.__version__}"
        self.folder, self.precision, self.threads, self.pipe = folder, precision, threads, None
        with open(os.path.join(folder, "config.json")) as f:
            self.vocab = json.load(f)["vocab_size"]

    def sample(self, B, P, N, temperature):
        g = self.genai
        if self.pipe is None:
            s = g.SchedulerConfig()
            s.enable_prefix_caching, s.max_num_batched_tokens = False, 1 << 16
            self.pipe = g.LLMPipeline(self.folder, "CPU", scheduler_config=s, INFERENCE_PRECISION_HINT=self.precision, KV_CACHE_PRECISION=self.precision,
                                      INFERENCE_NUM_THREADS=self.threads)
        x = self.np.array(prompts(B, P, self.vocab), dtype=self.np.int64)
        x = g.TokenizedInputs(self.ov.Tensor(x), self.ov.Tensor(self.np.ones_like(x)))
        c = g.GenerationConfig()
        c.ignore_eos, c.do_sample, c.rng_seed = True, bool(temperature), time.time_ns() % (1 << 31)
        if temperature:
            c.temperature, c.top_p, c.top_k = temperature, 1.0, (1 << 63) - 1
        c.max_new_tokens = N
        began = time.perf_counter()
        r = self.pipe.generate(x, c)
        seconds = time.perf_counter() - began
        if [len(row) for row in r.tokens] != [N] * B:
            raise ValueError(f"{[len(row) for row in r.tokens]} tokens")
        return seconds, r.perf_metrics.get_ttft().mean / 1e3, r.tokens  # all prompts pass in one batch, so all first tokens come together


class Transformers:
    def __init__(self, folder, precision, threads):
        import torch
        import transformers
        torch.set_num_threads(threads)
        self.torch, self.transformers = torch, transformers
        self.device = f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
        self.folder, self.dtype, self.model = folder, {"f32": torch.float32, "bf16": torch.bfloat16}[precision], None

    def sample(self, B, P, N, temperature):
        t = self.torch
        if self.model is None:
            self.model = self.transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype).eval()
            self.model.generation_config = self.transformers.GenerationConfig()
        x = t.tensor(prompts(B, P, self.model.config.vocab_size))
        at = [time.perf_counter()]

        class Told(self.transformers.StoppingCriteria):
            def __call__(self, ids, scores, **_):
                at.append(time.perf_counter())
                return t.zeros(B, dtype=t.bool)

        how = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
        with t.inference_mode():
            out = self.model.generate(x, attention_mask=t.ones_like(x), max_new_tokens=N, min_new_tokens=N, pad_token_id=0, eos_token_id=None,
                                      stopping_criteria=self.transformers.StoppingCriteriaList([Told()]), **how)
        return time.perf_counter() - at[0], at[1] - at[0], out[:, P:].tolist()


class Loop:
    def __init__(self, folder, precision, threads):
        with open(os.path.join(folder, "config.json")) as f:
            c = json.load(f)
        s = dict(D=c["hidden_size"], L=c["num_hidden_layers"], H=c["num_attention_heads"], K=c["num_key_value_heads"], M=c["intermediate_size"], V=c["vocab_size"])
        s["E"] = s["D"] // s["H"]
        self.torch = cpu.Torch("eager-" + precision, threads, shape=s)
        t = self.torch.torch
        self.device = f"PyTorch {t.__version__}, {t.backends.cpu.get_cpu_capability()}"
        self.folder, self.model = folder, None

    def load(self):
        from safetensors import safe_open
        t = self.torch.torch
        with t.device("meta"):  # nothing is drawn
            m = self.torch.step.Qwen2(self.torch.shape).to(self.torch.dtype)
        m = m.to_empty(device="cpu")
        with safe_open(os.path.join(self.folder, "model.safetensors"), "pt") as f, t.no_grad():
            def take(p, *names):
                p.copy_(t.cat([f.get_tensor(n) for n in names]))
            take(m.embed.weight, "model.embed_tokens.weight")
            take(m.norm.weight, "model.norm.weight")
            for i, b in enumerate(m.blocks):
                at = f"model.layers.{i}."
                take(b.norm1.weight, at + "input_layernorm.weight")
                take(b.norm2.weight, at + "post_attention_layernorm.weight")
                for kind in ("weight", "bias"):
                    take(getattr(b.qkv, kind), *(f"{at}self_attn.{x}_proj.{kind}" for x in "qkv"))
                take(b.o.weight, at + "self_attn.o_proj.weight")
                take(b.gate_up.weight, at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight")
                take(b.down.weight, at + "mlp.down_proj.weight")
        return m.eval()

    def sample(self, B, P, N, temperature):
        if self.model is None:
            self.model = self.load()
        x, at = self.torch.torch.tensor(prompts(B, P, self.torch.shape["V"])), [time.perf_counter()]
        out, _ = self.torch.generate(self.model, x, 1, N, temperature, lambda: at.append(time.perf_counter()))
        return time.perf_counter() - at[0], at[1] - at[0], out.tolist()


KINDS = {"llama.cpp": LlamaCpp, "openvino": OpenVINO, "transformers": Transformers, "loop": Loop}


def serve(program, folder, precision, threads):
    """Answers `sample B P N T FOLDER`, as gad bench --serve does."""
    s = KINDS[program](folder, precision, threads)
    imported = time.time() - float(os.environ.get("PEERS_SPAWNED", time.time()))

    def answer(case):
        words = case.split()
        if len(words) < 5 or words[0] != "sample":
            raise ValueError("expected sample B P N T FOLDER")
        seconds, first, tokens = s.sample(*map(int, words[1:4]), float(words[4]))
        return {"seconds": seconds, "first": first, "tokens": tokens, "imported": imported}
    cpu.answers(s.device, answer)


# Measurements.


def command(program, precision, path, gad, threads):
    if program == "gad":
        return [gad, "bench", "--serve", "--threads", str(threads), "--precision", precision]
    return [sys.executable, os.path.abspath(__file__), "--serve", program, "--model", path, "--precision", precision, "--threads", str(threads)]


class Program(cpu.Server):
    """A program and its model; asked as cpu.Server is, without the folder at the end of the case."""

    def __init__(self, program, precision, path, gad, threads):
        super().__init__(f"{program}-{precision}", command(program, precision, path, gad, threads), PEERS_SPAWNED=str(time.time()))
        self.path = path

    def ask(self, case):
        return super().ask(f"{case} {self.path}")


def spawners(shape, precision, o, note):
    """Functions that start the programs of a shape and precision: those whose model could be made."""
    folder, out = make(shape, o.work, o.gad), []
    for program in o.programs:
        for p in [precision] + ["f16"] * (program == "llama.cpp" and precision == "bf16"):
            try:
                path = model_of(program, p, folder, o.openvino_python)
            except (ImportError, subprocess.CalledProcessError) as e:
                note(f"{program}-{p}, {shape}: {e}")
                continue
            out.append(lambda program=program, p=p, path=path: Program(program, p, path, o.gad, o.threads))
    return out


def measure(shape, precision, o, note, devices):
    """Answers by case and program, peaks by program."""
    cases = [f"sample {b} {PROMPT} {o.new} {t}" for t in o.temperatures for b in o.batches]
    with cpu.running([start() for start in spawners(shape, precision, o, note)]) as servers:
        found = cpu.interleaved(servers, cases, o.rounds, note, lambda _, case: [case.replace(f" {o.new} ", f" {min(o.new, 8)} ")])
        devices.update((s.name, s.device) for s in servers)
        return found, {s.name: (s.peak(), s.libraries) for s in servers}


def first_tokens(shape, precision, o, note):
    """Seconds from starting a process to its first token, and to the end of its imports, by program. An unmeasured round first: files are in the page cache."""
    out = {}
    for k in range(-1, o.rounds):
        for start in spawners(shape, precision, o, note if k < 0 else lambda _: None):
            with cpu.quiet():
                began = time.perf_counter()
                s = start()
                r = s.ask(f"sample 1 {PROMPT} 1 0")
                seconds = time.perf_counter() - began
            s.close()
            if "error" in r:
                note(f"{s.name}: start: {r['error']}")
            elif k >= 0:
                out.setdefault(s.name, []).append((seconds, r.get("imported", 0)))
    return out


def table(title, found, peaks, gad, temperature, o):
    """A row for each program: for each batch size the tokens per second of decoding, how many times as many gad has, and the time to the first tokens."""
    def speeds(case, name):
        return [int(case.split()[1]) * (o.new - 1) / (r["seconds"] - r["first"]) for r in found[case][name]]
    cases = [c for c in (f"sample {b} {PROMPT} {o.new} {temperature}" for b in o.batches) if c in found]
    print(f"\n{title}, {'greedy' if temperature == 0 else f'sampled at temperature {temperature}'} ({o.rounds} rounds):\n")
    print(cpu.rows("", *(h for c in cases for h in (f"{c.split()[1]}: tokens/s (best)", "gad", "first")), "memory (libraries)"))
    print("|---" + "|---:" * (3 * len(cases) + 1) + "|")
    for name in dict.fromkeys(n for c in cases for n in found[c]):
        cells = [name]
        for c in cases:
            if name not in found[c]:
                cells += ["", "", ""]
                continue
            ours = statistics.median(speeds(c, gad)) if gad in found[c] and name != gad else 0
            v = speeds(c, name)
            cells += [f"{statistics.median(v):.0f} ({max(v):.0f})", f"{ours / statistics.median(v):.2f} x" if ours else "",
                      f"{1e3 * statistics.median(r['first'] for r in found[c][name]):.0f} ms"]
        cells.append("{:.0f} MB ({:.0f})".format(*(b / 1e6 for b in peaks[name])))
        print(cpu.rows(*cells))


def start_table(shape, found):
    print(f"\nStart of a process to the first token of one answer, {shape}; files in the page cache:\n")
    print(cpu.rows("", "median", "best", "of it until all is imported") + "\n|---|---:|---:|---:|")
    for name, ts in found.items():
        print(cpu.rows(name, *(f"{f(t for t, _ in ts):.2f} s" for f in (statistics.median, min)), f"{statistics.median(i for _, i in ts):.2f} s"))


def check(shape, o, note):
    """Compares first greedy tokens; whether all float32 programs agree with gad up to near ties."""
    B, N, near = 8, 16, 1e-3
    case, tokens = f"sample {B} {PROMPT} {N} 0", {}
    for precision in o.precisions:
        with cpu.running([start() for start in spawners(shape, precision, o, note)]) as servers:
            for s in servers:
                r = s.ask(case)
                if "error" in r:
                    note(f"{s.name}: {r['error']}")
                else:
                    tokens[s.name] = r["tokens"]
    want = tokens.get("gad-f32")
    if want is None:
        note("check: no tokens of gad in float32")
        return False
    loop = Loop(make(shape, o.work, o.gad), "f32", o.threads)
    t, m, good = loop.torch.torch, loop.load(), True
    print(f"\nGreedy tokens, {shape}, {B} answers of {N} tokens, beside gad-f32's. A gap is the distance of the two tokens' logits where an answer parts from gad-f32's:\n")
    print(cpu.rows("", "equal tokens before", "answers that part", "largest gap") + "\n|---|---:|---:|---:|")
    for name, out in tokens.items():
        same, gaps = 0, []
        for p, a, b in zip(prompts(B, PROMPT, SHAPES[shape]["V"]), want, out):
            n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), N)
            same += n
            if n < N:
                with t.inference_mode():
                    z = t.nn.functional.linear(m(t.tensor([p + a[:n]]))[0, -1], m.embed.weight)
                gaps.append((z[a[n]] - z[b[n]]).abs().item())
        print(cpu.rows(name, f"{same} of {B * N}", str(len(gaps)), f"{max(gaps):.2g}" if gaps else ""))
        good = good and (cpu.precision(name) != "f32" or max(gaps, default=0) <= near)
    return good


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--serve", choices=list(KINDS), help="be a program's server, with --model and --precision")
    a.add_argument("--model")
    a.add_argument("--precision", choices=["f32", "bf16", "f16"])
    a.add_argument("--gad", help="the gad binary; without it the repository is built")
    a.add_argument("--work", help="folder for models (some GB), kept; without it a temporary one")
    a.add_argument("--openvino-python", help="a Python that has optimum-intel")
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--programs", nargs="+", default=PROGRAMS, choices=PROGRAMS)
    a.add_argument("--shapes", nargs="+", default=["25m", "361m"], choices=list(SHAPES))
    a.add_argument("--precisions", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    a.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    a.add_argument("--temperatures", nargs="+", type=int, default=[0, 1], choices=[0, 1])
    a.add_argument("--new", type=int, default=NEW, help="tokens of an answer")
    a.add_argument("--check", action="store_true", help="compare tokens instead of timing")
    a.add_argument("--start", action="store_true", help="time the start of processes instead of generation")
    a.add_argument("--json", help="file for all times")
    o = a.parse_args()
    if o.serve:
        return serve(o.serve, o.model, o.precision, o.threads)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    notes, devices, kept, good = [], {}, {}, True
    scratch = None if o.work else tempfile.TemporaryDirectory(prefix="gad-peers-")
    o.work, o.gad = os.path.abspath(o.work or scratch.name), o.gad or cpu.build()

    def note(text):
        if text not in notes:
            notes.append(text)
    try:
        for shape in o.shapes:
            if o.check:
                good = check(shape, o, note) and good
                continue
            starts = {}
            for p in o.precisions:
                if o.start:
                    starts |= first_tokens(shape, p, o, note)
                    continue
                found, peaks = measure(shape, p, o, note, devices)
                for t in o.temperatures:
                    table(f"{shape}, {p}", found, peaks, "gad-" + p, t, o)
                kept[f"{shape} {p}"] = {c: {n: [(r["seconds"], r["first"]) for r in rs] for n, rs in by.items()} for c, by in found.items()}
                sys.stdout.flush()
            if o.start:
                start_table(shape, starts)
                kept[shape + " start"] = starts
    except KeyboardInterrupt:  # what has been measured is printed
        notes.append("interrupted")
    finally:
        if scratch:
            scratch.cleanup()
    print(f"\n{cpu.machine()}, {cpu.programs(devices, o.threads)}")
    for n in notes:
        print(n)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"times": kept, "notes": notes, "devices": devices}, f)
    if not good or "interrupted" in notes:
        sys.exit(1)


if __name__ == "__main__":
    main()
