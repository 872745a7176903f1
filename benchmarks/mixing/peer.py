"""The peers of joined batches: a plain ConcatDataset of LeRobotDatasets, and tf.data, as Octo uses it.

The datasets are those of the mixtures, or their first episodes, exported. Neither peer has a state: what a resumed run
skips, or makes again, is extrapolated from some batches. tf.data reads the mixtures without cameras.
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

LEROBOT, TENSORFLOW = "lerobot", "tensorflow"
CONTENDERS = {
    LEROBOT: Contender(LEROBOT, "LeRobot, ConcatDataset", "lerobot_mixture.py", "source", LEROBOT),
    TENSORFLOW: Contender(TENSORFLOW, "tf.data, as Octo uses it", "tensorflow_mixture.py", "source", TENSORFLOW),
}
#: Cameras of a mixture -> how its folders begin.
_NAMES = {0: "plain", 2: "cameras"}


def exported(name: str, datasets: Sequence[gear_data.Dataset], folder: Path, steps: int, cameras: int) -> list[str]:
    """Exports datasets, each with its first episodes of at least its part of `steps`; returns the paths.

    Args:
        name: of the contender.
        datasets: the datasets of a mixture.
        folder: for the exported datasets.
        steps: of all datasets.
        cameras: cameras of the mixture.
    """
    folders = []
    for number, dataset in enumerate(datasets):
        progress(f"exporting dataset {number + 1} of {len(datasets)}")
        until = int(np.searchsorted(np.cumsum(dataset.lengths), steps // len(datasets))) + 1
        part = dataset if until >= len(dataset) else dataset.select(range(until))
        path = folder / f"{name}-{_NAMES[cameras]}-{len(datasets)}-{number}"
        if name == TENSORFLOW:
            path = path.with_suffix(".npz")
            gear_data.export(part, path, format="npz", progress=False)
        elif cameras and folders:  # the datasets are copies of the first one
            shutil.copytree(folders[0], path, copy_function=os.link)
        else:
            gear_data.export(part, path, format="lerobot", fps=FPS, progress=False)
        folders.append(str(path))
    return folders


def measure(
    name: str, mixtures: Mapping[int, Mapping[int, Sequence[gear_data.Dataset]]], folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Returns the figures of a contender for each mixture, or the reason why there are none.

    Args:
        name: of the contender.
        mixtures: number of cameras -> number of datasets -> the datasets.
        folder: for the exported datasets.
        args: the arguments of the benchmark.
    """
    contender = CONTENDERS[name]
    try:
        if args.install and name not in dict(args.python):
            install(args.venvs, name)
        python = find_python(contender, args.venvs, dict(args.python))
    except ContenderError as error:
        return {"failure": str(error)}
    if name == TENSORFLOW:
        mixtures = {cameras: own for cameras, own in mixtures.items() if not cameras}
    listed = {
        f"{_NAMES[cameras]}-{count}": exported(name, datasets, folder, args.peer_steps, cameras)
        for cameras, own in mixtures.items()
        for count, datasets in own.items()
    }
    listing = folder / f"{name}.json"
    listing.write_text(json.dumps(listed))
    numbers = {
        "batch-size": ROWS, "camera-batch": CAMERA_ROWS, "context": CONTEXT, "width": WIDTH,
        "resumed-step": RESUMED_STEP, "seconds": args.peer_seconds,
    }  # fmt: skip
    options = [text for option, value in numbers.items() for text in (f"--{option}", str(value))]
    process = Process(contender, python, ["--data", str(listing), *options], folder / f"{name}.log")
    results = []
    try:
        versions = process.hear(SETUP_TIMEOUT_SECONDS)["versions"]
        for cameras, own in mixtures.items():
            for count in own:
                progress(f"{contender.title}: {count} datasets, {cameras} cameras")
                print(f"{_NAMES[cameras]}-{count}", cameras, file=process.child.stdin, flush=True)
                found = process.hear(SETUP_TIMEOUT_SECONDS + 10 * args.peer_seconds)
                results.append({"datasets": count, "cameras": cameras, **found})
    except (ContenderError, OSError) as error:
        return {"failure": str(error), "mixtures": results}
    finally:
        process.close()
        progress("")
    return {"versions": versions, "mixtures": results}
