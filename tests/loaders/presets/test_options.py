"""Every field of a batch format changes only the keys that it describes."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from gear_data import BatchOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.loaders.presets.batch_format import Tokens, Transitions
from gear_data.loaders.presets.outputs import PRESETS, BatchFormat, resolve_preset
from tests.support.feed import batches as feed_batches
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref

CONTEXT = 12
first_batch = functools.partial(feed_batches.first_batch, context=CONTEXT, batch_size=32)
Windows = list[ref.Window]


def differing(one, other):
    """Keys of either batch that the other has not, or has otherwise."""

    def same(a, b):
        return a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    return {key for key in {*one, *other} if key not in one or key not in other or not same(one[key], other[key])}


def padding_of(tensor, windows):
    """The padding of a right-padded tensor [B, K, ...]."""
    return torch.cat([tensor[row, n:] for row, (_, _, n) in enumerate(windows)])


def valid_of(tensor, windows):
    return torch.cat([tensor[row, :n] for row, (_, _, n) in enumerate(windows)])


@dataclass(frozen=True)
class Change:
    """One changed field: the keys that differ from `base`, and a check of them."""

    preset: str
    value: Any
    keys: set[str]
    check: Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor], Windows], bool]
    base: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def rolled(plain, batch, windows):
    return all(
        torch.equal(batch[key][row], plain[key][row].roll(CONTEXT - n, 0))
        for key in ("states", "actions", "returns", "mask")
        for row, (_, _, n) in enumerate(windows)
    ) and all(
        batch["time_steps"][row].tolist() == list(range(start + n - CONTEXT, start + n))
        for row, (_, start, n) in enumerate(windows)
    )


def only_padding(key, number):
    def check(plain, batch, windows):
        return torch.equal(valid_of(plain[key], windows), valid_of(batch[key], windows)) and bool(
            (padding_of(batch[key], windows) == torch.as_tensor(number, dtype=batch[key].dtype)).all()
        )

    return check


def cast(*keys, dtype):
    def check(plain, batch, windows):
        return all(batch[key].dtype == dtype and torch.equal(plain[key].to(dtype), batch[key]) for key in keys)

    return check


def moved(old, new):
    return lambda plain, batch, windows: torch.equal(plain[old], batch[new])


def close(key, factor):
    return lambda plain, batch, windows: torch.allclose(batch[key], plain[key] * factor, rtol=1e-5, atol=1e-7)


NORMALIZED = {"normalize": {"observations": (1.0, 2.0)}}

CHANGES: dict[str, Change] = {
    "name": Change("corl", "other", set(), lambda *_: True),
    "required_columns": Change("corl", ["observations", "actions"], {"returns"}, lambda p, b, w: "returns" not in b),
    "roles": Change("jat", ["action"], {"observations"}, lambda p, b, w: "observations" not in b),
    "keys": Change("corl", {"observations": "obs"}, {"states", "obs"}, moved("states", "obs")),
    "source_names": Change("jat", False, {"discrete_actions", "actions"}, moved("discrete_actions", "actions")),
    "sequences": Change(
        "lerobot", ["action", "observation"], {"observation.state", "observation.state_is_pad"},
        lambda p, b, w: torch.equal(p["observation.state"], b["observation.state"][:, 0])
        and torch.equal(b["action_is_pad"], b["observation.state_is_pad"]),
    ),
    "previous_step_columns": Change(
        "jat", [], {"rewards"},
        lambda p, b, w: all(
            torch.equal(p["rewards"][r, 1:n], b["rewards"][r, : n - 1]) for r, (_, _, n) in enumerate(w)
        ),
    ),
    "side": Change("corl", "left", {"states", "actions", "returns", "mask", "time_steps"}, rolled),
    "padding": Change(
        "corl", "edge", {"states", "actions", "returns"},
        lambda p, b, w: all(
            bool((b[key][r, n:] == p[key][r, n - 1]).all()) and torch.equal(b[key][r, :n], p[key][r, :n])
            for key in ("states", "actions", "returns") for r, (_, _, n) in enumerate(w)
        ),
    ),
    "fill": Change("corl", {"actions": -10}, {"actions"}, only_padding("actions", -10)),
    "normalize_padding": Change(
        "corl", True, {"states"}, only_padding("states", -1.0 / (2.0 + 1e-6)), options=NORMALIZED
    ),
    "std_epsilon": Change("corl", 1.0, {"states"}, close("states", (2.0 + 1e-6) / 3.0), options=NORMALIZED),
    "return_scale": Change("corl", 1.0, {"returns"}, close("returns", 1000.0)),
    "dtype": Change(
        "corl", "float64", {"states", "actions", "returns"},
        lambda p, b, w: cast("states", "actions", dtype=torch.float64)(p, b, w) and b["returns"].dtype == torch.float64,
    ),
    "cast_integers": Change(
        "corl", False, {"actions"},
        lambda p, b, w: b["actions"].dtype == torch.int64 and torch.equal(b["actions"].float(), p["actions"]),
    ),
    "vectors": Change("corl", False, set(), lambda *_: True),
    "unsqueeze_last": Change(
        "d3rlpy", ["actions", "rewards"], {"returns_to_go", "terminals"},
        lambda p, b, w: torch.equal(p["returns_to_go"][..., 0], b["returns_to_go"]) and b["rewards"].shape[2:] == (1,),
    ),
    "mask_key": Change("corl", "valid", {"mask", "valid"}, moved("mask", "valid")),
    "mask_dtype": Change("corl", "bool", {"mask"}, cast("mask", dtype=torch.bool)),
    "mask_valid": Change("corl", False, {"mask"}, lambda p, b, w: torch.equal(b["mask"], 1.0 - p["mask"])),
    "column_mask": Change(
        "corl", "valid({key})", {"actions_mask", "valid(actions)"}, moved("actions_mask", "valid(actions)"),
        options={"offsets": {"actions": (-1, 2)}},
    ),
    "timesteps_key": Change("corl", None, {"time_steps"}, lambda p, b, w: "time_steps" not in b),
    "timesteps_dtype": Change("corl", "float32", {"time_steps"}, cast("time_steps", dtype=torch.float32)),
    "timesteps_origin": Change(
        "corl", 5, {"time_steps"}, lambda p, b, w: torch.equal(p["time_steps"] + 5, b["time_steps"])
    ),
    "timesteps_padding": Change("corl", "fill", {"time_steps"}, only_padding("time_steps", 0)),
    "loss_weight": Change("jat", 50.0, {"loss_weight"}, lambda p, b, w: bool((b["loss_weight"] == 50).all())),
    "tokens": Change(
        "gato", None, {"tokens", "target_mask", "attention_mask", "observations", "actions"},
        lambda p, b, w: b["observations"].shape == (32, CONTEXT, 4) and "tokens" not in b,
    ),
    "facts": Change(
        "corl", {"length": "steps", "task": "text"}, {"steps"},
        lambda p, b, w: b["steps"].tolist() == [[7, 1, 23, 40, 2, 20, 19, 21, 5][episode] for episode, _, _ in w],
    ),
    # The loader has a context of its own.
    "context": Change("corl", 3, set(), lambda *_: True),
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Continuous observations and one discrete action a step."""
    rng = np.random.default_rng(3)
    episodes = feed_data.locomotion([7, 1, 23, 40, 2, 20, 19, 21, 5], seed=12)
    for episode in episodes:
        del episode["actions"]
        episode["discrete_actions"] = rng.integers(0, 18, len(episode["rewards"]))
    return feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("played") / "dataset")


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_changes_only_the_keys_it_describes(played, name):
    change = CHANGES[name]
    plain, windows = first_batch(played, preset=change.preset, **change.options)
    options = {**change.options, "preset_options": {name: change.value}}
    batch, same = first_batch(played, preset=change.preset, **options)
    assert same == windows
    assert differing(plain, batch) == change.keys
    assert change.check(plain, batch, windows)
    replaced = dataclasses.replace(PRESETS[change.preset], **{name: getattr(resolved(change, name), name)})
    assert not differing(batch, first_batch(played, preset=replaced, **change.options)[0])


def resolved(change, name):
    return resolve_preset(change.preset, {name: change.value})


def test_every_field_is_tested():
    # test_transitions.py tests the field `transitions`: it changes windows, too. video/test_batches.py tests cameras,
    # and video/test_policies.py the fields of policies.
    policies = {"mapped", "widths", "cameras", "camera_mask", "camera_key", "history", "chunks", "element_mask", "clip"}
    policies |= {"letterbox", "goals", "keep_image_prob"}
    assert {*CHANGES, *policies, "transitions", "camera_frames"} == {
        item.name for item in dataclasses.fields(BatchFormat)
    }


def test_vectors_refuses_images(make_dataset, episodes):
    dataset = make_dataset([{**e, "observations": e["observations"].reshape(-1, 2, 2)} for e in episodes])
    with pytest.raises(InvalidArgumentError) as error:
        first_batch(dataset, preset="corl")
    assert error.value.column == "observations"
    batch, _ = first_batch(dataset, preset="corl", preset_options={"vectors": False})
    assert batch["states"].shape == (32, CONTEXT, 2, 2)


@pytest.mark.parametrize("name", PRESETS)
def test_batch_formats_with_options_survive_json(name):
    convention = resolve_preset(name, {"side": "left", "fill": {"rewards": 2}})
    assert convention.fill == {**PRESETS[name].fill, "rewards": 2.0}
    data = json.loads(json.dumps(convention.to_json()))
    assert data["name"] == name and data["side"] == "left"
    tokens, transitions = data.pop("tokens"), data.pop("transitions")
    again = BatchFormat(**{key: tuple(v) if isinstance(v, list) else v for key, v in data.items()})
    if tokens is not None:
        tokens = Tokens(**{**tokens, "companded": tuple(tokens["companded"])})
    if transitions is not None:
        again = dataclasses.replace(again, sequences=(), transitions=Transitions(**transitions))
    assert dataclasses.replace(again, tokens=tokens) == convention


def test_unknown_fields_list_the_known_ones(dataset):
    with pytest.raises(UnknownNameError) as error:
        SequenceLoader(dataset, preset="corl", batch=BatchOptions(preset_options={"sidee": "left"}))
    assert "did you mean 'side'" in str(error.value)
    assert all(item.name in str(error.value) for item in dataclasses.fields(BatchFormat))
    with pytest.raises(UnknownNameError, match="did you mean 'actions'"):
        SequenceLoader(dataset, preset="corl", batch=BatchOptions(preset_options={"fill": {"acton": 1}}))
    with pytest.raises(UnknownNameError, match="did you mean 'bins'"):
        SequenceLoader(dataset, preset="gato", batch=BatchOptions(preset_options={"tokens": {"bin": 2}}))
    with pytest.raises(UnknownNameError, match="action"):
        SequenceLoader(dataset, preset="jat", batch=BatchOptions(preset_options={"roles": ["actions"]}))


@pytest.mark.parametrize(
    "options",
    [
        {"side": "up"},
        {"side": 1},
        {"padding": "extrapolate"},
        {"dtype": "float16"},
        {"mask_dtype": "f4"},
        {"fill": 3},
        {"mask_valid": 1},
        {"timesteps_origin": 0.5},
        {"return_scale": "1"},
        {"return_scale": True},
        {"required_columns": "actions"},
        {"required_columns": [1]},
        {"mask_key": 3},
        {"tokens": 3},
        {"tokens": {"bins": 1}},
        {"tokens": {"mu": 0}},
        {"sequences": ["action"]},
        {"name": None},
        {"timesteps_padding": "edge"},
        {"timesteps_dtype": "bool"},
        {"fill": {"actions": "0"}},
        {"keys": {"actions": 0}},
        "side",
        5,
        0,
    ],
)
def test_options_of_the_wrong_kind_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        resolve_preset("gato", options)


@pytest.mark.parametrize("preset", [None, 3, PRESETS, Tokens()])
def test_a_preset_is_a_name_or_a_batch_format(preset):
    with pytest.raises(InvalidArgumentError, match="decision_transformer"):
        resolve_preset(preset)


@pytest.mark.parametrize(
    ("dtype", "number", "is_held"),
    [("uint8", 200, True), ("int64", -100, True), ("float32", 0.5, True), ("uint8", -100, False), ("uint8", 300, False),
     ("int64", 0.5, False), ("int64", float("nan"), False), ("int64", 1e30, False)],
)  # fmt: skip
def test_padding_has_the_number_that_was_given(make_dataset, episodes, dtype, number, is_held):
    """-100 marks padding for torch's losses. As uint8 it would be 156, an action."""
    dataset = make_dataset([{**e, "actions": np.abs(e["actions"] * 9).astype(dtype)} for e in episodes])
    options = {"preset_options": {"fill": {"actions": number}}}
    if is_held:
        batch, windows = first_batch(dataset, **options)
        assert (padding_of(batch["actions"], windows) == number).all()
        return
    with pytest.raises(InvalidArgumentError, match=f"and the batch has {dtype}") as error:
        first_batch(dataset, **options)
    assert error.value.column == "actions"


def test_a_mask_of_elements_needs_no_key_of_the_actions(dataset):
    own = BatchFormat("own", ("actions",), mapped=True, element_mask="action_mask")
    batch, windows = first_batch(dataset, preset=own)
    assert batch["action_mask"].shape == batch["actions"].shape
    assert batch["action_mask"][..., 0].sum(1).tolist() == [n for _, _, n in windows]


@pytest.mark.parametrize(("preset", "key"), [("openpi", "actions"), ("groot", "action"), ("octo", "action")])
def test_an_empty_key_leaves_the_actions_out(make_dataset, episodes, preset, key):
    """Another column has their key, and the mask of the elements is the mask of this column."""
    dataset = make_dataset([{**e, "actions.other": e["actions"][:, :2]} for e in episodes])
    keys = {"actions": "", "actions.other": key}
    batch, windows = first_batch(dataset, preset=preset, preset_options={"keys": keys})
    assert not {"", "_is_pad", "actions_mask", "actions.other"} & {*batch}
    alone, _ = first_batch(make_dataset([{**e, "actions": e["actions"][:, :2]} for e in episodes]), preset=preset)
    assert not differing(alone, batch)
    if preset == "groot":
        mask = batch["action_mask"]
        assert mask.shape == batch["action"].shape
        assert mask.sum((1, 2)).tolist() == mask[..., :2].sum((1, 2)).tolist() == [2 * n for _, _, n in windows]
    if preset == "octo":
        assert batch["action_pad_mask"].shape == batch["action"].shape
