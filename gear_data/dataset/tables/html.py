"""A dataset as a small HTML table, for Jupyter."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import format_bytes, pluralize
from gear_data.dataset.core import DatasetCore
from gear_data.schema import ColumnSpec

#: Label -> probability, of the quantiles of returns.
_QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}

#: Most names of elements that are all shown.
_MOST_NAMES = 8


def html_table(dataset: DatasetCore) -> str:
    """Returns counts, quantiles of the returns, and the columns, as HTML.

    It reads the manifest and the episode table, and no shards. Text of the dataset is escaped.
    """
    counts = f"{pluralize(dataset.num_episodes, 'episode')}, {pluralize(dataset.num_steps, 'step')}"
    if dataset.step_mask is not None:
        counts += f", {pluralize(dataset.steps_left_out, 'step')} left out (mode {dataset.step_mask_mode})"
    title = "Dataset" if dataset.view.rows is None else "View of a dataset"
    lines = [f"<strong>{title}</strong> <code>{escape(str(dataset.path))}</code>", f"{counts}, {_lengths(dataset)}"]
    if returns := _returns(dataset):
        lines.append(f"returns: {returns}")
    specs = (*dataset.schema.columns, *dataset.schema.videos)
    named = any(spec.element_names for spec in specs)
    head = _row("th", ["column", "dtype", "shape", *(["elements"] if named else []), "size", "stored as"])
    body = "".join(_row("td", _cells(dataset, spec, named=named)) for spec in specs)
    return f"<div>{'<br>'.join(lines)}<table><thead>{head}</thead><tbody>{body}</tbody></table></div>"


def _row(tag: str, cells: Iterable[str]) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    return "<tr>" + "".join(f"<{tag}{scope}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _cells(dataset: DatasetCore, spec: ColumnSpec, *, named: bool) -> list[str]:
    stored = "video" if spec.video is not None else "derived" if spec.derived else "column"
    shape = " x ".join(map(str, spec.shape)) if spec.shape else "scalar"
    return [spec.name, spec.dtype, shape, *([_elements(spec)] if named else []), _size(dataset, spec), stored]


def _elements(spec: ColumnSpec) -> str:
    """Returns the names of the elements; of many, the first and the last one."""
    names = spec.element_names
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]}, ..., {names[-1]}"


def _size(dataset: DatasetCore, spec: ColumnSpec) -> str:
    """Returns the bytes of a column, as far as they are known without a look at the shards."""
    if spec.video is not None:
        return "in video files"
    if not spec.variable_length:
        return format_bytes(spec.row_bytes * dataset.num_steps)
    if dataset.view.rows is not None:
        return "varies"
    return format_bytes(sum(shard.variable[spec.name].bytes for shard in dataset.manifest.shards))


def _lengths(dataset: DatasetCore) -> str:
    lengths = dataset.lengths
    return f"{int(lengths.min()):,} to {int(lengths.max()):,} steps per episode"


def _returns(dataset: DatasetCore) -> str:
    """Returns quantiles of the finite returns; empty if there are none."""
    returns: npt.NDArray[np.float64] = dataset.episode_table.column("return").to_numpy()
    finite = returns[np.isfinite(returns)]
    if not len(finite):
        return ""
    values = np.quantile(finite, list(_QUANTILES.values())).tolist()
    text = ", ".join(f"{label} {value:,.4g}" for label, value in zip(_QUANTILES, values, strict=True))
    missing = len(returns) - len(finite)
    return text + (f" ({pluralize(missing, 'episode')} without a finite return)" if missing else "")
