"""A process does not fork while one of its threads uses gRPC."""

from __future__ import annotations

import os
import threading

from gear_data.cluster.flight import grpc_fork


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
