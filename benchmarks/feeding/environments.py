"""Virtual environments, one per peer: their requirements conflict."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: The folder benchmarks/.
HERE = Path(__file__).resolve().parents[1]

#: Environment -> newest CPython that the peer has wheels for, if older than ours.
NEWEST_PYTHON = {"reverb": (3, 11)}
#: Environment -> oldest CPython that the peer takes, if newer than ours.
OLDEST_PYTHON = {"lerobot-0.6": (3, 12)}


class ContenderError(Exception):
    """A contender is not installed or has stopped; the message gives the reason."""


def venv_python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def requirements(environment: str) -> Path:
    return HERE / "requirements" / f"{environment}.txt"


def receipt(folder: Path) -> Path:
    """Returns the path of the copy of an environment's requirements.

    The copy is written last, so it marks a complete environment.
    """
    return folder / "installed-requirements.txt"


def is_installed(folder: Path, environment: str) -> bool:
    return receipt(folder).is_file() and receipt(folder).read_text() == requirements(environment).read_text()


def add_environment_options(parser: argparse.ArgumentParser, *environments: str) -> None:
    """Adds the options `--venvs`, `--install` and `--python`. The last gives pairs of environment and interpreter.

    Args:
        parser: the benchmark's.
        environments: those that the benchmark uses; none given: all that have requirements.
    """
    example = environments[0] if environments else "torchrl"

    def named_path(text: str) -> tuple[str, Path]:
        name, _, path = text.partition("=")
        known = name in environments if environments else requirements(name).is_file()
        if not known or not path:
            raise argparse.ArgumentTypeError(f"give ENVIRONMENT=PATH, such as {example}=venv/bin/python")
        return name, Path(path)

    parser.add_argument(
        "--venvs", type=Path, default=HERE.parent / ".bench-venvs", help="folder of the peers' environments"
    )
    parser.add_argument("--install", action="store_true", help="create the environments that are missing")
    parser.add_argument(
        "--python",
        type=named_path,
        action="append",
        default=[],
        metavar=f"{environments[0] if len(environments) == 1 else 'ENVIRONMENT'}=PATH",
        help="use this interpreter for a peer instead of its environment; may be given several times",
    )


def base_interpreter(environment: str) -> str:
    wanted = min(sys.version_info[:2], NEWEST_PYTHON.get(environment, sys.version_info[:2]))
    wanted = max(wanted, OLDEST_PYTHON.get(environment, wanted))
    if wanted == sys.version_info[:2]:
        return sys.executable
    name = f"python{wanted[0]}.{wanted[1]}"
    found = shutil.which(name)
    if found is None:
        raise ContenderError(f"needs CPython {wanted[0]}.{wanted[1]}: {name} is not on PATH")
    return found


def install(venvs: Path, environment: str) -> None:
    """Creates the environment and installs its requirements.

    Does nothing if the environment is complete.
    """
    folder = venvs / environment
    if is_installed(folder, environment):
        return
    venvs.mkdir(parents=True, exist_ok=True)
    print(f"installing {environment} into {folder}", file=sys.stderr)
    wanted = requirements(environment)
    for command in (
        [base_interpreter(environment), "-m", "venv", str(folder.resolve())],
        [str(venv_python(folder.resolve())), "-m", "pip", "install", "--quiet", "-r", str(wanted)],
    ):
        # Requirements may name this checkout.
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, cwd=HERE.parent
        )
        if done.returncode:
            raise ContenderError(f"not installable: {last_line(done.stderr)}")
    shutil.copyfile(wanted, receipt(folder))


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
