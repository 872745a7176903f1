"""ALOHA's HDF5 files, which ACT reads: one per episode, such as `episode_0.hdf5`.

Layout: `record_episodes.py` and `utils.py` in https://github.com/tonyzhaozh/act, and their successors in mobile ALOHA.
A file has `action` [T, 14] and `observations/{qpos,qvel,effort}`; of a mobile robot also `base_action` [T, 2]. Cameras
are `observations/images/NAME`: uint8 [T, H, W, 3], or JPEG files. The JPEG files of a camera are padded with zeros to
one length. `compress_len` [cameras, T] has their own lengths; the order of its rows is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.images import looks_like_image
from gear_data.errors import BadEpisodeError, EmptySourceError, GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.hdf5.attributes import attribute_facts
from gear_data.ingest.sources.hdf5.blocks import block_of, typed_facts
from gear_data.ingest.sources.hdf5.datasets import check_dataset, step_spec
from gear_data.ingest.sources.hdf5.episode_reader import EpisodeReader, GroupColumn, GroupContents, GroupEpisode
from gear_data.ingest.sources.hdf5.inventory import SCALAR, inventory, links_below, links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import hdf5_files, open_hdf5, reading
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
_ACTION, _QPOS, _LENGTHS = "action", "observations/qpos", "compress_len"
_IMAGES = "observations/images"
_END_OF_JPEG = b"\xff\xd9"


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is ALOHA's; otherwise None."""
    files = hdf5_files(location)
    if not files:
        return None
    try:
        with open_hdf5(files[0]) as file:
            if not _is_episode(file, files[0]):
                return None
            with reading(files[0].name):
                is_encoded = any(_is_encoded(path, item) for path, item in inventory(file, files[0].name)[0].items())
    except GearError:
        return None  # a damaged file is not recognised
    note = "; its images are JPEG, in the channel order of the JPEG file (cv2.imdecode reverses it)"
    return f"ACT: {files[0].name} has {_ACTION} and {_QPOS}{note if is_encoded else ''}"


def open_(location: Location, options: SourceOptions) -> ActSource:
    """Opens ALOHA's files.

    The columns are those of the first file that has two steps or more. One step does not show which datasets have one
    row for the whole episode. Without such a file, the first file of one step is the model.

    Raises:
        UnknownFormatError: there is no HDF5 file.
        EmptySourceError: no file has steps.
    """
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    file = _find_model(files)
    if file is None:
        raise EmptySourceError(f"holds no file with steps in '{_ACTION}'", file=location.name)
    with open_hdf5(file) as opened:
        contents = _contents(*inventory(opened, file.name), file, options)
        with reading(file.name):
            facts, _ = attribute_facts(opened, ())
        types = {name: type(value) for name, value in facts.items()}
        links = frozenset(links_below(opened, file.name))
    return ActSource(files, contents, file.name, links, types, skip_bad=options.skip_bad)


def _find_model(files: Sequence[SourceFile]) -> SourceFile | None:
    """Returns the first file of two steps or more; without such a file, of one step."""
    shortest = None
    for file in files:
        with open_hdf5(file) as opened:
            if not _is_episode(opened, file):
                continue
            with reading(file.name):
                steps = opened[_ACTION].shape[0] if opened[_ACTION].shape else 0
        if steps > 1:
            return file
        if steps and shortest is None:
            shortest = file
    return shortest


def _is_episode(opened: h5py.File, file: SourceFile) -> bool:
    with reading(file.name):
        return all(
            isinstance(opened.get(path, getlink=True), h5py.HardLink) and isinstance(opened[path], h5py.Dataset)
            for path in (_ACTION, _QPOS)
        )


def _is_encoded(path: str, dataset: h5py.Dataset) -> bool:
    """Returns whether a dataset holds image files.

    They are texts, bytes, or rows of uint8 that begin like an image.
    """
    if not path.startswith(f"{_IMAGES}/") or not dataset.shape or not dataset.shape[0]:
        return False
    if dataset.ndim == 1:
        return dataset.dtype.kind in "SO"
    return dataset.ndim == 2 and dataset.dtype == np.uint8 and looks_like_image(dataset[0].tobytes())


def _contents(
    datasets: Mapping[str, h5py.Dataset], non_columns: Mapping[str, str], file: SourceFile, options: SourceOptions
) -> GroupContents:
    """Chooses the columns and facts of all episodes, from the first one."""
    steps = datasets[_ACTION].shape[0]
    paths = [path for path in [*datasets, *links_of(non_columns)] if path != _LENGTHS]
    chosen = choose_columns(paths, options)
    refuse_links(non_columns, chosen, file.name)
    columns, facts, findings = [], [], []
    for path, name in chosen.items():
        dataset = datasets[path]
        with reading(file.name, path):
            check_dataset(dataset.id, file, path)
            encoded = _is_encoded(path, dataset)
            column = GroupColumn(step_spec(dataset, path, name, file.name, encoded=encoded), path, encoded=encoded)
        if dataset.shape[0] == 1 != steps:
            message = "has one row, where others have a row per step; a fact of the episode"
            findings.append(Finding("row-per-episode", message, file=file.name, column=path))
            facts.append(column)
        else:
            columns.append(column)
    findings += [
        Finding(
            "column-left-out", "a scalar, where one row per step is expected; left out", file=file.name, column=path
        )
        for path, kind in non_columns.items()
        if kind == SCALAR
    ]
    return GroupContents(tuple(columns), tuple(facts), tuple(findings))


class ActSource:
    """An `EpisodeSource` over HDF5 files with one episode each.

    `Position.file` is the index of a file.

    Args:
        files: the files, in source order.
        contents: the columns and facts to read from every file.
        model: the file that `contents` were inferred from, for messages.
        links: paths of every link in that file.
        fact_types: name -> type of the facts that attributes give.
        skip_bad: leave bad episodes out and report them, instead of raising.
    """

    rows_are_steps = False

    def __init__(
        self,
        files: Sequence[SourceFile],
        contents: GroupContents,
        model: str,
        links: frozenset[str],
        fact_types: Mapping[str, type],
        *,
        skip_bad: bool,
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.columns: tuple[ColumnSpec, ...] = tuple(column.spec for column in contents.columns)
        self.num_rows: int | None = len(files)
        for finding in contents.findings:
            self.findings.add(finding)
        # The lengths of the padded images are read separately.
        self._reader = EpisodeReader(contents, _ACTION, model, links | {_LENGTHS}, self.findings)
        self._encoded = [column for column in contents.columns if column.encoded]
        self._files = files
        self._fact_types = fact_types
        self._skip_bad = skip_bad

    def units(self) -> Sequence[Unit]:
        """Returns runs of files of about `UNIT_BYTES`.

        Raises:
            UnknownFormatError: some of the files are no episodes, and bad episodes are not skipped.
        """
        if not self._skip_bad:
            self._check_files()
        units: list[Unit] = []
        for index, file in enumerate(self._files):
            if not units or units[-1].bytes >= UNIT_BYTES:
                units.append(Unit(Position(index, 0), 0))
            units[-1] = Unit(units[-1].position, units[-1].bytes + file.size)
        return units

    def _check_files(self) -> None:
        others = []
        for file in self._files:
            with open_hdf5(file) as opened:
                if not _is_episode(opened, file):
                    others.append(file.name)
        if others:
            shown = ", ".join(others[:10]) + (", ..." if len(others) > 10 else "")
            raise UnknownFormatError(
                f"{len(others)} of {len(self._files)} files lack {_ACTION} or {_QPOS}",
                file=others[0],
                hint=f"move these files to another folder: {shown}; or leave them out with --on-bad-episode skip",
            )

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        pending: list[tuple[GroupEpisode, Mapping[str, Any], str]] = []
        size, files_read, position = 0, 0, start
        for index in range(start.file, len(self._files)):
            if (index, 0) >= stop:
                break
            if not files_read:
                position = Position(index, 0) if index else BEGIN
            files_read += 1
            file = self._files[index]
            try:
                with open_hdf5(file) as opened:
                    episode = self._read(opened, file)
                    facts = self._facts(opened, file, episode)
            except BadEpisodeError as error:
                self.findings.add_bad_episode(error, skip=self._skip_bad)
                continue
            pending.append((episode, facts, file.name))
            size += episode.nbytes
            if size >= _BLOCK_BYTES:
                yield self._block(pending, position, files_read)
                pending, size, files_read = [], 0, 0
        if pending:
            yield self._block(pending, position, files_read)

    def _block(
        self, pending: Sequence[tuple[GroupEpisode, Mapping[str, Any], str]], position: Position, files_read: int
    ) -> EpisodeBlock:
        episodes, facts, files = zip(*pending, strict=True)
        return block_of(episodes, facts, files, self.columns, position, files_read)

    def _facts(self, opened: h5py.File, file: SourceFile, episode: GroupEpisode) -> dict[str, Any]:
        with reading(file.name):
            found, unreadable = attribute_facts(opened, ())
        return {**typed_facts(found, unreadable, self._fact_types, file.name, 0, self.findings), **episode.facts}

    def _read(self, opened: h5py.File, file: SourceFile) -> GroupEpisode:
        """Reads the episode of a file, with its images without padding."""
        episode = self._reader.read(opened, file, 0)
        lengths = self._lengths(opened, file) if self._encoded else None
        for column in self._encoded:
            name = column.spec.name
            images = [without_padding(image) for image in episode.variable[name].to_pylist()]
            episode.variable[name] = pa.array(images, column.spec.arrow_type)
            own = [len(image) for image in images]
            if lengths is not None and not any(np.array_equal(row, own) for row in lengths):
                message = (
                    f"no row has the lengths of the images of {column.path}; they are cut where the padding starts"
                )
                self.findings.add(Finding("metadata-disagrees", message, 1, file.name, 0, _LENGTHS))
        return episode

    def _lengths(self, opened: h5py.File, file: SourceFile) -> npt.NDArray[Any] | None:
        """Reads `compress_len`, [cameras, T]; None if the file has no such numbers."""
        with suppress(KeyError), reading(file.name, _LENGTHS):
            if isinstance(opened.get(_LENGTHS, getlink=True), h5py.HardLink):
                dataset = opened[_LENGTHS]
                if isinstance(dataset, h5py.Dataset) and dataset.ndim == 2 and dataset.dtype.kind in "iuf":
                    check_dataset(dataset.id, file, _LENGTHS)
                    return np.asarray(dataset[...])
        return None


def without_padding(image: bytes) -> bytes:
    """Returns a JPEG file without the zeros after its end; other bytes unchanged."""
    end = image.rstrip(b"\0")
    return end if end.endswith(_END_OF_JPEG) else image


FORMAT = Format(
    name="act",
    probe=probe,
    open=open_,
    priority=43,
    suffixes=(".hdf5", ".h5"),
)
