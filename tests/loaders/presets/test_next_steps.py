"""Columns of the next step, and n-step returns, in every preset."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from gear_data import ReturnOptions, Seconds, SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnknownNameError
from gear_data.loaders.presets.outputs import PRESETS
from tests.support.feed import batches as feed_batches
from tests.support.feed import data as feed_data
from tests.support.feed import presets as published
from tests.support.feed import reference as ref

CONTEXT = 9
first_batch = functools.partial(feed_batches.first_batch, context=CONTEXT, seed=2)
#: Batches of transitions have one step: test_transitions.py. Those of policies: video/test_policies.py.
every_preset = pytest.mark.parametrize(
    "preset", [name for name in PRESETS if name != "transitions" and not PRESETS[name].mapped]
)


@pytest.fixture(scope="module")
def with_finals(tmp_path_factory):
    """Returns a dataset, its episodes and their final observations.

    The episodes are like D4RL's; every second episode has a final observation.
    """
    import h5py

    import gear_data

    episodes = feed_data.locomotion([7, 1, 23, 12, 2, 20], seed=21)
    rng = np.random.default_rng(1)
    finals = [rng.normal(size=4).astype(np.float32) for _ in episodes]
    path = tmp_path_factory.mktemp("finals") / "rollouts.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards"):
            file[name] = np.concatenate([episode[name] for episode in episodes])
        ends = np.concatenate([np.arange(len(e["rewards"])) == len(e["rewards"]) - 1 for e in episodes])
        file["terminals"], file["timeouts"] = ends, np.zeros_like(ends)
        file["next_observations"] = np.concatenate(
            [np.concatenate([e["observations"][1:], f[None]]) for e, f in zip(episodes, finals, strict=True)]
        )
    gear_data.convert(path, path.with_suffix(""), progress=False)
    dataset = gear_data.open(path.with_suffix(""))
    assert dataset.schema["observations"].has_final
    return dataset, episodes, finals


def aligned(values, windows, side):
    """Moves right-padded rows to the side of the preset's padding."""
    if side == "right":
        return values
    return np.stack([np.roll(row, CONTEXT - n, 0) for row, (_, _, n) in zip(values, windows, strict=True)])


SEQUENCES = [name for name, convention in PRESETS.items() if convention.sequences is None]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("preset", SEQUENCES)
def test_the_row_after_each_step_or_the_final_observation(with_finals, preset, side):
    dataset, episodes, finals = with_finals
    options = {"side": side, "padding": "fill", "tokens": None, "mask_valid": True, "normalize_padding": False}
    batch, windows = first_batch(
        dataset, preset=preset, columns=["next_observations", "next_actions"], preset_options=options
    )
    for name, ends in (("observations", finals), ("actions", [None] * len(episodes))):
        rows, there = published.following([e[name] for e in episodes], windows, CONTEXT, ends)
        assert there.any() and not there.all()
        assert np.array_equal(batch[f"next_{name}_mask"].numpy(), aligned(there, windows, side))
        fill = PRESETS[preset].fill.get(name, 0)
        rows[~there] = fill
        assert np.array_equal(batch[f"next_{name}"].numpy(), aligned(rows, windows, side))
    assert batch["next_observations_mask"].sum() == batch["valid_count"].sum()


def test_without_final_observations_the_last_step_has_none(dataset, episodes):
    batch, windows = first_batch(dataset, columns=["observations", "next_observations"])
    rows, there = published.following([e["observations"] for e in episodes], windows, CONTEXT, [None] * len(episodes))
    assert np.array_equal(batch["next_observations"].numpy(), rows)
    assert np.array_equal(batch["next_observations_mask"].numpy(), there)


def test_the_next_step_is_normalised_like_its_column(with_finals):
    dataset, episodes, finals = with_finals
    columns = ["observations", "next_observations"]
    batch, windows = first_batch(dataset, columns=columns, normalize={"observations": (2.0, 4.0)})
    scaled = [(episode["observations"].astype(np.float64) - 2.0) / 4.0 for episode in episodes]
    rows, _ = published.following(scaled, windows, CONTEXT, [(final - 2.0) / 4.0 for final in finals])
    np.testing.assert_allclose(batch["next_observations"].numpy(), rows, rtol=1e-6, atol=1e-7)


def test_lerobot_gives_only_the_next_frame(with_finals):
    dataset, episodes, finals = with_finals
    batch, windows = first_batch(dataset, preset="lerobot", columns=["next_observations", "actions"])
    for row, (episode, start, _) in enumerate(windows):
        after = [*episodes[episode]["observations"][1:], finals[episode]]
        assert np.array_equal(batch["next_observations"][row].numpy(), after[start])
    assert batch["next_observations_is_pad"].shape == (64,)
    assert not batch["next_observations_is_pad"].any()


def test_a_column_with_next_in_its_own_name_is_itself(make_dataset, episodes):
    dataset = make_dataset([{**e, "next_rewards": e["rewards"] * 2} for e in episodes])
    for preset in ("raw", "corl"):
        batch, windows = first_batch(dataset, preset=preset, columns=["next_rewards"])
        expected = ref.right_padded([e["rewards"] * 2 for e in episodes], windows, 0, CONTEXT)
        assert np.array_equal(batch["next_rewards"].numpy(), expected)
        assert "next_rewards_mask" not in batch


def test_next_of_an_unknown_column_is_refused(dataset):
    with pytest.raises(UnknownNameError) as error:
        SequenceLoader(dataset, columns=["next_acton"])
    assert error.value.column == "next_acton"


@every_preset
@pytest.mark.parametrize(("n_step", "discount"), [(1, 0.9), (3, 0.5), (50, 0.99), (4, 0.0), (5, 1.0)])
def test_n_step_returns(dataset, episodes, preset, n_step, discount):
    batch, windows = first_batch(dataset, preset=preset, n_step=n_step, discount=discount)
    expected = published.n_step_returns(episodes, windows, CONTEXT, n_step, discount)
    got = batch["n_step_returns"]
    if isinstance(got, list):
        for row, (_, _, n) in enumerate(windows):
            np.testing.assert_allclose(got[row].numpy(), expected[row, :n], rtol=1e-5, atol=1e-5)
        return
    convention = PRESETS[preset]
    if convention.sequences is not None:
        np.testing.assert_allclose(got.numpy(), expected[:, 0], rtol=1e-5, atol=1e-5)
        return
    if "rewards" in convention.unsqueeze_last:
        assert got.shape == (64, CONTEXT, 1)
        got = got[..., 0]
    if convention.padding == "first":
        for row, (_, _, n) in enumerate(windows):
            expected[row, n:] = expected[row, 0]
    np.testing.assert_allclose(got.numpy(), aligned(expected, windows, convention.side), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_step", [0, -1, 2.0, True])
def test_bad_n_step(dataset, n_step):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, returns=ReturnOptions(n_step=n_step))


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan"), "1", True])
def test_bad_discount(dataset, discount):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, returns=ReturnOptions(n_step=2, discount=discount))


def test_n_step_needs_rewards(make_dataset, episodes):
    dataset = make_dataset([{"actions": episode["actions"]} for episode in episodes])
    with pytest.raises(MissingColumnError) as error:
        SequenceLoader(dataset, returns=ReturnOptions(n_step=2))
    assert error.value.column == "rewards"


def test_batches_have_no_extra_keys_by_default(dataset):
    assert not any(key.startswith(("next_", "n_step")) for key in first_batch(dataset)[0])
    assert isinstance(first_batch(dataset, n_step=2)[0]["n_step_returns"], torch.Tensor)


@pytest.mark.parametrize("fps, fill", [(10, "hold"), (5, "interpolate")])
def test_next_observations_at_times(with_finals, fps, fill):
    dataset, episodes, finals = with_finals
    times = [-0.1, 0.0, 0.3]
    batch, windows = first_batch(
        dataset,
        columns=["observations", "next_observations"],
        offsets={"observations": Seconds(times, fill=fill, fps=fps)},
    )
    for row, (episode, start, _) in enumerate(windows):
        states = [*episodes[episode]["observations"]] + ([finals[episode]] if dataset.final(episode) else [])
        for column, time in enumerate(times):
            place = start + 1 + time * fps
            low, high = math.floor(place + 1e-9), math.ceil(place - 1e-9)
            # The window's first step is the first that has a next one, and so the earliest next step is step 1.
            there = low >= 1 and high < len(states)
            assert batch["next_observations_mask"][row, column] == there
            value = (states[low] + (place - low) * (states[high] - states[low])) if there else np.zeros(4)
            np.testing.assert_allclose(batch["next_observations"][row, column], value, rtol=1e-5, atol=1e-6)
