#!/usr/bin/env bash
# Checks a machine with a GPU, also one without a network: see --help, and docs/how-to/gpu-without-network.md.
#
# Uses $PYTHON (default python3).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m scripts.gpu "$@"
