"""Groups of arguments: they check themselves, and the loader names the place of an argument that it lacks."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any, get_args

import numpy as np
import pytest

import gear_data
from gear_data import SequenceLoader, WindowOptions
from gear_data.errors import GearError, InvalidArgumentError, UnknownArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.arguments.options import GROUPS, MOVED
from gear_data.loaders.presets.registry import PRESETS
from gear_data.selection.samplers import SAMPLERS
from gear_data.words import PresetName, SamplerName

#: Options that only a mixture's dataset has.
OF_A_DATASET = {"rename", "embodiment", "fps"}
ARGUMENTS = [each.name for each in dataclasses.fields(LoaderConfig) if each.init and each.name not in OF_A_DATASET]
#: Group -> field -> values that it refuses.
REFUSED: dict[str, dict[str, list[Any]]] = {
    "windows": {"stride": [0, 1.5, True], "anchor": ["middle", None], "short": [1], "selection": ["local"]},
    "returns": {"n_step": [0, 2.5], "discount": [1.5, "1", True]},
    "batch": {
        "dtype": ["int8", float], "preset_options": [["side"], {"size": 3}], "stack": [["a"], {"a": "b"}],
        "augment": [4], "window_ids": [1],
    },
    "video": {"threads": [0, 1.5], "cache_bytes": [-1], "backend": ["opencv"]},
    "execution": {
        "backend": ["gpu"], "sm_budget": [0, 1.5, "all"], "pin_memory": [1], "batches_at_once": [0, 1.5],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [(group, name, value) for group, names in REFUSED.items() for name, values in names.items() for value in values],
)
def test_values_out_of_range_are_refused(dataset: gear_data.Dataset, group: str, name: str, value: Any) -> None:
    with pytest.raises(GearError, match=name.removesuffix("_options")) as error:
        SequenceLoader(dataset, **{group: GROUPS[group](**{name: value})})
    assert error.value.hint or "not " in str(error.value) or str(value) in str(error.value)


def test_every_field_has_a_value_that_it_refuses() -> None:
    assert {group: {*names} for group, names in REFUSED.items()} == {
        group: {each.name for each in dataclasses.fields(kind)} for group, kind in GROUPS.items()
    }


@pytest.mark.parametrize("kind", GROUPS.values(), ids=GROUPS)
def test_groups_are_public_frozen_values(kind: type[Any]) -> None:
    assert getattr(gear_data, kind.__name__) is kind
    group = kind()
    assert group == kind() and pickle.loads(pickle.dumps(group)) == group
    name = dataclasses.fields(kind)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(group, name, getattr(group, name))
    with pytest.raises(TypeError, match="positional"):
        kind(getattr(group, name))


@pytest.mark.parametrize("name", MOVED)
def test_the_place_of_a_moved_argument_is_named(dataset: gear_data.Dataset, name: str) -> None:
    with pytest.raises(UnknownArgumentError) as error:
        SequenceLoader(dataset, **{name: 1})
    assert str(error.value) == f"SequenceLoader has no argument '{name}'\n  give {MOVED[name]}"
    given = MOVED[name].split("=")[0]
    assert given in ARGUMENTS


def test_the_closest_argument_is_named(dataset: gear_data.Dataset) -> None:
    with pytest.raises(UnknownArgumentError, match="did you mean 'batch_size'"):
        SequenceLoader(dataset, bach_size=3)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("value", [None, {"stride": 2}, WindowOptions])
def test_other_values_than_groups_are_refused(dataset: gear_data.Dataset, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} must be {GROUPS[name].__name__}, not "):
        SequenceLoader(dataset, **{name: value})


def test_the_signature_has_the_arguments_of_the_configuration() -> None:
    parameters = inspect.signature(SequenceLoader).parameters
    assert sorted(parameters) == sorted([*ARGUMENTS, "unknown"])
    positional = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == ["dataset", "batch_size"]


def test_types_list_the_words_of_the_registries() -> None:
    assert get_args(PresetName) == tuple(PRESETS)
    assert set(get_args(SamplerName)) == {name for name, sampler in SAMPLERS.items() if sampler is not None}


def test_numpy_integers_are_integers_of_the_state(dataset: gear_data.Dataset) -> None:
    returns = gear_data.ReturnOptions(n_step=np.int64(2), discount=np.float32(0.5))
    loader = SequenceLoader(dataset, np.int32(4), context=np.int64(3), seed=np.uint64(7), returns=returns)
    assert all(
        type(value) in (int, float) for value in (loader.batch_size, loader.context, loader.seed, returns.n_step)
    )
    assert loader.spec()["discount"] == 0.5
