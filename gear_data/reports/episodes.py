"""The episode table of a report: facts, measures, outliers and reward sparklines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.dataset import Dataset
from gear_data.reports.measures import SIDES, episode_measures, find_bounds
from gear_data.reports.numbers import drawable, number, rounded
from gear_data.reports.step_sample import Float64Array, Int64Array, StepSample, spread

#: Rows of the table in a page.
MAX_ROWS = 5_000
#: Points of a sparkline, and their levels: one character each.
_POINTS = 24
_LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: Episodes that an outlier list names.
_MAX_OUTLIERS = 30
#: Groups with a colour or a row of their own; the rarest others are counted together.
_MAX_GROUPS = 12
#: Columns of the episode table by which episodes are grouped, if they differ.
_GROUPINGS = ("task", "split", "source")
#: Facts of an episode, or columns of its steps, that say whether it succeeded.
_SUCCESS = ("success", "is_success", "infos.success", "infos.is_success", "next.success")
_NUMERIC = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
#: Names of the groups of all rarer values, and of null. Values of the data that look the same get a space.
_OTHERS = "(other)"
_NONE = "(none)"


class EpisodeFacts:
    """Facts and measures of the episodes of a dataset.

    Attributes:
        dataset: the dataset.
        ids: int64 [n].
        returns, lengths: float64 [n].
        terminated, truncated: bool [n].
        success: float64 [n], 1 or 0, NaN where it is unknown; None if the dataset does not say.
        groupings: grouping -> (names, int64 [n] index of the name).
        measures: `jerk`, `idle` and `jump`, float64 [n]; NaN for episodes outside the sample.
    """

    def __init__(self, dataset: Dataset, sample: StepSample) -> None:
        self.dataset = dataset
        table = dataset.episode_table
        self.ids: Int64Array = table.column("episode_id").to_numpy()
        self.returns: Float64Array = drawable(table.column("return").to_numpy().astype(np.float64))
        self.lengths: Float64Array = dataset.lengths.astype(np.float64)
        self.terminated = table.column("terminated").to_numpy(zero_copy_only=False).astype(np.bool_)
        self.truncated = table.column("truncated").to_numpy(zero_copy_only=False).astype(np.bool_)
        self.success = _success(dataset, sample)
        self.groupings = {
            name: groups
            for name in _GROUPINGS
            if name in table.column_names and (groups := _groups(table.column(name))) is not None
        }
        self.measures = {}
        for name, values in episode_measures(sample).items():
            self.measures[name] = np.full(len(self.ids), np.nan)
            self.measures[name][sample.positions] = values

    def all_measures(self) -> dict[str, Float64Array]:
        """Returns length, return and the measures of the steps."""
        return {"length": self.lengths, "return": self.returns, **self.measures}


def find_outliers(facts: EpisodeFacts) -> tuple[list[dict[str, Any]], dict[str, npt.NDArray[np.bool_]]]:
    """Returns the outliers by each measure: JSON-able, and as bool [n]."""
    found, flags = [], {}
    for name, values in facts.all_measures().items():
        low, high = SIDES[name]
        if not np.isfinite(values).any():
            continue
        bounds = find_bounds(values, low=low, high=high)
        flags[name] = odd = bounds.exceeded(values)
        places = np.flatnonzero(odd)
        finite = values[np.isfinite(values)]
        middle = float(np.median(finite))
        farthest = places[np.argsort(-np.abs(np.where(np.isfinite(values[places]), values[places], np.inf) - middle))]
        found.append(
            {
                "measure": name,
                "count": len(places),
                "known": len(finite),
                "median": number(middle),
                "low": number(bounds.low),
                "high": number(bounds.high),
                "episodes": facts.ids[farthest[:_MAX_OUTLIERS]].tolist(),
                "values": rounded(values[farthest[:_MAX_OUTLIERS]]),
            }
        )
    return found, flags


def rates(facts: EpisodeFacts) -> list[dict[str, Any]]:
    """Returns the rates of termination, truncation and success: of all episodes, and of each group."""
    rows = [_rate(facts, "all", "", np.ones(len(facts.ids), np.bool_))]
    for grouping, (names, index) in facts.groupings.items():
        rows += [_rate(facts, grouping, name, index == place) for place, name in enumerate(names)]
    return rows


def _rate(facts: EpisodeFacts, grouping: str, name: str, rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    returns = facts.returns[rows & np.isfinite(facts.returns)]
    success = None if facts.success is None else facts.success[rows]
    known = None if success is None else success[np.isfinite(success)]
    return {
        "grouping": grouping,
        "group": name,
        "episodes": int(rows.sum()),
        "steps": int(facts.lengths[rows].sum()),
        "terminated": number(facts.terminated[rows].mean()),
        "truncated": number(facts.truncated[rows].mean()),
        "success": number(known.mean()) if known is not None and len(known) else None,
        "return": number(returns.mean()) if len(returns) else None,
        "length": number(facts.lengths[rows].mean()),
    }


def episode_rows(facts: EpisodeFacts, sample: StepSample, flags: Mapping[str, npt.NDArray[np.bool_]]) -> dict[str, Any]:
    """Returns the columns of the table, JSON-able.

    There are at most `MAX_ROWS` episodes of the sample: outliers first, then others in equal distances. `spark` has one
    character for each point, from 0 to z between the smallest and the largest reward of the episode.
    """
    read = sample.positions
    odd = np.any([flag[read] for flag in flags.values()], axis=0)
    outliers = np.flatnonzero(odd)[spread(int(odd.sum()), MAX_ROWS // 2)]
    usual = np.flatnonzero(~odd)
    usual = usual[spread(len(usual), MAX_ROWS - len(outliers))]
    places = np.sort(np.concatenate([outliers, usual]))
    rows = read[places]
    return {
        "id": facts.ids[rows].tolist(),
        "length": facts.lengths[rows].astype(np.int64).tolist(),
        "return": rounded(facts.returns[rows], 7),
        "terminated": facts.terminated[rows].astype(int).tolist(),
        "truncated": facts.truncated[rows].astype(int).tolist(),
        "success": None if facts.success is None else rounded(facts.success[rows]),
        **{name: index[rows].tolist() for name, (_, index) in facts.groupings.items()},
        "measures": {name: rounded(values[rows]) for name, values in facts.measures.items()},
        "outlier": [[name for name, flag in flags.items() if flag[row]] for row in rows.tolist()],
        "spark": _sparklines(sample, places),
        "total": len(facts.ids),
    }


def _sparklines(sample: StepSample, places: Int64Array) -> list[str]:
    """Returns the rewards of some episodes of the sample as text; empty without one reward a step."""
    schema = sample.dataset.schema
    if "rewards" not in schema or schema["rewards"].size != 1 or schema["rewards"].variable_length:
        return [""] * len(places)
    rewards = sample.steps("rewards").reshape(-1).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(rewards, posinf=0, neginf=0))])
    starts, lengths = sample.starts[places, None], sample.dataset.lengths[places, None]
    steps = np.arange(_POINTS)
    first = starts + lengths * steps // _POINTS
    last = np.maximum(first + 1, starts + lengths * (steps + 1) // _POINTS)
    means = (sums[last] - sums[first]) / (last - first)
    low, high = means.min(axis=1, keepdims=True), means.max(axis=1, keepdims=True)
    levels = np.rint((means - low) / np.where(high > low, high - low, 1) * (len(_LEVELS) - 1)).astype(np.int64)
    letters = np.frombuffer(_LEVELS.encode(), np.uint8)[levels]
    return [row.tobytes().decode() for row in letters]


def group_names(facts: EpisodeFacts) -> dict[str, Any]:
    """Returns grouping -> names of its groups, and the places of the names that stand for null and for all others."""
    return {
        name: {
            "names": list(names),
            "none": names.index(_NONE) if _NONE in names else None,
            "other": names.index(_OTHERS) if _OTHERS in names else None,
        }
        for name, (names, _) in facts.groupings.items()
    }


def return_histograms(facts: EpisodeFacts, edges: Mapping[str, Float64Array]) -> dict[str, Any]:
    """Returns the histograms of all episodes' returns and lengths: in all, and of each group.

    Args:
        facts: the episodes.
        edges: `return` and `length` -> edges of the bins.
    """
    found: dict[str, Any] = {}
    for name, values in (("return", facts.returns), ("length", facts.lengths)):
        bins = edges[name]
        finite = np.isfinite(values)
        groups = {
            grouping: [np.histogram(values[finite & (index == place)], bins)[0].tolist() for place in range(len(names))]
            for grouping, (names, index) in facts.groupings.items()
        }
        counts = np.histogram(values[finite], bins)[0].tolist() if len(bins) > 1 else []
        found[name] = {"edges": rounded(bins, 6), "counts": counts, "groups": groups}
    return found


def _groups(column: pa.ChunkedArray) -> tuple[Sequence[str], Int64Array] | None:
    """Returns the groups, largest first, and the group of each episode; None if there is one group or too many."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    texts = (str(value) for value in encoded.dictionary.to_pylist())
    values = [f"{text} " if text in (_OTHERS, _NONE) else text for text in texts]
    codes = encoded.indices.fill_null(len(values)).to_numpy().astype(np.int64)
    counts = np.bincount(codes, minlength=len(values) + 1)
    distinct = np.count_nonzero(counts)
    # Groups of one or two episodes, such as a file for each, say nothing.
    if distinct < 2 or (distinct > _MAX_GROUPS and 2 * distinct > len(codes)):
        return None
    order = np.argsort(-counts, kind="stable")
    kept = [code for code in order.tolist() if counts[code]][:_MAX_GROUPS]
    names = [values[code] if code < len(values) else _NONE for code in kept]
    index = np.full(len(counts), len(kept))
    index[kept] = np.arange(len(kept))
    if distinct > len(kept):
        names.append(_OTHERS)
    return names, index[codes]


def _success(dataset: Dataset, sample: StepSample) -> Float64Array | None:
    """Returns whether each episode succeeded: a fact of the episode, or of any of its steps."""
    table = dataset.episode_table
    for name in _SUCCESS:
        if name in table.column_names:
            column = table.column(name)
            if any(check(column.type) for check in _NUMERIC):
                values = column.cast(pa.float64()).to_numpy()
                return np.where(np.isfinite(values), values > 0, np.nan)
        if name in dataset.schema and dataset.schema[name].size == 1 and not dataset.schema[name].variable_length:
            steps = sample.steps(name).reshape(-1) > 0
            found = np.full(len(dataset), np.nan)
            found[sample.positions] = np.logical_or.reduceat(steps, sample.starts)
            return found
    return None
