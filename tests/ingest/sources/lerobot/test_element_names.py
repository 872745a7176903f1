"""Names of a vector's elements: declared, stored, shown, and exported again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli.description import describe
from gear_data.dataset.curation.column_statistics import statistics_rows
from gear_data.errors import UnsupportedColumnError
from gear_data.reports.distributions import column_distributions
from gear_data.reports.facts import summarize
from gear_data.reports.step_sample import draw_sample
from tests.support.rollouts import make_rollouts, write_lerobot

JOINTS = ["shoulder", "elbow", "grip"]


def write(folder: Path, names: Any, *, of: str = "observation.state") -> Path:
    write_lerobot(folder, make_rollouts(3, seed=1))
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"][of]["names"] = names
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def convert(source: Path, target: Path, **options: Any) -> gear_data.Dataset:
    gear_data.convert(source, target, progress=False, **options)
    return gear_data.open(target)


@pytest.mark.parametrize(
    "names",
    [JOINTS, [JOINTS], {"motors": JOINTS}, {"elbow": 1, "shoulder": 0, "grip": 2}, {"a": JOINTS[:1], "b": JOINTS[1:]}],
)
def test_declared_names(names: Any, tmp_path: Path) -> None:
    ds = convert(write(tmp_path / "s", names), tmp_path / "d")
    assert ds.schema["observations"].size == 3
    assert ds.schema["observations"].element_names == tuple(JOINTS)
    assert ds.schema["actions"].element_names == ()
    plain = convert(write_lerobot(tmp_path / "plain", make_rollouts(3, seed=1)), tmp_path / "e")
    assert ds.fingerprint == plain.fingerprint
    assert "element_names" not in (tmp_path / "e/manifest.json").read_text()


@pytest.mark.parametrize(("names", "findings"), [(["state"], 0), (None, 0), ([], 0), (["a", "b"], 1), (7, 0)])
def test_other_names(names: Any, findings: int, tmp_path: Path) -> None:
    """One name is the name of the axis."""
    report = gear_data.convert(write(tmp_path / "s", names), tmp_path / "d", progress=False)
    found = [each for each in report.warnings if "names 2 elements" in each]
    assert len(found) == findings
    assert gear_data.open(tmp_path / "d").schema["observations"].element_names == ()


def test_a_scalar_has_one_name(tmp_path: Path) -> None:
    ds = convert(write(tmp_path / "s", ["torque"], of="next.reward"), tmp_path / "d")
    assert ds.schema["rewards"].element_names == ("torque",)


def test_names_are_shown(tmp_path: Path) -> None:
    ds = convert(write(tmp_path / "s", JOINTS), tmp_path / "d")
    assert "observations: shoulder, elbow, grip" in describe(ds)
    assert summarize(ds)["columns"]["observations"]["element_names"] == JOINTS
    assert "shoulder, elbow, grip" in ds._repr_html_()
    assert [row["name"] for row in statistics_rows(ds, ["observations"], [0.5])][:3] == JOINTS
    labels = {column["name"]: column["labels"] for column in column_distributions(draw_sample(ds))}
    assert labels["observations"] == [f"observations[{joint}]" for joint in JOINTS]
    assert labels["rewards"] == ["rewards"]
    assert labels["actions"] == [f"actions[{i}]" for i in range(ds.schema["actions"].size)]


def test_names_are_exported_and_stacked(tmp_path: Path) -> None:
    ds = convert(write(tmp_path / "s", JOINTS), tmp_path / "d")
    gear_data.export(ds, tmp_path / "lerobot", "lerobot")
    info = json.loads((tmp_path / "lerobot/meta/info.json").read_text())
    assert info["features"]["observation.state"]["names"] == JOINTS
    assert info["features"]["action"]["names"] is None
    back = convert(tmp_path / "lerobot", tmp_path / "back")
    assert back.schema["observations"].element_names == tuple(JOINTS)
    parts = {"both": ["observations", "actions"]}
    assert convert(tmp_path / "s", tmp_path / "a", stack=parts).schema["both"].element_names == ()
    info = json.loads((tmp_path / "s/meta/info.json").read_text())
    info["features"]["action"]["names"] = [f"a{i}" for i in range(ds.schema["actions"].size)]
    (tmp_path / "s/meta/info.json").write_text(json.dumps(info))
    stacked = convert(tmp_path / "s", tmp_path / "b", stack=parts).schema["both"]
    assert stacked.element_names == (*JOINTS, *info["features"]["action"]["names"])


def test_one_column_of_two_orders_is_refused(tmp_path: Path) -> None:
    """Numbers of one joint must not become another joint's. Datasets without names, or with other names, merge."""
    for number, names in enumerate((JOINTS, JOINTS[::-1], None, ["a", "b", "c"])):
        convert(write(tmp_path / f"s{number}", names), tmp_path / f"d{number}")
    first = tmp_path / "d0"
    with pytest.raises(
        UnsupportedColumnError, match=r"elements grip, elbow, shoulder here, and the same .* another order"
    ):
        gear_data.merge([first, tmp_path / "d1"], tmp_path / "m")
    for number in (2, 3):
        gear_data.merge([first, tmp_path / f"d{number}"], tmp_path / f"m{number}")
        assert gear_data.open(tmp_path / f"m{number}").schema["observations"].element_names == ()
    gear_data.convert(tmp_path / "s0", tmp_path / "again", progress=False)
    gear_data.merge([first, tmp_path / "again"], tmp_path / "same")
    assert gear_data.open(tmp_path / "same").schema["observations"].element_names == tuple(JOINTS)
