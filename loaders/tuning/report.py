"""TuneReport: the measurements, and the choice."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gear_data.loaders.tuning.config_file import write_config
from gear_data.loaders.tuning.search import TIE, Candidate, Outcome, is_tied
from gear_data.loaders.tuning.setting import Setting

_FIELDS = Setting.__struct_fields__


@dataclass(frozen=True)
class TuneReport:
    """Result of `gear_data.tune`; `print` shows it as a table.

    Attributes:
        outcome: all settings with their runs, and the choice.
        arguments: the arguments of the loader that were not tuned.
        columns: the dataset's columns, see `gear_data.loaders.tuning.config_file.columns_of`.
        left_out: options that were not tried -> the reason.
        step: the training step, in words.
        machine: facts about this machine.
        seconds: the time that tuning took.
    """

    outcome: Outcome
    arguments: Mapping[str, Any]
    columns: list[dict[str, str]]
    left_out: Mapping[str, str]
    step: str
    machine: Mapping[str, Any]
    seconds: float

    @property
    def setting(self) -> Setting:
        """The chosen setting."""
        return self.outcome.chosen.setting

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the choice to a file, for `SequenceLoader.from_config`.

        An older file of `gear_data.tune` is replaced.

        Raises:
            DestinationExistsError: `path` has a file of another kind.
            StorageFullError, UnwritableError: the file cannot be written.
        """
        measured = {
            "step": self.step,
            "step_ms_without_loading": self.outcome.bare * 1e3,
            "step_ms": self.outcome.chosen.seconds * 1e3,
            "machine": dict(self.machine),
        }
        write_config(path, self.setting, self.arguments, self.columns, measured)

    def to_json(self) -> dict[str, Any]:
        """Returns the report, JSON-able."""
        return {
            "choice": msgspec.to_builtins(self.setting),
            "step": self.step,
            "step_ms_without_loading": self.outcome.bare * 1e3,
            "settings": [
                {
                    "setting": msgspec.to_builtins(each.setting),
                    "step_ms": each.seconds * 1e3 if each.runs else None,
                    "runs_ms": [run * 1e3 for run in each.runs],
                    "final": each.final,
                    "verdict": self._verdict(each),
                }
                for each in self.outcome.candidates
            ],
            "left_out": dict(self.left_out),
            "machine": dict(self.machine),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        used = [name for name in _FIELDS if any(getattr(c.setting, name) is not None for c in self.outcome.candidates)]
        header = [*used, "step ms", "from", "to", "waiting", "runs", "verdict"]
        rows = [self._row(each, used) for each in sorted(self.outcome.candidates, key=_order)]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]
        ]
        lines = [line.rstrip() for line in lines]
        lines += [f"not tried: {name}: {reason}" for name, reason in self._reasons().items()]
        lines.append(f"training step: {self.step}; without loading, it takes {self.outcome.bare * 1e3:.3g} ms")
        lines.append(f"choice: {self.setting}")
        return "\n".join(lines)

    def _row(self, candidate: Candidate, used: list[str]) -> list[str]:
        values = [getattr(candidate.setting, name) for name in used]
        cells = ["-" if value is None else str(value) for value in values]
        if candidate.runs:
            low, middle, high = min(candidate.runs), candidate.seconds, max(candidate.runs)
            waiting = max(0.0, 1 - self.outcome.bare / middle)
            cells += [f"{value * 1e3:.3f}" for value in (middle, low, high)] + [f"{waiting:.1%}"]
        else:
            cells += ["-"] * 4
        return [*cells, str(len(candidate.runs)), self._verdict(candidate)]

    def _verdict(self, candidate: Candidate) -> str:
        if candidate.verdict:
            return candidate.verdict
        best = min((each for each in self.outcome.candidates if each.final and each.runs), key=lambda c: c.seconds)
        if candidate is self.outcome.chosen:
            return "chosen: the fastest" if candidate is best else f"chosen: tied within {TIE:.0%}, and the simplest"
        return f"tied within {TIE:.0%}, not simpler" if is_tied(candidate, best) else "slower"

    def _reasons(self) -> dict[str, str]:
        """Returns names, joined by commas -> reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            names.setdefault(reason, []).append(name)
        return {", ".join(alike): reason for reason, alike in names.items()}


def _order(candidate: Candidate) -> tuple[bool, float]:
    """Sorts finalists first, then by the median.

    Settings without a run come last.
    """
    return (not candidate.final, candidate.seconds)
