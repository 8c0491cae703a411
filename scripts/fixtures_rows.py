#!/usr/bin/env python3
"""Writes testdata/rows: the rows of testdata/data/rows.jsonl in the formats of
rows that other tools use, and in encodings of Parquet that fixtures_data.py
leaves out.

    python3 scripts/fixtures_rows.py testdata/data/rows.jsonl testdata/rows

Needs pyarrow; VERSIONS in the folder says which wrote the files that are checked
in. The tests want the same digest from every file but alpaca.*, which cannot hold
conversations, and the CSV files, where gad reads a line end as \\n.
"""
import csv
import json
import os
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq

source, out = sys.argv[1:]
with open(source, encoding="utf-8") as f:
    rows = [json.loads(line) for line in f if line.strip()]
shutil.rmtree(out, ignore_errors=True)
os.makedirs(out)
at = lambda name: os.path.join(out, name)


def write(name, rows, **parquet):
    table = pa.Table.from_pylist(rows)
    with open(at(name + ".jsonl"), "w", encoding="utf-8") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")
    with pa.OSFile(at(name + ".arrow"), "wb") as f, pa.ipc.new_file(f, table.schema) as w:
        w.write_table(table, max_chunksize=5)
    pq.write_table(table, at(name + ".parquet"), row_group_size=5, **parquet)


# formats of rows
names = {"user": "human", "assistant": "gpt", "system": "system"}
answer = lambda r: {"role": "assistant", "content": r["teacher_response"]}
write("sharegpt", [{"id": r["id"], "conversations": [{"from": names[t["role"]], "value": t["content"]} for t in r["content"] + [answer(r)]]} for r in rows])
write("messages", [{"id": r["id"], "messages": r["content"] + [answer(r)]} for r in rows])
write("prompt_completion", [{"id": r["id"], "prompt": r["content"], "completion": [answer(r)]} for r in rows])
write("alpaca", [
    {"instruction": "Add the numbers.", "input": "4 7 3", "output": "14", "system": None},
    {"instruction": "Name a colour.", "input": "", "output": "red"},
    {"instruction": "Translate to French.", "input": "cat", "output": "chat", "system": "Answer in one word."},
])

# CSV and TSV hold text alone: a conversation is its JSON
for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t"), ("semicolon.csv", ";")):
    with open(at(name), "w", encoding="utf-8-sig" if delimiter == ";" else "utf-8", newline="") as f:
        w = csv.writer(f, delimiter=delimiter)
        w.writerow(["content", "teacher_response", "id"])
        for r in rows:
            w.writerow([json.dumps(r["content"]), r["teacher_response"], r["id"]])

# encodings
table = pa.Table.from_pylist([{k: r[k] for k in ("content", "teacher_response", "id")} for r in rows])
prefix = {"content.list.element.role": "DELTA_BYTE_ARRAY", "content.list.element.content": "DELTA_BYTE_ARRAY",
          "teacher_response": "DELTA_BYTE_ARRAY", "id": "DELTA_BYTE_ARRAY"}
pq.write_table(table, at("brotli.parquet"), compression="brotli", row_group_size=5)
pq.write_table(table, at("delta_byte_array.parquet"), compression="none", use_dictionary=False, column_encoding=prefix, row_group_size=7)
pq.write_table(table, at("delta_byte_array_v2.parquet"), compression="zstd", use_dictionary=False, column_encoding=prefix,
               data_page_version="2.0", data_page_size=64, write_batch_size=2, version="2.6")
many = pa.table({  # longer than a block of 128 differences, with nulls
    "content": [f"https://example.org/a/long/common/prefix/{i:05d}" for i in range(1000)],
    "teacher_response": [None if i % 10 == 0 else "the same beginning " + "x" * (i % 40) for i in range(1000)],
    "id": pa.array(range(-500, 500), type=pa.int64()),
})
pq.write_table(many, at("many_plain.parquet"), compression="zstd")
pq.write_table(many, at("many_delta.parquet"), compression="brotli", use_dictionary=False, column_encoding={
    "content": "DELTA_BYTE_ARRAY", "teacher_response": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"})

# an id that is not read must not stop the file
number = table.set_column(2, "id", pa.array(range(len(rows)), type=pa.int64()))
pq.write_table(number, at("id_stream_split.parquet"), use_dictionary=False, column_encoding={"id": "BYTE_STREAM_SPLIT"})
struct = table.set_column(2, "id", pa.array([{"a": i} for i in range(len(rows))]))
pq.write_table(struct, at("id_struct.parquet"))
with pa.OSFile(at("id_struct.arrow"), "wb") as f, pa.ipc.new_file(f, struct.schema) as w:
    w.write_table(struct)

with open(at("VERSIONS"), "w") as f:
    f.write(f"Written by scripts/fixtures_rows.py with pyarrow {pa.__version__}.\n")
