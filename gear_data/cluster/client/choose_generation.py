"""The generation of a dataset that all of its servers hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gear_data.cluster.client.options import TIMEOUT_VARIABLE
from gear_data.cluster.client.peer import Peer, PeerDescription
from gear_data.errors import ClusterError, GenerationGoneError, NodeUnreachableError

#: Most servers that are asked at the same time.
_MAX_THREADS = 32
#: Seconds before the servers are asked again.
_PAUSE = 0.2


@dataclass(frozen=True)
class Answers:
    """Answers of several servers, by their numbers.

    Attributes:
        descriptions: what they hold.
        unreachable: servers that did not answer.
        gone: servers that do not have the generation any more.
    """

    descriptions: Mapping[int, PeerDescription]
    unreachable: Mapping[int, NodeUnreachableError]
    gone: Mapping[int, GenerationGoneError]


def choose_generation(peers: Sequence[Peer], generation: int | None) -> Answers:
    """Returns the descriptions of one generation that all reachable servers hold.

    If servers lag behind, it waits for them until their timeout.

    Args:
        peers: the servers of one dataset.
        generation: the number; None: the newest one that all have.

    Raises:
        NodeUnreachableError: no server answers.
        GenerationGoneError: a server does not have the generation any more.
        ClusterError: a server is behind the others, and they do not have its generation any more; or it does not have
            the generation that is asked for in time.
    """
    deadline = time.monotonic() + peers[0].endpoint.timeout
    while True:
        found = _ask(peers, generation)
        if generation is not None and found.gone:
            raise next(iter(found.gone.values()))
        newest = {number: each.generation for number, each in found.descriptions.items()}
        if not newest and found.unreachable:
            raise next(iter(found.unreachable.values()))
        wanted = min(newest.values(), default=0) if generation is None else generation
        if generation is None and not _of_one_dataset(list(found.descriptions.values())):
            return found
        if any(each > wanted for each in newest.values()):
            found = _ask(peers, wanted)
        behind = [number for number, each in found.descriptions.items() if each.generation < wanted]
        if not found.gone and not behind:
            return found
        if time.monotonic() > deadline:
            raise _behind(peers, newest, wanted)
        time.sleep(_PAUSE)


def _ask(peers: Sequence[Peer], generation: int | None) -> Answers:
    # All at once: several servers that hang take the timeout once.
    with ThreadPoolExecutor(min(max(1, len(peers)), _MAX_THREADS)) as pool:
        answers = [pool.submit(peer.describe, "", generation) for peer in peers]
    found: tuple[dict[int, PeerDescription], dict[int, NodeUnreachableError], dict[int, GenerationGoneError]]
    found = {}, {}, {}
    for number, answer in enumerate(answers):
        try:
            found[0][number] = answer.result()
        except NodeUnreachableError as error:
            found[1][number] = error
        except GenerationGoneError as error:
            found[2][number] = error
    return Answers(*found)


def _of_one_dataset(descriptions: Sequence[PeerDescription]) -> bool:
    """Returns whether all may be generations of one dataset."""
    grown = {each.growth for each in descriptions if each.growth is not None}
    first = {each.dataset for each in descriptions if each.growth is None}
    bases = {each.base for each in descriptions if each.growth is not None}
    return len(grown) <= 1 and len(first) <= 1 and not (grown and first and bases != first)


def _behind(peers: Sequence[Peer], newest: Mapping[int, int], wanted: int) -> ClusterError:
    last = min(newest, key=lambda number: newest[number])
    seconds = peers[0].endpoint.timeout
    return ClusterError(
        f"is behind: it has generation {newest[last]}; after {seconds:g} s there is no generation that all servers "
        f"have (wanted: {wanted}, newest: {max(newest.values())})",
        file=peers[last].name,
        hint="wait until its folder has the newer generations, or leave it out of the URL; a server with --shards 0-7 "
        "stays at its generation: to follow, start each of N servers with its part, --shards 1/N to N/N; "
        f"${TIMEOUT_VARIABLE} sets the seconds",
    )
