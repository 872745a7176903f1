"""Imports run one way: no module imports from a layer above its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import gear_data

ROOT = Path(gear_data.__file__).parent

#: From the ground up; modules of one line may import each other.
LAYERS = (
    ("errors",),
    ("schema", "common"),
    ("storage", "kernels"),
    ("ingest", "selection"),
    ("collection",),
    ("residency",),
    ("cluster",),
    ("dataset",),
    ("loaders",),
    ("exports",),
    ("demo", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _imports(path: Path) -> set[str]:
    """First name below gear_data of every import of ours in a file, those for type checking alone left out."""
    tree = ast.parse(path.read_text())
    ignored = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if (
            id(node) not in ignored
            and isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("gear_data.")
        ):
            names.add(str(node.module).split(".")[1])
        elif id(node) not in ignored and isinstance(node, ast.ImportFrom) and node.module == "gear_data":
            names |= {alias.name for alias in node.names if alias.name in LEVEL}
    return names


def test_imports_run_one_way() -> None:
    seen = set()
    for path in sorted(ROOT.rglob("*.py")):
        layer = path.relative_to(ROOT).with_suffix("").parts[0]
        if layer == "__init__":
            continue
        seen.add(layer)
        above = {name for name in _imports(path) if LEVEL[name] > LEVEL[layer]}
        assert not above, f"{path} imports from {above}"
    # rglob does not follow the links of kernels and loaders on every Python.
    for layer in ("kernels", "loaders"):
        for path in (ROOT / layer).rglob("*.py"):
            above = {name for name in _imports(path) if LEVEL[name] > LEVEL[layer]}
            assert not above, f"{path} imports from {above}"
    assert seen | {"kernels", "loaders"} == LEVEL.keys()


def test_ingest_uses_storage_and_below_alone() -> None:
    for path in (ROOT / "ingest").rglob("*.py"):
        below = {"ingest", "storage", "schema", "errors", "common"}
        assert _imports(path) <= below, path


def test_importing_the_package_is_light() -> None:
    code = "import sys, gear_data; print([n for n in ('torch', 'numba', 'datasets', 'h5py') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
