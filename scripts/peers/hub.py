"""Compares gad pull with Python's huggingface_hub, on a hub that the tests run on the loopback
interface: scripts/peers/hub.sh.

Arguments: the gad binary, the hub's address, an empty folder. Exits with 1 at the first
difference; the last line is {"Version": of huggingface_hub, "Checks": number that agree}.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

gad, url, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
os.environ.update(HF_ENDPOINT=url, HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HOME=str(work / "home"))
os.environ.pop("HF_HUB_CACHE", None)

import huggingface_hub  # noqa: E402: it reads the environment
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download  # noqa: E402

checks = 0
PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def agree(what, got, want):
    global checks
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")
    checks += 1


def contents(folder):
    """Files of a snapshot: name, bytes, and what the link to the blob says."""
    return {str(p.relative_to(folder)): (p.read_bytes(), os.readlink(p)) for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def blobs(cache):
    return sorted(str(p.relative_to(cache)) for p in Path(cache).glob("*--*/blobs/*"))


def run(cache, *args, **more):
    env = dict(os.environ, HF_HUB_CACHE=str(cache), **more)
    done = subprocess.run([gad, *args], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gad {' '.join(args)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


DEAD = {"HF_ENDPOINT": "http://127.0.0.1:1"}  # whoever asks it fails
theirs, ours = work / "theirs", work / "ours"

# The same repository by both, each into an empty cache.
a = snapshot_download("org/student", cache_dir=theirs, allow_patterns=PATTERNS)
b = run(ours, "pull", "org/student")
agree("names of the snapshots", Path(a).relative_to(theirs), Path(b).relative_to(ours))
agree("bytes and links", contents(b), contents(a))
agree("blobs", blobs(ours), blobs(theirs))
agree("refs/main", (ours / "models--org--student/refs/main").read_bytes(), (theirs / "models--org--student/refs/main").read_bytes())
g = hf_hub_download("org/M-GGUF", "sub/M-Q8_0.gguf", cache_dir=theirs)
h = run(ours, "pull", "org/M-GGUF:Q8_0")
agree("one file", Path(h).read_bytes(), Path(g).read_bytes())
agree("its path", Path(h).relative_to(ours), Path(g).relative_to(theirs))
agree("its link", os.readlink(h), os.readlink(g))
d = snapshot_download("org/rows", repo_type="dataset", cache_dir=theirs)
e = run(ours, "pull", "--dataset", "org/rows")
agree("a data set", contents(e), contents(d))

# gad finds what Python has fetched, without a hub.
agree("gad offline in Python's cache", run(theirs, "pull", "org/student", HF_HUB_OFFLINE="1"), a)
agree("gad offline, one file", run(theirs, "pull", "org/M-GGUF:Q8_0", HF_HUB_OFFLINE="1"), g)
one = run(theirs, "generate", "--model", "org/student", "--prompt", "a", "--max-new-tokens", "4", **DEAD)
two = run(ours, "generate", "--model", "org/student", "--prompt", "a", "--max-new-tokens", "4", **DEAD)
agree("gad generate from both caches", one, two)

# With the hub, gad fetches nothing of what Python has fetched.
before = {p: p.stat().st_mtime_ns for p in theirs.glob("models--*/blobs/*")}
agree("gad pull in Python's cache", run(theirs, "pull", "org/student"), a)
agree("its blobs", {p: p.stat().st_mtime_ns for p in theirs.glob("models--*/blobs/*")}, before)

# Python finds what gad has fetched, without a hub, and its own tools read the cache.
agree("snapshot_download offline in gad's cache", snapshot_download("org/student", cache_dir=ours, local_files_only=True), b)
agree("hf_hub_download offline in gad's cache", hf_hub_download("org/M-GGUF", "sub/M-Q8_0.gguf", cache_dir=ours, local_files_only=True), h)
agree("a data set offline", snapshot_download("org/rows", repo_type="dataset", cache_dir=ours, local_files_only=True), e)
info, want = scan_cache_dir(ours), scan_cache_dir(theirs)
agree("scan_cache_dir: warnings", info.warnings, [])
size = lambda cache: sorted((r.repo_id, r.repo_type, r.nb_files, r.size_on_disk, sorted(r.refs)) for r in cache.repos)  # noqa: E731
agree("scan_cache_dir", size(info), size(want))
mtimes = {p: p.stat().st_mtime_ns for p in ours.glob("models--*/blobs/*")}
agree("snapshot_download in gad's cache", snapshot_download("org/student", cache_dir=ours, allow_patterns=PATTERNS), b)
agree("its blobs", {p: p.stat().st_mtime_ns for p in ours.glob("models--*/blobs/*")}, mtimes)

# A download that gad has begun, or an older huggingface_hub: gad continues it, Python does not mind it.
blob = Path(os.path.realpath(h))
whole = blob.read_bytes()
blob.with_name(blob.name + ".incomplete").write_bytes(whole[:1_000_000])
blob.unlink()
agree("gad continues", Path(run(ours, "pull", "org/M-GGUF:Q8_0")).read_bytes(), whole)
agree("nothing is left of it", list(blob.parent.glob("*.incomplete")), [])
blob.with_name(blob.name + ".incomplete").write_bytes(whole[:1_000_000])
blob.unlink()
agree("Python fetches it", Path(hf_hub_download("org/M-GGUF", "sub/M-Q8_0.gguf", cache_dir=ours, force_download=True)).read_bytes(), whole)

# The lock is the same: gad waits while Python holds it.
from filelock import FileLock  # noqa: E402

lock = ours / ".locks" / "models--org--M-GGUF" / f"{blob.name}.lock"
blob.unlink()
with FileLock(lock):
    waiting = subprocess.Popen([gad, "pull", "org/M-GGUF:Q8_0"], env=dict(os.environ, HF_HUB_CACHE=str(ours)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = waiting.stderr.readline()
    agree("gad waits for the lock", "another program is fetching it: waiting" in line, True)
    agree("meanwhile", blob.exists(), False)
out, err = waiting.communicate(timeout=60)
agree("gad goes on", (waiting.returncode, blob.read_bytes() == whole), (0, True))

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    print("transformers is not there: not tried", file=sys.stderr)
else:
    tok = AutoTokenizer.from_pretrained(b, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained("org/student", cache_dir=ours, local_files_only=True)
    agree("transformers loads gad's cache", model.config.vocab_size >= len(tok), True)

print(json.dumps({"Version": huggingface_hub.__version__, "Checks": checks}))
