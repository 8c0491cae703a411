#!/usr/bin/env python3
"""gad serve as a teacher and as a policy for other trainers: TRL's client of vLLM servers and the openai package.

The model's folder gets the chat template "hermes" of testdata/turns. Then

  - TRL's VLLMClient asks for the teacher's log-probabilities of sequences (get_sequence_logprobs), for
    completions of texts and of ids (generate) and for chats with tools (chat), with all that it sends by itself.
    Each log-probability is compared with transformers' on the same folder, in float32;
  - the openai package asks for ids, prompt_logprobs and calls of tools, at once and streamed, and sends a call and
    its result back.

Exit status 1 if ids differ, a log-probability is off by more than 1e-3 nat, or anything is not as it should be.

  scripts/peers/trainers.py --model FOLDER [--gad gad]

Needs Python with openai, requests, torch, transformers and trl; no vLLM. Nothing is downloaded.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile

from clients import ROOT, Server

os.environ |= {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather in a city",
                                            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def templated(model, folder):
    """The model with a template that writes tools and calls."""
    with open(os.path.join(ROOT, "testdata", "turns", "expected.json")) as f:
        template = next(s["template"] for s in json.load(f)["shapes"] if s["name"] == "hermes")
    for name in os.listdir(model):
        if name != "chat_template.jinja":
            shutil.copy(os.path.join(model, name), os.path.join(folder, name))
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(template)


def trl_client(url, folder):
    """What TRL's client gets; prints it."""
    import torch
    import transformers
    import trl
    from trl.generation import vllm_client
    vllm_client.is_vllm_available = lambda *a, **k: True  # only the weights' synchronisation needs it
    client = vllm_client.VLLMClient(base_url=url.removesuffix("/v1"), connection_timeout=10)
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logp(ids):  # [T,V], of the token behind each
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)

    worst, values = 0.0, 0
    texts = ["The capital of France is Paris, and that of Japan is", "def add(a, b):\n    return", "Grüße aus 東京 🙂!"]
    sequences, lengths = [tok(t).input_ids for t in texts], [2, 1, 3]
    got = client.get_sequence_logprobs(sequences, lengths, top_logprobs=64, chunk_size=2)
    for ids, start, top, top_ids, own, own_ids in zip(sequences, lengths, got["logprobs"], got["logprob_token_ids"], got["actual_logprobs"], got["actual_token_ids"], strict=True):
        want = logp(ids)
        assert len(top) == len(own) == len(ids) - start and [x[0] for x in own_ids] == ids[start:]
        for t, (x, xi, o) in enumerate(zip(top, top_ids, own, strict=True), start):
            assert len(x) == len(xi) == 64 and x == sorted(x, reverse=True)
            worst = max([worst, abs(o[0] - want[t - 1, ids[t]].item())] + [abs(a - want[t - 1, i].item()) for a, i in zip(x, xi)])
            values += 1 + len(x)
    out = client.generate(texts[:2], n=2, max_tokens=12, logprobs=5, generation_kwargs={"seed": 3})
    assert out["prompt_ids"] == sequences[:2] and len(out["completion_ids"]) == 4
    byids = client.generate(sequences[:2], n=2, max_tokens=12, logprobs=5, generation_kwargs={"seed": 3})
    assert byids == out
    for k, ids in enumerate(out["completion_ids"]):
        prompt = out["prompt_ids"][k // 2]
        want = logp(prompt + ids)
        for t, (x, xi) in enumerate(zip(out["logprobs"][k], out["logprob_token_ids"][k], strict=True)):
            assert ids[t] in xi and 5 <= len(x) <= 6
            worst = max([worst] + [abs(a - want[len(prompt) + t - 1, i].item()) for a, i in zip(x, xi)])
            values += len(x)
    talk = [{"role": "user", "content": "What is the weather in Bonn?"}]
    chat = client.chat([talk], n=2, max_tokens=8, tools=[WEATHER])
    want = tok.apply_chat_template(talk, tools=[WEATHER], add_generation_prompt=True, return_dict=False)
    assert chat["prompt_ids"][0] == want, (chat["prompt_ids"][0], want)
    assert len(chat["completion_ids"]) == 2 and all(len(i) == len(l) for i, l in zip(chat["completion_ids"], chat["logprobs"]))
    print(f"trl {trl.__version__}: VLLMClient: get_sequence_logprobs, generate and chat: {values} log-probabilities, the largest difference to transformers {transformers.__version__} {worst:.2e} nat; prompts with tools have the ids of apply_chat_template")
    if worst > 1e-3:
        sys.exit("trainers.py: log-probabilities differ")


def openai_package(url):
    """Ids, scores and calls through the openai package; prints it."""
    import openai
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    extra = {"return_token_ids": True, "prompt_logprobs": 0}
    ask = dict(model="student", prompt="The capital of France is", temperature=1, seed=5, max_tokens=8, logprobs=1)
    whole = client.completions.create(**ask, extra_body=extra).choices[0]
    again = client.completions.create(model="student", prompt=whole.prompt_token_ids + whole.token_ids, max_tokens=0, extra_body={"prompt_logprobs": 0}).choices[0]
    assert whole.prompt_logprobs[0] is None and len(whole.prompt_logprobs) == len(whole.prompt_token_ids)
    scored = [again.prompt_logprobs[len(whole.prompt_token_ids) + t][str(i)]["logprob"] for t, i in enumerate(whole.token_ids)]
    assert scored == whole.logprobs.token_logprobs, (scored, whole.logprobs)
    print(f"openai {openai.__version__}: completions: {len(scored)} drawn tokens scored again by their ids with the same bits")

    # A call: the conversation shows how, so that a small model writes one.
    def example(city, id):
        return [{"role": "user", "content": f"What is the weather in {city}?"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}]},
                {"role": "tool", "tool_call_id": id, "content": "21 C"}, {"role": "assistant", "content": "21 degrees."}]
    talk = example("Bonn", "a") + example("Oslo", "b") + example("Rome", "c") + [{"role": "user", "content": "What is the weather in Paris?"}]
    ask = dict(model="student", messages=talk, tools=[WEATHER], temperature=0, max_tokens=64)
    answer = client.chat.completions.create(**ask, logprobs=True, extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, answer
    assert len(choice.token_ids) == len(choice.logprobs.content) == answer.usage.completion_tokens and len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    calls, ids, prompt = {}, [], None
    for chunk in client.chat.completions.create(**ask, stream=True, extra_body={"return_token_ids": True}):
        prompt = prompt or getattr(chunk, "prompt_token_ids", None)
        ids += getattr(chunk.choices[0], "token_ids", None) or []
        for c in chunk.choices[0].delta.tool_calls or []:
            calls[c.index] = c.function
        finish = chunk.choices[0].finish_reason
    assert ids == choice.token_ids and prompt == answer.prompt_token_ids and finish == "tool_calls"
    assert [(f.name, f.arguments) for f in calls.values()] == [(c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    call = choice.message.tool_calls[0]
    after = client.chat.completions.create(model="student", tools=[WEATHER], temperature=0, max_tokens=16, tool_choice="none",
                                           messages=talk + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "17 C"}])
    print(f"openai {openai.__version__}: chat: {call.function.name}({call.function.arguments}), streamed as at once; after its result: {after.choices[0].message.content!r}")
    for bad, param in ((dict(tool_choice="required"), "tool_choice"), (dict(extra_body={"prompt_logprobs": 65}), "prompt_logprobs")):
        try:
            client.chat.completions.create(**(ask | bad))
            sys.exit(f"trainers.py: {param} is not refused")
        except openai.BadRequestError as e:
            assert e.body["param"] == param
            print(f"openai {openai.__version__}: {type(e).__name__}: {e.body['message']}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gad", default="gad", help="the gad binary")
    p.add_argument("--model", required=True, help="a folder of transformers with the control tokens of ChatML")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        templated(o.model, folder)
        with Server(o.gad, folder) as s:
            openai_package(s.url)
            trl_client(s.url, folder)


if __name__ == "__main__":
    main()
