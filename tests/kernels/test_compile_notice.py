"""The notice that kernels are being compiled: one line per process, and none from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
import pytest
from numba.core import event

from gear_data.kernels import compile_notice
from gear_data.kernels.compile_notice import CompileNotice


@contextmanager
def listening(listener: Any) -> Iterator[None]:
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


def kernel(module: str = "gear_data.kernels.cpu.windows") -> Callable[[int], int]:
    """Returns a kernel of a module that is not compiled yet, and calls another one."""

    @numba.njit
    def inner(x: int) -> int:
        return x + 1

    @numba.njit
    def outer(x: int) -> int:
        return inner(x) * 2  # type: ignore[no-any-return]

    outer.py_func.__module__ = inner.py_func.__module__ = module
    return outer  # type: ignore[no-any-return]


def test_one_line_tells_that_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_notice, "_SECONDS", 0.0)
    kernel()(1)  # the listener of this process may not have told yet
    caplog.clear()
    with listening(CompileNotice()):
        kernel("someone.else")(1)
        assert caplog.messages == []
        kernel()(1)
        kernel()(1)
    assert len(caplog.messages) == 1
    assert "compiles its kernels" in caplog.messages[0]


@pytest.mark.parametrize("quick", [True, False])
def test_no_line_from_quick_kernels_and_other_ranks(
    quick: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if quick:
        monkeypatch.setattr(compile_notice, "_SECONDS", 1000.0)
    else:
        monkeypatch.setattr(compile_notice, "_SECONDS", 0.0)
        monkeypatch.setenv("LOCAL_RANK", "1")
    with listening(CompileNotice()):
        kernel()(1)
    assert caplog.messages == []
