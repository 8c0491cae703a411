#!/usr/bin/env bash
# gad pull beside Python's huggingface_hub: both fetch from the hub of gad's tests, which runs on the
# loopback interface, and each reads the other's cache. Nothing is asked of the network.
#
#   scripts/peers/hub.sh [PYTHON]      Python with huggingface_hub, and transformers if there is one
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD_HUB_PYTHON=$(command -v "${1:-python3}") go test ./cmd/gad -run '^TestPythonAgrees$' -count=1 -v
