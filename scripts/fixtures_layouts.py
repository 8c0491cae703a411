#!/usr/bin/env python3
"""Writes testdata/layouts: rows of our own in the layouts of public data sets, as JSON lines,
Parquet, an Arrow file, and folders of datasets.save_to_disk.

    python3 scripts/fixtures_layouts.py testdata/layouts

Needs pyarrow and datasets (Hugging Face); VERSIONS in the folder says which wrote the files that are checked
in. The tests want the same rows, digest and warnings from every file of a layout.
"""
import json
import os
import shutil
import sys

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

out = sys.argv[1]
shutil.rmtree(out, ignore_errors=True)
os.makedirs(out)
at = lambda name: os.path.join(out, name)

user = lambda text: {"role": "user", "content": text}
assistant = lambda text, **more: {"role": "assistant", "content": text, **more}

layouts = {
    "gpteacher": [
        {"instruction": "Write a function that returns the area of a rectangle.", "input": "width: 5, height: 8", "response": "def area(w, h):\n    return w * h\n\narea(5, 8)  # 40"},
        {"instruction": "Say hello in three languages.", "input": "", "response": "Hello, Hallo, Salut"},
        {"instruction": "Sort the numbers.", "input": "3 1 2", "response": "1 2 3"},
    ],
    "gsm8k": [
        {"question": "A box has 3 rows of 4 eggs. How many eggs are there?", "answer": "There are 3*4=<<3*4=12>>12 eggs.\n#### 12"},
        {"question": "Tom has 5 pens and buys 2. How many has he?", "answer": "He has 5+2=<<5+2=7>>7 pens.\n#### 7"},
        {"question": "Half of 18?", "answer": "18/2=<<18/2=9>>9\n#### 9"},
    ],
    "codealpaca": [
        {"instruction": "Create an array of length 3.", "input": "", "output": "arr = [0] * 3"},
        {"instruction": "What does the code print?", "input": "print(1 + 1)", "output": "2"},
        {"instruction": "Name a loop keyword.", "input": "", "output": "for"},
    ],
    "dolly": [
        {"instruction": "When did the ship sail?", "context": "The ship Anna sailed from Riga in 1871.", "response": "In 1871.", "category": "closed_qa"},
        {"instruction": "Name a fruit.", "context": "", "response": "An apple.", "category": "open_qa"},
        {"instruction": "Who wrote it?", "context": "The letter is signed by Ida.", "response": "Ida.", "category": "information_extraction"},
    ],
    "openai": [
        {"messages": [{"role": "system", "content": "Be brief."}, user("Capital of France?"), assistant("Paris.", weight=0), user("And of Spain?"), assistant("Madrid.", weight=1)]},
        {"messages": [{"role": "system", "content": "Be brief."}, user("2+2?"), assistant("4.", weight=1)]},
        {"messages": [user("Hello"), assistant("Hello.", weight=1), user("Bye"), assistant("Bye.", weight=0)]},
    ],
    "openai_tools": [
        {"messages": [user("Weather in Rome?"), assistant(None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]),
                      {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"}, assistant("It is 21 degrees in Rome.")],
         "tools": [{"type": "function", "function": {"name": "weather", "description": "the weather of a city"}}]},
        {"messages": [user("Hello"), assistant("Hello.")], "tools": [{"type": "function", "function": {"name": "weather", "description": "the weather of a city"}}]},
        {"messages": [user("Bye"), assistant("Bye.")]},
    ],
    "openai_parts": [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name a "}, {"type": "text", "text": "colour."}]}, {"role": "assistant", "content": [{"type": "text", "text": "Red."}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Bye"}]}, {"role": "assistant", "content": [{"type": "text", "text": "Bye."}]}]},
    ],
    "sharegpt_weight": [
        {"id": "a", "conversations": [{"from": "system", "value": "Be brief.", "weight": None}, {"from": "human", "value": "2+3?", "weight": 0.0}, {"from": "gpt", "value": "5.", "weight": 1.0}]},
        {"id": "b", "conversations": [{"from": "human", "value": "Name a bird.", "weight": 0.0}, {"from": "gpt", "value": "A robin.", "weight": 1.0}]},
        {"id": "c", "conversations": [{"from": "human", "value": "Name a tree.", "weight": 0.0}, {"from": "gpt", "value": "An oak.", "weight": 0.0}]},
    ],
    "reasoning": [
        {"messages": [user("5*5?"), assistant("25.", reasoning_content="Five fives are 25.")]},
        {"messages": [user("Hello"), assistant("Hello.")]},
        {"messages": [user("6*6?"), assistant("36.", reasoning_content="Six sixes are 36.")]},
    ],
    "preference": [
        {"prompt": "Name a river.", "chosen": "The Rhine.", "rejected": "I do not know."},
        {"prompt": "Name a lake.", "chosen": "Lake Como.", "rejected": "No."},
        {"prompt": "Name a sea.", "chosen": "The Baltic Sea.", "rejected": "Water."},
    ],
    "preference_turns": [
        {"chosen": [user("Name a river."), assistant("The Rhine.")], "rejected": [user("Name a river."), assistant("No.")], "score_chosen": 8.0},
        {"chosen": [user("Name a lake."), assistant("Lake Como.")], "rejected": [user("Name a lake."), assistant("No.")], "score_chosen": 7.5},
        {"chosen": [user("Name a sea."), assistant("The Baltic Sea.")], "rejected": [user("Name a sea."), assistant("No.")], "score_chosen": 9.0},
    ],
}
layouts["reasoning_map"] = layouts["reasoning"]
types = {"reasoning_map": pa.schema([("messages", pa.list_(pa.map_(pa.string(), pa.string())))])}  # turns as maps
for name, rows in layouts.items():
    with open(at(name + ".jsonl"), "w", encoding="utf-8") as f:
        for r in rows:
            f.write(json.dumps(r, ensure_ascii=False) + "\n")
    if name in types:
        rows = [{"messages": [list(turn.items()) for turn in r["messages"]]} for r in rows]
    table = pa.Table.from_pylist(rows, schema=types.get(name))
    pq.write_table(table, at(name + ".parquet"), row_group_size=2)
    with pa.OSFile(at(name + ".arrow"), "wb") as f, pa.ipc.new_file(f, table.schema) as w:
        w.write_table(table, max_chunksize=2)
for name in ("dolly", "openai"):
    datasets.Dataset(pa.Table.from_pylist(layouts[name])).save_to_disk(at(name + "_saved"), num_shards=2)
with open(at("gpteacher.json"), "w", encoding="utf-8") as f:  # as its authors publish it: one array
    json.dump(layouts["gpteacher"], f, indent=4)

with open(at("VERSIONS"), "w") as f:
    f.write(f"Written by scripts/fixtures_layouts.py with pyarrow {pa.__version__} and datasets {datasets.__version__}.\n")
