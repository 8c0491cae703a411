"""Takes the metrics of real runs into testdata/runs, which internal/report's TestCorpus reads.

    python scripts/fixtures_runs.py healthy|sick FOLDER...    # run folders

Times, speeds and memory are left out, numbers are rounded to 4 digits, the file is compressed.
testdata/runs/README.md says how each run was made.
"""

import gzip
import json
import pathlib
import sys

kind, folders = sys.argv[1], sys.argv[2:]
out = pathlib.Path(__file__).parent.parent / "testdata" / "runs" / kind
out.mkdir(parents=True, exist_ok=True)


def timing(name):
    return name.startswith(("timing_s/", "perf/")) or name.endswith("/tokens_per_s") or name == "time"


for folder in map(pathlib.Path, folders):
    lines = []
    for line in open(folder / "metrics.jsonl", encoding="utf-8"):
        row = {k: v for k, v in json.loads(line).items() if not timing(k)}
        row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    name = folder.name if folder.name != "run" else folder.parent.name
    with open(out / (name + ".jsonl.gz"), "wb") as f:
        f.write(gzip.compress("".join(lines).encode(), 9, mtime=0))
