"""Every field of an output against a plain-Python loop over windows and steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.collection.collector import Collector
from gear_data.collection.output import MASK, TIMESTEPS, Output, Padding
from gear_data.collection.plan import CollectSource
from gear_data.selection.windows import Windows


@pytest.fixture(scope="module")
def episodes(rollouts: list[Any]) -> list[dict[str, np.ndarray]]:
    return [{**rollout.columns, "final": rollout.final} for rollout in rollouts]


@pytest.fixture(scope="module")
def dataset(converted_rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """With final observations, in several shards."""
    return gear_data.open(shutil.copytree(converted_rollouts / "dataset", tmp_path_factory.mktemp("outputs") / "d"))


def collect(dataset, outputs, windows):
    collector = Collector(
        [CollectSource(dataset.store.reader(), dataset.schema, tuple(outputs))], len(windows), reuse=True
    )
    columns = np.array(windows, np.int64).reshape(-1, 3).T.copy()
    return collector(Windows(*columns)).arrays


def step_value(output: Output, episode: dict[str, np.ndarray], step: int) -> Any:
    """Returns the value of one valid step of a window, or None."""
    total = len(episode["rewards"])
    if not output.column:
        if output.source == TIMESTEPS:
            return step + output.origin
        has_next = step + 1 < total or output.mask_column == "observations"
        return output.valid if output.shift <= 0 or has_next else None
    values = episode[output.source]
    if output.discounts is not None:
        return sum(
            discount * np.float64(values[step + j]) for j, discount in enumerate(output.discounts) if step + j < total
        )
    if output.shift > 0:
        if step + 1 < total:
            return affine(output, values[step + 1])
        return affine(output, episode["final"]) if output.source == "observations" else None
    if output.shift < 0:
        return affine(output, values[step - 1]) if step else output.fill
    return affine(output, values[step])


def affine(output: Output, value: Any) -> Any:
    return value if output.mean is None else (np.float64(value) - output.mean) * output.scale


def expected(output: Output, episodes: list[dict[str, np.ndarray]], windows: list[tuple[int, int, int]]) -> np.ndarray:
    rows = []
    for e, start, length in windows:
        total = len(episodes[e]["rewards"])
        low, high = (start, start + length) if output.within_window else (0, total)
        steps = [s for s in range(start + output.first, start + output.first + output.width) if low <= s < high]
        valid = [(s, step_value(output, episodes[e], s)) for s in steps]
        valid = [(s, value) for s, value in valid if value is not None]
        # A missing last row leaves the last position empty on either side, so the other rows keep their positions.
        place = output.width - len(steps) if output.pad_left else (valid[0][0] if valid else 0) - start - output.first
        row = [output.fill] * output.width
        for j, (_, value) in enumerate(valid):
            row[place + j] = value
        for j in range(output.width):
            if not valid or place <= j < place + len(valid) or output.padding is Padding.FILL:
                continue
            if output.padding is Padding.EXTRAPOLATE:
                row[j] = valid[0][0] - place + j + output.origin
            elif output.padding is Padding.FIRST or j < place:
                row[j] = valid[0][1]
            else:
                row[j] = valid[-1][1]
        rows.append([np.broadcast_to(np.asarray(value), output.shape) for value in row])
    return np.array(rows).astype(output.dtype)


@st.composite
def an_output(draw: Any, key: str) -> Output:
    first, width = draw(st.integers(-4, 4)), draw(st.integers(1, 9))
    common = {"pad_left": draw(st.booleans()), "within_window": draw(st.booleans())}
    if draw(st.integers(0, 2)) == 0:  # masks and timesteps
        if draw(st.booleans()):
            padding = draw(st.sampled_from([Padding.FILL, Padding.EXTRAPOLATE, Padding.EDGE, Padding.FIRST]))
            origin = draw(st.integers(-2, 2))
            return Output(
                key,
                TIMESTEPS,
                "int64",
                (),
                first,
                width,
                fill=9,
                column=False,
                padding=padding,
                origin=origin,
                **common,
            )
        valid = draw(st.integers(0, 1))
        mask_column = draw(st.sampled_from([None, "observations", "actions"]))
        dtype = draw(st.sampled_from(["bool", "float32", "int64"]))
        return Output(
            key, MASK, dtype, (), first, width, fill=1 - valid, column=False, valid=valid,
            shift=int(mask_column is not None), mask_column=mask_column, **common,
        )  # fmt: skip
    source, shape = draw(st.sampled_from([("observations", (3,)), ("actions", (2,)), ("rewards", ())]))
    fill: Any = draw(st.integers(-1, 1))
    padding = draw(st.sampled_from([Padding.FILL, Padding.EDGE, Padding.FIRST]))
    kind = draw(st.sampled_from(["plain", "next", "previous", "discounts"]))
    if kind == "discounts":
        discounts = tuple(0.9**j for j in range(draw(st.integers(1, 5))))
        return Output(
            key, source, "float64", shape, first, width, fill=fill, padding=padding, discounts=discounts, **common
        )
    mean = scale = None
    if draw(st.booleans()):
        mean, scale = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape), np.full(shape or (1,), 0.5)
        mean = mean.reshape(shape or (1,))
        if not shape:
            mean, scale = mean[0], scale[0]
    return Output(
        key, source, "float32" if mean is None else "float64", shape, first, width, fill=fill, padding=padding,
        mean=mean, scale=scale, shift={"next": 1, "previous": -1}.get(kind, 0), **common,
    )  # fmt: skip


@given(data=st.data())
@settings(max_examples=150)
def test_any_output_equals_a_loop(dataset, episodes, data):
    places = [(e, s) for e, episode in enumerate(episodes) for s in range(len(episode["rewards"]))]
    drawn = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=9), label="windows")
    windows = []
    for e, start in drawn:
        length = data.draw(st.integers(1, len(episodes[e]["rewards"]) - start), label="length")
        windows.append((e, start, length))
    outputs = [data.draw(an_output(str(i))) for i in range(data.draw(st.integers(1, 4), label="outputs"))]
    arrays = collect(dataset, outputs, windows)
    for output in outputs:
        wanted = expected(output, episodes, windows)
        assert arrays[output.key].dtype == wanted.dtype
        if output.discounts is None:
            assert arrays[output.key].tobytes() == wanted.tobytes(), output
        else:  # the sum's order is the loop's; fused multiply-adds are not
            np.testing.assert_allclose(arrays[output.key], wanted, rtol=1e-12, atol=1e-12)


def test_next_steps_without_final_observations_are_padding(make_dataset):
    episode = {"observations": np.arange(6, dtype=np.float32).reshape(3, 2), "rewards": np.ones(3, np.float32)}
    dataset = make_dataset([episode])
    outputs = [
        Output("next", "observations", "float32", (2,), 0, 4, shift=1),
        Output("mask", MASK, "bool", (), 0, 4, column=False, shift=1, mask_column="observations"),
    ]
    arrays = collect(dataset, outputs, [(0, 0, 3), (0, 2, 1)])
    assert arrays["next"].tolist() == [[[2, 3], [4, 5], [0, 0], [0, 0]], [[0, 0]] * 4]
    assert arrays["mask"].tolist() == [[True, True, False, False], [False] * 4]


HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # statistics of signalling NaN
@pytest.mark.parametrize("half", HALVES)
def test_half_precisions_are_those_of_torch(make_dataset, half):
    """Checks every exponent with every way to round.

    It includes subnormal numbers, overflow and infinities; NaN stays NaN.
    """
    exponents = np.arange(0, 1 << 32, 1 << 23, dtype=np.uint64)
    fractions = [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF]
    bits = (exponents[:, None] + np.array(fractions, np.uint64)).astype(np.uint32).reshape(-1, 4)
    values = bits.view(np.float32)
    dataset = make_dataset([{"observations": values, "rewards": np.zeros(len(values), np.float32)}])
    outputs = [
        Output("plain", "observations", "float32", (4,), 0, len(values) + 1, fill=1 / 3, half=half),
        Output("sum", "observations", "float32", (4,), 0, len(values), discounts=(1.0,), half=half),
    ]
    arrays = collect(dataset, outputs, [(0, 0, len(values))])
    wanted = torch.from_numpy(np.concatenate([values, np.full((1, 4), 1 / 3, np.float32)])).to(HALVES[half])
    for key, rows in (("plain", len(values) + 1), ("sum", len(values))):
        got = torch.from_numpy(arrays[key][0].view(np.uint16).copy()).view(HALVES[half])
        assert torch.equal(got.isnan(), wanted[:rows].isnan())
        assert torch.equal(got.nan_to_num(0.5), wanted[:rows].nan_to_num(0.5)), key
