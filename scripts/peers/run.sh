#!/usr/bin/env bash
# Every comparison of doc/performance.md with other programs, on this machine, as
# Markdown in one file. About half an hour on two idle cores; nothing else should run.
#
#   scripts/peers/run.sh                     all parts
#   scripts/peers/run.sh gad gad-long        only these parts: see `parts` below
#
#   PEERS_OUT=peers.md       the file that is written; figures of a part come when it ends
#   PEERS_PYTHON=python3     a Python with torch, transformers, safetensors, gguf,
#                            openvino-genai and llama-cpp-python; what it lacks is left out
#   PEERS_OPENVINO_PYTHON=   a Python with optimum-intel, which converts the models for OpenVINO
#   PEERS_WORK=              folder for models, 8 GB, kept; without it a temporary one
#   PEERS_GAD=               the gad binary; without it the repository is built
#   PEERS_ROUNDS=            rounds of each part, instead of the numbers below
#   PEERS_TINY=1             tiny shapes, to test this script
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
parts=(sft generate gad gad-long products decode start check)

for part in "$@"; do
  [[ " ${parts[*]} " == *" $part "* ]] || { echo "scripts/peers/run.sh: part \"$part\": use some of ${parts[*]}" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- "${parts[@]}"

out=$(realpath "${PEERS_OUT:-peers.md}")
python=${PEERS_PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
work=${PEERS_WORK:-$scratch}
gad=${PEERS_GAD:-}
if [ -z "$gad" ]; then
  gad=$scratch/gad
  (cd "$here/../.." && go build -o "$gad" ./cmd/gad)
fi

# steps ROUNDS ARGUMENT...: training, and generation as training does it.
steps() { "$python" "$here/cpu.py" --gad "$gad" --rounds "${PEERS_ROUNDS:-$1}" ${PEERS_TINY:+--tiny} "${@:2}"; }

# language ROUNDS SHAPE ARGUMENT...: generation by programs that only generate.
language() {
  local shape=$2
  [ -z "${PEERS_TINY:-}" ] || shape=tiny
  "$python" "$here/generate.py" --gad "$gad" --work "$work" ${PEERS_OPENVINO_PYTHON:+--openvino-python "$PEERS_OPENVINO_PYTHON"} --rounds "${PEERS_ROUNDS:-$1}" --shapes "$shape" "${@:3}"
}

# Minutes are those of two idle cores, about.
sft() { steps 5 --cases sft --modes eager-f32 compile-f32 eager-bf16 compile-bf16 eager-autocast; }                    # 2
generate() { steps 3 --cases generate --modes eager-f32 hf-f32 eager-bf16 hf-bf16; }                                   # 2
gad() { steps 2 --cases gad --modes eager-f32 lean-f32 lean-compile-f32 eager-bf16 lean-bf16 lean-compile-bf16; }      # 8
gad-long() { steps 2 --cases gad-long --modes eager-f32 lean-f32 eager-bf16 lean-bf16; }                               # 10
products() { steps 5 --cases linear rows --modes eager-f32 eager-bf16; }                                               # 2
decode() {                                                                                                             # 10
  local failed=0
  language 3 25m || failed=1
  language 2 361m --temperatures 0 --programs gad llama.cpp openvino || failed=1
  language 2 361m --temperatures 1 --programs gad llama.cpp openvino --new 32 || failed=1
  return $failed
}
start() { language 3 361m --start; }                                                                          # 3
check() {                                                                                                              # 2
  local failed=0
  language 1 25m --check || failed=1
  language 1 361m --check --precisions f32 --programs gad llama.cpp openvino || failed=1
  return $failed
}

# about says what was measured, and on what.
about() {
  echo "# Peers, $(date -u +%F), $("$gad" --version | head -n 1)"
  echo
  "$python" - "$here" <<'PYTHON'
import sys
from importlib import metadata
sys.path.insert(0, sys.argv[1])
import cpu
print(cpu.machine() + "\n")
for name in ("torch", "transformers", "llama-cpp-python", "openvino", "openvino-genai", "gguf", "safetensors", "numpy"):
    try:
        print(f"- {name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        print(f"- {name}: not installed")
PYTHON
}

about >"$out"
failed=()
for part in "$@"; do
  echo "== $part" >&2
  printf '\n## %s\n\n' "$part" >>"$out"
  began=$SECONDS
  "$part" >>"$out" || failed+=("$part")
  printf '\n(%d s)\n' $((SECONDS - began)) >>"$out"
done
echo "$out" >&2
if [ ${#failed[@]} -gt 0 ]; then
  echo "scripts/peers/run.sh: failed: ${failed[*]}" >&2
  exit 1
fi
