"""Progress without a terminal: a line now and then, and no bar."""

from __future__ import annotations

import pytest

from gear_data.common.progress import ProgressLines, advance_with_text, progress_bar


def test_a_short_run_without_a_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(10, "convert", "step", None) as bar:
        for _ in range(10):
            bar.update(1)
    assert capsys.readouterr().err == ""
    assert bar.n == 10


def test_a_long_run_without_a_terminal_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLines(2000, "train", "step", 900, seconds=0.0) as bar:
        bar.set_postfix(loss="0.5", refresh=False)
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
