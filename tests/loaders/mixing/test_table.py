"""The tables of a mixture, and `gear-data lint` and `report` of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from gear_data.loaders.mixing.table import mixture_facts
from tests.support.command_line import run_json


def _write(folder: Path, text: str) -> Path:
    (folder / "mix.yaml").write_text(text)
    return folder / "mix.yaml"


PARTS = "datasets: [{path: hopper, share: 3, filters: [{filter_steps: rewards > 0}]}, {path: pendulum, share: 1}]\n"


def test_datasets_and_epochs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "lint", _write(folder, PARTS), "--batch-size", 32)
    hopper = gear_data.open(folder / "hopper")
    kept = int((hopper.steps("rewards", 0, 3) > 0).sum())
    assert facts["datasets"] == [
        {
            "path": str(folder / "hopper"), "episodes": 3, "steps": 62, "steps_left_out": 62 - kept, "share": 0.75,
            "epochs": pytest.approx(0.75e6 * 32 / kept),
        },
        {
            "path": str(folder / "pendulum"), "episodes": 2, "steps": 49, "steps_left_out": 0, "share": 0.25,
            "epochs": pytest.approx(0.25e6 * 32 / 49),
        },
    ]  # fmt: skip
    assert facts["problems"] == [] and facts["batch_size"] == 32
    assert main(["lint", str(folder / "mix.yaml")]) == 0
    out = capsys.readouterr().out
    assert "epochs in 1,000,000 batches of 256" in out and "75%" in out


@pytest.mark.parametrize("join", [False, True])
def test_padded_keys(folder: Path, join: bool, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(folder, PARTS + f"join: {json.dumps(join)}\npad_to: {{observations: 12, actions: 3}}")
    keys = {each.pop("key"): each for each in run_json(capsys, "lint", path)["keys"]}
    assert keys["observations"] == {
        "dtype": "float32", "shape": [12], "shapes": [[11], [3]], "padded": [0, 1], "left_out": False,
    }  # fmt: skip
    assert keys["actions"]["padded"] == [1] and keys["actions"]["shape"] == [3]
    assert keys["rewards"]["padded"] == [] and keys["rewards"]["shapes"] == [[], []]
    assert keys["infos.qpos"]["padded"] == [0] and keys["infos.qpos"]["shapes"] == [None, [2]]
    assert keys["prompt"] == {"dtype": "text", "shape": [], "shapes": [None, []], "padded": [0], "left_out": False}
    # As the batches have them.
    loader = gear_data.SequenceLoader(gear_data.Mixture.from_yaml(path), batch_size=4, context=1)
    batch = loader.batch(0)
    for key, each in keys.items():
        if each["dtype"] != "text":
            assert list(batch[key].shape) == [4, 1, *each["shape"]]


def test_what_cannot_be_joined_is_said_of_every_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "lint", _write(folder, PARTS + "join: true"), status=1)
    assert len(facts["problems"]) == 2
    for problem, name, shapes in zip(facts["problems"], ("observations", "actions"), ("[11]", "[3]"), strict=True):
        assert f"column '{name}'" in problem and shapes in problem and "pad_to" in problem
    keys = {each["key"]: each for each in facts["keys"]}
    assert keys["observations"]["shape"] is None and not keys["observations"]["left_out"]
    assert keys["prompt"]["left_out"] and keys["infos.qpos"]["left_out"]
    assert main(["lint", str(folder / "mix.yaml")]) == 1
    assert capsys.readouterr().out.count("cannot be joined") == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("join: true\npad_to: {actions: 2}", ["pad_to is 2", "has 3 elements"]),
        ("join: true\npad_to: {action: 2}", ["did you mean 'actions'"]),
    ],
)
def test_other_problems(text: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "lint", _write(folder, PARTS + text), status=1)
    for word in words:
        assert any(word in problem for problem in facts["problems"])


def test_a_wrong_option_of_a_dataset_is_a_problem(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "datasets: [{path: hopper, rename: {state: x}}, {path: arm, columns: [nothing]}, {path: pendulum}]"
    facts = run_json(capsys, "lint", _write(folder, text), status=1)
    assert len(facts["problems"]) == 2
    assert "state" in facts["problems"][0] and "nothing" in facts["problems"][1]
    assert [each["episodes"] for each in facts["datasets"]] == [3, 4, 2]


def test_a_wrong_share_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "datasets: [{path: hopper, share: 1}, {path: arm, share: -1}]"
    message = run_json(capsys, "lint", _write(folder, text), status=2)["message"]
    assert "mix.yaml: dataset 1 (" in message and "arm): a proportion must be a positive number, not -1" in message


def test_proportions_by_the_step(folder: Path) -> None:
    hopper = gear_data.open(folder / "hopper")
    facts = mixture_facts(gear_data.Mixture([(hopper, [(0, 1.0), (5, 2.0)]), (hopper, 1)]), 8)
    assert [(each["share"], each["epochs"]) for each in facts["datasets"]] == [(None, None)] * 2


def test_the_page_of_a_mixture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PARTS + "join: true"
    path = folder / "<b>mix.yaml"
    path.write_text(text)
    facts = run_json(capsys, "report", path, "out.html")
    page = Path("out.html").read_text()
    assert facts["output_bytes"] == len(page.encode()) and len(facts["problems"]) == 2
    assert "<title>&lt;b&gt;mix: " in page and "<b>mix" not in page
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    found = json.loads(text)
    assert found["mixture"]["problems"] == [each.replace(f"{folder}/", "") for each in facts["problems"]]
    assert [row[1:3] + row[5:6] for row in found["mixture"]["datasets"][1:]] == [
        ["hopper", "3", "75%"], ["pendulum", "2", "25%"],
    ]  # fmt: skip
    assert str(folder) not in text
    assert [each["name"] for each in found["viewers"]] == ["0: hopper", "1: pendulum"]
    for each in found["viewers"]:
        lengths = gear_data.open(folder / each["name"][3:]).lengths.tolist()
        assert [episode["length"] for episode in each["episodes"]] == lengths
    assert main(["report", str(path)]) == 0
    assert Path("<b>mix-report.html").read_text() == page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lint", "--format", "rlds"], "takes no --format"),
        (["lint", "--suggest-map"], "--suggest-map"),
        (["lint", "--batch-size", "0"], "at least 1"),
        (["report", "--frames", "-1"], "frames must be an integer"),
        (["report", "--where", "length > 3"], "--where is for a dataset"),
    ],
)
def test_options_of_datasets(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert main([command, str(_write(folder, PARTS)), *options]) == 2
    assert words in capsys.readouterr().err


def test_a_batch_size_is_of_a_mixture(folder: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    assert main(["lint", "source.hdf5", "--batch-size", "3"]) == 2
    assert "--batch-size is for a mixture" in capsys.readouterr().err
