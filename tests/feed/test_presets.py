"""Every preset against plain-Python loops, and against the model that takes its batch."""

from __future__ import annotations

import feed_reference as ref
import numpy as np
import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnknownNameError
from gear_data.loaders.presets import PRESETS

CONTEXT = 20
every_preset = pytest.mark.parametrize("preset", PRESETS)


def first_batch(dataset, **options):
    options = {"batch_size": 64, "context": CONTEXT, "prefetch": 0, "seed": 4, **options}
    loader = SequenceLoader(dataset, **options)
    return next(iter(loader)), ref.as_windows(loader.windows(0))


def column(episodes, name):
    return [episode[name] for episode in episodes]


def mask_key(batch):
    (key,) = (key for key in ("mask", "attention_mask", "masks") if key in batch)
    return key


# What holds for a batch of any preset.


@every_preset
@pytest.mark.parametrize("context", [1, 5, 20, 64])
def test_mask_timesteps_and_valid_count_agree_with_the_windows(dataset, preset, context):
    batch, windows = first_batch(dataset, preset=preset, context=context)
    lengths = torch.tensor([length for _, _, length in windows])
    assert batch["valid_count"].dtype == torch.int64
    assert torch.equal(batch["valid_count"], lengths)
    assert lengths.min() < context or context == 1
    mask = batch[mask_key(batch)]
    assert mask.shape == (64, context)
    assert torch.equal(mask.sum(1).long(), lengths)
    for row, (_, start, length) in enumerate(windows):
        steps = batch["timesteps"][row][mask[row].bool()]
        assert steps.tolist() == list(range(start, start + length))
    for key, tensor in batch.items():
        assert tensor.is_contiguous(), key
        assert tensor.shape[: 1 if key == "valid_count" else 2] in {(64,), (64, context)}, key


@every_preset
def test_a_window_is_the_same_whatever_else_is_in_the_batch(dataset, preset):
    whole, _ = first_batch(dataset, preset=preset)
    for rank in range(5):
        part, _ = first_batch(dataset, preset=preset, rank=rank, world_size=5)
        rows = slice(rank * 64 // 5, (rank + 1) * 64 // 5)
        assert all(torch.equal(part[key], whole[key][rows]) for key in whole)


@every_preset
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", torch.float32, torch.bfloat16])
def test_dtype_changes_float_columns_and_nothing_else(dataset, preset, dtype):
    plain, _ = first_batch(dataset, preset=preset)
    batch, _ = first_batch(dataset, preset=preset, dtype=dtype)
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    names = {"states", "observations", "actions", "rewards", "returns_to_go"} & plain.keys()
    assert {key for key in batch if batch[key].dtype == wanted} >= names
    for key in batch:
        if key in names:
            torch.testing.assert_close(batch[key], plain[key].to(wanted), rtol=1e-6, atol=0)
        else:
            assert batch[key].dtype == plain[key].dtype, key
            assert torch.equal(batch[key], plain[key]), key


@every_preset
def test_unknown_names_list_the_known_ones(dataset, preset):
    for option in ({"columns": ["acton"]}, {"normalize": "acton"}, {"normalize": {"acton": (0, 1)}}):
        with pytest.raises(UnknownNameError) as error:
            SequenceLoader(dataset, preset=preset, **option)
        assert "did you mean 'actions'" in str(error.value)
        assert all(name in str(error.value) for name in dataset.schema.names)
        assert error.value.column == "acton"
    with pytest.raises(UnknownNameError, match="unknown column 'acton'"):
        SequenceLoader(dataset, preset=preset, offsets={"acton": (0, 1)})


def test_an_unknown_preset_lists_the_known_ones(dataset):
    with pytest.raises(UnknownNameError) as error:
        SequenceLoader(dataset, preset="decision-transformer")
    assert "did you mean 'decision_transformer'" in str(error.value)
    assert all(name in str(error.value) for name in PRESETS)


# raw


def test_raw_equals_plain_python(dataset, episodes):
    batch, windows = first_batch(dataset)
    lengths = [len(episode["rewards"]) for episode in episodes]
    for name in ("observations", "actions", "rewards"):
        expected = ref.right_padded(column(episodes, name), windows, 0, CONTEXT)
        assert batch[name].numpy().dtype == expected.dtype
        assert np.array_equal(batch[name].numpy(), expected)
    returns = [np.array(ref.returns_to_go(rewards), np.float32) for rewards in column(episodes, "rewards")]
    np.testing.assert_allclose(
        batch["returns_to_go"].numpy(), ref.right_padded(returns, windows, 0, CONTEXT), rtol=2e-7, atol=1e-6
    )
    valid = ref.valid_places(lengths, windows, 0, CONTEXT)
    assert batch["mask"].dtype == torch.bool
    assert np.array_equal(batch["mask"].numpy(), valid)
    steps = [np.arange(length) for length in lengths]
    assert np.array_equal(batch["timesteps"].numpy(), ref.right_padded(steps, windows, 0, CONTEXT))
    # Without end flags in the source, its last step is read as truncated.
    ends = [np.arange(length) == length - 1 for length in lengths]
    assert np.array_equal(batch["truncated"].numpy(), ref.right_padded(ends, windows, 0, CONTEXT))
    assert not batch["terminated"].any()
    assert set(batch) == {*dataset.schema.names, "mask", "timesteps", "valid_count"}


def test_raw_gives_the_columns_asked_for(dataset):
    whole, _ = first_batch(dataset)
    batch, _ = first_batch(dataset, columns=["rewards", "observations"])
    assert set(batch) == {"rewards", "observations", "mask", "timesteps", "valid_count"}
    assert all(torch.equal(batch[key], whole[key]) for key in batch)
    empty, _ = first_batch(dataset, columns=[])
    assert set(empty) == {"mask", "timesteps", "valid_count"}


def test_raw_refuses_a_column_that_would_hide_a_key_of_every_batch(make_dataset, episodes):
    dataset = make_dataset([{**episode, "mask": episode["rewards"]} for episode in episodes])
    with pytest.raises(InvalidArgumentError) as error:
        SequenceLoader(dataset)
    assert error.value.column == "mask"
    assert "mask" in first_batch(dataset, columns=["rewards"])[0]


@pytest.mark.parametrize("columns", [["rewards", "rewards"], ["valid_count"]])
def test_no_two_things_share_a_key(make_dataset, episodes, columns):
    dataset = make_dataset([{**episode, "valid_count": episode["rewards"]} for episode in episodes])
    for preset in PRESETS:
        with pytest.raises(InvalidArgumentError) as error:
            SequenceLoader(dataset, preset=preset, columns=columns)
        assert error.value.column == columns[0]


# decision_transformer


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


def test_padding_is_exactly_what_the_collator_writes(dataset):
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


def test_decision_transformer_adds_the_columns_asked_for(make_dataset, episodes):
    dataset = make_dataset([{**e, "infos.qpos": e["actions"] * 2} for e in episodes])
    batch, windows = first_batch(dataset, preset="decision_transformer", columns=["infos.qpos", "truncated"])
    qpos = [2.0 * actions for actions in column(episodes, "actions")]
    assert np.array_equal(batch["infos.qpos"].numpy(), ref.left_padded(qpos, windows, CONTEXT, 0.0))
    last = ref.left_padded(
        [np.arange(len(a)) == len(a) - 1 for a in column(episodes, "actions")], windows, CONTEXT, 0.0
    )
    assert np.array_equal(batch["truncated"].numpy(), last[..., 0].astype(bool))


@pytest.mark.parametrize(
    ("kept", "missing"),
    [(["observations", "actions"], ["rewards", "returns_to_go"]), (["actions", "rewards"], ["observations"])],
)
def test_what_a_dataset_lacks_is_named(make_dataset, episodes, kept, missing):
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


def test_the_model_takes_the_batch_as_it_comes(model, dataset):
    batch, _ = first_batch(dataset, preset="decision_transformer", batch_size=8)
    with torch.no_grad():
        result = model(**batch)
    assert result.action_preds.shape == (8, CONTEXT, 3)
    assert torch.isfinite(result.action_preds[batch["attention_mask"].bool()]).all()


# offsets


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("span", [(-1, 1), (0, 16), (-8, -3), (5, 9), (-60, 60), (1, 2), (100, 101)])
def test_offsets_give_a_column_its_own_steps(dataset, episodes, preset, span):
    batch, windows = first_batch(dataset, preset=preset, offsets={"actions": span})
    lengths = [len(episode["actions"]) for episode in episodes]
    valid = ref.valid_places(lengths, windows, *span)
    expected = ref.right_padded(column(episodes, "actions"), windows, *span)
    if preset == "decision_transformer":
        expected[~valid] = -10
    assert np.array_equal(batch["actions"].numpy(), expected)
    assert batch["actions_mask"].dtype == torch.bool
    assert np.array_equal(batch["actions_mask"].numpy(), valid)
    # Both ends of episodes are among the windows.
    assert {0} < {start for _, start, _ in windows}
    assert {start - lengths[episode] for episode, start, _ in windows} >= {-1, -2}


def test_offsets_leave_the_other_columns_and_the_windows_alone(dataset):
    plain, windows = first_batch(dataset)
    batch, same = first_batch(dataset, offsets={"observations": (-1, 1), "actions": (0, 16)})
    assert same == windows
    assert set(batch) - set(plain) == {"observations_mask", "actions_mask"}
    assert batch["observations"].shape == (64, 2, 4)
    assert batch["actions"].shape == (64, 16, 3)
    for key in plain:
        assert key in ("observations", "actions") or torch.equal(batch[key], plain[key])


def test_offsets_and_normalisation_together(dataset, episodes):
    batch, windows = first_batch(dataset, offsets={"observations": (-2, 3)}, normalize={"observations": (1.0, 4.0)})
    raw = [episode["observations"].astype(np.float64) for episode in episodes]
    expected = ref.right_padded([(values - 1.0) / 4.0 for values in raw], windows, -2, 3)
    np.testing.assert_allclose(batch["observations"].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "span", [(0, 0), (3, 2), (0,), (0, 1, 2), 5, None, (0.0, 2.0), ("0", "2"), (False, True), (-(2**40), 0), "01"]
)
def test_bad_offsets_are_refused(dataset, span):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, offsets={"actions": span})


def test_offsets_of_a_column_outside_the_batch_are_refused(dataset):
    for options in ({"columns": ["rewards"]}, {"preset": "decision_transformer"}):
        with pytest.raises(InvalidArgumentError) as error:
            SequenceLoader(dataset, offsets={"terminated": (0, 2)}, **options)
        assert error.value.column == "terminated"


# normalize


def normalised(episodes, name, mean, std):
    return [(episode[name].astype(np.float64) - mean) / std for episode in episodes]


@pytest.mark.parametrize("normalize", [True, "observations", ["observations"], ("observations", "actions", "rewards")])
def test_normalising_by_the_statistics_of_the_data(dataset, episodes, normalize):
    names = ("observations",) if normalize is True or normalize == "observations" else tuple(normalize)
    batch, windows = first_batch(dataset, normalize=normalize)
    plain, _ = first_batch(dataset)
    for name in ("observations", "actions", "rewards"):
        if name not in names:
            assert torch.equal(batch[name], plain[name])
            continue
        every = np.concatenate(column(episodes, name)).astype(np.float64)
        rows = normalised(episodes, name, every.mean(0), every.std(0))
        expected = ref.right_padded(rows, windows, 0, CONTEXT)
        assert batch[name].dtype == torch.float32
        np.testing.assert_allclose(batch[name].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_normalising_by_given_numbers(dataset, episodes):
    mean, std = [1.0, 2.0, 3.0, 4.0], np.array([0.5, 1.0, 2.0, 4.0])
    batch, windows = first_batch(dataset, normalize={"observations": (mean, std), "rewards": (10.0, 5.0)})
    for name, center, spread in (("observations", mean, std), ("rewards", 10.0, 5.0)):
        expected = ref.right_padded(normalised(episodes, name, center, spread), windows, 0, CONTEXT)
        np.testing.assert_allclose(batch[name].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_normalising_for_decision_transformer_scales_what_the_preset_scales(dataset, episodes):
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


@pytest.mark.parametrize("constant", [0.0, 3.0, 0.1, -123456.7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_element_becomes_zero(make_dataset, episodes, constant, dtype):
    """Also where rounding leaves it a deviation that is not quite 0."""
    changed = [{**e, "observations": e["observations"].astype(dtype)} for e in episodes]
    for episode in changed:
        episode["observations"][:, 1] = constant
    batch, _ = first_batch(make_dataset(changed), normalize=True)
    assert batch["observations"][..., 1].abs().max() < 1e-9
    assert (batch["observations"][..., 0] != 0).any()
    assert all(torch.isfinite(tensor).all() for tensor in batch.values())


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float16", "float64"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_normalising_other_dtypes_and_matrices(make_dataset, episodes, dtype, shape):
    changed = [{**e, "observations": (e["observations"] * 3 + 50).astype(dtype).reshape(-1, *shape)} for e in episodes]
    batch, windows = first_batch(make_dataset(changed), normalize="observations")
    every = np.concatenate(column(changed, "observations")).astype(np.float64)
    axes = 0 if len(shape) == 1 else None  # a matrix has one mean for all its elements
    rows = normalised(changed, "observations", every.mean(axes), every.std(axes))
    expected = ref.right_padded(rows, windows, 0, CONTEXT)
    assert batch["observations"].dtype == (torch.float64 if dtype == "float64" else torch.float32)
    np.testing.assert_allclose(batch["observations"].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_true_means_float_observations_alone(make_dataset, episodes):
    changed = [
        {**e, "observations.image": (e["observations"] * 9).astype(np.uint8), "observations.depth": e["observations"]}
        for e in episodes
    ]
    dataset = make_dataset(changed)
    plain, _ = first_batch(dataset)
    batch, _ = first_batch(dataset, normalize=True)
    changed_keys = {key for key in batch if not torch.equal(batch[key], plain[key])}
    assert changed_keys == {"observations", "observations.depth"}
    unchanged, _ = first_batch(dataset, normalize=False)
    assert all(torch.equal(unchanged[key], plain[key]) for key in plain)


@pytest.mark.parametrize(
    "normalize",
    ["terminated", {"terminated": (0.0, 1.0)}, {"observations": ([0, 0], 1)}, {"observations": 3.0},
     {"observations": (0, 1, 2)}, {"observations": ("a", "b")}, 5],
)  # fmt: skip
def test_bad_normalisation_is_refused(dataset, normalize):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, normalize=normalize)


def test_columns_is_a_list_not_a_name(dataset):
    with pytest.raises(InvalidArgumentError, match="list of names"):
        SequenceLoader(dataset, columns="rewards")


def test_returns_to_go_of_a_long_episode_are_summed_in_float64(make_dataset):
    """In float32 the sum of 3,000 small rewards after a large one is off by a hundred times the tolerance."""
    rewards = np.full(3000, 0.1, np.float32)
    rewards[-1] = 1e5
    episode = {"observations": np.zeros((3000, 1), np.float32), "actions": np.zeros((3000, 1), np.float32)}
    dataset = make_dataset([{**episode, "rewards": rewards}])
    batch, windows = first_batch(dataset, preset="decision_transformer", context=5)
    exact = np.array(ref.returns_to_go(rewards))
    for row, (_, start, length) in enumerate(windows):
        got = batch["returns_to_go"][row, 5 - length :, 0].numpy()
        np.testing.assert_allclose(got, exact[start : start + length] / 1000, rtol=2e-7)


def test_an_opened_folder_gives_what_the_dataset_gave(dataset):
    again = gear_data.open(dataset.path)
    one, other = first_batch(dataset)[0], first_batch(again)[0]
    assert all(torch.equal(one[key], other[key]) for key in one)
