"""Checks a machine with a GPU, step by step, also where there is no network.

examples:
  scripts/gpu_check.sh                          all steps
  scripts/gpu_check.sh probe                    one step; the probe needs CuPy only
  scripts/gpu_check.sh benchmark:b              section (b) of benchmarks/gpu.py; `benchmark` runs all sections
  scripts/gpu_check.sh --bundle DIR             with a package index: write the parts of a bundle to DIR
  scripts/gpu_check.sh --unpack DIR             on the machine with the GPU: unpack the parts in DIR
  scripts/gpu_check.sh --write-results DIR      write benchmarks/RESULTS.md from the results in DIR
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.installation import FOLDER, Interpreter, interpreter, unpack
from scripts.gpu.steps import STEPS, parse_steps, run_steps


def bundle(folder: Path, probe: Path | None) -> None:
    """Makes a bundle, and prints its parts.

    Args:
        folder: where the parts are written.
        probe: record of a probe of the machine; packages that the machine has are left out.
    """
    # They need `packaging`, which the machine with the GPU may lack.
    from scripts.gpu import parts, wheels

    installed = {}
    if probe is not None:
        installed = {wheels.normalised(name): version for name, version in _packages(probe).items()}
    roots = wheels.requirements()
    tree = parts.checkout_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        found = wheels.collect(roots, wheels.pins(), installed, wheels.download(Path(downloads)))
        print(f"{len(found)} wheels; packing the large ones takes minutes", flush=True)
        written = parts.write_parts(found, folder, wheels.PYTHON_VERSION, roots, tree)
    for path in written:
        size = path.stat().st_size
        print(f"{path}: {size / 2**20:.1f} MiB, {(size + tree) / 2**20:.1f} with the checkout")


def write_results(folder: Path) -> int:
    """Runs the benchmark's writer on the records of a folder. Returns its exit status."""
    records = sorted(folder.resolve().rglob("benchmark-*.json"))
    if not records:
        raise GpuCheckError(f"{folder} has no benchmark-*.json: run the step `benchmark` with --results {folder}")
    python = interpreter()
    command = [python.path, "benchmarks/gpu.py", "--write-results", *map(str, records)]
    return subprocess.run(command, cwd=ROOT, env=python.environment(), check=False).returncode


def _packages(probe: Path) -> dict[str, str]:
    try:
        record = json.loads(probe.read_text())
        if not record["machine"]["python"].startswith("3.12."):
            raise GpuCheckError(f"{probe}: the machine has Python {record['machine']['python']}; a bundle is for 3.12")
        packages: dict[str, str] = record["machine"]["packages"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GpuCheckError(f"{probe} is not the record of a probe: {error!r}") from error
    return packages


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}; default all, in this order")
    parser.add_argument("--results", type=Path, default=ROOT / "gpu-results", metavar="DIR", help="default gpu-results")
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="write the parts of a bundle to this folder")
    parser.add_argument(
        "--installed", type=Path, metavar="PROBE.json", help="with --bundle: leave out packages of the probed machine"
    )
    parser.add_argument("--unpack", type=Path, nargs="+", metavar="PART", help="parts of a bundle, or folders of them")
    parser.add_argument(
        "--write-results", type=Path, metavar="DIR", help="write benchmarks/RESULTS.md from the results in this folder"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    try:
        if args.bundle is not None:
            bundle(args.bundle, args.installed)
            return 0
        if args.unpack is not None:
            missing = unpack(args.unpack)
            print(f"missing, in other parts: {', '.join(missing)}" if missing else f"installed in {FOLDER}/site")
            return 0
        if args.write_results is not None:
            return write_results(args.write_results)
        steps = parse_steps(args.steps or STEPS)
        # The probe needs no bundle: a bundle can be made from its record.
        python = Interpreter(sys.executable, (ROOT,)) if set(steps) == {"probe"} else interpreter()
        failed = run_steps(steps, python, args.results.resolve())
    except GpuCheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
