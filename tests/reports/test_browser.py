"""Reports in Chromium: nothing fails, nothing leaves the page, and tables, viewer and copying work."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from tests.reports.conftest import named_dataset, random_episodes
from tests.reports.reference_screenshots import LIMITS, difference, names, read, take, wait_for_charts, write_page
from tests.support.browser import chromium
from tests.support.cameras.filmed import FRONT, film
from tests.support.rollouts import Rollout, write_episodes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.processes

HOSTILE = "</script><img src=x onerror=\"window.hacked=1\"><svg onload='window.hacked=2'> it's 100% \u2028"
TASKS = ["lift", HOSTILE, "push", None]


@dataclass
class Opened:
    """A page, and everything that went wrong in it."""

    page: Page
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """120 episodes of four tasks, one of them hostile, with texts and two cameras; episode 7 has a huge return."""
    folder = tmp_path_factory.mktemp("browser")
    lengths = np.random.default_rng(0).integers(3, 30, 120).tolist()
    episodes = random_episodes(lengths)
    episodes[7]["rewards"][0] = 900
    episodes[3]["observations"][1, 0] = np.nan
    for episode in episodes:
        episode["actions"][:, 1] = 4
        episode["words"] = np.array([HOSTILE] * len(episode["rewards"]))
        episode[f"infos.{HOSTILE[9:35]}"] = episode["rewards"]
    rollouts = [Rollout(columns, np.zeros(0)) for columns in episodes]
    source = write_episodes(folder / "source.parquet", rollouts, task=[TASKS[i % 4] for i in range(120)])
    gear_data.convert(source, folder / "d", progress=False)
    film(folder / "d", lengths)
    return gear_data.open(folder / "d")


@pytest.fixture(scope="module")
def file(dataset: gear_data.Dataset) -> Path:
    report = dataset.report(sampler=gear_data.Weighted("length"), compare=dataset.filter("length > 9"), frames=4)
    return report.save(dataset.path.parent / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium.executable() is None:
        reason = f"Chromium is not installed; run tests/support/browser/chromium.py ({chromium.obstacle()})"
        if os.environ.get(chromium.REQUIRED):
            pytest.fail(f"${chromium.REQUIRED} is set: {reason}")
        pytest.skip(reason)
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def film_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the reference screenshots."""
    return write_page(tmp_path_factory.mktemp("film"))


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Opened]:
    """The report in a window of 1,200 pixels; fails at the end if something went wrong or a request was made."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = Opened(context.new_page())
    page = found.page
    page.on("console", lambda message: found.problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield found
    assert page.evaluate("window.hacked") is None
    context.close()
    assert found.problems == []
    assert [url for url in found.requests if not url.startswith("data:")] == [file.as_uri()]


def scroll_through(page: Page) -> None:
    """Scrolls over the whole page, and waits until all charts are drawn."""
    for place in range(page.locator(".chart").count()):
        page.locator(".chart").nth(place).scroll_into_view_if_needed()
    wait_for_charts(page)


def column(page: Page, name: str) -> list[str]:
    """Returns the texts of a column of the episode table."""
    heads = [text.strip() for text in page.locator("#episode-table thead th").all_inner_texts()]
    return page.locator(f"#episode-table tbody tr > :nth-child({heads.index(name) + 1})").all_inner_texts()


def copied(page: Page) -> str:
    """Presses the button that copies, and returns the clipboard."""
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate("document.querySelector('#status').classList.remove('shown')")  # of an earlier copy
    page.click("#copy-where")
    page.wait_for_selector("#status.shown")
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def selected(dataset: gear_data.Dataset, text: str) -> list[int]:
    """Returns the ids that a copied option selects, as a shell and gear-data read it."""
    option, where = shlex.split(text)
    assert option == "--where"
    found: list[int] = dataset.filter(where).episodes["episode_id"].to_list()
    return found


@pytest.mark.parametrize("width", LIMITS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_section_fits_and_every_chart_is_drawn(opened: Opened, width: int, scheme: Any) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    titles = page.locator("section > h2").all_inner_texts()
    assert titles == [
        "Overview", "Episode viewer", "Returns and lengths", "Episodes", "Outliers", "Columns", "State visitation",
        "Return targets", "Sampler", "Comparison", "Findings",
    ]  # fmt: skip
    assert page.locator("nav a").all_inner_texts() == titles


@pytest.mark.parametrize("width", LIMITS)
def test_no_column_of_a_table_is_cut_off(opened: Opened, width: int) -> None:
    page = opened.page
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.locator("#overview details table").first.wait_for()
    cut = page.evaluate(
        """[...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => [each.getAttribute("aria-label"), each.scrollWidth, each.clientWidth])"""
    )
    assert cut == []
    # Nor does a cell leave its region, which hides what is outside.
    outside = page.evaluate(
        """[...document.querySelectorAll(".scroll :is(td, th)")].filter((each) => each.getClientRects().length
        && each.getBoundingClientRect().right > each.closest(".scroll").getBoundingClientRect().right + 1)
        .map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert outside == []


def test_a_narrow_page_names_the_values_of_a_row(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 390, "height": 900})
    cells = page.locator("#episode-table tbody tr").first.locator("td, th")
    names = cells.evaluate_all("(cells) => cells.map((cell) => cell.dataset.name)")
    assert names[:4] == ["select", "episode", "return", "length"]
    shown = "(cell) => getComputedStyle(cell, '::before').content"
    assert cells.nth(3).evaluate(shown) == '"length"'
    page.set_viewport_size({"width": 1400, "height": 900})
    assert cells.nth(3).evaluate(shown) == "none"


def test_facts_of_the_source_are_folded(opened: Opened) -> None:
    page = opened.page
    table = page.locator("#overview").get_by_role("region", name="Provenance")
    assert not table.is_visible()
    page.locator("#overview summary", has_text="provenance").click()
    assert "fingerprint" in table.inner_text()


def test_axes_of_counts_have_whole_numbers(opened: Opened) -> None:
    page = opened.page
    scroll_through(page)
    for chart in page.locator("#returns .chart").all()[:2]:
        labels = chart.locator(".role-axis-label").last.locator("text").all_text_contents()
        counts = [int(text.replace(",", "")) for text in labels]
        assert counts == sorted(set(counts)), labels


def test_observations_and_actions_of_one_name_share_a_chart(browser: Browser, tmp_path: Path) -> None:
    ds = named_dataset(tmp_path, ["shoulder", "elbow"], ["shoulder", "elbow"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(ds.report().save(tmp_path / "report.html").as_uri())
    joints = page.locator("#viewer-joints figure")
    assert joints.locator("figcaption").all_inner_texts() == ["shoulder", "elbow"]
    joints.first.locator("svg .mark-line path").nth(1).wait_for(state="attached")
    assert joints.first.locator(".role-legend-label text").all_text_contents() == ["observations", "actions"]
    assert page.locator("#viewer-task").inner_text() == "Task: pick"
    page.select_option("#viewer-episode", "1")
    assert page.locator("#viewer-task").inner_text() == "Task: place"
    page.close()


def test_texts_of_the_data_are_text(opened: Opened) -> None:
    page = opened.page
    scroll_through(page)
    assert page.locator("main img:not([src^='data:image/jpeg'])").count() == 0
    assert page.locator("main script").count() == 0
    assert page.get_by_text(HOSTILE.split("\u2028")[0].strip(), exact=False).count() > 3


def test_tooltips_of_charts_show_text(opened: Opened) -> None:
    page = opened.page
    page.locator("#returns select").select_option("task")
    scroll_through(page)
    bars = page.locator("#returns .chart").first.locator(".mark-rect path")
    bars.first.scroll_into_view_if_needed()
    tooltip = page.locator("#vg-tooltip-element")
    seen = False
    for place in range(bars.count()):
        box = bars.nth(place).bounding_box()
        assert box is not None
        # Others are too small to point at.
        if min(box["width"], box["height"]) > 5 and not seen:
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            tooltip.wait_for()
            seen = "onerror" in tooltip.inner_text()
    assert seen
    assert tooltip.locator("img, svg, script").count() == 0


def test_columns_sort_in_both_orders(opened: Opened, dataset: gear_data.Dataset) -> None:
    page, lengths = opened.page, sorted(dataset.lengths.tolist())
    head = page.locator("#episode-table thead button", has_text="length")
    head.click()
    assert [int(text) for text in column(page, "length")] == lengths[::-1][:50]
    assert page.locator("#episode-table th[aria-sort=descending]").inner_text() == "length"
    page.locator("#episode-table thead button", has_text="length").press("Enter")
    assert [int(text) for text in column(page, "length")] == lengths[:50]


def test_pages_have_all_episodes(opened: Opened) -> None:
    page, seen = opened.page, []
    following = page.locator("button", has_text="Next")
    for number in range(3):
        seen += column(page, "episode")
        assert following.is_disabled() == (number == 2)
        if number < 2:
            following.click()
    assert [int(text) for text in seen] == list(range(120))


def test_filters_are_copied_as_an_expression(opened: Opened, dataset: gear_data.Dataset) -> None:
    page = opened.page
    page.fill("#filter-lengthMin", "12")
    page.fill("#filter-returnMin", "-2.5")
    page.fill("#filter-returnMax", "3.25")
    page.select_option("#filter-end", "terminated")
    text = copied(page)
    assert text == "--where 'return >= -2.5 AND return <= 3.25 AND length >= 12 AND terminated'"
    table = dataset.episodes
    expected = [
        row["episode_id"]
        for row in table.iter_rows(named=True)
        if row["length"] >= 12 and -2.5 <= row["return"] <= 3.25 and row["terminated"]
    ]
    assert 5 < len(expected) < 50
    assert selected(dataset, text) == expected == [int(each) for each in column(page, "episode")]
    page.click("#clear-filters")
    assert len(column(page, "episode")) == 50
    assert page.locator("#copy-where").is_disabled()


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_filtered_and_quoted(opened: Opened, dataset: gear_data.Dataset, task: str | None) -> None:
    page = opened.page
    page.select_option("#filter-task", label="(none)" if task is None else task)
    ids = [i for i in range(120) if TASKS[i % 4] == task]
    assert [int(each) for each in column(page, "episode")] == ids
    assert selected(dataset, copied(page)) == ids


def test_ticked_rows_and_outliers_are_copied_as_ids(opened: Opened, dataset: gear_data.Dataset) -> None:
    page = opened.page
    for episode in (2, 3, 4, 9):
        page.check(f"[aria-label='select episode {episode}']")
    assert copied(page) == "--where 'episode_id BETWEEN 2 AND 4 OR episode_id = 9'"
    assert selected(dataset, copied(page)) == [2, 3, 4, 9]
    page.click("#clear-filters")
    page.select_option("#filter-outlier", "return")
    assert 7 in selected(dataset, copied(page))
    assert selected(dataset, copied(page)) == sorted(int(each) for each in column(page, "episode"))


def test_without_a_clipboard_the_text_is_selected(opened: Opened) -> None:
    page = opened.page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.check("[aria-label='select episode 5']")
    page.click("#copy-where")
    page.wait_for_selector("#status.shown")
    assert page.locator("#where").input_value() == "--where 'episode_id = 5'"


def test_the_viewer_shows_values_and_frames_of_the_step(opened: Opened, dataset: gear_data.Dataset) -> None:
    page = opened.page
    labels = page.locator("#viewer-episode option").all_inner_texts()
    place = next(i for i, label in enumerate(labels) if label.startswith("episode 7:"))
    page.select_option("#viewer-episode", str(place))
    episode = dataset.episode(7)
    assert int(page.get_attribute("#viewer-step", "max") or "") == episode.length - 1
    images = page.locator("#viewer-frames img")
    assert images.count() == 2
    first = images.first.get_attribute("src")
    # Not a click: charts that are drawn meanwhile move it.
    page.locator("#viewer details summary", has_text="Values at this step").press("Enter")
    page.focus("#viewer-step")
    page.keyboard.press("End")
    last = episode.length - 1
    assert page.locator("#viewer-at").inner_text() == f"step {last} of {episode.length}"
    row = page.locator("#viewer details tr", has=page.locator("th", has_text=re.compile(r"^observations\[1\]$")))
    shown = float(row.locator("td").inner_text().replace(",", ""))
    assert shown == pytest.approx(float(episode["observations"][last, 1]), rel=2e-3, abs=1e-3)
    assert images.first.get_attribute("src") != first
    assert images.first.get_attribute("alt") == f"{FRONT} at step {last}"
    assert images.first.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0


def shown_steps(page: Page) -> list[int]:
    """Returns the step of the slider, and the step of each camera's frame, all at one time."""
    value, *captions = page.evaluate(
        """[document.querySelector("#viewer-step").value,
        ...[...document.querySelectorAll("#viewer-frames figcaption")].map((each) => each.textContent)]"""
    )
    return [int(value), *(int(text.rsplit(" ", 1)[1]) for text in captions)]


def longest(page: Page) -> int:
    """Opens the longest episode of the viewer. Returns its number of steps."""
    labels = page.locator("#viewer-episode option").all_inner_texts()
    lengths = [int(re.findall(r": ([\d,]+) step", label)[0].replace(",", "")) for label in labels]
    page.select_option("#viewer-episode", str(int(np.argmax(lengths))))
    return max(lengths)


def test_the_player_plays_all_cameras_to_the_end(browser: Browser, film_report: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(film_report.as_uri())
    length = longest(page)
    play = page.locator("#viewer-play")
    assert play.inner_text().strip() == "Play"
    page.select_option("#viewer-speed", "2")
    seen: set[int] = set()
    play.click()
    while play.inner_text().strip() == "Pause":
        steps = set(shown_steps(page))
        assert max(steps) - min(steps) <= 1  # of the longest episodes not every frame may be in the page
        seen |= steps
        page.wait_for_timeout(20)
    assert shown_steps(page) == [length - 1] * 3
    assert len(seen) > 5
    # From the end it begins again; a moved slider stops it.
    play.click()
    assert play.inner_text().strip() == "Pause" and shown_steps(page)[0] < length - 1
    page.locator("#viewer-step").fill("3")
    assert play.inner_text().strip() == "Play" and shown_steps(page) == [3, 3, 3]
    page.close()


def test_speed_is_of_the_rate_of_the_cameras(browser: Browser, film_report: Path) -> None:
    """The source states 30 frames a second: at speed 4x 60 steps in half a second."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.clock.install()
    page.goto(film_report.as_uri())
    page.clock.run_for(1000)
    longest(page)
    page.clock.pause_at(page.evaluate("Date.now()") + 10_000)
    for speed, steps in (("1", 15), ("4", 60), ("0.5", 7)):
        page.select_option("#viewer-speed", speed)
        page.locator("#viewer-step").fill("0")
        page.locator("#viewer-play").click()
        page.clock.run_for(516)
        assert abs(shown_steps(page)[0] - steps) <= 1
        page.locator("#viewer-play").click()
    page.close()


def test_the_keyboard_plays_and_steps(opened: Opened) -> None:
    page = opened.page
    longest(page)
    page.focus("#viewer-step")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-step").input_value() == "2"
    page.keyboard.press(" ")
    assert page.locator("#viewer-play").inner_text().strip() == "Pause"
    page.keyboard.press(" ")
    assert page.locator("#viewer-play").inner_text().strip() == "Play"
    page.locator("#viewer-step").fill("4")
    page.focus("[aria-label='one step back']")
    page.keyboard.press(" ")
    assert page.locator("#viewer-step").input_value() == "3"
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-step").input_value() == "4"
    page.focus("#viewer-play")
    page.keyboard.press("Enter")
    assert page.locator("#viewer-play").inner_text().strip() == "Pause"
    page.select_option("#viewer-episode", "0")
    assert page.locator("#viewer-play").inner_text().strip() == "Play"


def test_the_player_says_the_text_of_the_step(browser: Browser, tmp_path: Path) -> None:
    episodes = random_episodes([6, 5])
    for episode in episodes:
        count = len(episode["rewards"])
        episode["observations.instruction"] = np.array(["reach"] * 3 + ["grasp"] * (count - 3))
    source = write_episodes(tmp_path / "source.parquet", [Rollout(each, np.zeros(0)) for each in episodes])
    gear_data.convert(source, tmp_path / "d", progress=False)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(gear_data.open(tmp_path / "d").report().save(tmp_path / "report.html").as_uri())
    assert page.locator("#viewer-said").inner_text() == "observations.instruction: reach"
    page.locator("#viewer-step").fill("3")
    assert page.locator("#viewer-said").inner_text() == "observations.instruction: grasp"
    assert page.locator("#viewer-at").inner_text() == "step 3 of 6"
    page.close()


def test_a_mixture_has_a_viewer_of_each_dataset(browser: Browser, dataset: gear_data.Dataset, tmp_path: Path) -> None:
    named_dataset(tmp_path, ["shoulder"], ["shoulder"])
    text = f"datasets: [{{path: {tmp_path / 'made'}}}, {{path: {dataset.path}}}]"
    (tmp_path / "mix.yaml").write_text(text)
    assert main(["report", str(tmp_path / "mix.yaml"), str(tmp_path / "mix.html")]) == 0
    page = browser.new_page(viewport={"width": 390, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((tmp_path / "mix.html").as_uri())
    titles = page.locator("section > h2").all_inner_texts()
    assert titles[:2] == ["Datasets", "Keys of batches"] and titles[-1] == "Episode viewer"
    assert page.locator("#viewer-dataset option").all_inner_texts() == ["0: made", "1: d"]
    assert page.locator("#viewer-joints figcaption").all_inner_texts() == ["shoulder"]
    assert page.locator("#viewer-frames img").count() == 0
    page.select_option("#viewer-dataset", "1")
    assert page.locator("#viewer-frames img").count() == 2
    assert page.locator("#viewer-joints figcaption").count() == 0
    page.locator("#viewer-frames img").last.evaluate("(image) => image.decode()")
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
    assert problems == []


@pytest.mark.parametrize(("name", "width", "scheme"), names())
def test_sections_look_as_their_reference(
    browser: Browser, film_report: Path, name: str, width: int, scheme: Any
) -> None:
    reference, found = read(name), take(browser, film_report, width, scheme)
    assert list(found.sections) == list(reference.sections)
    differences = {section: round(difference(reference, found, section), 1) for section in found.sections}
    assert max(differences.values()) < LIMITS[width], differences


def test_a_page_without_charts_or_frames_does_not_look_as_its_reference(
    browser: Browser, film_report: Path, tmp_path: Path
) -> None:
    changed = film_report.read_text(encoding="utf-8").replace(
        "</style>", ".chart svg, .frames { visibility: hidden } </style>", 1
    )
    (tmp_path / "page.html").write_text(changed, encoding="utf-8")
    reference, found = read("1400-light"), take(browser, tmp_path / "page.html", 1400, "light")
    for section in ("viewer", "returns", "columns", "targets", "sampler"):
        assert difference(reference, found, section) > LIMITS[1400]
    for section in ("overview", "episodes", "findings"):
        assert difference(reference, found, section) < LIMITS[1400]


def test_a_row_opens_its_episode_in_the_viewer(opened: Opened) -> None:
    page = opened.page
    button = page.locator("[aria-label^='view episode']").nth(1)
    number = (button.get_attribute("aria-label") or "").split()[-1]
    button.click()
    chosen = page.locator("#viewer-episode option:checked", has_text=re.compile(f"^episode {number}:"))
    chosen.wait_for(state="attached")


def test_marked_dimensions(opened: Opened) -> None:
    page = opened.page
    # A key reaches the box also while the page scrolls, and a click may not.
    page.locator("#only-marked").press("Space")
    page.locator("#only-marked:checked").wait_for(state="attached")
    rows = page.locator("#column-table tbody tr").all_inner_texts()
    marks = {text.split()[0]: text for text in rows}
    assert "constant" in marks["actions[1]"]
    assert "1 NaN" in marks["observations[0]"]
    assert "observations[1]" not in marks
    page.locator("#column-table tbody button", has_text="actions[1]").click()
    assert page.locator("#column-note").inner_text().startswith("actions[1]:")


def test_the_comparison_sorts_by_its_statistic(opened: Opened) -> None:
    page = opened.page
    shown = [float(text) for text in page.locator("#drift-table tbody tr > :nth-child(2)").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    assert "drift" in page.locator("#drift-table tbody tr").first.inner_text()


def test_the_switch_changes_the_colours(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(color_scheme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.click("#theme")
    assert page.evaluate(back) != light
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    page.click("#theme")
    assert page.evaluate(back) == light != dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_at_least_4_5(opened: Opened, scheme: Any) -> None:
    """WCAG 2.2 AA for text, of all texts outside charts."""
    opened.page.emulate_media(color_scheme=scheme)
    worst = opened.page.evaluate(_CONTRAST)
    assert worst["ratio"] >= 4.5, worst


_CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  let worst = {ratio: 99};
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest("svg, script, style, #status, button:disabled") || !node.getClientRects().length) continue;
    const pair = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < worst.ratio) worst = {ratio, tag: node.outerHTML.slice(0, 200)};
  }
  return worst;
}"""


def test_everything_has_a_name_and_the_keyboard_reaches_it(opened: Opened) -> None:
    page = opened.page
    scroll_through(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea, img, svg[role=img], [role=region]")]
        .filter((node) => !(node.innerText || node.getAttribute("aria-label") || node.alt || node.labels?.length))
        .map((node) => node.outerHTML.slice(0, 200))"""
    )
    assert nameless == []
    undescribed = "[...document.querySelectorAll('.chart')].filter((each) => !each.getAttribute('aria-label')).length"
    assert page.evaluate(undescribed) == 0
    page.keyboard.press("Home")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_printing_draws_all_charts(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    wait_for_charts(page)
    assert page.pdf()[:5] == b"%PDF-"
    # Paper is white, also if the charts were drawn in dark colours.
    page.emulate_media(media="print", color_scheme="dark")
    fills = "[...document.querySelectorAll('.chart svg text')].map((text) => getComputedStyle(text).fill)"
    assert set(page.evaluate(fills)) == {"rgb(27, 31, 36)"}
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"


def test_a_notebook_shows_the_page_in_a_frame(browser: Browser, dataset: gear_data.Dataset, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><meta charset=utf-8>{dataset.report()._repr_html_()}", encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(notebook.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#overview").wait_for()
    frame.locator("#theme").click()
    frame.locator("[aria-label='select episode 1']").check()
    assert frame.locator("#where").input_value() == "--where 'episode_id = 1'"
    frame.locator("#returns").scroll_into_view_if_needed()
    frame.locator("#returns .chart svg").first.wait_for()
    page.close()
    assert problems == []
