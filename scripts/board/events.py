"""Compares a run's TensorBoard events with its metrics.jsonl, as TensorBoard's own reader and trackio's own importer
read them. By hand: pip install tensorboard 'trackio[tensorboard]'; python events.py RUN"""
import glob, json, math, os, sqlite3, struct, sys, tempfile

run = sys.argv[1]
f32 = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
want = {}
for line in open(os.path.join(run, "metrics.jsonl")):
    r = json.loads(line)
    want.update({(r["step"], k): f32(float(v)) for k, v in r.items() if k not in ("step", "time")})


def compare(who, seen):
    differ = sum(1 for k, x in want.items() if k not in seen or not (seen[k] == x or math.isnan(seen[k]) and math.isnan(x)))
    print(f"{who}: {len(want)} values, {differ} missing or different, {len(set(seen) - set(want))} too many")


import tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

acc = EventAccumulator(os.path.join(run, "tb"), size_guidance={"scalars": 0})
acc.Reload()
compare(f"tensorboard {tensorboard.version.VERSION if hasattr(tensorboard, 'version') else ''}", {(e.step, t): e.value for t in acc.Tags()["scalars"] for e in acc.Scalars(t)})

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()
os.environ["HF_HUB_OFFLINE"] = "1"
import trackio

trackio.import_tf_events(log_dir=os.path.join(run, "tb"), project="gad", name="run")
seen = {}
for db in glob.glob(os.environ["TRACKIO_DIR"] + "/*.db"):
    for step, text in sqlite3.connect(db).execute("select step, metrics from metrics"):
        seen.update({(step, k): float(v) for k, v in json.loads(text).items()})
compare(f"trackio {trackio.__version__}", seen)
