#!/usr/bin/env bash
# Does the demo's game win at other seeds? Runs `gad demo` at seeds FROM to TO, two
# at a time with one thread each, and prints what came out, a line a seed, and in
# how many the game won: above both rows of SFT at temperature 1, with 95 %
# intervals that do not overlap.
#
#   scripts/demo_seeds.sh FOLDER [FROM [TO]] [-- FLAG...]    FLAG: for gad demo, as --fast
#
# A seed of which FOLDER holds a demo.json is not run again. GAD names a gad binary
# (default: built here), JOBS how many run at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd) from=1 to=11
shift
[ $# -eq 0 ] || [ "$1" = -- ] || { from=$1 to=$1; shift; }
[ $# -eq 0 ] || [ "$1" = -- ] || { to=$1; shift; }
[ $# -eq 0 ] || shift

gad=${GAD:-$folder/gad}
[ -n "${GAD:-}" ] || go build -o "$gad" ./cmd/gad

one() {
  local seed=$1
  shift
  [ -f "$folder/$seed/demo.json" ] && return
  GOMAXPROCS=1 "$gad" demo --dir "$folder/$seed" --seed "$seed" --threads 1 "$@" >"$folder/$seed.out" 2>"$folder/$seed.err" ||
    echo "seed $seed: exit status $?: see $folder/$seed.err" >&2
}
for ((seed = from; seed <= to; seed++)); do
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-2}" ]; do wait -n; done
  one "$seed" "$@" &
done
wait

# The rows of demo.json are written one field a line.
awk -v from="$from" -v to="$to" -v folder="$folder" '
  function field(line) { sub(/^[^:]*: */, "", line); gsub(/[",]/, "", line); return line }
  BEGIN {
    format = "%4s  %11s %11s %11s  %11s %11s %11s  %s\n"
    printf format, "seed", "sft", "sft equal", "gad", "greedy: sft", "sft equal", "gad", ""
    for (seed = from; seed <= to; seed++) {
      file = folder "/" seed "/demo.json"; stage = ""; ci = 0; split("", v)
      while ((getline line < file) > 0) {
        if (line ~ /"stage":/) stage = field(line)
        else if (line ~ /"valid_t1":/) v[stage, "t1"] = field(line)
        else if (line ~ /"valid_greedy":/) v[stage, "greedy"] = field(line)
        else if (line ~ /"valid_t1_ci95":/) ci = 1
        else if (ci == 1) { v[stage, "low"] = field(line); ci = 2 }
        else if (ci == 2) { v[stage, "high"] = field(line); ci = 0 }
      }
      close(file)
      if (stage == "") { printf "%4d  no result\n", seed; runs++; continue }
      win = v["gad", "low"] + 0 > v["sft", "high"] + 0 && v["gad", "low"] + 0 > v["sft-equal-compute", "high"] + 0
      runs++; wins += win
      printf format, seed, pc(v["sft", "t1"]), pc(v["sft-equal-compute", "t1"]), pc(v["gad", "t1"]),
        pc(v["sft", "greedy"]), pc(v["sft-equal-compute", "greedy"]), pc(v["gad", "greedy"]), win ? "wins" : "does not win"
    }
    printf "the game wins at %d of %d seeds\n", wins, runs
  }
  function pc(x) { return sprintf("%.1f %%", 100 * x) }'
