"""Groups of arguments: they check themselves, and the loader names the place of an argument that it lacks."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from typing import Any, get_args

import numpy as np
import pytest

import gear_data
from gear_data import SequenceLoader, WindowOptions
from gear_data.errors import GearError, InvalidArgumentError, StateMismatchError, UnknownArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.arguments.options import GROUPS, MOVED
from gear_data.loaders.presets.registry import PRESETS
from gear_data.selection.samplers import SAMPLERS
from gear_data.words import PresetName, SamplerName
from tests.support.feed.data import convert_episodes, locomotion

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
#: Group -> field -> another value. With it, `loader.spec()` differs; and states are refused, if windows depend on it.
OTHERS: dict[str, dict[str, Any]] = {
    "windows": {"stride": 2, "anchor": "end", "short": False},
    "returns": {"n_step": 2, "discount": 0.5},
    "batch": {
        "dtype": "float16", "preset_options": {"mask_key": "valid"}, "stack": {"positions": ["observations"]},
        "augment": {"observations.image": gear_data.RandomShift(1)}, "window_ids": True,
    },
    "video": {}, "execution": {},
}  # fmt: skip
#: Fields of which states are refused.
OF_WINDOWS = {"stride", "anchor", "short", "discount"}
#: Fields on which batches do not depend; on `selection` and `backend` only those of nodes and of cameras do.
OF_NO_BATCH = {
    "selection", "threads", "cache_bytes", "backend", "sm_budget", "pin_memory", "batches_at_once",
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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """A dataset with images."""
    episodes = locomotion([7, 3, 12], seed=1)
    for episode in episodes:
        episode["observations.image"] = np.zeros((len(episode["rewards"]), 4, 4, 3), np.uint8)
    return convert_episodes(episodes, tmp_path_factory.mktemp("pictures") / "dataset")


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in OTHERS.items() for name in names])
def test_batches_that_differ_have_another_specification(pictures: gear_data.Dataset, group: str, name: str) -> None:
    loader = SequenceLoader(pictures, 4, context=3)
    other = SequenceLoader(pictures, 4, context=3, **{group: GROUPS[group](**{name: OTHERS[group][name]})})
    assert json.dumps(other.spec()) != json.dumps(loader.spec()), "add it to loader_identity or loader_spec"
    if name in OF_WINDOWS:
        with pytest.raises(StateMismatchError):
            other.load_state_dict(loader.state_dict())
    else:
        other.load_state_dict(loader.state_dict())


def test_every_field_has_another_value() -> None:
    fields = {each.name for kind in GROUPS.values() for each in dataclasses.fields(kind)}
    assert {name for names in OTHERS.values() for name in names} == fields - OF_NO_BATCH, "add it to OTHERS"


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
