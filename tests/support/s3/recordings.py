"""Numbered episodes that are recorded into a bucket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import s3fs

import gear_data


def steps_of(number: int) -> list[int]:
    """Returns the actions of an episode, which depend on its number."""
    return [100 * number + t for t in range(1 + number % 7)]


def add_episodes(writer: gear_data.Writer, numbers: Iterable[int]) -> None:
    for number in numbers:
        for action in steps_of(number):
            writer.append(actions=action, observations=[0.5 * action, 1.0], rewards=1.0)
        writer.end_episode(terminated=True, final=[0.0, float(number)], number=number)


def numbers_in(dataset: gear_data.Dataset) -> list[int]:
    """Returns the numbers of a dataset's episodes, and checks their steps."""
    numbers = [int(number) for number in dataset.episodes["number"]]
    for position, number in enumerate(numbers):
        assert dataset[position]["actions"].tolist() == steps_of(number)
    return numbers


def check_dataset(url: str, numbers: list[int], folder: Any) -> None:
    """Checks that a dataset has these episodes, and is equal to a conversion of the same episodes."""
    dataset = gear_data.open(url)
    found = numbers_in(dataset)
    assert sorted(found) == numbers
    report = gear_data.verify(url, deep=True, progress=False)
    assert report.ok, report
    with gear_data.Writer(folder, durability="os") as writer:
        add_episodes(writer, found)
    assert dataset.fingerprint == gear_data.open(folder).fingerprint


def objects(url: str) -> set[str]:
    """Returns the names of all objects of a dataset."""
    filesystem = s3fs.S3FileSystem()
    filesystem.invalidate_cache()
    root = url.removeprefix("s3://")
    return {name.removeprefix(f"{root}/") for name in filesystem.find(root)}
