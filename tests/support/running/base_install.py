"""All that works without extras, as a program.

python -m tests.support.running.base_install FOLDER

It runs where the packages of extras are not installed, and where they are: their imports fail either way.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import pkgutil
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.support.feed.arguments import grouped

ROOT = Path(__file__).resolve().parents[3]
#: Extras of developers.
NOT_USERS = ("docs", "gpu-test", "release", "test")
#: A PNG of one black pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c6360000000020001481afa4d0000000049454e44ae426082"
)
#: Modules that are imported after a check that their package is installed.
NEED = {
    "torch": ("demo.", "integrations.", "loaders.builders.device", "loaders.frameworks.",
              "loaders.video.", "residency.device."),
    "jax": ("loaders.frameworks.jax_arrays",),
    "lightning": ("integrations.lightning",),
    "gymnasium": ("recording.environments",),
    "zarr": ("ingest.sources.zarr.bounded",),
    "numcodecs": ("ingest.sources.zarr.bounded",),
}  # fmt: skip
_NAME = re.compile(r"[\w.-]+")


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of_extras() -> set[str]:
    """Returns the packages that the users' extras ask for, and the base does not, as Python imports them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base, extras = (
        {normalized(_NAME.match(each)[0]) for each in lines}
        for lines in (
            project["dependencies"],
            [
                each
                for name, lines in project["optional-dependencies"].items()
                if name not in NOT_USERS
                for each in lines
            ],
        )
    )
    names = {name for name, of in packages_distributions().items() if {*map(normalized, of)} & (extras - base)}
    return {*names, "h5py", "PIL", "torch", "jax", "gymnasium"} - {"gear_data"}


def import_all() -> None:
    """Imports each module of gear_data, and checks that only those of `NEED` cannot be imported."""
    import gear_data

    for module in pkgutil.walk_packages(gear_data.__path__, "gear_data."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                package = (error.name or "").partition(".")[0]
                assert module.name.removeprefix("gear_data.").startswith(NEED.get(package, ())), (module.name, error)


def main(folder: Path) -> None:
    import numpy as np

    import gear_data
    from gear_data.cli import main as command
    from gear_data.cli.doctor import examine
    from gear_data.errors import InvalidArgumentError, MissingExtraError

    def run(*arguments: object) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                status = command([str(each) for each in arguments])
            except SystemExit as ended:  # --help
                status = ended.code
        assert not status, arguments
        return printed.getvalue()

    rng = np.random.default_rng(0)
    rows = {
        "observations": rng.normal(size=(60, 3)).astype(np.float32),
        "actions": rng.integers(0, 5, 60),
        "rewards": rng.normal(size=60).astype(np.float32),
        "terminals": np.arange(60) % 20 == 19,
        "timeouts": np.zeros(60, bool),
    }
    np.savez(folder / "source.npz", **rows)
    assert "convert" in run("--help")
    run("convert", folder / "source.npz", folder / "dataset")
    assert json.loads(run("inspect", folder / "dataset", "--json"))["steps"] == 60
    run("verify", folder / "dataset")
    run("feed", folder / "dataset", "--steps", 3, "--batch-size", 4)
    run("export", folder / "dataset", folder / "rows.parquet", "--format", "parquet")
    assert {check.ok for check in examine() if check.name in ("torch", "cpu kernels")} == {True}

    ds = gear_data.open(folder / "dataset", on_bad_shard="skip")
    loader = gear_data.SequenceLoader(ds, 8, context=5, sampler=gear_data.Weighted("length"), steps=4, normalize=True)
    assert loader.update_weights([0], [3.0]) == 0
    batches = [{key: value.copy() for key, value in batch.items()} for batch in loader]
    assert len(batches) == 4
    for step, batch in enumerate(batches):
        windows = loader.windows(step)
        for row, (episode, start, length) in enumerate(
            zip(windows["episode_id"], windows["start"], windows["length"], strict=True)
        ):
            first = episode * 20 + start
            actions = batch["actions"][row]
            assert np.array_equal(actions[:length], rows["actions"][first : first + length])
            assert not actions[length:].any()
    tokens = {"preset": "gato", "preset_options": {"tokens": {"ragged": False}}}
    for options in ({"preset": "corl", "dtype": "bfloat16"}, tokens):
        for batch in itertools.islice(gear_data.SequenceLoader(ds, 8, **grouped(context=5, **options)), 2):
            assert all(isinstance(value, np.ndarray) for value in batch.values())
    report = gear_data.export_batches(loader, folder / "batches", batches=2)
    assert report.batches == 2

    (folder / "empty.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    images = [{"image": [PNG] * 2, "rewards": [1.0] * 2, "terminated": True}]
    for call, error, words in (
        (lambda: gear_data.SequenceLoader(ds, framework="torch"), MissingExtraError, "gear-data[torch]"),
        (lambda: gear_data.SequenceLoader(ds, device="cuda"), InvalidArgumentError, "framework='torch'"),
        (lambda: loader.dataloader(), InvalidArgumentError, "iterate the loader itself"),
        (lambda: gear_data.open(folder / "dataset", cluster="torchrun"), MissingExtraError, "gear-data[torch]"),
        (lambda: ds.to_torch_dataset(context=4), MissingExtraError, "gear-data[torch]"),
        (lambda: gear_data.convert(folder / "empty.hdf5", folder / "d"), MissingExtraError, "gear-data[hdf5]"),
        (lambda: gear_data.export(ds, folder / "rows.hdf5", format="d4rl"), MissingExtraError, "gear-data[hdf5]"),
        (lambda: gear_data.convert(images, folder / "d"), MissingExtraError, "gear-data[images]"),
        (lambda: gear_data.convert(images, folder / "d"), MissingExtraError, "column 'image'"),
        (lambda: gear_data.record(None, folder / "d"), MissingExtraError, "gear-data[gym]"),
    ):
        try:
            call()
        except error as raised:
            assert words in str(raised), raised
        else:
            raise AssertionError(f"no {error.__name__}")
    encoded = gear_data.convert(images, folder / "encoded", keep_encoded=True, progress=False)
    assert encoded.steps == 2
    assert sys.modules["torch"] is sys.modules["h5py"] is sys.modules["PIL"] is None
    import_all()
    print("ok")


if __name__ == "__main__":
    for name in packages_of_extras():
        sys.modules[name] = None  # type: ignore[assignment]  # no import finds it
    main(Path(sys.argv[1]))
