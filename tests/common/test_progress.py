"""Progress: bars on a terminal, and elsewhere a line now and then."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from gear_data.common.progress import ProgressLines, TerminalBar, advance_with_text, progress_bar

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_END = b"<end>"
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Makes standard error a terminal. The list then has what was written to it."""
    master, slave = pty.openpty()
    data, written = bytearray(), []

    def read() -> None:
        while not data.endswith(_END):
            data.extend(os.read(master, 4096))

    with ExitStack() as stack:
        stack.callback(os.close, master)
        file = stack.enter_context(os.fdopen(slave, "w"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # Pytest's capture replaces it between a fixture and its test, so this is no fixture.
        patch.setattr(sys, "stderr", file)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        patch.delenv("NO_COLOR", raising=False)
        reader = stack.enter_context(ThreadPoolExecutor(1)).submit(read)
        try:
            yield written
        finally:
            file.write(_END.decode())
            file.flush()
            reader.result(60)
        written.append(data.removesuffix(_END).decode())


def drawn(text: str) -> list[str]:
    """Returns the lines without colours and movements of the cursor."""
    return [line.strip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", text)) if line.strip()]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.common.progress._DRAW_SECONDS", 0.0)
    with terminal() as written, progress_bar(4000, "convert [red]", "step", None) as bar:
        bar.update(1000)
        bar.set_text("2 files, 3 MiB/s")
        bar.update(1000)
        bar.update(6000)  # the total was underestimated
    (text,) = written
    lines = drawn(text)
    assert lines[0].endswith("convert [red]")
    assert lines[1].endswith("convert [red]: 25 %, 1k of 4k step")
    assert re.search(r": 50 %, 2k of 4k step, 2 files, 3 MiB/s, [\d.]+[kMG]? step/s, \d+:\d\d:\d\d left$", lines[2])
    assert ": 100 %, 8k of 8k step, " in lines[3]
    assert text.rindex(_SHOW_CURSOR) > text.rindex("100 %")


def test_bars_at_the_same_time_are_lines_of_one_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.common.progress._DRAW_SECONDS", 0.0)
    # As before rich 15.
    monkeypatch.setattr("rich.file_proxy.FileProxy.isatty", lambda self: False, raising=False)
    with terminal() as written:
        with progress_bar(10, "outer", "shard", None) as outer:
            with progress_bar(None, "inner", "B", True) as inner:
                inner.update(2048)
                outer.update(5)
            outer.update(1)
        with progress_bar(10, "next", "shard", None) as following:
            following.update(3)
            outer.update(1)  # has ended
    (text,) = written
    assert text.count(_SHOW_CURSOR) == 2
    lines = drawn(text)
    both = next(i for i, line in enumerate(lines) if "50 %, 5 of 10 shard" in line)
    assert lines[both + 1].endswith("inner: 2.0 KiB")
    assert not any("inner" in line for line in lines[both + 2 :])
    assert lines[-1].endswith("next: 30 %, 3 of 10 shard")


def test_a_fast_loop_draws_now_and_then() -> None:
    with terminal() as written, progress_bar(100_000, "feed", "batch", None) as bar:
        assert isinstance(bar, TerminalBar)
        for _ in range(100_000):
            bar.update(1)
        assert bar.n == 100_000
    assert len(drawn(*written)) < 1000


def test_a_bar_that_an_error_ends_shows_the_cursor_again() -> None:
    with terminal() as written, pytest.raises(KeyboardInterrupt), progress_bar(10, "convert", "step", None):
        raise KeyboardInterrupt
    assert _SHOW_CURSOR in written[0]


def test_a_short_run_without_a_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(10, "convert", "step", None) as bar:
        for _ in range(10):
            bar.update(1)
    assert capsys.readouterr().err == ""
    assert bar.n == 10


def test_a_long_run_without_a_terminal_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(2000, "train", "step", 900, seconds=0.0) as bar:
        bar.set_text("loss 0.5")
        bar.update(100)
        bar.update(3000)
    assert capsys.readouterr().err.splitlines() == [
        "train: 1,000 of 2,000 step, 0 min, loss 0.5",
        "train: 4,000 of 4,000 step, 0 min, loss 0.5",
    ]


@pytest.mark.parametrize("show", [False, None])
def test_other_ranks_and_silent_runs_print_nothing(
    show: bool | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with progress_bar(10, "convert", "step", show) as bar:
        assert not isinstance(bar, ProgressLines)
        bar.update(10)
    assert capsys.readouterr().err == ""


def test_a_text_is_renewed_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    texts = iter(["first", "second"])
    with ProgressLines(4, "feed", "batch", seconds=0.0) as bar:
        # A text follows the line of its update.
        advance = advance_with_text(bar, lambda: next(texts), seconds=0.0)
        advance(1)
        advance(2)
        never = advance_with_text(bar, lambda: next(texts), seconds=60.0)
        never(1)
    assert capsys.readouterr().err.splitlines() == [
        "feed: 1 of 4 batch, 0 min",
        "feed: 3 of 4 batch, 0 min, first",
        "feed: 4 of 4 batch, 0 min, second",
    ]
