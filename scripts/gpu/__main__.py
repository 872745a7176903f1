"""Checks a machine with a GPU, step by step, also where there is no network.

examples:
  scripts/gpu_check.sh first                    probe, doctor, tests and a short benchmark, in nine minutes at most
  scripts/gpu_check.sh rest                     the benchmark and the sanitizers, in nine minutes at most
  scripts/gpu_check.sh                          both
  scripts/gpu_check.sh probe                    one step; the probe needs CuPy only
  scripts/gpu_check.sh benchmark:b              section (b) of benchmarks/gpu.py
  scripts/gpu_check.sh --bundle                 with a package index: pack the checkout and what the machine lacks
  scripts/gpu_check.sh --write-results DIR      write benchmarks/RESULTS.md from the results in DIR
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.gpu.bundle import write_bundle
from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.interpreter import Interpreter, interpreter
from scripts.gpu.steps import GROUPS, STEPS, parse_steps, run_steps


def bundle(file: Path, probe: Path | None) -> None:
    """Makes a bundle, and prints its contents.

    Args:
        file: the archive to write.
        probe: record of a probe of the machine, for `wheels.installed_in`; None for a common machine.
    """
    # They need `packaging`, which the machine with the GPU may lack.
    from scripts.gpu import wheels

    installed = wheels.installed_in(probe or wheels.MACHINE)
    with tempfile.TemporaryDirectory() as folder:
        downloads, packages = Path(folder, "wheels"), Path(folder, "packages")
        packages.mkdir()
        found = wheels.collect(wheels.requirements(), wheels.pins(), installed, wheels.download(downloads))
        for wheel in found:
            print(f"{'-'.join(wheel.name.split('-')[:2])}: {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
        wheels.install(found, packages)
        write_bundle(file, packages)
    print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB, with the checkout")


def write_results(folder: Path) -> int:
    """Runs the benchmark's writer on the records of a folder. Returns its exit status."""
    # The last record of a section counts: a section that ran alone had more time than in `benchmark`.
    records = sorted(folder.resolve().rglob("benchmark*.json"), key=lambda file: (file.stem != "benchmark", file))
    if not records:
        raise GpuCheckError(f"{folder} has no benchmark*.json: run the step `benchmark` with --results {folder}")
    python = interpreter()
    command = [python.path, "benchmarks/gpu.py", "--write-results", *map(str, records)]
    return subprocess.run(command, cwd=ROOT, env=python.environment(), check=False).returncode


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "steps", nargs="*", metavar="STEP",
        help=f"{', '.join(GROUPS)}, or one of {', '.join(STEPS)}; each takes nine minutes at most; default: first rest",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, default=ROOT / "gpu-results", metavar="DIR", help="default gpu-results")
    parser.add_argument(
        "--bundle", type=Path, nargs="?", const=ROOT / "gear-data-gpu.tar.xz", metavar="FILE",
        help="write a bundle; default gear-data-gpu.tar.xz in the checkout",
    )  # fmt: skip
    parser.add_argument(
        "--installed", type=Path, metavar="PROBE.json",
        help="with --bundle: what the machine has, as the probe has recorded; default scripts/gpu/machine.json",
    )  # fmt: skip
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
        if args.write_results is not None:
            return write_results(args.write_results)
        groups = [parse_steps(text) for text in args.steps or GROUPS]
        # The probe needs no packages: a bundle can be made from its record.
        only_probe = all(group.keys() == {"probe"} for group in groups)
        python = Interpreter(sys.executable, (ROOT,)) if only_probe else interpreter()
        failed = [step for group in groups for step in run_steps(group, python, args.results.resolve())]
    except GpuCheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
