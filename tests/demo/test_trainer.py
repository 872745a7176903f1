"""Trainer: losses, exact resume, and the checkpoints that it refuses."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data.demo.checkpoint import save_model
from gear_data.demo.loss_curve import loss_ends
from gear_data.demo.model import MODEL_KEYS
from gear_data.demo.trainer import Trainer, resolve_device
from gear_data.errors import (
    DeviceError,
    GearError,
    InvalidArgumentError,
    MissingExtraError,
    NonFiniteError,
    ResumeError,
    StateMismatchError,
    StorageFullError,
)
from tests.support.training import make_loader, make_trainer, parameters


def test_trains_on_the_masked_loss_of_the_loaders_batches(dataset: gear_data.Dataset) -> None:
    run = make_trainer(dataset, dropout=0.0)
    batch = next(iter(make_loader(dataset)))
    predicted = run.model(**{key: batch[key] for key in MODEL_KEYS}).action_preds
    valid = batch["attention_mask"].bool()
    assert not valid.all()
    expected = torch.nn.functional.mse_loss(predicted[valid], batch["actions"][valid]).item()
    assert next(run.run(1)) == pytest.approx(expected, rel=1e-5)


def test_loss_falls_where_there_is_something_to_learn(dataset: gear_data.Dataset) -> None:
    run = make_trainer(dataset, dropout=0.0, hidden_size=32, learning_rate=5e-3)
    losses = list(run.run(200))
    start, end = loss_ends(losses)
    assert losses == run.losses
    assert end < 0.2 * start


def test_warm_up_then_constant(dataset: gear_data.Dataset) -> None:
    run = make_trainer(dataset, learning_rate=1e-2, warmup_steps=4)
    rates = [run.optimizer.param_groups[0]["lr"] for _ in run.run(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_gradients_are_clipped(dataset: gear_data.Dataset) -> None:
    def norm(limit: float) -> float:
        run = make_trainer(dataset, max_grad_norm=limit)
        next(run.run(1))
        gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    free = norm(1e9)
    assert norm(free / 4) == pytest.approx(free / 4, rel=1e-3)


def test_a_non_finite_loss_stops_training_before_the_weights_change(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(4, max_length=8)
    rollouts[1].columns["actions"][0, 0] = np.nan
    gear_data.convert(sources.write_episodes(tmp_path / "nan.parquet", rollouts), tmp_path / "nan")
    run = make_trainer(gear_data.open(tmp_path / "nan"), {"batch_size": 64})
    before = parameters(run)
    with pytest.raises(NonFiniteError, match="step 0 is nan") as caught:
        list(run.run(50))
    assert caught.value.file == str(tmp_path / "nan")
    assert all(torch.equal(before[name], tensor) for name, tensor in parameters(run).items())


def test_resume_gives_the_same_losses_and_weights(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    whole = make_trainer(dataset, dropout=0.3)
    list(whole.run(14))
    first = make_trainer(dataset, dropout=0.3)
    list(first.run(6))
    first.save(tmp_path / "c.safetensors")
    torch.rand(17)  # other random draws of the process do not matter
    second = make_trainer(dataset, dropout=0.3)
    second.load(tmp_path / "c.safetensors")
    assert second.step == 6
    assert list(second.run(14)) == whole.losses[6:]
    assert second.losses == whole.losses
    expected = parameters(whole)
    assert all(torch.equal(expected[name], tensor) for name, tensor in parameters(second).items())


def test_dropout_and_seed_matter(dataset: gear_data.Dataset) -> None:
    """Dropout and seed change the loss.

    So the resume test above does test the generators.
    """
    runs = [make_trainer(dataset, dropout=p, seed=s) for p, s in ((0.3, 0), (0.3, 0), (0.0, 0), (0.3, 1))]
    same, again, plain, other = (list(run.run(3)) for run in runs)
    assert same == again
    assert same[0] != plain[0]
    assert same[0] != other[0]


def test_an_interrupted_run_continues_as_one_run(dataset: gear_data.Dataset) -> None:
    whole, parts = make_trainer(dataset), make_trainer(dataset)
    list(whole.run(9))
    for _ in parts.run():
        if parts.step == 4:
            break
    assert list(parts.run(4)) == []
    list(parts.run(9))
    assert parts.losses == whole.losses


def test_the_run_ends_with_the_loader(dataset: gear_data.Dataset) -> None:
    assert len(list(make_trainer(dataset, {"steps": 3}).run())) == 3


def test_the_default_generator_keeps_its_state(dataset: gear_data.Dataset) -> None:
    before = torch.get_rng_state()
    list(make_trainer(dataset, dropout=0.5).run(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(scope="module")
def checkpoint(dataset: gear_data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_trainer(dataset)
    list(run.run(2))
    path = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    run.save(path)
    return path


def test_a_checkpoint_of_another_dataset_is_refused(rollouts_path: Path, checkpoint: Path) -> None:
    run = make_trainer(gear_data.open(rollouts_path))
    with pytest.raises(StateMismatchError, match="another dataset"):
        run.load(checkpoint)


@pytest.mark.parametrize(
    ("feed", "changes", "name"),
    [
        ({}, {"hidden_size": 32}, "hidden_size"),
        ({}, {"dropout": 0.2}, "dropout"),
        ({}, {"warmup_steps": 6}, "warmup_steps"),
        ({}, {"seed": 1}, "seed"),
        ({"seed": 1}, {}, "seed"),
        ({"batch_size": 8}, {}, "batch_size"),
        ({"normalize": None}, {}, "normalize"),
        ({"sampler": "shuffle"}, {}, "sampler"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    dataset: gear_data.Dataset, checkpoint: Path, feed: dict[str, Any], changes: dict[str, Any], name: str
) -> None:
    run = make_trainer(dataset, feed, **changes)
    before = parameters(run)
    with pytest.raises(StateMismatchError, match=f"another {name}"):
        run.load(checkpoint)
    assert run.step == 0
    assert all(torch.equal(before[key], tensor) for key, tensor in parameters(run).items())


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_an_invalid_checkpoint_is_refused_and_never_unpickled(
    dataset: gear_data.Dataset, checkpoint: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path, mark = tmp_path / "c.safetensors", tmp_path / "executed"

    def refused(match: str) -> None:
        with pytest.raises(ResumeError, match=match) as caught:
            make_trainer(dataset).load(path)
        assert caught.value.file == str(path)

    refused("there is no checkpoint")
    path.write_bytes(b"")
    refused("not a checkpoint")
    path.write_bytes(pickle.dumps(Malicious(mark)))
    refused("not a checkpoint")
    torch.save({"state": Malicious(mark)}, path)
    refused("not a checkpoint")
    assert not mark.exists()
    path.write_bytes(checkpoint.read_bytes()[:-100])
    refused("not a checkpoint")
    save_file({"losses": torch.zeros(1)}, path)
    refused("not a checkpoint")
    save_file({"losses": torch.zeros(1)}, path, {"gear": json.dumps({"version": 99})})
    refused("version 99")


def test_a_full_disk_keeps_the_earlier_checkpoint(
    dataset: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    run = make_trainer(dataset)
    list(run.run(2))
    run.save(path)
    earlier = path.read_bytes()

    def half(tensors: object, target: Path, **_: object) -> None:
        Path(target).write_bytes(earlier[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    list(run.run(4))
    with pytest.raises(StorageFullError):
        run.save(path)
    assert path.read_bytes() == earlier
    assert list(tmp_path.iterdir()) == [path]


def test_saved_model_is_read_by_transformers(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    from transformers import DecisionTransformerModel

    run = make_trainer(dataset)
    list(run.run(3))
    save_model(run.model, tmp_path / "model")
    again = DecisionTransformerModel.from_pretrained(tmp_path / "model").eval()
    batch = next(iter(make_loader(dataset)))
    inputs = {key: batch[key] for key in MODEL_KEYS}
    with torch.no_grad():
        assert torch.equal(again(**inputs).action_preds, run.model.eval()(**inputs).action_preds)


def test_a_context_of_more_tokens_than_gpt2_has_positions(dataset: gear_data.Dataset) -> None:
    run = make_trainer(dataset, {"context": 350, "batch_size": 2}, hidden_size=8)
    assert all(np.isfinite(list(run.run(2))))


def test_half_precision_batches_train(dataset: gear_data.Dataset) -> None:
    exact = next(make_trainer(dataset, dropout=0.0).run(1))
    assert next(
        make_trainer(dataset, {"batch": gear_data.BatchOptions(dtype="bfloat16")}, dropout=0.0).run(1)
    ) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 0},
        {"n_head": 3},
        {"dropout": 1.0},
        {"learning_rate": float("nan")},
        {"warmup_steps": -1},
        {"seed": -1},
        {"max_ep_len": 2},
    ],
)
def test_values_out_of_range(dataset: gear_data.Dataset, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(changes))):
        make_trainer(dataset, **changes)


def test_other_presets_are_refused(dataset: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="raw"):
        Trainer(gear_data.SequenceLoader(dataset, preset="raw"))


@pytest.mark.parametrize("device", ["warp", "cuda:99", "meta"])
def test_missing_devices(device: str) -> None:
    with pytest.raises(DeviceError, match=device):
        resolve_device(device)


def test_a_missing_package_names_the_extra(dataset: gear_data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="transformers") as caught:
        make_trainer(dataset)
    assert isinstance(caught.value, GearError)
    assert "pip install 'gear-data[train]'" in str(caught.value)


def test_ranks_at_different_steps_are_refused(dataset: gear_data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two machines has no checkpoint."""
    run = make_trainer(dataset)
    run._world_size = 2
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda bounds, op: bounds.copy_(torch.tensor([3, 0])))
    with pytest.raises(ResumeError, match=r"at the steps 0 to 3\n.*a folder that all of them see"):
        next(run.run(5))


@pytest.mark.processes
def test_no_thread_outlives_the_process_group(tmp_path: Path) -> None:
    """No Gloo thread runs after the process group ends.

    A thread that frees a tensor while the interpreter ends may abort the process.
    """
    program = f"""
import os
import torch
import gear_data.demo.trainer

def threads():
    names = [open(f"/proc/self/task/{{task}}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)

torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
network(torch.ones(1, 2)).sum().backward()
before = threads()
del network
torch.distributed.destroy_process_group()
print(before, threads())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    before, after = map(int, ended.stdout.split())
    assert before > 0
    assert after == 0
