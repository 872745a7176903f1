"""python -m gear_data.integrations.lerobot train: LeRobot's training script, with batches of gear-data."""

from __future__ import annotations

import importlib
import sys

from gear_data.integrations.lerobot.dataset import use_gear_data

_USAGE = "usage: python -m gear_data.integrations.lerobot train [arguments of lerobot-train]"


def main() -> None:
    """Runs `lerobot-train` with the arguments of this process."""
    if sys.argv[1:2] != ["train"]:
        sys.exit(_USAGE)
    use_gear_data()
    del sys.argv[1]
    importlib.import_module("lerobot.scripts.lerobot_train").main()


if __name__ == "__main__":
    main()
