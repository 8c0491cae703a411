#!/usr/bin/env python3
"""gad serve under other people's clients: lm-evaluation-harness, the openai package, litellm, langchain-openai.

A student of 0.9M parameters is trained for a few steps on the repository's own rows
(gad init, gad sft), and two tasks are made of other rows: 100 of multiple choice and
50 that are answered to the end of a line. lm-evaluation-harness runs them twice on the
same folder: by its transformers backend, and through gad serve as local-completions with
gad's own tokenizer endpoints, eight requests at once. A third task, of 50 conversations,
runs by the transformers backend with --apply_chat_template and through gad serve as
local-chat-completions. Then every log-likelihood, greedy flag and answer of the two is
compared. Exit status 1 if a log-likelihood is off by more
than 1e-3 nat, a greedy flag or an answer differs, or the openai package does not get what
it asks for.

  scripts/peers/clients.py [--gad gad] [--work FOLDER] [--model FOLDER] [--packages]

Needs Python with lm-eval, openai, torch, transformers and accelerate. Nothing is downloaded. With
--packages it needs --model and openai, litellm and langchain-openai instead: each asks for
chats and completions, at once and streamed, with all that it sends by itself.
"""
import argparse
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "tie_word_embeddings": True, "torch_dtype": "float32", "hidden_act": "silu",
}


def train(gad, work):
    """The folder of a small student."""
    run, letters = os.path.join(work, "run"), os.path.join(ROOT, "testdata", "letters")
    with open(os.path.join(work, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    subprocess.run([gad, "init", "--config", os.path.join(work, "config.json"), "--corpus", os.path.join(letters, "corpus.txt"), "--output", os.path.join(work, "fresh")], check=True)
    subprocess.run([gad, "sft", "--model", os.path.join(work, "fresh"), "--data", os.path.join(letters, "train.jsonl"), "--output", run, "--steps", "200",
                    "data.train_batch_size=16", "data.max_prompt_length=64", "data.max_response_length=32", "actor.optim.lr=3e-3", "trainer.total_epochs=1000",
                    "trainer.save_freq=200"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return os.path.join(run, "global_step_200", "actor")


def tasks(folder):
    """Two tasks of lm-evaluation-harness."""
    rng = random.Random(5)
    os.makedirs(folder)

    def row():
        kind = rng.randrange(3)
        if kind == 0:
            xs = [rng.randrange(1, 10) for _ in range(3)]
            return f"Give the sum: {'+'.join(map(str, xs))}", f"It is {sum(xs)}.", [f"It is {sum(xs) + d}." for d in (1, -1, 3)]
        if kind == 1:
            xs = rng.sample(range(1, 10), 3)
            return f"Give the largest: {' '.join(map(str, xs))}", f"It is {max(xs)}.", [f"It is {x}." for x in xs if x != max(xs)] + ["It is none of these."]
        xs = rng.sample("abcdefghijklmnopqrstuvwxyz", 4)
        return f"Reverse: {' '.join(xs)}", f"It is {' '.join(reversed(xs))}.", [f"It is {' '.join(xs)}.", f"It is {' '.join(sorted(xs))}.", "No: \u4f60\u597d \u00e4\u00f6 \U0001f642"]

    def question(text):
        return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    with open(os.path.join(folder, "choice.jsonl"), "w") as f:
        for _ in range(100):
            text, right, wrong = row()
            choices = [right] + wrong
            rng.shuffle(choices)
            print(json.dumps({"q": question(text), "choices": choices, "gold": choices.index(right)}), file=f)
    with open(os.path.join(folder, "until.jsonl"), "w") as f:
        for _ in range(50):
            text, right, _ = row()
            print(json.dumps({"q": question(text), "text": text, "a": right}), file=f)
    common = "dataset_path: json\ntest_split: test\ntarget_delimiter: \"\"\nnum_fewshot: 0\n"
    with open(os.path.join(folder, "choice.yaml"), "w") as f:
        f.write(f"task: gad_choice\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/choice.jsonl\noutput_type: multiple_choice\ndoc_to_text: \"{{{{q}}}}\"\n"
                "doc_to_choice: \"{{choices}}\"\ndoc_to_target: \"{{gold}}\"\nmetric_list:\n  - metric: acc\n")
    for name, field in (("until", "q"), ("chat", "text")):
        with open(os.path.join(folder, f"{name}.yaml"), "w") as f:
            f.write(f"task: gad_{name}\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/until.jsonl\noutput_type: generate_until\ndoc_to_text: \"{{{{{field}}}}}\"\n"
                    "doc_to_target: \"{{a}}\"\ngeneration_kwargs:\n  until: [\"\\n\", \"?\"]\n  max_gen_toks: 40\n  do_sample: false\nmetric_list:\n  - metric: exact_match\n")


class Server:
    """gad serve on a folder."""

    def __init__(self, gad, folder, *args):
        self.process = subprocess.Popen([gad, "serve", "--model", folder, "--listen", "127.0.0.1:0", "--name", "student", *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = None
        while not found:
            line = self.process.stdout.readline()
            if not line:
                sys.exit("gad serve does not start")
            found = re.search(r"http://\S+", line)  # a line about memory comes before
        self.url = found.group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            sys.exit(f"clients.py: gad serve ends with status {self.process.returncode}")


def evaluate(folder, out, model, args, names="gad_choice,gad_until", more=()):
    """The samples of a run of lm-evaluation-harness, by task and row."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "NO_PROXY": "127.0.0.1"}
    began = time.time()
    subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", args, "--tasks", names, "--include_path", folder, *more,
                    "--batch_size", "8", "--device", "cpu", "--log_samples", "--output_path", out], check=True, env=env, stdout=subprocess.DEVNULL)
    took = time.time() - began
    samples = {}
    for path in glob.glob(os.path.join(out, "**", "samples_*.jsonl"), recursive=True):
        task = re.search(r"samples_(gad_[a-z]+)_", path).group(1)
        with open(path) as f:
            for line in f:
                s = json.loads(line)
                samples[task, s["doc_id"]] = s
    return samples, took


def compare(ours, theirs):
    """The largest difference of a log-likelihood, and the numbers of other differences."""
    worst, flags, answers, likelihoods, texts = 0.0, 0, 0, 0, 0
    if ours.keys() != theirs.keys():
        sys.exit(f"clients.py: {len(ours)} samples beside {len(theirs)}")
    for key, s in ours.items():
        for a, b in zip(s["resps"], theirs[key]["resps"], strict=True):
            a, b = a[0], b[0]
            if key[0] == "gad_choice":
                likelihoods += 1
                worst = max(worst, abs(float(a[0]) - float(b[0])))
                flags += str(a[1]) != str(b[1])
            else:
                texts += 1
                if a != b:
                    answers += 1
                    print(f"row {key[1]}: {a!r}, transformers {b!r}")
    return worst, likelihoods, flags, answers, texts


def accuracy(samples, task, metric):
    xs = [s[metric] for (t, _), s in samples.items() if t == task]
    return sum(xs) / len(xs)


def openai_package(url):
    """What the openai package does with the server; prints it."""
    import openai
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    name = client.models.list().data[0].id
    ask = dict(model=name, messages=[{"role": "user", "content": "Give the sum: 8+5+4"}], temperature=0.7, seed=3, max_tokens=24)
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    text, usage, chunks = "", None, 0
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        chunks += 1
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content and usage.completion_tokens == whole.usage.completion_tokens > 0, (text, whole, usage)
    assert usage.prompt_tokens == whole.usage.prompt_tokens == usage.prompt_tokens_details.cached_tokens + 1, (usage, whole.usage)  # the second time all but the last were cached
    assert len(whole.choices[0].logprobs.content) == usage.completion_tokens
    print(f"openai {openai.__version__}: chat: {text!r}, {chunks} chunks, {usage.prompt_tokens} + {usage.completion_tokens} tokens, streamed as at once")
    ask = dict(model=name, prompt=["Give the largest: 2 7 9", "Reverse: e v o d"], temperature=1, seed=3, max_tokens=12, n=2, logprobs=1)
    whole, parts = client.completions.create(**ask), {}
    for chunk in client.completions.create(**ask, stream=True):
        for c in chunk.choices:
            parts[c.index] = parts.get(c.index, "") + c.text
    assert [parts[c.index] for c in whole.choices] == [c.text for c in whole.choices] and len(parts) == 4
    print(f"openai {openai.__version__}: completions: {[c.text for c in whole.choices]}, streamed as at once")
    try:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}], frequency_penalty=1)
        sys.exit("clients.py: frequency_penalty is not refused")
    except openai.BadRequestError as e:
        print(f"openai {openai.__version__}: {type(e).__name__}: {e.body['message']} (param {e.body['param']})")
    try:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
        sys.exit("clients.py: a model of another name answers")
    except openai.NotFoundError as e:
        print(f"openai {openai.__version__}: {type(e).__name__}: {e.body['message']}")


def packages(url):
    """Whether other packages' own requests are answered, streamed as at once; prints it."""
    from importlib.metadata import version
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm
    import openai
    from langchain_openai import ChatOpenAI, OpenAI
    ask, talk = "Give the sum: 8+5+4", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Give the sum: 8+5+4"}]

    def same(what, whole, parts):
        text = "".join(parts)
        assert whole == text and whole, (what, whole, text)
        print(f"{what}: {whole!r}, streamed as at once")

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    assert client.models.retrieve("student").id == "student"
    # What asks for nothing, and what vLLM's clients send of it.
    neutral = dict(response_format={"type": "text"}, tools=[], tool_choice="none", parallel_tool_calls=False, store=False, metadata={}, user="u", service_tier="auto", logit_bias={},
                   seed=None, stop=None, frequency_penalty=0, presence_penalty=0, n=1, verbosity=None, reasoning_effort=None, prediction=None, audio=None, modalities=["text"],
                   extra_body={"repetition_penalty": 1.0, "min_tokens": 0, "skip_special_tokens": True, "length_penalty": 1.0, "use_beam_search": False, "add_generation_prompt": True})
    first = client.chat.completions.create(model="student", messages=talk, max_tokens=8, **neutral).choices[0].message
    client.chat.completions.create(model="student", messages=talk + [first, {"role": "user", "content": "again"}], max_tokens=8)
    print(f"openai {openai.__version__}: {len(neutral) + len(neutral['extra_body']) - 1} parameters that ask for nothing are taken, and its own answer as a message")
    more = dict(api_base=url, api_key="none", max_tokens=12, temperature=0.7, seed=3)
    for kind in ("openai", "hosted_vllm"):
        same(f"litellm {version('litellm')}: {kind}", litellm.completion(model=kind + "/student", messages=talk, **more).choices[0].message.content,
             [c.choices[0].delta.content or "" for c in litellm.completion(model=kind + "/student", messages=talk, stream=True, stream_options={"include_usage": True}, **more) if c.choices])
    more = dict(base_url=url, api_key="none", model="student", max_retries=0, max_tokens=12, temperature=0.7, seed=3)
    for kind in (ChatOpenAI, OpenAI):
        text = (lambda m: m) if kind is OpenAI else (lambda m: m.content)
        same(f"langchain-openai {version('langchain-openai')}: {kind.__name__}", text(kind(**more).invoke(ask)), [text(m) for m in kind(**more).stream(ask)])
    assert len(OpenAI(**more).batch([ask, "Reverse: e v o d"])) == 2


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gad", default="gad", help="the gad binary")
    p.add_argument("--work", help="folder for the model and the results, kept; without it a temporary one")
    p.add_argument("--model", help="a model folder, instead of training a small one")
    p.add_argument("--packages", action="store_true", help="only the requests of openai, litellm and langchain-openai")
    o = p.parse_args()
    if o.packages:
        with Server(o.gad, o.model) as s:
            packages(s.url)
        return
    with tempfile.TemporaryDirectory() as scratch:
        work = o.work or scratch
        os.makedirs(work, exist_ok=True)
        folder = o.model or train(o.gad, work)
        made = os.path.join(tempfile.mkdtemp(dir=work), "tasks")
        tasks(made)
        with Server(o.gad, folder) as s:
            openai_package(s.url)
            ours, t_ours = evaluate(made, os.path.join(made, "gad"), "local-completions",
                                    f"model=student,base_url={s.url}/completions,num_concurrent=8,max_retries=1,tokenized_requests=True,max_length=512")
            chats, _ = evaluate(made, os.path.join(made, "gad-chat"), "local-chat-completions",
                                f"model=student,base_url={s.url}/chat/completions,num_concurrent=8,max_retries=1", "gad_chat", ["--apply_chat_template"])
            figures = urllib.request.urlopen(s.url.removesuffix("/v1") + "/metrics").read().decode()
        asked, found = (int(re.search(rf"^gad_prefix_cache_{x}_total (\d+)$", figures, re.M).group(1)) for x in ("queries", "hits"))
        print(f"gad serve: {asked} tokens of prompts, {found} of them found in its cache, {asked - found} computed")
        theirs, t_theirs = evaluate(made, os.path.join(made, "hf"), "hf", f"pretrained={folder},dtype=float32,max_length=512")
        theirs_chat, _ = evaluate(made, os.path.join(made, "hf-chat"), "hf", f"pretrained={folder},dtype=float32,max_length=512", "gad_chat", ["--apply_chat_template"])
        worst, likelihoods, flags, answers, texts = compare(ours, theirs)
        _, _, _, chat_answers, chat_texts = compare(chats, theirs_chat)
        from importlib.metadata import version
        print(f"lm-eval {version('lm-eval')}, transformers {version('transformers')}: {likelihoods} log-likelihoods, the largest difference {worst:.2e} nat; {flags} greedy flags differ; {answers} of {texts} answers differ; {chat_answers} of {chat_texts} of local-chat-completions")
        for name, samples, took in (("gad serve", ours, t_ours), ("transformers", theirs, t_theirs)):
            print(f"  {name}: accuracy {accuracy(samples, 'gad_choice', 'acc'):.3f}, exact match {accuracy(samples, 'gad_until', 'exact_match'):.3f}, {took:.0f} s with start")
        if worst > 1e-3 or flags or answers or chat_answers or likelihoods < 300 or min(texts, chat_texts) < 50:
            sys.exit(1)


if __name__ == "__main__":
    main()
