"""Data of a feed benchmark, in every form that a contender reads.

The data is in a scratch folder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
from common import parquet_files, progress, synthetic_episodes, write_parquet

from feeding.contenders import run_script
from feeding.scenarios import CACHE_MULTIPLE, FAMILIES, Contract, Family

_FRAME_EPISODE = 500
_WRITTEN_AT_ONCE = 1000


@dataclass(frozen=True)
class Data:
    """One set of steps, in all forms.

    Attributes:
        source: the converted source: Parquet of episodes, LeRobot or D4RL HDF5.
        dataset: folder of the gear-data dataset.
        steps: folder of .npy files, as `load_steps` of peers/harness.py reads it.
        origin: "given" or "synthetic".
        copies: number of copies of the source in it.
        num_steps, num_episodes: number of steps and episodes.
        step_bytes: bytes of a step in the columns of a batch.
        shapes: column -> shape and dtype of a step, as text.
    """

    source: Path
    dataset: Path
    steps: Path
    contract: Contract
    origin: str
    copies: int
    num_steps: int
    num_episodes: int
    step_bytes: int
    shapes: dict[str, str]

    def describe(self) -> str:
        columns = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        times = f", {self.copies} copies" if self.copies > 1 else ""
        size = self.num_steps * self.step_bytes / 2**20
        return (
            f"{self.origin} data{times}: {self.num_steps:,} steps, {self.num_episodes:,} episodes, {size:,.0f} MiB "
            f"({columns})"
        )


class DataStore:
    """Makes data on first use, and keeps it for later scenarios.

    Args:
        scratch: folder of the data; the caller removes it.
        given: family -> source to use instead of random data.
        seed: seed of random data.
        cache_bytes: size of the last-level cache.
        most_steps: most steps of random data; large data then has two copies. None: no limit.
    """

    def __init__(
        self, scratch: Path, given: dict[str, Path], seed: int, cache_bytes: int, most_steps: int | None = None
    ) -> None:
        self.scratch, self._given, self._seed, self._most_steps = scratch, given, seed, most_steps
        self._large_bytes = CACHE_MULTIPLE * cache_bytes if most_steps is None else 0
        self._made: dict[tuple[str, bool], Data] = {}

    def get(self, family: str, large: bool) -> Data:
        """Returns the data of a family.

        Raises ContenderError if gear-data cannot convert the source.
        """
        key = (family, large)
        if key not in self._made:
            progress(f"making {family} data{', large' if large else ''}")
            self._made[key] = self._large(family) if large else self._plain(family)
            progress("")
        return self._made[key]

    def _plain(self, family: str) -> Data:
        if family in self._given:
            return self._converted(family, self._given[family], 1)
        shape = FAMILIES[family]
        if self._most_steps is not None:
            shape = replace(shape, steps=min(shape.steps, self._most_steps))
        source = self.scratch / family / ("source.hdf5" if len(shape.observation) > 1 else "source.parquet")
        source.parent.mkdir()
        make_source(shape, source, self._seed)
        return self._converted(family, source, 1)

    def _large(self, family: str) -> Data:
        small = self.get(family, large=False)
        # One copy is the small data.
        copies = max(2, math.ceil(self._large_bytes / (small.num_steps * small.step_bytes)))
        folder = self.scratch / f"{family}-large"
        folder.mkdir()
        # Links: a reader sees many files, and the disk holds one.
        for number, file in enumerate(parquet_files(small.source)):
            for copy in range(copies):
                (folder / f"{copy:04d}-{number:04d}.parquet").symlink_to(file)
        return self._converted(family, folder, copies)

    def _converted(self, family: str, source: Path, copies: int) -> Data:
        name = f"{family}-{copies}"
        dataset, steps = self.scratch / f"{name}.gear", self.scratch / f"{name}.steps"
        contract = FAMILIES[family].contract
        facts = run_script(
            "gear_convert.py",
            *("--source", str(source), "--dataset", str(dataset), "--steps", str(steps), "--contract", contract),
            log=self.scratch / f"{name}.log",
        )
        origin = "given" if family in self._given else "synthetic"
        return Data(source, dataset, steps, contract, origin, copies, **facts)


def make_source(family: Family, path: Path, seed: int) -> None:
    """Writes random steps of the family's shape.

    Images go to D4RL HDF5, other steps to Parquet of episodes.
    """
    if len(family.observation) == 1:
        write_parquet(synthetic_episodes(family.steps, seed, family.observation[0], family.actions), path)
        return
    random = np.random.default_rng(seed)
    ends = np.arange(family.steps) % _FRAME_EPISODE == _FRAME_EPISODE - 1
    with h5py.File(path, "w") as file:
        frames = file.create_dataset("observations", (family.steps, *family.observation), np.uint8)
        for first in range(0, family.steps, _WRITTEN_AT_ONCE):
            some = frames[first : first + _WRITTEN_AT_ONCE].shape
            frames[first : first + _WRITTEN_AT_ONCE] = random.integers(0, 256, some, np.uint8)
        file["actions"] = random.integers(0, 18, family.steps)
        file["rewards"] = np.zeros(family.steps, np.float32)
        file["terminals"], file["timeouts"] = np.zeros(family.steps, np.bool_), ends
