"""Several columns that a conversion makes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import InvalidArgumentError, ResumeError, UnknownNameError, UnsupportedColumnError
from tests.support.checks import warning_codes

STACK = {"observations": ["s_pos", "s_vel"]}


def steps(**dtypes: str) -> pl.DataFrame:
    """Returns a table of scalars, as simulators log it: 4 episodes of 5 steps."""
    rng = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "run": np.repeat(range(4), 5),
            "t_pos": np.zeros(20),
            "s_vel": rng.normal(size=20).astype(dtypes.get("s_vel", "float32")),
            "reward": rng.normal(size=20).astype("float32"),
            "s_pos": (100 * rng.normal(size=20)).astype(dtypes.get("s_pos", "float32")),
            "actions": rng.normal(size=20).astype("float32"),
        }
    )


@pytest.mark.parametrize(
    ("dtypes", "dtype"),
    [
        ({}, "float32"),
        ({"s_pos": "float64"}, "float64"),
        ({"s_pos": "int64"}, "float64"),
        ({"s_pos": "int8"}, "float32"),
    ],
)
def test_a_stack_is_a_vector_of_its_parts(dtypes: dict[str, str], dtype: str, tmp_path: Path) -> None:
    table = steps(**dtypes)
    gear_data.convert(table, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run"), stack=STACK)
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.schema.names[:4] == ("t_pos", "observations", "rewards", "actions")
    expected = np.stack([table["s_pos"].to_numpy(), table["s_vel"].to_numpy()], axis=1)
    assert expected.dtype == dtype == dataset.schema["observations"].dtype
    assert np.array_equal(dataset.steps("observations", 0, 4), expected)
    np.testing.assert_allclose(dataset.statistics["observations"].mean, expected.mean(0, np.float64), rtol=1e-12)
    assert dataset.manifest.provenance["options"]["stack"] == STACK


def test_vectors_and_final_observations_are_stacked(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """The dataset equals the one of observations that were stacked before."""
    episodes = []
    for rollout in rollouts:
        columns = dict(rollout.columns)
        observations = np.concatenate([columns.pop("observations"), rollout.final[None]])
        episodes.append({**columns, "observations": {"goal": observations[:, 0], "pose": observations[:, 1:]}})
    stack = {"observations": ["observations.goal", "observations.pose"]}
    gear_data.convert(episodes, tmp_path / "d", stack=stack)
    sources.check_dataset(tmp_path / "d", rollouts, final=True)
    # A part without a final observation leaves the stack without one.
    report = gear_data.convert(episodes, tmp_path / "e", stack={"infos.all": ["observations.pose", "actions"]})
    assert "final-left-out" in warning_codes(report)
    final = gear_data.open(tmp_path / "e").final(0)
    assert final is not None and list(final) == ["observations.goal"]
    report = gear_data.convert(episodes, tmp_path / "f", stack={"observations": [*stack["observations"], "actions"]})
    assert gear_data.open(tmp_path / "f").final(0) is None


def test_the_command_line_resuming_and_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps().write_parquet(tmp_path / "s.parquet")
    options = ["--episode-column", "run", "--columns", "observations,actions"]
    stack = ["--stack", "observations=s_pos,s_vel"]
    assert main(["convert", str(tmp_path / "s.parquet"), str(tmp_path / "d"), *options, *stack]) == 0
    assert gear_data.open(tmp_path / "d").schema.names[:2] == ("observations", "actions")
    arguments: dict[str, Any] = {
        "episodes": gear_data.EpisodeBoundaries(episode_column="run"),
        "columns": ["observations", "actions"],
        "resume": True,
    }
    gear_data.convert(tmp_path / "s.parquet", tmp_path / "d", stack=STACK, **arguments)
    with pytest.raises(ResumeError, match="s_vel"):
        other = {"observations": ["s_vel", "s_pos"]}
        gear_data.convert(tmp_path / "s.parquet", tmp_path / "d", stack=other, **arguments)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ({"observations": ["s_pos", "s_val"]}, UnknownNameError, "did you mean 's_vel'"),
        ({"observations": ["s_pos", "rewards"]}, InvalidArgumentError, "rewards"),
        ({"actions": ["s_pos", "s_vel"]}, InvalidArgumentError, "already"),
        ({"obs": ["s_pos"]}, InvalidArgumentError, "use the name 'observations'"),
        ({"observations": ["s_pos", "s_pos"]}, InvalidArgumentError, "twice"),
        ({"observations": "s_pos"}, InvalidArgumentError, "list of columns"),
        ({"observations": ["s_pos", "name"]}, UnsupportedColumnError, "string"),
        ({"observations": ["s_pos", "huge"]}, UnsupportedColumnError, "2\\^53"),
        ([("observations", ["s_pos"])], InvalidArgumentError, "must map"),
    ],
)
def test_bad_stacks(stack: Any, error: Any, words: str, tmp_path: Path) -> None:
    table = steps().with_columns(name=pl.lit("x"), huge=pl.lit((1 << 60) + 1))
    with pytest.raises(error, match=words):
        gear_data.convert(
            table, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run"), stack=stack
        )
