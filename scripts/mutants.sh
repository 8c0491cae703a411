#!/usr/bin/env bash
# Do the tests of the CUDA backend find what is wrong? Plants one bug after the other
# (mutants/NN-name.patch, whose first line says what it breaks) in a copy of the
# working tree, runs the tests that each names on the emulated device, and prints a
# table of what caught it; before that the same tests must pass without a bug. Needs gcc,
# g++ and CUDA's header (gpu/headers.sh); the bugs in inline PTX also need the compiler of
# the kernels (gpu/toolchain.sh).
#
#   scripts/mutants.sh              all of them, half an hour on two cores
#   scripts/mutants.sh fast         those that .ci/run long plants, a minute
#   scripts/mutants.sh 03 12        these
#   scripts/mutants.sh --write      all of them, and the table into doc/gpu/mutants.tsv
#   scripts/mutants.sh --write 41   this one, and its row of the table
#
# A patch that does not apply, a copy that does not build, or a bug that no test
# catches is a failure. A patch's header:
#
#   Breaks: what
#   Test: package pattern       one or more, run in this order until one fails
#   Recompile: the embedded PTX    where the test reads that
#   Env: NAME=value             what the tests run with
#   Device: --races             how the emulated device is built, and the tests run without a bug, too
set -euo pipefail
cd "$(dirname "$0")/.."

main() { # read as a whole before it runs, so that the script may change meanwhile

fast="12 14 17 29 30"
table=doc/gpu/mutants.tsv

die() { echo "mutants.sh: $*" >&2; exit 2; }

write=
wanted=()
for arg in "$@"; do
  case $arg in
  --write) write=1 ;;
  fast) wanted+=($fast) ;;
  [0-9][0-9]) wanted+=("$arg") ;;
  *) die "\"$arg\": use fast, --write or numbers such as 03" ;;
  esac
done
patches=()
if [ ${#wanted[@]} -eq 0 ]; then
  patches=(scripts/mutants/*.patch)
else
  for n in "${wanted[@]}"; do
    found=(scripts/mutants/"$n"-*.patch)
    [ -f "${found[0]}" ] || die "no bug $n in scripts/mutants"
    patches+=("${found[0]}")
  done
fi

flags=$(scripts/gpu/headers.sh)
export CGO_ENABLED=1 CGO_CFLAGS="$flags" GAD_REQUIRE_CUDA=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/copy
mkdir "$copy"
git ls-files -coz --exclude-standard | while IFS= read -r -d '' f; do if [ -e "$f" ]; then printf '%s\0' "$f"; fi; done | xargs -0 cp -p --parents -t "$copy"
patches=("${patches[@]/#/$PWD/}")
root=$PWD
cd "$copy"

say() { printf '%s\n' "$*" >&2; }
build() { internal/compute/cuda/emu/build.sh ${2:+"$2"} "$work/$1" >"$work/build.log" 2>&1; }
build emu || { cat "$work/build.log" >&2; die "the emulated device does not build"; }
cp -rp "$work/emu" "$work/changed"

# by FILE: the test that failed, or how the device ended it.
by() {
  local name
  name=$(sed -n 's/^ *--- FAIL: \([^ ]*\).*/\1/p' "$1" | head -n 1)
  [ -n "$name" ] || name=$(grep -o '^=== RUN .*' "$1" | tail -n 1 | awk '{print $3}')
  local said
  said=$(grep -o 'emu: kernel [a-zA-Z0-9_]*:.*' "$1" | head -n 1 | sed 's/block (.*thread ([0-9,]*): //; s/emu: kernel //; s/ at address .*//; s/ at \.\.[^ ]*//; s/, without a barrier.*/, without a barrier/' || true)
  printf '`%s`' "$name"
  if [ -n "$said" ]; then printf ', emulated device: %s' "$said"; fi
}

# header FILE NAME: what the patch's header says of it.
header() { sed -n "s/^$2: //p" "$1" | head -n 1; }

# tests DEVICE PACKAGE PATTERN [NAME=value]
tests() {
  env LD_LIBRARY_PATH="$work/$1" ${4:+"$4"} timeout 300 go test -tags nvidia -count=1 -v -timeout 280s -run "$3" "./$2" >"$work/test.log" 2>&1
}

# What fails without a bug catches none.
began=$SECONDS
while read -r package pattern; do
  tests emu "$package" "$pattern" || { tail -n 20 "$work/test.log" >&2; die "$package: $pattern fails without any bug"; }
done < <(sed -n 's/^Test: //p' "${patches[@]}" | sort -u)
for patch in "${patches[@]}"; do
  env=$(header "$patch" Env)
  how=$(header "$patch" Device)
  [ -n "$env$how" ] || continue
  device=emu
  if [ -n "$how" ]; then
    device=built$how
    [ -d "$work/$device" ] || build "$device" "$how" || { cat "$work/build.log" >&2; die "the emulated device does not build with $how"; }
  fi
  while read -r package pattern; do
    tests "$device" "$package" "$pattern" "$env" || { tail -n 20 "$work/test.log" >&2; die "$package: $pattern fails without any bug, with $env$how"; }
  done < <(sed -n 's/^Test: //p' "$patch")
done
say "the tests pass without a bug: $((SECONDS - began)) s"

rows=
failed=0
for patch in "${patches[@]}"; do
  file=${patch##*/}
  number=${file%%-*}
  breaks=$(sed -n 's/^Breaks: //p' "$patch")
  [ -n "$breaks" ] || die "$file: no line \"Breaks: \""
  began=$SECONDS
  caught=
  trouble=
  if ! patch -p1 --forward --fuzz=0 --no-backup-if-mismatch <"$patch" >"$work/patch.log" 2>&1; then
    trouble="does not apply"
  else
    device=emu
    how=$(header "$patch" Device)
    if [ -n "$how" ]; then
      device=built$how
      build "$device" "$how" || trouble="the emulated device does not build: $(grep -m 1 error "$work/build.log")"
    elif grep -q '^--- a/internal/compute/cuda/\(kernels\|emu\)/' "$patch"; then
      device=changed
      build changed || trouble="the emulated device does not build: $(grep -m 1 error "$work/build.log")"
    fi
    if [ -z "$trouble" ] && grep -q '^Recompile: ' "$patch"; then
      cp -rp internal/compute/cuda/kernels/ptx "$work/ptx"
      if tools=$(scripts/gpu/toolchain.sh 2>"$work/tools.log"); then
        (eval "$tools"; CGO_ENABLED=0 go test ./internal/compute/cuda/kernels -run 'TestPTX$' -update) >"$work/ptx.log" 2>&1 || trouble="the kernels do not compile: $(tail -n 2 "$work/ptx.log" | tr '\n' ' ')"
      else
        trouble="not planted: $(tail -n 1 "$work/tools.log")"
      fi
    fi
    while [ -z "$trouble" ] && [ -z "$caught" ] && read -r package pattern; do
      code=0
      tests "$device" "$package" "$pattern" "$(header "$patch" Env)" || code=$?
      if grep -q '\[build failed\]\|\[setup failed\]' "$work/test.log"; then
        trouble="the tests do not build: $(grep -m 1 '\.go:' "$work/test.log")"
      elif [ $code -eq 124 ]; then
        trouble="$package $pattern: not done after 300 s"
      elif grep -q 'no tests to run' "$work/test.log"; then
        trouble="$package: no test $pattern"
      elif [ $code -ne 0 ]; then
        caught=$(by "$work/test.log")
      fi
    done < <(sed -n 's/^Test: //p' "$patch")
    patch -p1 --reverse --fuzz=0 --no-backup-if-mismatch <"$patch" >>"$work/patch.log" 2>&1 || die "$file: cannot be taken back"
    if [ -d "$work/ptx" ]; then
      rm -r internal/compute/cuda/kernels/ptx
      mv "$work/ptx" internal/compute/cuda/kernels/ptx
      cp -p "$root/doc/gpu/kernels.tsv" doc/gpu/kernels.tsv
    fi
  fi
  if [ -z "$caught" ]; then
    failed=$((failed + 1))
    caught="**nothing**${trouble:+ ($trouble)}"
  fi
  say "$number $((SECONDS - began)) s: $breaks: $caught"
  rows+="$number"$'\t'"$breaks"$'\t'"$caught"$'\n'
done

report() {
  printf '#\tbug\tcaught by\n%s' "$rows"
}
report
if [ -n "$write" ]; then
  # The rows of bugs that were not planted now stay, if they are still in scripts/mutants.
  while IFS= read -r row; do
    number=${row%%$'\t'*}
    if ! grep -q "^$number"$'\t' <<<"$rows" && compgen -G "$root/scripts/mutants/$number-*.patch" >/dev/null; then rows+=$row$'\n'; fi
  done < <(grep '^[0-9][0-9]'$'\t' "$root/$table")
  rows=$(sort -k1,1n <<<"${rows%$'\n'}")$'\n'
  {
    printf '# Planted bugs\n\n'
    printf 'Written by `scripts/mutants.sh --write`; do not edit. Each bug was planted by itself (`scripts/mutants/`) and the tests named there were run, those of the GPU engine on the emulated device. The last column is the first test that failed, and what the emulated device said where it ended the test. 01 to 24 are those of a review; 25 to 40 were added with the tests that catch them; 41 to 47 are of a review in which no test caught them, and 48 to 51 of ten that were planted without a look at the tests, of which six were caught at once: the tests that catch these came afterwards. 52 to 54 begin behind borders that no test crossed before. 55 to 64 are of episodes: six faults of a published comparison and what is like them. 65 to 72 are of packs of trees, 73 to 76 of quantised weights.\n\n'
    report
    printf '\n%d of %d caught.\n' "$(grep -vc '\*\*nothing' <<<"${rows%$'\n'}")" "$(grep -c . <<<"$rows")"
  } >"$root/$table"
fi
if [ $failed -gt 0 ]; then
  echo "mutants.sh: $failed of ${#patches[@]} bugs are caught by nothing" >&2
  exit 1
fi
say "all of ${#patches[@]} bugs are caught, in $SECONDS s"
}

main "$@"; exit # on this line: nothing is read behind it
