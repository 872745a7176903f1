"""The preset `transitions`, against a plain loop over the steps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import BatchOptions, Goals, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError, MissingColumnError
from tests.support.feed import transitions as golden
from tests.support.feed.arguments import grouped

KEYS = ["observations", "actions", "rewards", "terminated", "next_observations", "masks"]
MARK = {"transitions": {"missing_next": "mark"}}


@pytest.fixture(scope="module")
def episodes() -> list[dict[str, Any]]:
    return golden.episodes_of_every_end()


@pytest.fixture(scope="module")
def dataset(episodes, tmp_path_factory) -> gear_data.Dataset:
    return golden.convert(episodes, tmp_path_factory.mktemp("transitions") / "dataset")


def batches_of(dataset: Any, count: int = 4, **options: Any) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
    """Returns batches and the (episode, step) of their rows."""
    loader = SequenceLoader(dataset, **grouped(**{"batch_size": 64, "preset": "transitions", "seed": 5, **options}))
    found = []
    for step, batch in enumerate(itertools.islice(loader, count)):
        windows = loader.windows(step)
        rows = list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))
        found.append(({key: value.clone() for key, value in batch.items()}, rows))
    return found


@pytest.mark.parametrize("n_step", [None, 5])
def test_listed_steps_are_those_of_the_range(dataset, n_step):
    found = batches_of(dataset, n_step=n_step, offsets={"observations": [0, -3]})
    ranges = batches_of(dataset, n_step=n_step, offsets={"observations": (-3, 1)})
    for (batch, _), (whole, _) in zip(found, ranges, strict=True):
        for key, value in batch.items():
            expected = whole[key][:, [3, 0]] if key.removeprefix("next_").startswith("observations") else whole[key]
            assert torch.equal(value, expected), key


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("n_step", [None, 1, 2, 5, 30])
@pytest.mark.parametrize("marked", [False, True])
def test_every_row_is_the_loops(dataset, episodes, n_step, frames, marked):
    options: dict[str, Any] = {"preset_options": MARK} if marked else {}
    if frames > 1:
        options["offsets"] = {"observations": (1 - frames, 1)}
    seen = set()
    for batch, rows in batches_of(dataset, n_step=n_step, discount=0.9, **options):
        wanted = [golden.transition(episodes[e], t, n_step or 1, 0.9, frames) for e, t in rows]
        for key in KEYS if n_step is None else [*KEYS, "discounts", "intervals"]:
            expected = np.stack([np.asarray(row[key]) for row in wanted])
            if frames == 1 and key.endswith("observations"):
                expected = expected[:, 0]
            assert batch[key].shape == expected.shape, key
            np.testing.assert_allclose(batch[key].numpy(), expected, rtol=1e-6, err_msg=key)
        if marked and frames == 1:
            there = [taken > 0 and golden.state(episodes[e], t + taken) is not None
                     for e, t in rows for taken, _ in [golden.hop(episodes[e], t, n_step or 1)]]  # fmt: skip
            assert batch["next_observations_mask"].tolist() == there
        seen.update(rows)
    every = {(e, t) for e, length in enumerate(golden.LENGTHS) for t in range(length)}
    without_next = {(e, t) for e, t in every if not golden.hop(episodes[e], t, 1)[0]}
    assert without_next == {(2, 8), (4, 10), (5, 0)}
    assert seen == (every if marked else every - without_next)


def test_keys_dtypes_and_shapes(dataset):
    ((batch, _),) = batches_of(dataset, 1)
    found = {key: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for key, value in batch.items()}
    assert found == {
        "observations": ("float32", (64, 4)),
        "actions": ("float32", (64, 3)),
        "rewards": ("float32", (64,)),
        "terminated": ("bool", (64,)),
        "next_observations": ("float32", (64, 4)),
        "masks": ("float32", (64,)),
        "valid_count": ("int64", (64,)),
    }
    assert not torch.signbit(batch["masks"]).any()  # 0.0, not -0.0


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes_and_normalising(dataset, episodes, dtype):
    options = {"dtype": dtype, "normalize": {"observations": (2.0, 4.0)}, "n_step": 3, "discount": 0.5}
    ((batch, rows),) = batches_of(dataset, 1, **options)
    assert {str(batch[key].dtype) for key in ("rewards", "masks", "discounts")} == {f"torch.{dtype}"}
    wanted = [golden.transition(episodes[e], t, 3, 0.5, 1) for e, t in rows]
    for row, expected in enumerate(wanted):
        there = golden.state(episodes[rows[row][0]], rows[row][1] + expected["intervals"]) is not None
        after = (expected["next_observations"][0].astype(np.float64) - 2) / 4 if there else np.zeros(4)
        np.testing.assert_allclose(batch["next_observations"][row].double(), after, rtol=1e-2, atol=1e-2)
        assert float(batch["discounts"][row]) == expected["discounts"]


@pytest.mark.parametrize("options", [{}, {"n_step": 3, "discount": 0.9}, {"goals": Goals()}])
def test_columns_of_other_keys_have_the_same_values(dataset, options):
    renamed = {"rewards": "reward", "terminated": "done"}
    found = batches_of(dataset, preset_options={"keys": renamed}, **options)
    for (batch, _), (plain, _) in zip(found, batches_of(dataset, **options), strict=True):
        assert batch.keys() == {renamed.get(key, key) for key in plain}
        for key, value in plain.items():
            own = batch[renamed.get(key, key)]
            assert own.dtype == value.dtype and torch.equal(own, value), key


def test_an_epoch_has_every_row_once(dataset, episodes):
    loader = SequenceLoader(dataset, 8, preset="transitions", sampler="shuffle", epochs=1)
    rows = []
    for step, batch in enumerate(loader):
        windows = loader.windows(step)
        rows += list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))
        assert len(batch["rewards"]) == len(windows["start"])
    assert len(rows) == len(set(rows)) == sum(golden.LENGTHS) - 3


def test_views_and_filters_of_steps_leave_the_same_rows_out(dataset, episodes):
    view = dataset[[2, 3, 5]]
    drawn = {row for _, rows in batches_of(view) for row in rows}
    assert drawn == {(2, t) for t in range(8)} | {(3, t) for t in range(12)}
    positive = dataset.filter_steps("rewards > 0")
    drawn = {row for _, rows in batches_of(positive) for row in rows}
    wanted = {
        (e, t) for e, each in enumerate(episodes) for t in range(len(each["rewards"]))
        if each["rewards"][t] > 0 and golden.hop(each, t, 1)[0]
    }  # fmt: skip
    assert drawn == wanted


def test_steps_with_weights_leave_the_same_rows_out(dataset, episodes):
    for view in (dataset, dataset[[2, 3, 5]], dataset.filter_steps("rewards > 0")):
        sampler = Weighted(np.ones(view.lengths.sum()))
        drawn = {row for _, rows in batches_of(view, 16, sampler=sampler) for row in rows}
        assert drawn == {row for _, rows in batches_of(view, 16) for row in rows}
        assert all(golden.hop(episodes[episode], step, 1)[0] for episode, step in drawn)


def test_requested_next_columns_are_those_of_the_next_state(dataset, episodes):
    ((batch, rows),) = batches_of(dataset, 1, n_step=4, discount=0.9, columns=["next_actions", "truncated"])
    for row, (e, t) in enumerate(rows):
        after = t + golden.hop(episodes[e], t, 4)[0]
        actions = episodes[e]["actions"]
        expected = actions[after] if after < len(actions) else np.zeros(3, np.float32)
        assert np.array_equal(batch["next_actions"][row].numpy(), expected)
    assert batch["truncated"].shape == (64,)


def test_several_observation_columns_come_with_their_next(make_dataset):
    rng = np.random.default_rng(0)
    made = [
        {
            "observations.image": rng.integers(0, 255, (n, 3, 2), np.uint8),
            "observations.state": rng.normal(size=(n, 2)).astype(np.float64),
            "actions": rng.integers(0, 4, n),
            "rewards": rng.integers(0, 4, n),
        }
        for n in (5, 9)
    ]
    ((batch, rows),) = batches_of(make_dataset(made), 1)
    assert batch["actions"].dtype == torch.int64 and batch["rewards"].dtype == torch.float32
    assert batch["next_observations.image"].dtype == torch.uint8
    for row, (e, t) in enumerate(rows):
        assert np.array_equal(batch["next_observations.image"][row], made[e]["observations.image"][t + 1])
        state = made[e]["observations.state"][t + 1].astype(np.float32)
        assert np.array_equal(batch["next_observations.state"][row], state)


def test_a_state_of_the_other_choice_is_refused(dataset):
    loader = SequenceLoader(dataset, 8, preset="transitions")
    other = SequenceLoader(dataset, 8, preset="transitions", batch=BatchOptions(preset_options=MARK))
    with pytest.raises(gear_data.errors.StateMismatchError, match="missing_next"):
        other.load_state_dict(loader.state_dict())


def test_a_state_of_another_kind_of_batch_is_refused(dataset):
    transitions = SequenceLoader(dataset, 8, preset="transitions")
    sequences = SequenceLoader(dataset, 8, context=1, preset="raw")
    for saved, loader in ((transitions, sequences), (sequences, transitions)):
        with pytest.raises(gear_data.errors.StateMismatchError):
            loader.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 20}, "one step in each row, and context is 20"),
        ({"offsets": {"rewards": (0, 3)}}, "cannot have offsets"),
        ({"offsets": {"terminated": (0, 3)}}, "cannot have offsets"),
        ({"normalize": ["rewards"], "n_step": 2}, "cannot be normalised and summed"),
        ({"preset_options": {"transitions": {"missing_next": "keep"}}}, "must be 'drop' or 'mark', not 'keep'"),
        ({"preset_options": {"sequences": None}}, "transitions have no sequences"),
    ],
)
def test_arguments_that_make_no_transitions_are_refused(dataset, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        SequenceLoader(dataset, **grouped(preset="transitions", **options))


def test_the_context_is_one_unless_given(dataset):
    assert SequenceLoader(dataset, preset="transitions").context == 1
    assert SequenceLoader(dataset).context == 20
    assert SequenceLoader(dataset, batch=BatchOptions(preset_options={"context": 7})).context == 7


def test_a_dataset_without_observations_is_refused(make_dataset):
    dataset = make_dataset([{"actions": np.zeros((3, 1), np.float32), "rewards": np.zeros(3, np.float32)}])
    with pytest.raises(MissingColumnError, match="needs observations"):
        SequenceLoader(dataset, preset="transitions")


def test_a_dataset_of_single_cut_off_steps_is_refused(make_dataset):
    step = {name: np.zeros((1, 2), np.float32) for name in ("observations", "actions")}
    dataset = make_dataset([{**step, "rewards": np.zeros(1, np.float32)}] * 2)
    with pytest.raises(InvalidArgumentError, match="each of the 2 episodes is one step without a next observation"):
        SequenceLoader(dataset, preset="transitions")
