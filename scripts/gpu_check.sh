#!/usr/bin/env bash
# Checks a machine with a GPU: doctor, GPU tests, memcheck over some of the tests, benchmark.
#
#   scripts/gpu_check.sh [doctor|tests|memcheck|benchmark ...]      default: all four steps, in this order
#
# Uses $PYTHON (default python3) if it has the required packages; this needs no network. Otherwise sets up .venv-gpu.
# The output goes to gpu-results/, with benchmark.json. If a step fails, the others still run and the exit status is 1.
set -u -o pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- doctor tests memcheck benchmark
for name in "$@"; do
  case $name in
    doctor | tests | memcheck | benchmark) ;;
    *) echo "unknown step '$name'; known: doctor, tests, memcheck, benchmark" >&2; exit 2 ;;
  esac
done
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

if ! message=$("$python" -c 'import cupy, h5py, hypothesis, numba, pyarrow, pytest, torch, tqdm, xxhash' 2>&1); then
  echo "setting up .venv-gpu: $python lacks a required package (${message##*$'\n'})"
  make VENV=.venv-gpu PYTHON="$python" .venv-gpu/installed-gpu-test || exit 1
  python=.venv-gpu/bin/python
fi

mkdir -p gpu-results
failed=""
step() { # name, seconds, command
  local name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" 2>&1 | tee "gpu-results/$name.txt" || failed="$failed $name"
}

for name in "$@"; do
  case $name in
    doctor) step doctor 400 "$python" -c 'import sys; from gear_data.cli import main; sys.exit(main(["doctor"]))' ;;
    tests) step tests 600 "$python" -m pytest -q tests/gpu ;;
    memcheck)
      if command -v compute-sanitizer >/dev/null; then
        # memcheck is slow, so the tests with many generated examples are left out. Failed API calls are not reported:
        # the tests raise them, and libraries probe with calls that fail.
        step memcheck 500 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
          "$python" -m pytest -q -x tests/gpu/test_kernels.py -k 'device and not test_any'
      else
        echo "== memcheck: skipped, compute-sanitizer is not installed (it comes with the CUDA toolkit)"
      fi
      ;;
    benchmark) step benchmark 520 "$python" benchmarks/gpu.py --json gpu-results/benchmark.json ;;
  esac
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
