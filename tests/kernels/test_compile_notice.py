"""The notice that kernels are being compiled: progress on a terminal, one line of a log elsewhere."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
import pytest
from numba.core import event

from gear_data.common.progress import TerminalBar
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


class Terminal(io.StringIO):
    """A terminal that keeps what it shows."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_function_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_notice, "_SECONDS", 0.0)
    kernel()(1)  # the listener of this process must not show a bar of its own
    monkeypatch.setattr("gear_data.common.progress._DRAW_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    with listening(CompileNotice()):
        kernel()(1)
        kernel()(1)
    shown = terminal.getvalue()
    for state in ("0 functions, outer", "0 functions, inner", "2 functions, outer", "2 functions, inner"):
        assert f"compile kernels, once for this machine: {state}" in shown
    assert TerminalBar._shared is None
    # The line is erased. Older versions of rich then go to the next one.
    assert shown.endswith(("\r\x1b[2K\x1b[?25h\r", "\r\x1b[2K\n\x1b[?25h\r"))


def test_one_line_tells_that_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_notice, "_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    kernel()(1)  # the listener of this process may not have told yet
    caplog.clear()
    with listening(CompileNotice()):
        kernel("someone.else")(1)
        assert caplog.messages == []
        kernel()(1)
        kernel()(1)
    assert len(caplog.messages) == 1
    assert caplog.records[0].levelno == logging.INFO  # quiet without a terminal, unless a program asks for it
    assert "compiles its kernels" in caplog.messages[0]


@pytest.mark.parametrize("quick", [True, False])
def test_no_line_from_quick_kernels_and_other_ranks(
    quick: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    if quick:
        monkeypatch.setattr(compile_notice, "_SECONDS", 1000.0)
    else:
        monkeypatch.setattr(compile_notice, "_SECONDS", 0.0)
        monkeypatch.setenv("LOCAL_RANK", "1")
    with listening(CompileNotice()):
        kernel()(1)
    assert caplog.messages == []
