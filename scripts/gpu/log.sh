# Sourced by check.sh and bench.sh: unpacks what build.sh built, and writes the log.
#
# GAD_SECONDS is how long the script may take in all, where whoever runs it ends it
# then: what does not fit is cut off, or left out and counted as a failure, and the log
# has its end.
#
# The log is Markdown, $GAD_LOG, or else <date>-<device>.log in $OUT, in doc/gpu of
# the checkout that the script is in, or in the folder of the build. It is written
# section by section, so that a run that is cut off leaves what it had; a second
# run of the day adds to it.

die() { echo "${0##*/}: $*" >&2; exit 2; }

# unpack FILE: the archive to standard output. Not every machine has xz; Python has it inside.
unpack() {
  if command -v xz >/dev/null; then
    xz -dc "$1"
  elif python3 -c 'import lzma' 2>/dev/null; then
    python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer, 1 << 20)' "$1"
  else
    die "$1: needs xz or python3 to unpack it"
  fi
}

# cublaslt names a cuBLASLt that only Python's packages have: gad does not look there. It
# prints nothing where gad finds one by itself. The driver says which versions it can run.
cublaslt() {
  local folder packages driver major
  case "$(ldconfig -p 2>/dev/null || true)" in *libcublasLt.so.1[23]*) return ;; esac
  IFS=: read -r -a folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}" "${CUDA_HOME:-/nowhere}/lib64" "${CUDA_PATH:-/nowhere}/lib64" /usr/local/cuda*/lib64; do
    if compgen -G "${folder:-/nowhere}/libcublasLt.so.1[23]" >/dev/null; then return; fi
  done
  packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null) || return 0
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
  driver=${driver%%.*}
  for major in 13 12; do
    if [ "$major" = 13 ] && [ "${driver:-580}" -lt 580 ] 2>/dev/null; then continue; fi
    compgen -G "$packages/nvidia/*/lib/libcublasLt.so.$major" | sort | tail -n 1
  done | head -n 1
}

# begin BUILD: unpacks, starts the log and moves to the unpacked folder.
begin() {
  [ -f "$1/gad-gpu.tar.xz" ] || die "$1: no gad-gpu.tar.xz: make it with scripts/gpu/build.sh"
  build=$(cd "$1" && pwd)
  local here device
  here=$(cd "$(dirname "$0")" && pwd)
  device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr -cs 'A-Za-z0-9\n' '-') || true
  device=${device%-}
  log=${GAD_LOG:-}
  if [ -z "$log" ]; then
    local folder=${OUT:-}
    if [ -z "$folder" ] && [ -f "$here/../../go.mod" ]; then folder=$here/../../doc/gpu; fi
    log=${folder:-$build}/$(date -u +%Y-%m-%d)-${device:-no-GPU}.log
  fi
  mkdir -p "$(dirname "$log")"
  log=$(cd "$(dirname "$log")" && pwd)/$(basename "$log")

  work=$(mktemp -d)
  trap ended EXIT
  unpack "$build/gad-gpu.tar.xz" | tar xf - -C "$work"
  cd "$work"
  # The driver keeps the kernels' machine code on disk, wherever that may be.
  if [ ! -w "${HOME:-/}" ]; then export CUDA_CACHE_PATH=$work/cache; fi
  if [ -z "${GAD_CUBLASLT:-}" ]; then
    GAD_CUBLASLT=$(cublaslt) || true
    if [ -n "$GAD_CUBLASLT" ]; then export GAD_CUBLASLT; else unset GAD_CUBLASLT; fi
  fi
  export GAD_REQUIRE_CUDA=1
  failed=()
  if [ ! -s "$log" ]; then
    printf '# %s, %s\n' "${device:-no GPU}" "$(date -u +%Y-%m-%d)" >"$log"
  fi
  {
    printf '\n## %s %s, %s UTC\n\n```\n' "${0##*/}" "$*" "$(date -u +%H:%M)" | sed "s|$build|BUILD|"
    cat built.txt
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit --format=csv 2>/dev/null || echo 'no nvidia-smi'
    printf '%s processors, %s\n' "$(nproc)" "$(uname -sr)"
    printf 'LD_LIBRARY_PATH: %s\n' "${LD_LIBRARY_PATH:-}"
    if [ -n "${GAD_CUBLASLT:-}" ]; then printf 'cuBLASLt: %s\n' "$GAD_CUBLASLT"; fi
    printf '```\n'
  } | tee -a "$log"
}

# section NAME SECONDS COMMAND...: runs it under a time limit, keeps its output in
# the file raw, and writes a line with the verdict. Tests that skip because there is
# no device, patterns that match no test, and products that cuBLASLt declined are failures.
section() {
  local name=$1 limit=$2 code=0 began=$SECONDS verdict=pass
  shift 2
  printf '== %s\n' "$name"
  raw=$work/$name.raw
  : >"$raw"
  if [ -n "${GAD_SECONDS:-}" ]; then
    local left=$((GAD_SECONDS - SECONDS - 15)) # 10 until the command is killed
    if [ "$left" -lt 10 ]; then
      failed+=("$name")
      printf '\n### %s: FAIL: not run: nothing is left of %s s\n\n' "$name" "$GAD_SECONDS" | tee -a "$log"
      return
    fi
    if [ "$limit" -gt "$left" ]; then limit=$left; fi
  fi
  timeout --kill-after=10 "$limit" "$@" >"$raw" 2>&1 || code=$?
  if [ $code -eq 124 ] || [ $code -eq 137 ]; then
    verdict="FAIL: not done after $limit s"
  elif [ $code -ne 0 ]; then
    verdict="FAIL: exit status $code"
  elif grep -q 'no tests to run' "$raw"; then
    verdict='FAIL: no such test'
  elif grep 'NOT TESTED\|NOT MEASURED' "$raw" | grep -qv emulated; then
    verdict="FAIL: skipped: $(grep 'NOT TESTED\|NOT MEASURED' "$raw" | grep -v emulated | head -n 1 | cut -c1-200)"
  fi
  if [ "$verdict" = pass ] && grep -q 'cuBLASLt declined' "$raw"; then
    verdict="FAIL: $(grep -o 'cuBLASLt declined.*' "$raw" | head -n 1 | cut -c1-200)"
  fi
  if [ "$verdict" != pass ]; then failed+=("$name"); fi
  printf '\n### %s: %s, %s s\n\n' "$name" "$verdict" $((SECONDS - began)) | tee -a "$log"
}

# quote FILE LINES: appends a file to the log, folded, without the names of parts
# that passed, and its middle left out if it is long.
quote() {
  local n
  grep -v '^=== \|^  *--- PASS' "$1" | cut -c1-400 >"$1.short" || true
  n=$(wc -l <"$1.short")
  {
    printf '<details><summary>output, %s lines</summary>\n\n```\n' "$n"
    if [ "$n" -le "$2" ]; then
      cat "$1.short"
    else
      head -n $(($2 / 2)) "$1.short"
      printf '... %s lines left out\n' $((n - $2 / 2 * 2))
      tail -n $(($2 / 2)) "$1.short"
    fi
    printf '```\n\n</details>\n'
  } >>"$log"
}

# known NAME... -- NAME...: fails unless each of the second is one of the first.
known() {
  local all=() name
  while [ "$1" != -- ]; do all+=("$1"); shift; done
  shift
  for name in "$@"; do
    case " ${all[*]} " in
    *" $name "*) ;;
    *) die "no section \"$name\": ${all[*]}" ;;
    esac
  done
}

# each FUNCTION SECTION...: calls it for each section. A mistake in one does not keep the
# others from being run. GAD_TOGETHER runs them at the same time, where a GPU's minutes are few
# and nothing is timed; the log has them in order.
each() {
  local f=$1 s whole=$log
  shift
  if [ -z "${GAD_TOGETHER:-}" ]; then
    for s in "$@"; do one "$f" "$s"; done
    return
  fi
  for s in "$@"; do
    (
      trap - EXIT
      log=$work/$s.log failed=()
      one "$f" "$s"
      printf '%s\n' "${failed[@]}" >"$work/$s.failed"
    ) &
  done
  wait
  for s in "$@"; do
    cat "$work/$s.log" >>"$whole" || true
    while read -r name; do
      if [ -n "$name" ]; then failed+=("$name"); fi
    done <"$work/$s.failed" || failed+=("$s")
  done
}

# one FUNCTION SECTION
one() {
  "$1" "$2" || {
    failed+=("$2")
    printf '\n### %s: FAIL: the script itself\n\n' "$2" | tee -a "$log"
  }
}

# ended cleans up, and says so in the log where the script ends before its finish.
ended() {
  local code=$?
  cd /
  rm -rf "$work"
  if [ -z "${finished:-}" ] && [ -n "${log:-}" ]; then printf '\n**%s ended early, with status %s.**\n' "${0##*/}" "$code" | tee -a "$log"; fi
}

# finish prints where the log is and fails if anything did.
finish() {
  finished=yes
  if [ ${#failed[@]} -gt 0 ]; then
    printf '\n**Failed: %s.**\n' "${failed[*]}" | tee -a "$log"
  fi
  echo "log: $log"
  [ ${#failed[@]} -eq 0 ]
}
