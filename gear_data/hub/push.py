"""Pushes a dataset to the HuggingFace hub."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Never

from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import is_remote, plain_path
from gear_data.common.progress import progress_bar
from gear_data.common.retry import MANY, answer_of, requests_of
from gear_data.errors import InvalidArgumentError
from gear_data.hub.failures import check_name, quiet_library, typed_hub_errors
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.merging.link import EPISODES, FINALS
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.storage.dataset_files import DatasetFiles, open_files
from gear_data.storage.manifest import MANIFEST_NAME, STEP_MASK_FILE, FileEntry, Manifest
from gear_data.storage.verify import check_bytes
from gear_data.storage.videos.mapped import is_kept, video_entry
from gear_data.video.index_tables import TABLE_FILES

#: Files that are uploaded before the progress bar moves.
_FILES_AT_ONCE = 16
#: Files and folders of an earlier dataset that a push removes if the new one does not have them.
_OF_DATASETS = (EPISODES, FINALS, STEP_MASK_FILE, *TABLE_FILES.values(), "shards/", f"{VIDEOS}/")


@dataclass(frozen=True)
class PushReport:
    """The outcome of `push`.

    Attributes:
        name: the name of the dataset on the hub.
        url: the page of the commit.
        commit: the hash of the commit.
        files: the number of files of the dataset on the hub.
        removed: the number of files of an earlier dataset that were removed.
        bytes: the size of the files.
        seconds: the wall time.
        fingerprint: the fingerprint of the dataset.
    """

    name: str
    url: str
    commit: str
    files: int
    removed: int
    bytes: int
    seconds: float
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return asdict(self)


def push(
    path: str | os.PathLike[str],
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    progress: bool | None = None,
    **unknown: Never,
) -> PushReport:
    """Pushes a dataset to the HuggingFace hub, in one commit.

    The hub shows the dataset once all its files are there: an interrupted push leaves the repository as it was. Files
    whose contents the hub has are not sent again, so the same call continues an interrupted push. Each file is compared
    with its checksum before. README.md and the files that the manifest lists are pushed, and nothing else in the
    folder. Shards, tables and videos of a dataset that was there before are removed; other files stay. The manifest on
    the hub names local sources without their folders.

    The token is the one of `hf auth login`, or of the environment variable HF_TOKEN.

    Args:
        path: the folder of the dataset.
        name: the dataset on the hub, USER/NAME. It is created if it does not exist.
        private: whether a repository that is created is private.
        revision: the branch; None is the default branch. It is created if it does not exist.
        message: the message of the commit.
        progress: show a progress bar. None shows one on a terminal.

    Raises:
        InvalidArgumentError: the name is not USER/NAME, the path is a URL, the dataset grows, or its videos are outside
            the folder.
        CorruptShardError: a file is damaged.
        RemoteError: the hub refused the request, or cannot be reached.
        UnknownArgumentError: there is no argument of a name.
        GearError: the dataset cannot be opened.
    """
    refuse_keywords_of(push, unknown)
    start = time.perf_counter()
    check_name(name)
    folder = plain_path(path)
    if is_remote(folder):
        raise InvalidArgumentError(
            "push needs a folder of this machine, not a URL",
            file=folder,
            hint="save it first: gear_data.open(...).save",
        )
    files = open_files(folder)
    manifest = files.manifest().without_folders()
    if manifest.growth is not None:
        raise InvalidArgumentError(
            "the dataset grows, and the hub keeps one state of it",
            file=folder,
            hint="save its newest generation first, which links the shards: gear_data.open(...).save(...)",
        )
    files.check(manifest)
    entries = [*manifest.files, *_videos(files, manifest)]
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with typed_hub_errors(name, "run the same command again: files that are there are not sent again"):
        answer_of(lambda: api.create_repo(name, repo_type="dataset", private=private, exist_ok=True))
        if revision is not None:
            answer_of(lambda: api.create_branch(name, branch=revision, repo_type="dataset", exist_ok=True))
        extra = [file for file in (CARD_NAME,) if (Path(folder) / file).is_file()]
        additions = [CommitOperationAdd(file, str(Path(folder) / file)) for file in extra]
        # The manifest that was opened, and not the one that may have replaced it.
        additions.append(CommitOperationAdd(MANIFEST_NAME, manifest.to_text().encode()))
        with quiet_library(), progress_bar(sum(entry.bytes for entry in entries), "push", "B", progress) as bar:
            for first in range(0, len(entries), _FILES_AT_ONCE):
                chunk = entries[first : first + _FILES_AT_ONCE]
                added = [_checked_addition(files, entry) for entry in chunk]
                size = sum(entry.bytes for entry in chunk)
                upload = partial(api.preupload_lfs_files, name, added, repo_type="dataset", revision=revision)
                answer_of(upload, requests_of(size))
                additions += added
                bar.update(size)
            # If somebody else commits meanwhile, the hub refuses this commit.
            parent = answer_of(lambda: api.dataset_info(name, revision=revision)).sha
            there = answer_of(lambda: api.list_repo_files(name, repo_type="dataset", revision=parent), MANY)
            kept = {addition.path_in_repo for addition in additions}
            gone = [file for file in there if file.startswith(_OF_DATASETS) and file not in kept]
            commit = partial(
                api.create_commit,
                name,
                [*additions, *(CommitOperationDelete(file) for file in gone)],
                commit_message=message or f"gear-data {manifest.fingerprint}: {manifest.episodes:,} episodes",
                repo_type="dataset",
                revision=revision,
                parent_commit=parent,
            )
            done = answer_of(commit, MANY)
    return PushReport(
        name=name,
        url=str(done.commit_url),
        commit=str(done.oid),
        files=len(additions),
        removed=len(gone),
        bytes=sum(entry.bytes for entry in entries),
        seconds=time.perf_counter() - start,
        fingerprint=manifest.fingerprint,
    )


def _checked_addition(files: DatasetFiles, entry: FileEntry) -> Any:
    from huggingface_hub import CommitOperationAdd

    with files.local(entry) as path:
        check_bytes(path, entry)
        return CommitOperationAdd(entry.file, str(path))


def _videos(files: DatasetFiles, manifest: Manifest) -> Sequence[FileEntry]:
    """Returns the video files of a dataset.

    Raises:
        InvalidArgumentError: a file is not in the dataset's folder.
    """
    index = read_index(files, manifest)
    entries = [] if index is None else [video_entry(files, index, number) for number in range(len(index))]
    for entry in entries:
        if not is_kept(entry.file):
            raise InvalidArgumentError(
                f"its cameras refer to video files outside its folder, first {entry.file}",
                file=str(files.location),
                hint="convert the source with videos='keep' (--videos keep), and push that dataset",
            )
    return entries
