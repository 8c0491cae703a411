#!/usr/bin/env python3
"""Writes data/testdata/street: the same rows as five programs write them, each in ten forms.

Needs duckdb, polars, pandas, datasets and pyarrow; the versions are in VERSIONS there. The test is
TestStreetFiles in data.
"""
import json
import os
import shutil
import sys

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

OUT = sys.argv[1] if len(sys.argv) > 1 else "data/testdata/street"
shutil.rmtree(OUT, ignore_errors=True)
os.makedirs(OUT)

TEXTS = ["plain", "two\nlines", "quote \" and 'single'", "été 日本語 👩‍👩‍👧", "", "tab\tand, comma",
         "[1, 2]", "{\"json\": true}", " blank around ", "return\r\nfeed"]
chat = [{"messages": [{"role": "user", "content": f"q{i} {TEXTS[i % 10]}"},
                      {"role": "assistant", "content": f"a{i} {TEXTS[(i + 3) % 10]}"}]
         + ([{"role": "user", "content": "more"}, {"role": "assistant", "content": f"b{i}"}]
            if i % 4 == 1 else [])} for i in range(24)]
qa = [{"question": f"q{i} {TEXTS[i % 10]}", "answer": f"a{i} {TEXTS[(i + 3) % 10]}",
       "system": None if i % 3 else f"s{i}"} for i in range(24)]


def lines(name, rows):
    with open(os.path.join(OUT, name), "w") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")


lines("chat.jsonl", chat)
lines("qa.jsonl", qa)


def path(writer, kind, form, ext):
    return os.path.join(OUT, f"{writer}-{kind}-{form}.{ext}")


chat_table, qa_table = pa.Table.from_pylist(chat), pa.Table.from_pylist(qa)

# duckdb
con = duckdb.connect()
con.register("chat", chat_table)
con.register("qa", qa_table)
for kind in ("chat", "qa"):
    for form, how in {"snappy": "codec 'snappy'", "zstd": "codec 'zstd'", "none": "codec 'uncompressed'",
                      "v2": "parquet_version v2"}.items():
        con.sql(f"COPY {kind} TO '{path('duckdb', kind, form, 'parquet')}' (FORMAT parquet, {how})")
con.sql(f"COPY chat TO '{path('duckdb', 'chat', 'lines', 'jsonl')}' (FORMAT json)")
con.sql(f"COPY qa TO '{path('duckdb', 'qa', 'table', 'csv')}' (HEADER)")

# polars
for kind, rows in (("chat", chat), ("qa", qa)):
    df = pl.DataFrame(rows)
    df.write_parquet(path("polars", kind, "zstd", "parquet"))
    df.write_parquet(path("polars", kind, "none", "parquet"), compression="uncompressed", row_group_size=7)
    df.write_ipc(path("polars", kind, "file", "arrow"))
    df.write_ipc(path("polars", kind, "zstd", "arrow"), compression="zstd")
    df.write_ipc_stream(path("polars", kind, "stream", "arrow"))

# pandas
for kind, rows in (("chat", chat), ("qa", qa)):
    df = pd.DataFrame(rows)
    df.to_parquet(path("pandas", kind, "snappy", "parquet"))
    df.to_parquet(path("pandas", kind, "gzip", "parquet"), compression="gzip", index=False)
    df.to_json(path("pandas", kind, "lines", "jsonl"), orient="records", lines=True)
    df.to_json(path("pandas", kind, "lines", "jsonl.gz"), orient="records", lines=True)
df = pd.DataFrame(qa)
df.to_csv(path("pandas", "qa", "table", "csv"), index=False, lineterminator="\n")
df.to_json(path("pandas", "qa", "array", "json"), orient="records")

# datasets
for kind, rows in (("chat", chat), ("qa", qa)):
    ds = datasets.Dataset.from_list(rows)
    ds.to_parquet(path("datasets", kind, "own", "parquet"))
    ds.to_json(path("datasets", kind, "lines", "jsonl"), force_ascii=False)
    loaded = datasets.load_dataset("json", data_files=os.path.join(OUT, f"{kind}.jsonl"), split="train",
                                   cache_dir=os.path.join(OUT, "cache"))
    loaded.to_parquet(path("datasets", kind, "loaded", "parquet"))
    saved = os.path.join(OUT, f"datasets-{kind}-saved")
    ds.save_to_disk(saved)
    typed = ds.cast(datasets.Features({c: datasets.Json() for c in ds.column_names})) \
        if hasattr(datasets, "Json") and kind == "chat" else loaded
    if typed is not loaded:
        typed.to_parquet(path("datasets", kind, "json", "parquet"))
    else:
        ds.to_csv(path("datasets", kind, "table", "csv"), index=False)
shutil.rmtree(os.path.join(OUT, "cache"), ignore_errors=True)

# pyarrow
for kind, table in (("chat", chat_table), ("qa", qa_table)):
    pq.write_table(table, path("pyarrow", kind, "snappy", "parquet"))
    pq.write_table(table, path("pyarrow", kind, "v2", "parquet"), data_page_version="2.0",
                   compression="brotli", row_group_size=5)
    with pa.ipc.new_file(path("pyarrow", kind, "file", "arrow"), table.schema) as w:
        w.write_table(table)
    with pa.ipc.new_stream(path("pyarrow", kind, "stream", "arrow"), table.schema) as w:
        w.write_table(table, max_chunksize=5)
    feather.write_feather(table, path("pyarrow", kind, "lz4", "feather"))
# keys of turns that are null in every row
turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("name", pa.null()),
                  ("tool_calls", pa.null())])
nulls = pa.Table.from_pylist(chat, schema=pa.schema([("messages", pa.list_(turn))]))
pq.write_table(nulls, path("pyarrow", "chat", "nulls", "parquet"))
with pa.ipc.new_file(path("pyarrow", "chat", "nulls", "arrow"), nulls.schema) as w:
    w.write_table(nulls)

# thoughts under other keys than reasoning_content: of turns, of columns, in parts
thoughts = os.path.join(OUT, "..", "thoughts")
os.makedirs(thoughts, exist_ok=True)


def thought_files(name, rows, schema):
    with open(os.path.join(thoughts, name + ".jsonl"), "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, os.path.join(thoughts, name + ".parquet"))
    with pa.ipc.new_file(os.path.join(thoughts, name + ".arrow"), table.schema) as w:
        w.write_table(table)


for key in ("thinking", "reasoning", "reasoning_content"):
    ask = {"role": "user", "content": "2+2"}
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), (key, pa.string())])
    thought_files("turns_" + key, [
        {"messages": [ask, {"role": "assistant", "content": "4", key: "two and two"}]},
        {"messages": [ask, {"role": "assistant", "content": "4"}]}],
        pa.schema([("messages", pa.list_(turn))]))
    thought_files("column_" + key, [
        {"content": "2+2", "teacher_response": "4", key: "two and two"},
        {"content": "3+3", "teacher_response": "6", key: "three"}],
        pa.schema([("content", pa.string()), ("teacher_response", pa.string()), (key, pa.string())]))
part = pa.struct([("type", pa.string()), ("text", pa.string()), ("thinking", pa.string())])
thought_files("parts", [{"messages": [
    {"role": "user", "content": [{"type": "text", "text": "2+2"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "two and two"},
                                      {"type": "text", "text": "4"}]}]}],
    pa.schema([("messages", pa.list_(pa.struct([("role", pa.string()),
                                                ("content", pa.list_(part))])))]))

with open(os.path.join(OUT, "VERSIONS"), "w") as f:
    for m in (datasets, duckdb, pd, pl, pa):
        f.write(f"{m.__name__} {m.__version__}\n")
