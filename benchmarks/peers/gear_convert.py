"""Converts a source to a gear-data dataset, and to arrays for the peers.

The arrays are one .npy file per column, [N, *shape]; rewards and return-to-go are [N, 1]. `lengths` and `terminated`
have one value per episode. The arrays are written episode by episode, so the steps are never in memory twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from harness import COLUMNS, CONTRACTS, RAW, claim_stdout, say

import gear_data

RAW_COLUMNS = ("observations", "actions")


def write_steps(dataset: gear_data.Dataset, names: tuple[str, ...], folder: Path) -> dict[str, object]:
    """Writes the arrays, and returns the facts that feed.py reports."""
    folder.mkdir()
    np.save(folder / "lengths.npy", dataset.episodes["length"].to_numpy().astype(np.int64))
    np.save(folder / "terminated.npy", dataset.episodes["terminated"].to_numpy().astype(np.bool_))
    shapes, step_bytes = {}, 0
    for name in names:
        spec = dataset.schema[name]
        file = np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=spec.numpy_dtype, shape=(dataset.num_steps, *(spec.shape or (1,)))
        )
        row = 0
        for episode in range(dataset.num_episodes):
            values = dataset.episode(episode)[name]
            file[row : row + len(values)] = values.reshape(-1, *file.shape[1:])
            row += len(values)
        shapes[name] = f"{'x'.join(map(str, spec.shape)) or 'scalar'} {spec.dtype}"
        step_bytes += spec.row_bytes
    return {
        "num_steps": dataset.num_steps,
        "num_episodes": dataset.num_episodes,
        "step_bytes": step_bytes,
        "shapes": shapes,
    }


def divide_observations(whole: Path, divided: Path) -> None:
    """Writes a copy of a dataset that has the halves of the observations as columns, too."""
    dataset = gear_data.open(whole)
    episodes = []
    for number in range(dataset.num_episodes):
        columns = dataset.episode(number)
        values = columns["observations"]
        half = values.shape[1] // 2
        named = {name: columns[name] for name in RAW_COLUMNS}
        episodes.append({**named, "first_half": values[:, :half], "second_half": values[:, half:]})
    gear_data.convert(episodes, divided, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="anything gear_data.convert takes")
    parser.add_argument("--dataset", type=Path, required=True, help="the gear-data dataset to make")
    parser.add_argument("--steps", type=Path, required=True, help="the folder of arrays to make")
    parser.add_argument(
        "--contract",
        choices=CONTRACTS,
        required=True,
        help="columns of a batch",
    )
    args = parser.parse_args()
    out = claim_stdout()
    raw, stacked = args.contract in RAW, args.contract == "stacked"
    converted = args.dataset.with_suffix(".whole") if stacked else args.dataset
    gear_data.convert(args.source, converted, columns=RAW_COLUMNS if raw else None, progress=False, follow_links=True)
    if stacked:
        divide_observations(converted, args.dataset)
    say(out, write_steps(gear_data.open(args.dataset), RAW_COLUMNS if raw else COLUMNS, args.steps))


if __name__ == "__main__":
    main()
