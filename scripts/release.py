"""Builds and checks the files of a release, and tags it.

    make dist       build wheel and sdist twice, compare and check them, install the wheel and run the demo
    make release    write the changelog's section and commit it, do the same, and tag the commit

Nothing is published: push the tag, and the workflow `release` publishes what it builds of it.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Below "## [Unreleased]" until the first release.
_FIRST = "Nothing has been released yet. The first release will be 0.1.0. It offers:\n\n"
#: What an sdist has beside the packages, and what it must not have.
_WANTED = ("CHANGELOG.md", "LICENSE", "README.md", "docs/index.md", "mkdocs.yml", "pyproject.toml")
_STRAY = re.compile(r"(tests|benchmarks)/|.*(__pycache__|\.pyc$|/\.)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files, default dist")
    parser.add_argument("--tag", action="store_true", help="write the changelog's section, and tag the commit")
    options = parser.parse_args()
    if _git("status", "--porcelain", "--untracked-files=no"):
        sys.exit("the checkout has changes: commit them first")
    version = re.search(r'VERSION = "(.+)"', (ROOT / "gear_data/version.py").read_text())[1]  # type: ignore[index]
    tag = f"v{version}"
    if options.tag:
        _git("var", "GIT_COMMITTER_IDENT")  # git says what it lacks for a commit and a tag, before anything is written
        if _git("tag", "--list", tag):
            sys.exit(f"{tag} exists: raise VERSION in gear_data/version.py, or remove the tag")
        _write_changelog(version)
    files = build_twice(options.out)
    for problem in (problems := [each for file in files for each in content_problems(file)]):
        print(problem, file=sys.stderr)
    if problems:
        sys.exit("the files are not complete")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    _try(next(file for file in files if file.suffix == ".whl"))
    if options.tag:
        _git("tag", "--annotate", tag, "--message", f"gear-data {version}")
        print(f"tagged {tag}; publish it: git push origin HEAD {tag}")
    for file in files:
        print(file)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:  # git has said why
        sys.exit(f"git {arguments[0]} failed")
    return done.stdout.strip()


def _write_changelog(version: str) -> None:
    """Commits the changelog with a section of the version, if it has none."""
    path = ROOT / "CHANGELOG.md"
    text = path.read_text()
    if f"## [{version}]" not in text:
        path.write_text(with_section(text, version, datetime.datetime.now(datetime.UTC).date()))
        _git("commit", "--quiet", "--message", f"release: {version}", str(path))


def with_section(text: str, version: str, day: datetime.date) -> str:
    """Returns a changelog whose unreleased changes are a section of the version."""
    before, after = text.split("## [Unreleased]\n\n")
    return f"{before}## [Unreleased]\n\n## [{version}] - {day}\n\n{after.removeprefix(_FIRST)}"


def build_twice(out: Path) -> list[Path]:
    """Builds the commit in two folders, and returns sdist and wheel in `out`.

    Raises:
        SystemExit: the two builds differ.
    """
    epoch = int(_git("log", "-1", "--format=%ct"))
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("gear_data-*"):
        old.unlink()
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            tree.mkdir()
            archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(tree, filter="tar")
            found.append({file.name: file.read_bytes() for file in build(tree, Path(folder, "out"), epoch)})
    first, second = found
    if different := sorted(name for name in first if first[name] != second.get(name)):
        sys.exit(f"two builds differ: {', '.join(different)}")
    for name, data in first.items():
        (out / name).write_bytes(data)
    return [out / name for name in sorted(first)]


def build(tree: Path, out: Path, epoch: int) -> list[Path]:
    """Builds the sdist of a source tree, and the wheel of the sdist, with all times as `epoch`."""
    out.mkdir()
    _backend(tree, "build_sdist", out, epoch)
    [sdist] = out.glob("*.tar.gz")
    repack(sdist, epoch)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")
        [unpacked] = Path(folder).iterdir()
        _backend(unpacked, "build_wheel", out, epoch)
    return sorted(out.iterdir())


def _backend(tree: Path, function: str, out: Path, epoch: int) -> None:
    code = f"import sys; from setuptools import build_meta; build_meta.{function}(sys.argv[1])"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run([sys.executable, "-c", code, out], cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{function} failed:\n{done.stderr}")


def repack(sdist: Path, epoch: int) -> None:
    """Writes an sdist again: files by name, of no user, with `epoch` as their time."""
    data = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(data.getvalue(), mtime=epoch))


def content_problems(file: Path) -> list[str]:
    """Returns what a wheel or an sdist lacks, or has too much."""
    if file.suffix == ".whl":
        names = [name for name in zipfile.ZipFile(file).namelist() if ".dist-info/" not in name]
        sources = {"gear_data/": ROOT / "gear_data", "gear_data/kernels/": ROOT / "kernels"}
        sources["gear_data/loaders/"] = ROOT / "loaders"
        wanted = {prefix + str(each.relative_to(top)) for prefix, top in sources.items() for each in top.rglob("*.py")}
        stray = [name for name in names if not name.startswith("gear_data/") or "__pycache__" in name]
    else:
        with tarfile.open(file) as tar:
            names = [name.partition("/")[2] for name in tar.getnames()]
        wanted, stray = set(_WANTED), [name for name in names if _STRAY.match(name)]
    missing = [f"{file.name} lacks {name}" for name in sorted(wanted - set(names))]
    return missing + [f"{file.name} has {name}" for name in stray]


def _try(wheel: Path) -> None:
    """Installs the wheel in an empty environment, and runs the demo there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        python = Path(folder, "venv/bin/python")
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[train]"], check=True)
        command = [python.with_name("gear-data"), "demo", "--out", "demo-output", "--seconds", "5"]
        subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    main()
