"""Names, dtypes, keys and columns of presets; `raw` against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnknownNameError
from gear_data.loaders.presets.outputs import PRESETS, BatchFormat, BatchRequest, batch_outputs, text_columns
from gear_data.schema import ColumnSpec, Schema
from tests.support.feed import reference as ref
from tests.support.feed.batches import CONTEXT, column, first_batch

#: Batches of transitions have one step: test_transitions.py.
every_preset = pytest.mark.parametrize("preset", [name for name in PRESETS if name != "transitions"])


#: Keys of float columns of the dataset of these tests.
FLOATS = {
    "raw": {"observations", "actions", "rewards", "returns_to_go"},
    "decision_transformer": {"states", "actions", "rewards", "returns_to_go"},
    "corl": {"states", "actions", "returns"},
    "d3rlpy": {"observations", "actions", "rewards", "returns_to_go", "terminals"},
    "jat": {"observations", "actions", "rewards"},
    "lerobot": {"observation.state", "action", "next.reward", "returns_to_go"},
    "gato": set(),
    "openpi": {"state", "actions"},
    "octo": {"observation.proprio", "action"},
    "groot": {"state", "action"},
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


def test_raw_gives_the_requested_columns(dataset):
    whole, _ = first_batch(dataset)
    batch, _ = first_batch(dataset, columns=["rewards", "observations"])
    assert set(batch) == {"rewards", "observations", "mask", "timesteps", "valid_count"}
    assert all(torch.equal(batch[key], whole[key]) for key in batch)
    empty, _ = first_batch(dataset, columns=[])
    assert set(empty) == {"mask", "timesteps", "valid_count"}


def test_raw_refuses_a_column_with_the_name_of_a_key_of_every_batch(make_dataset, episodes):
    dataset = make_dataset([{**episode, "mask": episode["rewards"]} for episode in episodes])
    with pytest.raises(InvalidArgumentError) as error:
        SequenceLoader(dataset)
    assert error.value.column == "mask"
    assert "mask" in first_batch(dataset, columns=["rewards"])[0]


@pytest.mark.parametrize("columns", [["rewards", "rewards"], ["valid_count"]])
def test_no_two_arrays_share_a_key(make_dataset, episodes, columns):
    dataset = make_dataset([{**episode, "valid_count": episode["rewards"]} for episode in episodes])
    for preset in PRESETS:
        with pytest.raises(InvalidArgumentError) as error:
            SequenceLoader(dataset, preset=preset, columns=columns)
        assert error.value.column == columns[0]
    dataset = make_dataset([{**episode, "masks": np.ones_like(episode["rewards"])} for episode in episodes])
    with pytest.raises(InvalidArgumentError, match="the key 'masks'"):
        SequenceLoader(dataset, preset="transitions", columns=["masks"])


# Columns of variable length.


def test_text_columns_are_named_and_are_no_outputs():
    schema = Schema(
        (
            ColumnSpec("observations.text", "string", source="text_observations"),
            ColumnSpec("observations.discrete", "int64", (3,), source="discrete_observations"),
            ColumnSpec("actions", "int64", source="discrete_actions"),
            ColumnSpec("rewards", "float32"),
            ColumnSpec("task", "string"),
        )
    )

    def request(columns=None, offsets=None):
        return BatchRequest(schema, CONTEXT, columns, offsets or {}, {}, None)

    assert text_columns("jat", request()) == {"observations.text": "text_observations"}
    assert text_columns("gato", request(("task",))) == {"observations.text": "observations.text", "task": "task"}
    assert text_columns("raw", request()) == {"observations.text": "observations.text", "task": "task"}
    assert text_columns("raw", request(("rewards",))) == {}
    assert text_columns("lerobot", request()) == {"observations.text": "text_observations", "task": "task"}
    for preset in ("raw", "jat", "gato", "lerobot"):
        keys = {output.key for output in batch_outputs(preset, request())}
        assert keys and not keys & {"observations.text", "text_observations", "task"}
    with pytest.raises(InvalidArgumentError) as error:
        batch_outputs("raw", request(offsets={"task": range(2)}))
    assert error.value.column == "task"
    with pytest.raises(InvalidArgumentError) as following:
        batch_outputs("raw", request(("next_task",)))
    assert following.value.column == "task"


@pytest.mark.parametrize("preset", ["decision_transformer", "corl", "d3rlpy", "jat", "lerobot", "gato"])
def test_a_column_that_a_preset_needs_is_named(make_dataset, episodes, preset):
    dataset = make_dataset([{"observations": episode["observations"]} for episode in episodes])
    with pytest.raises(MissingColumnError) as error:
        SequenceLoader(dataset, preset=preset)
    assert error.value.column == "actions"
    assert f"'{preset}'" in error.value.message and "observations" in error.value.hint


def test_a_custom_batch_format(dataset, episodes):
    mine = BatchFormat(
        name="mine", required_columns=("actions",), keys={"actions": "a"}, mask_key="ok", timesteps_key=None
    )
    batch, windows = first_batch(dataset, preset=mine)
    expected = ref.right_padded([episode["actions"] for episode in episodes], windows, 0, CONTEXT)
    assert set(batch) == {"a", "ok", "valid_count"}
    assert np.array_equal(batch["a"].numpy(), expected)
