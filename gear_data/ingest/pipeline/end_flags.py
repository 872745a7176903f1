"""End flags: gives every source `terminated` and `truncated`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.pipeline.columns import END_FLAGS, ONE_VALUE, other_flags
from gear_data.ingest.pipeline.names import DONES, canonical_name
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock

#: Columns that are not only end flags, and stay columns.
_DISCOUNT = "discount"
_KEPT = {_DISCOUNT, "masks"}


def end_flag_columns(columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """Replaces end flags by `terminated` and `truncated`, both bool.

    Raises:
        UnsupportedColumnError: a flag has several values per step.
    """
    known = {column.name: column for column in columns}
    for name in (DONES, "terminated", "truncated"):
        if name in known and known[name].shape != ():
            raise UnsupportedColumnError(
                f"an end flag must be one value per step, not of shape {known[name].shape}",
                column=known[name].source or name,
                hint="if it is not an end flag, rename it with --rename",
            )
    others = other_flags([spec.name for spec in columns if spec.shape in ONE_VALUE and not spec.variable_length])
    known |= {flag: known[name] for name, (flag, _) in others.items()}
    flags = []
    for name in ("terminated", "truncated"):
        spec = known.get(name)
        if spec is None and name == "terminated":
            spec = known.get(DONES)
        source = None if spec is None else spec.source or (spec.name if spec.name != name else None)
        flags.append(ColumnSpec(name, "bool", source=source))
    replaced = END_FLAGS | others.keys() - _KEPT
    return (*(spec for spec in columns if spec.name not in replaced), *flags)


def complete_end_flags(block: EpisodeBlock, findings: FindingLog) -> EpisodeBlock:
    """Adds missing end flags, so that the last step of every episode has a flag.

    - `dones` without other flags is read as `terminated`: the source does not distinguish a time limit from a terminal
      state.
    - `dones` with one of the other two flags determines the third.
    - Columns of other names give the flags that are missing: `is_terminal` and `is_last`, or `masks`, `not_done` and
      `discount`, which are 0 where the flag is set.
    - A fact of an episode that has the name of a flag is about the last step, if no column has the flag. An episode
      that lacks the fact does not have the flag.
    - If the last step of an episode has no flag, the episode was cut off. Its last step becomes truncated.
    - Two flags at one step are kept: Gymnasium's `step` may return both, for a terminal state at the time limit.
      Formats with another rule (D4RL: terminated) have applied it before.

    Raises:
        BadEpisodeError: a flag is neither 0 nor 1.
    """
    block = _with_usual_names(_with_flags_of_episodes(block))
    for name in (DONES, "terminated", "truncated"):
        if name in block.columns:
            _check_flag(block, name)
    columns = dict(block.columns)
    last = block.offsets[1:] - 1
    dones = columns.pop(DONES, None)
    terminated = _flag(columns.get("terminated"), len(dones) if dones is not None else int(block.lengths.sum()))
    truncated = _flag(columns.get("truncated"), len(terminated))
    had_flags = bool({"terminated", "truncated"} & columns.keys())
    if dones is not None and not had_flags:
        terminated = _flag(dones, len(dones))
        message = "the source has one end flag and no truncation; read as terminated, so time limits count as terminal"
        findings.add_episodes(block, "no-truncation-flag", message, np.arange(len(block)), DONES)
    elif dones is not None and "terminated" not in columns:
        terminated = dones.astype(np.bool_) & ~truncated
    elif dones is not None and "truncated" not in columns:
        truncated = dones.astype(np.bool_) & ~terminated
    elif dones is not None and (differ := dones.astype(np.bool_) != (terminated | truncated)).any():
        message = "dones differs from terminated or truncated; dones is left out"
        findings.add_episodes(block, "flags-disagree", message, _episodes_of(block, differ), DONES)
    unflagged = np.flatnonzero(~(terminated[last] | truncated[last]))
    if len(unflagged):
        truncated[last[unflagged]] = True
        if not had_flags and dones is None:
            findings.add_episodes(block, "no-end-flag", "the source has no end flags; read as truncated", unflagged)
        else:
            message = "the last step has no end flag; read as truncated"
            findings.add_episodes(block, "unfinished-episode", message, unflagged)
    columns["terminated"], columns["truncated"] = terminated, truncated
    return replace(block, columns=columns)


def check_end_flags(block: EpisodeBlock, findings: FindingLog) -> None:
    """Adds findings about flags before the last step, and two flags at one step.

    The flags are complete (`complete_end_flags`).
    """
    terminated, truncated, last = block.columns["terminated"], block.columns["truncated"], block.offsets[1:] - 1
    inside = terminated | truncated
    inside[last] = False
    message = "an end flag is set before the episode's last step; kept"
    findings.add_episodes(block, "end-flag-inside", message, _episodes_of(block, inside))
    message = "terminated and truncated are both set; kept"
    findings.add_episodes(block, "both-flags", message, _episodes_of(block, terminated & truncated))


def _with_flags_of_episodes(block: EpisodeBlock) -> EpisodeBlock:
    """Returns a block in which facts that are end flags are columns, set at the last step.

    The flag of an episode that lacks the fact is not set. Other episodes of the block keep theirs. Beside columns of
    both flags, a fact is only a fact.
    """
    if {"terminated", "truncated"} <= block.columns.keys():
        return block
    columns, facts = dict(block.columns), dict(block.metadata)
    for name, values in block.metadata.items():
        flag = canonical_name(name)
        if flag in END_FLAGS and flag not in columns and all(value in (0, 1, None) for value in values):
            del facts[name]
            if any(value is not None for value in values):
                columns[flag] = np.zeros(int(block.lengths.sum()), np.bool_)
                columns[flag][block.offsets[1:] - 1] = [bool(value) for value in values]
    return replace(block, columns=columns, metadata=facts)


def _with_usual_names(block: EpisodeBlock) -> EpisodeBlock:
    """Returns a block in which columns that are end flags under other names have the usual names.

    Raises:
        BadEpisodeError: such a column is neither 0 nor 1.
    """
    columns = dict(block.columns)
    names = [name for name, each in block.arrays.items() if each.shape[1:] in ONE_VALUE]
    for name, (flag, is_zero) in other_flags(names).items():
        values = (columns[name] if name in _KEPT else columns.pop(name)).reshape(-1)
        if name != _DISCOUNT:  # it may also have values between 0 and 1
            _check_flag(block, name)
        columns[flag] = (values == 0) if is_zero else values
    return replace(block, columns=columns)


def _flag(values: npt.NDArray[Any] | None, count: int) -> npt.NDArray[np.bool_]:
    """Returns a writable copy of a flag column, or zeros."""
    return np.zeros(count, np.bool_) if values is None else values.astype(np.bool_).copy()


def _check_flag(block: EpisodeBlock, name: str) -> None:
    """Raises BadEpisodeError if a column is neither 0 nor 1.

    Other values are not interpreted.
    """
    values = block.columns[name].reshape(-1)
    if values.dtype.kind == "b":
        return
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        episode, step = block.locate(wrong[0])
        raise BadEpisodeError(
            f"step {step} of the episode has {values[wrong[0]]}, but an end flag must be 0 or 1",
            file=block.sources[episode],
            column=name,
            row=int(block.rows[episode]),
            hint="repair the source; if the column is not an end flag, rename it with --rename",
        )


def _episodes_of(block: EpisodeBlock, steps: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Returns the indices of the episodes that contain marked steps."""
    return np.unique(np.searchsorted(block.offsets, np.flatnonzero(steps), side="right") - 1)
