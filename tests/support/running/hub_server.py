"""A small server that speaks the API of the HuggingFace hub: repositories of datasets, LFS uploads, commits.

It keeps everything in memory. The endpoints are the ones that huggingface_hub calls, of
https://huggingface.co/.well-known/openapi.json and of the batch API of Git LFS.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

#: Names of files that the hub keeps in LFS.
_LFS = (".arrow", ".mp4")
TOKEN = "hf_test"


@dataclass
class Repository:
    """A repository: branch -> commits, each a mapping of file -> content."""

    private: bool
    branches: dict[str, list[str]]
    commits: dict[str, dict[str, bytes]]
    messages: list[str] = field(default_factory=list)

    def head(self, revision: str) -> str | None:
        """Returns the hash of a commit that a branch or a hash names."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return revision if revision in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.head(revision) or ""]


class Hub:
    """State of the server.

    Attributes:
        url: what HF_ENDPOINT is.
        repositories: name -> repository.
        objects: sha256 -> content of an LFS object that was uploaded.
        uploads: sha256 of each upload, in order.
        arrivals: counts uploads, also those that are not stored yet.
        requests: method and path of each request.
        on_upload: called before an upload is stored, with the number of uploads that came before.
        on_request: called before a request is answered.
        on_answer: called with the request and the size of the answer, before it is sent.
    """

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.uploads: list[str] = []
        self.arrivals = itertools.count()
        self.requests: list[str] = []
        self.on_upload: Callable[[int], None] = lambda count: None
        self.on_request: Callable[[str], int | None] = lambda line: None
        self.on_answer: Callable[[str, int], None] = lambda line, size: None
        self.lock = threading.Lock()

    def add(self, name: str, files: dict[str, bytes], tag: str | None = None) -> None:
        """Adds a public repository of one commit, which may have a tag."""
        self.repositories[name] = Repository(False, {}, {})
        for branch in ("main", *([] if tag is None else [tag])):
            _commit(self.repositories[name], branch, files, "initial commit")

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a client."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # of a client that was killed
            super().handle_error(request, client_address)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Runs a server in threads of this process."""
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _commit(repository: Repository, branch: str, files: dict[str, bytes], message: str) -> str:
    text = json.dumps([branch, len(repository.commits), sorted(files)])
    commit = hashlib.sha1(text.encode()).hexdigest()
    repository.commits[commit] = files
    repository.branches.setdefault(branch, []).append(commit)
    repository.messages.append(message)
    return commit


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    # Else an answer waits for the acknowledgement of its header.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes | Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.hub.on_answer(f"{self.command} {unquote(self.path)}", len(data) if self.command != "HEAD" else 0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _missing(self, code: str) -> None:
        self._answer(404, {"error": code}, X_Error_Code=code)

    def _handle(self) -> None:
        line = f"{self.command} {unquote(self.path)}"
        with self.hub.lock:
            self.hub.requests.append(line)
        body = self._body()
        status = self.hub.on_request(line)
        if status is not None:
            return self._answer(status, {"error": f"status {status}"})
        path = unquote(urlsplit(self.path).path)
        for method, pattern, answer in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method.split():
                return answer(self, body, *found.groups())
        return self._missing("EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _repository(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if found is None or (found.private and not allowed):
            self._missing("RepoNotFound")
            return None
        return found

    def _create(self, body: bytes) -> None:
        data = json.loads(body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"error": "Invalid credentials"})
        name = f"{data['organization']}/{data['name']}"
        if name in self.hub.repositories:
            url = f"{self.hub.url}/datasets/{name}"
            return self._answer(409, {"error": "You already created this dataset repo", "url": url})
        repository = Repository(data.get("visibility") == "private" or bool(data.get("private")), {}, {})
        _commit(repository, "main", {".gitattributes": b"*.arrow filter=lfs\n"}, "initial commit")
        self.hub.repositories[name] = repository
        return self._answer(200, {"url": f"{self.hub.url}/datasets/{name}", "name": name})

    def _branch(self, body: bytes, name: str, branch: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        if branch in repository.branches:
            return self._answer(409, {"error": "Reference already exists"})
        repository.branches[branch] = [repository.branches["main"][-1]]
        return self._answer(200, {})

    def _validate(self, body: bytes) -> None:
        self._answer(200, {"errors": [], "warnings": []})

    def _preupload(self, body: bytes, name: str, revision: str) -> None:
        if self._repository(name) is None:
            return
        files = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(_LFS) else "regular",
             "shouldIgnore": False}
            for file in json.loads(body)["files"]
        ]  # fmt: skip
        self._answer(200, {"files": files})

    def _batch(self, body: bytes, name: str) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            found = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.objects:
                found["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{item['oid']}"}}
            objects.append(found)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _upload(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.on_upload(next(self.hub.arrivals))
        with self.hub.lock:
            self.hub.objects[oid] = body
            self.hub.uploads.append(oid)
        self._answer(200)

    def _commit(self, body: bytes, name: str, branch: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        lines = [json.loads(line) for line in body.splitlines() if line]
        files, message = dict(repository.files(branch)), ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, repository.head(branch)):
                    return self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = _commit(repository, branch, files, message)
        url = f"{self.hub.url}/datasets/{name}/commit/{commit}"
        return self._answer(200, {"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})

    def _info(self, body: bytes, name: str, revision: str | None = None) -> None:
        if (repository := self._repository(name)) is None:
            return
        commit = repository.head(revision or "main")
        if commit is None:
            return self._missing("RevisionNotFound")
        siblings = [{"rfilename": file} for file in repository.commits[commit]]
        return self._answer(200, {"id": name, "sha": commit, "private": repository.private, "siblings": siblings})

    def _refs(self, body: bytes, name: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        commits = repository.branches.items()
        branches = [{"name": each, "ref": f"refs/heads/{each}", "targetCommit": made[-1]} for each, made in commits]
        self._answer(200, {"branches": branches, "converts": [], "tags": []})

    def _tree(self, body: bytes, name: str, revision: str, folder: str | None) -> None:
        if (repository := self._repository(name)) is None:
            return
        is_whole = parse_qs(urlsplit(self.path).query)["recursive"][0].lower() == "true"
        commit = repository.head(revision)
        if commit is None:
            return self._missing("RevisionNotFound")
        below = f"{folder}/" if folder else ""
        entries = _entries(repository.commits[commit])
        found = [entry for path, entry in entries.items() if path.startswith(below)]
        return self._answer(200, [each for each in found if is_whole or "/" not in each["path"].removeprefix(below)])

    def _paths(self, body: bytes, name: str, revision: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        commit = repository.head(revision)
        if commit is None:
            return self._missing("RevisionNotFound")
        entries = _entries(repository.commits[commit])
        wanted = parse_qs(body.decode()).get("paths", [])
        return self._answer(200, [entries[path] for path in wanted if path in entries])

    def _resolve(self, body: bytes, name: str, revision: str, file: str) -> None:
        if (repository := self._repository(name)) is None:
            return
        commit = repository.head(revision)
        content = repository.commits[commit].get(file) if commit else None
        if commit is None or content is None:
            return self._missing("RevisionNotFound" if commit is None else "EntryNotFound")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"ETag": etag, "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            return self._answer(206, content[first : last + 1], **headers)
        return self._answer(200, content, Content_Length=str(len(content)), **headers)


def _entries(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """Returns path -> what the API says about it, of files and folders."""
    entries: dict[str, dict[str, Any]] = {}
    for file, content in files.items():
        parts = file.split("/")
        for count in range(1, len(parts)):
            path = "/".join(parts[:count])
            oid = hashlib.sha1(f"tree {path}".encode()).hexdigest()
            entries.setdefault(path, {"type": "directory", "path": path, "size": 0, "oid": oid})
        item: dict[str, Any] = {"type": "file", "path": file, "size": len(content)}
        item["oid"] = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        if file.endswith(_LFS):
            item["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        entries[file] = item
    return entries


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("POST", "/api/repos/create", _Handler._create),
    ("POST", "/api/validate-yaml", _Handler._validate),
    ("POST", f"/api/datasets/{_NAME}/branch/(.+)", _Handler._branch),
    ("POST", f"/api/datasets/{_NAME}/preupload/(.+)", _Handler._preupload),
    ("POST", f"/datasets/{_NAME}.git/info/lfs/objects/batch", _Handler._batch),
    ("PUT", r"/lfs/(\w+)", _Handler._upload),
    ("POST", f"/api/datasets/{_NAME}/commit/(.+)", _Handler._commit),
    ("GET", f"/api/datasets/{_NAME}/revision/(.+)", _Handler._info),
    ("GET", f"/api/datasets/{_NAME}/tree/([^/]+)(?:/(.+))?", _Handler._tree),
    ("POST", f"/api/datasets/{_NAME}/paths-info/(.+)", _Handler._paths),
    ("GET", f"/api/datasets/{_NAME}/refs", _Handler._refs),
    ("GET", f"/api/datasets/{_NAME}", _Handler._info),
    ("GET HEAD", f"/datasets/{_NAME}/resolve/([^/]+)/(.+)", _Handler._resolve),
)
