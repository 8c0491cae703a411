"""A judge for `gad eval --judge` and `gad rubric` that needs no model: it grades answers to the task
of `gad demo` by rule. It speaks as much of OpenAI's chat completions as that takes, on this machine only.

    python scripts/rule_judge.py [PORT, 8123]
    gad eval --judge http://127.0.0.1:8123/v1 --judge-model rule --model gad-demo/... --data gad-demo/task/test.arrow
    gad train --checker '"$GAD" rubric --base-url http://127.0.0.1:8123/v1 --model rule' ...

Its reference answer is right and walks first. A right answer gets 9, a wrong one 4, anything else
2; of two answers the one with the better grade wins. Its rubrics have one criterion, that of `gad
task check`: the answer is right, and not cut.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAYS = ["north", "east", "south", "west"]
TURNS = {"left": 3, "stay": 0, "right": 1}


def right_answers(prompt):
    """The right answers to a question, walk first and result first; none to what is no question."""
    m = re.fullmatch(r"Facing (\w+), go ((?:\w+ ?)+)", prompt)
    if not m:
        return []
    walk = [m[1]]
    for turn in m[2].split():
        walk.append(WAYS[(WAYS.index(walk[-1]) + TURNS[turn]) % 4])
    path, result = " ".join(walk), walk[-1]
    return [f"By way of {path}, now {result}.", f"Now {result}, by way of {path}."]


def grade(prompt, answer):
    if answer in right_answers(prompt):
        return 9
    return 4 if re.fullmatch(r"(Now \w+, by way of [\w ]+|By way of [\w ]+, now \w+)\.", answer) else 2


def material(text):
    """What stands between the marked lines of a question, by title."""
    mark = re.match(r"<<([0-9a-f]{16}) ", text)
    if not mark:
        return None
    parts = re.split(rf"(?m)^<<{mark[1]} (.*)>>\n", text)
    return {title: body.removesuffix("\n") for title, body in zip(parts[1::2], parts[2::2])}


def grades(prompt, pieces):
    """The grades of the student's answers by the one criterion."""
    answers = [(title, text) for title, text in pieces.items() if re.match(r"answer \d+ of the student", title)]
    return [[text in right_answers(prompt) and "cut at" not in title] for title, text in answers]


def reply(messages):
    pieces = material(messages[1]["content"]) if len(messages) > 1 else None
    if pieces is None:
        return (right_answers(messages[-1]["content"]) or ["I do not know."])[0]
    prompt = pieces["conversation, user"]
    if "criteria" in pieces:
        return json.dumps({"grades": grades(prompt, pieces)})
    if "answer of the teacher" in pieces:
        return json.dumps({"criteria": [{"criterion": "Names every turn of the way, in order, and where it ends, and all of it is right.", "weight": 1}]})
    if "answer of the student" in pieces:
        return json.dumps({"reference": grade(prompt, pieces["reference answer"]), "answer": grade(prompt, pieces["answer of the student"])})
    a, b = grade(prompt, pieces["answer A"]), grade(prompt, pieces["answer B"])
    return json.dumps({"better": "A" if a > b else "B" if b > a else "tie"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = reply(request["messages"])
        body = json.dumps({
            "id": "rule", "object": "chat.completion", "model": "rule",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        }).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = sys.argv[1] if len(sys.argv) > 1 else "8123"
    try:
        server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    except (OSError, OverflowError, ValueError) as e:
        sys.exit(f"rule_judge: port {port}: {e}: give another one: python scripts/rule_judge.py PORT")
    print(f"rule_judge: http://127.0.0.1:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
