"""Preset `decision_transformer` against the published collator and its model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError
from tests.support.feed import reference as ref
from tests.support.feed.batches import CONTEXT, column, first_batch


@pytest.mark.parametrize("normalize", [None, "observations"])
@pytest.mark.parametrize("context", [1, 7, 20])
def test_decision_transformer_equals_the_published_collator(dataset, episodes, context, normalize):
    batch, windows = first_batch(dataset, preset="decision_transformer", context=context, normalize=normalize)
    observations = np.concatenate(column(episodes, "observations")).astype(np.float64)
    statistics = (observations.mean(0), observations.std(0)) if normalize else ()
    expected = ref.decision_transformer(episodes, windows, context, *statistics)
    assert set(batch) == {*expected, "valid_count"}
    for key in ("states", "actions", "rewards", "returns_to_go"):
        assert batch[key].dtype == torch.float32
        assert batch[key].shape == expected[key].shape
        np.testing.assert_allclose(batch[key].numpy(), expected[key], rtol=2e-6, atol=1e-6, err_msg=key)
    assert batch["timesteps"].dtype == torch.int64
    assert batch["attention_mask"].dtype == torch.float32
    assert np.array_equal(batch["timesteps"].numpy(), expected["timesteps"])
    assert np.array_equal(batch["attention_mask"].numpy(), expected["attention_mask"])
    assert any(length < context for _, _, length in windows) or context == 1


def test_padding_equals_the_padding_of_the_collator(dataset):
    batch, windows = first_batch(dataset, preset="decision_transformer", normalize=True)
    row = next(i for i, (_, _, length) in enumerate(windows) if length < CONTEXT)
    padding = batch["attention_mask"][row] == 0
    mean, std = dataset.statistics["observations"].mean, dataset.statistics["observations"].std
    np.testing.assert_allclose(batch["states"][row][padding].numpy()[0], -mean / (std + 1e-6), rtol=1e-6)
    assert (batch["actions"][row][padding] == -10).all()
    assert (batch["rewards"][row][padding] == 0).all()
    assert (batch["returns_to_go"][row][padding] == 0).all()
    assert (batch["timesteps"][row][padding] == 0).all()


def test_scalar_observations_and_actions_become_vectors_of_one(make_dataset, episodes):
    scalar = [{name: values.reshape(len(values), -1)[:, 0] for name, values in e.items()} for e in episodes]
    batch, windows = first_batch(make_dataset(scalar), preset="decision_transformer")
    expected = ref.decision_transformer(scalar, windows, CONTEXT)
    for key in ("states", "actions", "rewards", "returns_to_go"):
        assert batch[key].shape == (64, CONTEXT, 1)
        np.testing.assert_allclose(batch[key].numpy(), expected[key], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_decision_transformer_takes_any_number(make_dataset, episodes, dtype):
    changed = [{**e, "observations": (e["observations"] * 5 + 40).astype(dtype)} for e in episodes]
    batch, windows = first_batch(make_dataset(changed), preset="decision_transformer")
    expected = ref.decision_transformer(changed, windows, CONTEXT)["states"]
    assert np.array_equal(batch["states"].numpy(), expected.astype(np.float32))


def test_decision_transformer_adds_requested_columns(make_dataset, episodes):
    dataset = make_dataset([{**e, "infos.qpos": e["actions"] * 2} for e in episodes])
    batch, windows = first_batch(dataset, preset="decision_transformer", columns=["infos.qpos", "truncated"])
    qpos = [2.0 * actions for actions in column(episodes, "actions")]
    assert np.array_equal(batch["infos.qpos"].numpy(), ref.left_padded(qpos, windows, CONTEXT, 0.0))
    last = ref.left_padded(
        [np.arange(len(a)) == len(a) - 1 for a in column(episodes, "actions")], windows, CONTEXT, 0.0
    )
    assert np.array_equal(batch["truncated"].numpy(), last[..., 0].astype(bool))
    # A column that the preset has too, as the dataset has it.
    both, windows = first_batch(dataset, preset="decision_transformer", columns=["observations"], normalize=True)
    observations = ref.left_padded(column(episodes, "observations"), windows, CONTEXT, 0.0)
    assert both["states"].shape == both["observations"].shape
    expected = (observations - dataset.statistics["observations"].mean) / dataset.statistics["observations"].std
    valid = both["attention_mask"].bool().numpy()
    np.testing.assert_allclose(both["observations"].numpy()[valid], expected[valid], rtol=1e-5, atol=1e-6)
    assert not both["observations"].numpy()[~valid].any()


@pytest.mark.parametrize(
    ("kept", "missing"),
    [(["observations", "actions"], ["rewards", "returns_to_go"]), (["actions", "rewards"], ["observations"])],
)
def test_a_missing_column_is_named(make_dataset, episodes, kept, missing):
    dataset = make_dataset([{name: episode[name] for name in kept} for episode in episodes])
    with pytest.raises(MissingColumnError) as error:
        SequenceLoader(dataset, preset="decision_transformer")
    assert all(name in error.value.message for name in missing)
    assert not any(name in error.value.message for name in kept)
    assert all(name in error.value.hint for name in kept)


def test_decision_transformer_refuses_images(make_dataset, episodes):
    dataset = make_dataset([{**e, "observations": e["observations"].reshape(-1, 2, 2)} for e in episodes])
    with pytest.raises(InvalidArgumentError) as error:
        SequenceLoader(dataset, preset="decision_transformer")
    assert error.value.column == "observations"


@pytest.fixture(scope="module")
def model():
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    torch.manual_seed(0)
    config = DecisionTransformerConfig(
        state_dim=4, act_dim=3, hidden_size=32, n_layer=2, n_head=2, max_ep_len=64, n_positions=256
    )
    return DecisionTransformerModel(config).eval()


def run(model, batch):
    with torch.no_grad():
        result = model(**{key: value for key, value in batch.items() if key != "valid_count"})
    return {key: result[key] for key in ("state_preds", "action_preds", "return_preds")}


@pytest.mark.parametrize("normalize", [None, True])
def test_the_model_predicts_the_same_with_padding_as_without(model, dataset, normalize):
    batch, windows = first_batch(dataset, preset="decision_transformer", normalize=normalize, batch_size=24, context=12)
    padded = run(model, batch)
    assert any(length < 12 for _, _, length in windows)
    for row, (_, _, length) in enumerate(windows):
        cut = {key: value[row : row + 1, 12 - length :] for key, value in batch.items() if key != "valid_count"}
        alone = run(model, cut)
        for key, prediction in padded.items():
            torch.testing.assert_close(prediction[row, 12 - length :], alone[key][0], rtol=1e-4, atol=1e-5)


def test_the_model_takes_the_batch_unchanged(model, dataset):
    batch, _ = first_batch(dataset, preset="decision_transformer", batch_size=8)
    with torch.no_grad():
        result = model(**batch)
    assert result.action_preds.shape == (8, CONTEXT, 3)
    assert torch.isfinite(result.action_preds[batch["attention_mask"].bool()]).all()


def test_decision_transformer_normalises_before_it_scales_returns(dataset, episodes):
    batch, windows = first_batch(
        dataset, preset="decision_transformer", normalize={"returns_to_go": (50.0, 4.0), "actions": (0.5, 2.0)}
    )
    plain = ref.decision_transformer(episodes, windows, CONTEXT)
    np.testing.assert_allclose(
        batch["returns_to_go"].numpy(),
        (plain["returns_to_go"] * 1000 - 50.0) / (4.0 + 1e-6) / 1000,
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(batch["actions"].numpy(), (plain["actions"] - 0.5) / (2.0 + 1e-6), rtol=1e-6)


def test_returns_to_go_of_a_long_episode_are_summed_in_float64(make_dataset):
    """Checks that returns are summed in float64.

    In float32, the sum of 3,000 small rewards after a large one is off by a hundred times the tolerance.
    """
    rewards = np.full(3000, 0.1, np.float32)
    rewards[-1] = 1e5
    episode = {"observations": np.zeros((3000, 1), np.float32), "actions": np.zeros((3000, 1), np.float32)}
    dataset = make_dataset([{**episode, "rewards": rewards}])
    batch, windows = first_batch(dataset, preset="decision_transformer", context=5)
    exact = np.array(ref.returns_to_go(rewards))
    for row, (_, start, length) in enumerate(windows):
        got = batch["returns_to_go"][row, 5 - length :, 0].numpy()
        np.testing.assert_allclose(got, exact[start : start + length] / 1000, rtol=2e-7)
