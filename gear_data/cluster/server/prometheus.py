"""Metrics of a server over HTTP, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gear_data.cluster.addresses import Address
from gear_data.cluster.flight.call_counts import CallCounts
from gear_data.common.extras import import_extra
from gear_data.errors import ClusterError


@dataclass(frozen=True)
class Metric:
    """A number of a server.

    Attributes:
        name: without the prefix `gear_data_`.
        help: what it is.
        value: the number.
        counter: whether it only grows. Prometheus adds `_total` to the name.
    """

    name: str
    help: str
    value: float
    counter: bool = False


def call_metrics(counts: CallCounts) -> list[Metric]:
    """Returns the counts of a server as metrics."""
    return [
        Metric("requests", "Calls, and requests in streams.", counts.requests, counter=True),
        Metric("errors", "Calls that ended with an error, refusals included.", counts.errors, counter=True),
        Metric("sent_bytes", "Bytes of answers by Arrow Flight.", counts.sent_bytes, counter=True),
    ]


def serve_metrics(listen: Address, read: Callable[[], Sequence[Metric]]) -> Address:
    """Answers requests for metrics in a thread, until the process ends.

    It is plain HTTP without a token, and answers with numbers only.

    Args:
        listen: the address. With port 0 the system chooses a free port.
        read: called at each request, in another thread.

    Returns:
        The address with the chosen port.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        ClusterError: the server cannot listen there.
    """
    client = import_extra("prometheus_client", "metrics")
    registry = client.CollectorRegistry()
    registry.register(_Collector(import_extra("prometheus_client.core", "metrics"), read))
    try:
        server, _ = client.start_http_server(listen.port, listen.host, registry)
    except OSError as error:
        raise ClusterError(
            f"cannot listen at {listen}: {error.strerror or error}", hint="choose another --metrics"
        ) from error
    return Address(listen.host, server.server_port)


class _Collector:
    def __init__(self, core: Any, read: Callable[[], Sequence[Metric]]) -> None:
        self._core, self._read = core, read

    def describe(self) -> list[Any]:
        """Returns nothing. Without this method, registering would call `collect`."""
        return []

    def collect(self) -> Iterator[Any]:
        for metric in self._read():
            kind = self._core.CounterMetricFamily if metric.counter else self._core.GaugeMetricFamily
            yield kind(f"gear_data_{metric.name}", metric.help, value=metric.value)
