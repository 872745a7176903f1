"""gear_data.demo.training: the loss, exact resume, what checkpoints refuse."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data.demo import training
from gear_data.demo.checkpoint import save_model
from gear_data.demo.loss_curve import loss_ends, write_loss_curve
from gear_data.demo.training import Hyperparameters, Trainer, build_model, masked_action_loss, resolve_device
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

SMALL = {"hidden_size": 16, "n_layer": 1, "n_head": 2, "learning_rate": 3e-3, "warmup_steps": 5}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps are too small to share, and sums over threads depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def dataset(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """Actions that follow from the observations: (tanh(o0 - o1), tanh(o2) / 2)."""
    folder = tmp_path_factory.mktemp("learnable")
    rollouts = []
    for rollout in sources.make_rollouts(40, seed=3, max_length=25):
        o = rollout.columns["observations"]
        actions = np.stack([np.tanh(o[:, 0] - o[:, 1]), np.tanh(o[:, 2]) / 2], axis=1)
        rollouts.append(rollout.with_columns(actions=actions))
    gear_data.convert(sources.write_episodes(folder / "source.parquet", rollouts), folder / "dataset")
    return gear_data.open(folder / "dataset")


def loader(dataset: gear_data.Dataset, **changes: Any) -> gear_data.SequenceLoader:
    arguments: dict[str, Any] = {"batch_size": 16, "context": 6, "preset": "decision_transformer", "normalize": True}
    return gear_data.SequenceLoader(dataset, **{**arguments, **changes})


def trainer(dataset: gear_data.Dataset, feed: dict[str, Any] | None = None, **changes: Any) -> Trainer:
    return Trainer(loader(dataset, **(feed or {})), Hyperparameters(**{**SMALL, **changes}), device="cpu")


def parameters(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


# loss


def test_loss_is_the_mean_over_valid_positions() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, actions = torch.randn(4, 5, 3, generator=generator), torch.randn(4, 5, 3, generator=generator)
    valid = [5, 1, 3, 2]
    mask = torch.tensor([[0.0] * (5 - n) + [1.0] * n for n in valid])
    actions[mask == 0] = -10.0

    total, count = 0.0, 0
    for b in range(4):
        for k in range(5):
            if mask[b, k]:
                for a in range(3):
                    total += (predicted[b, k, a].item() - actions[b, k, a].item()) ** 2
                    count += 1

    assert count == sum(valid) * 3
    assert masked_action_loss(predicted, actions, mask).item() == pytest.approx(total / count, rel=1e-6)


def test_padding_gets_no_gradient() -> None:
    predicted = torch.zeros(1, 3, 1, requires_grad=True)
    mask = torch.tensor([[0.0, 1.0, 1.0]])
    masked_action_loss(predicted, torch.tensor([[[-10.0], [1.0], [2.0]]]), mask).backward()  # type: ignore[no-untyped-call]
    assert predicted.grad is not None
    assert predicted.grad.flatten().tolist() == [0.0, -1.0, -2.0]


def test_trains_on_this_loss_of_the_loaders_batches(dataset: gear_data.Dataset) -> None:
    run = trainer(dataset, dropout=0.0)
    batch = next(iter(loader(dataset)))
    predicted = run.model(**{key: batch[key] for key in training.MODEL_KEYS}).action_preds
    valid = batch["attention_mask"].bool()
    assert not valid.all()
    expected = torch.nn.functional.mse_loss(predicted[valid], batch["actions"][valid]).item()
    assert next(run.run(1)) == pytest.approx(expected, rel=1e-5)


def test_loss_falls_where_there_is_something_to_learn(dataset: gear_data.Dataset) -> None:
    run = trainer(dataset, dropout=0.0, hidden_size=32, learning_rate=5e-3)
    losses = list(run.run(200))
    start, end = loss_ends(losses)
    assert losses == run.losses
    assert end < 0.2 * start


def test_warm_up_then_constant(dataset: gear_data.Dataset) -> None:
    run = trainer(dataset, learning_rate=1e-2, warmup_steps=4)
    rates = [run.optimizer.param_groups[0]["lr"] for _ in run.run(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_gradients_are_clipped(dataset: gear_data.Dataset) -> None:
    def norm(limit: float) -> float:
        run = trainer(dataset, max_grad_norm=limit)
        next(run.run(1))
        gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    free = norm(1e9)
    assert norm(free / 4) == pytest.approx(free / 4, rel=1e-3)


def test_a_loss_that_is_not_finite_stops_training_before_the_weights_change(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(4, max_length=8)
    rollouts[1].columns["observations"][0, 0] = np.nan
    gear_data.convert(sources.write_episodes(tmp_path / "nan.parquet", rollouts), tmp_path / "nan")
    run = trainer(gear_data.open(tmp_path / "nan"), {"batch_size": 64})
    before = parameters(run)
    with pytest.raises(NonFiniteError, match="step 0 is nan") as caught:
        list(run.run(50))
    assert caught.value.file == str(tmp_path / "nan")
    assert all(torch.equal(before[name], tensor) for name, tensor in parameters(run).items())


# resume


def test_resume_gives_the_same_losses_and_weights(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    whole = trainer(dataset, dropout=0.3)
    list(whole.run(14))
    first = trainer(dataset, dropout=0.3)
    list(first.run(6))
    first.save(tmp_path / "c.safetensors")
    torch.rand(17)  # what else the process draws is no matter
    second = trainer(dataset, dropout=0.3)
    second.load(tmp_path / "c.safetensors")
    assert second.step == 6
    assert list(second.run(14)) == whole.losses[6:]
    assert second.losses == whole.losses
    expected = parameters(whole)
    assert all(torch.equal(expected[name], tensor) for name, tensor in parameters(second).items())


def test_dropout_and_seed_matter(dataset: gear_data.Dataset) -> None:
    """Else the test above would show nothing about generators."""
    runs = [trainer(dataset, dropout=p, seed=s) for p, s in ((0.3, 0), (0.3, 0), (0.0, 0), (0.3, 1))]
    same, again, plain, other = (list(run.run(3)) for run in runs)
    assert same == again
    assert same[0] != plain[0]
    assert same[0] != other[0]


def test_a_run_left_and_taken_up_again_is_one_run(dataset: gear_data.Dataset) -> None:
    whole, parts = trainer(dataset), trainer(dataset)
    list(whole.run(9))
    for _ in parts.run():
        if parts.step == 4:
            break
    assert list(parts.run(4)) == []
    list(parts.run(9))
    assert parts.losses == whole.losses


def test_a_loader_with_an_end_ends_the_run(dataset: gear_data.Dataset) -> None:
    assert len(list(trainer(dataset, {"steps": 3}).run())) == 3


def test_leaves_the_process_generator_alone(dataset: gear_data.Dataset) -> None:
    before = torch.get_rng_state()
    list(trainer(dataset, dropout=0.5).run(2))
    assert torch.equal(torch.get_rng_state(), before)


# checkpoints


@pytest.fixture(scope="module")
def checkpoint(dataset: gear_data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = trainer(dataset)
    list(run.run(2))
    path = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    run.save(path)
    return path


def test_a_checkpoint_of_another_dataset_is_refused(rollouts_path: Path, checkpoint: Path) -> None:
    run = trainer(gear_data.open(rollouts_path))
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
    run = trainer(dataset, feed, **changes)
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


def test_what_is_no_checkpoint_is_refused_and_never_unpickled(
    dataset: gear_data.Dataset, checkpoint: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path, mark = tmp_path / "c.safetensors", tmp_path / "executed"

    def refused(match: str) -> None:
        with pytest.raises(ResumeError, match=match) as caught:
            trainer(dataset).load(path)
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


def test_a_full_disk_leaves_the_earlier_checkpoint(
    dataset: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    run = trainer(dataset)
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

    run = trainer(dataset)
    list(run.run(3))
    save_model(run.model, tmp_path / "model")
    again = DecisionTransformerModel.from_pretrained(tmp_path / "model").eval()
    batch = next(iter(loader(dataset)))
    inputs = {key: batch[key] for key in training.MODEL_KEYS}
    with torch.no_grad():
        assert torch.equal(again(**inputs).action_preds, run.model.eval()(**inputs).action_preds)


# model and arguments


def test_model_fits_the_dataset(dataset: gear_data.Dataset, rollouts_path: Path) -> None:
    config = build_model(loader(dataset), Hyperparameters(**SMALL)).config
    assert (config.state_dim, config.act_dim, config.max_ep_len) == (3, 2, int(dataset.lengths.max()))
    assert config.action_tanh
    # Actions outside [-1, 1], in the data or after normalising, are out of tanh's reach.
    assert not build_model(loader(gear_data.open(rollouts_path)), Hyperparameters(**SMALL)).config.action_tanh
    assert not build_model(loader(dataset, normalize=["actions"]), Hyperparameters(**SMALL)).config.action_tanh
    assert not build_model(loader(dataset), Hyperparameters(**SMALL, action_tanh=False)).config.action_tanh
    assert build_model(loader(dataset), Hyperparameters(**SMALL, max_ep_len=99)).config.max_ep_len == 99


def test_a_context_of_more_tokens_than_gpt2_has_positions(dataset: gear_data.Dataset) -> None:
    run = trainer(dataset, {"context": 350, "batch_size": 2}, hidden_size=8)
    assert all(np.isfinite(list(run.run(2))))


def test_half_precision_batches_train(dataset: gear_data.Dataset) -> None:
    exact = next(trainer(dataset, dropout=0.0).run(1))
    assert next(trainer(dataset, {"dtype": "bfloat16"}, dropout=0.0).run(1)) == pytest.approx(exact, rel=0.05)


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
        trainer(dataset, **changes)


def test_other_presets_are_refused(dataset: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="raw"):
        Trainer(gear_data.SequenceLoader(dataset, preset="raw"))


@pytest.mark.parametrize("device", ["warp", "cuda:99", "meta"])
def test_devices_that_are_not_there(device: str) -> None:
    with pytest.raises(DeviceError, match=device):
        resolve_device(device)


def test_a_missing_package_names_the_extra(dataset: gear_data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="transformers") as caught:
        trainer(dataset)
    assert isinstance(caught.value, GearError)
    assert "pip install 'gear-data[train]'" in str(caught.value)


# curves


def test_loss_ends() -> None:
    assert loss_ends([4.0] * 20 + [9.0] * 60 + [1.0] * 20) == (4.0, 1.0)
    assert loss_ends([8.0, 4.0, 2.0, 1.0, 0.0]) == (8.0, 0.0)
    assert loss_ends([3.0]) == (3.0, 3.0)
    with pytest.raises(InvalidArgumentError):
        loss_ends([])


@pytest.mark.parametrize("count", [1, 200])
def test_loss_curve(tmp_path: Path, count: int) -> None:
    from PIL import Image

    losses = [1 / (i + 3) for i in range(count)]
    as_json, as_png = write_loss_curve(losses, tmp_path / "run")
    assert json.loads(as_json.read_text()) == {"loss": losses}
    with Image.open(as_png) as image:
        image.load()
        assert image.format == "PNG"
        colors = image.convert("RGB").getcolors(1 << 20)
        assert colors is not None and len(colors) > 10  # something is drawn
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["loss.json", "loss.png"]


def test_no_thread_outlives_the_process_group(tmp_path: Path) -> None:
    """A thread of Gloo's that still frees a tensor while the interpreter ends aborts the process, now and then."""
    program = f"""
import os
import torch
import gear_data.demo.training

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
