"""report: a dataset as one HTML page."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Never

import numpy as np

from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.paths import absolute_path, is_remote, without_folders
from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.reports.advice import advice_for
from gear_data.reports.comparison import compare as compare_with
from gear_data.reports.distributions import PROBABILITIES, column_distributions, histogram_edges
from gear_data.reports.episodes import (
    MAX_ROWS,
    EpisodeFacts,
    episode_rows,
    find_outliers,
    group_names,
    rates,
    return_histograms,
)
from gear_data.reports.facts import provenance, summarize
from gear_data.reports.numbers import number, rounded
from gear_data.reports.page import check_charts, render
from gear_data.reports.sampler_shares import sampler_shares
from gear_data.reports.step_sample import SAMPLE_STEPS, StepSample, draw_sample, spread
from gear_data.reports.viewer import ViewerSize, viewed_positions, viewer_data
from gear_data.reports.visitation import visitation
from gear_data.selection.samplers import AnySampler, as_sampler
from gear_data.storage.atomic import write_text
from gear_data.version import VERSION
from gear_data.words import SamplerName

#: Probabilities of the quantiles of returns-to-go, and the most steps at which they are computed.
_TARGET_PROBABILITIES, _TARGET_STEPS = (0.05, 0.25, 0.5, 0.75, 0.95), 60
#: Height of the page in a notebook, in pixels.
_NOTEBOOK_HEIGHT = 800


@dataclass(frozen=True)
class DatasetReport:
    """A dataset as one HTML page, made by `gear_data.report`. In Jupyter it shows itself.

    Attributes:
        facts: the numbers of the page, JSON-able: `gear-data report --json` prints them.
        drawings: the data of the page that are only drawn: episode table, curves, frames, points.
    """

    facts: Mapping[str, Any]
    drawings: Mapping[str, Any]

    @cached_property
    def html(self) -> str:
        """The page."""
        return render(str(self.facts["title"]), {**self.facts, **self.drawings})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page into a file, and replaces the file if it exists. Returns its path.

        Raises:
            UnwritableError: the system refuses the write.
            StorageFullError: the disk is full.
        """
        target = Path(path)
        write_text(target, self.html)
        return target

    def to_json(self) -> dict[str, Any]:
        """Returns `facts`."""
        return dict(self.facts)

    def __repr__(self) -> str:
        summary = self.facts["summary"]
        return f"DatasetReport({self.facts['path']!r}, {summary['episodes']:,} episodes; .save('report.html'))"

    def _repr_html_(self) -> str:
        # Text of the data cannot leave the frame: scripts have an origin of their own there.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" allow="clipboard-write" '
            f'title="{html.escape(str(self.facts["title"]))}" '
            f'style="width:100%;height:{_NOTEBOOK_HEIGHT}px;border:0"></iframe>'
        )


def report(
    dataset: Dataset,
    *,
    frames: int = 0,
    sampler: SamplerName | AnySampler | None = None,
    compare: Dataset | None = None,
    **unknown: Never,
) -> DatasetReport:
    """Makes a page that shows a dataset: an HTML file that needs no server and no network.

    The page has the facts, findings, returns and lengths, an episode table, outliers, the distribution of each column,
    an episode viewer, state visitation and returns-to-go. Of more than 10^6 steps it reads a random sample of whole
    episodes, and says so.

    Args:
        dataset: the dataset or view.
        frames: frames of each camera and viewed episode to embed, in equal distances. 0: as many as 2.4 MB of the page
            hold.
        sampler: as for `SequenceLoader`; adds the shares of its draws and the effective sample size. None: not shown.
        compare: another dataset, whose columns are compared with these.

    Raises:
        MissingExtraError: the package of the charts is not installed.
        InvalidArgumentError: `frames` is not an integer of at least 0, or an argument of the sampler is invalid.
        UnknownNameError: the sampler does not exist.
        UnknownArgumentError: there is no argument of a name.
        CorruptShardError: the data are damaged.
    """
    refuse_keywords_of(report, unknown)
    check_range("frames", frames, 0)
    check_charts()
    if sampler is not None:
        as_sampler(sampler)
    sample = draw_sample(dataset)
    with progress_bar(5, "report", "part", None) as bar:
        episodes = EpisodeFacts(dataset, sample)
        outliers, flags = find_outliers(episodes)
        bar.update(1)
        columns = column_distributions(sample)
        bar.update(1)
        states = visitation(episodes, sample)
        bar.update(1)
        difference = None if compare is None else compare_with(sample, compare)
        bar.update(1)
        rows = episode_rows(episodes, sample, flags)
        bar.update(1)
    size = ViewerSize()
    viewed = viewed_positions(dataset, flags, sample.positions, int(frames), size)
    viewer = viewer_data(dataset, viewed, int(frames), size)
    path = str(dataset.path)
    name = (path if is_remote(path) else absolute_path(path)).rstrip("/").rsplit("/", 1)[-1]
    summary = summarize(dataset, folders=False)
    facts = {
        "title": f"{name}: gear-data report",
        "name": name,
        "path": without_folders(path, is_path=True),
        "version": VERSION,
        "summary": summary,
        "provenance": provenance(dataset),
        "findings": [{**finding, "advice": advice_for(finding)} for finding in summary["findings"]],
        "sample": _sample_facts(sample, rows, dataset),
        "rates": rates(episodes),
        "groups": group_names(episodes),
        "histograms": return_histograms(episodes, _edges(episodes)),
        "outliers": outliers,
        "probabilities": list(PROBABILITIES),
        "columns": columns,
        "targets": target_range(sample),
        "sampler": None if sampler is None else sampler_shares(episodes, sampler),
        "comparison": difference,
    }
    return DatasetReport(facts, {"table": rows, "viewer": viewer, "visitation": states})


def _sample_facts(sample: StepSample, rows: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Returns which part of the dataset was read."""
    return {
        "complete": sample.complete,
        "limit": SAMPLE_STEPS,
        "episodes": len(sample.dataset),
        "steps": sample.dataset.num_steps,
        "of_episodes": dataset.num_episodes,
        "of_steps": dataset.num_steps,
        "table_rows": len(rows["id"]),
        "table_limit": MAX_ROWS,
    }


def _edges(episodes: EpisodeFacts) -> dict[str, Any]:
    found = {}
    for name, values in (("return", episodes.returns), ("length", episodes.lengths.astype(np.int64))):
        finite = np.sort(values[np.isfinite(values)])
        found[name] = histogram_edges(finite) if len(finite) else np.zeros(0)
    return found


def target_range(sample: StepSample) -> dict[str, Any] | None:
    """Returns quantiles of the returns-to-go over the episodes that reach a step, JSON-able.

    They show which targets make sense for a Decision Transformer.

    None without one return-to-go a step. `targets` has quantiles of the returns of whole episodes, which are the
    returns-to-go at step 0.
    """
    schema = sample.dataset.schema
    if "returns_to_go" not in schema or schema["returns_to_go"].size != 1:
        return None
    values = sample.steps("returns_to_go").reshape(-1)
    lengths = sample.dataset.lengths
    steps = spread(int(lengths.max()), _TARGET_STEPS)
    bands, counts = [], []
    for step in steps.tolist():
        there = values[sample.starts[lengths > step] + step].astype(np.float64)
        there = there[np.isfinite(there)]
        counts.append(len(there))
        bands.append(
            np.quantile(there, _TARGET_PROBABILITIES) if len(there) else np.full(len(_TARGET_PROBABILITIES), np.nan)
        )
    returns = values[sample.starts].astype(np.float64)
    returns = returns[np.isfinite(returns)]
    if not len(returns):
        return None
    best = np.quantile(returns, (0.5, 0.9, 0.99, 1.0))
    return {
        "discount": sample.dataset.discount,
        "steps": steps.tolist(),
        "probabilities": list(_TARGET_PROBABILITIES),
        "quantiles": rounded(np.stack(bands)),
        "episodes": counts,
        "targets": dict(zip(("median", "top_10_percent", "top_1_percent", "largest"), rounded(best, 6), strict=True)),
        "smallest": number(values[np.isfinite(values)].min()),
        "largest": number(values[np.isfinite(values)].max()),
    }
