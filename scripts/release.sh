#!/usr/bin/env bash
# Builds the archives of a release: the binary, README, documents, the manual page, shell
# completion and every licence text, and SHA256SUMS beside them. Equal commits, versions
# and Go toolchains give equal bytes, on any machine and in any folder.
#
#   scripts/release.sh OUT [VERSION]   VERSION: by default what git describe says
#
#   TARGETS="linux/amd64 darwin/arm64" scripts/release.sh OUT   only these
#
# It needs go, git, GNU tar, gzip, sha256sum, and zip for Windows.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

if [ $# -lt 1 ] || [ $# -gt 2 ] || [[ ${1-} == -* ]]; then
  echo 'usage: scripts/release.sh OUT [VERSION]' >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
version=${2-$(git describe --tags --always --dirty)}
if ! [[ $version =~ ^[A-Za-z0-9][A-Za-z0-9._+-]*$ ]]; then
  echo "scripts/release.sh: version \"$version\": use letters, digits and . _ + -" >&2
  exit 2
fi
commit=$(git rev-parse HEAD)
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  commit=${commit:0:12}-modified
  echo 'scripts/release.sh: the working tree has changes that are not committed: the archives will say so' >&2
fi
read -r -a targets <<<"${TARGETS-linux/amd64 linux/arm64 darwin/arm64 darwin/amd64 windows/amd64}"
# Every file has the time of the commit.
epoch=$(git log -1 --format=%ct)

# What the environment would change in the bytes is fixed.
export CGO_ENABLED=0 GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 GOWORK=off

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What goes into every archive.
mkdir "$work/common"
for file in README.md CHANGELOG.md SECURITY.md LICENSE LICENSE.md; do
  if [ -f "$file" ]; then cp "$file" "$work/common"; fi
done
git ls-files -z 'doc/*.md' 'doc/*.tsv' 'doc/*.gz' | xargs -0 cp --parents -t "$work/common"
scripts/licences.sh --copy "$work/common/licences"

# From the program itself, built for this machine with the same words.
flags="-s -w -buildid= -X main.version=$version -X main.commit=$commit"
GOOS= GOARCH= go build -trimpath -buildvcs=false -ldflags "$flags" -o "$work/gad" ./cmd/gad
mkdir "$work/common/completion"
for shell in bash zsh fish; do "$work/gad" completion "$shell" >"$work/common/completion/gad.$shell"; done
"$work/gad" man >"$work/common/gad.1"

archives=()
for target in "${targets[@]}"; do
  os=${target%/*} arch=${target#*/}
  name=gad-$version-$os-$arch
  binary=gad
  if [ "$os" = windows ]; then binary=gad.exe; fi
  mkdir "$work/$name"
  cp -R "$work/common/." "$work/$name"
  GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "$flags" -o "$work/$name/$binary" ./cmd/gad
  find "$work/$name" -type d -exec chmod 755 {} +
  find "$work/$name" -type f -exec chmod 644 {} +
  chmod 755 "$work/$name/$binary"
  find "$work/$name" -exec touch -h -d "@$epoch" {} +
  if [ "$os" = windows ]; then
    archive=$name.zip
    rm -f "$out/$archive"
    (cd "$work" && find "$name" | sort | zip -q -9 -X -@ "$out/$archive")
  else
    archive=$name.tar.gz
    tar -C "$work" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | gzip -n -9 >"$out/$archive"
  fi
  archives+=("$archive")
  echo "$archive: $(wc -c <"$out/$archive") bytes, binary $(wc -c <"$work/$name/$binary")"
  rm -rf "${work:?}/$name"
done
(cd "$out" && printf '%s\n' "${archives[@]}" | sort | xargs sha256sum >SHA256SUMS && cat SHA256SUMS)
echo "made with $(go env GOVERSION) from commit $commit"
