"""Reads the first episodes of a source, or of its files, which will be read again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gear_data.errors import BadEpisodeError
from gear_data.ingest.location import files_to_compare, separate_datasets_hint
from gear_data.ingest.source import UNIT_BYTES, EpisodeSource
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock, Position


def first_block(source: EpisodeSource, *, once: bool) -> EpisodeBlock | None:
    """Returns the first block with episodes; None if there is none.

    The findings and the state are restored, because the block will be read again.

    Args:
        source: the source.
        once: whether the source may be an iterator, of which only the first episode can be read again. Only that
            episode is read.
    """
    stop = Position(0, 1) if once else END
    with preview(source):
        return next((block for block in source.blocks(BEGIN, stop) if len(block)), None)


@contextmanager
def preview(source: EpisodeSource) -> Iterator[None]:
    """Forgets what the source notes while the block reads: it will be read again."""
    findings, state = source.findings.to_json(), copy.deepcopy(source.resume_state)
    try:
        yield
    finally:
        source.findings.restore(findings)
        source.resume_state.clear()
        source.resume_state.update(state)


def compare_files(source: EpisodeSource, files: Sequence[tuple[str, int]], advice: str | None = None) -> None:
    """Reads the first episode of files that may belong to another dataset.

    If one does not fit, the conversion ends here, and not after it has read the files before.

    Args:
        source: the source, whose positions count these files.
        files: their names and sizes; a size of 0 is no reason to read a file.
        advice: the hint if the files are in one folder; None keeps the hint of the error.

    Raises:
        BadEpisodeError: an episode is malformed.
    """
    names = [name for name, _ in files]
    with preview(source):
        for index in files_to_compare(names, [size for _, size in files], UNIT_BYTES):
            try:
                for _ in source.blocks(Position(index, 0), Position(index, 1)):
                    pass
            except BadEpisodeError as error:
                error.hint = separate_datasets_hint(names, names[0], names[index]) or advice or error.hint
                raise
