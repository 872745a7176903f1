"""The files of the examples."""

from __future__ import annotations

from pathlib import Path

from gear_data.errors import unknown_name

_FOLDER = Path(__file__).parent


def example(name: str) -> Path:
    """Returns the path of a small Parquet file that comes with gear-data, one row per episode.

    It is a source like a file of your own: `gear_data.open(gear_data.example("pendulum"))`. Copy the file to use it
    under a short name on the command line. The license is gear-data's.

    Args:
        name: `pendulum`: 60 episodes of Gymnasium's Pendulum-v1 with 200 steps each, by policies from random to good.
            Observations are float32 [3], actions float32 [1]; returns run from -1517 to 0.

    Raises:
        UnknownNameError: there is no example of this name.
    """
    path = _FOLDER / f"{name}.parquet"
    known = sorted(file.stem for file in _FOLDER.glob("*.parquet"))
    if name not in known:
        raise unknown_name("example", name, known)
    return path
