#!/usr/bin/env python3
"""gad serve beside llama.cpp's server: the same model, the same prompts, the same machine, in turn.

`gad init` and one step of `gad sft` make a Qwen2 with random weights and a real tokenizer;
`gad export --gguf` makes llama.cpp's file of the same weights. The servers are started
side by side on the same number of threads and take turns: C clients, each with a
connection of its own, ask for completions of 64 tokens to prompts of about 40 tokens, one
after the other, greedily. Nothing ends an answer early and no prompt comes twice. The table has
requests and new tokens per second and the latency of a request, medians of the rounds
with the least and the most.

  gad            gad serve
  llama-server   llama.cpp's own server (--llama-server, built from the source package of
                 llama-cpp-python with cmake -DLLAMA_BUILD_SERVER=ON), with as many slots as clients,
                 and no prompt cache, since no prompt comes twice
  llama-cpp-python  python -m llama_cpp.server, which answers one request at a time

What is not installed is named and left out. About four minutes on two idle cores.
"""
import argparse
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpu

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TINY = dict(D=128, L=2, H=4, K=2, E=32, M=256, V=512)
LETTERS = os.path.join(ROOT, "testdata", "letters")
PROMPT = 40  # words, about a token each


def make(gad, work, shape):
    """The folder of a model and its GGUF files, by precision."""
    folder = os.path.join(work, "serve-" + shape)
    if not os.path.exists(os.path.join(folder, "bf16.gguf")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        at = lambda name: os.path.join(folder, name)
        with open(at("config.json"), "w") as f:
            json.dump(cpu.config(TINY if shape == "tiny" else cpu.SHAPE) | {"initializer_range": 0.1}, f)
        quiet = dict(check=True, stdout=subprocess.DEVNULL)
        subprocess.run([gad, "init", "--config", at("config.json"), "--corpus", os.path.join(LETTERS, "corpus.txt"), "--output", at("fresh")], **quiet)
        subprocess.run([gad, "sft", "--model", at("fresh"), "--data", os.path.join(LETTERS, "train.jsonl"), "--output", at("run"), "--steps", "1", "data.train_batch_size=2",
                        "data.max_prompt_length=64", "data.max_response_length=32", "actor.optim.lr=1e-9"], stderr=subprocess.DEVNULL, **quiet)
        subprocess.run([gad, "export", "--run", at("run"), "--output", at("hf")], **quiet)
        for kind in ("f16", "bf16"):
            subprocess.run([gad, "export", "--run", at("run"), "--output", at(kind + ".gguf"), "--gguf", kind], **quiet)
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server that is running."""

    def __init__(self, name, command, extra, parallel=True):
        self.name, self.extra, self.parallel = name, extra, parallel
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([x.replace("PORT", str(self.port)) for x in command], stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                self.ask(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60), "warm up", 2)
                return
            except (OSError, RuntimeError, http.client.HTTPException):
                time.sleep(0.1)
        self.log.seek(0)
        sys.stderr.buffer.write(self.log.read()[-2000:])
        sys.exit(f"serve.py: {name} does not start: {' '.join(command)}")

    def ask(self, connection, prompt, tokens):
        """The number of new tokens of an answer."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0} | self.extra
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {response.status} {raw[:300]}")
        return json.loads(raw)["usage"]["completion_tokens"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def load(server, clients, requests, tokens, rng):
    """Requests and tokens per second, and the median latency, of so many clients."""
    words = "sum largest letter first last give reverse of the it is count".split()
    prompts = [" ".join(rng.choice(words) for _ in range(PROMPT)) for _ in range(requests)]
    lock, latencies, drawn, failed = threading.Lock(), [], [0], []

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        while True:
            with lock:
                if not prompts or failed:
                    return
                prompt = prompts.pop()
            began = time.perf_counter()
            try:
                n = server.ask(connection, prompt, tokens)
            except Exception as e:
                with lock:
                    failed.append(e)
                return
            with lock:
                latencies.append(time.perf_counter() - began)
                drawn[0] += n
    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.perf_counter() - began
    if failed:
        sys.exit(f"serve.py: {server.name}, {clients} clients: {failed[0]}")
    if drawn[0] != requests * tokens:
        print(f"serve.py: {server.name}: {drawn[0]} tokens, not {requests * tokens}", file=sys.stderr)
    return requests / took, drawn[0] / took, statistics.median(latencies)


def servers(o, folder):
    """The servers that are installed."""
    gad = [o.gad, "serve", "--model", os.path.join(folder, "hf"), "--listen", "127.0.0.1:PORT", "--slots", str(max(o.clients)), "--threads", str(o.threads), "--context", "256"]
    for precision in ("f32", "bf16"):
        yield f"gad {precision}", gad + ["--precision", precision], {"ignore_eos": True}, True
    binary = o.llama_server or shutil.which("llama-server")
    for kind in ("f16", "bf16"):
        if binary:
            slots = max(o.clients)
            yield f"llama-server {kind}", [binary, "-m", os.path.join(folder, kind + ".gguf"), "--host", "127.0.0.1", "--port", "PORT", "-np", str(slots), "-c", str(256 * slots), "-t", str(o.threads), "-tb", str(o.threads)], {"ignore_eos": True, "cache_prompt": False}, True
    if not binary:
        print("serve.py: llama-server is not there: give --llama-server", file=sys.stderr)
    if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("uvicorn"):
        with open(os.path.join(folder, "hf", "config.json")) as f:
            eos = json.load(f)["eos_token_id"]
        yield "llama-cpp-python f16", [sys.executable, "-m", "llama_cpp.server", "--model", os.path.join(folder, "f16.gguf"), "--host", "127.0.0.1", "--port", "PORT", "--n_ctx", "256", "--n_threads", str(o.threads), "--n_threads_batch", str(o.threads), "--interrupt_requests", "false"], {"logit_bias": {str(eos): -100}}, False
    else:
        print("serve.py: llama_cpp.server is not there: pip install 'llama-cpp-python[server]'", file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gad", default="gad", help="the gad binary")
    p.add_argument("--llama-server", help="llama.cpp's server; without it the one on the path")
    p.add_argument("--work", help="folder for the models, kept; without it a temporary one")
    p.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--new", type=int, default=64, help="tokens of an answer")
    p.add_argument("--minutes", type=float, default=5, help="no round begins after this time")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--tiny", action="store_true", help="a tiny model and few requests, to test this script")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = make(o.gad, o.work or scratch, "tiny" if o.tiny else "25m")
        running = []
        try:
            for name, command, extra, parallel in servers(o, folder):
                running.append(Server(name, command, extra, parallel))
            results, began = {}, time.time()
            for round in range(o.rounds):
                if time.time() - began > 60 * o.minutes:
                    print(f"serve.py: {o.minutes:g} minutes are over after {round} rounds", file=sys.stderr)
                    break
                for clients in o.clients:
                    requests = clients if o.tiny else {1: 6}.get(clients, 2 * clients)
                    order = running[round % len(running):] + running[:round % len(running)]
                    for s in order:
                        if not s.parallel and clients > 8:
                            continue  # takes them one by one: its figures are those of fewer clients
                        r = load(s, clients, requests, o.new, random.Random(1000 * round + clients))
                        results.setdefault((clients, s.name), []).append(r)
                        print(f"round {round}, {clients} clients, {s.name}: {r[0]:.2f} requests/s, {r[1]:.0f} tokens/s, {r[2]:.2f} s", file=sys.stderr)
        finally:
            for s in running:
                s.stop()
    print(cpu.machine() + "\n")
    print(f"Answers of {o.new} tokens to prompts of about {PROMPT}, {max(len(rs) for rs in results.values())} rounds, {o.threads} threads. Median (least-most).\n")
    print("| clients | server | requests/s | new tokens/s | median latency |\n|---:|---|---:|---:|---:|")
    for (clients, name), rs in sorted(results.items(), key=lambda x: x[0][0]):
        cell = lambda k, form: f"{statistics.median(r[k] for r in rs):{form}} ({min(r[k] for r in rs):{form}}-{max(r[k] for r in rs):{form}})"
        print(f"| {clients} | {name} | {cell(0, '.2f')} | {cell(1, '.0f')} | {cell(2, '.2f')} s |")


if __name__ == "__main__":
    main()
