"""A plain ConcatDataset of LeRobotDatasets: the peer of joined batches.

The datasets are those of the mixtures, or their first episodes, exported. A DataLoader shuffles all items. It has no
state: a resumed run advances the sampler, which is timed on some batches and extrapolated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import progress
from feeding.contenders import SETUP_TIMEOUT_SECONDS, Contender, Process, find_python
from feeding.environments import ContenderError, install

import gear_data
from mixing.joined import CAMERA_ROWS, CONTEXT, FPS, RESUMED_STEP, ROWS, WIDTH

LEROBOT = "lerobot"
CONTENDER = Contender(LEROBOT, "LeRobot, ConcatDataset", "lerobot_mixture.py", "source", LEROBOT)
#: Cameras of a mixture -> how its folders begin.
_NAMES = {0: "plain", 2: "cameras"}


def exported(datasets: Sequence[gear_data.Dataset], folder: Path, steps: int, cameras: int) -> list[str]:
    """Exports datasets, each with its first episodes of at least its part of `steps`; returns the folders."""
    folders = []
    for number, dataset in enumerate(datasets):
        progress(f"exporting dataset {number + 1} of {len(datasets)}")
        until = int(np.searchsorted(np.cumsum(dataset.lengths), steps // len(datasets))) + 1
        part = dataset if until >= len(dataset) else dataset.select(range(until))
        path = folder / f"lerobot-{_NAMES[cameras]}-{len(datasets)}-{number}"
        if cameras and folders:  # the datasets are copies of the first one
            shutil.copytree(folders[0], path, copy_function=os.link)
        else:
            gear_data.export(part, path, format="lerobot", fps=FPS, progress=False)
        folders.append(str(path))
    return folders


def measure(
    mixtures: Mapping[int, Mapping[int, Sequence[gear_data.Dataset]]], folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Returns the figures of each mixture, or the reason why there are none.

    Args:
        mixtures: number of cameras -> number of datasets -> the datasets.
        folder: for the exported datasets.
        args: the arguments of the benchmark.
    """
    try:
        if args.install and LEROBOT not in dict(args.python):
            install(args.venvs, LEROBOT)
        python = find_python(CONTENDER, args.venvs, dict(args.python))
    except ContenderError as error:
        return {"failure": str(error)}
    listed = {
        f"{_NAMES[cameras]}-{count}": exported(datasets, folder, args.peer_steps, cameras)
        for cameras, own in mixtures.items()
        for count, datasets in own.items()
    }
    listing = folder / "lerobot.json"
    listing.write_text(json.dumps(listed))
    numbers = {
        "batch-size": ROWS, "camera-batch": CAMERA_ROWS, "context": CONTEXT, "width": WIDTH,
        "resumed-step": RESUMED_STEP, "seconds": args.peer_seconds,
    }  # fmt: skip
    options = [text for name, value in numbers.items() for text in (f"--{name}", str(value))]
    process = Process(CONTENDER, python, ["--data", str(listing), *options], folder / "lerobot.log")
    results = []
    try:
        versions = process.hear(SETUP_TIMEOUT_SECONDS)["versions"]
        for cameras, own in mixtures.items():
            for count in own:
                progress(f"LeRobot: {count} datasets, {cameras} cameras")
                print(f"{_NAMES[cameras]}-{count}", cameras, file=process.child.stdin, flush=True)
                found = process.hear(SETUP_TIMEOUT_SECONDS + 10 * args.peer_seconds)
                results.append({"datasets": count, "cameras": cameras, **found})
    except (ContenderError, OSError) as error:
        return {"failure": str(error), "mixtures": results}
    finally:
        process.close()
        progress("")
    return {"versions": versions, "mixtures": results}
