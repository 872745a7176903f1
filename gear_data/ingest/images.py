"""Encoded images become columns of pixels, of one shape for all steps.

A source gives the encoded images of PNG, JPEG, WebP, BMP or GIF files as a column of `binary`. Where those of its first
block are alike in size and channels, the column is decoded: uint8 [H, W, C], C being 1 (grey), 2 (grey, alpha), 3 or 4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.images import (
    ImageKind,
    OversizedImage,
    UnfitImage,
    UnreadableImage,
    decode_into,
    kind_of,
    looks_like_image,
    opened,
)
from gear_data.ingest.findings import Finding, Findings
from gear_data.ingest.source import EpisodeSource, Unit
from gear_data.schema import ColumnSpec
from gear_data.storage.block import BEGIN, END, EpisodeBlock, Position

#: Pixels of the blocks that are given out: encoded ones of some MB may hold gigabytes.
_PIECE_BYTES = 32 << 20
#: Images of a column's first block that are looked at, evenly spread.
_LOOKED_AT = 512
_MAX_PIXELS = 64 << 20
#: Images a thread decodes at a time.
_RUN = 16
#: Bytes of an image's pixels below which Pillow holds the interpreter's lock for most of the time: threads would wait
#: for each other. Measured: two decode 84 x 84 grey PNGs at 0.6 times the speed of one.
_THREADED = 32 << 10
_KEEP = "keep the images as they are encoded with --keep-encoded"


def decode_images(source: EpisodeSource, *, skip_bad: bool, threads: int) -> EpisodeSource:
    """The same source with its columns of encoded images decoded; those that are not alike stay as they are, and a
    finding says so. Reads the source's first block where it has a column of bytes.

    Args:
        skip_bad: leave episodes out whose images cannot be decoded.
        threads: that decode at the same time.

    Raises:
        UnsupportedColumnError: an image of more than 64 Mi pixels.
        GearError: the first block cannot be read.
    """
    encoded = [spec for spec in source.columns if spec.dtype == "binary"]
    head = _head(source) if encoded else None
    if head is None:
        return source
    kinds = {spec.name: kind for spec in encoded if (kind := _common_kind(head, spec, source.findings)) is not None}
    return DecodedImages(source, kinds, skip_bad, threads) if kinds else source


def _head(source: EpisodeSource) -> EpisodeBlock | None:
    """The first block. Its findings and notes are undone: it will be read again."""
    findings, notes = source.findings.to_json(), copy.deepcopy(source.notes)
    try:
        return next((block for block in source.blocks(BEGIN, END) if len(block)), None)
    finally:
        source.findings.restore(findings)
        source.notes.clear()
        source.notes.update(notes)


def _common_kind(head: EpisodeBlock, spec: ColumnSpec, findings: Findings) -> ImageKind | None:
    """What a column's images have in common; None if it holds no images, or they are unlike (a finding)."""
    array, column = head.variable[spec.name], spec.source or spec.name
    steps = np.unique(np.linspace(0, len(array) - 1, _LOOKED_AT).astype(np.int64)).tolist()
    values = [array[step].as_py() for step in steps]
    if not any(map(looks_like_image, values)):
        return None
    common = None
    for step, value in zip(steps, values, strict=True):
        place = _Place.of(head, step)
        try:
            kind = _kind(value)
        except OversizedImage as error:
            raise UnsupportedColumnError(
                f"step {place.step} {error}", file=place.file, column=column, row=place.row, hint=_KEEP
            ) from error
        except UnfitImage as error:
            reason = f"step {place.step} {error}"
        except UnreadableImage:
            continue  # a bad episode, when its turn comes
        else:
            common = common or kind
            if kind == common:
                continue
            reason = f"step {place.step} is {kind}, where the first image is {common}"
        message = f"{reason}; the column stays encoded"
        findings.add(Finding("images-kept-encoded", message, 1, place.file, place.row, column))
        return None
    return common


def _kind(encoded: bytes) -> ImageKind:
    if not looks_like_image(encoded):
        raise UnfitImage("is no image")
    with opened(encoded) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise OversizedImage(f"is too large: {image.height:,} x {image.width:,} pixels")
        return kind_of(image)


class _Place(NamedTuple):
    """A step of a block, as the source counts: `row` is its episode's, `step` counts from that one's first."""

    file: str
    row: int
    step: int

    @staticmethod
    def of(block: EpisodeBlock, step: int) -> _Place:
        offsets = block.offsets
        episode = int(np.searchsorted(offsets, step, side="right")) - 1
        return _Place(block.sources[episode], int(block.rows[episode]), step - int(offsets[episode]))


class _BadImage(NamedTuple):
    """An image that could not be decoded: its step in the block, its column, and what is wrong."""

    step: int
    column: str
    reason: str


class DecodedImages:
    """An `EpisodeSource` over another, some of whose columns it decodes.

    The other's blocks are cut into pieces, which keep the position they were read from (`EpisodeBlock.first`).
    """

    def __init__(self, source: EpisodeSource, kinds: Mapping[str, ImageKind], skip_bad: bool, threads: int) -> None:
        self.findings = source.findings
        self.notes = source.notes
        self.num_rows = source.num_rows
        self.rows_are_steps = source.rows_are_steps
        self.metadata = source.metadata
        self.columns = tuple(
            replace(spec, dtype="uint8", shape=kinds[spec.name].shape) if spec.name in kinds else spec
            for spec in source.columns
        )
        self._source = source
        self._kinds = kinds
        self._source_names = {spec.name: spec.source or spec.name for spec in source.columns}
        sizes = [math.prod(kind.shape) for kind in kinds.values()]
        self._step_bytes = sum(sizes)
        self._skip_bad = skip_bad
        self._threads = threads if max(sizes) >= _THREADED else 1

    def units(self) -> Sequence[Unit]:
        return self._source.units()

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        position: Position | None = None
        first = used = 0
        with ThreadPoolExecutor(self._threads, thread_name_prefix="gear-decode") as pool:
            for block in self._source.blocks(start, stop):
                # A new position only where nothing was noted since the last episode given out: a resumed run would
                # not note it again.
                if position is None or (block.first == 0 and used == 0):
                    position, first = block.position, 0
                for piece in self._pieces(block):
                    used += piece.source_rows
                    for run in self._good_runs(piece, pool):
                        yield replace(run, position=position, first=first, source_rows=used)
                        first, used = first + len(run), 0

    def _pieces(self, block: EpisodeBlock) -> Iterator[EpisodeBlock]:
        """Episodes of up to `_PIECE_BYTES` of pixels each, or a single one; each has its share of the source's rows."""
        sizes = block.offsets * self._step_bytes
        first = rows = 0
        while first < len(block):
            last = int(np.searchsorted(sizes, sizes[first] + _PIECE_BYTES, side="right")) - 1
            last = max(last, first + 1)
            so_far = block.source_rows * last // len(block)
            yield replace(block.slice(first, last), source_rows=so_far - rows)
            first, rows = last, so_far

    def _good_runs(self, piece: EpisodeBlock, pool: ThreadPoolExecutor) -> Iterator[EpisodeBlock]:
        """The piece decoded, in parts where an episode is left out."""
        bad: list[_BadImage] = []
        columns = dict(piece.columns)
        for name in self._kinds:
            columns[name] = self._decode(name, piece.variable[name], pool, bad)
        variable = {name: array for name, array in piece.variable.items() if name not in self._kinds}
        decoded = replace(piece, columns=columns, variable=variable)
        start = 0
        for episode in self._note_bad(piece, bad):
            if episode > start:
                yield decoded.slice(start, episode)
            start = episode + 1
        if start < len(decoded):
            yield decoded.slice(start, len(decoded))

    def _decode(
        self, name: str, array: pa.Array, pool: ThreadPoolExecutor, bad: list[_BadImage]
    ) -> npt.NDArray[np.uint8]:
        """uint8 [steps, H, W, C]; adds to `bad`."""
        kind, column = self._kinds[name], self._source_names[name]
        out = np.empty((len(array), *kind.shape), np.uint8)

        def decode_run(start: int) -> list[_BadImage]:
            found = []
            for step, encoded in enumerate(array[start : start + _RUN].to_pylist(), start):
                try:
                    decode_into(out[step], encoded, kind)
                except UnreadableImage as error:
                    found.append(_BadImage(step, column, str(error)))
            return found

        for found in pool.map(decode_run, range(0, len(array), _RUN)):
            bad += found
        return out

    def _note_bad(self, block: EpisodeBlock, bad: list[_BadImage]) -> list[int]:
        """Raises for the first bad image, or adds a finding for each episode that has one. Gives these, in order."""
        episodes: dict[int, _BadImage] = {}
        for image in sorted(bad):
            episodes.setdefault(int(np.searchsorted(block.offsets, image.step, side="right")) - 1, image)
        for image in episodes.values():
            place = _Place.of(block, image.step)
            reason = f"step {place.step} {image.reason}"
            if not self._skip_bad:
                raise BadEpisodeError(
                    reason,
                    file=place.file,
                    column=image.column,
                    row=place.row,
                    hint=f"mend the source, leave such episodes out with --on-bad-episode skip, or {_KEEP}",
                )
            finding = Finding("bad-episode", f"{reason}; skipped", 1, place.file, place.row, image.column)
            self.findings.add(finding)
        return list(episodes)
