"""What can be seen of a job from outside while it runs: its messages, timeline and metrics begin and end here."""

from __future__ import annotations

from sirtaki import _native, counters, logs, timeline
from sirtaki.config import Settings
from sirtaki.errors import ConfigError
from sirtaki.metrics_server import MetricsServer, check_dependency
from sirtaki.topology import Topology


def prepare(settings: Settings) -> None:
    """Do what comes before a job.

    Raises:
        MissingDependencyError: metrics are to be served, and prometheus_client is not installed.
    """
    logs.configure(settings.log_level)
    if settings.metrics_port is not None:
        check_dependency()


class Observation:
    """What runs beside the engine of one rank."""

    def __init__(self, settings: Settings, topology: Topology, engine: _native.Engine) -> None:
        self._engine = engine
        self._size = topology.size
        self._rank = topology.rank
        self._server: MetricsServer | None = None
        self._messages = logs.NativeMessages(topology.rank)
        try:
            self._start(settings, topology)
        except BaseException:
            # A port that is taken, a file that cannot be written: this rank has not joined.
            self._end()
            raise

    def stop(self) -> None:
        """End all of it; the engine must have stopped."""
        found = counters.ranking(self._engine.metrics)
        if self._rank == 0 and found:
            logs.logger.info(counters.summary(found))
        self._end()

    def _start(self, settings: Settings, topology: Topology) -> None:
        logs.logger.info(
            "joined a job of %d ranks on %d hosts as local rank %d of %d",
            *(topology.size, topology.num_hosts, topology.local_rank, topology.local_size),
        )
        if settings.timeline:
            try:
                path = timeline.start(settings.timeline, topology.rank, topology.size, settings.timeline_mark_cycles)
            except OSError as error:
                raise ConfigError(f"SIRTAKI_TIMELINE: {error.filename} cannot be written: {error.strerror}") from error
            logs.logger.info("the timeline goes to %s", path)
        if settings.metrics_port is not None:
            port = settings.metrics_port and settings.metrics_port + topology.local_rank
            self._server = MetricsServer(port, topology.rank, lambda: self._engine.metrics)
            logs.logger.info("metrics are served on port %d", self._server.port)

    def _end(self) -> None:
        timeline.stop()
        if self._server is not None:
            self._server.stop()
        self._messages.stop()
