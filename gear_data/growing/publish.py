"""Publishes generations of a dataset that grows.

A generation is complete before `manifest.json` names it: one replacement of this file publishes it, by a rename in a
folder, by a conditional put in a bucket. No file that an earlier generation lists is changed. Files that no reader's
generation lists are removed afterwards.

Why: docs/explanation/decisions/growing.md
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from gear_data.common.paths import printable
from gear_data.errors import CorruptShardError, RemoteError, UnsupportedColumnError
from gear_data.growing.added_journals import AddedJournal, check_columns
from gear_data.growing.draft import Draft, appended, draft_of
from gear_data.growing.next_generation import growth_of, next_generation
from gear_data.growing.seal_options import SealOptions
from gear_data.ingest.card import dataset_card
from gear_data.storage.generations.growth import Growth
from gear_data.storage.manifest import Manifest
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.staging import manifest_text

_ATTEMPTS = 20
_FIRST_DELAY, _LAST_DELAY = 0.05, 5.0

_Journal = TypeVar("_Journal")


class Overtaken(Exception):
    """Raised when another process published first. The publication begins again with its generation."""


class GenerationStore(Protocol[_Journal]):
    """The generations of a dataset, and the sealed journals that wait for the next one.

    Attributes:
        name: path or URL of the dataset.
        files: the folder in which the files of a generation are read and prepared.
        kept: the series of sealed journals that may be found again after their publication. No generation forgets them.
    """

    name: str
    files: LocalFileStore
    kept: Collection[str]

    def turn(self) -> AbstractContextManager[Manifest | None]:
        """Begins an attempt to publish, and yields the newest manifest; None if there is no dataset.

        Raises:
            Overtaken: another process removed files meanwhile, because it published them.
        """

    def waiting(self, growth: Growth) -> Sequence[_Journal]:
        """Returns the sealed journals that a dataset lacks, in their order."""

    def named(self, generation: int) -> str:
        """Returns the part of the names of a generation's files. No earlier generation has the name."""

    def added(self, journal: _Journal, part: str) -> AddedJournal:
        """Reads a sealed journal. Its shards and videos are in the dataset's folder then.

        Args:
            journal: one of those that wait.
            part: name of the new part, unless the files have names already.

        Raises:
            CorruptShardError: the journal is damaged.
            Overtaken: another process published it.
        """

    def set_aside(self, journal: _Journal, reason: str) -> None:
        """Puts a journal into the quarantine. It does not wait any more."""

    def replace(self, manifest: Manifest, text: str, card: str | None) -> None:
        """Publishes a generation whose files are written.

        Args:
            manifest: its manifest.
            text: the text of the manifest.
            card: the card of a new dataset.

        Raises:
            Overtaken: another process published first.
        """

    def clean(self, newest: Manifest) -> None:
        """Removes files that no reader needs. A later call removes what cannot be removed now."""


@dataclass(frozen=True)
class Publication:
    """A generation that was published.

    Attributes:
        generation: its number.
        episodes, steps: what was added.
        evicted_episodes: what left.
        total_episodes, total_steps: what the dataset has now.
        fingerprint: of the dataset now.
    """

    generation: int
    episodes: int
    steps: int
    evicted_episodes: int
    total_episodes: int
    total_steps: int
    fingerprint: str


def publish(store: GenerationStore[_Journal], options: SealOptions, gone: Collection[str] = ()) -> Publication | None:
    """Adds the sealed journals that wait to a dataset, as a new generation.

    Of several processes that publish at once, one succeeds. The others read its generation, and add what is left to it.
    A journal that cannot join the dataset is set aside.

    Args:
        store: the dataset and the journals.
        options: limits of the dataset, and of its shards.
        gone: clients of a server for writers that send no episode any more. The generation forgets them.

    Returns:
        None if the dataset has all the journals already.

    Raises:
        StorageFullError, UnwritableError: the dataset cannot be written to. It is as before.
        CorruptShardError: a table of the dataset is damaged.
        RemoteError: the server cannot be reached, or other processes were faster many times.
    """
    published: list[Publication] = []
    lost, goes_on = 0, True
    while goes_on:
        try:
            with store.turn() as current:
                publication, goes_on = _next(store, current, options, gone)
        except Overtaken as error:
            lost += 1
            if lost == _ATTEMPTS:
                raise RemoteError(
                    f"cannot publish a generation, tried {_ATTEMPTS} times: other Writers published first",
                    file=store.name,
                    hint="publish less often; the episodes are in the bucket, and the next generation takes them",
                ) from error
            # Random, so that processes that met once do not meet again.
            time.sleep(random.uniform(0, min(_LAST_DELAY, _FIRST_DELAY * 2**lost)))
        else:
            published += [] if publication is None else [publication]
    if not published:
        return None
    sums = {name: sum(getattr(each, name) for each in published) for name in ("episodes", "steps", "evicted_episodes")}
    return replace(published[-1], **sums)


def _next(
    store: GenerationStore[_Journal], current: Manifest | None, options: SealOptions, gone: Collection[str]
) -> tuple[Publication | None, bool]:
    """Publishes one generation, if journals wait; returns it, and whether another one must follow."""
    growth = growth_of(current)
    name = store.named(growth.generation + 1)
    draft: Draft | None = None
    added: list[AddedJournal] = []
    goes_on = False
    for number, journal in enumerate(store.waiting(growth)):
        if draft is None and current is not None:
            draft = draft_of(store.files.folder, current, growth.parts)
        try:
            new = store.added(journal, f"{name}-{number:04d}")
            if draft is not None:
                check_columns(draft.schema, new.manifest.schema, store.name)
            draft = appended(draft, new.draft)
            added.append(new)
        except (UnsupportedColumnError, CorruptShardError) as error:
            if added:
                # It may only not fit the others. The next generation decides: all processes know the dataset.
                goes_on = True
                break
            store.set_aside(journal, str(error))
    if draft is None or not added:
        if current is not None:
            store.clean(current)
        return None, False
    manifest, episodes = next_generation(store.files, draft, current, growth, added, options, name, gone, store.kept)
    text = manifest_text(manifest, store.files, "use larger shards: raise shard_bytes")
    store.replace(manifest, text, None if current is not None else printable(dataset_card(manifest, episodes)))
    store.clean(manifest)
    new_episodes, new_steps = (sum(getattr(each.manifest, name) for each in added) for name in ("episodes", "steps"))
    evicted = len(draft.episodes) - manifest.episodes
    publication = Publication(
        manifest.generation, new_episodes, new_steps, evicted, manifest.episodes, manifest.steps, manifest.fingerprint
    )
    return publication, goes_on
