#!/usr/bin/env bash
# The long run behind doc/reliability.md: what `go test` does in small, here in
# large. It needs Go and time, and nothing else; it stops at the first part that
# fails, and prints the figures that a part measured.
#
#   scripts/soak.sh                every part
#   scripts/soak.sh kill fuzz      only these parts: see `parts` below
#
#   GAD_KILLS=2000      kill: processes to kill with signal 9
#   GAD_EPISODE_KILLS=50 episodes: on one rank, and again on two
#   GAD_SIGNALS=500     signal: processes to interrupt
#   GAD_STATES=200      crash: crashed states for each operation and share of data kept
#   GAD_STEPS=5000      memory: steps of one process
#   GAD_CASES=1000000   hostile: damaged files for each format
#   GAD_COLLECT=10000   collect: prompts, of a server that allows 1,500 requests a minute
#   GAD_FUZZ=10m        fuzz: time for each target, or a number of executions: 1000000x
#   GAD_FUZZ_ONLY=Arrow fuzz: only targets whose name matches this expression
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GAD_LONG=1

# The names of the parts, in the order in which they run: a part is a function.
parts=(kill episodes signal crash disk memory collect pull hostile fuzz)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }

# rows EXPRESSION PACKAGE...: runs the tests of that name without a time limit and
# prints their lines that begin with a row of doc/reliability.md.
rows() {
  local expression=$1
  shift
  if ! go test -count=1 -timeout 0 -v -run "$expression" "$@" >"$work/log" 2>&1; then
    cat "$work/log"
    return 1
  fi
  if ! grep -o 'row [0-9]*: .*' "$work/log"; then
    echo "scripts/soak.sh: no test of $* matches $expression and prints a figure" >&2
    return 1
  fi
}

# Rows 1 and 11: processes killed with signal 9 at random times, at least a quarter
# inside a save or prune; locks after them.
kill() {
  rows '^TestKill$' ./cmd/gad -kills "${GAD_KILLS:-2000}"
  rows '^TestTwoProcesses$' ./checkpoint
}

# Row 23: processes killed with signal 9 while they play episodes, on one rank and on two.
episodes() {
  rows '^TestKillInEpisodes$' ./cmd/gad -episodekills "${GAD_EPISODE_KILLS:-50}"
}

# Row 10: SIGINT and SIGTERM at random times, a second signal, stops while sampling.
signal() {
  rows '^(TestInterrupt|TestSecondSignal.*)$' ./cmd/gad -signals "${GAD_SIGNALS:-500}"
  rows '^TestStopWhileSampling$' ./trainer
}

# Rows 2, 3 and 18: loss of power and I/O errors at every operation.
crash() {
  rows '^(TestPowerLoss|TestEveryFaultIsReported)$' ./checkpoint -seeds "${GAD_STATES:-200}"
  rows '^(TestRunReportsFaults|TestExportIsWholeOrAbsent)$' ./trainer -faultevery 1
}

# Row 4: every size of disk, in memory and real.
disk() {
  rows '^(TestDiskFull|TestRealDiskFull)$' ./checkpoint
  rows '^TestRunOnAFullDisk$' ./trainer -budgets 256
  rows '^TestDoctorDiskFull$' ./cmd/gad
}

# Row 19: many steps without a stop.
memory() {
  rows '^TestSteadyMemory$' ./cmd/gad -steady "${GAD_STEPS:-5000}"
  GAD_STEPS=${GAD_STEPS:-5000} rows '^TestSteadyHeap$' ./trainer
  rows '^TestRunOutOfMemory$' ./trainer
}

# Row 21: prompts asked of a server that misbehaves, by a program that is killed 50 times.
collect() {
  rows '^TestCollectKill$' ./cmd/gad -collectprompts "${GAD_COLLECT:-10000}" -collectkills 50 -collectrpm 1500
}

# Row 22: models fetched from a hub that misbehaves, onto a disk that fails, by a program that
# is killed.
pull() {
  rows '^Test(Server|Disk)Faults$' ./apps/pull
  rows '^TestPullKill$' ./apps/pull -pullkills "${GAD_PULL_KILLS:-200}"
}

# Rows 12 to 17: damaged files of every format.
hostile() {
  export GAD_CASES=${GAD_CASES:-1000000}
  local package
  for package in ./checkpoint ./internal/safetensors ./internal/conf ./model ./tokenizer ./data; do
    rows '^TestHostile' "$package"
  done
}

# Row 12: the native fuzz targets of every package, one after another. What one
# finds stays in testdata/fuzz of its package, and go test runs it from then on.
fuzz() {
  local file target
  grep -rl --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do
    for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$file"); do
      if ! [[ $target =~ ${GAD_FUZZ_ONLY:-.} ]]; then continue; fi
      if ! GOMAXPROCS=1 go test -run '^$' -fuzz "^$target\$" -fuzztime "${GAD_FUZZ:-10m}" -fuzzminimizetime 1x "$(dirname "$file")" >"$work/log" 2>&1; then
        cat "$work/log"
        return 1
      fi
      echo "row 12: $(dirname "$file"): $target: $(grep -o 'execs: [0-9]*' "$work/log" | tail -n 1), 0 failures"
    done
  done
}

run=("$@")
[ $# -gt 0 ] || run=("${parts[@]}")
for part in "${run[@]}"; do
  if ! [[ " ${parts[*]} " == *" $part "* ]]; then
    echo "scripts/soak.sh: no part \"$part\": use ${parts[*]}" >&2
    exit 2
  fi
done
for part in "${run[@]}"; do
  say "$part"
  begun=$SECONDS
  "$part"
  echo "   $((SECONDS - begun)) s"
done
say "all done in $SECONDS s"
