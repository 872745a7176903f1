"""The page of a mixture: its datasets, the keys of its batches, and what cannot be joined. It has no script."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

from gear_data.common.paths import with_short_paths, without_folders
from gear_data.loaders.mixing.table import dataset_rows, key_rows
from gear_data.reports.page import policy

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header id="top"><div><h1>{title}</h1><p>{summary}</p></div></header>
<div id="layout" style="display: block">
<main id="main">
{body}
</main>
</div>
</body>
</html>
"""


def mixture_page(name: str, facts: Mapping[str, Any]) -> str:
    """Returns the page.

    Args:
        name: name of the mixture, for its title.
        facts: see `gear_data.loaders.mixing.table.mixture_facts`.
    """
    paths = [str(each["path"]) for each in facts["datasets"]]
    facts = with_short_paths(dict(facts), {path: without_folders(path, is_path=True) for path in paths})
    problems = [f"<li>{html.escape(each)}</li>" for each in facts["problems"]]
    parts = [
        _section("Datasets", _table(dataset_rows(facts))),
        _section("Keys of batches", _table(key_rows(facts))),
        *([_section("What cannot be joined", f"<ul>{''.join(problems)}</ul>")] if problems else []),
    ]
    joined = "windows of all datasets" if facts["join"] else "windows of one dataset"
    padded = "" if facts["pad_to"] is None else f"; pad_to is {facts['pad_to']}"
    shared = "; statistics are shared by embodiment" if facts["statistics"] == "embodiment" else ""
    summary = f"{len(facts['datasets'])} datasets; a batch has {facts['batch_size']:,} {joined}{padded}{shared}"
    return _PAGE.format(
        policy=policy(),
        title=html.escape(f"{name}: gear-data report"),
        summary=html.escape(summary),
        style=importlib.resources.files("gear_data.reports").joinpath("assets", "style.css").read_text("utf-8"),
        body="\n".join(parts),
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(("th", *("td",) * len(rows)), rows, strict=False)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{'</tr><tr>'.join(body)}</tr></tbody></table>"
