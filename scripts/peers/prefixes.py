#!/usr/bin/env python3
"""What gad serve's cache of prefixes and its prompts in parts are worth.

Servers of the same weights (serve.py's) stand side by side and take turns:

  keeps     gad serve
  forgets   gad serve --no-prefix-cache
  before    another gad binary (--before), if it is given

chat        a conversation of 10 turns: messages of about 20 tokens, answers of 32
choices     12 questions of about 100 tokens with 4 choices each, as lm-evaluation-harness
            scores them: echo and logprobs, one choice after the other, and then other
            questions, 4 choices at a time
pause       the longest gap between two tokens of an answer that streams while a prompt of
            3000 tokens arrives, and the time to that prompt's first token

Nothing comes twice: each round has words of its own. Tokens of prompts that were computed
are counted by the servers (/metrics: gad_prefix_cache_*; of --before all are). Two minutes
on two idle cores.
"""
import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpu
import serve

WORDS = "sum largest letter first last give reverse of the it is count".split()


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def post(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    raw = response.read()
    if response.status != 200:
        sys.exit(f"prefixes.py: {response.status} {raw[:300]}")
    return json.loads(raw)


def connect(server):
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)


def found(server):
    """Tokens of prompts that the cache had, so far."""
    connection = connect(server)
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("gad_prefix_cache_hits_total "):
            return int(line.split()[1])
    return 0


def chat(server, rng, turns=10):
    connection, messages, tokens = connect(server), [], 0
    began = time.perf_counter()
    for turn in range(turns):
        messages.append({"role": "user", "content": words(rng, 14)})
        a = post(connection, "/v1/chat/completions", {"messages": messages, "max_tokens": 32, "temperature": 0, "ignore_eos": True})
        messages.append({"role": "assistant", "content": a["choices"][0]["message"]["content"]})
        tokens += a["usage"]["prompt_tokens"]
    return turns, tokens, time.perf_counter() - began


def choices(server, rng, at_once, questions=12):
    bodies = []
    for _ in range(questions):
        question = words(rng, 68)
        bodies += [{"prompt": question + " " + words(rng, 2), "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0} for _ in range(4)]
    lock, tokens = threading.Lock(), [0]
    bodies.reverse()

    def client():
        connection = connect(server)
        while True:
            with lock:
                if not bodies:
                    return
                body = bodies.pop()
            n = post(connection, "/v1/completions", body)["usage"]["prompt_tokens"]
            with lock:
                tokens[0] += n
    threads = [threading.Thread(target=client) for _ in range(at_once)]
    began = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return 4 * questions, tokens[0], time.perf_counter() - began


def pause(server, rng):
    """The longest gap, the median gap, and the time to the long prompt's first token."""
    times, arrived = [], threading.Event()

    def read():
        connection = connect(server)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": words(rng, 20), "max_tokens": 300, "seed": 1, "ignore_eos": True, "stream": True, "logprobs": 0}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                if len(times) == 20:
                    arrived.set()
        arrived.set()
    reader = threading.Thread(target=read)
    long = words(rng, 2046)
    reader.start()
    arrived.wait(300)
    began = time.perf_counter()
    tokens = post(connect(server), "/v1/completions", {"prompt": long, "max_tokens": 1, "temperature": 0, "ignore_eos": True})["usage"]["prompt_tokens"]
    first = time.perf_counter() - began
    reader.join()
    gaps = [b - a for a, b in zip(times[5:], times[6:])]
    return max(gaps), statistics.median(gaps), first, tokens


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gad", default="gad", help="the gad binary")
    p.add_argument("--before", help="another one, to compare with")
    p.add_argument("--work", help="folder for the model, kept; without it a temporary one")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--precision", default="f32")
    p.add_argument("--tiny", action="store_true", help="a tiny model, to test this script")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = serve.make(o.gad, o.work or scratch, "tiny" if o.tiny else "25m")
        command = lambda gad, *more: [gad, "serve", "--model", os.path.join(folder, "hf"), "--listen", "127.0.0.1:PORT", "--threads", str(o.threads), "--context", "4096", "--precision", o.precision, *more]
        running, results = [], {}
        try:
            running.append(serve.Server("keeps", command(o.gad), {}))
            running.append(serve.Server("forgets", command(o.gad, "--no-prefix-cache"), {}))
            if o.before:
                running.append(serve.Server("before", command(o.before), {}))
            for round in range(o.rounds):
                for kind, work in (("chat of 10 turns", chat), ("4 choices, one at a time", lambda s, r: choices(s, r, 1)), ("4 choices, 4 at a time", lambda s, r: choices(s, r, 4))):
                    for s in running[round % len(running):] + running[:round % len(running)]:
                        had = found(s)
                        n, tokens, took = work(s, random.Random(f"{round} {kind}"))
                        results.setdefault((kind, s.name), []).append((n / took, tokens, tokens - (found(s) - had)))
                        print(f"round {round}, {kind}, {s.name}: {n / took:.2f} requests/s", file=sys.stderr)
                for s in running[round % len(running):] + running[:round % len(running)]:
                    results.setdefault(("pause", s.name), []).append(pause(s, random.Random(f"{round} pause")))
                    print(f"round {round}, longest gap, {s.name}: {results['pause', s.name][-1][0]:.3f} s", file=sys.stderr)
        finally:
            for s in running:
                s.stop()
    print(cpu.machine() + "\n")
    cell = lambda rs, k, form, scale=1: f"{scale * statistics.median(r[k] for r in rs):{form}} ({scale * min(r[k] for r in rs):{form}}-{scale * max(r[k] for r in rs):{form}})"
    print(f"{o.rounds} rounds, {o.threads} threads, {o.precision}. Median (least-most).\n")
    print("| what | server | tokens of prompts | computed | requests/s |\n|---|---|---:|---:|---:|")
    for (kind, name), rs in results.items():
        if kind != "pause":
            print(f"| {kind} | {name} | {cell(rs, 1, '.0f')} | {cell(rs, 2, '.0f')} | {cell(rs, 0, '.2f')} |")
    print("\n| server | longest gap, ms | median gap, ms | first token of the long prompt, ms | its tokens |\n|---|---:|---:|---:|---:|")
    for (kind, name), rs in results.items():
        if kind == "pause":
            print(f"| {name} | {cell(rs, 0, '.0f', 1000)} | {cell(rs, 1, '.1f', 1000)} | {cell(rs, 2, '.0f', 1000)} | {rs[0][3]} |")


if __name__ == "__main__":
    main()
