"""Records what must not change with the code, and compares it at another commit.

    python -m tests.unchanged record before/                     # at the commit before a change
    python -m tests.unchanged compare before/                    # at the commit after it
    python -m tests.unchanged compare before/ --only '*npz*'     # only the entries whose names match; also of record

`record` makes a source of every format and damaged copies of it, converts them, and saves fingerprints, hashes of
files, findings and errors. It also saves digests of batches, windows, states and specs of loaders over all presets and
samplers. `compare` converts the same sources, opens the recorded datasets, loads the recorded states, and names each
entry that differs. The exit status is 1 then. Not a test: nothing here says which value is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from gear_data.errors import GearError
from tests.unchanged.batches import loaders, make_datasets, observed
from tests.unchanged.conversions import conversions, make_sources


def _entries(
    folder: Path, data: Path | None, before: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yields (name, function that observes it) for all entries."""
    for name, make in loaders(folder):
        yield name, partial(observed, make, before.get(name, {}).get("state"))
    for name, conversion in conversions(folder, data):
        yield name, partial(conversion.observe, folder / "converted")


def _observe(
    folder: Path, data: Path | None, wanted: Callable[[str], bool], before: Mapping[str, Any]
) -> dict[str, Any]:
    found = {}
    for name, observe in _entries(folder, data, before):
        if wanted(name):
            try:
                found[name] = observe()
            except GearError as error:
                found[name] = {"error": f"{type(error).__name__}: {error.message}"}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def record(folder: Path, data: Path | None, wanted: Callable[[str], bool]) -> int:
    """Makes sources and datasets in a new folder, and writes `entries.json`."""
    make_datasets(folder)
    make_sources(folder, wanted)
    entries = _observe(folder, data, wanted, {})
    (folder / "entries.json").write_text(json.dumps({"data": data and str(data), "entries": entries}, indent=1))
    print(f"{len(entries)} entries in {folder}/entries.json")
    return 0


def compare(folder: Path, wanted: Callable[[str], bool]) -> int:
    """Prints the entries that differ from the recorded ones."""
    recorded = json.loads((folder / "entries.json").read_text())
    before = {name: entry for name, entry in recorded["entries"].items() if wanted(name)}
    after = _observe(folder, recorded["data"] and Path(recorded["data"]), wanted, before)
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in differing:
        old, new = before.get(name, {}), after.get(name, {})
        print(f"{name}:")
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                print(f"  {key}: {str(old.get(key))[:400]} -> {str(new.get(key))[:400]}")
    print(f"{len(differing)} of {len(before)} entries differ")
    return int(bool(differing))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="a new folder, or a recorded one")
    parser.add_argument("--data", type=Path, help="with record: a folder of further sources")
    parser.add_argument("--only", nargs="*", default=["*"], help="globs of names of entries")
    options = parser.parse_args(arguments)

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in options.only)

    if options.job == "record":
        return record(options.folder, None if options.data is None else options.data.resolve(), wanted)
    return compare(options.folder, wanted)


if __name__ == "__main__":
    sys.exit(main())
