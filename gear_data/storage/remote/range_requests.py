"""Requests for a range of a file at a URL.

A file whose server names its contents can be asked for by that name. So a file that was replaced since is an error, and
never gives bytes of another file. S3 and Azure have ETags, and a GET with a condition (RFC 9110). Google Cloud Storage
has the same with generations, which are numbers. The hub has commits, whose files do not change.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gear_data.common.retry import http_statuses, request_seconds
from gear_data.errors import RemoteError

_S3, _HUB, _GOOGLE, _AZURE = "s3", "hub", "gs", "abfs"
_COMMIT = re.compile(r"datasets/([^@]+)@([0-9a-f]{40})/(.+)")
_GONE, _CHANGED = 404, 412


def contents_name(filesystem: Any, path: str, info: Mapping[str, Any]) -> str:
    """Returns the name of a file's contents; empty if `request_range` cannot ask for it.

    Args:
        filesystem: fsspec file system.
        path: path within the file system.
        info: what the file system says about the file.
    """
    if _is(filesystem, _S3) and info.get("ETag"):
        return f"{_S3} {info['ETag']}"
    if is_hub(filesystem) and info.get("blob_id") and _COMMIT.fullmatch(path):
        return f"{_HUB} {info['blob_id']}"
    # These two are times. Two files may have the same.
    if _is(filesystem, _GOOGLE) and info.get("generation"):
        return f"{_GOOGLE} {info['generation']} {path}"
    if _is(filesystem, _AZURE) and info.get("etag"):
        return f"{_AZURE} {info['etag']} {path}"
    return ""


def is_hub(filesystem: Any) -> bool:
    """Returns whether a file system is the one of the HuggingFace hub."""
    return _is(filesystem, "hf")


def is_web_server(filesystem: Any) -> bool:
    """Returns whether a file system is fsspec's client of web servers."""
    return _is(filesystem, "http")


def request_range(filesystem: Any, path: str, first: int, last: int, contents: str = "") -> bytes:
    """Returns the bytes `first` to `last` of a file, by one request.

    A server that does not support ranges sends more.

    Args:
        filesystem: fsspec file system.
        path: path within the file system.
        first, last: the range; `last` is the byte after it.
        contents: the name of the contents (`contents_name`). Empty: whatever the file has now.

    Raises:
        RemoteError: the file has other contents.
        Exception: an error of the file system.
    """
    kind, _, name = contents.partition(" ")
    if kind in _ASKED:
        from fsspec.asyn import sync

        version = name.partition(" ")[0]
        data: bytes = sync(filesystem.loop, _asked, filesystem, path, first, last, kind, version)
        return data
    if is_hub(filesystem):
        return _hub_range(filesystem, path, f"bytes={first}-{last - 1}")
    data = filesystem.cat_file(path, start=first, end=last)
    return data


async def _asked(filesystem: Any, path: str, first: int, last: int, kind: str, version: str) -> bytes:
    """Returns a range of a file, if the file has the wanted version."""
    try:
        data, found = await _ASKED[kind](filesystem, path, first, last, version)
    except Exception as error:
        # gcsfs has a class for this status.
        if _CHANGED in http_statuses(error) or isinstance(error, FileExistsError):
            raise _changed(filesystem, path) from error
        if _GONE in http_statuses(error):
            raise FileNotFoundError(path) from error
        raise
    if found != version:  # a server that ignores conditions
        raise _changed(filesystem, path)
    return data


async def _from_s3(filesystem: Any, path: str, first: int, last: int, etag: str) -> tuple[bytes, str]:
    bucket, key, _ = filesystem.split_path(path)
    wanted = {"Range": f"bytes={first}-{last - 1}", "IfMatch": etag}
    response = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, **wanted)
    async with response["Body"] as body:
        found: str = response["ETag"]
        return (await body.read() if found == etag else b""), found


async def _from_google(filesystem: Any, path: str, first: int, last: int, generation: str) -> tuple[bytes, str]:
    range_ = {"Range": f"bytes={first}-{last - 1}"}
    headers, data = await filesystem._call("GET", filesystem.url(path), headers=range_, ifGenerationMatch=generation)
    return data, headers.get("x-goog-generation", generation)


async def _from_azure(filesystem: Any, path: str, first: int, last: int, etag: str) -> tuple[bytes, str]:
    from azure.core import MatchConditions

    container, blob, _ = filesystem.split_path(path)
    async with filesystem.service_client.get_blob_client(container=container, blob=blob) as client:
        unchanged = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        stream = await client.download_blob(offset=first, length=last - first, **unchanged)
        return await stream.readall(), stream.properties.etag


#: Stores that are asked for a version of a file. They return the bytes, and the version that these are of.
_ASKED: dict[str, Callable[[Any, str, int, int, str], Awaitable[tuple[bytes, str]]]] = {
    _S3: _from_s3,
    _GOOGLE: _from_google,
    _AZURE: _from_azure,
}


def _changed(filesystem: Any, path: str) -> RemoteError:
    url = str(filesystem.unstrip_protocol(path))
    return RemoteError(
        "was replaced since the dataset was made", file=url, hint="open or convert the source again: it has changed"
    )


def _hub_range(filesystem: Any, path: str, range_: str) -> bytes:
    # `HfFileSystem.cat_file` asks for 5 MiB behind each range, and its `url` asks whether the revision exists.
    from huggingface_hub import hf_hub_url, utils

    known = _COMMIT.fullmatch(path)
    if known is None:
        url = filesystem.url(path)
    else:
        url = hf_hub_url(known[1], known[3], repo_type="dataset", revision=known[2], endpoint=filesystem.endpoint)
    headers = {**utils.build_hf_headers(token=filesystem.token), "range": range_}  # type: ignore[attr-defined]
    response = utils.get_session().get(url, headers=headers, timeout=request_seconds())  # type: ignore[attr-defined]
    utils.hf_raise_for_status(response)  # type: ignore[attr-defined]
    return response.content


def _is(filesystem: Any, protocol: str) -> bool:
    names = getattr(filesystem, "protocol", ())
    return protocol in ((names,) if isinstance(names, str) else names)
