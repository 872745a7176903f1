"""The GPU's part of RESULTS.md.

The records of `benchmarks/gpu.py --json` become text and tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, describe_machine

from gpu_sections.report import from_json, table, verdict

PAGE = ROOT / "benchmarks" / "RESULTS.md"
#: The measurements are between these lines.
BEGIN, END = "<!-- gpu.py writes from here -->", "<!-- to here -->"


class ResultsError(Exception):
    """Raised when records are no results of a GPU, or the page has no place for them."""


def write_results(files: Sequence[Path], page: Path, titles: Mapping[str, str]) -> None:
    """Replaces the GPU's part of a page by the sections of these records.

    Of a section in several records, the last one counts.

    Args:
        titles: letter of a section -> title, in the order of the page.

    Raises:
        ResultsError: a file is no record, the records are of different machines, of `--quick` or of the tests'
            stand-in for CuPy, or the page has no such part.
    """
    records = [_read(file) for file in files]
    machines = {json.dumps(_machine(record), sort_keys=True) for record in records}
    if len(machines) > 1:
        raise ResultsError(f"the records are of different machines: {' and '.join(sorted(machines))}")
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ResultsError(f"{page} has no lines '{BEGIN}' and '{END}'")
    page.write_text(f"{before}{BEGIN}\n\n{_text(records, titles)}\n\n{END}{after}")


def _read(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file} is no record: {error}") from error
    if not isinstance(record, dict) or record.get("benchmark") != "gpu":
        raise ResultsError(f"{file} is no record of benchmarks/gpu.py")
    if record["machine"]["gpu"]["stand_in"]:
        raise ResultsError(f"{file} was made by the tests' stand-in for CuPy, which measures no GPU")
    if record["quick"]:
        raise ResultsError(f"{file} was made with --quick: run the benchmark without")
    return record


def _machine(record: Mapping[str, Any]) -> dict[str, Any]:
    machine = record["machine"]
    return {"processor": machine["processor"], "cores": machine["cores"], **machine["gpu"]}


def _text(records: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    found = {name: item for record in records for name, item in record["sections"].items()}
    gpu = records[-1]["machine"]["gpu"]
    facts = f"{gpu['gpu']}, {gpu['memory_bytes'] >> 30} GiB, CUDA driver {gpu['cuda_driver']}, NVRTC {gpu['nvrtc']}"
    commands = "\n".join(record["command"] for record in records)
    parts = [f"Measured on {facts}. {describe_machine(records[-1]['machine'])}.", f"```text\n{commands}\n```"]
    done = {name: from_json(item["section"]) for name, item in found.items() if item["status"] == "ok"}
    parts.append(verdict({name: done[name] for name in titles if name in done}).replace("\n  ", "\n- "))
    for name, title in titles.items():
        if name not in found:
            continue
        parts.append(f"**({name}) {title}**")
        item = found[name]
        parts.append(table(done[name]) if name in done else f"{item['status']}: {item['reason']}")
    return "\n\n".join(parts)
