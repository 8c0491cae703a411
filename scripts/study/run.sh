#!/usr/bin/env bash
# One study of doc/study.md: makes the task of each seed, runs the arms, prints the
# table. Killed? The same command goes on.
#
#   scripts/study/run.sh two-forms [gad study's flags]
#
# two-forms, few-rows, unlearned, ablations, memory, doors, calculator or walks; in the repository's
# root. GAD=path names another binary.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad}
name=${1:?"two-forms, few-rows, unlearned, ablations, memory, doors, calculator or walks"}
shift
file=scripts/study/$name.yaml
kind=$(sed -n 's|^data: .*runs/task/\(.*\)-{seed}/.*|\1|p' "$file")
for seed in $(sed -n 's/^seeds: \[\(.*\)\]/\1/p' "$file" | tr -d ,); do
  "$GAD" task make "$kind" --output "runs/task/$kind-$seed" --seed "$seed" >/dev/null
done
exec "$GAD" study "$@" "$file"
