"""Servers that cannot start give the reason."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.support.feed import data as feed_data


def test_servers_that_cannot_start(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path / "d")
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "pem").write_text("not a certificate")
    tls = ["--tls-cert", tmp_path / "pem", "--tls-key", tmp_path / "pem", "--token-file", tmp_path / "token"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            (f"127.0.0.1:{port}", [], f"cannot listen at 127.0.0.1:{port}: Address already in use"),
            # An address of a network for documentation only: RFC 5737.
            ("192.0.2.1:0", tls, "cannot listen at 192.0.2.1:0: Cannot assign requested address"),
            ("127.0.0.1:0", tls, "cannot serve at 127.0.0.1:0: its certificate or key is invalid"),
        ]
        command = [sys.executable, "-m", "gear_data.cli", "serve", tmp_path / "d", "--listen"]
        started = [
            subprocess.Popen([*command, place, *options], stderr=subprocess.PIPE, text=True)
            for place, options, _ in cases
        ]
        try:
            for process, (_, _, expected) in zip(started, cases, strict=True):
                output = process.communicate(timeout=60)[1]
                assert expected in output and "Traceback" not in output, output
                assert process.returncode == 1
        finally:
            for process in started:
                process.kill()
                process.communicate()
