"""Statistics that datasets of one embodiment share, against NumPy over all their steps, and against merged datasets."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import gear_data
from gear_data import Mixture, Normalizer, Relative, Rollout, Seconds, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.schema import mask_column
from tests.support.feed.batches import same, take
from tests.support.feed.data import locomotion
from tests.support.feed.growing import GrowingDataset

LENGTHS = [[7, 1, 23], [12, 5, 9], [4, 17]]
#: Observations and actions of each dataset. The first and the last are one robot's.
WIDTHS = [(4, 3), (2, 1), (4, 3)]
EMBODIMENTS = [7, 3, 7]
MODES = ["mean-std", "quantiles", "minmax"]
CONTEXT, BATCH = 5, 9


def make_episodes(number: int) -> list[dict[str, Any]]:
    observations, actions = WIDTHS[number]
    episodes = locomotion(LENGTHS[number], seed=number, observations=observations, actions=actions)
    random = np.random.default_rng(number)
    for episode in episodes:
        episode["actions"] += number  # the datasets of one robot differ
        if number == 2:
            steps = len(episode["rewards"])
            episode["observations.image"] = random.integers(1, 255, (steps, 6, 5, 3)).astype(np.uint8)
    return episodes


EPISODES = [make_episodes(number) for number in range(3)]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    folder = tmp_path_factory.mktemp("embodiments")
    for number, episodes in enumerate(EPISODES):
        gear_data.convert(episodes, folder / str(number), shard_bytes=1024, progress=False)
    return [gear_data.open(folder / str(number)) for number in range(3)]


def robots(datasets: Any, options: Any = ({}, {}, {}), **arguments: Any) -> Mixture:
    entries = [
        (dataset, 1 + number, {"embodiment": EMBODIMENTS[number], **options[number]})
        for number, dataset in enumerate(datasets)
    ]
    return Mixture(entries, **{"join": True, "pad_to": "largest", "statistics": "embodiment", **arguments})


def loader(mixture: Mixture, **options: Any) -> SequenceLoader:
    return SequenceLoader(mixture, **{"batch_size": BATCH, "context": CONTEXT, "seed": 4, **options})


def normalization(found: SequenceLoader) -> list[dict[str, Any]]:
    return [each["normalize"] for each in json.loads(json.dumps(found.spec()))["datasets"]]


def steps_of(numbers: Any, name: str, keep: Any = lambda episode: True) -> Any:
    episodes = [episode for number in numbers for episode in EPISODES[number] if keep(episode)]
    return np.concatenate([episode[name] for episode in episodes]).astype(np.float64)


def mean_and_std(values: Any, mode: str) -> Any:
    """Returns the numbers of a mode, by NumPy."""
    if mode == "mean-std":
        return values.mean(0), values.std(0)
    low, high = np.quantile(values, (0.01, 0.99), axis=0) if mode == "quantiles" else (values.min(0), values.max(0))
    return (low + high) / 2, (high - low) / 2


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_of_all_steps_of_an_embodiment(datasets: Any, mode: str, join: bool, view: bool) -> None:
    keep = (lambda episode: len(episode["rewards"]) > 4) if view else (lambda episode: True)
    chosen = [each.filter("length > 4") for each in datasets] if view else datasets
    normalize = {"observations": mode, "actions": mode}
    found = normalization(loader(robots(chosen, join=join), normalize=normalize))
    assert found[0] == found[2]
    for column, (number, together) in itertools.product(normalize, ((0, (0, 2)), (1, (1,)))):
        expected = mean_and_std(steps_of(together, column, keep), mode)
        np.testing.assert_allclose(found[number][column], expected, rtol=1e-12, atol=1e-15)
    own = normalization(loader(robots(chosen, join=join, statistics="dataset"), normalize=normalize))
    assert own[0] != own[2] and own[1] == found[1]


def test_the_numbers_are_those_of_a_merged_dataset(datasets: Any, tmp_path: Path) -> None:
    parts = []
    for number in (0, 2):
        plain = [{k: v for k, v in each.items() if k != "observations.image"} for each in EPISODES[number]]
        gear_data.convert(plain, tmp_path / str(number), progress=False)
        parts.append(gear_data.open(tmp_path / str(number)))
    gear_data.merge([tmp_path / "0", tmp_path / "2"], tmp_path / "merged")
    merged = gear_data.open(tmp_path / "merged")
    columns = ["observations", "actions"]
    for mode in MODES:
        normalize = dict.fromkeys(columns, mode)
        mixture = Mixture([(each, 1, {"embodiment": 0}) for each in parts], statistics="embodiment")
        expected = SequenceLoader(merged, BATCH, normalize=normalize).spec()["normalize"]
        assert normalization(loader(mixture, normalize=normalize)) == [json.loads(json.dumps(expected))] * 2
    relative = {"actions": Relative("observations", mask=[0, 2])}
    more = {"relative": relative, "normalize": {"actions": "quantiles"}, "columns": columns}
    expected = SequenceLoader(merged, BATCH, context=CONTEXT, **more).spec()["normalize"]
    assert normalization(loader(mixture, **more)) == [json.loads(json.dumps(expected))] * 2


@pytest.mark.parametrize("prefetch", [0, 3])
def test_padding_stays_zero(datasets: Any, prefetch: int) -> None:
    found = loader(robots(datasets), prefetch=prefetch, normalize="all", framework="numpy")
    mean, std = mean_and_std(steps_of((0, 2), "actions"), "mean-std")
    for step, batch in enumerate(itertools.islice(found, 8)):
        windows = found.windows(step)
        for row, (number, episode, start, length) in enumerate(
            zip(*(windows[name].tolist() for name in ("dataset", "episode_id", "start", "length")), strict=True)
        ):
            width = WIDTHS[number][1]
            assert batch["actions_dim_mask"][row].tolist() == [place < width for place in range(3)]
            assert not batch["actions"][row, :, width:].any() and not batch["actions"][row, length:].any()
            assert batch["observations.image_present"][row] == (number == 2)
            assert number == 2 or not batch["observations.image"][row].any()
            if number != 1:
                own = EPISODES[number][episode]["actions"][start : start + length]
                np.testing.assert_allclose(batch["actions"][row, :length], (own - mean) / std, rtol=1e-4, atol=1e-6)


@pytest.mark.processes
def test_all_ways_of_iterating_give_the_same_batches(datasets: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"normalize": "quantiles"}
    expected = take(loader(robots(datasets), prefetch=0, **options), 6)
    same(take(loader(robots(datasets), prefetch=2, **options), 6), expected)
    workers = DataLoader(loader(robots(datasets), steps=6, **options), batch_size=None, num_workers=2)
    same(list(workers), expected)
    first = loader(robots(datasets), **options)
    take(first, 2)
    state = json.loads(json.dumps(first.state_dict()))
    for rank in range(3):
        resumed = loader(robots(datasets), rank=rank, world_size=3, **options)
        resumed.load_state_dict(state)
        rows = slice(3 * rank, 3 * rank + 3)
        same(take(resumed, 4), [{key: value[rows] for key, value in batch.items()} for batch in expected[2:]])
    robots(datasets).to_yaml(tmp_path / "mix.yaml")
    mixture = Mixture.from_yaml(tmp_path / "mix.yaml")
    assert mixture.statistics == "embodiment" and "statistics='embodiment'" in repr(mixture)
    same(take(loader(mixture, **options), 6), expected)


def test_parts_with_other_signs_and_ranges(datasets: Any, tmp_path: Path) -> None:
    """The gripper of one dataset is inverted, and its columns have other names and dtypes."""
    turned = [
        {
            "joints": episode["actions"][:, :2].astype(np.float64),
            "gripper": 1 - 2 * episode["actions"][:, 2],
            "observations": episode["observations"],
            "rewards": episode["rewards"],
        }
        for episode in EPISODES[2]
    ]
    gear_data.convert(turned, tmp_path / "turned", progress=False)
    part = {"column": "gripper", "elements": [0, 1], "scale": -0.5, "offset": 0.5}
    pair = [
        (datasets[0], 1, {"embodiment": 0}),
        (gear_data.open(tmp_path / "turned"), 1, {"embodiment": 0, "stack": {"actions": ["joints", part]}}),
    ]
    for mode in MODES:
        found = normalization(loader(Mixture(pair, statistics="embodiment"), normalize={"actions": mode}))
        expected = mean_and_std(steps_of((0, 2), "actions"), mode)
        np.testing.assert_allclose(found[0]["actions"], expected, rtol=1e-6, atol=1e-7)
        assert found[0] == found[1]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_steps_without_a_value_are_skipped(tmp_path: Path, mode: str, stacked: bool) -> None:
    mask = mask_column("actions").name
    kept = []
    for number in range(2):
        episodes = locomotion([9, 14, 3], seed=20 + number)
        for place, episode in enumerate(episodes):
            episode[mask] = np.full(len(episode["rewards"]), number == 0 or place > 0)
            episode["actions"][~episode[mask]] = 1e6
            episode["infos.x"] = episode["observations"][:, 0]
        kept += episodes[number:]
        gear_data.convert(episodes, tmp_path / str(number), progress=False)
    own: dict[str, Any] = {"embodiment": 1}
    own |= {"stack": {"actions": ["actions", "infos.x"]}} if stacked else {}
    pair = [(gear_data.open(tmp_path / str(number)), 1, own) for number in range(2)]
    found = normalization(loader(Mixture(pair, statistics="embodiment"), normalize={"actions": mode}))
    values = np.concatenate([episode["actions"] for episode in kept]).astype(np.float64)
    expected = mean_and_std(values, mode)
    np.testing.assert_allclose([each[:3] for each in found[0]["actions"]], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_relative_columns(datasets: Any, mode: str, delta: bool) -> None:
    relative = {"actions": Relative("observations", mask=[0, 1, 2], delta=delta)}
    options = ({}, {"relative": {}, "normalize": None}, {})
    more: dict[str, Any] = {"relative": relative, "normalize": {"actions": mode}}
    found = normalization(loader(robots(datasets, options), **more))
    chunks = []
    for episode in (each for number in (0, 2) for each in EPISODES[number]):
        actions, states = (episode[name].astype(np.float64) for name in ("actions", "observations"))
        for start in range(len(actions)):
            own = actions[start : start + CONTEXT]
            before = np.vstack([states[start, :3], own[:-1]]) if delta else states[start, :3]
            chunks.append(own - before)
    np.testing.assert_allclose(found[0]["actions"], mean_and_std(np.concatenate(chunks), mode), rtol=1e-9, atol=1e-12)
    assert found[0] == found[2] and found[1] == {}


def test_images(datasets: Any) -> None:
    pair = [(datasets[2], 1, {"embodiment": 0}), (datasets[2].filter("length > 4"), 1, {"embodiment": 0})]
    found = normalization(loader(Mixture(pair, statistics="embodiment"), normalize="all"))
    values = np.concatenate([each["observations.image"].ravel() for each in (*EPISODES[2], EPISODES[2][1])])
    np.testing.assert_allclose(np.ravel(found[0]["observations.image"]), [values.mean(), values.std()])


def test_the_maps_of_a_policy(datasets: Any) -> None:
    found = loader(robots(datasets), normalize={"actions": "minmax", "observations": "mean-std"})
    spec = json.loads(json.dumps(found.spec()))
    with pytest.raises(InvalidArgumentError, match=r"(?s)normalised differently.*Normalizer.from_spec"):
        _ = found.normalizer
    with pytest.raises(InvalidArgumentError, match="the spec has no outputs"):
        Normalizer.from_spec(spec)
    # The pair of one robot has one normalizer, although one of the two lacks the image.
    pair = loader(robots([datasets[0], datasets[2]], ({"embodiment": 7},) * 2), normalize={"actions": "minmax"})
    shared = pair.normalizer
    assert shared.to_json() == Normalizer.from_spec(pair.spec()["datasets"][1]).to_json()
    values = steps_of((0, 2), "actions")
    np.testing.assert_allclose(shared.normalize("actions", values).min(0), -1, rtol=1e-12)
    for number in (0, 2):
        normalizer = Normalizer.from_spec(spec["datasets"][number])
        assert normalizer.columns["actions"].mean.tolist() == shared.columns["actions"].mean.tolist()
        rollout = Rollout.from_spec(spec["datasets"][number], target=1)
        observation = {"observations": np.zeros(4), "observations.image": np.zeros((6, 5, 3), np.uint8)}
        rollout.reset(observation)
        np.testing.assert_allclose(rollout.action([[[-1.0, -1.0, -1.0]]]), values.min(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (({"normalize": ["observations"]}, {}, {"normalize": "minmax"}), "mean-std', and dataset 1 .* by 'minmax'"),
        (({}, {}, {"normalize": None}), "by 'mean-std', and dataset 1 .* by nothing"),
        (({"normalize": {"observations": ([0.0], [1.0])}}, {}, {}), r"\(mean, std\) .* by 'mean-std'"),
        (({}, {}, {"stack": {"observations": ["observations", "actions"]}}), "has 4 elements, and dataset 1 .* has 7"),
    ],
)
def test_datasets_that_cannot_share(datasets: Any, options: Any, words: str) -> None:
    pair = [datasets[0], datasets[2]]
    mixture = robots(pair, (options[0] | {"embodiment": 7}, options[2] | {"embodiment": 7}))
    with pytest.raises(InvalidArgumentError, match=words) as error:
        loader(mixture, normalize=True)
    assert error.value.column == "observations"


def test_relative_and_absolute_columns_are_not_mixed(datasets: Any) -> None:
    own = {"embodiment": 7, "relative": {"actions": Relative("observations", mask=[0])}}
    pair = robots([datasets[0], datasets[2]], (own, {"embodiment": 7}))
    with pytest.raises(InvalidArgumentError, match=r"1 are relative, and dataset 1 .* has 3 elements"):
        loader(pair, normalize={"actions": "mean-std"})


def test_given_numbers_are_shared_if_they_are_equal(datasets: Any) -> None:
    normalize = {"observations": (1.0, 2.0)}
    found = normalization(loader(robots([datasets[0], datasets[2]], ({"embodiment": 7},) * 2), normalize=normalize))
    assert found == [{"observations": [1.0, 2.0]}] * 2


def test_wrong_arguments(datasets: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="have no embodiment"):
        Mixture(datasets, statistics="embodiment")
    with pytest.raises(UnknownNameError, match=r"(?s)statistics 'embodiments'.*did you mean 'embodiment'"):
        Mixture(datasets, statistics="embodiments")  # type: ignore[arg-type]
    text = f"statistics: robot\ndatasets: [{{path: '{datasets[0].path}'}}]"
    (tmp_path / "mix.yaml").write_text(text)
    with pytest.raises(UnknownNameError, match=r"(?s)mix.yaml.*statistics 'robot'"):
        Mixture.from_yaml(tmp_path / "mix.yaml")
    Mixture([(datasets[0], 1, {"embodiment": 1})]).to_yaml(tmp_path / "mix.yaml")
    assert "statistics" not in (tmp_path / "mix.yaml").read_text()


@pytest.mark.parametrize("sampler", ["uniform", gear_data.Weighted([1.0] * 3)])
def test_a_refresh_changes_all_datasets_of_the_embodiment(datasets: Any, tmp_path: Path, sampler: Any) -> None:
    growing = GrowingDataset(tmp_path / "growing")
    old = datasets[0]

    def mixture() -> Mixture:
        pair = [(old, 1, {"embodiment": 1, "sampler": sampler}), (growing.open(), 1, {"embodiment": 1})]
        return Mixture(pair, join=True, statistics="embodiment")

    def expected() -> Any:
        values = [each["observations"] for each in (*EPISODES[0], *growing.episodes[: growing.appended])]
        return np.concatenate(values).astype(np.float64)

    options = {"normalize": True, "columns": ["observations", "rewards"]}
    found = loader(mixture(), **options)
    batches = take(found, 2)
    states = [json.dumps(found.state_dict())]
    for count in (3, 2):
        growing.grow(count)
        found.refresh()
        now = normalization(found)
        np.testing.assert_allclose(now[0]["observations"][0], expected().mean(0), rtol=1e-9)
        assert now[0] == now[1]
        batches += take(found, 2)
        states.append(json.dumps(found.state_dict()))
    fresh = loader(mixture(), **options)
    same([fresh.batch(step) for step in (4, 5)], batches[4:])
    for number, state in enumerate(states):
        resumed = loader(mixture(), **options)
        resumed.load_state_dict(json.loads(state))
        assert resumed.state_dict() == json.loads(state) or number == 0
        same([resumed.batch(step) for step in range(2 * number, 2 * number + 2)], batches[2 * number : 2 * number + 2])


def test_robots_of_several_rates(datasets: Any) -> None:
    """Chunks of equal time are of other steps in each dataset."""
    options = ({"fps": 10, "embodiment": 7}, {"fps": 20, "embodiment": 7})
    offsets = {"actions": Seconds([0, 0.1, 0.2])}
    relative = {"actions": Relative("observations", mask=[0], per_step=True)}
    found = normalization(
        loader(
            robots([datasets[0], datasets[2]], options),
            offsets=offsets, relative=relative, normalize={"actions": "mean-std"}, context=1,
        )
    )  # fmt: skip
    chunks: list[list[Any]] = [[], [], []]
    for number, stride in ((0, 1), (2, 2)):
        for episode in EPISODES[number]:
            actions, states = (episode[name].astype(np.float64) for name in ("actions", "observations"))
            for start, place in itertools.product(range(len(actions)), range(3)):
                if start + stride * place < len(actions):
                    own = actions[start + stride * place].copy()
                    own[0] -= states[start, 0]
                    chunks[place].append(own)
    means = [np.mean(each, axis=0) for each in chunks]
    np.testing.assert_allclose(found[0]["actions"][0], means, rtol=1e-9, atol=1e-12)
    assert found[0] == found[1]
