"""Writes the dataset card, a README.md for the HuggingFace hub.

With it, a dataset's folder can be pushed to the hub unchanged. The form is YAML between two lines `---`, then Markdown:
https://huggingface.co/docs/hub/datasets-cards. The card describes the manifest and the episode table. No other file
refers to it, so users may edit it.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.paths import is_remote, plain_path, printable
from gear_data.common.progress import pluralize
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.ingest.findings.log import Finding
from gear_data.schema import ColumnSpec
from gear_data.storage.dataset_files import open_files
from gear_data.storage.episode_tables import read_episodes
from gear_data.storage.manifest import Manifest
from gear_data.storage.statistics import ColumnStatistics
from gear_data.storage.writing.file_store import LocalFileStore, put_single_text

CARD_NAME = "README.md"

#: Without it, the hub and `datasets.load_dataset` would read the manifest and the tables as data.
_DATA_FILES = "shards/*.arrow"
_TAGS = ("offline-rl", "reinforcement-learning", "trajectories", "gear-data")

#: Names of licences that the hub accepts (https://huggingface.co/docs/hub/repositories-licenses). Every other licence
#: is "other" there.
_LICENSES = frozenset(
    (
        *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0"),
        *("mpl-2.0", "isc", "unlicense", "wtfpl", "zlib", "openrail", "odbl", "odc-by", "pddl", "cc"),
        *("cc0-1.0", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-3.0"),
        *("cc-by-nc-4.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0"),
        *("cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0"),
    )
)

#: Where GitHub and the hub begin a link of plain text. No backslash prevents these links; a comment inside does.
_AUTOLINK = re.compile(r"(?:https?|ftp|mailto|xmpp)(?=:)|www(?=\.)|(?=@)", re.IGNORECASE)
#: Size classes of the hub, in rows: https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
#: For vectors up to this length the card shows statistics per element. For longer vectors it shows the range.
_SHOWN_ELEMENTS = 4

#: Longer texts of the source are left out of the card. The manifest has them.
_SHOWN_CHARACTERS = 200


def write_card(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Writes README.md into a dataset's folder, and returns its path.

    Args:
        path: the folder of the dataset.
        overwrite: replace a card with another text, such as one that a user edited.

    Raises:
        DestinationExistsError: there is a card with another text.
        InvalidArgumentError: `path` is a URL.
        GearError: the dataset cannot be opened, or the folder cannot be written to.
    """
    place = plain_path(path)
    if is_remote(place):
        raise InvalidArgumentError("a card is written into a folder of this machine, not to a URL", file=place)
    files = open_files(place)
    manifest = files.manifest()
    with files.local(manifest.tables["episodes"]) as table:
        text = printable(dataset_card(manifest, read_episodes(table, manifest)))
    file = Path(place) / CARD_NAME
    if file.exists() and file.read_bytes() != text.encode() and not overwrite:
        raise DestinationExistsError(
            "holds another text, perhaps an edited one",
            file=str(file),
            hint="move it elsewhere, or use --overwrite (overwrite=True)",
        )
    put_single_text(LocalFileStore(Path(place)), CARD_NAME, text)
    return file


def dataset_card(manifest: Manifest, episodes: pa.Table) -> str:
    """Returns the text of a dataset's README.md.

    Args:
        manifest: the dataset's manifest.
        episodes: the dataset's episode table. The card uses `length` and `return`.
    """
    manifest = manifest.without_folders()
    source = str(manifest.provenance.get("source", ""))
    parts = [
        f"---\n{_front_matter(manifest)}---",
        f"# {_text(source.rstrip('/').rsplit('/', 1)[-1] or 'Dataset')}",
        "Trajectories for offline reinforcement learning, as shards of [Arrow](https://arrow.apache.org) IPC files: "
        "one row per step, episode after episode. `episodes.arrow` lists the first row of each episode.",
        '```python\nimport gear_data\n\nds = gear_data.open("PATH")\n```',
        "## Sizes",
        _sizes(manifest, episodes),
        "## Columns",
        _columns(manifest),
        "## Source",
        _source(manifest),
        "## Findings",
        _findings(manifest.findings),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Manifest) -> str:
    """Returns the YAML header. Values are JSON, which is valid YAML."""
    data: dict[str, Any] = {}
    license_ = _license(manifest)
    if license_ is not None and license_.lower() in _LICENSES:
        data["license"] = license_.lower()
    elif license_ is not None:
        data |= {"license": "other", "license_name": re.sub(r"[^\w.+-]+", "-", license_, flags=re.ASCII)}
    data["task_categories"] = ["reinforcement-learning"]
    data["tags"] = _TAGS
    data["size_categories"] = [_size_category(manifest.steps)]
    data["configs"] = [{"config_name": "default", "data_files": _DATA_FILES}]
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in data.items())


def _size_category(steps: int) -> str:
    place = max(0, len(str(steps)) - 3)  # of the first size that is larger
    if place >= len(_SIZES):
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[place - 1]}<n<{_SIZES[place]}" if place else f"n<{_SIZES[0]}"


def _license(manifest: Manifest) -> str | None:
    """Returns the licence that the source declares, if any."""
    metadata = manifest.provenance.get("metadata")
    license_ = metadata.get("license") if isinstance(metadata, Mapping) else None
    return license_ if isinstance(license_, str) and license_ else None


def _sizes(manifest: Manifest, episodes: pa.Table) -> str:
    lengths = episodes.column("length").to_numpy()
    rows = [
        ["episodes", f"{manifest.episodes:,}"],
        ["steps", f"{manifest.steps:,}"],
        ["bytes", f"{sum(entry.bytes for entry in manifest.files):,} in {pluralize(len(manifest.shards), 'shard')}"],
        ["steps an episode", _spread(lengths)],
    ]
    returns = episodes.column("return").drop_null().to_numpy()
    if len(returns):
        rows.append(["return of an episode", _spread(returns)])
    rows.append(["fingerprint", _code(manifest.fingerprint)])
    return _table(["", ""], rows)


def _spread(values: npt.NDArray[Any]) -> str:
    figures = {"min": values.min(), "median": np.median(values), "mean": values.mean(), "max": values.max()}
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _columns(manifest: Manifest) -> str:
    rows = [_column(column, manifest.statistics.get(column.name)) for column in manifest.schema]
    return _table(["column", "dtype", "shape", "role", "mean", "std", "min", "max"], rows)


def _column(column: ColumnSpec, statistics: ColumnStatistics | None) -> list[str]:
    shape = "any length" if column.variable_length else " x ".join(map(str, column.shape)) or "scalar"
    notes = [
        *(["derived"] if column.derived else []),
        *([f"{_code(column.source)} in the source"] if column.source else []),
        *(["final ones in `finals.arrow`"] if column.has_final else []),
    ]
    role = ", ".join([column.role.value.replace("_", " "), *notes])
    known = [""] * 4 if statistics is None else _statistics(statistics)
    return [_code(column.name), column.dtype, shape, role, *known]


def _statistics(statistics: ColumnStatistics) -> list[str]:
    """Returns mean, standard deviation, minimum and maximum.

    For a long vector, returns only the minimum and maximum over all elements.
    """
    kinds = (statistics.mean, statistics.std, statistics.min, statistics.max)
    if len(statistics.mean) <= _SHOWN_ELEMENTS:
        return [", ".join(_number(value) for value in values) for values in kinds]
    finite = statistics.count > 0
    if not finite.any():
        return [""] * 4
    return ["", "", _number(statistics.min[finite].min()), _number(statistics.max[finite].max())]


def _source(manifest: Manifest) -> str:
    provenance = manifest.provenance
    files = provenance.get("source_files")
    rows = [
        ["source", _code(provenance.get("source", ""))],
        ["files", str(len(files)) if isinstance(files, Sequence) and files else "none"],
        ["format", f"{_code(provenance.get('format'))}: {_text(provenance.get('reason', ''))}"],
    ]
    if (license_ := _license(manifest)) is not None:
        rows.append(["licence", _text(license_)])
    view = provenance.get("view")
    history = view.get("history") if isinstance(view, Mapping) else None  # of `Dataset.save`
    rows += [["chosen by", _code(step)] for step in (history if isinstance(history, Sequence) else ())]
    rows += [[_text(f"option {name}"), _code(_short(value))] for name, value in _items(provenance.get("options"))]
    rows += [[_text(name), _code(_short(value))] for name, value in _items(provenance.get("metadata"))]
    return _table(["", ""], rows)


def _items(facts: Any) -> Iterable[tuple[str, Any]]:
    """Returns the facts that are set and short enough for the card."""
    if not isinstance(facts, Mapping):
        return []
    unset: tuple[Any, ...] = (None, "", {}, [])
    return [
        (str(name), value)
        for name, value in facts.items()
        if value not in unset and len(_short(value)) <= _SHOWN_CHARACTERS
    ]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "None."
    return "\n".join(f"- {_text(Finding(**finding))}" for finding in findings)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, np.integer) else f"{float(value):.6g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(value: object) -> str:
    """Escapes a source's text, so that Markdown shows it literally, in one line.

    The result has no markup, links or HTML.
    """
    line = html.escape(" ".join(str(value).split()), quote=False)
    literal = "".join(f"\\{char}" if char in r"\`*_{}[]()#|!~$" else char for char in line)
    return _AUTOLINK.sub(r"\g<0><!-- -->", literal)


def _code(value: object) -> str:
    """Formats a source's text as code."""
    line = " ".join(str(value).split())
    if not line:
        return ""
    # In a cell of a table, text between backticks cannot be escaped.
    return f"<code>{_text(line)}</code>" if any(char in line for char in "`|\\") else f"`{line}`"
