"""The runner of examples fails where an example is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs.examples import Runner


def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a page. Backticks are written as quotes in the tests."""
    page = folder / "page.md"
    page.write_text(text.replace("'''", "```"))
    monkeypatch.chdir(folder)
    Runner(folder, lambda name, target: None, monkeypatch.setenv).run(page)


def test_blocks_share_names_and_output_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "'''python\na = 1\nb = 2\n'''\n\n'''python\nprint(a, b)\n'''\n\n'''text\n{}\n'''\n"
    run(page.format("1 2"), tmp_path, monkeypatch)
    run(page.format("1 ..."), tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match="1 3"):
        run(page.format("1 3"), tmp_path, monkeypatch)


def test_the_time_of_a_conversion_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "'''python\nprint('2 steps, 9.3 KiB in 0.8 s (11.5 KiB/s) -> a/')\n'''\n\n'''text\n{}\n'''\n"
    run(page.format("2 steps, 9.3 KiB in 12 s (1.2 MiB/s) -> a/"), tmp_path, monkeypatch)
    with pytest.raises(AssertionError, match=r"8\.3 KiB"):
        run(page.format("2 steps, 8.3 KiB in 0.8 s (11.5 KiB/s) -> a/"), tmp_path, monkeypatch)


def test_an_error_names_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("# Title\n\n'''python\n1 / 0\n'''\n", tmp_path, monkeypatch)
    assert caught.value.__notes__ == [f"in the block at {tmp_path}/page.md:3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'''console\n$ gear-data verify missing/\n'''\n", "exit status 1"),
        ("'''console\n$ gear-data verify\n'''\n", "arguments are required"),
        ("'''console\n$ gear-data --version\nanother version\n'''\n", "another version"),
        ("'''console\n$ pip install 'gear-data[nothing]'\n'''\n", "no extra"),
        ("'''console\n$ pip install something\n'''\n", "install only gear-data"),
        ("'''console\n$ false\n'''\n", "exit status 1"),
        ("'''console\noutput\n'''\n", "begins with a command"),
    ],
)
def test_a_wrong_command_fails(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=message):
        run(text, tmp_path, monkeypatch)


def test_a_block_in_an_unknown_language_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'pyhton'"):
        run("'''pyhton\n1 / 0\n'''\n", tmp_path, monkeypatch)


def test_skipped_blocks_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = "<!-- skip: next \"needs a GPU\" -->\n'''python\n1 / 0\n'''\n"
    run(skipped + "\n'''python\nprint(1)\n'''\n\n'''text\n1\n'''\n", tmp_path, monkeypatch)


def test_titled_blocks_become_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "'''python title=\"train.py\"\nprint('trained')\n'''\n\n'''console\n$ python train.py\ntrained\n'''\n"
    run(page, tmp_path, monkeypatch)


def test_an_exit_status_may_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("'''console\n$ gear-data verify missing/\n...\n$ echo $?\n1\n'''\n", tmp_path, monkeypatch)
