"""A process does not fork while one of its threads uses gRPC."""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref

import pytest

from gear_data.cluster.flight import grpc_fork
from gear_data.errors import ForkedProcessError


class Connections:
    """Something to close before a fork."""

    closed = False

    def close_idle(self):
        self.closed = True


def test_a_fork_waits_until_a_thread_has_left_nested_contexts():
    connections = Connections()
    grpc_fork.close_before_fork(connections)
    inside, leave, left = threading.Event(), threading.Event(), []

    def use():
        with grpc_fork.using_grpc():
            with grpc_fork.using_grpc():
                inside.set()
                leave.wait()
            left.append(connections.closed)

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    threading.Timer(0.2, leave.set).start()
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert left == [False]
    assert connections.closed
    thread.join()


def test_a_thread_that_forks_inside_a_context_goes_on():
    with grpc_fork.using_grpc():
        if (child := os.fork()) == 0:
            with grpc_fork.using_grpc():
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with grpc_fork.using_grpc():
        pass


def test_a_fork_waits_for_the_threads_of_a_client_that_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_fork, "_closables", weakref.WeakSet())
    running = [True] * 5
    monkeypatch.setattr(grpc_fork, "_grpc_threads_running", lambda: bool(running) and running.pop())
    grpc_fork.note_grpc_threads()
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not running


def test_a_fork_does_not_wait_long_for_threads_of_other_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(grpc_fork, "_grpc_threads_running", lambda: True)
    monkeypatch.setattr(grpc_fork._gate, "patience", 0.0)
    monkeypatch.setattr(grpc_fork._gate, "attempts_end", -math.inf)
    grpc_fork.note_grpc_threads()
    if (child := os.fork()) == 0:
        os._exit(grpc_fork._gate.patience != grpc_fork._OTHERS_END_SECONDS)
    assert os.waitpid(child, 0)[1] == 0
    assert "other code in it uses gRPC" in caplog.text
    assert grpc_fork._gate.patience == grpc_fork._OTHERS_END_SECONDS


def test_a_child_says_that_it_was_forked_while_a_node_hung(monkeypatch: pytest.MonkeyPatch):
    """A node that hangs for long keeps gRPC's threads alive. A call of the child would never end."""
    monkeypatch.setattr(grpc_fork, "_grpc_threads_running", lambda: True)
    monkeypatch.setattr(grpc_fork, "_ATTEMPT_SECONDS", 0.0)
    monkeypatch.setattr(grpc_fork._gate, "patience", 0.0)
    monkeypatch.setattr(grpc_fork._gate, "attempts_end", -1.0)
    grpc_fork.note_grpc_threads()
    grpc_fork.note_failed_attempt(100.0)
    gc.collect()  # gRPC's objects of earlier tests may not end in a child
    for _ in range(2):  # also the child of a second fork
        if (child := os.fork()) == 0:
            with pytest.raises(ForkedProcessError, match="node that hangs"):
                grpc_fork.note_grpc_threads()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert grpc_fork._gate.patience == 0.0
    grpc_fork.note_grpc_threads()  # the parent goes on
    monkeypatch.setattr(grpc_fork, "_grpc_threads_running", lambda: False)
    if (child := os.fork()) == 0:
        grpc_fork.note_grpc_threads()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
