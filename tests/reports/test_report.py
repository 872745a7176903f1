"""The facts of a report, from the dataset to the file."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, MissingExtraError, UnknownNameError
from tests.reports.conftest import Make, random_episodes


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_facts_of_groups_agree_with_loops(make: Make) -> None:
    lengths, tasks, success = [3, 9, 4, 6], ["lift", "push", "lift", None], [True, False, True, False]
    episodes = random_episodes(lengths)
    report = make(episodes, task=tasks, success=success).report()
    rates = {(rate["grouping"], rate["group"]): rate for rate in report.facts["rates"]}
    assert rates["all", ""]["terminated"] == rates["all", ""]["truncated"] == 0.5
    assert rates["all", ""]["success"] == 0.5
    lift = rates["task", "lift"]
    assert (lift["episodes"], lift["steps"], lift["terminated"], lift["success"]) == (2, 7, 1, 1)
    returns = [float(each["rewards"].astype(np.float64).sum()) for each in episodes]
    assert lift["return"] == pytest.approx((returns[0] + returns[2]) / 2, rel=1e-5)
    assert rates["task", "(none)"]["episodes"] == 1
    histogram = report.facts["histograms"]["length"]
    assert sum(histogram["counts"]) == 4
    assert [sum(counts) for counts in histogram["groups"]["task"]] == [2, 1, 1]
    assert report.drawings["table"]["return"] == pytest.approx(returns, rel=1e-6)
    assert report.drawings["table"]["success"] == [1, 0, 1, 0]


def test_success_of_steps_counts_once_an_episode(make: Make) -> None:
    episodes = random_episodes([3, 5])
    for episode, at in zip(episodes, (1, None), strict=True):
        episode["infos.success"] = np.arange(len(episode["rewards"])) == (-1 if at is None else at)
    assert make(episodes).report().facts["rates"][0]["success"] == 0.5


def test_outliers_are_found_and_in_the_table(make: Make) -> None:
    episodes = random_episodes([10] * 20)
    episodes[7]["rewards"][3] = 500
    report = make(episodes).report()
    (by_return,) = [each for each in report.facts["outliers"] if each["measure"] == "return"]
    assert by_return["episodes"] == [7]
    assert "return" in report.drawings["table"]["outlier"][7]
    assert report.drawings["viewer"]["episodes"][-1]["id"] == 19


@pytest.mark.parametrize("column", ["rewards", "observations"])
@pytest.mark.parametrize("values", [(1e308, 1e308), (1e308, -1e308), (-1e308, np.inf), (np.nan, 1e200)])
def test_values_whose_squares_are_infinite_count_as_infinite(
    column: str, values: tuple[float, float], make: Make
) -> None:
    episodes = random_episodes([10] * 6)
    for episode in episodes:
        episode[column] = episode[column].astype(np.float64)
    for place, value in enumerate(values):
        episodes[place][column][3] = value
    report = make(episodes).report()
    (found,) = [each for each in report.facts["columns"] if each["name"] == column]
    for dimension in found["dimensions"]:
        assert dimension["nan"] + dimension["infinite"] == 2 and dimension["count"] == 58
        assert abs(dimension["max"]) < 1e3


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("column", ["rewards", "observations", "actions"])
@pytest.mark.parametrize("value", [1e308, -1e308])
def test_large_values_in_all_episodes_make_a_page(column: str, value: float, make: Make) -> None:
    episodes = random_episodes([10] * 4)
    for episode in episodes:
        episode[column] = episode[column].astype(np.float64)
        episode[column][3] = value
    assert make(episodes).report().html


def test_groups_of_single_episodes_and_absent_rewards_are_left_out(make: Make) -> None:
    episodes = [
        {"observations": each["observations"], "actions": each["actions"]} for each in random_episodes([5] * 20)
    ]
    report = make(episodes, task=[f"task {i}" for i in range(20)], split=["train", "val"] * 10).report()
    assert report.facts["groups"].keys() == {"split"}
    assert [each["measure"] for each in report.facts["outliers"]] == ["length", "jerk", "idle", "jump"]
    assert report.facts["rates"][0]["return"] is None
    assert set(report.drawings["table"]["return"]) == {None}


def test_rare_groups_are_counted_together(make: Make) -> None:
    tasks = [name for place, name in enumerate("abcdefghijklmnop") for _ in range(3 if place < 12 else 2)]
    report = make(random_episodes([3] * len(tasks)), task=tasks).report()
    names = report.facts["groups"]["task"]["names"]
    assert (len(names), names[-1], report.facts["groups"]["task"]["other"]) == (13, "(other)", 12)
    rates = {rate["group"]: rate["episodes"] for rate in report.facts["rates"] if rate["grouping"] == "task"}
    assert rates == {**dict.fromkeys("abcdefghijkl", 3), "(other)": 8}


def test_sparklines_follow_the_rewards(make: Make) -> None:
    episodes = random_episodes([48, 1])
    episodes[0]["rewards"] = np.repeat(np.arange(24, dtype=np.float32), 2)
    spark = make(episodes).report().drawings["table"]["spark"]
    assert (len(spark[0]), spark[0][0], spark[0][-1]) == (24, "0", "z")
    assert sorted(spark[0]) == list(spark[0])
    assert spark[1] == "0" * 24


def test_targets_are_quantiles_of_the_returns_to_go(make: Make) -> None:
    episodes = random_episodes([4, 6, 9])
    targets = make(episodes).report().facts["targets"]
    to_go = [each["rewards"].astype(np.float64)[::-1].cumsum()[::-1] for each in episodes]
    assert targets["steps"] == list(range(9))
    assert targets["episodes"] == [3, 3, 3, 3, 2, 2, 1, 1, 1]
    expected = np.quantile([each[4] for each in to_go if len(each) > 4], targets["probabilities"])
    assert targets["quantiles"][4] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert targets["targets"]["largest"] == pytest.approx(max(each[0] for each in to_go), rel=1e-5)


def test_curves_have_the_values_of_the_steps(make: Make) -> None:
    episodes = random_episodes([700, 5])
    viewer = make(episodes).report().drawings["viewer"]
    names = [column["name"] for column in viewer["columns"]]
    first = viewer["episodes"][0]
    assert (first["length"], len(first["steps"]), first["steps"][-1]) == (700, 200, 699)
    curve = first["values"][names.index("observations")][2]
    assert curve == pytest.approx(episodes[0]["observations"][first["steps"], 2], rel=1e-3)


def test_a_large_dataset_is_sampled_and_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(random_episodes([10] * 30))
    assert dataset.report().facts["sample"]["complete"]
    draw = gear_data.reports.report.draw_sample
    monkeypatch.setattr("gear_data.reports.report.draw_sample", lambda dataset: draw(dataset, 100))
    report = dataset.report()
    sample = report.facts["sample"]
    assert (sample["complete"], sample["episodes"], sample["steps"], sample["of_steps"]) == (False, 10, 100, 300)
    assert sum(report.facts["histograms"]["length"]["counts"]) == 30
    assert len(report.drawings["table"]["id"]) == 10


def test_a_report_of_a_view_is_of_its_episodes(make: Make) -> None:
    view = make(random_episodes([3, 4, 5, 6])).filter("length >= 5")
    report = view.report(sampler="shuffle")
    assert report.drawings["table"]["id"] == [2, 3]
    assert report.facts["sampler"]["steps"] == 11


def test_the_file_has_the_facts_and_a_notebook_shows_it(make: Make, tmp_path: Path) -> None:
    dataset = make(random_episodes([3, 4]), task=["<b>", "x"])
    report = gear_data.report(dataset, compare=dataset)
    path = report.save(tmp_path / "deep" / "page.html")
    text = path.read_text(encoding="utf-8")
    found = data_of(text)
    assert found["summary"]["fingerprint"] == dataset.fingerprint
    assert {row["statistic"] for row in found["comparison"]["rows"]} == {0}
    assert json.loads(json.dumps(report.to_json())) == {name: found[name] for name in report.facts}
    assert str(tmp_path) not in text and found["provenance"]["source"] == "source-1.parquet"
    assert found["path"] == found["comparison"]["path"] == "made-1"
    frame = report._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(source) == text
    assert 'sandbox="allow-scripts"' in frame


def test_a_relative_path_is_named_without_its_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(random_episodes([3, 4]))
    monkeypatch.chdir(tmp_path.parent)
    folder = tmp_path.name
    gear_data.convert(f"{folder}/source-1.parquet", f"{folder}/made", progress=False)
    report = gear_data.report(gear_data.open(f"{folder}/made"), compare=gear_data.open(f"{folder}/made-1"))
    assert folder not in json.dumps(report.to_json())
    assert (report.facts["path"], report.facts["provenance"]["source"]) == ("made", "source-1.parquet")
    assert folder not in (tmp_path / "made" / "README.md").read_text()


@pytest.mark.parametrize("frames", [-1, 2.5, True])
def test_bad_arguments(make: Make, frames: Any) -> None:
    dataset = make(random_episodes([3, 4]))
    with pytest.raises(InvalidArgumentError, match="frames must be an integer"):
        dataset.report(frames=frames)
    with pytest.raises(UnknownNameError, match="no-such"):
        dataset.report(sampler="no-such")


def test_the_extra_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"gear-data\[report\]"):
        make(random_episodes([3, 4])).report()


def test_a_dataset_without_rewards_and_vectors(make: Make) -> None:
    texts = (["a", "b", "b"], ["c"])
    episodes = [
        {"texts": np.array(each), "actions": np.arange(len(each)), "observations": np.ones((len(each), 2), int)}
        for each in texts
    ]
    report = make(episodes).report()
    assert report.facts["targets"] is None
    assert report.drawings["visitation"] is None
    assert report.drawings["viewer"]["episodes"][0]["texts"] == [{"name": "texts", "texts": [[0, "a"], [1, "b"]]}]
    assert report.html
