"""Messages between writers and the server that takes their episodes.

A writer sends episodes by `DoPut`. The command is a `WriterHello`, and the Arrow schema has the episodes' columns. An
episode is one record batch or several, of at most `MESSAGE_BYTES` each if a row is not larger. The first one has an
`EpisodeHeader` as metadata. The bytes of the episode's videos follow, in the order of the header, as metadata without a
record batch. Once the disk has all episodes of the call, the server sends an `Acknowledgement`, as the
call's only result. The action `writer` takes a `WriterHello`, and returns a `ServerHello`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
import pyarrow as pa

from gear_data.cluster.protocol import ONE_VERSION_HINT
from gear_data.common.typed_json import resolved
from gear_data.errors import CorruptSourceError, ManifestError, NodeRefusedError
from gear_data.schema import ColumnSpec, Schema, VideoRecord, split_cameras
from gear_data.storage.journal.reading import parse_columns
from gear_data.storage.journal.record import describe_columns

#: Version of these messages. Writers and servers of different versions refuse each other.
VERSION = 1
#: The action of a writer.
ACTION = "writer"

T = TypeVar("T")


@resolved
class WriterHello(msgspec.Struct, frozen=True):
    """First message of a writer in each call.

    Attributes:
        version: `VERSION` of the sender.
        byteorder: `sys.byteorder` of the sender.
        client: id of the writer.
        columns: the output of `describe_columns`; null: the writer has no step yet.
        cameras: the writer's cameras.
        leaves: whether the writer sends no episode any more. The server has all of its episodes.
    """

    version: int
    byteorder: str
    client: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    columns: msgspec.Raw
    cameras: tuple[VideoRecord, ...] = ()
    leaves: bool = False


@resolved
class ServerHello(msgspec.Struct, frozen=True):
    """The server's answer to a `WriterHello`.

    Attributes:
        last: sequence number of the writer's last episode that the server has; -1: it has none, or does not know.
        forgot: whether the server may have episodes of the writer, and does not know.
        max_episode_bytes: size of the largest episode that the server takes, with its videos.
        columns, cameras: of the server's episodes, as in `WriterHello`; null: it has none yet.
    """

    last: int
    forgot: bool
    max_episode_bytes: int
    columns: msgspec.Raw
    cameras: tuple[VideoRecord, ...] = ()


@resolved
class EpisodeHeader(msgspec.Struct, frozen=True):
    """An episode that follows.

    Attributes:
        rows: of all record batches of the episode.
        bytes: of all record batches of the episode.
        facts: the metadata of the episode in a journal.
    """

    rows: Annotated[int, msgspec.Meta(ge=1)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    facts: msgspec.Raw


@resolved
class Acknowledgement(msgspec.Struct, frozen=True):
    """The server's disk has all episodes of a writer up to a sequence number."""

    last: int


def writer_hello(client: str, columns: Sequence[ColumnSpec], *, leaves: bool = False) -> bytes:
    """Returns the bytes of a `WriterHello`.

    Args:
        client: id of the writer.
        columns: its columns and cameras; empty: it has no step yet.
        leaves: see `WriterHello`.
    """
    return msgspec.json.encode(WriterHello(VERSION, sys.byteorder, client, *_described(columns), leaves))


def server_hello(last: int, forgot: bool, max_episode_bytes: int, columns: Sequence[ColumnSpec]) -> bytes:
    """Returns the bytes of a `ServerHello`.

    Args:
        last, forgot, max_episode_bytes: see `ServerHello`.
        columns: the columns and cameras of the server's episodes; empty: it has none yet.
    """
    return msgspec.json.encode(ServerHello(last, forgot, max_episode_bytes, *_described(columns)))


def _described(columns: Sequence[ColumnSpec]) -> tuple[msgspec.Raw, tuple[VideoRecord, ...]]:
    steps, cameras = split_cameras(columns)
    described = msgspec.Raw(describe_columns(steps) if columns else b"null")
    return described, msgspec.convert(Schema((), cameras).videos_to_json(), tuple[VideoRecord, ...])


def hello_columns(hello: WriterHello | ServerHello, schema: pa.Schema | None) -> tuple[ColumnSpec, ...]:
    """Returns the columns and cameras that a hello names, empty if it names none.

    Args:
        hello: names them.
        schema: of the values that follow; None: no values follow.

    Raises:
        NodeRefusedError: they cannot be read, or contradict the schema.
    """
    described = bytes(hello.columns)
    if schema is None and described == b"null":
        return ()
    try:
        columns = parse_columns(described, schema, "")
        return (*columns, *Schema.from_records((), hello.cameras).videos)
    except (CorruptSourceError, ManifestError) as error:
        raise NodeRefusedError(f"received episodes that are no episodes: {error.message}") from error


def check_hello(data: bytes) -> WriterHello:
    """Parses the bytes of a `WriterHello`.

    Raises:
        NodeRefusedError: it is malformed, or the writer has another version.
    """
    message = decode(data, WriterHello)
    if message.version != VERSION or message.byteorder != sys.byteorder:
        raise NodeRefusedError(
            f"takes episodes by version {VERSION} ({sys.byteorder}-endian), not version {message.version} "
            f"({message.byteorder[:20]}-endian)",
            hint=ONE_VERSION_HINT,
        )
    return message


def decode(data: bytes, kind: type[T]) -> T:
    """Parses a message.

    Raises:
        NodeRefusedError: it is malformed.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError(f"received a malformed {kind.__name__}", hint=ONE_VERSION_HINT) from error
