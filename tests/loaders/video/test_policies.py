"""Presets of policies, with cameras, against loops written from the policies' own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data import Mixture, SequenceLoader, nested_batch
from gear_data.errors import InvalidArgumentError, MissingColumnError
from gear_data.loaders.decoding.augmenter import Augmenter
from gear_data.loaders.presets import registry
from gear_data.loaders.video.letterbox import letterbox
from tests.support.cameras.filmed import FRONT, WRIST, Filmed
from tests.support.feed import policies
from tests.support.feed.arguments import grouped
from tests.support.feed.data import convert_episodes, locomotion

OPENPI = {"keys": {FRONT: "image.base_0_rgb", WRIST: "image.left_wrist_0_rgb"}}
OCTO = {"keys": {FRONT: "observation.image_primary"}}
#: Preset -> its options for the filmed dataset.
PRESETS: dict[str, dict[str, Any]] = {"openpi": OPENPI, "octo": OCTO, "groot": {}}


def load(dataset: Any, preset: str, **options: Any) -> SequenceLoader:
    arguments = {"framework": "numpy", "seed": 5, "preset_options": PRESETS[preset], **options}
    return SequenceLoader(dataset, 7, **grouped(preset=preset, **arguments))


def episodes_of(dataset: gear_data.Dataset, filmed: Filmed | None = None) -> list[dict[str, npt.NDArray[Any]]]:
    """Returns the columns of each episode, with its frames."""
    found = []
    for number, episode in enumerate(dataset):
        columns = {name: episode[name] for name in ("observations", "actions")}
        if filmed is not None:
            columns |= {camera: filmed.frames[camera][number] for camera in (FRONT, WRIST)}
        found.append(columns)
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in tree.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return result


def assert_equals(batch: Mapping[str, Any], expected: Mapping[str, Any], *, pixels: bool = False) -> None:
    """Asserts that batches are equal within rounding. pixels: whether pixels may differ by one."""
    for key, values in flat(expected).items():
        assert batch[key].dtype == values.dtype, key
        assert batch[key].shape == values.shape, key
        # Pillow rounds after each of two passes.
        atol = 1 if pixels and values.dtype == np.uint8 else 2e-6
        np.testing.assert_allclose(
            batch[key].astype(np.float64), values.astype(np.float64), rtol=2e-6, atol=atol, err_msg=key
        )


def windows_of(loader: SequenceLoader, step: int) -> list[tuple[int, int]]:
    windows = loader.windows(step)
    return list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))


def statistics(dataset: gear_data.Dataset) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Returns the mean and deviation of both columns, by NumPy."""
    episodes = episodes_of(dataset)
    every = {name: np.concatenate([e[name] for e in episodes]).astype(np.float64) for name in episodes[0]}
    return {name: (values.mean(0), values.std(0)) for name, values in every.items()}


@pytest.mark.parametrize("context", [1, 5, 50])
def test_openpi(filmed: Filmed, dataset: gear_data.Dataset, context: int) -> None:
    loader = load(dataset, "openpi", context=context, normalize=statistics(dataset))
    for step, batch in enumerate(islice(loader, 3)):
        expected = policies.openpi(
            episodes_of(dataset, filmed), windows_of(loader, step), horizon=context, width=32,
            statistics=statistics(dataset), cameras={"base_0_rgb": FRONT, "left_wrist_0_rgb": WRIST},
        )  # fmt: skip
        assert_equals(batch, expected, pixels=True)
        assert {*batch} == {*flat(expected), "actions_is_pad", "valid_count"}
    assert {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"} == {*nested_batch(batch)["image"]}
    assert batch["image_mask.base_0_rgb"].all() and not batch["image_mask.right_wrist_0_rgb"].any()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"preset_options": {**OPENPI, "letterbox": False}}, [(48, 64), (32, 48)]),
        ({"resize": {FRONT: (30, 20, "letterbox")}}, [(30, 20), (224, 224)]),
        ({"resize": [100, 90, "letterbox"]}, [(100, 90), (100, 90)]),
        ({"preset_options": {**OPENPI, "camera_frames": "float32"}, "resize": (20, 30, "letterbox")}, [(20, 30)] * 2),
    ],
)
def test_sizes_of_openpis_cameras(
    filmed: Filmed, dataset: gear_data.Dataset, options: dict[str, Any], sizes: Sequence[tuple[int, int]]
) -> None:
    loader = load(dataset, "openpi", **options)
    batch, episodes = loader.batch(1), episodes_of(dataset, filmed)
    for camera, key, size in zip((FRONT, WRIST), ("base_0_rgb", "left_wrist_0_rgb"), sizes, strict=True):
        for row, (episode, start) in enumerate(windows_of(loader, 1)):
            wanted = policies.resize_with_pad(episodes[episode][camera][start], *size).astype(np.float64)
            got = batch[f"image.{key}"][row]
            got = got if got.dtype == np.uint8 else got.transpose(1, 2, 0) * 255
            assert np.abs(got - wanted).max() <= 1
    assert loader.spec().get("letterbox") == (None if sizes[0] == (48, 64) else sorted([FRONT, WRIST]))


def test_letterboxed_frames_are_augmented(dataset: gear_data.Dataset) -> None:
    """Between their bars, as by openpi, which augments after it resizes."""
    augment = {"image.base_0_rgb": [gear_data.RandomResizedCrop((0.9, 0.9), (1, 1)), gear_data.ColorJitter(hue=0.1)]}
    plain, batch = (load(dataset, "openpi", augment=each).batch(2) for each in (None, augment))
    Augmenter(augment, {"image.base_0_rgb": (np.dtype(np.uint8), (224, 224, 3))}, 5)(2, 0, plain)
    assert all(np.array_equal(batch[key], values) for key, values in plain.items())


@pytest.mark.parametrize("shape", [(480, 640), (64, 48), (224, 224), (12, 200), (300, 14), (1, 1)])
@pytest.mark.parametrize("size", [(224, 224), (30, 41)])
def test_letterbox_equals_resize_with_pad(shape: tuple[int, int], size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    out = np.full((*size, 3), 77, np.uint8)
    letterbox(pixels, out)
    assert np.abs(out.astype(int) - policies.resize_with_pad(pixels, *size)).max() <= 1


def test_openpi_with_relative_actions(dataset: gear_data.Dataset) -> None:
    """`DeltaActions`, then `Normalize`, then `PadStatesAndActions`."""
    width = dataset.schema["actions"].size
    numbers = {**statistics(dataset), "actions": (np.arange(width) - 0.5, np.arange(width) + 2.0)}
    mask = [True] * (width - 1) + [False]
    relative = {"actions": gear_data.Relative("observations", mask=mask)}
    loader = load(dataset, "openpi", context=6, relative=relative, normalize=numbers)
    expected = policies.openpi(
        episodes_of(dataset), windows_of(loader, 0), horizon=6, width=32, statistics=numbers, cameras={},
        delta_mask=mask,
    )  # fmt: skip
    batch = loader.batch(0)
    assert_equals(batch, {key: expected[key] for key in ("state", "actions")})


@pytest.mark.parametrize(("history", "context"), [(1, 1), (2, 4), (5, 3)])
def test_octo(filmed: Filmed, dataset: gear_data.Dataset, history: int, context: int) -> None:
    options = {**OCTO, "history": history}
    loader = load(dataset, "octo", context=context, preset_options=options, normalize=statistics(dataset))
    before = behind = 0
    for step, batch in enumerate(islice(loader, 6)):
        expected = policies.octo(
            episodes_of(dataset, filmed), windows_of(loader, step), window_size=history, action_horizon=context,
            statistics=statistics(dataset), images={"image_primary": FRONT, "image_wrist": WRIST},
        )  # fmt: skip
        assert_equals(batch, expected)
        assert {*batch} == {*flat(expected), "valid_count"}
        before += int((~batch["observation.timestep_pad_mask"]).sum())
        behind += int(batch["observation.task_completed"].sum())
    assert bool(before) == (history > 1) and (behind or context < 3)


@pytest.mark.parametrize(("history", "context"), [(1, 1), (2, 4)])
def test_octo_with_goals(filmed: Filmed, dataset: gear_data.Dataset, history: int, context: int) -> None:
    options = {**OCTO, "history": history, "goals": "uniform"}
    loader = load(dataset, "octo", context=context, preset_options=options, normalize=statistics(dataset))
    shares, lengths = [], dataset.lengths
    for step, batch in enumerate(islice(loader, 40)):
        windows = windows_of(loader, step)
        goals = batch["task.timestep"].tolist()
        for (episode, start), goal in zip(windows, goals, strict=True):
            assert start <= goal < lengths[episode]
            if lengths[episode] - start > 4:
                shares.append((goal - start) / (lengths[episode] - 1 - start))
        if step < 4:
            expected = policies.octo(
                episodes_of(dataset, filmed), windows, window_size=history, action_horizon=context,
                statistics=statistics(dataset), images={"image_primary": FRONT, "image_wrist": WRIST}, goals=goals,
            )  # fmt: skip
            assert_equals(batch, expected)
            assert {*batch} == {*flat(expected), "valid_count"}
    # Uniform from the window's own step to the last one.
    assert abs(np.mean(shares) - 0.5) < 0.08 and min(shares) == 0 and max(shares) == 1


def test_octos_goals_are_the_same_on_any_rank(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    wide = convert_episodes(locomotion([9, 4, 30], seed=2, observations=12, actions=5), tmp_path / "wide")
    widths = {"observation.proprio": 12, "action": 7}
    cameras = {"observation.image_primary": 48, "observation.image_wrist": 48}
    options: dict[str, Any] = {
        "preset_options": {**OCTO, "goals": "uniform", "widths": widths, "cameras": cameras}, "resize": (48, 48),
    }  # fmt: skip
    for source in (dataset, Mixture([dataset, wide], join=True)):
        if source is dataset:
            plain = {name: value for name, value in options.items() if name != "resize"}
            options = {**options, **plain}
        whole = list(islice(load(source, "octo", prefetch=0, **options), 3))
        parts = [
            list(islice(load(source, "octo", rank=rank, world_size=2, prefetch=2, **options), 3)) for rank in range(2)
        ]
        for step, batch in enumerate(whole):
            for key, values in batch.items():
                assert np.array_equal(values, np.concatenate([part[step][key] for part in parts])), key
    absent = whole[0]["source"] == 1
    assert not whole[0]["task.image_primary"][absent].any() and whole[0]["task.image_primary"][~absent].any()
    assert np.array_equal(whole[0]["task.pad_mask_dict.image_primary"], ~absent)


def test_goals_need_a_preset_with_tasks(dataset: gear_data.Dataset) -> None:
    with pytest.raises(InvalidArgumentError, match="no task with goals"):
        load(dataset, "groot", preset_options={"goals": "uniform"})
    with pytest.raises(InvalidArgumentError, match="goals must be one of"):
        load(dataset, "octo", preset_options={**OCTO, "goals": "last"})
    with pytest.raises(InvalidArgumentError, match="keep_image_prob"):
        load(dataset, "octo", preset_options={**OCTO, "goals": "uniform", "keep_image_prob": 2.0})


def test_octo_without_a_camera(dataset: gear_data.Dataset) -> None:
    batch = load(dataset, "octo", preset_options={"keys": {FRONT: "observation.image_primary", WRIST: ""}}).batch(0)
    assert batch["observation.image_wrist"].shape == (7, 2, 128, 128, 3)
    assert not batch["observation.image_wrist"].any()
    masks = nested_batch(batch)["observation"]["pad_mask_dict"]
    assert {key: bool(mask.all()) for key, mask in masks.items()} == {
        "image_primary": True, "image_wrist": False, "proprio": True, "timestep": True,
    }  # fmt: skip


@pytest.mark.parametrize("goals", ["", "uniform"])
@pytest.mark.parametrize("first", [True, False])
def test_octos_proprio_that_a_dataset_lacks(dataset: gear_data.Dataset, first: bool, goals: str) -> None:
    """Its masks are False. first: whether the first dataset has it."""
    entries = [(dataset, 1), (dataset, 1, {"rename": {"observations": "observations.hidden"}})]
    mixture = Mixture(entries if first else entries[::-1], join=True, pad_to="largest")
    loader, found = load(mixture, "octo", preset_options={**OCTO, "goals": goals}), set[bool]()
    for batch in islice(loader, 3):
        has = batch["source"] == (0 if first else 1)
        found |= {*has.tolist()}
        assert np.array_equal(batch["observation.proprio"].any(axis=(1, 2)), has)
        assert np.array_equal(batch["observation.proprio_present"], has)
        masks = nested_batch(batch)["observation"]["pad_mask_dict"]
        assert np.array_equal(masks["proprio"], np.stack([has, has], 1)) and masks["proprio"].dtype == np.bool_
        assert all(masks[key].all() for key in ("timestep", "image_primary", "image_wrist"))
        if goals:
            assert np.array_equal(batch["task.proprio"].any(axis=1), has)
            assert np.array_equal(batch["task.pad_mask_dict.proprio"], has)
            assert batch["task.pad_mask_dict.image_wrist"].all()
    assert found == {True, False}


@pytest.mark.parametrize("lacks", [FRONT, WRIST])
@pytest.mark.parametrize("first", [False, True])
def test_octos_goals_of_a_camera_that_a_dataset_lacks(dataset: gear_data.Dataset, first: bool, lacks: str) -> None:
    """first: whether the first dataset has it."""
    entries = [dataset, dataset.drop(lacks)]
    changes = {"goals": "uniform", "cameras": dict.fromkeys(registry.OCTO.cameras, 16)}
    loader = load(
        Mixture([(each, 1) for each in (entries if first else entries[::-1])], join=True), "octo",
        preset_options={**OCTO, **changes}, resize=(16, 16),
    )  # fmt: skip
    found = set()
    for batch in islice(loader, 3):
        whole = batch["source"] == (0 if first else 1)
        for key, camera in (("image_primary", FRONT), ("image_wrist", WRIST)):
            has = whole | (camera != lacks)
            assert np.array_equal(batch[f"task.{key}"].any(axis=(1, 2, 3)), has)
            assert np.array_equal(batch[f"task.pad_mask_dict.{key}"], has)
        found |= {*whole.tolist()}
    assert found == {False, True}


@pytest.mark.parametrize("context", [1, 16, 40])
def test_groot(filmed: Filmed, dataset: gear_data.Dataset, context: int) -> None:
    loader = load(dataset, "groot", context=context)
    for step, batch in enumerate(islice(loader, 3)):
        expected = policies.groot(
            episodes_of(dataset, filmed), windows_of(loader, step), horizon=context, width=132,
            cameras={"front": FRONT, "wrist": WRIST},
        )  # fmt: skip
        assert_equals(batch, expected)
        assert {*batch} == {*flat(expected), "action_is_pad", "valid_count"}


@pytest.mark.parametrize("padding", ["edge", "first"])
def test_groots_mask_of_elements_is_0_where_an_action_is_repeated(dataset: gear_data.Dataset, padding: str) -> None:
    loader = load(dataset, "groot", context=16, preset_options={"padding": padding})
    for step, batch in enumerate(islice(loader, 3)):
        for row, (episode, start) in enumerate(windows_of(loader, step)):
            actions = dataset.episode(episode)["actions"]
            golden, repeated = np.zeros((16, 132), np.float32), np.zeros((16, 132), np.float32)
            for k in range(16):
                is_real = start + k < len(actions)
                golden[k, : actions.shape[1]] = is_real
                nearest = len(actions) - 1 if padding == "edge" else start
                repeated[k, : actions.shape[1]] = actions[start + k if is_real else nearest]
            assert np.array_equal(batch["action_mask"][row], golden)
            assert np.array_equal(batch["action"][row], repeated)


@pytest.mark.parametrize("mode", ["quantiles", "minmax", "mean-std"])
def test_groot_clips_where_gr00t_does(dataset: gear_data.Dataset, mode: str) -> None:
    """Actions, and states that a range normalises: `StateActionProcessor` of NVIDIA/Isaac-GR00T."""
    normalize = {"observations": mode, "actions": mode}
    whole = load(dataset, "groot", normalize=normalize, preset_options={"clip": 0.0})
    clipped = load(dataset, "groot", normalize=normalize)
    outside = set()
    for step in range(4):
        expected, batch = whole.batch(step), clipped.batch(step)
        for key in expected:
            values = expected[key]
            if key == "action" or (key == "state" and mode != "mean-std"):
                outside |= {key} if (np.abs(values) > 1).any() else set()
                values = values.clip(-1, 1)
            np.testing.assert_array_equal(batch[key], values, err_msg=key)
    assert outside == {"quantiles": {"action", "state"}, "minmax": set(), "mean-std": {"action"}}[mode]
    plain = load(dataset, "groot")
    assert plain.batch(0)["action"].max() > 1 or plain.batch(0)["state"].max() > 1


def test_each_dataset_of_a_mixture_clips_by_its_own_mode(dataset: gear_data.Dataset) -> None:
    modes = ("quantiles", "mean-std")
    parts = [(dataset, 1, {"normalize": {"observations": mode}}) for mode in modes]
    both = load(Mixture(parts, join=True), "groot")
    whole = load(Mixture(parts, join=True), "groot", preset_options={"clip": 0.0})
    batch, expected = both.batch(0), whole.batch(0)["state"]
    first = both.windows(0)["dataset"] == 0
    np.testing.assert_array_equal(batch["state"][first], expected[first].clip(-1, 1))
    np.testing.assert_array_equal(batch["state"][~first], expected[~first])
    assert (np.abs(expected[first]) > 1).any() and (np.abs(expected[~first]) > 1).any()


UNLIKE: list[tuple[str, Any, dict[str, Any]]] = [
    ("openpi", None, {"cameras": dict.fromkeys(registry.OPENPI.cameras, 16)}),
    ("openpi", "largest", {"cameras": dict.fromkeys(registry.OPENPI.cameras, 16)}),
    ("groot", "largest", {}),
    ("groot", {"actions": 140}, {}),
    ("octo", None, {
        "cameras": dict.fromkeys(registry.OCTO.cameras, 16), "widths": {"observation.proprio": 12, "action": 7},
    }),
    ("octo", "largest", {"cameras": dict.fromkeys(registry.OCTO.cameras, 16)}),
    ("octo", {"actions": 14}, {
        "cameras": dict.fromkeys(registry.OCTO.cameras, 16), "widths": {"observation.proprio": 12},
    }),
    ("octo", "largest", {"cameras": dict.fromkeys(registry.OCTO.cameras, 16), "goals": "uniform"}),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "pad_to", "changes"), UNLIKE)
def test_robots_of_unlike_shape_in_one_batch(
    dataset: gear_data.Dataset, tmp_path: Path, preset: str, pad_to: Any, changes: dict[str, Any]
) -> None:
    """Each row is as in the batches of its own dataset. The second dataset has no camera."""
    wide = convert_episodes(locomotion([9, 4, 30], seed=2, observations=12, actions=5), tmp_path / "wide")
    mixture = Mixture([(dataset, 1), (wide, 1)], join=True, pad_to=pad_to)
    options = {"preset_options": {**PRESETS[preset], **changes}, "resize": (16, 16), "window_ids": True}
    loader = load(mixture, preset, **options)
    state, action = (
        ("observation.proprio", "action") if preset == "octo" else ("state", registry.PRESETS[preset].keys["actions"])
    )
    found = set()
    for batch in islice(loader, 3):
        rows = zip(batch["source"].tolist(), batch["episode_id"].tolist(), batch["start"].tolist(), strict=True)
        for row, (source, episode, start) in enumerate(rows):
            own = (dataset, wide)[source].episode(episode)
            values, first = own["observations"][start], own["actions"][start]
            got = batch[state][row].reshape(-1, batch[state].shape[-1])[-1]
            taken = batch[action][row].reshape(-1, batch[action].shape[-1])
            # Octo's last chunk begins with the action of this step.
            taken = taken[-loader.context] if preset == "octo" else taken[0]
            for wanted, padded in ((values, got), (first, taken)):
                assert np.array_equal(padded[: len(wanted)], wanted.astype(np.float32))
                assert not padded[len(wanted) :].any()
            if preset == "groot":
                assert batch["action_mask"].shape == batch["action"].shape
                assert batch["action_mask"][row, 0].sum() == len(first)
                assert batch["video.front"][row].any() == (source == 0) == bool(batch["video.front_present"][row])
            else:
                key, mask = {
                    "openpi": ("image.base_0_rgb", "image_mask.base_0_rgb"),
                    "octo": ("observation.image_primary", "observation.pad_mask_dict.image_primary"),
                }[preset]
                assert batch[key][row].any() == (source == 0) == bool(batch[mask][row].all())
            if preset == "octo":
                of_elements = [element < len(first) for element in range(batch["action"].shape[-1])]
                assert batch["action_pad_mask"][row, -1, 0].tolist() == of_elements
            if "goals" in changes:
                assert batch["task.proprio"].shape[1] == batch[state].shape[-1]
                assert batch["task.proprio"][row, : len(values)].any()
                assert not batch["task.proprio"][row, len(values) :].any()
            found.add(source)
    assert found == {0, 1}


@pytest.mark.parametrize("preset", PRESETS)
def test_ranks_workers_and_states_give_the_same_rows(dataset: gear_data.Dataset, preset: str) -> None:
    whole = list(islice(load(dataset, preset, prefetch=0), 4))
    parts = [list(islice(load(dataset, preset, rank=rank, world_size=2, prefetch=2), 4)) for rank in range(2)]
    resumed = load(dataset, preset)
    first = load(dataset, preset)
    list(islice(first, 2))
    resumed.load_state_dict(first.state_dict())
    for step, batch in enumerate(whole):
        for key, values in batch.items():
            assert np.array_equal(values, np.concatenate([part[step][key] for part in parts])), key
    for batch, again in zip(whole[2:], islice(resumed, 2), strict=True):
        assert all(np.array_equal(again[key], values) for key, values in batch.items())


def test_one_of_two_outside_cameras(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    """As openpi's loader of DROID draws one."""
    drawn = {"image.base_0_rgb": [FRONT, WRIST]}
    loader = load(dataset, "openpi", choose=drawn, preset_options=None, resize=(16, 16))
    batch = loader.batch(0)
    both = load(dataset, "openpi", resize=(16, 16)).batch(0)
    rows = [both["image.base_0_rgb"], both["image.left_wrist_0_rgb"]]
    which = [[np.array_equal(batch["image.base_0_rgb"][i], row[i]) for row in rows] for i in range(7)]
    assert all(any(each) for each in which) and {tuple(each) for each in which} == {(True, False), (False, True)}
    assert batch["image_mask.base_0_rgb"].all() and not batch["image_mask.left_wrist_0_rgb"].any()


def test_a_dataset_without_the_cameras_of_which_others_have_one(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    """A dataset with one of the cameras has its frames, and one without cameras a black image and no mask."""
    sides = {FRONT: "observations.images.side", WRIST: "observations.images.top"}
    keys = {**OPENPI["keys"], **dict.fromkeys(sides.values(), "")}
    entries = [(dataset, 1), (dataset, 1, {"rename": {FRONT: sides[FRONT]}}), (dataset, 1, {"rename": sides})]
    options = {"preset_options": {"keys": {**keys, FRONT: "", WRIST: ""}}, "resize": (224, 224)}
    drawn = {"image.base_0_rgb": [FRONT, WRIST]}
    mixture = Mixture(entries, join=True, pad_to="largest")
    batch = load(mixture, "openpi", choose=drawn, **options).batch(0)
    shown = {"preset_options": {"keys": {**keys, FRONT: "image.base_0_rgb", WRIST: "image.left_wrist_0_rgb"}}}
    both = load(mixture, "openpi", resize=(224, 224), **shown).batch(0)
    front, wrist = both["image.base_0_rgb"], both["image.left_wrist_0_rgb"]
    images = batch["image.base_0_rgb"]
    for row, source in enumerate(np.asarray(batch["source"]).tolist()):
        wanted = [[front[row], wrist[row]], [wrist[row]], [np.zeros_like(images[row])]][source]
        assert any(np.array_equal(images[row], each) for each in wanted)
        assert batch["image_mask.base_0_rgb"][row] == (source < 2)


@pytest.mark.parametrize("goals", ["", "uniform"])
def test_octo_with_other_keys_of_the_actions(dataset: gear_data.Dataset, goals: str) -> None:
    options = {**OCTO, "goals": goals}
    names = {"action": "act", "action_pad_mask": "act_mask"}
    other = {**options, "keys": {**OCTO["keys"], "actions": "act"}, "element_mask": "act_mask"}
    batch, renamed = (load(dataset, "octo", preset_options=each).batch(0) for each in (options, other))
    assert {*renamed} == {names.get(key, key) for key in batch}
    for key, values in batch.items():
        np.testing.assert_array_equal(renamed[names.get(key, key)], values)
    without = load(dataset, "octo", preset_options={**options, "element_mask": ""}).batch(0)
    assert batch.keys() - without.keys() == {"action_pad_mask"}
    with pytest.raises(InvalidArgumentError, match=r"(?s)keys leaves them out.*'actions': 'action'"):
        load(dataset, "octo", preset_options={**options, "keys": {**OCTO["keys"], "actions": ""}})


def test_errors_say_what_to_give(dataset: gear_data.Dataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no image for 'image\.base_0_rgb'") as unnamed:
        load(dataset, "openpi", preset_options=None)
    assert unnamed.value.column == FRONT and "'image.base_0_rgb'" in (unnamed.value.hint or "")
    with pytest.raises(InvalidArgumentError, match="1 elements, and the dataset has") as narrow:
        load(dataset, "openpi", preset_options={**OPENPI, "widths": {"actions": 1}})
    assert narrow.value.column == "actions"
    named = {**OPENPI, "keys": {**OPENPI["keys"], "observations": "observed"}}
    with pytest.raises(MissingColumnError, match="has the key 'state'"):
        load(dataset, "openpi", preset_options=named)
    with pytest.raises(InvalidArgumentError, match="has a vector with the key 'state'"):
        load(dataset, "openpi", preset_options={"keys": {**named["keys"], FRONT: "state"}})
    with pytest.raises(InvalidArgumentError, match="has steps of its own") as offsets:
        load(dataset, "octo", offsets={"actions": (0, 3)})
    assert offsets.value.column == "actions"
    with pytest.raises(InvalidArgumentError, match="history must be at least 1"):
        load(dataset, "octo", preset_options={**OCTO, "history": 0})
    with pytest.raises(InvalidArgumentError, match="makes chunks"):
        gear_data.Rollout.from_spec(load(dataset, "octo").spec())
