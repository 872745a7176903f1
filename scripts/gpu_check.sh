#!/usr/bin/env bash
# On a machine with a GPU: what it offers, the GPU tests, memcheck over some of them, the benchmark.
#
#   scripts/gpu_check.sh [doctor|tests|memcheck|benchmark ...]      default: all four, in this order
#
# Runs with $PYTHON (python3) where that has what is needed, which takes no network; else sets up .venv-gpu. What is
# printed is kept in gpu-results/, beside benchmark.json. A step that fails does not end the others; the status is 1.
set -u -o pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- doctor tests memcheck benchmark
for name in "$@"; do
  case $name in
    doctor | tests | memcheck | benchmark) ;;
    *) echo "no step '$name': doctor, tests, memcheck, benchmark" >&2; exit 2 ;;
  esac
done
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

if ! said=$("$python" -c 'import cupy, h5py, hypothesis, numba, pyarrow, pytest, torch, tqdm, xxhash' 2>&1); then
  echo "setting up .venv-gpu: $python lacks some of CuPy, torch, pytest and what gear-data needs (${said##*$'\n'})"
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
        # Everything is slower there, and the made-up examples are many. Calls that fail raise in the tests: those that
        # libraries try out need no report.
        step memcheck 500 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
          "$python" -m pytest -q -x tests/gpu/test_gpu_kernels.py -k 'device and not test_any'
      else
        echo "== memcheck: not run, there is no compute-sanitizer (it comes with the CUDA toolkit)"
      fi
      ;;
    benchmark) step benchmark 520 "$python" benchmarks/gpu.py --json gpu-results/benchmark.json ;;
  esac
done
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
