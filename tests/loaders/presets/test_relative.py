"""Relative columns, against plain loops over the windows of episodes, and the way back from predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import Fifo, Goals, Mixture, Normalizer, Relative, Rollout, SequenceLoader
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.loaders.tuning.config_file import columns_of, write_config
from gear_data.loaders.tuning.setting import Setting
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take

LENGTHS = [9, 1, 23, 4]
EPISODES = feed_data.locomotion(LENGTHS, seed=5, observations=4, actions=3)
JOINTS = ["shoulder", "elbow", "gripper"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    return feed_data.convert_episodes(EPISODES, tmp_path_factory.mktemp("relative") / "d", shard_bytes=1024)


def named(episodes: Any, folder: Path, joints: dict[str, list[str]]) -> gear_data.Dataset:
    """Records episodes with names of the elements."""
    schema = gear_data.Schema(
        tuple(
            gear_data.ColumnSpec(name, "float32", shape, element_names=tuple(joints.get(name, ())))
            for name, shape in (("observations", (4,)), ("actions", (3,)), ("rewards", ()))
        )
    )
    with gear_data.Writer(folder, schema=schema) as writer:
        for episode in episodes:
            for step in range(len(episode["rewards"])):
                writer.append(**{name: episode[name][step] for name in episode})
            writer.end_episode(terminated=True)
    return gear_data.open(folder)


def loader(dataset: Any, **options: Any) -> SequenceLoader:
    options = {"batch_size": 32, "relative": {"actions": "observations"}, "framework": "numpy", "seed": 3, **options}
    return SequenceLoader(dataset, **grouped(**options))


def expected(
    window: tuple[int, int], steps: Any, chosen: Any = (0, 1, 2), *, delta: bool = False, last: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """float64 [n, 3]: the actions of a window's steps, relative to its first step; and which steps are valid.

    The nearest valid step stands for the others.
    """
    episode, start = EPISODES[window[0]], window[1]
    last = len(episode["actions"]) if last is None else last
    rows, valid, before = [], [], None
    for offset in steps:
        step = min(max(start + offset, 0), last - 1)
        action = episode["actions"][step].astype(np.float64)
        state = episode["observations"][start].astype(np.float64)
        row = action.copy()
        for element in chosen:
            row[element] -= state[element] if not delta or before is None else before[element]
        if start + offset >= 0:
            before = action
        rows.append(row)
        valid.append(0 <= start + offset < last)
    return np.array(rows), np.array(valid)


def windows_of(found: SequenceLoader, step: int) -> list[tuple[int, int]]:
    windows = found.windows(step)
    return list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("delta", [False, True])
def test_a_chunk_is_relative_to_the_state_of_the_first_step(dataset: Any, delta: bool, dtype: str) -> None:
    relative = {"actions": Relative("observations", absolute=[2], delta=delta)}
    found = loader(dataset, preset="lerobot", context=6, relative=relative, dtype=dtype, framework="torch")
    batch = next(iter(found))
    for row, window in enumerate(windows_of(found, 0)):
        rows, valid = expected(window, range(6), (0, 1), delta=delta)
        values = torch.from_numpy(rows if dtype == "float64" else rows.astype(np.float32))
        assert torch.equal(batch["action"][row], values.to(getattr(torch, dtype)))
        assert batch["action_is_pad"][row].tolist() == (~valid).tolist()
    assert not all(expected(window, range(6))[1].all() for window in windows_of(found, 0))


@pytest.mark.parametrize("anchor", ["start", "end", "random"])
@pytest.mark.parametrize("preset", ["raw", "decision_transformer", "corl", "d3rlpy", "jat"])
def test_windows_of_presets(dataset: Any, preset: str, anchor: str) -> None:
    """Padding holds what it holds without relative=, except where it repeats a step."""
    options: Any = {"preset": preset, "context": 5, "anchor": anchor}
    plain = loader(dataset, relative=None, **options)
    found = loader(dataset, **options)
    lengths = found.windows(0)["length"]
    batch, other = found.batch(0), plain.batch(0)
    key = "actions" if "actions" in batch else "action"
    assert batch.keys() == other.keys()
    for row, window in enumerate(windows_of(found, 0)):
        count = int(lengths[row])
        rows, _ = expected(window, range(count))
        begin = 5 - count if found.spec()["batch_format"]["side"] == "left" else 0
        inside = slice(begin, begin + count)
        np.testing.assert_array_equal(batch[key][row][inside], rows.astype(np.float32))
        if preset == "jat":
            assert (batch[key][row][count:] == batch[key][row][0]).all()
        else:
            outside = [k for k in range(5) if not begin <= k < begin + count]
            np.testing.assert_array_equal(batch[key][row][outside], other[key][row][outside])
    for name in batch.keys() - {key}:
        np.testing.assert_array_equal(batch[name], other[name])


@pytest.mark.parametrize("steps", [(-2, 4), (1, 5), [0, 3], [-2, 5, 1]])
@pytest.mark.parametrize("preset", ["raw", "lerobot"])
def test_offsets(dataset: Any, preset: str, steps: Any) -> None:
    found = loader(dataset, preset=preset, context=1, offsets={"actions": steps}, columns=["actions", "observations"])
    batch = found.batch(0)
    listed = steps if isinstance(steps, list) else range(*steps)
    key, mask = ("action", "action_is_pad") if preset == "lerobot" else ("actions", "actions_mask")
    for row, window in enumerate(windows_of(found, 0)):
        rows, valid = expected(window, listed)
        assert (batch[mask][row] != valid if preset == "lerobot" else batch[mask][row] == valid).all()
        if preset == "raw":
            rows[~valid] = 0
        elif not valid.any():
            continue
        np.testing.assert_array_equal(batch[key][row], rows.astype(np.float32))


def test_transitions(dataset: Any) -> None:
    found = loader(dataset, preset="transitions", context=1)
    batch = found.batch(0)
    for row, window in enumerate(windows_of(found, 0)):
        np.testing.assert_array_equal(batch["actions"][row], expected(window, [0])[0][0].astype(np.float32))


@pytest.mark.parametrize("shape", [(3,), (5, 3)])
def test_given_numbers_normalise_the_differences(dataset: Any, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    mean, std = random.normal(size=shape), random.uniform(0.5, 2, shape)
    found = loader(dataset, context=5, normalize={"actions": (mean, std)})
    batch = found.batch(0)
    assert found.spec()["normalize"]["actions"][0] == mean.tolist()
    for row, window in enumerate(windows_of(found, 0)):
        rows, valid = expected(window, range(5))
        values = np.where(valid[:, None], (rows - mean) * (1 / std), 0)
        np.testing.assert_array_equal(batch["actions"][row], values.astype(np.float32))
    own = (mean[:3], std[:3]) if len(shape) > 1 else (mean, std)
    listed = loader(dataset, context=1, offsets={"actions": [0, 2, 4]}, normalize={"actions": own})
    batch = listed.batch(0)
    for row, window in enumerate(windows_of(listed, 0)):
        rows, valid = expected(window, [0, 2, 4])
        values = np.where(valid[:, None], (rows - own[0]) * (1 / own[1]), 0)
        np.testing.assert_array_equal(batch["actions"][row], values.astype(np.float32))


def test_statistics_of_each_step_need_the_steps_in_their_places(dataset: Any) -> None:
    """Padding before a short window moves its steps; with offsets, or padding behind them, they stay."""
    options: dict[str, Any] = {"relative": {"actions": Relative("observations", per_step=True)}, "context": 3}
    options["preset"] = "decision_transformer"
    with pytest.raises(InvalidArgumentError, match=r"(?s)per_step .*'side': 'right'"):
        loader(dataset, normalize={"actions": "minmax"}, **options)
    # Given numbers are by position, and not refused.
    loader(dataset, normalize={"actions": (np.zeros((3, 3)), np.ones((3, 3)))}, **options)
    for other in ({"preset_options": {"side": "right"}}, {"offsets": {"actions": (0, 3)}}):
        found = loader(dataset, normalize={"actions": "minmax"}, **options, **other)
        batch, (mean, std) = found.batch(0), map(np.array, found.spec()["normalize"]["actions"])
        for row, window in enumerate(windows_of(found, 0)):
            wanted, valid = expected(window, range(3))
            wanted = (wanted - mean) / std
            np.testing.assert_allclose(batch["actions"][row][valid], wanted[valid], rtol=1e-5, atol=1e-5)


def test_elements_by_number_and_by_name(tmp_path: Path) -> None:
    state = ["gripper", "base", "shoulder", "elbow"]
    ds = named(EPISODES, tmp_path / "d", {"observations": state, "actions": JOINTS})
    plain = np.concatenate([episode["actions"] for episode in EPISODES]).astype(np.float64)
    states = np.concatenate([episode["observations"] for episode in EPISODES]).astype(np.float64)
    differences = np.stack([plain[:, k] - states[:, state.index(JOINTS[k])] for k in range(3)], 1)
    for relative, chosen in (
        (Relative("observations"), [0, 1, 2]),
        (Relative("observations", absolute=["gripper"]), [0, 1]),
        (Relative("observations", mask=["elbow", 2]), [1, 2]),
        (Relative("observations", mask=[True, False, False]), [0]),
        (Relative("observations", mask=np.array([0, 2]), absolute=[0]), [2]),
        ({"to": "observations", "mask": [1]}, [1]),
    ):
        every = SequenceLoader(
            ds, len(plain), context=1, relative={"actions": relative}, sampler=Fifo(), framework="numpy"
        ).batch(0)
        wanted = plain.copy()
        wanted[:, chosen] = differences[:, chosen]
        np.testing.assert_array_equal(every["actions"][:, 0], wanted.astype(np.float32))


def test_stacked_and_padded_columns(tmp_path: Path, dataset: Any) -> None:
    """The same batches as of columns that are stored stacked; zeros behind the elements stay zeros."""
    parts = [
        {
            **{name: episode[name] for name in ("rewards",)},
            "actions.a": episode["actions"][:, :1],
            "actions.b": episode["actions"][:, 1:],
            "position": episode["observations"][:, :2],
            "velocity": episode["observations"][:, 2:],
        }
        for episode in EPISODES
    ]
    split = feed_data.convert_episodes(parts, tmp_path / "parts", shard_bytes=1024)
    stack = {"actions": ["actions.a", "actions.b"], "observations": ["position", "velocity"]}
    columns = ["actions", "observations"]
    plain = loader(dataset, context=5, columns=columns)
    stacked = loader(split, context=5, columns=columns, stack=stack)
    for step in range(2):
        for key, values in plain.batch(step).items():
            np.testing.assert_array_equal(stacked.batch(step)[key], values)
    mixture = Mixture([(dataset, 1), (split, 1, {"stack": stack})], join=True, pad_to={"actions": 5})
    joined = loader(mixture, context=5, columns=columns, normalize={"actions": (0.5, 2.0)})
    batch, windows = joined.batch(0), joined.windows(0)
    for row, window in enumerate(windows_of(joined, 0)):
        rows, valid = expected(window, range(5))
        wanted = np.zeros((5, 5))
        wanted[:, :3] = np.where(valid[:, None], (rows - 0.5) * 0.5, 0)
        np.testing.assert_array_equal(batch["actions"][row], wanted.astype(np.float32))
    assert set(windows["dataset"].tolist()) == {0, 1}


@pytest.mark.processes
def test_prefetch_workers_ranks_and_resuming(dataset: Any) -> None:
    options: Any = {"preset": "lerobot", "context": 6, "framework": "torch", "normalize": {"actions": (0.5, 2.0)}}
    first = take(loader(dataset, prefetch=0, **options), 8)
    same(take(loader(dataset, prefetch=3, **options), 8), first)
    same(take(loader(dataset, prefetch=2, batches_at_once=3, **options), 8), first)
    same(take(DataLoader(loader(dataset, steps=8, **options), batch_size=None, num_workers=2), 8), first)
    halves = [take(loader(dataset, rank=rank, world_size=2, **options), 8) for rank in range(2)]
    same([{key: torch.cat([one[key], two[key]]) for key in one} for one, two in zip(*halves, strict=True)], first)
    found = loader(dataset, **options)
    take(found, 3)
    resumed = loader(dataset, **options)
    resumed.load_state_dict(json.loads(json.dumps(found.state_dict())))
    same(take(resumed, 5), first[3:])
    # Windows do not depend on it.
    other = loader(dataset, **{**options, "relative": None})
    other.load_state_dict(found.state_dict())


def test_mixtures_of_relative_and_absolute_datasets(tmp_path: Path, dataset: Any) -> None:
    only_one = {"relative": {"actions": Relative("observations", mask=[1])}}
    mixture = Mixture([(dataset, 1, {"relative": {}}), (dataset, 1), (dataset, 1, only_one)], join=True)
    found = loader(mixture, context=5)
    batch, numbers = found.batch(0), found.windows(0)["dataset"].tolist()
    assert set(numbers) == {0, 1, 2}
    for row, (window, number) in enumerate(zip(windows_of(found, 0), numbers, strict=True)):
        rows, valid = expected(window, range(5), [(), (0, 1, 2), (1,)][number])
        np.testing.assert_array_equal(batch["actions"][row], np.where(valid[:, None], rows, 0).astype(np.float32))
    one = named(EPISODES, tmp_path / "one", {"actions": JOINTS})
    two = named(EPISODES, tmp_path / "two", {"actions": ["x", "y", "z"]})
    options: Any = {"context": 5, "relative": {"actions": Relative("observations", absolute=["gripper"])}}
    found = loader(Mixture([one, two], join=True), **options)
    batch, numbers = found.batch(0), found.windows(0)["dataset"].tolist()
    for row, (window, number) in enumerate(zip(windows_of(found, 0), numbers, strict=True)):
        rows, valid = expected(window, range(5), [(0, 1), (0, 1, 2)][number])
        np.testing.assert_array_equal(batch["actions"][row], np.where(valid[:, None], rows, 0).astype(np.float32))
    with pytest.raises(UnknownNameError, match=r"'wrist'\s+known: elbow"):
        loader(Mixture([one, two], join=True), relative={"actions": Relative("observations", absolute=["wrist"])})


def test_the_file_of_tune_keeps_the_argument(dataset: Any, tmp_path: Path) -> None:
    options: Any = {"relative": {"actions": Relative("observations", absolute=[2], delta=True)}, "context": 5}
    write_config(tmp_path / "loader.json", Setting(), options, columns_of(dataset), {})
    kept = json.loads((tmp_path / "loader.json").read_text())["arguments"]["relative"]
    assert kept == {"actions": {"to": "observations", "absolute": [2], "delta": True}}
    found = SequenceLoader.from_config(dataset, tmp_path / "loader.json", seed=3, batch_size=32, framework="numpy")
    np.testing.assert_array_equal(found.batch(0)["actions"], loader(dataset, **options).batch(0)["actions"])


def test_the_file_of_a_mixture_keeps_the_option(dataset: Any, tmp_path: Path) -> None:
    relative = {"actions": Relative("observations", absolute=[2], delta=True)}
    mixture = Mixture([(dataset, 2, {"relative": relative}), (dataset, 1, {"relative": {"actions": "observations"}})])
    mixture.to_yaml(tmp_path / "mix.yaml")
    again = Mixture.from_yaml(tmp_path / "mix.yaml")
    assert [each.options for each in again.components] == [each.options for each in mixture.components]


# The way back.


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_a_normalizer_turns_predictions_back(dataset: Any, delta: bool, per_step: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shape = (4, 3) if per_step else (3,)
    numbers = random.normal(size=shape), random.uniform(0.5, 2, shape)
    relative = {"actions": Relative("observations", absolute=[1], delta=delta)}
    found = loader(dataset, context=4, relative=relative, normalize={"actions": numbers}, dtype="float64")
    found.normalizer.save(tmp_path / "n.json")
    for normalizer in (found.normalizer, Normalizer.load(tmp_path / "n.json")):
        batch, lengths = found.batch(0), found.windows(0)["length"]
        whole = np.flatnonzero(lengths == 4)
        windows = [windows_of(found, 0)[row] for row in whole]
        states = np.stack([EPISODES[e]["observations"][s] for e, s in windows])
        actions = np.stack([EPISODES[e]["actions"][s : s + 4] for e, s in windows]).astype(np.float64)
        back = normalizer.denormalize("actions", batch["actions"][whole], relative_to=states)
        np.testing.assert_allclose(back, actions, rtol=1e-12, atol=1e-12)
        there = normalizer.normalize("actions", actions, relative_to=states)
        np.testing.assert_allclose(there, batch["actions"][whole], rtol=1e-12, atol=1e-12)
        with pytest.raises(InvalidArgumentError, match="relative to 'observations', and its value is missing"):
            normalizer.denormalize("actions", batch["actions"])
    plain = json.loads((tmp_path / "n.json").read_text())
    assert plain["version"] == 2
    assert loader(dataset, relative=None, normalize=True).normalizer.to_json()["version"] == 1


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"context": 1},
        {"preset": "lerobot", "context": 4},
        {"context": 1, "offsets": {"actions": (0, 4)}, "preset": "lerobot"},
        {"context": 1, "offsets": {"actions": (-2, 4), "observations": (-2, 1)}},
        {"context": 5, "preset": "decision_transformer", "anchor": "end"},
        {"context": 5, "anchor": "end"},
        {"context": 1, "offsets": {"actions": (0, 4)}, "columns": ["actions"]},
    ],
)
def test_a_rollout_turns_predictions_back(dataset: Any, options: Any, delta: bool) -> None:
    """A model that predicts what the batches have makes the actions of the dataset."""
    shape = (options.get("context") if "offsets" not in options else len(range(*options["offsets"]["actions"])), 3)
    random = np.random.default_rng(2)
    found = loader(
        dataset, batch_size=sum(LENGTHS), sampler=Fifo(), epochs=1,
        relative={"actions": Relative("observations", absolute=[1], delta=delta)},
        normalize={"actions": (random.normal(size=shape), random.uniform(0.5, 2, shape))}, **options,
    )  # fmt: skip
    batch = found.batch(0)
    key = "action" if "action" in batch else "actions"
    spec, row = json.loads(json.dumps(found.spec())), 0
    for episode in EPISODES:
        rollout = Rollout.from_spec(spec, target=1.0)
        rollout.reset(episode["observations"][0])
        for step, action in enumerate(episode["actions"]):
            predicted = batch[key][row][None]
            np.testing.assert_allclose(rollout.action(predicted), action, rtol=1e-4, atol=1e-5)
            several = rollout.actions(predicted)
            following = episode["actions"][step : step + len(several)]
            np.testing.assert_allclose(several[: len(following)], following, rtol=1e-4, atol=1e-5)
            assert len(several) == (4 if key == "action" or "offsets" in options else 1)
            inputs = rollout.inputs()
            if key in inputs and options["context"] > 1:
                valid = np.flatnonzero(batch["attention_mask" if "attention_mask" in batch else "mask"][row])
                # The action of the current step is not known yet.
                np.testing.assert_allclose(
                    inputs[key][0][valid[:-1]], batch[key][row][valid[:-1]], rtol=1e-4, atol=1e-5
                )
                assert (inputs[key][0][valid[-1]] == 0).all()
            after = episode["observations"][min(step + 1, len(episode["actions"]) - 1)]
            rollout.update(action, 0.0, after)
            row += 1


# Errors.


def test_names_that_repeat(tmp_path: Path) -> None:
    """Two arms whose joints have the same names: the second arm's are relative to the second arm's."""
    arms = ["joint", "gripper", "joint"]
    ds = named(EPISODES, tmp_path / "d", {"observations": ["gripper", "joint", "base", "joint"], "actions": arms})
    plain = np.concatenate([episode["actions"] for episode in EPISODES]).astype(np.float64)
    states = np.concatenate([episode["observations"] for episode in EPISODES]).astype(np.float64)
    for relative, places in (
        (Relative("observations"), {0: 1, 1: 0, 2: 3}),
        (Relative("observations", absolute=["joint"]), {1: 0}),
        (Relative("observations", mask=["joint"]), {0: 1, 2: 3}),
        (Relative("observations", mask=[2]), {2: 3}),
    ):
        wanted = plain.copy()
        for own, other in places.items():
            wanted[:, own] -= states[:, other]
        found = SequenceLoader(
            ds, len(plain), context=1, relative={"actions": relative}, sampler=Fifo(), framework="numpy"
        ).batch(0)
        np.testing.assert_allclose(found["actions"][:, 0], wanted, rtol=1e-6, atol=1e-6)


def test_an_element_whose_name_the_other_column_lacks(tmp_path: Path) -> None:
    """The element of its number is another one, if the columns share names."""
    state = ["gripper_pos", "shoulder", "elbow", "base"]
    ds = named(EPISODES, tmp_path / "d", {"observations": state, "actions": JOINTS})
    with pytest.raises(InvalidArgumentError, match=r"element 2 .* no element 'gripper'") as error:
        loader(ds)
    assert error.value.hint == "leave it absolute: Relative('observations', absolute=[2])"
    loader(ds, relative={"actions": Relative("observations", absolute=[2])})
    twice = named(EPISODES, tmp_path / "e", {"observations": state, "actions": ["elbow", "elbow", "shoulder"]})
    with pytest.raises(InvalidArgumentError, match=r"element 1 .* no element 'elbow'"):
        loader(twice)


@pytest.mark.parametrize("normalize", [None, {"actions": (0.0, 1.0)}])
@pytest.mark.parametrize("missing", ["actions", "torque"])
def test_a_column_that_some_episodes_lack(missing: str, normalize: Any, tmp_path: Path) -> None:
    whole = [{**each, "torque": each["observations"]} for each in EPISODES]
    without = [{name: values for name, values in each.items() if name != missing} for each in whole]
    ds = feed_data.convert_parts([whole, without], tmp_path / "parts")
    options: Any = {"relative": {"actions": "torque"}, "normalize": normalize, "columns": ["actions", "torque"]}
    with pytest.raises(UnsupportedColumnError, match="no value of the column") as error:
        loader(ds, **options)
    assert (error.value.file, error.value.column) == (str(ds.path), missing)
    loader(ds[: len(EPISODES)], **options)


@pytest.mark.parametrize(
    ("relative", "error", "message"),
    [
        ("observations", InvalidArgumentError, "relative maps columns"),
        ({"actions": 3}, InvalidArgumentError, "relative maps columns"),
        ({"actions": {"from": "observations"}}, InvalidArgumentError, "relative maps columns"),
        ({"action": "observations"}, UnknownNameError, "unknown column 'action'"),
        ({"actions": "state"}, UnknownNameError, "unknown column 'state'"),
        ({"actions": "actions"}, InvalidArgumentError, "relative to itself"),
        ({"actions": "rewards"}, InvalidArgumentError, r"(?s)needs vectors of numbers.*give other columns"),
        ({"terminated": "observations"}, InvalidArgumentError, "needs vectors of numbers"),
        ({"observations": "actions"}, InvalidArgumentError, r"element 3 cannot be relative: actions has 3 elements"),
        ({"actions": Relative("observations", mask=[True])}, InvalidArgumentError, "mask has 1 booleans"),
        ({"actions": Relative("observations", mask=[True] * 4)}, InvalidArgumentError, "mask has 4 booleans"),
        ({"actions": Relative("observations", mask=[3])}, InvalidArgumentError, "no element 3: the column has 3"),
        ({"actions": Relative("observations", absolute=["gripper"])}, InvalidArgumentError, "have no names"),
    ],
)  # fmt: skip
def test_bad_arguments(dataset: Any, relative: Any, error: type[GearError], message: str) -> None:
    with pytest.raises(error, match=message):
        loader(dataset, relative=relative)


@pytest.mark.parametrize(
    "values",
    [
        {"to": 3},
        {"mask": "gripper"},
        {"mask": [True, 0]},
        {"absolute": [False]},
        {"absolute": [1.5]},
        {"delta": 1},
    ],
)
def test_bad_fields(values: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Relative(**{"to": "observations", **values})


def test_columns_that_cannot_be_relative(dataset: Any) -> None:
    delta = Relative("observations", delta=True)
    for options, message in (
        ({"columns": ["observations"]}, "does not put in the batch"),
        ({"columns": ["actions", "next_actions"]}, "another step in 'next_actions'"),
        ({"offsets": {"actions": [0, 2]}, "context": 1, "relative": {"actions": delta}}, "needs steps in a row"),
        ({"goals": Goals(goal_column="actions")}, "goals have the column's values"),
        ({"normalize": {"actions": (np.zeros((4, 3)), 1.0)}, "context": 5}, "12 means"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=message):
            loader(dataset, **options)
