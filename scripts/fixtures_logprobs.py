"""Writes testdata/logprobs/served.*: rows with log-probabilities of the teacher's tokens, as an
OpenAI-format server gives them, written by pyarrow as JSON lines, Arrow and Parquet.

    python scripts/fixtures_logprobs.py [testdata/logprobs]

In served.jsonl the column is what such a server's choices[0].logprobs.content is; in
served.arrow and served.parquet the same as nested lists and structs, with null where a row or
a token has none; served_text.parquet has its JSON as a text.
"""

import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq


def scored(token, logprob, *top, data=None):
    data = list(token.encode()) if data is None else data
    return dict(token=token, logprob=logprob, bytes=data,
                top_logprobs=[dict(token=t, logprob=p, bytes=b) for t, p, b in top])


def plain(*pairs):
    return [(t, p, list(t.encode())) for t, p in pairs]


ROWS = [
    # é is two bytes, which two tokens write; the server renders each as it can
    ("Say cafe in French", "caf\u00e9.", [
        scored("caf", -.125, *plain(("caf", -.125), ("Caf", -2.5))),
        scored("\\xc3", -.25, ("\\xc3", -.25, [195]), *plain(("e", -1.75)), data=[195]),
        scored("\\xa9", 0.0, ("\\xa9", 0.0, [169]), data=[169]),
        scored(".", -.5, *plain((".", -.5), ("!", -1.5)), ("<end>", -3.25, None))]),
    ("Say nothing more", "no", None),
    ("Say it at once", "once", [scored("once", -9999.0, *plain(("now", -.0625)))]),
    ("Say another", "two", [scored("one", -.5, *plain(("one", -.5)))]),
]


def main(folder):
    names = ["content", "teacher_response", "teacher_logprobs"]
    rows = [dict(zip(names, r)) for r in ROWS]
    (folder / "served.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(folder / "served.arrow", table.schema) as out:
        out.write_table(table)
    pq.write_table(table, folder / "served.parquet")
    text = [None if r[names[2]] is None else json.dumps(r[names[2]]) for r in rows]
    pq.write_table(table.set_column(2, names[2], pa.array(text)), folder / "served_text.parquet")
    print("pyarrow", pa.__version__)


main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "testdata/logprobs"))
