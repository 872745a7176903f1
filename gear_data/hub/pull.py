"""Pulls a dataset from the HuggingFace hub."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Never

from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import is_remote, named, plain_path
from gear_data.common.progress import progress_bar
from gear_data.common.retry import MANY, answer_of, requests_of
from gear_data.errors import CorruptShardError, DatasetNotFoundError, InvalidArgumentError, RemoteError
from gear_data.hub.failures import check_name, quiet_library, typed_hub_errors
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.destination import choose_target, remove_dataset
from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.storage.atomic import swap_folders, typed_write_errors
from gear_data.storage.dataset_files import open_files
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from gear_data.storage.verify import check_bytes, verify
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.folder_lock import folder_lock
from gear_data.storage.writing.progress_files import PROGRESS

#: Files that are downloaded before the progress bar moves.
_FILES_AT_ONCE = 16
_AGAIN = "run the same command again: it continues with the files that are missing"


@dataclass(frozen=True)
class PullReport:
    """The outcome of `pull`.

    Attributes:
        name: the name of the dataset on the hub.
        commit: the hash of the commit that was pulled.
        episodes: the number of episodes.
        steps: the number of steps.
        files: the number of files.
        bytes: the size of the tables, shards and video files.
        seconds: the wall time.
        fingerprint: the fingerprint of the dataset.
    """

    name: str
    commit: str
    episodes: int
    steps: int
    files: int
    bytes: int
    seconds: float
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return asdict(self)


def pull(
    name: str,
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> PullReport:
    """Pulls a dataset from the HuggingFace hub into a folder.

    The folder appears once all files are there and `verify` has found no damage. Until then they are beside it, in a
    folder whose name begins with a dot. The same call continues an interrupted pull. Only README.md and the files that
    the manifest lists are pulled. To read a dataset without a copy of it, open `hf://datasets/USER/NAME`.

    The token is the one of `hf auth login`, or of the environment variable HF_TOKEN.

    Args:
        name: the dataset on the hub, USER/NAME.
        path: the folder of the dataset. It must not exist, or must be empty, unless `overwrite` is set.
        revision: a branch, tag or commit; None is the default branch.
        overwrite: replace the GEAR dataset there, once the new one is complete.
        progress: show progress bars. None shows them on a terminal.

    Raises:
        InvalidArgumentError: the name is not USER/NAME, or the path is a URL, or `.`.
        DatasetNotFoundError: the repository or the revision does not exist, is private, or has no GEAR dataset.
        DestinationExistsError: the destination holds files that must not be replaced, or another process pulls there.
        CorruptShardError: a file is damaged on the hub, or was damaged on its way.
        RemoteError: the hub refused the request, or cannot be reached.
        StorageFullError, UnwritableError: the disk is full, or the system refuses a write.
        UnknownArgumentError: there is no argument of a name.
        GearError: another subclass. After an error, `open` finds no new dataset at the destination.
    """
    refuse_keywords_of(pull, unknown)
    start = time.perf_counter()
    check_name(name)
    destination = plain_path(path)
    if is_remote(destination):
        raise InvalidArgumentError("pull needs a folder of this machine, not a URL", file=destination)
    target = choose_target(destination, overwrite, False)
    final = Path(target.folder)
    staging = named(final).with_name(f".{final.name}.gear-pull")
    hint = "wait until it has finished"
    with folder_lock(staging / PROGRESS, name=str(staging), hint=hint), typed_write_errors(final):
        with quiet_library():
            commit, wanted, manifest = _downloaded(name, revision, staging, progress)
        _check(staging, name, progress)
        _remove_others(staging, wanted)
        if target.replaces:
            swap_folders(staging, final)
            remove_dataset(LocalFileStore(staging))
        else:
            os.replace(staging, final)
    sizes = [(final / file).stat().st_size for file in wanted if file not in (MANIFEST_NAME, CARD_NAME)]
    return PullReport(
        name=name,
        commit=commit,
        episodes=manifest.episodes,
        steps=manifest.steps,
        files=len(wanted),
        bytes=sum(sizes),
        seconds=time.perf_counter() - start,
        fingerprint=manifest.fingerprint,
    )


def _downloaded(
    name: str, revision: str | None, staging: Path, progress: bool | None
) -> tuple[str, list[str], Manifest]:
    """Downloads a dataset. Returns the commit, the names of the files, and the manifest."""
    from huggingface_hub import HfApi

    with typed_hub_errors(name, _AGAIN):
        api = HfApi()
        commit = str(answer_of(lambda: api.dataset_info(name, revision=revision)).sha)
        there = set(answer_of(lambda: api.list_repo_files(name, repo_type="dataset", revision=commit), MANY))
        if MANIFEST_NAME not in there:
            raise DatasetNotFoundError(
                f"has no {MANIFEST_NAME}, so it is no GEAR dataset",
                file=f"hf://datasets/{name}",
                hint="convert it: gear-data convert USER/NAME DST",
            )
        _remove_unknown(staging)
        _download(name, commit, [MANIFEST_NAME], staging)
        manifest = Manifest.load(staging)  # refuses names outside the folder
        tables = [entry.file for entry in manifest.tables.values()]
        if all(file in there for file in tables):
            _remove_damaged(staging, manifest.tables.values())
            _download(name, commit, tables, staging, sum(entry.bytes for entry in manifest.tables.values()))
            entries = [*(file for shard in manifest.shards for file in shard.files), *_videos(staging, manifest)]
        else:
            entries = []
        card = [CARD_NAME] if CARD_NAME in there else []
        wanted = [MANIFEST_NAME, *card, *tables, *(entry.file for entry in entries)]
        missing = [file for file in wanted if file not in there]
        if missing:
            raise CorruptShardError(
                f"lacks {len(missing)} of its {len(wanted)} files, first {missing[0]}",
                file=f"hf://datasets/{name}",
                hint="push the dataset again",
            )
        _download(name, commit, card, staging)
        with progress_bar(sum(entry.bytes for entry in entries), "pull", "B", progress) as bar:
            for first in range(0, len(entries), _FILES_AT_ONCE):
                chunk = entries[first : first + _FILES_AT_ONCE]
                size = sum(entry.bytes for entry in chunk)
                _download(name, commit, [entry.file for entry in chunk], staging, size)
                bar.update(size)
    return commit, wanted, manifest


def _download(name: str, commit: str, files: list[str], staging: Path, size: int = 0) -> None:
    from huggingface_hub import snapshot_download

    if files:
        patterns = [glob.escape(file) for file in files]
        place = str(staging)
        answer_of(
            lambda: snapshot_download(
                name, repo_type="dataset", revision=commit, local_dir=place, allow_patterns=patterns
            ),
            MANY + requests_of(size),
        )
        absent = [file for file in files if not (staging / file).is_file()]
        if absent:
            # If the hub fails to list its files, the library returns a folder that holds any file.
            raise RemoteError(f"the hub failed: {absent[0]} is missing", file=f"hf://datasets/{name}", hint=_AGAIN)


def _remove_unknown(staging: Path) -> None:
    """Removes files without a checksum of an earlier pull. They are downloaded again.

    After a loss of power they may be damaged, and the library's note says that they are there.
    """
    for file in (MANIFEST_NAME, CARD_NAME):
        (staging / file).unlink(missing_ok=True)


def _remove_damaged(staging: Path, tables: Iterable[FileEntry]) -> None:
    """Removes damaged tables of an earlier pull, for the same reason. Other files are checked by `_check`."""
    for entry in tables:
        path = staging / entry.file
        if path.exists():
            try:
                check_bytes(path, entry)
            except CorruptShardError:
                path.unlink()


def _videos(staging: Path, manifest: Manifest) -> list[FileEntry]:
    """Returns the video files in a dataset's folder. Raises ManifestError if one leaves the folder."""
    files = open_files(staging)
    index = read_index(files, files.manifest()) if manifest.schema.videos else None
    entries = [] if index is None else [video_entry(files, index, number) for number in range(len(index))]
    return [entry for entry in entries if is_kept(entry.file)]


def _check(staging: Path, name: str, progress: bool | None) -> None:
    """Verifies the files. Damaged ones are removed, so that the next pull downloads them again."""
    report = verify(staging, progress=progress)
    bad = [check for check in report.shards if not check.ok]
    if not bad:
        return
    for check in bad:
        (staging / check.file).unlink(missing_ok=True)
    raise CorruptShardError(
        f"{len(bad)} of {len(report.shards)} files are damaged, first {bad[0].file}: {bad[0].error}",
        file=f"hf://datasets/{name}",
        hint="run the same command again; if it fails again, the dataset on the hub is damaged: push it again",
    )


def _remove_others(staging: Path, wanted: list[str]) -> None:
    """Removes the library's notes, and files of an earlier pull of another revision."""
    shutil.rmtree(staging / ".cache", ignore_errors=True)
    names = set(wanted)
    for path in sorted(staging.rglob("*"), reverse=True):
        name = path.relative_to(staging).as_posix()
        if name.split("/")[0] == PROGRESS or name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        else:
            path.unlink()
