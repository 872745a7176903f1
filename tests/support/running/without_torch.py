"""Everything that works without torch, as a program.

python -m tests.support.running.without_torch FOLDER

It runs where torch is not installed, and where it is: `import torch` fails either way.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from pathlib import Path

from tests.support.feed.arguments import grouped


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

    for call, error, words in (
        (lambda: gear_data.SequenceLoader(ds, framework="torch"), MissingExtraError, "gear-data[torch]"),
        (lambda: gear_data.SequenceLoader(ds, device="cuda"), InvalidArgumentError, "framework='torch'"),
        (lambda: loader.dataloader(), InvalidArgumentError, "iterate the loader itself"),
        (lambda: gear_data.open(folder / "dataset", cluster="torchrun"), MissingExtraError, "gear-data[torch]"),
        (lambda: ds.to_torch_dataset(context=4), MissingExtraError, "gear-data[torch]"),
    ):
        try:
            call()
        except error as raised:
            assert words in str(raised), raised
        else:
            raise AssertionError(f"no {error.__name__}")
    assert sys.modules["torch"] is None
    print("ok")


if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # no import finds it
    main(Path(sys.argv[1]))
