"""Datasets of unlike shape in one batch, against plain loops over their episodes and over unpadded batches."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import ColorJitter, Goals, Mixture, RandomResizedCrop, RandomRotation, RandomShift, SequenceLoader
from gear_data.collection.output import Output
from gear_data.errors import GearError, InvalidArgumentError, UnknownNameError
from gear_data.loaders.decoding.images import ImageDecoder
from gear_data.loaders.presets.unlike import DatasetOutputs, check_shapes
from tests.support.feed import data as feed_data
from tests.support.feed import variable as text_data
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take
from tests.support.feed.variable import IMAGE, TEXT

CONTEXT, BATCH = 5, 9
LENGTHS = [[7, 1, 23], [12, 5, 9], [4, 17]]
#: Observations and actions of each dataset.
WIDTHS = [(4, 3), (2, 1), (6, 2)]
SHARES = [3, 2, 2]


def make_episodes(number: int) -> list[dict[str, Any]]:
    observations, actions = WIDTHS[number]
    episodes = feed_data.locomotion(LENGTHS[number], seed=number, observations=observations, actions=actions)
    random = np.random.default_rng(number)
    for episode in episodes:
        steps = len(episode["rewards"])
        if number == 0:
            episode["infos.count"] = random.integers(1, 9, steps)
        if number == 2:
            episode["observations.image"] = random.integers(1, 255, (steps, 6, 5, 3)).astype(np.uint8)
    return episodes


EPISODES = [make_episodes(number) for number in range(3)]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    folder = tmp_path_factory.mktemp("unlike")
    return [
        feed_data.convert_episodes(episodes, folder / str(number), shard_bytes=1024)
        for number, episodes in enumerate(EPISODES)
    ]


def loader(datasets: Any, pad_to: Any = "largest", join: bool = True, **options: Any) -> SequenceLoader:
    mixture = Mixture(list(zip(datasets, SHARES, strict=False)), join=join, pad_to=pad_to)
    return SequenceLoader(mixture, **grouped(**{"batch_size": BATCH, "context": CONTEXT, "seed": 4, **options}))


def rows_of(found: SequenceLoader, step: int) -> list[tuple[int, int, int, int]]:
    windows = found.windows(step)
    return list(zip(*(windows[name].tolist() for name in ("dataset", "episode_id", "start", "length")), strict=True))


def every(number: int, name: str) -> Any:
    return np.concatenate([episode[name] for episode in EPISODES[number]]).astype(np.float64)


PADDED = {"observations": 8, "actions": 3}


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("pad_to", ["largest", PADDED])
def test_joined_batches(datasets: Any, pad_to: Any, prefetch: int, framework: str) -> None:
    widths = {"observations": 6, "actions": 3} if pad_to == "largest" else PADDED
    found = loader(datasets, pad_to, prefetch=prefetch, framework=framework, normalize=True)
    for step, batch in enumerate(itertools.islice(found, 12)):
        batch = {key: np.array(value) for key, value in batch.items()}
        rows = rows_of(found, step)
        assert batch["source"].tolist() == [number for number, *_ in rows]
        expected = {name: np.zeros((BATCH, CONTEXT, width), np.float32) for name, width in widths.items()}
        masks = {name: np.zeros((BATCH, width), bool) for name, width in widths.items()}
        images = np.zeros((BATCH, CONTEXT, 6, 5, 3), np.uint8)
        counts = np.zeros((BATCH, CONTEXT), np.int64)
        for row, (number, episode, start, length) in enumerate(rows):
            for name in widths:
                own = EPISODES[number][episode][name][start : start + length].astype(np.float64)
                if name == "observations":
                    own = (own - every(number, name).mean(0)) / every(number, name).std(0)
                expected[name][row, :length, : own.shape[1]] = own
                masks[name][row, : own.shape[1]] = True
            if number == 0:
                counts[row, :length] = EPISODES[number][episode]["infos.count"][start : start + length]
            if number == 2:
                images[row, :length] = EPISODES[number][episode]["observations.image"][start : start + length]
        for name in widths:
            np.testing.assert_allclose(batch[name], expected[name], rtol=1e-5, atol=1e-6)
            assert not batch[name][expected[name] == 0].any()
            assert np.array_equal(batch[f"{name}_dim_mask"], masks[name])
        assert np.array_equal(batch["observations.image"], images)
        assert np.array_equal(batch["infos.count"], counts)
        assert batch["infos.count_present"].tolist() == [number == 0 for number, *_ in rows]
        assert batch["observations.image_present"].tolist() == [number == 2 for number, *_ in rows]
        assert batch["infos.count"].dtype == np.int64 and batch["infos.count_present"].dtype == np.bool_
        assert not {"rewards_present", "actions_present", "rewards_dim_mask"} & batch.keys()


CASES: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16", "normalize": "all"},
    {"preset": "decision_transformer", "normalize": True},
    {"preset": "corl", "normalize": "minmax", "columns": ["infos.count"]},
    {"preset": "d3rlpy"},
    {"preset": "jat"},
    {"preset": "lerobot", "offsets": {"actions": (0, 4), "observations.image": (-1, 1)}},
    {"preset": "transitions", "context": 1},
    {"preset": "transitions", "context": 1, "n_step": 3, "offsets": {"actions": (0, 3)}, "missing_next": "mark"},
    {"offsets": {"observations": [-3, 0, 2], "infos.count": [0, 2], "actions": (-1, 2)}},
    {"stack": {"both": ["observations", "actions"]}, "normalize": ["both"]},
    {"columns": ["next_observations", "next_observations.image", "infos.count"], "normalize": ["observations"]},
    {"n_step": 3, "window_ids": True, "sampler": "shuffle"},
]


@dataclass(frozen=True)
class Listed:
    """Draws listed windows. rows: int64 [steps, slots, 2], episode and first step."""

    rows: np.ndarray
    name = "listed"

    def draw(self, counts: Any, seed: int, step: int, first: int, last: int) -> tuple[Any, Any]:
        found = self.rows[step, : last - first]
        return found[:, 0], found[:, 1]


def alone(dataset: Any, rows: list[list[tuple[int, int]]], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the batches that a loader of one dataset has of some windows of each step."""
    listed = np.zeros((len(rows), BATCH, 2), np.int64)
    for step, own in enumerate(rows):
        listed[step, : len(own)] = np.reshape(own, (len(own), 2))
    own = {"context": CONTEXT, **options, "sampler": Listed(listed), "batch_size": BATCH}
    for name in ("offsets", "columns", "normalize"):
        if isinstance(given := own.get(name), dict):
            own[name] = {key: value for key, value in given.items() if key in dataset.schema}
        elif isinstance(given, list) and "stack" not in own:
            own[name] = [key for key in given if key.removeprefix("next_") in dataset.schema]
    return take(SequenceLoader(dataset, **grouped(**own)), len(rows))


def wide(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns one row with zeros behind its last axis."""
    result = torch.zeros(shape, dtype=values.dtype)
    result[..., : values.shape[-1]] = values
    return result


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("options", CASES, ids=lambda options: ", ".join(options) or "raw")
def test_rows_are_those_of_the_single_datasets(datasets: Any, options: dict[str, Any], join: bool) -> None:
    options = dict(options)
    if (missing := options.pop("missing_next", None)) is not None:
        options["preset_options"] = {"transitions": {"missing_next": missing}}
    steps = 4
    found = loader(datasets, join=join, **options)
    batches = take(found, steps)
    rows = [rows_of(found, step) for step in range(steps)]
    for number, dataset in enumerate(datasets):
        own = [[(episode, start) for which, episode, start, _ in every if which == number] for every in rows]
        for step, expected in enumerate(alone(dataset, own, options)):
            places = [row for row, (which, *_) in enumerate(rows[step]) if which == number]
            for key, values in batches[step].items():
                for place, row in enumerate(places):
                    if key == "source":
                        assert values[row] == number
                    elif key.endswith("_dim_mask"):
                        real = expected[key.removesuffix("_dim_mask")].shape[-1]
                        assert values[row].tolist() == [n < real for n in range(values.shape[-1])]
                    elif key.endswith("_present"):
                        assert values[row].item() == (key.removesuffix("_present") in expected)
                    elif key in expected:
                        whole = expected[key][place]
                        golden = wide(whole, values[row].shape) if whole.ndim else whole
                        assert values.dtype == golden.dtype and torch.equal(values[row], golden), (step, key)
                    elif key.endswith("_is_pad"):
                        assert values[row].all(), key
                    else:
                        assert not values[row].any(), key


def test_goals_are_padded_like_their_column(datasets: Any) -> None:
    found = loader(datasets, preset="transitions", context=1, goals=Goals())
    for step, batch in enumerate(take(found, 4)):
        windows = found.windows(step)
        for row, number in enumerate(windows["dataset"].tolist()):
            for key in Goals().keys:
                episode, at = (windows[f"{key}_{name}"][row] for name in ("episode_id", "step"))
                golden = torch.zeros(6)
                golden[: WIDTHS[number][0]] = torch.from_numpy(EPISODES[number][episode]["observations"][at])
                assert torch.equal(batch[key][row], golden)


# The sequence


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("join", [True, False])
def test_ranks_and_resuming_elsewhere(datasets: Any, join: bool, world_size: int) -> None:
    whole = take(loader(datasets, join=join), 9)

    def together(state: Any, count: int) -> list[dict[str, Any]]:
        parts = []
        for rank in range(world_size):
            part = loader(datasets, join=join, rank=rank, world_size=world_size, prefetch=rank)
            part.load_state_dict(state)
            parts.append(take(part, count))
        return [{key: torch.cat([part[step][key] for part in parts]) for key in whole[0]} for step in range(count)]

    one = loader(datasets, join=join)
    same(take(one, 4), whole[:4])
    same(together(json.loads(json.dumps(one.state_dict())), 5), whole[4:])


@pytest.mark.processes
@pytest.mark.parametrize("join", [True, False])
def test_workers(datasets: Any, join: bool) -> None:
    expected = take(loader(datasets, join=join), 9)
    same(list(DataLoader(loader(datasets, join=join, steps=9), batch_size=None, num_workers=2)), expected)


def test_jax_has_the_arrays_of_numpy(datasets: Any) -> None:
    jax = pytest.importorskip("jax")
    found = [loader(datasets, framework=name, columns=["observations", "actions"]) for name in ("jax", "numpy")]
    for batch, arrays in itertools.islice(zip(*found, strict=True), 6):
        assert list(batch) == list(arrays)
        for key, value in batch.items():
            assert isinstance(value, jax.Array) and np.array_equal(value, arrays[key])


def test_padding_changes_no_window(datasets: Any) -> None:
    plain, padded = loader(datasets, pad_to=None, join=False), loader(datasets, join=False)
    for step in range(6):
        assert rows_of(plain, step) == rows_of(padded, step)
    padded.load_state_dict(plain.state_dict())


def test_like_datasets_are_not_changed_by_padding_to_the_largest(datasets: Any) -> None:
    both = [datasets[0], datasets[0].filter("length > 1")]
    joined = take(SequenceLoader(Mixture(both, join=True), **grouped(batch_size=6, context=4)), 5)
    padded = Mixture(both, join=True, pad_to="largest")
    same(take(SequenceLoader(padded, **grouped(batch_size=6, context=4)), 5), joined)


@pytest.mark.parametrize(
    "augment", [RandomShift(2), [RandomResizedCrop(), RandomRotation(), ColorJitter(0.1, 0.1, 0.1, 0.1)]]
)
def test_images_of_absent_cameras_stay_black(datasets: Any, augment: Any) -> None:
    found = loader(datasets, augment=augment)
    plain = take(loader(datasets), 3)
    for batch, before in zip(take(found, 3), plain, strict=True):
        assert not batch["observations.image"][batch["source"] != 2].any()
        assert not torch.equal(batch["observations.image"], before["observations.image"])


def test_the_specification_has_the_padding(datasets: Any) -> None:
    spec = json.loads(json.dumps(loader(datasets, PADDED).spec()))
    outputs = [{each["key"]: each for each in own["outputs"]} for own in spec["datasets"]]
    assert [own["observations"]["shape"] for own in outputs] == [[8]] * 3
    assert [own["observations"]["real"] for own in outputs] == [4, 2, 6]
    assert [own["infos.count"].get("absent", False) for own in outputs] == [False, True, True]


@pytest.mark.parametrize("number", [0, 1])
def test_a_rollout_has_the_padding_of_batches(datasets: Any, number: int) -> None:
    options = {"columns": ["observations", "actions", "observations.image"], "normalize": ["observations", "actions"]}
    found = loader(datasets, {"observations": 8, "actions": 4}, **options)
    (batch,) = take(found, 1)
    spec = json.loads(json.dumps(found.spec()))["datasets"][number]
    rollout = gear_data.Rollout.from_spec(spec)
    episode = EPISODES[number][0]
    rollout.reset(episode["observations"][0])
    rollout.update(episode["actions"][0], 0.0, episode["observations"][1])
    inputs = rollout.inputs()
    golden = np.zeros((1, CONTEXT, 8), np.float32)
    own = every(number, "observations")
    golden[0, :2, : own.shape[1]] = (episode["observations"][:2] - own.mean(0)) / own.std(0)
    np.testing.assert_allclose(inputs["observations"], golden, rtol=1e-5, atol=1e-6)
    assert inputs["actions_dim_mask"].tolist() == [[n < WIDTHS[number][1] for n in range(4)]]
    assert inputs["observations.image_present"].tolist() == [False]
    assert {key: values.shape[1:] for key, values in inputs.items()} == {
        key: tuple(batch[key].shape[1:]) for key in inputs
    }
    # The element 0 of a normalised action is its mean.
    action = rollout.action(np.zeros((1, CONTEXT, 4)))
    np.testing.assert_allclose(action, every(number, "actions").mean(0), rtol=1e-5)


def test_a_rollout_of_a_dataset_whose_actions_were_renamed(datasets: Any) -> None:
    entries = [(datasets[0], 1), (datasets[1], 1, {"rename": {"actions": "choices"}})]
    mixture = Mixture(entries, join=True, pad_to={"actions": 4})
    chunks = {"actions": (0, 2), "choices": (0, 2)}
    found = SequenceLoader(mixture, BATCH, context=1, columns=["rewards", *chunks], offsets=chunks)
    rollout = gear_data.Rollout.from_spec(found.spec()["datasets"][1])
    rollout.reset({})
    assert rollout.inputs()["actions_present"].tolist() == [False]
    with pytest.raises(InvalidArgumentError, match="column 'actions': the rollout's dataset has no column of this"):
        rollout.actions(np.zeros((1, 2, 4)))


def test_a_rollout_says_that_steps_of_an_absent_column_are_padding(datasets: Any) -> None:
    columns, offsets = ["observations", "infos.count"], {"infos.count": (-1, 1)}
    found = loader(datasets, preset="lerobot", context=1, columns=columns, offsets=offsets)
    rollout = gear_data.Rollout.from_spec(json.loads(json.dumps(found.spec()))["datasets"][1])
    rollout.reset(EPISODES[1][0]["observations"][0])
    assert rollout.inputs()["infos.count_is_pad"].tolist() == [[True, True]]
    (batch,) = take(found, 1)
    assert batch["infos.count_is_pad"][batch["source"] == 1].all()


# Refusals


@pytest.mark.parametrize(
    ("pad_to", "options", "error", "message"),
    [
        (None, {}, InvalidArgumentError,
         r"(?s)'observations'.*dataset 0 \(.*0\) has \[4\], and dataset 1 \(.*1\) has \[2\].*"
         r"pad_to={'observations': 4}"),
        (None, {"preset": "corl"}, InvalidArgumentError, r"(?s)'observations'.*pad_to={'observations': 4}"),
        (None, {"columns": ["actions"]}, InvalidArgumentError, r"(?s)'actions'.*pad_to={'actions': 3}"),
        ({"observations": 6}, {}, InvalidArgumentError, r"(?s)'actions'.*pad_to={'actions': 3}"),
        ({"observations": 5, "actions": 3}, {}, InvalidArgumentError,
         r"(?s)'observations'.*pad_to is 5, and dataset 2 \(.*2\) has 6 elements.*'observations': 6"),
        ({"observation": 6}, {}, UnknownNameError, r"(?s)'observation'.*observations"),
        ({"infos.count": 6}, {"columns": ["actions"]}, UnknownNameError, "infos.count"),
        ({"infos.count": 2}, {}, InvalidArgumentError, r"(?s)'infos.count'.*one number a step.*'stack'"),
        ({"rewards": 2}, {}, InvalidArgumentError, r"(?s)'rewards'.*one number a step.*leave it out of pad_to"),
        ("largest", {"columns": ["action"]}, UnknownNameError, "action"),
        ("largest", {"offsets": {"action": (0, 1)}}, UnknownNameError, "action"),
        ("largest", {"normalize": ["action"]}, UnknownNameError, "action"),
        ("largest", {"preset": "gato"}, InvalidArgumentError, "makes tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined(datasets: Any, pad_to: Any, options: Any, error: type[GearError], message: str) -> None:
    with pytest.raises(error, match=message):
        loader(datasets, pad_to, **options)


@pytest.mark.parametrize("pad_to", ["most", 3, {"actions": 0}, {"actions": "32"}, {"actions": True}, {3: 4}])
def test_pad_to_of_another_form(datasets: Any, pad_to: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="pad_to"):
        Mixture(datasets, pad_to=pad_to)


#: Options of one dataset -> what its error says beside the dataset.
WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"rename": {"action": "x"}}, "unknown column 'action'"),
    ({"rename": ["actions"]}, "rename must map"),
    ({"stack": {"both": ["action"]}}, "unknown column 'action'"),
    ({"stack": {"both": [{"column": "actions", "elements": [0, 99]}]}}, r"the stack takes the elements \[0, 99\)"),
    ({"stack": ["actions"]}, "stack must map"),
    ({"columns": ["action"]}, "unknown column 'action'"),
    ({"normalize": ["action"]}, "unknown column 'action'"),
    ({"normalize": {"actions": ([0] * 5, [1] * 5)}}, "5 means and 5 deviations for 1 elements"),
    ({"relative": ["actions"]}, "relative maps columns"),
    ({"relative": {"actions": gear_data.Relative("observations", mask=[True] * 3)}}, "mask has 3 booleans, .* 1 elem"),
    ({"relative": {"actions": gear_data.Relative("observations", absolute=["grip"])}}, "'actions': .*'grip'.*no names"),
    ({"sampler": "wieghted"}, "unknown sampler 'wieghted'"),
    ({"sampler": gear_data.Weighted("lenth")}, "unknown column 'lenth'"),
    ({"sampler": gear_data.Weighted([1.0])}, "there are 1 weights"),
    ({"preset_options": {"clp": 1}}, "unknown option of preset 'raw' 'clp'"),
    ({"choose": {"one": ["action"]}}, "unknown column 'action'"),
    ({"fps": -1}, "fps must be"),
    ({"embodiment": -1}, "embodiment must be"),
    ({"renames": {}}, "unknown mixture option 'renames'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_errors_of_options_name_their_dataset(datasets: Any, options: dict[str, Any], message: str) -> None:
    path = str(datasets[1].path)
    with pytest.raises(GearError, match=rf"{path}.*{message}"):
        entries = [(datasets[0], 1), (datasets[1], 1, options), (datasets[2], 1)]
        SequenceLoader(Mixture(entries, join=True, pad_to="largest"), BATCH, context=CONTEXT)


def test_unlike_dtypes_and_axes(datasets: Any, make_dataset: Any) -> None:
    doubles = make_dataset([{**episode, "actions": episode["actions"].astype(np.float64)} for episode in EPISODES[0]])
    with pytest.raises(InvalidArgumentError, match=r"(?s)'actions'.*float32.*float64.*BatchOptions"):
        loader([datasets[1], doubles])
    assert take(loader([datasets[1], doubles], dtype="float32"), 1)[0]["actions"].shape[-1] == 3
    numbers = make_dataset([{**episode, "actions": episode["actions"][:, 0]} for episode in EPISODES[0]])
    with pytest.raises(InvalidArgumentError, match=r"(?s)'actions'.*\[1\].*\[\].*'stack'"):
        loader([datasets[1], numbers])
    named = make_dataset([{"observations.state": e["observations"], "rewards": e["rewards"]} for e in EPISODES[0]])
    with pytest.raises(InvalidArgumentError, match=r"(?s)no observations of one name.*observations\.state.*pad_to"):
        loader([datasets[1], named], pad_to=None)


def test_a_number_that_no_stack_takes() -> None:
    """The hint named a stack of rewards, which is refused."""
    for name, hint in (("rewards", "leave the column out"), ("infos.count", "make a vector of a number")):
        each = [DatasetOutputs(f"d{n}", [Output(name, name, "float32", (n,) * n, 0, 1)]) for n in range(2)]
        with pytest.raises(InvalidArgumentError, match="shape of a step") as error:
            check_shapes(each)
        assert f"\n  {hint}" in str(error.value)


def test_datasets_of_which_each_pair_shares_observations(make_dataset: Any) -> None:
    """The first has a name in common with each of the others, and all three have none."""
    three = [
        make_dataset(
            [
                {**{f"observations.{name}": e["observations"] for name in names}, "rewards": e["rewards"]}
                for e in EPISODES[0]
            ]
        )
        for names in ("ab", "a", "b")
    ]
    with pytest.raises(InvalidArgumentError, match=r"(?s)no observations of one name.*dataset 0.*dataset 2.*rename"):
        loader(three, pad_to=None)


# Names and stacks of a dataset's own

RENAME = {"observations": "observations.state", "actions": "observations.last"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"normalize": ["observations"]}, {"normalize": ["observations.state"]}),
        ({"normalize": "observations"}, {"normalize": "observations.state"}),
        ({"offsets": {"observations": [-2, 0]}}, {"offsets": {"observations.state": [-2, 0]}}),
        ({"columns": ["next_observations", "actions"]}, {"columns": ["next_observations.state", "observations.last"]}),
        ({"goals": Goals(goal_column="observations")}, {"goals": Goals(goal_column="observations.state")}),
        (
            {"stack": {"both": ["observations"]}, "normalize": ["both"], "columns": ["next_both"]},
            {"stack": {"both": ["observations.state"]}, "normalize": ["both"], "columns": ["next_both"]},
        ),
    ],
)
def test_renamed_columns(rollouts_path: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Final observations come with the new name, too."""
    dataset = gear_data.open(rollouts_path)
    assert dataset.schema["observations"].has_final
    options = {"batch_size": 8, "context": 4, "seed": 2}
    plain = take(SequenceLoader(dataset, **grouped(**options, **old)), 4)
    renamed = Mixture([(dataset, 1, {"rename": RENAME})])
    for batch, other in zip(plain, take(SequenceLoader(renamed, **grouped(**options, **new)), 4), strict=True):
        keys = {}
        for key in batch:
            base = key.removeprefix("next_").removesuffix("_mask")
            keys[key] = key.replace(base, RENAME.get(base, base))
        assert set(keys.values()) == other.keys()
        same([{keys[key]: values for key, values in batch.items()}], [other])


def test_renamed_transitions(rollouts_path: Any) -> None:
    dataset = gear_data.open(rollouts_path)
    (plain,) = take(SequenceLoader(dataset, 8, preset="transitions"), 1)
    renamed = Mixture([(dataset, 1, {"rename": {"observations": "observations.state"}})])
    (other,) = take(SequenceLoader(renamed, 8, preset="transitions"), 1)
    for key, values in plain.items():
        assert torch.equal(values, other[f"{key}.state" if key.endswith("observations") else key])


def test_names_and_stacks_bring_datasets_together(datasets: Any) -> None:
    """One dataset stacks what another calls by one name."""
    both = {"stack": {"observations": ["observations", "actions"]}, "rename": {"infos.count": "actions"}}
    with pytest.raises(InvalidArgumentError, match=r"(?s)two columns the name 'actions'.*rename the other"):
        loader_of(datasets, both)
    both["rename"] = {"infos.count": "extra.count", "actions": "infos.torque"}
    both["stack"] = {"observations": ["observations", "infos.torque"]}
    found = loader_of(datasets, both)
    for step, batch in enumerate(take(found, 4)):
        for row, (number, episode, start, length) in enumerate(rows_of(found, step)):
            own = EPISODES[[0, 2, 1][number]][episode]
            names = ("observations", "actions") if number == 0 else ("observations",)
            golden = np.zeros((CONTEXT, 7), np.float32)
            side = np.concatenate([own[name][start : start + length] for name in names], 1)
            golden[:length, : side.shape[1]] = side
            assert np.array_equal(batch["observations"][row].numpy(), golden)
            assert batch["extra.count_present"][row].item() == (number == 0)
            assert batch["actions_present"][row].item() == (number != 0)


def loader_of(datasets: Any, options: dict[str, Any]) -> SequenceLoader:
    mixture = Mixture([(datasets[0], 1, options), (datasets[2], 1), (datasets[1], 1)], join=True, pad_to="largest")
    return SequenceLoader(mixture, BATCH, context=CONTEXT)


@pytest.mark.parametrize("rename", [["actions"], {"actions": 3}, {"actions": ""}, None])
def test_rename_of_another_form(datasets: Any, rename: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="rename must map"):
        Mixture([(datasets[0], 1, {"rename": rename})])
    with pytest.raises(UnknownNameError, match="action"):
        SequenceLoader(Mixture([(datasets[0], 1, {"rename": {"action": "actions"}})]))


# Embodiments


@pytest.mark.parametrize("join", [True, False])
def test_embodiments(datasets: Any, join: bool) -> None:
    numbers = [7, 3, 7]
    entries = [(each, 1, {"embodiment": np.int64(number)}) for each, number in zip(datasets, numbers, strict=True)]
    found = SequenceLoader(Mixture(entries, join=join, pad_to="largest"), BATCH, context=CONTEXT)
    for batch in take(found, 6):
        assert batch["embodiment"].tolist() == [numbers[source] for source in batch["source"].tolist()]
        assert batch["embodiment"].dtype == torch.int64
    (alone,) = take(SequenceLoader(Mixture(entries[:1]), BATCH, context=CONTEXT), 1)
    assert alone["embodiment"].tolist() == [7] * BATCH and "source" not in alone
    assert [own["embodiment"] for own in json.loads(json.dumps(found.spec()))["datasets"]] == numbers


def test_wrong_embodiments(datasets: Any) -> None:
    for wrong in (-1, "arm", True, 1.5):
        with pytest.raises(InvalidArgumentError, match="embodiment"):
            Mixture([(datasets[0], 1, {"embodiment": wrong})])
    with pytest.raises(InvalidArgumentError, match="dataset 1 of the mixture has no embodiment"):
        Mixture([(datasets[0], 1, {"embodiment": 1}), (datasets[1], 1)])


@pytest.mark.parametrize("key", ["embodiment", "source"])
def test_columns_with_the_key_of_a_number_of_datasets(datasets: Any, spoken: Any, key: str) -> None:
    own = {"embodiment": 1} if key == "embodiment" else {}
    for dataset, column in ((datasets[0], "infos.count"), (spoken[1], TEXT)):
        entries = [(dataset, 1, {**own, "rename": {column: key}})] * 2
        with pytest.raises(InvalidArgumentError, match=rf"(?s)'{key}'.*already has.*rename"):
            SequenceLoader(Mixture(entries), BATCH)


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    """Two datasets with two vectors of one width, 3 and 2; the second vector is the first one plus 100."""
    made = []
    for number, width in enumerate((3, 2)):
        episodes = feed_data.locomotion(LENGTHS[number], seed=number, observations=width, actions=1)
        for episode in episodes:
            episode["observations.other"] = episode["observations"] + 100
        folder = tmp_path_factory.mktemp("viewed") / str(number)
        made.append(feed_data.convert_episodes(episodes, folder, shard_bytes=1024))
    return made


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("columns", [["rewards"], None])
def test_choices_of_padded_arrays(viewed: Any, columns: Any, prefetch: int) -> None:
    names = ["observations", "observations.other"]
    mixture = Mixture(viewed, join=True, pad_to=dict.fromkeys(names, 4))
    options: dict[str, Any] = {"context": CONTEXT, "seed": 5, "framework": "numpy", "prefetch": prefetch}
    found = SequenceLoader(mixture, BATCH, choose={"seen": names}, columns=columns, **options)
    whole = SequenceLoader(mixture, BATCH, **options)
    drawn = set()
    for batch, every in zip(itertools.islice(found, 6), whole, strict=False):
        assert ("observations_dim_mask" in batch) == ("observations" in batch) == (columns is None)
        widths = np.array([3, 2])[batch["source"]]
        assert (batch["seen_dim_mask"] == (np.arange(4) < widths[:, None])).all()
        for row in range(BATCH):
            equal = [np.array_equal(batch["seen"][row], every[name][row]) for name in names]
            assert sum(equal) == 1
            drawn.add(equal.index(True))
            assert not batch["seen"][row, :, widths[row] :].any()
    assert drawn == {0, 1}


def test_choices_of_arrays_that_are_padded_unlike_are_refused(datasets: Any, viewed: Any) -> None:
    names = ["observations", "observations.other"]
    for pad_to in ({"observations": 4}, {"observations": 4, "observations.other": 5}):
        with pytest.raises(InvalidArgumentError, match=r"(?s)'seen'.*one form, and with pad_to.*the same elements"):
            mixture = Mixture([viewed[0], viewed[0].filter("length > 1")], join=True, pad_to=pad_to)
            SequenceLoader(mixture, BATCH, choose={"seen": names})
    own = {"choose": {"seen": ["infos.count"]}}
    with pytest.raises(InvalidArgumentError, match=r"(?s)draw among several columns: .*infos.count"):
        SequenceLoader(Mixture([(datasets[0], 1, own), (datasets[1], 1)], join=True, pad_to="largest"), BATCH)


@pytest.mark.parametrize("join", [True, False])
def test_choices_of_one_dataset_are_refused(datasets: Any, join: bool) -> None:
    own = {"columns": ["actions"], "choose": {"one": ["rewards", "returns_to_go"]}}
    mixture = Mixture(
        [(datasets[0], 1, own), (datasets[1], 1, {"columns": ["actions", "rewards"]})], join=join, pad_to="largest"
    )
    with pytest.raises(InvalidArgumentError, match="draw among several columns"):
        SequenceLoader(mixture, BATCH)
    own = {"choose": {"one": ["rewards", "returns_to_go"]}}
    mixture = Mixture([(datasets[0], 1, own), (datasets[1], 1)], join=join, pad_to="largest")
    with pytest.raises(InvalidArgumentError, match="draw among several columns"):
        SequenceLoader(mixture, BATCH)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("own", [{}, {"columns": ["actions", "length"]}, {"choose": {"length": ["length"]}}])
def test_facts_with_the_key_of_a_column_are_refused(datasets: Any, join: bool, own: dict[str, Any]) -> None:
    """The fact of one dataset is neither dropped nor read as the column of another."""
    entries = [(datasets[0], 1, {"rename": {"infos.count": "length"}}), (datasets[1], 1, own)]
    columns = ["actions"] if "choose" in own else ["actions", "length"]
    entries[0][2]["columns"] = ["actions", "length"]
    with pytest.raises(InvalidArgumentError, match=r"(?s)'length'.*dataset 1 .*fact.*another dataset has a column"):
        SequenceLoader(Mixture(entries, join=join, pad_to="largest"), BATCH, columns=columns)


@pytest.mark.parametrize("pad_to", [None, "largest"])
def test_columns_in_another_order(datasets: Any, pad_to: Any) -> None:
    """A column is found by its name, also if another dataset has its columns in another order."""
    names = ["rewards", "returns_to_go"]
    entries = [(datasets[0], 1, {"columns": names}), (datasets[1], 1, {"columns": names[::-1]})]
    swapped = SequenceLoader(Mixture(entries, join=True, pad_to=pad_to), BATCH, context=CONTEXT)
    plain = Mixture([entry[:2] for entry in entries], join=True)
    same(take(swapped, 4), take(SequenceLoader(plain, BATCH, context=CONTEXT, columns=names), 4))


# Text and encoded images


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    """A dataset without text and images, and one that has both."""
    folder = tmp_path_factory.mktemp("spoken")
    bare = feed_data.convert_episodes(feed_data.locomotion([9, 4, 12], seed=3, observations=5), folder / "bare")
    return [bare, text_data.convert(SPOKEN, folder / "spoken")]


SPOKEN = text_data.make_episodes()


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"preset": "decision_transformer", "columns": [TEXT, IMAGE]}, {"preset": "lerobot"}]
)
def test_text_that_a_dataset_lacks(spoken: Any, options: dict[str, Any], join: bool) -> None:
    mixture = Mixture([(each, 1) for each in spoken], join=join, pad_to="largest")
    options = {"batch_size": 5, "context": 4, "seed": 3, "framework": "numpy", "dtype": "float32", **options}
    decoders = {TEXT: text_data.words, IMAGE: ImageDecoder()}
    plain, decoded = (SequenceLoader(mixture, **grouped(**options, decoders=each)) for each in ({}, decoders))
    first_only = options.get("preset") == "lerobot"
    for step, (batch, arrays) in enumerate(itertools.islice(zip(plain, decoded, strict=True), 6)):
        for row, (number, episode, start, length) in enumerate(rows_of(plain, step)):
            count = 0 if number == 0 else 1 if first_only else length
            own = SPOKEN[episode] if number else {TEXT: [], IMAGE: [], "pixels": []}
            texts, images, pixels = (own[name][start : start + count] for name in (TEXT, IMAGE, "pixels"))
            if first_only:
                assert batch[TEXT][row] == (texts[0] if texts else "")
                assert batch[IMAGE][row] == (images[0] if images else b"")
            else:
                assert (batch[TEXT][row], batch[IMAGE][row]) == (texts, images)
            tokens, seen = (np.array(arrays[key][row]) for key in (TEXT, IMAGE))
            if first_only:
                tokens, seen = tokens[None], seen[None]
            skipped = len(seen) - count if options.get("preset") == "decision_transformer" else 0
            for place in range(len(seen)):
                valid = 0 <= place - skipped < count
                golden = text_data.words([texts[place - skipped]])[0] if valid else []
                assert tokens[place].tolist() == golden + [0] * (tokens.shape[-1] - len(golden))
                image = pixels[place - skipped].transpose(2, 0, 1) if valid else np.zeros((3, 4, 5), np.uint8)
                assert np.array_equal(seen[place], image)
            for key in (TEXT, IMAGE):
                assert batch[f"{key}_present"][row] == arrays[f"{key}_present"][row] == (number == 1)


def test_text_on_ranks(spoken: Any) -> None:
    mixture = Mixture([(each, 1) for each in spoken], join=False, pad_to="largest")
    options = {"batch_size": 2, "context": 4, "decoders": {TEXT: text_data.word_mapping}, "dtype": "float32"}
    whole = SequenceLoader(mixture, **grouped(**options))
    parts = [SequenceLoader(mixture, **grouped(**options, rank=rank, world_size=2)) for rank in range(2)]
    for step in range(4):
        batch, pieces = whole.batch(step), [part.batch(step) for part in parts]
        for key in (f"{TEXT}.input_ids", f"{TEXT}.count", f"{TEXT}_present"):
            for row, piece in enumerate(pieces):
                one, other = piece[key][0].reshape(-1), batch[key][row].reshape(-1)
                assert one[one != 0].tolist() == other[other != 0].tolist()


def test_text_that_cannot_be_joined(spoken: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="lacks the column, and preset 'transitions' needs text"):
        SequenceLoader(Mixture(spoken, join=True, pad_to="largest"), 4, preset="transitions")
    numbers = (spoken[0], 1, {"rename": {"actions": TEXT}})
    with pytest.raises(InvalidArgumentError, match=r"has text or bytes, and .* has numbers"):
        SequenceLoader(Mixture([numbers, (spoken[1], 1)], join=True, pad_to="largest"), 4, columns=[TEXT])
