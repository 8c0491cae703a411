#!/usr/bin/env bash
# Sets the module path everywhere that it is written: go.mod, imports, tests, scripts and
# documents. For the day on which the repository has an address.
#
#   scripts/module-path.sh example.com/people/gad
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

new=${1-}
if ! [[ $new =~ ^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$ ]] || [ $# -ne 1 ]; then
  echo "scripts/module-path.sh: \"$new\": give one module path, such as example.com/people/gad" >&2
  exit 2
fi
old=$(sed -n 's/^module //p' go.mod)
# A path begins after a character that cannot be a part of it: cmd/gad/main.go is a file.
from="(^|[^A-Za-z0-9_./~-])${old//./\\.}/"
mapfile -t files < <(grep -rlE --include='*.go' --include='*.md' --include='*.sh' --include='*.txt' --exclude-dir=.git "$from" . || true)
if [ ${#files[@]} -gt 0 ]; then
  # Twice, since two paths may share the character between them.
  for _ in 1 2; do sed -Ei "s#$from#\\1$new/#g" "${files[@]}"; done
fi
sed -i "s#^module .*#module $new#" go.mod
gofmt -w $(printf '%s\n' "${files[@]}" | grep '\.go$' || true) </dev/null # the order of imports
echo "module path: $new (was $old), in go.mod and ${#files[@]} files"
