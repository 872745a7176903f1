"""Makes the small datasets in `gear_data/examples/`, from rollouts of Gymnasium.

    python scripts/make_examples.py [FOLDER]

They are committed: run it only to change them. Versions of NumPy and Gymnasium may change last digits.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gear_data.demo.rollouts import write_rollouts

ROOT = Path(__file__).resolve().parent.parent
EPISODES, SEED = 60, 0


def main(folder: Path) -> None:
    write_rollouts(folder / "pendulum.parquet", EPISODES, SEED, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "gear_data" / "examples")
