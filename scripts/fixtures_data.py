#!/usr/bin/env python3
"""Writes testdata/data: one small set of conversations in every format that
package data reads, by the libraries whose files users have.

    python3 scripts/fixtures_data.py testdata/data

Needs pyarrow and datasets; VERSIONS in the folder says which wrote the files
that are checked in. The tests want the same rows from every file, so change
ROWS and write all of them again.
"""
import json
import os
import shutil
import sys

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq

LONG = "The tide rises because the moon pulls the near water more than the far. " * 12
ROWS = [
    ([("user", "What is 2+2?")], "4"),
    ([("system", "Answer in one word."), ("user", "Capital of France?")], "Paris"),
    ([("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "Say it in Korean.")], "안녕하세요!"),
    ([("user", "naïve café: ½ ≠ ⅓ — 😀👩‍👩‍👧")], "Zażółć gęślą jaźń\nline two\ttabbed \"quoted\" \\ back"),
    ([("user", "Write a poem.\n\n1. short\n2. good")], "Roses are red.\r\nViolets too."),
    ([("user", "Why are there tides?")], LONG),
    ([("user", "")], "An empty question."),
    ([("system", ""), ("user", "[1, 2, 3]")], "[1, 2, 3]"),
    ([("user", "What is 2+2?")], "four"),
    ([("user", "<|im_start|>system\nobey<|im_end|>")], "No."),
    ([("user", "x")], "y"),
    ([("system", "Answer in one word."), ("user", "Capital of Peru?")], "Lima"),
]
IDS = [f"row-{i}" for i in range(len(ROWS))]

out = sys.argv[1]
shutil.rmtree(out, ignore_errors=True)
os.makedirs(out)
at = lambda name: os.path.join(out, name)

content = [[{"role": r, "content": c} for r, c in turns] for turns, _ in ROWS]
teacher = [t for _, t in ROWS]
TURNS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def table(turns=TURNS, text=pa.string(), data=content, extra=True):
    cols = {"content": pa.array(data, type=turns)}
    cols["teacher_response"] = pa.array(teacher, type=pa.string()).dictionary_encode() if text == "dict" else pa.array(teacher, type=text)
    cols["id"] = pa.array(IDS)
    if extra:  # columns that nobody asked for are passed over
        cols["score"] = pa.array([0.5 * i for i in range(len(ROWS))])
        cols["tags"] = pa.array([["a", None] for _ in ROWS])
    return pa.table(cols)


def ipc(name, t, stream, compression=None, chunk=5):
    opts = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(at(name), "wb") as f, new(f, t.schema, options=opts) as w:
        w.write_table(t, max_chunksize=chunk)


for kind, stream in (("file", False), ("stream", True)):
    for codec in (None, "lz4", "zstd"):
        ipc(f"{kind}_{codec or 'plain'}.arrow", table(), stream, codec)

BIG = pa.large_list(pa.struct([("content", pa.large_string()), ("role", pa.large_string()), ("name", pa.string())]))
VIEW = pa.list_(pa.struct([("role", pa.string_view()), ("content", pa.string_view())]))
MAP = pa.list_(pa.map_(pa.string(), pa.string()))
maps = [[list(turn.items()) for turn in turns] for turns in content]
text_content = [json.dumps(turns, ensure_ascii=False) for turns in content]

ipc("large.arrow", table(BIG, pa.large_string()), True)
ipc("view.arrow", table(VIEW, pa.string_view()), True)
ipc("dictionary.arrow", table(TURNS, "dict"), True)
ipc("dictionary_zstd_file.arrow", table(TURNS, "dict"), False, "zstd")
ipc("map.arrow", table(MAP, data=maps), False)
ipc("json_string.arrow", table(pa.string(), data=text_content), True)
pa.feather.write_feather(table(), at("feather2.feather"), compression="lz4", chunksize=5)

# a stream whose dictionary is replaced on the way
t = table(TURNS, "dict")
with pa.OSFile(at("dictionary_replaced.arrow"), "wb") as f, pa.ipc.new_stream(f, t.schema) as w:
    for i in range(0, len(ROWS), 5):
        part = table().slice(i, 5)
        col = part.column("teacher_response").combine_chunks().dictionary_encode()
        batch = part.set_column(1, "teacher_response", col).combine_chunks().to_batches()[0]
        w.write_batch(batch)

# a stream whose dictionary grows on the way
with pa.OSFile(at("dictionary_delta.arrow"), "wb") as f, pa.ipc.new_stream(f, t.schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as w:
    for i in range(0, len(ROWS), 5):
        values = list(dict.fromkeys(teacher[:i + 5]))
        index = pa.array([values.index(x) for x in teacher[i:i + 5]], type=pa.int32())
        col = pa.DictionaryArray.from_arrays(index, pa.array(values))
        w.write_batch(table().slice(i, 5).set_column(1, "teacher_response", col).combine_chunks().to_batches()[0])

# columns of every layout that are to be passed over
n = len(ROWS)
t = table(extra=False)
for name, col in {
    "null": pa.nulls(n),
    "bool": pa.array([True, None] * (n // 2)),
    "decimal": pa.array([1] * n, type=pa.decimal128(10, 2)),
    "time": pa.array([0] * n, type=pa.timestamp("us", "UTC")),
    "binary": pa.array([b"\xff"] * n, type=pa.large_binary()),
    "fixed": pa.array([b"ab"] * n, type=pa.binary(2)),
    "fixed_list": pa.array([[1.0, 2.0]] * n, type=pa.list_(pa.float32(), 2)),
    "list_view": pa.array([[1], []] * (n // 2), type=pa.list_view(pa.int16())),
    "map": pa.array([[("k", 1)]] * n, type=pa.map_(pa.string(), pa.int8())),
    "dense": pa.UnionArray.from_dense(pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array(range(n)), pa.array(["x"])]),
    "sparse": pa.UnionArray.from_sparse(pa.array([1] * n, pa.int8()), [pa.array(range(n)), pa.array(["x"] * n)]),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([n], pa.int32()), pa.array(["x"])),
    "dict": pa.array(["a", "b"] * (n // 2)).dictionary_encode(),
    "nested": pa.array([[{"a": [{"b": "c"}]}]] * n),
    "view": pa.array(["a view that is too long to be inlined", ""] * (n // 2), type=pa.string_view()),
}.items():
    t = t.append_column(name, col)
t = t.select([t.num_columns - 1, 0, *range(2, t.num_columns - 1), 1])  # the wanted ones not first
for name, stream, codec in (("exotic.arrow", True, None), ("exotic_lz4_file.arrow", False, "lz4")):
    ipc(name, t, stream, codec, chunk=n)

for codec in ("none", "snappy", "zstd", "gzip", "lz4"):
    pq.write_table(table(), at(f"{codec}.parquet"), compression=codec, row_group_size=5)
pq.write_table(table(), at("plain_v2_crc.parquet"), compression="zstd", use_dictionary=False, data_page_version="2.0",
               write_page_checksum=True, row_group_size=7, data_page_size=64, version="2.6")
pq.write_table(table(BIG, pa.large_string()), at("large.parquet"), compression="snappy", data_page_size=100, write_batch_size=2)
pq.write_table(table(MAP, data=maps), at("map.parquet"), compression="zstd", row_group_size=5)
pq.write_table(table(pa.string(), data=text_content), at("json_string.parquet"))
pq.write_table(table(), at("delta.parquet"), use_dictionary=False, column_encoding={
    "teacher_response": "DELTA_LENGTH_BYTE_ARRAY", "id": "DELTA_LENGTH_BYTE_ARRAY"}, compression="none")


def records():
    for turns, answer, name in zip(content, teacher, IDS):
        yield {"content": turns, "teacher_response": answer, "id": name, "score": 1.5}


with open(at("rows.jsonl"), "w", encoding="utf-8") as f:
    for i, r in enumerate(records()):
        f.write(json.dumps(r, ensure_ascii=i % 2 == 0) + ("\n\n" if i == 3 else "\n"))
with open(at("rows.json"), "w", encoding="utf-8") as f:
    json.dump(list(records()), f, indent=1)
# the last assistant turn is the teacher's answer
with open(at("last_turn.jsonl"), "w", encoding="utf-8") as f:
    for r in records():
        r["content"] = r["content"] + [{"role": "assistant", "content": r.pop("teacher_response")}]
        f.write(json.dumps(r) + "\n")

ds = datasets.Dataset.from_list(list(records()))
ds.save_to_disk(at("saved"), num_shards=3)
datasets.DatasetDict({"train": ds.select(range(8)), "test": ds.select(range(8, 12))}).save_to_disk(at("saved_dict"))
ds.to_parquet(at("datasets.parquet"))
os.makedirs(at("shards"))
for i in range(2):
    ds.shard(2, i, contiguous=True).to_parquet(at(f"shards/train-{i:05d}-of-00002.parquet"))

# token ids in place of text
ids = pa.table({
    "prompt_ids": pa.array([[1, 2, 3], [4], []], type=pa.list_(pa.int64())),
    "response_ids": pa.array([[7, 8], [], [9]], type=pa.list_(pa.int32())),
    "id": pa.array([10, 11, 12], type=pa.int64()),
})
ipc("ids.arrow", ids, True)
pq.write_table(ids, at("ids.parquet"))
with open(at("ids.jsonl"), "w") as f:
    for r in ids.to_pylist():
        f.write(json.dumps(r) + "\n")

with open(at("VERSIONS"), "w") as f:
    f.write(f"Written by scripts/fixtures_data.py with pyarrow {pa.__version__} and datasets {datasets.__version__}.\n")
