"""Requests for a range of a file at a URL.

A file whose server names its contents can be asked for by that name. So a file that was replaced since is an error, and
never gives bytes of another file. S3 has ETags, and a GET with a condition (RFC 9110). The hub has commits, whose files
do not change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gear_data.common.retry import http_statuses, request_seconds
from gear_data.errors import RemoteError

_S3, _HUB = "s3 ", "hub "
_COMMIT = re.compile(r"datasets/([^@]+)@([0-9a-f]{40})/(.+)")
_CHANGED = 412


def contents_name(filesystem: Any, path: str, info: Mapping[str, Any]) -> str:
    """Returns the name of a file's contents; empty if `request_range` cannot ask for it.

    Args:
        filesystem: fsspec file system.
        path: path within the file system.
        info: what the file system says about the file.
    """
    if _is(filesystem, "s3") and info.get("ETag"):
        return f"{_S3}{info['ETag']}"
    if is_hub(filesystem) and info.get("blob_id") and _COMMIT.fullmatch(path):
        return f"{_HUB}{info['blob_id']}"
    return ""


def is_hub(filesystem: Any) -> bool:
    """Returns whether a file system is the one of the HuggingFace hub."""
    return _is(filesystem, "hf")


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
    if contents.startswith(_S3):
        from fsspec.asyn import sync

        data: bytes = sync(filesystem.loop, _get, filesystem, path, f"bytes={first}-{last - 1}", contents[len(_S3) :])
        return data
    if is_hub(filesystem):
        return _hub_range(filesystem, path, f"bytes={first}-{last - 1}")
    data = filesystem.cat_file(path, start=first, end=last)
    return data


async def _get(filesystem: Any, path: str, range_: str, etag: str) -> bytes:
    bucket, key, _ = filesystem.split_path(path)
    try:
        response = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, Range=range_, IfMatch=etag)
    except Exception as error:
        if _CHANGED in http_statuses(error):
            raise _changed(filesystem, path) from error
        raise
    async with response["Body"] as body:
        if response["ETag"] != etag:  # a server that ignores conditions
            raise _changed(filesystem, path)
        return await body.read()  # type: ignore[no-any-return]


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
