"""The arithmetic of benchmarks/scale.py."""

from __future__ import annotations

import itertools

import pytest
import scale


@pytest.mark.parametrize(("nodes", "windows"), [(1, 4), (2, 3), (3, 4), (4, 3)])
def test_peers_of_a_batch(nodes, windows):
    """Over all ways in which windows can lie on nodes, each as likely as the others: the others than node 0."""
    ways = list(itertools.product(range(nodes), repeat=windows))
    others = sum(len(set(way) - {0}) for way in ways) / len(ways)
    assert scale.expected_peers(nodes, windows) == pytest.approx(others)


def test_what_a_request_costs_is_found_again():
    request, byte = 5e-4, 2e-9
    rates = {size: size / (request + size * byte) for size in (1 << 18, 1 << 20, 1 << 22)}
    record = {"channels": {f"{size}/{count}": rate * count for size, rate in rates.items() for count in (1, 4)}}
    assert scale.fit_flight(record) == pytest.approx((request, byte))


def test_costs_add_up():
    family = scale.Family("", step_bytes=100, columns=3, episode_steps=10)
    machine = scale.Machine(ranks=4, wire=1e9, local=2e9, request=1e-3, request_byte=1e-9, read=1e-6)
    found = scale.cost(family, 2, scale.Batches(8, 5), machine)
    # Half of 8 x 5 x 100 bytes of each of 4 ranks over the wire; nearly every batch asks the other node.
    assert found["wire"] == pytest.approx(4 * 2000 / 1e9)
    assert found["local"] == pytest.approx(4 * 2000 / 2e9)
    assert found["reads"] == 12 and found["verbs"] == pytest.approx(12e-6)
    assert found["flight"] == pytest.approx((1 - 2**-8) * 1e-3 + 2000e-9)
    assert scale.index(family, 1e6)["episodes"] == 1000


def test_one_server_is_as_fast_as_its_memory():
    curve = scale.paper_curve(17.1, 12.5)
    assert curve[1] == pytest.approx(17.1)
    assert curve[2] == pytest.approx(1 / ((1 / 17.1 + 1 / 12.5) / 4))
