"""Takes the screenshot of the documentation: two parts of a report, side by side.

    python -m tests.support.browser.screenshot docs/assets/report.png

The dataset are rollouts of Pendulum by policies of different skill, as in `gear-data demo`, with a camera each step.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from PIL import Image

import gear_data
from gear_data.demo.rollouts import write_rollouts
from tests.support.browser import chromium
from tests.support.cameras.filmed import film

_EPISODES = 60
_SIZE = {"width": 1000, "height": 760}
#: Sections of the two halves.
_SECTIONS = ("episodes", "viewer")


def take(path: Path) -> None:
    """Writes the screenshot: the episode table in light colours, and the viewer in dark ones."""
    with tempfile.TemporaryDirectory() as folder:
        write_rollouts(Path(folder, "rollouts", "pendulum.parquet"), _EPISODES, 0, False)
        dataset = Path(folder, "pendulum")
        gear_data.convert(Path(folder, "rollouts"), dataset, progress=False)
        film(dataset, gear_data.open(dataset).lengths.tolist())
        page_file = gear_data.open(dataset).report().save(Path(folder, "report.html"))
        shots = []
        with chromium.browser() as browser:
            for section, scheme in zip(_SECTIONS, ("light", "dark"), strict=True):
                page = browser.new_page(viewport=_SIZE, color_scheme=scheme, reduced_motion="reduce")
                page.goto(page_file.as_uri())
                page.locator(f"#{section}").evaluate("(node) => node.scrollIntoView()")
                page.wait_for_timeout(1500)
                shots.append(Image.open(io.BytesIO(page.screenshot())))
    both = Image.new("RGB", (sum(shot.width for shot in shots), shots[0].height))
    for number, shot in enumerate(shots):
        both.paste(shot, (number * shot.width, 0))
    both.quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the PNG file to write")
    take(parser.parse_args().path)
