"""Serves a rank's metrics to Prometheus, through its own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sirtaki.counters import as_metrics
from sirtaki.errors import ConfigError, MissingDependencyError


def check_dependency() -> None:
    """Raise MissingDependencyError unless prometheus_client can be imported."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "SIRTAKI_METRICS_PORT needs prometheus_client, which is not installed: pip install 'sirtaki[metrics]'"
        ) from error


class MetricsServer:
    """An HTTP server with the counters of one rank."""

    def __init__(self, port: int, rank: int, read: Callable[[], dict[str, Any]]) -> None:
        """Args: port: where to listen, 0: any that is free. read: returns the native counters."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_Collector(rank, read))
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as error:
            raise ConfigError(
                f"rank {rank} cannot serve metrics on port {port} ({error.strerror}). SIRTAKI_METRICS_PORT is the port "
                "of each host's first rank, the others of the host take those that follow."
            ) from None
        self.port = int(self._server.server_port)

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Collector:
    def __init__(self, rank: int, read: Callable[[], dict[str, Any]]) -> None:
        self._rank = str(rank)
        self._read = read

    def collect(self) -> Iterator[Any]:
        """Yield the families; prometheus_client calls it for every scrape."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        values = as_metrics(self._read())

        def counter(name: str, text: str, label: str = "", numbers: dict[Any, float] | None = None) -> Any:
            family = CounterMetricFamily(f"sirtaki_{name}", text, labels=["rank", *([label] if label else [])])
            for key, number in (numbers or {}).items():
                family.add_metric([self._rank, *([str(key)] if label else [])], number)
            return family

        collectives = values["collectives"]
        for what, text in (
            ("calls", "Collectives carried out"),
            ("tensors", "Tensors in them"),
            ("bytes", "Bytes that this rank gave to them"),
        ):
            numbers = {name: counts[what] for name, counts in collectives.items()}
            yield counter(f"collective_{what}", text, "collective", numbers)
        histogram = HistogramMetricFamily("sirtaki_batch_tensors", "Tensors that travelled together", labels=["rank"])
        total = 0
        buckets = []
        for bound, count in values["tensors_per_batch"].items():
            total += count
            buckets.append((str(float(bound)), total))
        tensors = sum(counts["tensors"] for counts in collectives.values())
        histogram.add_metric([self._rank], [*buckets, ("+Inf", total)], sum_value=tensors)
        yield histogram
        yield counter("cache_hits", "Requests with known name and signature", numbers={"": values["cache_hits"]})
        yield counter("cache_misses", "Requests with a new name or signature", numbers={"": values["cache_misses"]})
        waits = values["data_wait_seconds"]
        yield counter("data_wait_seconds", "Waiting for a peer while data is moved", "peer", waits)
        found = values["stragglers"]
        seconds = {s.rank: s.seconds for s in found}
        yield counter("straggler_seconds", "The job waited for this rank alone", "straggler", seconds)
        times = {s.rank: float(s.times) for s in found}
        yield counter("straggler_times", "Tensors for which this rank came last", "straggler", times)
