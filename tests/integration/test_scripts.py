"""The three scripts: output, exit status, exact resume."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import gear_data
from tests.support.running.warm_python import python

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CONVERT, PRETRAIN, EXPORT = "convert_hf_dataset", "pretrain_decision_transformer", "export_eval_batches"
#: A model that trains in milliseconds, with dropout.
SMALL = ("--batch-size", "8", "--context", "5", "--hidden-size", "16", "--n-layer", "1", "--dropout", "0.2")


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a script in this process, like `python scripts/NAME.py ...`.

    Runs it with one thread.
    """

    def call(name: str, *arguments: object) -> Result:
        path = SCRIPTS / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        status: Any = 0
        capfd.readouterr()
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            status = end.code
        out, err = capfd.readouterr()
        return Result(status or 0, out, err)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield call
    torch.set_num_threads(threads)


def start(*command: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(part) for part in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def losses(folder: Path) -> list[float]:
    result: list[float] = json.loads((folder / "loss.json").read_text())["loss"]
    return result


# all three


@pytest.mark.parametrize("name", [CONVERT, PRETRAIN, EXPORT])
def test_help_has_an_example(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.status == 0
    assert f"example:\n  python scripts/{name}.py " in result.out


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (CONVERT, (), "required: source, destination"),
        (CONVERT, ("SOURCE", "OUT", "--rename", "x"), "OLD=NEW"),
        (CONVERT, ("SOURCE", "OUT", "--rename", "actions=a", "--rename", "actions=b"), "names 'actions' twice"),
        (CONVERT, ("SOURCE", "OUT", "--rename", "nothing=x"), "nothing"),
        (PRETRAIN, ("DATASET",), "required: --out"),
        (PRETRAIN, ("DATASET", "--out", "OUT", "--steps", "0"), "at least 1"),
        (PRETRAIN, ("DATASET", "--out", "OUT", "--sampler", "best"), "known: fifo, shuffle, topk, uniform, weighted"),
        (PRETRAIN, ("DATASET", "--out", "OUT", "--n-head", "3"), "n_head"),
        (EXPORT, ("DATASET", "OUT", "--format", "csv"), "known: npz, parquet, safetensors"),
        (EXPORT, ("DATASET", "OUT", "--batches", "0"), "at least 1"),
    ],
)
def test_bad_usage_is_status_2(
    run: Run, rollouts_path: Path, tmp_path: Path, name: str, arguments: tuple[str, ...], message: str
) -> None:
    source = rollouts_path.parent / "source.hdf5"
    places = {"SOURCE": source, "DATASET": rollouts_path, "OUT": tmp_path / "out"}
    result = run(name, *(places.get(argument, argument) for argument in arguments))
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "at_fault"),
    [
        (CONVERT, ("MISSING", "OUT"), "MISSING"),
        (PRETRAIN, ("MISSING", "--out", "OUT"), "MISSING"),
        (EXPORT, ("MISSING", "OUT"), "MISSING"),
        (EXPORT, ("DATASET", "DATASET"), "DATASET"),
    ],
)
def test_failed_work_is_status_1_with_one_message(
    run: Run, rollouts_path: Path, tmp_path: Path, name: str, arguments: tuple[str, ...], at_fault: str
) -> None:
    places = {"MISSING": tmp_path / "missing", "DATASET": rollouts_path, "OUT": tmp_path / "out"}
    result = run(name, *(places.get(argument, argument) for argument in arguments))
    assert result.status == 1
    assert result.err.startswith(f"{name}.py: {places[at_fault]}")
    assert "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


# convert, export


def test_convert(run: Run, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6)
    source = sources.write_parquet(
        tmp_path / "source.parquet",
        sources.episode_table([r.columns for r in rollouts]).rename_columns(
            ["observations", "actions", "score", "terminated", "truncated"]
        ),
    )
    result = run(CONVERT, source, tmp_path / "dataset", "--rename", "score=rewards")
    assert result.status == 0, result.err
    sources.check_dataset(tmp_path / "dataset", rollouts)
    assert f"6 episodes, {sum(map(len, rollouts))} steps" in result.out
    assert "observations: float32 [3]" in result.out


def test_export_is_repeatable(run: Run, rollouts_path: Path, tmp_path: Path) -> None:
    checksums = []
    for folder, seed in ((tmp_path / "a", 4), (tmp_path / "b", 4), (tmp_path / "c", 5)):
        arguments = ("--batches", "3", "--batch-size", "8", "--context", "4", "--seed", seed, "--normalize")
        result = run(EXPORT, rollouts_path, folder, *arguments)
        assert result.status == 0, result.err
        assert "3 batches of 8 windows" in result.out
        manifest = json.loads((folder / "batches.json").read_text())
        assert (manifest["seed"], manifest["preset"]) == (seed, "decision_transformer")
        assert list(manifest["normalize"]) == ["observations"]
        checksums.append([entry["checksum"] for entry in manifest["files"]])
    assert len(checksums[0]) == 3
    assert checksums[0] == checksums[1] != checksums[2]


# pretrain


def test_pretrain_writes_the_run(run: Run, rollouts_path: Path, tmp_path: Path) -> None:
    from transformers import DecisionTransformerModel

    out = tmp_path / "run"
    # There is no checkpoint yet, so --resume starts from step 0.
    arguments = ("--steps", "8", *SMALL, "--learning-rate", "0.01", "--resume", "--json")
    result = run(PRETRAIN, rollouts_path, "--out", out, *arguments)
    assert result.status == 0, result.err
    summary = json.loads(result.out)
    assert result.err == ""  # stderr is not a terminal, so there is no bar
    curve = losses(out)
    assert (summary["steps"], summary["resumed_at"], len(curve)) == (8, 0, 8)
    assert summary["loss_start"] == pytest.approx(sum(curve[:2]) / 2)
    assert summary["loss_end"] == pytest.approx(sum(curve[-2:]) / 2)
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    model = DecisionTransformerModel.from_pretrained(out / "model")
    assert model.num_parameters() == summary["parameters"]
    facts = json.loads((out / "run.json").read_text())
    assert facts["hyperparameters"]["learning_rate"] == 0.01
    assert facts["feed"]["fingerprint"] == gear_data.open(rollouts_path).fingerprint
    assert list(facts["feed"]["normalize"]) == ["observations"]

    again = run(PRETRAIN, rollouts_path, "--out", out, "--steps", "8", *SMALL)
    assert again.status == 1
    assert "--resume" in again.err
    assert losses(out) == curve


def test_resume_in_another_process_gives_the_losses_of_one_run(run: Run, rollouts_path: Path, tmp_path: Path) -> None:
    """A run is killed between checkpoints and resumed.

    The steps after the last checkpoint are trained again, with equal losses.
    """
    script = SCRIPTS / f"{PRETRAIN}.py"
    part = tmp_path / "part"
    killed = start(python(), script, rollouts_path, "--out", part, "--steps", "1000000", *SMALL,
                   "--checkpoint-every", "5")  # fmt: skip
    whole = run(PRETRAIN, rollouts_path, "--out", tmp_path / "whole", "--steps", "40", *SMALL)
    assert whole.status == 0, whole.err
    while not (part / "checkpoint.safetensors").exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    killed.kill()
    killed.communicate()

    from safetensors import safe_open

    with safe_open(part / "checkpoint.safetensors", framework="pt") as file:
        saved: list[float] = file.get_tensor("losses").tolist()
    expected = losses(tmp_path / "whole")
    assert len(saved) > 0 and len(saved) % 5 == 0
    assert saved[:40] == expected[: len(saved)]
    steps = len(saved) + 7
    more = run(PRETRAIN, rollouts_path, "--out", part, "--steps", steps, *SMALL, "--resume", "--json")
    assert more.status == 0, more.err
    assert json.loads(more.out)["resumed_at"] == len(saved)
    if steps > 40:
        run(PRETRAIN, rollouts_path, "--out", tmp_path / "whole", "--steps", steps, *SMALL, "--resume")
    assert losses(part) == losses(tmp_path / "whole")[:steps]


def test_resume_refuses_other_arguments(run: Run, rollouts_path: Path, sources: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(PRETRAIN, rollouts_path, "--out", out, "--steps", "2", *SMALL).status == 0
    checkpoint = (out / "checkpoint.safetensors").read_bytes()
    other = run(PRETRAIN, rollouts_path, "--out", out, "--steps", "4", *SMALL, "--weight-decay", "0.5", "--resume")
    assert other.status == 1
    assert "another weight_decay: 0.0001, and this run 0.5" in other.err
    gear_data.convert(sources.write_episodes(tmp_path / "other.parquet", sources.make_rollouts(9)), tmp_path / "other")
    elsewhere = run(PRETRAIN, tmp_path / "other", "--out", out, "--steps", "4", *SMALL, "--resume")
    assert elsewhere.status == 1
    assert "another dataset" in elsewhere.err
    assert (out / "checkpoint.safetensors").read_bytes() == checkpoint


def test_two_ranks_train_on_the_same_global_batches(run: Run, rollouts_path: Path, tmp_path: Path) -> None:
    """Without dropout, two ranks have the losses of one rank.

    Each rank has half of a batch. Losses differ only by the order of sums.
    """
    arguments = ("--steps", "6", *SMALL[:-1], "0", "--learning-rate", "0.01", "--warmup-steps", "0")
    torchrun = (python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    script = SCRIPTS / f"{PRETRAIN}.py"
    ranks = start(*torchrun, script, rollouts_path, "--out", tmp_path / "two", *arguments, "--device", "cpu", "--json")
    one = run(PRETRAIN, rollouts_path, "--out", tmp_path / "one", *arguments, "--device", "cpu")
    assert one.status == 0, one.err
    out, err = ranks.communicate(timeout=300)
    assert ranks.returncode == 0, err
    assert json.loads(out)["steps"] == 6  # only rank 0 prints a summary
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
