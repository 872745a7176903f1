"""Stacked columns in batches: as if the dataset had been converted with the same stack."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import BatchOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnknownNameError, UnsupportedColumnError
from tests.support.feed.arguments import grouped

STACK = {"observations": ["observations.pos", "observations.vel", "observations.gear"]}


def episodes() -> list[dict[str, Any]]:
    """Returns episodes whose parts have several dtypes and shapes, with final observations."""
    rng = np.random.default_rng(5)
    result = []
    for i, steps in enumerate([7, 1, 12, 30, 4]):
        result.append(
            {
                "observations": {
                    "vel": rng.normal(size=steps + 1),
                    "pos": rng.normal(size=(steps + 1, 2)).astype(np.float32),
                    "gear": rng.integers(0, 6, steps + 1),
                },
                "actions": rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
                "rewards": rng.normal(size=steps).astype(np.float32),
                "terminated": i % 2 == 0,
                "truncated": i % 2 == 1,
            }
        )
    return result


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a dataset of the parts, and one that was converted with the stack."""
    folder = tmp_path_factory.mktemp("stacked")
    gear_data.convert(episodes(), folder / "parts")
    gear_data.convert(episodes(), folder / "whole", stack=STACK)
    return folder / "parts", folder / "whole"


def assert_equal_loaders(loader: SequenceLoader, expected: SequenceLoader) -> None:
    for batch, other in zip(loader, expected, strict=True):
        assert_equal(batch, other)
    assert loader.spec()["outputs"] == expected.spec()["outputs"]


def assert_equal(batch: Any, expected: Any) -> None:
    assert list(batch) == list(expected) or sorted(batch) == sorted(expected)
    for key, value in expected.items():
        if isinstance(value, list):
            assert len(batch[key]) == len(value)
            assert all(torch.equal(a, b) for a, b in zip(batch[key], value, strict=True)), key
        else:
            assert batch[key].dtype == value.dtype, key
            assert torch.equal(torch.nan_to_num(batch[key]), torch.nan_to_num(value)), key


NORMALIZED = {"observations": (np.arange(4.0), np.array([1.0, 2.0, 0.5, 3.0]))}


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "raw", "context": 5, "columns": ["observations", "next_observations", "rewards"]},
        {"preset": "decision_transformer", "context": 6, "normalize": NORMALIZED},
        {"preset": "corl", "context": 6, "normalize": NORMALIZED, "dtype": "bfloat16"},
        {"preset": "d3rlpy", "context": 4, "offsets": {"observations": (-3, 1)}},
        {"preset": "d3rlpy", "context": 4, "offsets": {"observations": [-3, 0]}, "normalize": NORMALIZED},
        {"preset": "lerobot", "context": 4, "preset_options": {"padding": "edge"}},
        {"preset": "transitions", "n_step": 3, "discount": 0.9},
        {"preset": "transitions", "goals": gear_data.Goals()},
        {"preset": "transitions", "goals": gear_data.Goals(future=True)},
        {"preset": "gato", "context": 4},
    ],
    ids=lambda options: options["preset"],
)
def test_batches_are_those_of_a_dataset_that_was_converted_so(
    paths: tuple[Path, Path], options: dict[str, Any]
) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments = {"batch_size": 9, "steps": 3, "seed": 2, "anchor": "end", **options}
    if options["preset"] == "transitions":
        del arguments["anchor"]
    loader = SequenceLoader(parts, **grouped(stack=STACK, **arguments))
    expected = SequenceLoader(whole, **grouped(**arguments))
    assert_equal_loaders(loader, expected)
    assert_equal(loader.batch(1), expected.batch(1))
    assert loader.spec()["stack"] == {"observations": STACK["observations"]}


@pytest.mark.parametrize("normalize", [True, "quantiles"])
def test_the_statistics_of_the_parts_are_joined(normalize: Any, paths: tuple[Path, Path]) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments: dict[str, Any] = {
        "batch_size": 64,
        "context": 3,
        "normalize": normalize,
        "steps": 1,
        "framework": "numpy",
    }
    (batch,) = SequenceLoader(parts, **grouped(preset="decision_transformer", stack=STACK, **arguments))
    (expected,) = SequenceLoader(whole, **grouped(preset="decision_transformer", **arguments))
    np.testing.assert_allclose(batch["states"], expected["states"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean-std", "quantiles", "minmax"])
def test_a_matrix_has_one_mean_for_its_elements(mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    episode = {"vector": rng.normal(2, 3, (20, 2)), "matrix": rng.normal(5, 1, (20, 2, 3)), "rewards": np.ones(20)}
    gear_data.convert([episode], tmp_path / "d")
    batch = BatchOptions(stack={"observations": ["vector", "matrix"]})
    ds = gear_data.open(tmp_path / "d")
    found = np.array(
        SequenceLoader(ds, batch=batch, normalize={"observations": mode}).spec()["normalize"]["observations"]
    )
    parts = [*episode["vector"].T, *[episode["matrix"].ravel()] * 6]
    for element, values in enumerate(parts):
        if mode == "mean-std":
            expected = [values.mean(), values.std()]
        else:
            low, high = np.quantile(values, (0.01, 0.99) if mode == "quantiles" else (0, 1))
            expected = [(low + high) / 2, (high - low) / 2]
        np.testing.assert_allclose(found[:, element], expected, rtol=1e-6)
    robots = gear_data.Mixture([(ds, 1, {"embodiment": 0}), (ds, 1, {"embodiment": 0})], statistics="embodiment")
    with pytest.raises(InvalidArgumentError, match="'matrix' is a part with one mean for its 6 elements"):
        SequenceLoader(robots, batch=batch, normalize={"observations": mode})
    # Some elements of a matrix have its mean, and its quantiles are those of the whole matrix, too.
    some = BatchOptions(stack={"observations": ["vector", {"column": "matrix", "elements": [0, 3]}]})
    if mode == "quantiles":
        with pytest.raises(InvalidArgumentError, match="'matrix' is a part with one mean for its 6 elements"):
            SequenceLoader(robots, batch=some, normalize={"observations": mode})
        return
    spec = SequenceLoader(robots, batch=some, normalize={"observations": mode}).spec()
    for each in spec["datasets"]:
        np.testing.assert_allclose(np.array(each["normalize"]["observations"]), found[:, :5], rtol=1e-6)


def test_mixtures_and_copies_of_the_loader(paths: tuple[Path, Path]) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments: dict[str, Any] = {"batch_size": 8, "context": 3, "steps": 2, "seed": 4}
    mixed = gear_data.Mixture([(parts[:3], 0.5), (parts[3:], 0.5)], join=True)
    expected = gear_data.Mixture([(whole[:3], 0.5), (whole[3:], 0.5)], join=True)
    loader = pickle.loads(pickle.dumps(SequenceLoader(mixed, **grouped(stack=STACK, **arguments))))
    for batch, other in zip(loader, SequenceLoader(expected, **grouped(**arguments)), strict=True):
        assert_equal(batch, other)


def test_batches_stay_when_buffers_are_used_again(paths: tuple[Path, Path]) -> None:
    loader = SequenceLoader(
        gear_data.open(paths[0]), 6, context=3, steps=20, batch=BatchOptions(stack=STACK), prefetch=3
    )
    batches = list(loader)
    for step, batch in enumerate(batches):
        assert_equal(batch, loader.batch(step))


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ({"observations": ["observations.pos", "speed"]}, UnknownNameError, "speed"),
        ({"actions": ["observations.pos"]}, InvalidArgumentError, "already"),
        ({"observations": ["observations.pos", "rewards"]}, InvalidArgumentError, "rewards"),
        ({"observations": ["observations.pos", "actions"]}, InvalidArgumentError, "actions has no final observation"),
        (["observations.pos"], InvalidArgumentError, "must map"),
        ({"states": ["observations.pos"]}, MissingColumnError, "observations"),
    ],
)
def test_bad_stacks(paths: tuple[Path, Path], stack: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        SequenceLoader(gear_data.open(paths[0]), 4, preset="decision_transformer", batch=BatchOptions(stack=stack))


#: Parts of columns: elements in another order, of two stacks, with other signs and ranges.
PARTS: dict[str, list[Any]] = {
    "observations": [
        {"column": "state", "elements": [3, 5]},
        "velocity",
        {"column": "state", "elements": [0, 2], "scale": -1},
    ],
    "actions": [
        {"column": "action", "elements": (0, 3)},
        {"column": "action", "elements": (4, 5), "scale": -1, "offset": 1},
        {"column": "action", "elements": (3, 4), "scale": 2, "offset": -1},
    ],
}


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a dataset, and one whose columns NumPy made of the same values before the conversion."""
    folder = tmp_path_factory.mktemp("sliced")
    rng = np.random.default_rng(6)
    raw, made = [], []
    for i, steps in enumerate([7, 1, 12, 30, 4]):
        # Multiples of 1/8: their sums are exact.
        state = (rng.integers(-16, 16, (steps + 1, 5)) / 8).astype(np.float32)
        velocity = (rng.integers(-16, 16, (steps + 1, 1)) / 8).astype(np.float32)
        action = (rng.integers(0, 9, (steps, 5)) / 8).astype(np.float32)
        ends = {"rewards": rng.normal(size=steps), "terminated": i % 2 == 0, "truncated": i % 2 == 1}
        observations = {"state": state, "velocity": velocity}
        raw.append({"observations": observations, "action": action, **ends})
        made.append(
            {
                "observations": np.concatenate([state[:, 3:5], velocity, -state[:, :2]], axis=1),
                "actions": np.concatenate([action[:, :3], 1 - action[:, 4:5], 2 * action[:, 3:4] - 1], axis=1),
                **ends,
            }
        )
    gear_data.convert(raw, folder / "raw", progress=False)
    gear_data.convert(made, folder / "made", progress=False)
    return folder / "raw", folder / "made"


def _parts_of(ds: gear_data.Dataset) -> dict[str, list[Any]]:
    """Returns `PARTS` with the names of a dataset's columns."""
    names = {name.rsplit(".", 1)[-1]: name for name in ds.schema.names} | {"action": "actions"}
    return {
        stack: [names[each] if isinstance(each, str) else {**each, "column": names[each["column"]]} for each in parts]
        for stack, parts in PARTS.items()
    }


OF_FIVE = {"observations": (np.arange(5.0), 2.0 ** np.arange(5)), "actions": (np.zeros(5), np.full(5, 0.5))}


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "raw", "context": 5, "columns": ["observations", "next_observations", "actions"]},
        {"preset": "raw", "context": 5, "normalize": OF_FIVE, "dtype": "float64"},
        {"preset": "decision_transformer", "context": 6, "normalize": OF_FIVE},
        {"preset": "corl", "context": 6, "dtype": "bfloat16"},
        {"preset": "d3rlpy", "context": 4, "offsets": {"observations": [-3, 0], "actions": (-1, 3)}},
        {"preset": "lerobot", "context": 4, "preset_options": {"padding": "edge"}},
        {"preset": "transitions", "n_step": 3, "discount": 0.9},
        {"preset": "transitions", "goals": gear_data.Goals(future=True)},
        {"preset": "gato", "context": 4},
    ],
    ids=lambda options: options["preset"],
)
def test_elements_signs_and_ranges_are_those_of_a_dataset_that_was_made_so(
    sliced: tuple[Path, Path], options: dict[str, Any]
) -> None:
    raw, made = map(gear_data.open, sliced)
    arguments = {"batch_size": 9, "steps": 3, "seed": 2, **options}
    loader = SequenceLoader(raw, **grouped(stack=_parts_of(raw), **arguments))
    expected = SequenceLoader(made, **grouped(**arguments))
    assert_equal_loaders(loader, expected)
    copied = pickle.loads(pickle.dumps(loader))
    copied.load_state_dict({**loader.state_dict(), "step": 1})
    assert_equal(copied.batch(1), expected.batch(1))


@pytest.mark.parametrize("normalize", [True, "quantiles", "minmax"])
def test_the_statistics_are_of_the_changed_values(normalize: Any, sliced: tuple[Path, Path]) -> None:
    raw, made = map(gear_data.open, sliced)
    arguments: dict[str, Any] = {
        "batch_size": 64,
        "context": 3,
        "normalize": normalize,
        "steps": 1,
        "framework": "numpy",
    }
    (batch,) = SequenceLoader(raw, **grouped(stack=_parts_of(raw), **arguments))
    (expected,) = SequenceLoader(made, **grouped(**arguments))
    for key in ("observations", "actions"):
        np.testing.assert_allclose(batch[key], expected[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["quantiles", "minmax"])
def test_a_constant_element_becomes_minus_one_with_any_sign(mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    state = np.stack([np.full(20, 3.5), rng.normal(size=20)], 1)
    gear_data.convert([{"state": state, "rewards": np.ones(20)}], tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    shared = gear_data.Mixture([(ds, 1, {"embodiment": 0})], statistics="embodiment")
    two = gear_data.Mixture([(ds, 1, {"embodiment": 0})] * 2, statistics="embodiment")
    for scale in (-1, -2, 2):
        stack = {"observations": [{"column": "state", "scale": scale, "offset": 1}]}
        values = scale * state[:, 1] + 1
        for source, copies in ((ds, 1), (shared, 1), (two, 2)):
            ends = (0.01, 0.99) if mode == "quantiles" else (0, 1)
            low, high = np.quantile(np.tile(values, copies), ends)
            loader = SequenceLoader(
                source, 16, context=1, normalize={"observations": mode}, batch=BatchOptions(stack=stack)
            )
            spec = loader.spec()
            mean, std = np.array(spec.get("datasets", [spec])[0]["normalize"]["observations"])
            np.testing.assert_allclose([mean[1], std[1]], [(low + high) / 2, (high - low) / 2], rtol=1e-6)
            assert loader.batch(0)["observations"][..., 0].unique().tolist() == [-1]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_mixture_with_its_own_parts(sliced: tuple[Path, Path], prefetch: int, tmp_path: Path) -> None:
    raw, made = map(gear_data.open, sliced)
    options = {"stack": _parts_of(raw)}
    arguments: dict[str, Any] = {"batch_size": 8, "context": 3, "steps": 4, "seed": 4, "prefetch": prefetch}
    for pad_to in (None, {"actions": 8, "observations": 9}):
        mixed = gear_data.Mixture([(raw, 0.5, options), (made, 0.5)], join=True, pad_to=pad_to)
        expected = gear_data.Mixture([(made, 0.5), (made, 0.5)], join=True, pad_to=pad_to)
        mixed.to_yaml(tmp_path / "mix.yaml")
        read = gear_data.Mixture.from_yaml(tmp_path / "mix.yaml")
        for mixture in (mixed, read):
            for batch, other in zip(
                SequenceLoader(mixture, **arguments), SequenceLoader(expected, **arguments), strict=True
            ):
                assert_equal(batch, other)


@pytest.mark.processes
def test_ranks_and_workers_of_parts(sliced: tuple[Path, Path]) -> None:
    raw, made = map(gear_data.open, sliced)
    arguments: dict[str, Any] = {"batch_size": 6, "context": 3, "steps": 4, "seed": 4}
    expected = list(SequenceLoader(made, **grouped(**arguments)))
    ranks = [
        SequenceLoader(raw, **grouped(stack=_parts_of(raw), rank=rank, world_size=2, **arguments)) for rank in range(2)
    ]
    for whole, *halves in zip(expected, *ranks, strict=True):
        for key in ("observations", "actions"):
            assert torch.equal(torch.cat([half[key] for half in halves]), whole[key])
    workers = SequenceLoader(raw, **grouped(stack=_parts_of(raw), prefetch=0, **arguments)).dataloader(2)
    for batch, other in zip(workers, expected, strict=True):
        assert torch.equal(batch["observations"], other["observations"])


def test_statistics_of_a_view_and_of_a_resumed_loader(sliced: tuple[Path, Path]) -> None:
    raw, made = (gear_data.open(path).filter("length > 4").filter_steps("rewards > -1") for path in sliced)
    arguments: dict[str, Any] = {"batch_size": 6, "context": 3, "seed": 4, "normalize": True}
    loader = SequenceLoader(raw, **grouped(stack=_parts_of(raw), **arguments))
    expected = SequenceLoader(made, **grouped(**arguments))
    again = SequenceLoader(raw, **grouped(stack=_parts_of(raw), **arguments))
    again.load_state_dict({**loader.state_dict(), "step": 3})
    resumed = next(iter(again))
    for key in ("observations", "actions"):
        np.testing.assert_allclose(loader.batch(3)[key], expected.batch(3)[key], rtol=1e-5, atol=1e-5)
        assert torch.equal(resumed[key], loader.batch(3)[key])


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        ({"column": "actions", "elements": (2, 6)}, InvalidArgumentError, "a step has 5"),
        ({"column": "actions", "elements": (3, 3)}, InvalidArgumentError, "which are none"),
        ({"column": "actions", "elements": (-1, 3)}, InvalidArgumentError, "which are none"),
        ({"column": "actions", "elements": 3}, InvalidArgumentError, "takes the elements 3"),
        ({"column": "actions", "scale": 0}, InvalidArgumentError, "has the scale 0"),
        ({"column": "actions", "offset": float("nan")}, InvalidArgumentError, "has the offset nan"),
        ({"column": "actions", "sign": -1}, UnknownNameError, "sign"),
        ({"elements": (0, 1)}, InvalidArgumentError, "has the column None"),
        ({"column": "nothing"}, UnknownNameError, "nothing"),
        ({"column": "counts", "scale": 2}, UnsupportedColumnError, "needs floats"),
        ({"column": "rewards"}, InvalidArgumentError, "cannot be part of a stack"),
    ],
)
def test_wrong_parts(part: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    episode = {"actions": np.zeros((4, 5), np.float32), "counts": np.arange(4), "rewards": np.zeros(4)}
    gear_data.convert([episode], tmp_path / "ds", progress=False)
    ds = gear_data.open(tmp_path / "ds")
    with pytest.raises(error, match=words):
        SequenceLoader(ds, batch_size=2, context=2, batch=BatchOptions(stack={"new": [part]}))
    with pytest.raises(error, match=words):
        SequenceLoader(gear_data.Mixture([(ds, 1, {"stack": {"new": [part]}})]), batch_size=2, context=2)


def test_elements_are_given_once(tmp_path: Path) -> None:
    for other in ({"column": "a", "elements": (1, 3)}, {"column": "a"}, "a"):
        with pytest.raises(InvalidArgumentError, match="uses the column 'a' twice"):
            BatchOptions(stack={"x": [{"column": "a", "elements": (0, 2)}], "y": [other]})
    with pytest.raises(InvalidArgumentError, match="must map a column to a list"):
        gear_data.convert([], tmp_path / "out", stack={"x": [{"column": "a"}]})  # type: ignore[list-item]


def test_differences_of_parts_are_refused(sliced: tuple[Path, Path]) -> None:
    raw = gear_data.open(sliced[0])
    with pytest.raises(InvalidArgumentError, match="takes elements, signs or ranges"):
        SequenceLoader(
            raw, batch_size=2, context=2, relative={"actions": "observations"}, batch=BatchOptions(stack=_parts_of(raw))
        )
