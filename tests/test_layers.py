"""Layout of the repository: layers of imports, sizes of folders, names.

Each test checks one rule of the layout. A failure names the file and the rule; move or rename the file, or change the
tables below if the layout itself changes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import gear_data

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = Path(gear_data.__file__).parent
TESTS = Path(__file__).parent

#: Packages and modules below gear_data, from the lowest layer to the highest. A layer imports only itself and the
#: layers below it.
LAYERS = (
    ("error_text",),
    ("errors",),
    ("schema", "stacking", "common"),
    ("video",),
    ("storage", "kernels"),
    ("ingest", "selection"),
    ("collection",),
    ("evaluation",),
    ("residency",),
    ("cluster",),
    ("dataset",),
    ("loaders",),
    ("integrations",),
    ("exports", "hub", "recording", "reports"),
    ("demo", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

#: Packages that `gear_data.integrations` imports when one of its modules is used.
FRAMEWORKS = (
    "accelerate", "deepspeed", "grain", "lightning", "mlflow", "ray", "tensorboard", "torchdata", "torchtitan",
    "transformers", "wandb",
)  # fmt: skip

#: Most modules of one folder.
MAX_MODULES = 16
#: The one module that may have the name of its folder: `gear_data.Dataset` is the package's main class.
NAMED_AS_THEIR_FOLDER = {"dataset/dataset.py"}
#: Prefixes that several modules may share: tests/support/rdma has the programs of one QEMU guest.
SHARED_PREFIXES = {"rdma/guest_"}
#: Folders of tests that mirror no package.
OTHER_TESTS = {"benchmarks", "chaos", "docs", "fuzz", "gpu", "integration", "rdma", "support"}


@cache
def modules() -> Mapping[str, Path]:
    """Returns dotted name -> file of every module of gear_data, packages included."""
    found = {}
    # rglob does not follow the links of kernels and loaders on every version of Python.
    for folder in (PACKAGE, PACKAGE / "kernels", PACKAGE / "loaders"):
        for path in sorted(folder.rglob("*.py")):
            parts = ("gear_data", *path.relative_to(PACKAGE).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Returns the modules of gear_data that a module imports.

    Imports inside functions count. Imports for type checking do not.
    """
    tree = ast.parse(modules()[module].read_text())
    ignored = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gear_data":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules() else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules()}
    return frozenset(found - {module})


def layer_of(module: str) -> str | None:
    """Returns the name below gear_data that `LAYERS` lists; None for gear_data itself."""
    return module.split(".")[1] if "." in module else None


def folders(root: Path) -> dict[Path, list[str]]:
    """Returns folder -> names of its modules, without `__init__` and conftest.

    A leading `test_` is removed from the names.
    """
    paths: Iterable[Path] = modules().values() if root == PACKAGE else root.rglob("*.py")
    found = defaultdict(list)
    for path in paths:
        if path.stem not in ("__init__", "__main__", "conftest"):
            found[path.parent].append(path.stem.removeprefix("test_"))
    return found


def test_imports_run_one_way() -> None:
    layers = {layer for module in modules() if (layer := layer_of(module)) is not None}
    assert layers == LEVEL.keys(), "LAYERS must list every package and module below gear_data"
    for module in modules():
        if (layer := layer_of(module)) is None:
            continue
        above = {name for name in imports(module) if LEVEL.get(layer_of(name) or "", -1) > LEVEL[layer]}
        assert not above, f"{module} imports from the layers above its own: {sorted(above)}"


def test_ingest_imports_only_storage_and_below() -> None:
    below = {"ingest", "storage", "video", "schema", "stacking", "errors", "common", None}
    for module in modules():
        if layer_of(module) == "ingest":
            assert {layer_of(name) for name in imports(module)} <= below, module


def test_no_modules_import_each_other() -> None:
    graph = {module: imports(module) for module in modules() if module != "gear_data"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"modules import each other: {' -> '.join(error.args[1])}") from None


def test_importing_the_package_is_light() -> None:
    heavy = ("torch", "numba", "datasets", "h5py", *FRAMEWORKS)
    code = f"import sys, gear_data, gear_data.integrations; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_folder_has_too_many_modules() -> None:
    for root in (PACKAGE, TESTS):
        for folder, names in folders(root).items():
            assert len(names) <= MAX_MODULES, f"{folder} has {len(names)} modules: make a folder of some of them"


def test_no_module_repeats_the_name_of_its_folder() -> None:
    for root in (PACKAGE, TESTS):
        for folder, names in folders(root).items():
            for name in names:
                file = f"{folder.name}/{name}.py"
                assert name != folder.name or file in NAMED_AS_THEIR_FOLDER, f"{file} repeats its folder's name"
                assert not name.startswith(f"{folder.name}_"), f"{file} repeats its folder's name"


def test_no_prefix_is_shared_by_three_modules() -> None:
    for root in (PACKAGE, TESTS):
        for folder, names in folders(root).items():
            shared = defaultdict(list)
            for name in names:
                shared[name.split("_")[0]].append(name)
            for prefix, alike in shared.items():
                if f"{folder.name}/{prefix}_" not in SHARED_PREFIXES:
                    assert len(alike) < 3, f"{folder} has {sorted(alike)}: make a folder '{prefix}' of them"


def test_no_two_public_classes_have_one_name() -> None:
    where = defaultdict(list)
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(module)
    twice = {name: found for name, found in where.items() if len(found) > 1}
    assert not twice, f"rename all but one of each: {twice}"


def test_tests_mirror_the_packages() -> None:
    for folder in sorted({path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}):
        if folder.parts and folder.parts[0] not in OTHER_TESTS:
            package = PACKAGE / folder
            assert package.is_dir() or package.with_suffix(".py").is_file(), f"tests/{folder} mirrors no package"


def test_no_test_edits_the_import_path() -> None:
    edit = re.compile(r"sys\.path(\.(insert|append|extend)|\s*\+?=|\[)")
    # It starts programs as `python` does, with their own folder first on the path.
    interpreter = TESTS / "support" / "running" / "fork_server.py"
    for path in sorted({*TESTS.rglob("*.py")} - {interpreter}):
        assert not edit.search(path.read_text()), f"{path} edits sys.path: put helpers into tests/support"
