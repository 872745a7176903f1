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

import pytest

import gear_data
from tests.support.imports import Import, Package

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = Path(gear_data.__file__).parent
TESTS = Path(__file__).parent

#: Packages and modules below gear_data, and the root `gear_data` itself, from the lowest layer to the highest. A layer
#: imports only itself and the layers below it.
LAYERS = (
    ("error_text", "version", "words"),
    ("errors",),
    ("schema", "stacking", "relative", "common", "examples"),
    ("video",),
    ("storage", "kernels"),
    ("ingest", "selection"),
    ("collection",),
    ("evaluation",),
    ("residency",),
    ("cluster",),
    ("growing",),
    ("dataset",),
    ("loaders", "hub"),
    ("integrations",),
    ("exports", "recording", "reports"),
    ("gear_data",),
    ("demo", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
#: Methods of the facade `Dataset` that call a layer above: method -> the module that it imports.
UPWARD_CALLS = {
    "Dataset.report": "gear_data.reports.report",
    "Dataset.to_torch_dataset": "gear_data.loaders.frameworks.map_datasets",
}
FACADE = "gear_data.dataset.dataset"

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
OTHER_TESTS = {"benchmarks", "chaos", "docs", "fuzz", "gpu", "integration", "rdma", "support", "unchanged"}


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
def package() -> Package:
    public = {name: module for name, (module, _) in gear_data._PUBLIC.items()}
    return Package("gear_data", modules().keys(), public)


@cache
def imports(module: str) -> frozenset[Import]:
    """Returns the modules of gear_data that a module imports."""
    found = package().imports(modules()[module].read_text(), module)
    if module == "gear_data":
        return found | {Import(each, "__getattr__") for each in package().public.values()}
    return found


def layer_of(module: str) -> str:
    """Returns the name that `LAYERS` lists: of a package or module below gear_data, or gear_data itself."""
    return module.split(".")[1] if "." in module else module


def above(module: str, found: Iterable[Import]) -> set[Import]:
    """Returns those of a module's imports that are of layers above its own."""
    return {each for each in found if LEVEL[layer_of(each.module)] > LEVEL[layer_of(module)]}


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
    assert {layer_of(module) for module in modules()} == LEVEL.keys(), "LAYERS must list every package and module"
    for module in modules():
        if module != FACADE:
            assert not (found := above(module, imports(module))), f"{module} imports from layers above its own: {found}"


def test_the_upward_calls_of_the_facade_are_listed() -> None:
    found = above(FACADE, imports(FACADE))
    assert found == {Import(module, method) for method, module in UPWARD_CALLS.items()}


def test_ingest_does_not_import_selection() -> None:
    below = {"ingest", *(name for names in LAYERS[: LEVEL["storage"] + 1] for name in names)} - {"relative"}
    for module in modules():
        if layer_of(module) == "ingest":
            assert {layer_of(each.module) for each in imports(module)} <= below, module


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns modules that import each other; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    listed = {Import(module, method) for method, module in UPWARD_CALLS.items()}
    graph = {
        module: {each.module for each in imports(module) if module != FACADE or each not in listed}
        for module in modules()
    }
    assert not (found := circle(graph)), f"modules import each other: {' -> '.join(found)}"


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import gear_data\n    return gear_data.SequenceLoader",
        "def f():\n    import gear_data as root\n    return root.SequenceLoader(1)",
        "def f():\n    from gear_data import SequenceLoader",
        "class A:\n    def f(self):\n        import gear_data.schema\n        gear_data.SequenceLoader(1)",
    ],
)
def test_public_names_count_as_imports_of_their_modules(source: str) -> None:
    found = package().imports(source, "gear_data.dataset.synthetic")
    function = "A.f" if source.startswith("class") else "f"
    assert Import("gear_data.loaders.sequence_loader", function) in found
    assert Import("gear_data.loaders.sequence_loader", function) in above("gear_data.dataset.synthetic", found)


@pytest.mark.parametrize(
    ("source", "modules_found"),
    [
        ("import gear_data", {"gear_data"}),
        ("import gear_data\nprint(gear_data.__version__)", {"gear_data"}),
        ("from gear_data import errors", {"gear_data.errors"}),
        ("from gear_data.dataset import filters, dataset", {"gear_data.dataset.filters", "gear_data.dataset.dataset"}),
        ("from gear_data.schema import Schema", {"gear_data.schema"}),
        ("import gear_data.cli.hub as hub", {"gear_data.cli.hub"}),
        ("import gear_data.schema\ngear_data.errors.Any", {"gear_data.schema", "gear_data.errors"}),
        ("importlib.import_module('gear_data.hub.push')", {"gear_data.hub.push"}),
        ("if TYPE_CHECKING:\n    import gear_data\nx: gear_data.Dataset", set()),
        ("if typing.TYPE_CHECKING:\n    pass\nelse:\n    import gear_data.schema", {"gear_data.schema"}),
        ("import gear_database, numpy as gear_data\ngear_data.errors", set()),
    ],
)
def test_imports_are_found_however_they_are_written(source: str, modules_found: set[str]) -> None:
    assert {each.module for each in package().imports(source, "gear_data.synthetic")} == modules_found


def test_circles_through_the_root_are_found() -> None:
    store = "gear_data.dataset.stores.store"
    lazy = package().imports("def f():\n    import gear_data\n    gear_data.open('d')", store)
    graph = {module: {each.module for each in imports(module)} for module in modules() if module != FACADE}
    assert not circle(graph)
    assert store in circle({**graph, store: {each.module for each in lazy}})


@pytest.mark.processes
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


def names_of(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_record_types_are_resolved_when_they_are_defined() -> None:
    """Else two threads that decode one for the first time crash the process."""
    nodes = [node for path in modules().values() for node in ast.walk(ast.parse(path.read_text()))]
    decoded: set[str] = set()
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        function = getattr(call.func, "attr", getattr(call.func, "id", None))
        if function in ("convert", "check_json", "parse_json", "decode_json", "read"):
            decoded |= {name for each in call.args[1:] for name in names_of(each)}
        if function == "decode":
            decoded |= {name for each in call.keywords for name in names_of(each.value)}
    records = [
        node
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and (
            any(ast.unparse(base) == "msgspec.Struct" for base in node.bases)
            or (node.name in decoded and node.decorator_list)
        )
    ]
    assert len(records) > 30
    assert [each.name for each in records if ast.unparse(each.decorator_list[0]) != "resolved"] == []
