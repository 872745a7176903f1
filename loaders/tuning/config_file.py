"""loader.json: the choice of `gear_data.tune`, and the loader's other arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from gear_data.common.typed_json import is_json, parse_json, resolved
from gear_data.dataset.dataset import Dataset
from gear_data.dataset.open import reopen
from gear_data.errors import DestinationExistsError, GearError, LoaderConfigError
from gear_data.loaders.arguments.options import GROUPS, given_fields
from gear_data.loaders.arguments.pack import check_pack
from gear_data.loaders.mixture import Mixture
from gear_data.loaders.presets.offsets import check_offsets, offsets_from_json, offsets_to_json
from gear_data.loaders.tuning.setting import Setting
from gear_data.relative import check_relative
from gear_data.storage.atomic import atomic_file

FORMAT, VERSION = "gear-data loader", 2
#: Arguments of `SequenceLoader` that a file may hold. The others are tuned, or belong to one process or one run.
BATCH_ARGUMENTS = frozenset(
    (
        "batch_size", "context", "preset", "sampler", "seed", "columns", "choose", "offsets", "normalize",
        "relative", "goals", "decoders", "resize", "transform", "pack", "framework", "device", *GROUPS,
    )
)  # fmt: skip
_TUNE_AGAIN = "run gear-data tune again"


@resolved
class _Head(msgspec.Struct):
    format: str
    version: int


class _Config(_Head, forbid_unknown_fields=True):
    """The document.

    Attributes:
        tuned: the setting.
        arguments: arguments of the tuned loader.
        missing: names of its further arguments, whose values JSON cannot hold.
        columns: name -> dtype and shape, of each dataset.
        measured: facts for people; nothing reads them.
    """

    tuned: Setting
    arguments: dict[str, Any]
    missing: list[str]
    columns: list[dict[str, str]]
    measured: dict[str, Any]


@dataclass(frozen=True)
class SavedConfig:
    """The checked contents of a file.

    Attributes:
        setting: the tuned arguments.
        arguments: the other arguments of the loader.
    """

    setting: Setting
    arguments: Mapping[str, Any]

    def open(self, dataset: Dataset | Mixture, residency: str | None) -> Dataset | Mixture:
        """Returns the dataset with the file's residency and queue pairs.

        residency: replaces the file's residency.

        Raises:
            InvalidArgumentError: the dataset cannot be opened so. `gear_data.open` lists further errors.
        """
        return reopen_with(dataset, residency or self.setting.residency, self.setting.queue_pairs)


def reopen_with(dataset: Dataset | Mixture, residency: str | None, queue_pairs: int | None) -> Dataset | Mixture:
    """Returns a dataset opened with another residency or number of queue pairs.

    None changes nothing. The datasets of a mixture stay as they are.

    Raises:
        InvalidArgumentError: the dataset cannot be opened so. `gear_data.open` lists further errors.
    """
    return dataset if isinstance(dataset, Mixture) else reopen(dataset, residency, queue_pairs)


def columns_of(dataset: Dataset | Mixture) -> list[dict[str, str]]:
    """Returns column -> dtype and shape such as `float32[11]`, of each dataset."""
    datasets = [each.dataset for each in dataset.components] if isinstance(dataset, Mixture) else [dataset]
    return [
        {
            c.name: c.dtype + (str(list(c.shape)).replace(" ", "") if c.shape else "")
            for c in (*each.schema.columns, *each.schema.videos)
        }
        for each in datasets
    ]


def write_config(
    path: str | os.PathLike[str],
    setting: Setting,
    arguments: Mapping[str, Any],
    columns: list[dict[str, str]],
    measured: Mapping[str, Any],
) -> None:
    """Writes a file, or replaces an older one.

    Args:
        path: the file.
        setting: the tuned arguments.
        arguments: the other arguments of the tuned loader.
        columns: see `columns_of`.
        measured: facts for people, JSON-able.

    Raises:
        DestinationExistsError: `path` has a file of another kind.
        StorageFullError, UnwritableError: the file cannot be written.
    """
    check_destination(path)
    kept = {name: value for name, value in arguments.items() if name in BATCH_ARGUMENTS}
    if kept.get("offsets") is not None:
        kept["offsets"] = offsets_to_json(check_offsets(kept["offsets"]))
    if kept.get("relative") is not None:
        kept["relative"] = {name: each.to_json() for name, each in check_relative(kept["relative"]).items()}
    if (pack := check_pack(kept.get("pack"), 1)) is not None:
        kept["pack"] = asdict(pack)
    for name in GROUPS.keys() & kept.keys():
        kept[name] = given_fields(kept[name])
    stored = {name: value for name, value in kept.items() if is_json(value)}
    config = _Config(FORMAT, VERSION, setting, stored, sorted(kept.keys() - stored.keys()), columns, dict(measured))
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(json.dumps(msgspec.to_builtins(config), indent=2) + "\n")


def check_destination(path: str | os.PathLike[str]) -> None:
    """Raises DestinationExistsError if a path has something that is not such a file."""
    if not Path(path).exists():
        return
    try:
        head = parse_json(Path(path).read_bytes(), _Head, error=LoaderConfigError, file=str(path))
    except (OSError, LoaderConfigError):
        head = None
    if head is None or head.format != FORMAT:
        raise DestinationExistsError(
            "exists, and is no file of gear-data tune", file=str(path), hint="give another name, or remove it"
        )


def read_config(path: str | os.PathLike[str], dataset: Dataset | Mixture, given: Iterable[str] = ()) -> SavedConfig:
    """Reads and checks a file.

    Args:
        path: the file.
        dataset: the dataset of the loader.
        given: names of the arguments that the caller gives.

    Raises:
        LoaderConfigError: see `SequenceLoader.from_config`.
    """
    file = str(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise LoaderConfigError(
            f"cannot be read: {error.strerror or error}", file=file, hint="write it with gear-data tune"
        ) from error
    head = parse_json(text, _Head, error=LoaderConfigError, file=file, hint=_TUNE_AGAIN)
    if head.format != FORMAT:
        raise LoaderConfigError(f"the format is {head.format!r}, not {FORMAT!r}", file=file, hint=_TUNE_AGAIN)
    if head.version != VERSION:
        raise LoaderConfigError(
            f"has version {head.version}; this gear-data reads version {VERSION}",
            file=file,
            hint=f"{_TUNE_AGAIN}, or upgrade gear-data",
        )
    config = parse_json(text, _Config, error=LoaderConfigError, file=file, hint=_TUNE_AGAIN)
    if unknown := sorted(config.arguments.keys() - BATCH_ARGUMENTS):
        raise LoaderConfigError(
            f"has the unknown argument '{unknown[0]}'", file=file, hint=f"remove it, or {_TUNE_AGAIN}"
        )
    _check_columns(config.columns, columns_of(dataset), file)
    if absent := sorted(set(config.missing) - set(given)):
        raise LoaderConfigError(
            f"was tuned with {absent[0]}=, and a file cannot hold its value",
            file=file,
            hint=f"give from_config the argument {absent[0]}= too",
        )
    arguments = dict(config.arguments)
    if "offsets" in arguments:
        arguments["offsets"] = offsets_from_json(arguments["offsets"])
    for name in GROUPS.keys() & arguments.keys():
        try:
            arguments[name] = GROUPS[name](**arguments[name])
        except (TypeError, GearError) as error:
            raise LoaderConfigError(f"has wrong {name}: {error}", file=file, hint=_TUNE_AGAIN) from error
    return SavedConfig(config.tuned, arguments)


def _check_columns(tuned: list[dict[str, str]], found: list[dict[str, str]], file: str) -> None:
    if len(tuned) != len(found):
        raise LoaderConfigError(
            f"was tuned for {len(tuned)} datasets, and the loader has {len(found)}", file=file, hint=_TUNE_AGAIN
        )
    for old, new in zip(tuned, found, strict=True):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                raise LoaderConfigError(
                    f"was tuned for a dataset with other columns: '{name}' was {old.get(name, 'absent')}, and is "
                    f"{new.get(name, 'absent')}",
                    file=file,
                    column=name,
                    hint=f"{_TUNE_AGAIN} with this dataset",
                )
