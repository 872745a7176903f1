"""Steps by their times: batches of datasets of several rates against plain loops over their episodes."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import gear_data
from gear_data import Goals, Mixture, Relative, Rollout, Seconds, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownArgumentError, UnknownNameError
from gear_data.loaders.presets.offsets import check_offsets, offsets_from_json, offsets_to_json
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take

BATCH = 11
#: Steps per second, episode lengths, and elements of observations and actions, of each dataset.
RATES = [5, 50, 30]
LENGTHS = [[7, 1, 13], [60, 3, 90], [35, 2]]
WIDTHS = [(4, 3), (2, 1), (6, 2)]
EPISODES = [
    feed_data.locomotion(LENGTHS[n], seed=n, observations=WIDTHS[n][0], actions=WIDTHS[n][1]) for n in range(len(RATES))
]
# A column that only the first dataset has.
for _episode in EPISODES[0]:
    _episode["infos.force"] = _episode["rewards"] + 1
#: A chunk of one second at 50 steps per second, and two observations.
CHUNK = [round(0.02 * number, 10) for number in range(51)]
HISTORY = [-0.4, 0.0]
EXACT = 1e-4


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    folder = tmp_path_factory.mktemp("seconds")
    return [
        feed_data.convert_episodes(episodes, folder / str(number), shard_bytes=1024)
        for number, episodes in enumerate(EPISODES)
    ]


def arrays(found: SequenceLoader, count: int) -> list[dict[str, Any]]:
    """The next batches as arrays of NumPy, without keys of several datasets' batches."""
    return [{key: np.array(value) for key, value in batch.items()} for batch in itertools.islice(found, count)]


def places(times: list[float], rate: int, tolerance: float, fill: str | None) -> list[Fraction]:
    """The place of each time among the steps, as a plain loop in exact numbers finds it."""
    found = []
    for time in times:
        exact = Fraction(str(time)) * rate
        below, above = math.floor(exact), math.ceil(exact)
        near = below if exact - below <= above - exact else above
        if abs(exact - near) <= Fraction(str(tolerance)) * rate:
            found.append(Fraction(near))
        else:
            assert fill is not None
            found.append(Fraction(below) if fill == "hold" else exact)
    return found


def expected(
    values: Any, start: int, where: list[Fraction], padding: str = "fill", number: float = 0.0
) -> tuple[Any, list[bool]]:
    """The values of a window at these places, and which of them are no padding."""
    last, steps, valid = len(values) - 1, [], []
    for place in where:
        low, high = start + math.floor(place), start + math.ceil(place)
        inside = low >= 0 and high <= last
        valid.append(inside)
        if inside:
            weight = float(place - math.floor(place))
            steps.append((1 - weight) * values[low].astype(np.float64) + weight * values[high])
        elif padding == "edge":
            steps.append(values[0] if low < 0 else values[last])
        elif padding == "first":
            # The first step of the range that the window reads: it reads its own first step, too.
            steps.append(values[max(0, start + min(0, *(math.floor(each) for each in where)))])
        else:
            steps.append(np.full_like(values[0], number))
    return np.array(steps), valid


def mixed(datasets: Any, join: bool = True, pad_to: Any = "largest", **options: Any) -> SequenceLoader:
    entries = [(ds, 1, {"fps": rate}) for ds, rate in zip(datasets, RATES, strict=False)]
    mixture = Mixture(entries, join=join, pad_to=pad_to)
    return SequenceLoader(mixture, **grouped(**{"batch_size": BATCH, "seed": 4, **options}))


def rows_of(found: SequenceLoader, step: int) -> list[tuple[int, int, int]]:
    windows = found.windows(step)
    return list(zip(*(windows[name].tolist() for name in ("dataset", "episode_id", "start")), strict=True))


#: Preset -> its padding, the number in the padding of actions, and the keys of actions, observations and their masks.
PADDINGS: dict[str, tuple[str, float, tuple[str, str, str, str]]] = {
    "raw": ("fill", 0, ("actions", "observations", "actions_mask", "observations_mask")),
    "decision_transformer": ("fill", -10, ("actions", "states", "actions_mask", "observations_mask")),
    "jat": ("first", 0, ("actions", "observations", "actions_mask", "observations_mask")),
    "lerobot": ("edge", 0, ("action", "observation.state", "action_is_pad", "observation.state_is_pad")),
}


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("fill", ["hold", "interpolate"])
@pytest.mark.parametrize("preset", PADDINGS)
def test_a_mixture_of_several_rates(datasets: Any, preset: str, fill: Any, prefetch: int, join: bool) -> None:
    padding, number, keys = PADDINGS[preset]
    offsets = {"actions": Seconds(CHUNK, fill=fill), "observations": Seconds(HISTORY, fill=fill)}
    found = mixed(datasets, join, preset=preset, offsets=offsets, prefetch=prefetch, framework="numpy")
    for step, batch in enumerate(itertools.islice(found, 6)):
        assert batch[keys[0]].shape == (BATCH, len(CHUNK), 3) and batch[keys[1]].shape == (BATCH, len(HISTORY), 6)
        for row, (source, episode, start) in enumerate(rows_of(found, step)):
            for name, times, key, mask in (
                ("actions", CHUNK, keys[0], keys[2]),
                ("observations", HISTORY, keys[1], keys[3]),
            ):
                where = places(times, RATES[source], EXACT, fill)
                values, valid = expected(
                    EPISODES[source][episode][name], start, where, padding, number if name == "actions" else 0
                )
                width = values.shape[1]
                np.testing.assert_allclose(batch[key][row, :, :width], values, rtol=1e-6, atol=1e-6)
                assert not batch[key][row, :, width:].any()
                assert batch[mask][row].tolist() == [each != mask.endswith("is_pad") for each in valid]


@pytest.mark.parametrize("fill", ["hold", "interpolate"])
def test_groots_mask_of_elements_is_0_at_padding(datasets: Any, fill: Any) -> None:
    """Also between the last step and the end of the episode, where the action is zero."""
    times = [number / 20 for number in range(40)]
    offsets = {"actions": Seconds(0, 2, hz=20, fill=fill)}
    found = mixed(datasets, preset="groot", offsets=offsets, framework="numpy")
    for step, batch in enumerate(itertools.islice(found, 4)):
        assert batch["action_mask"].dtype == np.float32
        for row, (source, episode, start) in enumerate(rows_of(found, step)):
            own = EPISODES[source][episode]["actions"]
            values, valid = expected(own, start, places(times, RATES[source], EXACT, fill))
            golden = np.zeros((40, 132), np.float32)
            golden[np.array(valid), : own.shape[1]] = 1
            assert np.array_equal(batch["action_mask"][row], golden)
            assert batch["action_is_pad"][row].tolist() == [not each for each in valid]
            np.testing.assert_allclose(batch["action"][row, :, : own.shape[1]], values, rtol=1e-6, atol=1e-6)


def test_lerobots_delta_timestamps_are_its_steps(datasets: Any) -> None:
    # `get_delta_indices` and `_get_query_indices` of LeRobot: round(d * fps), clipped to the episode.
    deltas = {"actions": [number / 30 for number in range(16)], "observations": [-1 / 3, -0.1, 0.0]}
    offsets = {name: Seconds(times, fps=30) for name, times in deltas.items()}
    found = SequenceLoader(datasets[2], BATCH, preset="lerobot", offsets=offsets, framework="numpy", seed=1)
    assert found.spec()["offsets"] == {"actions": [0, 16], "observations": {"steps": [-10, -3, 0]}}
    windows = found.windows(0)
    batch = next(iter(found))
    for row, (episode, start) in enumerate(zip(windows["episode_id"], windows["start"], strict=True)):
        for name, key in (("actions", "action"), ("observations", "observation.state")):
            steps = [start + round(delta * 30) for delta in deltas[name]]
            values = EPISODES[2][episode][name]
            assert np.array_equal(batch[key][row], values[np.clip(steps, 0, len(values) - 1)])
            assert batch[f"{key}_is_pad"][row].tolist() == [not 0 <= step < len(values) for step in steps]


@pytest.mark.parametrize("rate", [5, 12.5, 29.97, 30, 50, 60])
@pytest.mark.parametrize("fill", ["hold", "interpolate"])
@pytest.mark.parametrize("tolerance", [0, 1e-4, 0.005, 0.02])
def test_steps_of_times(rate: float, fill: Any, tolerance: float) -> None:
    times = [number / 100 for number in range(-100, 201)]
    steps, weights = Seconds(times, fill=fill, tolerance=tolerance).steps_of(rate)
    where = places(times, Fraction(str(rate)), tolerance, fill)  # type: ignore[arg-type]
    assert list(steps) == [math.floor(place) for place in where]
    np.testing.assert_allclose(weights, [float(place - math.floor(place)) for place in where], atol=1e-8)


def test_a_range_of_times() -> None:
    assert Seconds(0, 1, hz=50).times == tuple(number / 50 for number in range(50))
    assert Seconds(-0.1, 0.1, hz=30).times == tuple(-0.1 + number / 30 for number in range(6))
    assert Seconds(0, 0.58, hz=50).steps_of(50)[0] == tuple(range(29))
    assert Seconds(np.arange(3) / 50) == Seconds([0, 0.02, 0.04]) == Seconds(0, 0.06, hz=50)
    # Of two steps at the same distance the earlier one.
    assert Seconds([-0.3, -0.1, 0.1, 0.3], tolerance=0.1).steps_of(5)[0] == (-2, -1, 0, 1)


#: What a loader of several rates gives in other ways, as it gives its batches in order.
CASES: list[dict[str, Any]] = [
    {"offsets": {"actions": Seconds(CHUNK, fill="interpolate")}, "normalize": "all", "dtype": "bfloat16"},
    {"offsets": {"actions": Seconds(CHUNK, fill="interpolate"), "rewards": Seconds(HISTORY, fill="hold")}, "n_step": 2},
    {
        "offsets": {"observations": Seconds([-0.3, 0.0], fill="interpolate")}, "preset": "transitions", "context": 1,
        "goals": Goals(),
    },
    {"offsets": {"actions": Seconds(0, 1, hz=10, fill="interpolate")}, "preset": "lerobot", "sampler": "shuffle"},
    {
        "offsets": {"actions": Seconds(CHUNK, fill="interpolate"), "rewards": Seconds(CHUNK, fill="hold")},
        "columns": ["actions", "next_actions", "rewards"], "stack": {"actions": ["observations", "actions"]},
    },
]  # fmt: skip


@pytest.mark.parametrize("options", CASES)
def test_prefetch_ranks_resume_and_copies(datasets: Any, options: dict[str, Any]) -> None:
    whole = take(mixed(datasets, **options), 6)
    for prefetch, batches_at_once in ((0, 1), (3, 1), (2, 3)):
        found = mixed(datasets, **options, prefetch=prefetch, batches_at_once=batches_at_once)
        same(take(found, 6), whole)
    apart = mixed(datasets, join=False, **options)
    same(take(mixed(datasets, join=False, **options, prefetch=0), 6), take(apart, 6))
    saved = mixed(datasets, **options)
    take(saved, 2)
    resumed = mixed(datasets, **options)
    resumed.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    same(take(resumed, 4), whole[2:])
    same(take(pickle.loads(pickle.dumps(mixed(datasets, **options))), 6), whole)
    for rank in range(2):
        own = take(mixed(datasets, **options, rank=rank, world_size=2), 6)
        first, last = rank * BATCH // 2, (rank + 1) * BATCH // 2
        cut = [{key: value[first:last] for key, value in batch.items()} for batch in whole]
        same(own, cut)


def test_a_rank_without_rows_has_the_same_keys(datasets: Any) -> None:
    """21 steps in batches of 10: the last batch has one row, and rank 0 of 2 has none."""
    options: dict[str, Any] = {"offsets": {"actions": Seconds([0, 0.1], fill="interpolate", fps=5)}, "context": 2}
    nothing, last = (
        list(SequenceLoader(datasets[0], 10, sampler="shuffle", epochs=1, rank=rank, world_size=2, **options))[-1]
        for rank in range(2)
    )
    assert nothing.keys() == last.keys()
    for key, value in nothing.items():
        assert (value.dtype, value.shape) == (last[key].dtype, (0, *last[key].shape[1:]))


@pytest.mark.processes
def test_workers(datasets: Any) -> None:
    found = mixed(datasets, **CASES[0])
    loader = DataLoader(mixed(datasets, **CASES[0], steps=6), batch_size=None, num_workers=2)
    same(list(loader), take(found, 6))


#: Arguments, and the keys and masks of interpolated arrays.
ARRAYS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"normalize": "all"}, {"actions": "actions_mask"}),
    ({"dtype": "float16", "normalize": {"actions": (0.1, 0.5)}}, {"actions": "actions_mask"}),
    ({"columns": ["actions", "next_actions"]}, {"actions": "actions_mask", "next_actions": "next_actions_mask"}),
    ({"preset": "lerobot", "normalize": "quantiles"}, {"action": "action_is_pad"}),
    ({"preset": "corl", "normalize": True}, {"actions": "actions_mask"}),
    ({"preset": "transitions", "context": 1, "n_step": 2}, {"actions": "actions_mask"}),
    ({"stack": {"actions": ["observations", "actions"]}, "normalize": ["actions"]}, {"actions": "actions_mask"}),
]


@pytest.mark.parametrize("options, keys", ARRAYS)
def test_values_between_steps_of_a_batch(datasets: Any, options: dict[str, Any], keys: dict[str, str]) -> None:
    times = [-0.5, -0.3, 0.0, 0.08, 0.2, 0.37]
    where = places(times, 5, EXACT, "interpolate")
    arguments = {"batch_size": 40, "seed": 2, "framework": "numpy", **options}
    offsets = {"actions": Seconds(times, fill="interpolate", fps=5)}
    found = arrays(SequenceLoader(datasets[0], **grouped(**arguments, offsets=offsets)), 3)
    # A range of whole steps of the same windows.
    ranged = arrays(SequenceLoader(datasets[0], **grouped(**arguments, offsets={"actions": (-3, 3)})), 3)
    for batch, steps in zip(found, ranged, strict=True):
        for key, mask in keys.items():
            is_valid = mask != "action_is_pad"
            for row, column in itertools.product(range(40), range(len(times))):
                low, high = (3 + f(where[column]) for f in (math.floor, math.ceil))
                inside = [steps[mask][row, each] == is_valid for each in (low, high)]
                assert (batch[mask][row, column] == is_valid) == all(inside)
                one, two = (steps[key][row, each].astype(np.float64) for each in (low, high))
                value = one + float(where[column] % 1) * (two - one)
                if not all(inside):
                    value = two if inside[0] else one
                dtype = batch[key].dtype
                np.testing.assert_allclose(
                    batch[key][row, column], value.astype(dtype), rtol=1e-3 if dtype == np.float16 else 1e-6, atol=1e-6
                )
        others = batch.keys() - {*keys, *keys.values()}
        assert all(np.array_equal(batch[key], steps[key]) for key in others)


def test_the_spec_has_the_steps_of_each_dataset(datasets: Any) -> None:
    found = mixed(datasets, offsets={"actions": Seconds([0, 0.1, 0.5], fill="interpolate")})
    specs = json.loads(json.dumps(found.spec()))["datasets"]
    assert [each["offsets"]["actions"]["steps"] for each in specs] == [[0, 0, 2], [0, 5, 25], [0, 3, 15]]
    outputs = [next(o for o in each["outputs"] if o["key"] == "actions") for each in specs]
    assert [each.get("weights") for each in outputs] == [[0.0, 0.5, 0.5], None, None]


def test_relative_actions_between_steps(datasets: Any) -> None:
    times = [0.0, 0.08, 0.2, 0.5]
    arguments = {"batch_size": 40, "seed": 2, "framework": "numpy", "context": 1, "columns": ["actions"]}
    mean, std = np.arange(3.0), np.array([0.5, 2.0, 1.0])
    options = {"relative": {"actions": Relative("observations", absolute=[2])}, "normalize": {"actions": (mean, std)}}
    offsets = {"actions": Seconds(times, fill="interpolate", fps=5)}
    loader = SequenceLoader(datasets[0], **grouped(**arguments, **options, offsets=offsets))
    windows = loader.windows(0)
    (batch,) = arrays(loader, 1)
    for row, (episode, start) in enumerate(zip(windows["episode_id"], windows["start"], strict=True)):
        own = EPISODES[0][episode]
        values, valid = expected(own["actions"], start, places(times, 5, EXACT, "interpolate"))
        state = np.where([True, True, False], own["observations"][start, :3], 0).astype(np.float64)
        wanted = np.where(np.array(valid)[:, None], (values - state - mean) / std, 0)
        np.testing.assert_allclose(batch["actions"][row], wanted, rtol=1e-5, atol=1e-6)
        assert batch["actions_mask"][row].tolist() == valid
    # Numbers for each step are those of steps, not of times between them.
    by_step = {**options, "normalize": {"actions": (np.arange(12.0).reshape(4, 3), std)}}
    with pytest.raises(InvalidArgumentError, match="normalize has numbers for each step"):
        SequenceLoader(datasets[0], **grouped(**arguments, **by_step, offsets=offsets))
    held = {"actions": Seconds(times, fill="hold", fps=5)}
    SequenceLoader(datasets[0], **grouped(**arguments, **by_step, offsets=held))


def test_goals_between_steps(datasets: Any) -> None:
    # At the ends of an episode the nearest step stands for others.
    offsets = {"observations": Seconds([-0.3, 0.0], fill="interpolate", fps=5)}
    arguments = {"batch_size": 30, "seed": 2, "framework": "numpy", "preset": "transitions", "context": 1}
    (batch,) = arrays(SequenceLoader(datasets[0], **grouped(**arguments, goals=Goals(), offsets=offsets)), 1)
    (steps,) = arrays(
        SequenceLoader(datasets[0], **grouped(**arguments, goals=Goals(), offsets={"observations": (-2, 1)})), 1
    )
    for name in (each for each in batch if each.endswith("goals")):
        np.testing.assert_allclose(batch[name][:, 0], (steps[name][:, 0] + steps[name][:, 1]) / 2, rtol=1e-5)
        assert np.array_equal(batch[name][:, 1], steps[name][:, 2])


def test_a_rollout_has_the_inputs_of_training(datasets: Any) -> None:
    times = [-0.3, -0.2, 0.0]
    offsets = {"observations": Seconds(times, fill="interpolate", fps=5), "actions": Seconds(CHUNK, fill="hold", fps=5)}
    arguments = {"context": 1, "columns": ["observations", "actions"], "normalize": True, "framework": "numpy"}
    loader = SequenceLoader(datasets[0], 60, offsets=offsets, **arguments)
    (batch,) = arrays(loader, 1)
    rollout = Rollout.from_spec(json.loads(json.dumps(loader.spec())))
    episode = EPISODES[0][2]
    windows = loader.windows(0)
    for step in range(len(episode["rewards"])):
        if step:
            rollout.update(episode["actions"][step - 1], 0.0, episode["observations"][step])
        else:
            rollout.reset(episode["observations"][0])
        rows = (windows["episode_id"] == 2) & (windows["start"] == step)
        inputs = rollout.inputs()
        assert "actions" not in inputs and inputs["observations"].shape == (1, 3, 4)
        for row in np.flatnonzero(rows):
            for key, value in inputs.items():
                np.testing.assert_allclose(value[0], batch[key][row], rtol=1e-6)
    predicted = np.random.default_rng(0).normal(size=(1, len(CHUNK), 3))
    assert np.array_equal(rollout.action(predicted), predicted[0, 0])


def test_a_rollout_has_the_mask_of_elements_of_training(datasets: Any) -> None:
    offsets = {"actions": Seconds([-0.3, 0.0], fill="interpolate", fps=5)}
    loader = SequenceLoader(datasets[0], 60, preset="groot", context=1, offsets=offsets, framework="numpy")
    (batch,) = arrays(loader, 1)
    windows = loader.windows(0)
    rollout = Rollout.from_spec(json.loads(json.dumps(loader.spec())))
    episode, rows = EPISODES[0][2], 0
    for step in range(len(episode["rewards"])):
        if step:
            rollout.update(episode["actions"][step - 1], 0.0, episode["observations"][step])
        else:
            rollout.reset(episode["observations"][0])
        # 0.3 s before the step is between the two steps before it, the earlier of which is `step - 2`.
        golden = np.zeros((2, 132), np.float32)
        golden[np.array([step >= 2, True]), :3] = 1
        assert np.array_equal(rollout.inputs()["action_mask"][0], golden)
        for row in np.flatnonzero((windows["episode_id"] == 2) & (windows["start"] == step)):
            assert np.array_equal(batch["action_mask"][row], golden)
            rows += 1
    assert rows


def test_a_rollout_does_not_take_an_action_between_steps_for_the_current_one(datasets: Any) -> None:
    offsets = {"actions": Seconds([0.05, 0.1], fill="interpolate", fps=5)}
    loader = SequenceLoader(datasets[0], context=1, columns=["observations", "actions"], offsets=offsets)
    rollout = Rollout.from_spec(loader.spec())
    rollout.reset(np.zeros(4))
    with pytest.raises(InvalidArgumentError, match="without the current step"):
        rollout.action(np.zeros((1, 2, 3)))


@pytest.mark.parametrize(
    "seconds", [Seconds([0, 0.1]), Seconds(0, 1, hz=5, fill="hold", tolerance=0.01, fps=25), Seconds([0.25], fps=4)]
)
def test_offsets_as_json(seconds: Seconds) -> None:
    plain = json.loads(json.dumps(offsets_to_json(check_offsets({"actions": seconds, "rewards": (0, 2)}))))
    assert offsets_from_json(plain) == {"actions": seconds, "rewards": (0, 2)}
    assert pickle.loads(pickle.dumps(seconds)) == seconds


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: Seconds([]), InvalidArgumentError, "list of finite numbers"),
    (lambda: Seconds([0, float("nan")]), InvalidArgumentError, "list of finite numbers"),
    (lambda: Seconds([True]), InvalidArgumentError, "list of finite numbers"),
    (lambda: Seconds("0"), InvalidArgumentError, "list of finite numbers"),  # type: ignore[arg-type]
    (lambda: Seconds([0, 1], hz=5), InvalidArgumentError, "not both"),
    (lambda: Seconds(0, 1), InvalidArgumentError, "first < last and hz > 0"),
    (lambda: Seconds(1, 1, hz=5), InvalidArgumentError, "first < last"),
    (lambda: Seconds(0, 1, hz=-5), InvalidArgumentError, "hz > 0"),
    (lambda: Seconds(0, 1e9, hz=1e9), InvalidArgumentError, "times"),
    (lambda: Seconds([0], tolerance=-1), InvalidArgumentError, "tolerance of Seconds"),
    (lambda: Seconds([0], fps=0), InvalidArgumentError, "fps of Seconds"),
    (lambda: Seconds([0], fill="linear"), UnknownNameError, "hold"),  # type: ignore[arg-type]
    (lambda: Seconds([0], rate=5), UnknownArgumentError, "rate"),  # type: ignore[call-arg]
]


@pytest.mark.parametrize("make, kind, message", REFUSED)
def test_refused_arguments(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_a_time_without_a_step_names_the_dataset_and_the_time(datasets: Any) -> None:
    offsets = {"actions": Seconds(CHUNK)}
    with pytest.raises(InvalidArgumentError, match=r"no step is within 0.0001 s of 0.02 s: with 5 steps") as caught:
        mixed(datasets, offsets=offsets)
    assert caught.value.file == str(datasets[0].path) and caught.value.column == "actions"
    # What the hint says works.
    tolerance = float(str(caught.value.hint).rpartition("tolerance=")[2])
    assert tolerance == 0.1
    for options in ({"tolerance": tolerance}, {"fill": "hold"}, {"fill": "interpolate"}):
        take(mixed(datasets, offsets={"actions": Seconds(CHUNK, **options)}), 1)


def test_unknown_steps_per_second(datasets: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the steps per second are unknown") as caught:
        SequenceLoader(datasets[1], offsets={"actions": Seconds([0, 0.02])})
    assert caught.value.file == str(datasets[1].path)
    assert "Seconds(..., fps=50)" in str(caught.value.hint) and "{'fps': 50}" in str(caught.value.hint)
    with pytest.raises(InvalidArgumentError, match="fps must be steps per second above 0"):
        Mixture([(datasets[0], 1, {"fps": 0})])


@pytest.mark.parametrize("columns, kind", [(["terminated"], "bool"), (["infos.count"], "int64")])
def test_only_floats_are_interpolated(tmp_path: Any, columns: list[str], kind: str) -> None:
    episodes = feed_data.locomotion([9], seed=1)
    episodes[0]["infos.count"] = np.arange(9)
    ds = feed_data.convert_episodes(episodes, tmp_path / "counted")
    seconds = {name: Seconds([0, 0.1, 0.2], fill="interpolate", fps=5) for name in columns}
    with pytest.raises(InvalidArgumentError, match=f"the batch has {kind} of this column") as caught:
        SequenceLoader(ds, columns=columns, offsets=seconds)
    assert caught.value.file == str(ds.path) and caught.value.column == columns[0]
    (batch,) = SequenceLoader(
        ds, 4, columns=columns, offsets={name: Seconds([0, 0.1, 0.2], fill="hold", fps=5) for name in columns}, steps=1
    )
    assert batch[columns[0]].shape == (4, 3)


def test_a_column_that_a_dataset_lacks_needs_no_rate(datasets: Any) -> None:
    offsets = {"infos.force": Seconds(HISTORY + CHUNK, fill="interpolate", fps=5)}
    # The other dataset has neither the column nor a rate.
    mixture = Mixture([(datasets[1], 1), (datasets[0], 1)], join=True, pad_to="largest")
    found = SequenceLoader(mixture, BATCH, preset="lerobot", columns=["infos.force"], offsets=offsets, seed=3)
    for step, batch in enumerate(arrays(found, 3)):
        for row, (source, episode, start) in enumerate(rows_of(found, step)):
            values, valid = np.zeros(len(HISTORY + CHUNK)), [False] * len(HISTORY + CHUNK)
            if source == 1:
                where = places(HISTORY + CHUNK, 5, EXACT, "interpolate")
                values, valid = expected(EPISODES[0][episode]["infos.force"], start, where, "edge")
            np.testing.assert_allclose(batch["infos.force"][row], values, rtol=1e-5, atol=1e-6)
            assert batch["infos.force_is_pad"][row].tolist() == [not each for each in valid]
            assert batch["infos.force_present"][row] == (source == 1)


def test_a_mixture_takes_the_rate_of_an_option_first(datasets: Any) -> None:
    found = mixed(datasets, offsets={"actions": Seconds([0, 0.2, 0.6], fps=1000)})
    assert [each["offsets"]["actions"]["steps"] for each in found.spec()["datasets"]] == [
        [0, 1, 3],
        [0, 10, 30],
        [0, 6, 18],
    ]
