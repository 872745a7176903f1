"""Reference screenshots of a report: taking them, and comparing others with them.

    python -m tests.reports.reference_screenshots    takes them again, into tests/reports/screenshots; look at them

A screenshot has the whole page, at half its size. `sections.json` has the places of the sections. Fonts differ between
machines, and with them the heights of sections. So sections are compared one by one, as coarse pictures of grey.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

import gear_data
from tests.reports.conftest import named_dataset
from tests.support.browser import chromium
from tests.support.cameras.filmed import film
from tests.support.rollouts import Rollout

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).with_name("screenshots")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_EPISODES, _SCALE, _QUALITY = 24, 2, 20
#: Largest difference of a section for each width. Other fonts and sizes of text differ by up to 4.5 and 6.9; a section
#: without its charts by 5 to 20, other colours of the page by 5 to 100.
LIMITS = {1400: 5.0, 390: 8.0}
#: Side of a cell of the coarse pictures, in pixels of a reference.
_CELL = 20
_JOINTS = ["shoulder", "elbow", "gripper"]


@dataclass(frozen=True)
class Screenshot:
    """A page: its picture, and the place of each section in it.

    Attributes:
        picture: the page, at half its size.
        sections: id -> top and height, in pixels of the picture.
    """

    picture: Image.Image
    sections: dict[str, tuple[int, int]]

    def coarse(self, section: str, size: tuple[int, int]) -> npt.NDArray[np.float64]:
        """Returns a section as grey cells, [rows, columns], 0 to 255."""
        top, height = self.sections[section]
        part = self.picture.convert("L").crop((0, top, self.picture.width, top + height))
        return np.asarray(part.resize(size, Image.Resampling.BOX), np.float64)


def difference(reference: Screenshot, other: Screenshot, section: str) -> float:
    """Returns the mean difference of a section's cells, in shades of grey of 255."""
    height = reference.sections[section][1]
    size = (reference.picture.width // _CELL, max(1, height // _CELL))
    return float(np.abs(reference.coarse(section, size) - other.coarse(section, size)).mean())


def write_page(folder: Path) -> Path:
    """Writes the report of a robot with named joints, two cameras, two tasks, a sampler and a comparison."""
    rng = np.random.default_rng(0)
    rollouts = []
    for number in range(_EPISODES):
        length = 40 + 4 * number
        time = np.arange(length)[:, None] / 10
        state = np.sin(time * [1, 0.7, 1.3] + 0.4 * number) * [1, 0.5, 0.2]
        last = np.arange(length) == length - 1
        columns = {
            "observations": state.astype(np.float32),
            "actions": (state + rng.normal(scale=0.05, size=state.shape)).clip(-0.9, 0.9).astype(np.float32),
            "rewards": np.cos(time[:, 0] + number).astype(np.float32) + np.float32(number / _EPISODES),
            "terminated": last & (number % 2 == 0),
            "truncated": last & (number % 2 == 1),
        }
        rollouts.append(Rollout(columns, np.zeros(0)))
    rollouts[5].columns["rewards"][0] = 300
    dataset = named_dataset(folder, _JOINTS, _JOINTS, rollouts)
    film(dataset.path, dataset.lengths.tolist())
    dataset = gear_data.open(dataset.path)
    report = dataset.report(sampler=gear_data.Weighted("length"), compare=dataset.filter("length > 60"))
    return report.save(folder / "report.html")


def take(browser: Browser, page_file: Path, width: int, scheme: Literal["light", "dark"]) -> Screenshot:
    """Takes a screenshot of a page, with all of its charts."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]")
    # Charts are drawn when they come into view.
    page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
    wait_for_charts(page)
    page.locator("#viewer-frames img").last.evaluate("(image) => image.decode()")
    boxes = page.evaluate(
        "[...document.querySelectorAll('section')].map((each) => [each.id, each.offsetTop, each.offsetHeight])"
    )
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB").reduce(_SCALE)
    page.close()
    return Screenshot(picture, {name: (top // _SCALE, height // _SCALE) for name, top, height in boxes})


def wait_for_charts(page: Page) -> None:
    """Waits until all charts that came into view are drawn."""
    # The page's policy refuses the code of `Page.wait_for_function`.
    for _ in range(1200):
        if page.evaluate("[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('svg'))"):
            return
        page.wait_for_timeout(50)
    raise TimeoutError("a chart was not drawn in a minute")


def names() -> Iterator[tuple[str, int, Literal["light", "dark"]]]:
    """Yields the name, the width and the colours of each reference."""
    for width, scheme in product(LIMITS, SCHEMES):
        yield f"{width}-{scheme}", width, scheme


def read(name: str) -> Screenshot:
    """Returns a reference."""
    sections = json.loads((FOLDER / "sections.json").read_text())[name]
    with Image.open(FOLDER / f"{name}.webp") as picture:
        return Screenshot(picture.convert("RGB"), {each: (top, height) for each, (top, height) in sections.items()})


def renew() -> None:
    """Takes all references again."""
    sections = {}
    with tempfile.TemporaryDirectory() as folder, chromium.browser() as browser:
        page_file = write_page(Path(folder))
        for name, width, scheme in names():
            taken = take(browser, page_file, width, scheme)
            taken.picture.save(FOLDER / f"{name}.webp", quality=_QUALITY, method=6)
            sections[name] = taken.sections
    (FOLDER / "sections.json").write_text(json.dumps(sections, indent=1) + "\n")


if __name__ == "__main__":
    renew()
