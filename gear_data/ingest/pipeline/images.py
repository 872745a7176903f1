"""Decodes columns of encoded images to pixels of one shape.

A source yields encoded images (PNG, JPEG, WebP, BMP, GIF) as a column of `binary`. If the images of its first block
have one size and one number of channels, the column is decoded to uint8 [H, W, C]. C is 1 (grey), 2 (grey and alpha),
3 (RGB) or 4 (RGB and alpha).

The final observations of such a column are decoded too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import (
    ImageKind,
    OversizedImage,
    UnreadableImage,
    UnsupportedImage,
    decode_into,
    kind_of,
    looks_like_image,
    open_image,
)
from gear_data.errors import MissingExtraError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog, place_of
from gear_data.ingest.pipeline.mapped_source import MappedSource, cut, without
from gear_data.ingest.pipeline.previews import first_block
from gear_data.ingest.source import EpisodeSource
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, offsets_of

#: Bytes of pixels per yielded block: an encoded block of some MB may decode to gigabytes.
_PIECE_BYTES = 32 << 20
#: Images of the first block that are compared, evenly spread; and as many final observations.
_COMPARED = 512
_MAX_PIXELS = 64 << 20
#: Images that a thread decodes at a time.
_RUN = 16
#: Images of fewer bytes are decoded by one thread: Pillow holds the interpreter's lock most of the time. Measured: two
#: threads decode 84 x 84 grey PNGs at 0.6 times the speed of one thread.
_THREADED = 32 << 10
_KEEP = "keep the images encoded with --keep-encoded"


def decode_images(source: EpisodeSource, *, skip_bad: bool, threads: int, once: bool = False) -> EpisodeSource:
    """Returns a source that decodes the columns of encoded images.

    A column whose images differ in size or channels stays encoded, and a finding reports it. If the source has a column
    of bytes, its first block is read.

    Args:
        source: the source of encoded images.
        skip_bad: leave out episodes whose images cannot be decoded.
        threads: the number of threads that decode.
        once: see `first_block`.

    Raises:
        UnsupportedColumnError: an image has more than 64 Mi pixels.
        GearError: the first block cannot be read.
    """
    encoded = [spec for spec in source.columns if spec.dtype == "binary"]
    head = first_block(source, once=once) if encoded else None
    if head is None:
        return source
    kinds = {spec.name: kind for spec in encoded if (kind := _common_kind(head, spec, source.findings)) is not None}
    return DecodedImages(source, kinds, skip_bad, threads) if kinds else source


def _common_kind(head: EpisodeBlock, spec: ColumnSpec, findings: FindingLog) -> ImageKind | None:
    """Returns the size and channels that all images of a column share.

    Returns None if the column holds no images, or if its images differ. The latter adds a finding.
    """
    column = spec.source_name
    values = _sample_images(head, spec.name)
    if not any(map(looks_like_image, values.values())):
        return None
    common = None
    for place, value in values.items():
        file, row = place_of(head, place.episode)
        try:
            kind = _kind(value)
        except OversizedImage as error:
            reason = f"{place.description(head)} {error}"
            raise UnsupportedColumnError(reason, file=file, column=column, row=row, hint=_KEEP) from error
        except MissingExtraError as error:
            hint = f"{error.hint}; or {_KEEP}"
            raise MissingExtraError(error.message, file=file, column=column, hint=hint) from error
        except UnsupportedImage as error:
            reason = f"{place.description(head)} {error}"
        except UnreadableImage:
            continue  # reading the episode will report it
        else:
            common = common or kind
            if kind == common:
                continue
            reason = f"{place.description(head)} is {kind}, but the first image is {common}"
        message = f"{reason}; the column stays encoded"
        findings.add(Finding("images-kept-encoded", message, 1, file, row, column))
        return None
    return common


def _sample_images(head: EpisodeBlock, name: str) -> dict[_ImagePosition, bytes]:
    """Returns some images of a column: of its steps, then of its final observations."""
    values = {}
    arrays = (
        (head.columns[name], _ImagePosition.of_step),
        (head.finals.get(name, ()), _ImagePosition.of_final),
    )
    for array, place in arrays:
        for i in np.unique(np.linspace(0, len(array) - 1, min(len(array), _COMPARED)).astype(np.int64)).tolist():
            values[place(head, i)] = array[i].as_py()
    return values


def _kind(encoded: bytes) -> ImageKind:
    if not looks_like_image(encoded):
        raise UnsupportedImage("is not an image")
    with open_image(encoded) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise OversizedImage(f"is too large: {image.height:,} x {image.width:,} pixels")
        return kind_of(image)


class _ImagePosition(NamedTuple):
    """The position of an observation in a block.

    Attributes:
        episode: the index of the episode in the block.
        step: the step in the episode. A final observation has the step after the last.
    """

    episode: int
    step: int

    @staticmethod
    def of_step(block: EpisodeBlock, step: int) -> _ImagePosition:
        return _ImagePosition(*block.locate(step))

    @staticmethod
    def of_final(block: EpisodeBlock, index: int) -> _ImagePosition:
        episode = int(np.flatnonzero(block.has_final)[index])
        return _ImagePosition(episode, int(block.lengths[episode]))

    def description(self, block: EpisodeBlock) -> str:
        """Returns the name of the observation, for messages."""
        return "the final observation" if self.step == block.lengths[self.episode] else f"step {self.step}"


class _BadImage(NamedTuple):
    """An image that could not be decoded, with its column and the reason."""

    place: _ImagePosition
    column: str
    reason: str


class DecodedImages(MappedSource):
    """An `EpisodeSource` that decodes some columns of another source, in pieces of its blocks."""

    def __init__(self, source: EpisodeSource, kinds: Mapping[str, ImageKind], skip_bad: bool, threads: int) -> None:
        columns = (
            replace(spec, dtype="uint8", shape=kinds[spec.name].shape) if spec.name in kinds else spec
            for spec in source.columns
        )
        super().__init__(source, tuple(columns), skip_bad=skip_bad)
        self._kinds = kinds
        self._source_names = {spec.name: spec.source_name for spec in source.columns}
        sizes = {name: math.prod(kind.shape) for name, kind in kinds.items()}
        self._step_bytes = sum(sizes.values())
        self._final_names = [spec.name for spec in source.columns if spec.name in kinds and spec.has_final]
        self._final_bytes = sum(sizes[name] for name in self._final_names)
        threads = threads if max(sizes.values()) >= _THREADED else 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gear-decode")

    def _pieces(self, block: EpisodeBlock) -> Iterator[EpisodeBlock]:
        sizes = block.offsets * self._step_bytes + offsets_of(block.has_final.astype(np.int64)) * self._final_bytes
        return cut(block, sizes, _PIECE_BYTES)

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        bad: list[_BadImage] = []
        columns, finals = dict(piece.columns), dict(piece.finals)
        for name in self._kinds:
            columns[name] = self._decode(name, columns[name], partial(_ImagePosition.of_step, piece), bad)
        for name in self._final_names:
            finals[name] = self._decode(name, finals[name], partial(_ImagePosition.of_final, piece), bad)
        return without(replace(piece, columns=columns, finals=finals), self._report(piece, bad))

    def _decode(
        self,
        name: str,
        array: pa.Array,
        place: Callable[[int], _ImagePosition],
        bad: list[_BadImage],
    ) -> npt.NDArray[np.uint8]:
        """Decodes a column's images to uint8 [images, H, W, C].

        Args:
            name: the column.
            array: the encoded images.
            place: returns the position of an image, given its index in the array.
            bad: receives the images that cannot be decoded.
        """
        kind, column = self._kinds[name], self._source_names[name]
        out = np.empty((len(array), *kind.shape), np.uint8)

        def decode_run(start: int) -> list[_BadImage]:
            found = []
            for i, encoded in enumerate(array[start : start + _RUN].to_pylist(), start):
                try:
                    decode_into(out[i], encoded, kind)
                except UnreadableImage as error:
                    found.append(_BadImage(place(i), column, str(error)))
            return found

        for found in self._pool.map(decode_run, range(0, len(array), _RUN)):
            bad += found
        return out

    def _report(self, block: EpisodeBlock, bad: list[_BadImage]) -> npt.NDArray[np.bool_]:
        """Adds a finding for each episode with a bad image.

        Returns:
            bool [n], these episodes.

        Raises:
            BadEpisodeError: there is a bad image, and bad episodes are not skipped.
        """
        episodes: dict[int, _BadImage] = {}
        for image in sorted(bad):
            episodes.setdefault(image.place.episode, image)
        for image in episodes.values():
            reason = f"{image.place.description(block)} {image.reason}"
            hint = f"repair the source, leave such episodes out with --on-bad-episode skip, or {_KEEP}"
            self._report_bad(block, image.place.episode, reason, image.column, hint)
        found = np.zeros(len(block), np.bool_)
        found[list(episodes)] = True
        return found
