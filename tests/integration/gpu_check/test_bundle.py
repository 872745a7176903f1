"""A bundle is packed, unpacked by Python, and runs where it lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.gpu import __main__ as command
from scripts.gpu import bundle, interpreter, wheels
from scripts.gpu.bundle import SITE, TOP, write_bundle
from scripts.gpu.errors import ROOT, GpuCheckError
from tests.support.makers.wheels import make_wheel

HERE = ".".join(map(str, sys.version_info[:2]))


def unpack(file: Path, folder: Path) -> Path:
    """Unpacks a bundle as the documentation says. Returns the checkout."""
    subprocess.run([sys.executable, "-m", "tarfile", "-e", str(file), str(folder)], check=True)
    return folder / TOP


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with a link, a script, and files that are ignored, removed and not committed."""
    root = tmp_path / "checkout"
    (root / "code" / "deep").mkdir(parents=True)
    (root / "code" / "deep" / "removed.py").touch()
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("code/deep")
    (root / ".gitignore").write_text("/ignored\n")
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    subprocess.run(["git", "-C", str(root), "add", "."], check=True)
    (root / "code" / "deep" / "removed.py").unlink()
    (root / "code" / "deep" / "new.py").write_text("NEW = 1\n")
    (root / "ignored").touch()
    return root


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    (folder / "made_up").mkdir(parents=True)
    (folder / "made_up" / "__init__.py").write_text("VALUE = 7\n")
    return folder


def test_a_bundle_is_the_checkout_and_the_packages(
    checkout: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_BLOCK_BYTES", 1000)
    # A bundle that lies in the checkout is not packed again.
    file = checkout / "bundle.tar.xz"
    for _ in range(2):
        write_bundle(file, packages, checkout)
    found = unpack(file, tmp_path / "there")
    names = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_symlink() or path.is_file()}
    assert names == {"run.sh", "link", ".gitignore", "code/deep/new.py", f"{SITE}/made_up/__init__.py"}
    assert os.readlink(found / "link") == "code/deep"
    assert subprocess.run([found / "run.sh"], capture_output=True, text=True, check=True).stdout == "ran\n"


def test_a_bundle_that_is_too_large_is_an_error(
    checkout: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "noise.bin").write_bytes(np.random.default_rng(0).bytes(90_000))
    file = tmp_path / "bundle.tar.xz"
    monkeypatch.setattr(bundle, "LIMIT", 100_000)
    write_bundle(file, packages, checkout)
    assert 90_000 < file.stat().st_size < 100_000
    monkeypatch.setattr(bundle, "LIMIT", 90_000)
    before = file.read_bytes()
    with pytest.raises(GpuCheckError, match=r"the bundle has 9\d,\d+ bytes, and may have 90,000: pass .* --installed"):
        write_bundle(file, packages, checkout)
    assert file.read_bytes() == before


def test_the_unpacked_bundle_runs(packages: Path, tmp_path: Path) -> None:
    """It runs from any folder, with its own code and packages."""
    file = tmp_path / "bundle.tar.xz"
    write_bundle(file, packages)
    # The packages of November 2026 have 44 MiB in a bundle.
    assert 1 << 20 < file.stat().st_size < bundle.LIMIT - (50 << 20)
    root = unpack(file, tmp_path / "there")
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTHONPATH", None)
    run = [str(root / "scripts/gpu_check.sh"), "probe", "--results", "found"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "failed: probe\n")
    assert json.loads((tmp_path / "found" / "probe.json").read_text())["machine"]["packages"]["numpy"]
    code = (
        "import made_up, scripts.gpu.interpreter as module; print(made_up.__file__, module.__file__);"
        "found = module.interpreter(); print(*found.folders)"
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(root), str(root / SITE)])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    if HERE == "3.12":
        assert done.stdout.split() == [
            str(root / SITE / "made_up/__init__.py"), str(root / "scripts/gpu/interpreter.py"), str(root),
            str(root / SITE),
        ]  # fmt: skip
    else:
        assert f"the bundle is for Python 3.12, and this is {HERE}: set PYTHON" in done.stderr


def test_modules_that_the_bundle_lacks_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / SITE / "in_bundle").mkdir(parents=True)
    monkeypatch.setattr(interpreter, "PYTHON_VERSION", HERE)
    monkeypatch.setattr(interpreter, "MODULES", ("numpy", "in_bundle", "nowhere", "elsewhere"))
    assert interpreter.interpreter(tmp_path).folders == (tmp_path, tmp_path / SITE)
    assert capsys.readouterr().out.startswith("missing: nowhere, elsewhere; make another bundle, by --bundle with")


def test_the_command_packs_what_a_probed_machine_lacks(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip installs the wheels; only their download is replaced."""
    index = tmp_path / "index"
    index.mkdir()
    made = {
        "gear-made-up": make_wheel(
            index, "gear-made-up", "1", ["gear-there>=2", "gear-needed"], {"gear_made_up.py": b""}
        ),
        "gear-needed": make_wheel(index, "gear-needed", "1", files={"gear_needed.py": b""}),
    }
    monkeypatch.setattr(wheels, "requirements", lambda: ["gear-made-up", "numpy"])
    monkeypatch.setattr(
        wheels, "download", lambda folder: lambda texts: [made[text.partition("=")[0]] for text in texts]
    )
    monkeypatch.setattr(command, "write_bundle", lambda file, packages: write_bundle(file, packages, checkout))
    probe = tmp_path / "probe.json"
    packed = {"numpy": "2.5.2", "Gear_There": "2.1"}
    probe.write_text(json.dumps({"machine": {"python": "3.12.3", "packages": packed}}))
    file = tmp_path / "new" / "bundle.tar.xz"
    assert command.main(["--bundle", str(file), "--installed", str(probe)]) == 0
    site = unpack(file, tmp_path / "there") / SITE
    assert {path.name for path in site.glob("*.py")} == {"gear_made_up.py", "gear_needed.py"}
    printed = capsys.readouterr().out
    assert printed.startswith("gear_made_up-1: 0.0 MiB\ngear_needed-1: 0.0 MiB\n")
    assert printed.endswith(f"{file}: 0.0 MiB, with the checkout\n")


def test_what_a_bundle_is_made_of_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--bundle", str(tmp_path / "x"), "--installed", str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json is not the record of a probe" in capsys.readouterr().err
    with pytest.raises(GpuCheckError, match=f"git cannot list the files of {tmp_path}"):
        write_bundle(tmp_path / "x", tmp_path, tmp_path)
    assert not (tmp_path / "x").exists()
    assert ROOT.joinpath(".gitignore").read_text().count(f"/{SITE}/\n") == 1
