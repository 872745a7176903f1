"""The interpreter of the tests whose modules are imported."""

from __future__ import annotations

import socket
import subprocess

import pytest

from tests.support.running.warm_python import warm_python

pytestmark = pytest.mark.processes


def test_a_client_that_is_killed_before_its_request_does_not_end_the_server() -> None:
    """As conversions kill the workers that they do not need any more."""
    with warm_python(["json"]) as python:
        for begun in (b"", (100).to_bytes(8, "big"), (100).to_bytes(8, "big") + b"{"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(python.with_name("socket")))
                if begun:
                    socket.send_fds(client, [begun[:8]], [0, 1, 2])
                    client.sendall(begun[8:])
        command = [python, "-c", "import sys; print(sys.argv[1])", "words"]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "words\n"
