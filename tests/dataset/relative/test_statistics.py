"""Statistics of relative columns, against NumPy over all chunks."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data import Mixture, Relative, SequenceLoader, relative_statistics
from gear_data.dataset.relative import engines, statistics
from gear_data.errors import GearError, InvalidArgumentError, NonFiniteError, UnknownNameError, WorkerError
from tests.support.feed import data as feed_data
from tests.support.integrations.ray_cluster import ray_cluster

LENGTHS = [700, 1, 3, 16, 40, 2, 300]


def episodes_of(seed: int, dtype: str = "float32") -> list[dict[str, Any]]:
    """Random episodes; the third action is constant, and the second has few values."""
    episodes = feed_data.locomotion(LENGTHS, seed=seed, observations=4, actions=3)
    for episode in episodes:
        episode["observations"] = episode["observations"].astype(dtype)
        episode["actions"] = (episode["actions"] + 100).astype(dtype)
        episode["actions"][:, 1] = np.round(episode["actions"][:, 1])
        episode["actions"][:, 2] = 1.7
    return episodes


def chunks_of(episodes: Sequence[Mapping[str, Any]], steps: Sequence[int], chosen: Sequence[int], delta: bool) -> Any:
    """Each step of a chunk -> float64 [n, 3], the values in all windows: a plain loop."""
    found: list[list[npt.NDArray[np.float64]]] = [[] for _ in steps]
    for episode in episodes:
        actions, states = (episode[name].astype(np.float64) for name in ("actions", "observations"))
        for start in range(len(actions)):
            before = None
            for k, offset in enumerate(steps):
                step = start + offset
                if not 0 <= step < len(actions):
                    continue
                row = actions[step].copy()
                for element in chosen:
                    row[element] -= states[start, element] if before is None or not delta else before[element]
                found[k].append(row)
                before = actions[step]
    return [np.array(rows).reshape(-1, 3) for rows in found]


def check(found: statistics.RelativeStatistics, values: Any, index: Any = ...) -> None:
    assert (found.count[index] == len(values)).all()
    for column in range(3):
        own = values[:, column]
        exact = [Fraction(each) for each in own.tolist()]
        mean = sum(exact) / len(exact)
        variance = sum((each - mean) ** 2 for each in exact) / len(exact)
        assert found.mean[index][column] == float(mean)
        np.testing.assert_allclose(found.std[index][column], math.sqrt(variance), rtol=1e-15, atol=0)
        assert (found.min[index][column], found.max[index][column]) == (own.min(), own.max())
        low, high = np.quantile(own, [0.01, 0.99])
        assert (found.q01[index][column], found.q99[index][column]) == (low, high)


@pytest.fixture(scope="module")
def episodes() -> list[dict[str, Any]]:
    return episodes_of(1)


@pytest.fixture(scope="module")
def dataset(episodes: Any, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    return feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("statistics") / "d", shard_bytes=4096)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("steps", [(0, 5), (-2, 3)])
def test_all_elements_of_all_chunks(dataset: Any, episodes: Any, steps: Any, delta: bool) -> None:
    relative = Relative("observations", absolute=[2], delta=delta)
    each = chunks_of(episodes, range(*steps), (0, 1), delta)
    found = relative_statistics(dataset, "actions", relative, steps)
    check(found, np.concatenate(each))
    assert found.std[2] == 0 or delta
    per_step = relative_statistics(dataset, "actions", Relative(**{**vars(relative), "per_step": True}), steps)
    assert per_step.mean.shape == (5, 3)
    for k, values in enumerate(each):
        check(per_step, values, k)


def test_listed_steps_and_other_dtypes(tmp_path: Path) -> None:
    for dtype in ("float64", "float16"):
        episodes = episodes_of(2, dtype)
        ds = feed_data.convert_episodes(episodes, tmp_path / dtype)
        found = relative_statistics(ds, "actions", "observations", [0, 7, 3])
        check(found, np.concatenate(chunks_of(episodes, [0, 7, 3], (0, 1, 2), False)))


def test_steps_that_no_window_has(dataset: Any) -> None:
    found = relative_statistics(dataset, "actions", Relative("observations", per_step=True), [0, 699, 700])
    assert found.count.tolist() == [[1062] * 3, [1] * 3, [0] * 3]
    assert np.isnan(found.mean[2]).all()
    assert np.isfinite(found.mean[:2]).all()


def bits(found: statistics.RelativeStatistics) -> list[bytes]:
    return [value.tobytes() for value in vars(found).values()]


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "load_quantiles", lambda *_: None)


def test_several_datasets_are_one(dataset: Any, episodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of several datasets are those of one, in any order and any division."""
    other = feed_data.convert_episodes(episodes_of(3), tmp_path / "other")
    whole = feed_data.convert_episodes([*episodes, *episodes_of(3)], tmp_path / "whole", shard_bytes=1 << 14)
    relative = Relative("observations", delta=True, per_step=True)
    without_files(monkeypatch)
    expected = bits(relative_statistics(whole, "actions", relative, (0, 9)))
    assert bits(relative_statistics([dataset, other], "actions", relative, (0, 9))) == expected
    assert bits(relative_statistics([other, dataset], "actions", relative, (0, 9))) == expected
    monkeypatch.setattr(statistics, "_PARTS", 100)
    assert bits(relative_statistics([other[3:], dataset, other[:3]], "actions", relative, (0, 9))) == expected


@pytest.mark.processes
@pytest.mark.parametrize("jobs", [1, 3])
def test_processes_give_the_same_bits(dataset: Any, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    expected = bits(relative_statistics(dataset, "actions", "observations", (0, 9)))
    assert bits(relative_statistics(dataset, "actions", "observations", (0, 9), jobs=jobs)) == expected


@pytest.fixture(name="ray_cluster")
def cluster() -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with ray_cluster():
        yield


@pytest.mark.processes
@pytest.mark.usefixtures("ray_cluster")
def test_a_ray_cluster_gives_the_same_bits(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)
    expected = bits(relative_statistics(dataset, "actions", "observations", (0, 9)))
    assert bits(relative_statistics(dataset, "actions", "observations", (0, 9), engine="ray", jobs=2)) == expected
    episodes = episodes_of(6)
    episodes[3]["actions"][5, 1] = np.nan
    ds = feed_data.convert_episodes(episodes, tmp_path / "d")
    with pytest.raises(NonFiniteError, match="at step 5 of episode 3"):
        relative_statistics(ds, "actions", "observations", (0, 4), engine="ray")


class Dies:
    def leave(self) -> None:
        os._exit(7)

    def complain(self) -> None:
        raise InvalidArgumentError("no", column="a")


@pytest.mark.processes
def test_processes_that_end_and_errors_of_calls() -> None:
    with engines.run_calls("local", [Dies()], 2, processes=True) as run:
        with pytest.raises(InvalidArgumentError, match="no"):
            list(run([(0, "complain", ())]))
        with pytest.raises(WorkerError, match="ended with status 7"):
            list(run([(0, "leave", ())]))


def test_the_file_is_computed_once(episodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = feed_data.convert_episodes(episodes, tmp_path / "d")
    first = relative_statistics(ds, "actions", "observations", (0, 5))
    assert len(list((tmp_path / "d/sidecars/quantiles").iterdir())) == 1
    calls = []
    computed = statistics._computed
    monkeypatch.setattr(statistics, "_computed", lambda *each: calls.append(1) or computed(*each))
    assert bits(relative_statistics(gear_data.open(tmp_path / "d"), "actions", "observations", (0, 5))) == bits(first)
    assert not calls
    # Each of these has other values.
    for relative, steps in (
        ("observations", (0, 6)),
        (Relative("observations", absolute=[0]), (0, 5)),
        (Relative("observations", delta=True), (0, 5)),
        (Relative("observations", per_step=True), (0, 5)),
    ):
        relative_statistics(ds, "actions", relative, steps)
    relative_statistics(ds[1:], "actions", "observations", (0, 5))
    assert len(calls) == 5
    (tmp_path / "d/sidecars/quantiles").joinpath(
        sorted(path.name for path in (tmp_path / "d/sidecars/quantiles").iterdir())[0]
    ).write_text("{}")
    assert bits(relative_statistics(ds, "actions", "observations", (0, 5))) == bits(first)


# Loaders.


@pytest.mark.parametrize("mode", ["mean-std", "quantiles", "minmax"])
@pytest.mark.parametrize("per_step", [False, True])
def test_loaders_normalise_by_statistics_of_differences(dataset: Any, episodes: Any, mode: str, per_step: bool) -> None:
    relative = Relative("observations", absolute=[2], per_step=per_step)
    options: Any = {"preset": "lerobot", "context": 1, "offsets": {"actions": (0, 6)}, "framework": "numpy"}
    options["relative"] = {"actions": relative}
    found = SequenceLoader(dataset, 64, normalize={"actions": mode}, **options)
    plain = SequenceLoader(dataset, 64, batch=gear_data.BatchOptions(dtype="float64"), **options)
    each = chunks_of(episodes, range(6), (0, 1), False)
    every = each if per_step else [np.concatenate(each)] * 6
    values = plain.batch(0)["action"]
    for k, own in enumerate(every):
        if mode == "mean-std":
            centre, half = own.mean(0), own.std(0)
        else:
            low, high = (own.min(0), own.max(0)) if mode == "minmax" else np.quantile(own, [0.01, 0.99], axis=0)
            centre, half = np.where(low == high, low + 1, (low + high) / 2), (high - low) / 2
        half = np.where(half < 1e-12, 1, half)
        np.testing.assert_allclose(found.batch(0)["action"][:, k], (values[:, k] - centre) / half, rtol=1e-6, atol=1e-6)
    spec = json.loads(json.dumps(found.spec()))
    assert np.shape(spec["normalize"]["actions"][0]) == ((6, 3) if per_step else (3,))
    restored = SequenceLoader(dataset, 64, normalize={"actions": mode}, **options)
    restored.load_state_dict(found.state_dict())
    assert restored.spec() == spec


def test_windows_and_every_way_to_ask(dataset: Any, episodes: Any) -> None:
    """Chunks are the windows of `context` steps; the other columns have their own statistics."""
    each = np.concatenate(chunks_of(episodes, range(4), (0, 1, 2), False))
    for normalize in ("all", ["actions", "observations"], {"actions": "mean-std", "observations": "mean-std"}):
        found = SequenceLoader(dataset, 8, context=4, normalize=normalize, relative={"actions": "observations"})
        mean, std = found.spec()["normalize"]["actions"]
        np.testing.assert_allclose(mean, each.mean(0), rtol=1e-12)
        np.testing.assert_allclose(std, each.std(0), rtol=1e-12)
        assert found.spec()["normalize"]["observations"][0] == dataset.statistics["observations"].mean.tolist()
    first = SequenceLoader(dataset, 8, preset="transitions", normalize="actions", relative={"actions": "observations"})
    ones = np.concatenate(chunks_of(episodes, [0], (0, 1, 2), False))
    np.testing.assert_allclose(first.spec()["normalize"]["actions"][0], ones.mean(0), rtol=1e-12)


def test_stacked_and_renamed_columns(episodes: Any, tmp_path: Path) -> None:
    parts = [
        {
            "rewards": episode["rewards"],
            "actions.a": episode["actions"][:, :1],
            "actions.b": episode["actions"][:, 1:],
            "state": episode["observations"],
        }
        for episode in episodes
    ]
    split = feed_data.convert_episodes(parts, tmp_path / "parts")
    options = {"rename": {"state": "observations"}, "stack": {"actions": ["actions.a", "actions.b"]}}
    found = SequenceLoader(
        Mixture([(split, 1, options)]), 8, context=4, normalize={"actions": "quantiles"},
        columns=["actions", "observations"], relative={"actions": Relative("observations", delta=True)},
    )  # fmt: skip
    each = np.concatenate(chunks_of(episodes, range(4), (0, 1, 2), True))
    low, high = np.quantile(each, [0.01, 0.99], axis=0)
    np.testing.assert_allclose(found.spec()["normalize"]["actions"][0], (low + high) / 2, rtol=1e-12)


def test_a_dataset_that_grows(tmp_path: Path) -> None:
    """After a refresh, batches have the statistics of the generation; the state keeps those of each."""
    first, second = episodes_of(4)[:4], episodes_of(5)[:4]

    def write(episodes: Any) -> None:
        with gear_data.Writer(tmp_path / "d") as writer:
            for episode in episodes:
                for step in range(len(episode["rewards"])):
                    writer.append(**{name: episode[name][step] for name in episode})
                writer.end_episode(terminated=True)

    def mean(found: SequenceLoader) -> Any:
        return found.spec()["normalize"]["actions"][0]

    write(first)
    options: Any = {"context": 4, "normalize": {"actions": "mean-std"}, "relative": {"actions": "observations"}}
    loader = SequenceLoader(gear_data.open(tmp_path / "d"), 8, prefetch=0, **options)
    before = np.concatenate(chunks_of(first, range(4), (0, 1, 2), False)).mean(0)
    np.testing.assert_allclose(mean(loader), before, rtol=1e-12)
    write(second)
    step = loader.refresh()
    after = np.concatenate(chunks_of([*first, *second], range(4), (0, 1, 2), False)).mean(0)
    np.testing.assert_allclose(mean(loader), after, rtol=1e-12)
    resumed = SequenceLoader(gear_data.open(tmp_path / "d"), 8, prefetch=0, **options)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (resumed.batch(step + 1)["actions"] == loader.batch(step + 1)["actions"]).all()


# Errors.


@pytest.mark.parametrize(("column", "value"), [("actions", np.nan), ("observations", np.inf)])
def test_values_that_are_not_finite(column: str, value: float, tmp_path: Path) -> None:
    episodes = episodes_of(6)
    episodes[3][column][5, 1] = value
    ds = feed_data.convert_episodes(episodes, tmp_path / "d")
    message = rf"d, column '{column}': element 1 is {value} at step 5 of episode 3"
    for make in (
        lambda ds: relative_statistics(ds, "actions", "observations", (0, 4)),
        lambda ds: SequenceLoader(ds, 8, normalize=["actions"], relative={"actions": "observations"}),
    ):
        with pytest.raises(NonFiniteError, match=message):
            make(ds)
        make(ds.filter("episode_id != 3"))


def test_steps_by_their_times(dataset: Any, episodes: Any) -> None:
    """Times give the statistics of their steps; values between two steps have none."""
    relative = {"actions": Relative("observations")}

    def make(times: list[float], **options: Any) -> SequenceLoader:
        offsets = {"actions": gear_data.Seconds(times, fps=10, **options)}
        return SequenceLoader(
            dataset, 8, context=1, offsets=offsets, relative=relative, normalize={"actions": "quantiles"}
        )

    low, high = np.quantile(np.concatenate(chunks_of(episodes, [0, 3], (0, 1, 2), False)), [0.01, 0.99], axis=0)
    np.testing.assert_allclose(make([0, 0.3]).spec()["normalize"]["actions"][0], (low + high) / 2, rtol=1e-12)
    with pytest.raises(InvalidArgumentError, match="no statistics of differences that Seconds interpolates"):
        make([0, 0.25], fill="interpolate")


def test_bad_arguments(dataset: Any, tmp_path: Path) -> None:
    for steps in (4, (4, 4), [], (0, 1.5), [True], (1, 2, 3)):
        with pytest.raises(InvalidArgumentError, match="steps must be"):
            relative_statistics(dataset, "actions", "observations", steps)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"needs steps in a row, not \[0, 5\]"):
        relative_statistics(dataset, "actions", Relative("observations", delta=True), [0, 5])
    with pytest.raises(UnknownNameError, match="unknown column 'action'"):
        relative_statistics(dataset, "action", "observations", (0, 4))
    with pytest.raises(InvalidArgumentError, match="jobs"):
        relative_statistics(dataset, "actions", "observations", (0, 4), jobs=0)
    with pytest.raises(UnknownNameError, match="engine"):
        relative_statistics(dataset, "actions", "observations", (0, 17), engine="dask")  # type: ignore[arg-type]
    narrow = feed_data.convert_episodes(feed_data.locomotion([4], seed=1, actions=2), tmp_path / "n")
    for several in ([dataset, narrow], []):
        with pytest.raises(InvalidArgumentError, match="columns of one width"):
            relative_statistics(several, "actions", "observations", (0, 4))
    with pytest.raises(GearError, match="imagenet"):
        SequenceLoader(dataset, 8, normalize={"actions": "imagenet"}, relative={"actions": "observations"})
