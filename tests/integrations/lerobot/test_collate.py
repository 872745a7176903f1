"""Batches of items, against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from gear_data.integrations.lerobot.collate import FrameItem


def items(count: int) -> list[FrameItem]:
    frames = torch.arange(count * 24, dtype=torch.uint8).reshape(count, 2, 3, 4)
    numbers = torch.arange(count)
    return [FrameItem(frame=frames[row], index=numbers[row], task=f"task {row}") for row in range(count)]


def test_a_batch_is_the_memory_of_its_items() -> None:
    made = items(5)
    batch = default_collate(made)
    assert batch.keys() == made[0].keys() and type(batch) is dict
    assert batch["task"] == [item["task"] for item in made]
    for key in ("frame", "index"):
        assert torch.equal(batch[key], torch.stack([item[key] for item in made]))
        assert batch[key].data_ptr() == made[0][key].data_ptr()
        assert batch[key].is_contiguous()


@pytest.mark.parametrize("case", ["reversed", "a gap", "repeated", "others", "a part", "changed"])
def test_other_items_are_copied(case: str) -> None:
    made, more = items(5), items(5)
    more[0]["frame"] += 100
    changed = FrameItem(made[1], frame=made[1]["frame"] * 2)
    parts = [FrameItem(frame=item["frame"][:, :, :2]) for item in made]
    cases: dict[str, list[Any]] = {
        "reversed": made[::-1],
        "a gap": [made[0], made[2]],
        "repeated": [made[0], made[0]],
        "others": [made[0], more[1]],
        "a part": parts,
        "changed": [made[0], changed, made[2]],
    }
    batch = default_collate(cases[case])
    for key in batch.keys() - {"task"}:
        expected = torch.stack([item[key] for item in cases[case]])
        assert torch.equal(batch[key], expected) and batch[key].dtype == expected.dtype
    assert batch["frame"].data_ptr() != made[0]["frame"].data_ptr()


def test_items_of_other_shapes_are_no_batch() -> None:
    made = items(4)
    made[3]["frame"] = made[3]["frame"][:1]
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate(made)
