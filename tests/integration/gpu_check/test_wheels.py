"""The packages of a bundle: those of the checks that the machine with the GPU lacks."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.gpu.errors import GpuCheckError
from scripts.gpu.wheels import MACHINE, PROVIDED, Fetch, collect, installed_in, normalised, pins, requirements
from tests.support.makers.wheels import make_wheel


def fetch_from(folder: Path, index: Mapping[str, list[str]], fetched: list[list[str]]) -> Fetch:
    """Returns a `Fetch` that makes wheels. index: normalised name -> requirements."""

    def fetch(texts: list[str]) -> list[Path]:
        fetched.append(texts)
        wheels = []
        for text in texts:
            name, _, version = text.partition("==")
            name = normalised(name)
            if name in index:
                wheels.append(make_wheel(folder, name, version or "9", index[name]))
        return wheels

    return fetch


def names(wheels: list[Path]) -> list[str]:
    return sorted("-".join(wheel.name.split("-")[:2]) for wheel in wheels)


INDEX = {
    "base": ["Middle_One>=1", "torch>=2", 'old; python_version < "3.12"', 'extra-only; extra == "more"'],
    "middle-one": ["base", "leaf<3"],
    "leaf": ['windows; sys_platform == "win32"'],
    "extra-only": [],
}


def test_requirements_are_followed_as_the_bundles_python_reads_them(tmp_path: Path) -> None:
    fetched: list[list[str]] = []
    wheels = collect(["base"], {"leaf": "2.5", "base": "1.0"}, {}, fetch_from(tmp_path, INDEX, fetched))
    assert names(wheels) == ["base-1.0", "leaf-2.5", "middle_one-9"]
    assert fetched == [["base==1.0"], ["middle-one>=1"], ["leaf==2.5"]]


def test_an_extra_adds_its_requirements_also_to_a_known_wheel(tmp_path: Path) -> None:
    wheels = collect(["base", "base[more]"], {}, {}, fetch_from(tmp_path, INDEX, []))
    assert "extra_only-9" in names(wheels)


@pytest.mark.parametrize(("leaf", "missing"), [("2.9", False), ("3.0", True), (None, False)])
def test_what_the_machine_has_is_left_out_if_it_fits(leaf: str | None, missing: bool, tmp_path: Path) -> None:
    """A version that is not known fits."""
    wheels = collect(["base"], {}, {"leaf": leaf}, fetch_from(tmp_path, INDEX, []))
    assert names(wheels) == ["base-9", *(["leaf-9"] if missing else []), "middle_one-9"]


def test_a_wheel_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpuCheckError, match="no wheels of nowhere were fetched"):
        collect(["base", "nowhere"], {}, {}, fetch_from(tmp_path, INDEX, []))


@pytest.fixture
def index() -> dict[str, list[str]]:
    """The requirements of the packages that are installed here."""
    return {normalised(found.metadata["Name"]): found.requires or [] for found in importlib.metadata.distributions()}


def test_all_packages_are_found_and_pinned(index: dict[str, list[str]], tmp_path: Path) -> None:
    """The bundle's Python reads the metadata of the packages that are installed here."""
    fetched: list[list[str]] = []
    wheels = {
        wheel.name.split("-")[0] for wheel in collect(requirements(), pins(), {}, fetch_from(tmp_path, index, fetched))
    }
    assert wheels >= {
        "h5py", "hypothesis", "llvmlite", "numba", "numpy", "polars_runtime_32", "pyarrow", "pytest", "pytest_xdist",
        "tensordict", "torchrl", "transformers",
    }  # fmt: skip
    assert not [
        name for name in wheels if normalised(name) in PROVIDED or name.startswith(("nvidia", "triton", "sympy"))
    ]
    assert not {"datasets", "matplotlib", "gymnasium", "ray", "jax"} & wheels
    unpinned = [text for texts in fetched for text in texts if "==" not in text]
    assert unpinned == [], "add their pins to constraints.txt"


def test_a_common_machine_lacks_few_packages(index: dict[str, list[str]], tmp_path: Path) -> None:
    wheels = collect(requirements(), pins(), installed_in(MACHINE), fetch_from(tmp_path, index, []))
    found = {wheel.name.split("-")[0] for wheel in wheels}
    assert found >= {"msgspec", "polars", "polars_runtime_32", "tensordict", "torchrl"}
    assert len(found) < 15


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "is not the record of a probe: JSONDecodeError"),
        ({"machine": {}}, "is not the record of a probe: KeyError.*python"),
        ([], "is not the record of a probe: TypeError"),
        ({"machine": {"python": "3.11.9", "packages": {}}}, "the machine has Python 3.11.9; a bundle is for 3.12"),
    ],
)
def test_what_is_no_record_is_told(record: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    file.write_text(record if isinstance(record, str) else json.dumps(record))
    with pytest.raises(GpuCheckError, match=rf"probe\.json:? {message}"):
        installed_in(file)
