"""Names, dtypes and keys in every preset, and preset `raw` in plain loops."""

from __future__ import annotations

import feed_reference as ref
import numpy as np
import pytest
import torch

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.loaders.presets import PRESETS

CONTEXT = 20
every_preset = pytest.mark.parametrize("preset", PRESETS)


def first_batch(dataset, **options):
    options = {"batch_size": 64, "context": CONTEXT, "prefetch": 0, "seed": 4, **options}
    loader = SequenceLoader(dataset, **options)
    return next(iter(loader)), ref.as_windows(loader.windows(0))


def column(episodes, name):
    return [episode[name] for episode in episodes]


#: Keys of float columns of the dataset of these tests.
FLOATS = {
    "raw": {"observations", "actions", "rewards", "returns_to_go"},
    "decision_transformer": {"states", "actions", "rewards", "returns_to_go"},
    "corl": {"states", "actions", "returns"},
    "d3rlpy": {"observations", "actions", "rewards", "returns_to_go", "terminals"},
    "jat": {"observations", "actions", "rewards"},
    "lerobot": {"observation.state", "action", "next.reward", "returns_to_go"},
    "gato": set(),
}


@every_preset
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", torch.float32, torch.bfloat16])
def test_dtype_changes_float_columns_and_nothing_else(dataset, preset, dtype):
    plain, _ = first_batch(dataset, preset=preset)
    batch, _ = first_batch(dataset, preset=preset, dtype=dtype)
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert set(batch) == set(plain)
    for key, values in plain.items():
        if key in FLOATS[preset]:
            assert batch[key].dtype == wanted, key
            torch.testing.assert_close(batch[key], values.to(wanted), rtol=1e-6, atol=0)
        elif isinstance(values, list):
            assert all(torch.equal(one, other) for one, other in zip(batch[key], values, strict=True)), key
        else:
            assert batch[key].dtype == values.dtype, key
            assert torch.equal(batch[key], values), key


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
