"""Presets against loops written from the published conventions.

Some checks run over every preset.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from gear_data.errors import InvalidArgumentError, NonFiniteError
from gear_data.loaders.presets.outputs import PRESETS, BatchRequest, preset_postprocess
from tests.support.feed import data as feed_data
from tests.support.feed import presets as published
from tests.support.feed.batches import CONTEXT, first_batch

#: Batches of transitions have one step: test_transitions.py. Those of policies: video/test_policies.py.
every_preset = pytest.mark.parametrize(
    "preset", [name for name in PRESETS if name != "transitions" and not PRESETS[name].mapped]
)


def assert_equals(batch, expected, dtypes):
    """Checks every key of `expected` with its dtype, to rounding.

    The batch has no other key but valid_count.
    """
    assert set(batch) == {*expected, "valid_count"}
    for key, values in expected.items():
        assert batch[key].dtype == dtypes[key], key
        assert batch[key].shape == values.shape, key
        np.testing.assert_allclose(batch[key].numpy(), values, rtol=2e-6, atol=1e-6, err_msg=key)


def renamed(episodes, names):
    return [{names.get(name, name): values for name, values in episode.items()} for episode in episodes]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Episodes with flags in the source: some terminated, some truncated."""
    episodes = feed_data.locomotion([7, 1, 23, 40, 2, 20], seed=5)
    flags = [True, False, True, False, True, True]
    for episode, flag in zip(episodes, flags, strict=True):
        last = np.arange(len(episode["rewards"])) == len(episode["rewards"]) - 1
        episode["terminations"], episode["truncations"] = last & flag, last & (not flag)
    return feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("ended") / "dataset"), episodes, flags


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """Columns as in JAT, under the source's names.

    They are continuous and discrete observations, and discrete actions.
    """
    rng = np.random.default_rng(8)
    episodes = [
        {
            "continuous_observations": rng.normal(0, 40, (length, 3)).astype(np.float32),
            "discrete_observations": rng.integers(0, 1024, (length, 2)),
            "discrete_actions": rng.integers(0, 18, length),
            "rewards": rng.normal(0, 1, length).astype(np.float32),
        }
        for length in [7, 1, 23, 40, 2, 20, 5]
    ]
    return feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("games") / "dataset"), episodes


# Checks of every preset.


def flat(batch):
    """Tensors of a batch, lists of them one after another."""
    return {
        f"{key}[{i}]" if isinstance(value, list) else key: tensor
        for key, value in batch.items()
        for i, tensor in enumerate(value if isinstance(value, list) else [value])
    }


@every_preset
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", ["fill", "first", "edge"])
@pytest.mark.parametrize(("context", "anchor"), [(1, "start"), (7, "end"), (64, "start")])
def test_every_preset_puts_valid_steps_and_padding_as_its_fields_say(
    dataset, episodes, preset, side, padding, context, anchor
):
    """Checks normalised rows, padding, the mask and the count."""
    convention = PRESETS[preset]
    fill = {"actions": 3.5, "observations": -1.5}
    batch, windows = first_batch(
        dataset,
        preset=preset,
        context=context,
        anchor=anchor,
        normalize={"observations": (1.0, 2.0)},
        preset_options={"side": side, "padding": padding, "fill": fill, "tokens": None},
    )
    lengths = [n for _, _, n in windows]
    assert batch["valid_count"].dtype == torch.int64
    assert batch["valid_count"].tolist() == lengths
    assert min(lengths) < context or context == 1
    assert all(tensor.is_contiguous() for tensor in batch.values())
    place = [[(k >= context - n) if side == "left" else (k < n) for k in range(context)] for n in lengths]
    mask_key = convention.mask_key or "action_is_pad"
    mask = batch[mask_key]
    assert mask.shape == (64, context)
    assert str(mask.dtype) == f"torch.{convention.mask_dtype}"
    assert ((mask != 0) == convention.mask_valid).tolist() == place
    keys = {"observations": "observations", "actions": "actions", **convention.keys}
    for name in ("observations", "actions"):
        key, values = keys[name], [episode[name].astype(np.float64) for episode in episodes]
        padded = fill[name]
        if name == "observations":
            deviation = 2.0 + convention.std_epsilon
            values = [(rows - 1.0) / deviation for rows in values]
            padded = (padded - 1.0) / deviation if convention.normalize_padding else padded
        if convention.sequences is not None and name == "observations":
            now = np.stack([values[episode][start] for episode, start, _ in windows])
            np.testing.assert_allclose(batch[key].numpy(), now, rtol=1e-6)
            continue
        for row, (episode, start, n) in enumerate(windows):
            got, valid = batch[key][row].numpy(), np.array(place[row])
            steps = values[episode][start : start + n]
            np.testing.assert_allclose(got[valid], steps, rtol=1e-6, atol=1e-7)
            edge = steps[0] if padding == "first" or side == "left" else steps[-1]
            wanted = np.full_like(edge, padded) if padding == "fill" else edge
            assert np.allclose(got[~valid], wanted, rtol=1e-6, atol=1e-7)
    if convention.timesteps_key is not None:
        steps = batch[convention.timesteps_key]
        for row, (_, start, n) in enumerate(windows):
            first = start + convention.timesteps_origin - (context - n if side == "left" else 0)
            counted = np.arange(first, first + context)
            if convention.timesteps_padding == "fill":
                counted[~np.array(place[row])] = 0
            assert steps[row].tolist() == counted.tolist()


@every_preset
def test_a_window_does_not_depend_on_the_rest_of_the_batch(dataset, preset):
    whole = flat(first_batch(dataset, preset=preset)[0])
    ragged = any("[" in key for key in whole)
    for rank in range(5):
        part = flat(first_batch(dataset, preset=preset, rank=rank, world_size=5)[0])
        first, last = rank * 64 // 5, (rank + 1) * 64 // 5
        for key, tensor in part.items():
            if ragged and "[" in key:
                name, index = key[:-1].split("[")
                assert torch.equal(tensor, whole[f"{name}[{first + int(index)}]"])
            else:
                assert torch.equal(tensor, whole[key][first:last])


@every_preset
def test_batch_formats_and_their_postprocessing_can_be_pickled(dataset, preset):
    convention = PRESETS[preset]
    assert pickle.loads(pickle.dumps(convention)) == convention
    request = BatchRequest(dataset.schema, CONTEXT, None, {}, {}, None)
    finish = preset_postprocess(convention, request)
    again = pickle.loads(pickle.dumps(finish))
    assert getattr(again, "keywords", again) == getattr(finish, "keywords", finish)


# corl


@pytest.mark.parametrize("normalize", [None, "observations"])
@pytest.mark.parametrize("context", [1, 7, 20])
def test_corl_equals_the_published_loop(dataset, episodes, context, normalize):
    batch, windows = first_batch(dataset, preset="corl", context=context, normalize=normalize)
    every = np.concatenate([episode["observations"] for episode in episodes]).astype(np.float64)
    statistics = (every.mean(0), every.std(0) + 1e-6) if normalize else ()
    floats = dict.fromkeys(("states", "actions", "returns"), torch.float32)
    expected = published.corl(episodes, windows, context, *statistics)
    assert_equals(batch, expected, {**floats, "time_steps": torch.int64, "mask": torch.float64})


# d3rlpy


@pytest.mark.parametrize("context", [1, 7, 20])
def test_d3rlpy_equals_the_published_loop(ended, context):
    dataset, episodes, flags = ended
    batch, windows = first_batch(dataset, preset="d3rlpy", context=context)
    expected = published.d3rlpy(episodes, windows, context, flags)
    assert expected["terminals"].any() or context == 1
    dtypes = {key: torch.int64 if key == "timesteps" else torch.float32 for key in expected}
    assert_equals(batch, expected, dtypes)


# jat


@pytest.mark.parametrize("context", [1, 7, 20])
@pytest.mark.parametrize("side", ["right", "left"])
def test_jat_equals_the_published_loop(games, context, side):
    dataset, episodes = games
    batch, windows = first_batch(dataset, preset="jat", context=context, preset_options={"side": side})
    expected = published.jat(episodes, windows, context)
    if side == "left":
        # The same pieces, with the padding, which is equal in itself, moved to the front.
        for values in expected.values():
            for row, (_, _, n) in enumerate(windows):
                values[row] = np.roll(values[row], context - n, 0)
    floats = dict.fromkeys(("continuous_observations", "rewards", "loss_weight"), torch.float32)
    assert_equals(batch, expected, {key: floats.get(key, torch.int64) for key in expected})


def test_jat_rewards_of_a_window_in_the_middle_begin_with_the_one_before_it(games):
    dataset, episodes = games
    batch, windows = first_batch(dataset, preset="jat")
    row, (episode, start, _) = next((b, w) for b, w in enumerate(windows) if w[1] > 0)
    assert batch["rewards"][row, 0] == episodes[episode]["rewards"][start - 1]


# lerobot


@pytest.fixture(scope="module")
def robot(episodes, tmp_path_factory):
    named = renamed(episodes, {"observations": "observation.state", "actions": "action", "rewards": "next.reward"})
    return feed_data.convert_episodes(named, tmp_path_factory.mktemp("robot") / "dataset"), named


@pytest.mark.parametrize("source", ["its own names", "other names"])
def test_lerobot_equals_the_published_loop(robot, dataset, source):
    converted, named = robot
    batch, windows = first_batch(converted if source == "its own names" else dataset, preset="lerobot")
    expected = published.lerobot(named, windows, {"action": range(CONTEXT)})
    for key, values in expected.items():
        assert batch[key].numpy().dtype == values.dtype
        assert np.array_equal(batch[key].numpy(), values), key
    assert set(batch) == {*expected, "terminated", "truncated", "returns_to_go", "valid_count"}
    assert expected["action_is_pad"].any()


@pytest.mark.parametrize("observed", [(-1, 1), (-3, 0), (0, 1), (2, 30)])
def test_lerobot_observations_at_deltas(robot, observed):
    """Offsets of a diffusion policy: two observations, and actions from the first."""
    dataset, named = robot
    offsets = {"observations": observed, "actions": (-1, 15)}
    batch, windows = first_batch(dataset, preset="lerobot", offsets=offsets)
    deltas = {"observation.state": range(*observed), "action": range(-1, 15)}
    expected = published.lerobot(named, windows, deltas)
    inside = ~expected["observation.state_is_pad"].all(1)
    for key, values in expected.items():
        rows = inside if key == "observation.state" else slice(None)
        assert np.array_equal(batch[key].numpy()[rows], values[rows]), key


# gato


def test_gato_equals_the_published_rules(games):
    dataset, episodes = games
    batch, windows = first_batch(dataset, preset="gato")
    tokens, targets = published.gato(
        episodes, windows, ["continuous_observations", "discrete_observations"], ["discrete_actions"]
    )
    assert [sample.tolist() for sample in batch["tokens"]] == tokens
    assert [sample.tolist() for sample in batch["target_mask"]] == targets
    assert {sample.dtype for sample in batch["tokens"]} == {torch.int64}
    assert {sample.dtype for sample in batch["target_mask"]} == {torch.bool}
    assert set(batch) == {"tokens", "target_mask", "valid_count"}
    assert {len(sample) for sample in tokens} != {len(tokens[0])}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_gato_equals_the_lists_with_padding(games, side):
    dataset, _ = games
    lists, _ = first_batch(dataset, preset="gato")
    options = {"tokens": {"ragged": False, "padding": 7}, "side": side}
    batch, _ = first_batch(dataset, preset="gato", preset_options=options)
    for row, (tokens, targets) in enumerate(zip(lists["tokens"], lists["target_mask"], strict=True)):
        pad = CONTEXT * 7 - len(tokens)
        empty = [7] * pad, [False] * pad, [False] * pad
        full = tokens.tolist(), targets.tolist(), [True] * len(tokens)
        for key, padding, valid in zip(("tokens", "target_mask", "attention_mask"), empty, full, strict=True):
            assert batch[key][row].tolist() == (padding + valid if side == "left" else valid + padding)


def test_gato_tokens_at_the_ends_of_the_range(make_dataset):
    values = np.array([0.0, -0.0, 1e-9, 256.0, -256.0, 1e6, -1e6, np.inf, -np.inf, 255.9, -255.9])
    episode = {
        "observations": values[:, None],
        "actions": np.array([-1.0, 1.0, 0.0, 0.5, -0.5, 2.0, -2.0, 0.999, -0.999, 1e-4, 0.25])[:, None],
        "rewards": np.zeros(11),
    }
    options = {"context": 11, "preset": "gato", "preset_options": {"tokens": {"companded": ["observation"]}}}
    batch, windows = first_batch(make_dataset([episode]), **options)
    for sample, (_, start, n) in zip(batch["tokens"], windows, strict=True):
        got = sample.reshape(n, 3).tolist()
        wanted = [
            [
                published.gato_token(min(max(values[k], -1e9), 1e9)),
                33024,
                published.gato_token(episode["actions"][k, 0], companded=False),
            ]
            for k in range(start, start + n)
        ]
        assert got == wanted
    tokens = torch.cat(batch["tokens"]).reshape(-1, 3)
    assert (int(tokens[:, 0].min()), int(tokens[:, 0].max())) == (32000, 33023)


def test_gato_leaves_images_beside_the_tokens_and_adds_columns_as_lists(make_dataset, episodes):
    frames = [np.arange(len(e["rewards"]) * 12, dtype=np.uint8).reshape(-1, 2, 2, 3) for e in episodes]
    dataset = make_dataset([{**e, "observations.image": f} for e, f in zip(episodes, frames, strict=True)])
    batch, windows = first_batch(dataset, preset="gato", columns=["rewards"])
    for row, (episode, start, n) in enumerate(windows):
        assert np.array_equal(batch["observations.image"][row].numpy(), frames[episode][start : start + n])
        assert np.array_equal(batch["rewards"][row].numpy(), episodes[episode]["rewards"][start : start + n])
        assert len(batch["tokens"][row]) == n * (4 + 1 + 3)


def test_gato_refuses_values_without_a_token(make_dataset, episodes):
    low = make_dataset([{**e, "actions": np.full(len(e["rewards"]), -1)} for e in episodes])
    high = make_dataset([{**e, "actions": np.full(len(e["rewards"]), 1024)} for e in episodes])
    for dataset in (low, high):
        with pytest.raises(InvalidArgumentError) as error:
            first_batch(dataset, preset="gato")
        assert error.value.column == "actions"
    broken = make_dataset([{**e, "observations": np.full((len(e["rewards"]), 1), np.nan)} for e in episodes])
    with pytest.raises(NonFiniteError) as nan:
        first_batch(broken, preset="gato")
    assert nan.value.column == "observations"
    with pytest.raises(InvalidArgumentError) as offsets:
        first_batch(low, preset="gato", offsets={"actions": (0, 2)})
    assert offsets.value.column == "actions"


# Real data, where it is.

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.parametrize("preset", ["jat", "gato"])
def test_a_task_of_the_jat_collection(preset, tmp_path):
    import gear_data

    source = DATA / "gato_jat" / "cartpole"
    if not source.is_dir():
        pytest.skip("shared/data is not here")
    gear_data.convert(source, tmp_path / "cartpole", progress=False)
    dataset = gear_data.open(tmp_path / "cartpole")
    batch, windows = first_batch(dataset, preset=preset)
    episodes = [{name: dataset.episode(e)[name] for name in ("observations", "actions")} for e, _, _ in windows]
    places = [(row, start, n) for row, (_, start, n) in enumerate(windows)]
    if preset == "jat":
        assert batch["continuous_observations"].shape == (64, CONTEXT, 4)
        assert batch["discrete_actions"].shape == (64, CONTEXT)
    else:
        tokens, _ = published.gato(episodes, places, ["observations"], ["actions"])
        assert [sample.tolist() for sample in batch["tokens"]] == tokens
