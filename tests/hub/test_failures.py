"""Errors of the hub's library that the server of the tests does not cause: it has no Xet storage, and gates nothing."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError

from gear_data.errors import DatasetNotFoundError, RemoteError, StorageFullError
from gear_data.hub.failures import typed_hub_errors


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RuntimeError("Data processing error: CAS service error : 5 retries"), RemoteError, "CAS service error.*again"),
        (OSError("Consistency check failed: file should be of size 9 but has size 3"), RemoteError, "should be.*again"),
        (RuntimeError("File error: No space left on device (os error 28)"), StorageFullError, "free some space"),
        (OSError("IO Error: No space left on device (os error 28)"), StorageFullError, "free some space"),
    ],
)
def test_errors_of_transfers(error: Exception, kind: type[Exception], text: str) -> None:
    """hf_xet is compiled: its errors come out of a function of the library that called it."""
    in_library = FunctionType(fail.__code__, {"__name__": "huggingface_hub.file_download"})
    with pytest.raises(kind, match=rf"(?s)hf://datasets/me/hops.*{text}"), typed_hub_errors("me/hops", "run again"):
        in_library(error)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(13, "denied"), ValueError("a bug")])
def test_other_errors_stay(error: Exception) -> None:
    in_library = FunctionType(fail.__code__, {"__name__": "huggingface_hub.file_download"})
    raising = fail if isinstance(error, RuntimeError) else in_library
    with pytest.raises(type(error)) as raised, typed_hub_errors("me/hops", "run again"):
        raising(error)
    assert raised.value is error


def test_the_conditions_of_a_gated_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is a RepositoryNotFoundError, too."""
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub")
    response: Any = SimpleNamespace(headers={}, request=None, status_code=403)
    advice = "accept its conditions on https://hub/datasets/me/hops, and log in"
    with pytest.raises(DatasetNotFoundError, match=f"(?s)is gated.*{advice}"), typed_hub_errors("me/hops", "run again"):
        raise GatedRepoError("403 Client Error", response=response)
