"""Range reads of remote files."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from gear_data.common import retry
from gear_data.errors import RemoteError
from gear_data.storage.remote import range_reader
from gear_data.storage.remote.range_reader import open_range_reader


class Flaky:
    """A file system of one file, whose reads give the answers in turn."""

    def __init__(self, data: bytes, *answers: Any) -> None:
        self.data, self.answers, self.reads = data, list(answers), 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.reads += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return self.data[start:end] if answer is None else answer


def test_random_reads_survive_broken_connections() -> None:
    data = random.Random(0).randbytes(5 << 20)
    file = open_range_reader(Flaky(data, *[ConnectionResetError(), b"short", None] * 4), "x", len(data), "s3://b/x")
    model, steps = io.BytesIO(data), random.Random(1)
    for _ in range(60):
        place, count = steps.randrange(len(data) + 10), steps.choice([0, 1, 100, 1 << 16, 3 << 20])
        for each in (file, model):
            each.seek(place)
        assert file.read(count) == model.read(count)
        assert file.tell() == model.tell()
    file.seek(-10, io.SEEK_END)
    assert file.read() == data[-10:]


@pytest.mark.parametrize(
    ("answers", "reads", "message"),
    [
        (
            [ConnectionResetError("cut")] * 9,
            retry.MAX_ATTEMPTS,
            "cannot be read, tried 5 times: ConnectionResetError: cut",
        ),
        ([b"", b"", b"", b"", b""], retry.MAX_ATTEMPTS, "received 0 of 100 bytes"),
        ([PermissionError("no")], 1, "cannot be read: PermissionError: no"),
        ([FileNotFoundError("no")], 1, "the file no longer exists"),
        ([b"x" * 200], 1, "does not support range requests"),
    ],
)
def test_reads_that_fail(answers: list[Any], reads: int, message: str) -> None:
    filesystem = Flaky(b"x" * 100, *answers)
    with pytest.raises(RemoteError, match=f"s3://b/x: .*{message}"):
        open_range_reader(filesystem, "x", 100, "s3://b/x").read()
    assert filesystem.reads == reads


def test_a_small_file_is_read_by_one_request() -> None:
    data = random.Random(0).randbytes(range_reader.SMALL_BYTES)
    filesystem = Flaky(data)
    file = open_range_reader(filesystem, "x", len(data), "s3://b/x")
    for first, count in ((len(data) - 8, 8), (1000, 3000), (0, len(data))):
        file.seek(first)
        assert file.read(count) == data[first : first + count]
    assert filesystem.reads == 1
    larger = Flaky(data + b"x")
    with open_range_reader(larger, "x", len(data) + 1, "s3://b/x") as file:
        file.seek(len(data) - 8)
        assert file.read() == data[-8:] + b"x"
        file.seek(0)
        assert file.read(4) == data[:4]
    assert larger.reads == 2
