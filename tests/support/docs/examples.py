"""Runs the fenced blocks of a Markdown page in order, in one folder, with Sybil.

`python`: runs. With `title="FILE"` the block is written to FILE instead, for a later command; so is one of `yaml`.
`text` after a `python` block that printed: is compared with the output; `...` stands for any text. The time of a
conversion may be another one.
`console`: each `$ ` line runs; the lines below are compared in the same way, if there are any. `$ COMMAND &` goes on in
the background until the page ends. Each local address of a page, such as `127.0.0.1:7471`, gets a free port.

HTML comments are directives: `<!-- files: hopper pusht -->` puts prepared data (`sources.py`) into the folder, and
`<!-- skip: next "reason" -->` skips the next block.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import SkipTest

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer
from sybil.region import Lexeme

from gear_data.cli import main
from tests.support.cluster.runs import free_port
from tests.support.running.warm_python import python

ROOT = Path(__file__).resolve().parents[3]
#: Folders of the repository that examples may use: they are linked.
_FOLDERS = ("benchmarks", "scripts")
#: Languages of blocks that only show something.
SHOWN = {"json", "toml", "yaml", "bibtex"}

_FENCE = RawFencedCodeBlockLexer(re.compile(r"(?P<language>\w+)(?P<options>[^\n]*)\n"))
_TITLE = re.compile(r'title="([^"]+)"')
_PROMPT = re.compile(r"^\$ (.*)$", re.MULTILINE)
_LOCAL_ADDRESS = re.compile(r"\b127\.0\.0\.1:[1-9]\d*")
#: How long a conversion took, which differs from run to run.
_TIME = re.compile(r"\bin [\d.,]+ m?s \([\d.,]+ [KMG]?i?B/s\)")
_MATCH = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Runner:
    """Runner of one page: its folder, the last output, processes in the background.

    Attributes:
        folder: the current folder of the examples.
        prepare: prepare(name, folder) puts prepared data into the folder.
        setenv: sets an environment variable until the page ends.
    """

    folder: Path
    prepare: Callable[[str, Path], None]
    setenv: Callable[[str, str], None]
    printed: str = ""
    status: int = 0
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    _addresses: dict[str, str] = field(default_factory=dict)

    def run(self, page: Path) -> None:
        """Runs all blocks. Raises the first error, with the page and line of its block."""
        sybil = Sybil(parsers=[SkipParser(), self._parse_files, self._parse_fences])
        document = sybil.parse(page)
        try:
            for example in document.examples():
                try:
                    example.evaluate()
                except SkipTest:
                    continue
                except BaseException as error:
                    error.add_note(f"in the block at {page}:{example.line}")
                    raise
        finally:
            for server in self.servers:
                server.terminate()
                server.communicate(timeout=30)

    def _parse_files(self, document: Document) -> Iterable[Region]:
        for region in DirectiveInHTMLCommentLexer("files")(document):
            region.parsed, region.evaluator = region.lexemes["arguments"], self._put_files
            yield region

    def _parse_fences(self, document: Document) -> Iterable[Region]:
        evaluators = {"python": self._run_python, "console": self._run_console, "text": self._compare}
        for region in _FENCE(document):
            language = region.lexemes["language"]
            if _TITLE.search(region.lexemes["options"]) and language != "console":
                region.parsed, region.evaluator = region.lexemes["source"], self._write_file
                yield region
                continue
            if language in SHOWN:
                continue
            if language not in evaluators:
                raise ValueError(f"{document.path}: a block in {language!r}: use {', '.join(evaluators)}")
            source = region.lexemes["source"]
            text = _LOCAL_ADDRESS.sub(self._free_address, source)
            region.parsed = Lexeme(text, source.offset, source.line_offset)
            region.evaluator = evaluators[language]
            yield region

    def _free_address(self, address: re.Match[str]) -> str:
        # Tests that run beside these ones, on the same machine, use the same pages.
        return self._addresses.setdefault(address[0], f"127.0.0.1:{free_port()}")

    def _put_files(self, example: Example) -> None:
        for name in example.parsed.split():
            self.prepare(name, self.folder)

    def _write_file(self, example: Example) -> None:
        self.printed = ""
        title = _TITLE.search(example.region.lexemes["options"])
        assert title is not None
        (self.folder / title[1]).write_text(example.parsed)

    def _run_python(self, example: Example) -> None:
        self.printed = ""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            PythonEvaluator()(example)
        self.printed = output.getvalue()

    def _compare(self, example: Example) -> None:
        if self.printed:
            _check_output(example.parsed, self.printed)
        self.printed = ""

    def _run_console(self, example: Example) -> None:
        self.printed = ""
        parts = _PROMPT.split(example.parsed.replace("\\\n", " "))
        assert not parts[0].strip(), f"a console block begins with a command, not {parts[0]!r}"
        for command, expected in zip(parts[1::2], parts[2::2], strict=True):
            output = self._run_command(command)
            if expected.strip():
                _check_output(expected, output)
        assert self.status == 0, f"{command}: exit status {self.status}"

    def _run_command(self, command: str) -> str:
        """Runs one command and returns its output."""
        words = shlex.split(command, comments=True)
        if words == ["echo", "$?"]:
            status, self.status = self.status, 0
            return f"{status}\n"
        assert self.status == 0, f"exit status {self.status} before {command!r}"
        if words[0] == "export":
            for assignment in words[1:]:
                self.setenv(*assignment.split("=", 1))
            return ""
        if words[:2] == ["pip", "install"]:
            _check_extras(words[2:])
            return ""
        if words[-1] == "&":
            self._start(words[:-1])
            return ""
        if words[0] == "gear-data":
            if words[-2] == ">":
                (self.folder / words[-1]).write_text(self._run_cli(words[1:-2]))
                return ""
            return self._run_cli(words[1:])
        done = subprocess.run(
            command, shell=True, executable="/bin/bash", cwd=self.folder, capture_output=True, text=True,
            env=_environment(), timeout=120,
        )  # fmt: skip
        self.status = done.returncode
        assert self.status == 0, f"{command}: exit status {self.status}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run_cli(self, arguments: list[str]) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                self.status = main(arguments)
            except SystemExit as end:
                self.status = int(end.code or 0)
        if self.status > 1:
            raise AssertionError(output.getvalue())
        return output.getvalue()

    def _start(self, words: list[str]) -> None:
        """Starts a command in the background and waits for its first line."""
        if words[0] == "gear-data":
            words = [sys.executable, "-m", "gear_data.cli", *words[1:]]
        server = subprocess.Popen(
            words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
        )
        self.servers.append(server)
        assert server.stdout is not None and server.stderr is not None
        if not server.stdout.readline():
            raise AssertionError(server.stderr.read())


def prepared(cache: Path) -> Callable[[str, Path], None]:
    """Returns what copies prepared data into a folder, and makes each only once."""
    from tests.support.docs.sources import SOURCES

    def prepare(name: str, folder: Path) -> None:
        if name in _FOLDERS:
            (folder / name).symlink_to(ROOT / name)
            return
        made = cache / name
        if not made.exists():
            SOURCES[name](made)
        copy: Callable[[Path, Path], object] = shutil.copytree if made.is_dir() else shutil.copy
        copy(made, folder / name)

    return prepare


def _check_output(expected: str, found: str) -> None:
    expected, found = (_TIME.sub("in TIME", text) for text in (expected, found))
    checker = doctest.OutputChecker()
    if not checker.check_output(expected.strip() + "\n", found.strip() + "\n", _MATCH):
        example = doctest.Example("", expected.strip() + "\n")
        raise AssertionError(checker.output_difference(example, found.strip() + "\n", doctest.REPORT_NDIFF))


def _check_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        name, _, wanted = word.partition("[")
        assert name in ("gear-data", ".", "-e"), f"pip install {name}: the examples install only gear-data"
        unknown = {extra for extra in wanted.rstrip("]").split(",") if extra} - extras.keys()
        assert not unknown, f"no extra {unknown} in pyproject.toml"


def _environment() -> dict[str, str]:
    # `torchrun` of the first folder starts quickly.
    folders = [Path(python()).parent, Path(sys.executable).parent]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
