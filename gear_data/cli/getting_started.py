"""`gear-data doctor` and `demo`: commands for a new machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gear_data.cli.arguments import add_command, print_json


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    _add_doctor(commands)
    _add_demo(commands)


def _add_doctor(commands: Any) -> None:
    summary = "check the packages, extras, CPU, GPU, RDMA and limits of this machine, and print how to fix problems"
    parser = add_command(commands, "doctor", _doctor, summary, "gear-data doctor --warm")
    help = "also compile the CPU kernels of most batches into Numba's cache now, so that later runs do not wait"
    parser.add_argument("--warm", action="store_true", help=help)


def _doctor(options: argparse.Namespace) -> int:
    from gear_data.cli.doctor import examine

    warmed = None
    if options.warm:
        from gear_data.cli.warm import warm_kernels

        warmed = warm_kernels()
    checks = examine()
    if options.json:
        print_json({"checks": [check.to_json() for check in checks], "warm_seconds": warmed})
    else:
        if warmed is not None:
            print(f"the CPU kernels of most batches are in the cache, after {warmed:.0f} s")
        for check in checks:
            remedy = f"\n    {check.remedy}" if check.remedy else ""
            print(f"{'yes' if check.ok else 'no ':<4}{check.name:<18}{check.found}{remedy}")
    return 0


def _add_demo(commands: Any) -> None:
    summary = "run all jobs on generated rollouts: convert, feed, train, export"
    parser = add_command(commands, "demo", _demo, summary, "gear-data demo --out demo-output --seconds 60")
    help = "folder for all files, default demo-output"
    parser.add_argument("--out", type=Path, default=Path("demo-output"), metavar="OUT", help=help)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time to train, default 60")


def _demo(options: argparse.Namespace) -> int:
    from gear_data.demo.run import run_demo

    report = run_demo(options.out, train_seconds=options.seconds)
    if options.json:
        print_json(report.to_json())
    else:
        print(report.summary())
    return 0
