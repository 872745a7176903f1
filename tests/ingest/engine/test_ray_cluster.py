"""Clusters of Ray that do not answer, on a stand-in for Ray."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gear_data.errors import RemoteError
from gear_data.ingest.engine.ray_cluster import connected_ray, first_ended


class RayError(Exception):
    """An error of Ray's own."""


class Exceptions:
    """Ray's module of errors."""

    RayError = RayError


class Ray:
    """A module `ray`. Nothing ends before a limit.

    Attributes:
        refusal: the error of `init`.
        limits: of the calls of `wait`.
    """

    exceptions = Exceptions

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.limits: list[float | None] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    def wait(self, references: list[str], num_returns: int, timeout: float | None = None) -> tuple[list[str], Any]:
        self.limits.append(timeout)
        return ([], references) if timeout else (references[:num_returns], references[num_returns:])

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "memory": 1e9}

    def available_resources(self) -> dict[str, float]:
        return {"memory": 1e9}


@pytest.mark.parametrize(
    "refusal", [ConnectionError("timeout"), ValueError("Malformed"), RuntimeError("Version"), RayError("token")]
)
def test_a_cluster_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    monkeypatch.setitem(sys.modules, "ray", Ray(refusal))
    monkeypatch.setenv("RAY_ADDRESS", "ray://nowhere:10001")
    with pytest.raises(RemoteError, match=f"ray://nowhere:10001: Ray does not connect: {refusal}") as error:
        connected_ray()
    assert "RAY_ADDRESS" in str(error.value.hint)


def test_a_cluster_without_a_free_cpu(caplog: pytest.LogCaptureFixture) -> None:
    ray = Ray()
    assert [first_ended(ray, ["one", "two"]), first_ended(ray, ["two"])] == ["one", "two"]
    assert ray.limits[1] is None
    # One line, not one for each task.
    (record,) = caplog.records
    assert "has 8, and 0 of them are free" in record.getMessage()
