"""Every setting of Sirtaki: one field each, with its environment variable, default and meaning.

`Settings.from_environment` is the only reader of ``SIRTAKI_*`` variables that users set. The list in
``docs/settings.md`` is generated from this file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from sirtaki.errors import ConfigError
from sirtaki.logs import LEVELS

# Set by Sirtaki for itself and its children, not by users. The launcher takes the rank's process id away from the
# ranks of a new job (launcher/protocol.py has the name too).
RANK_PID = "SIRTAKI_RANK_PID"
_INTERNAL = {RANK_PID, "SIRTAKI_LAUNCHED", "SIRTAKI_AS_HOROVOD"}
# For building and testing Sirtaki itself.
_DEVELOPMENT = {"SIRTAKI_WERROR"}
_DEVELOPMENT_PREFIX = "SIRTAKI_TEST_"


def _bytes(text: str) -> int:
    if not text.strip().lstrip("+-").isdigit():
        raise ValueError("must be a whole number of bytes, such as 1048576")
    value = int(text)
    if value < 0:
        raise ValueError("must not be negative")
    return value


_MOST_SECONDS = 1e8  # three years; clocks count further, but not for ever


def _timeout(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MOST_SECONDS:
        raise ValueError(f"must be more than 0 and at most {_MOST_SECONDS:.0f}")
    return value


def _patience(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _MOST_SECONDS:
        raise ValueError(f"must be from 0 to {_MOST_SECONDS:.0f}")
    return value


def _silence(text: str) -> float:
    value = float(text)
    if value != 0 and not 0.1 <= value <= _MOST_SECONDS:
        raise ValueError(f"must be 0, or from 0.1 to {_MOST_SECONDS:.0f}")
    return value


def _microseconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100_000:
        raise ValueError("must be from 0 to 100000")
    return value


def _slot(text: str) -> int:
    value = _bytes(text)
    if not 4096 <= value <= 2**30 or value % 4096:
        raise ValueError("must be a multiple of 4096, from 4096 to 2**30")
    return value


def _capacity(text: str) -> int:
    value = int(text)
    if not 64 <= value <= 2**24:
        raise ValueError("must be from 64 to 16777216")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError("must be a port, from 0 to 65535")
    return value


def _level(text: str) -> int:
    if text.lower() not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return LEVELS[text.lower()]


def _flag(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
    if text.lower() not in values:
        raise ValueError("must be 0 or 1")
    return values[text.lower()]


def _setting(variable: str, parse: Callable[[str], Any], default: Any, agreed: bool, doc: str) -> Any:
    metadata = {"variable": variable, "parse": parse, "agreed": agreed, "doc": doc}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one process; `agreed` ones must be equal on all ranks."""

    fusion_threshold: int = _setting(
        "SIRTAKI_FUSION_THRESHOLD",
        _bytes,
        64 * 2**20,
        True,
        "Most bytes of tensors that travel as one batch; 0 sends each tensor alone.",
    )
    cache_capacity: int = _setting(
        "SIRTAKI_CACHE_CAPACITY",
        _capacity,
        16384,
        False,
        "How many names, and how many signatures (type, shape, operation), the ranks remember. Those unused for "
        "longest are forgotten and agreed anew when they come again. Rank 0's value counts.",
    )
    slot_bytes: int | None = _setting(
        "SIRTAKI_SLOT_BYTES",
        _slot,
        None,
        True,
        "Bytes of one shared-memory slot, the chunk in which data moves: a multiple of 4096. Default: 512 KiB "
        "on one host, 4 MiB between hosts.",
    )
    spin_us: float | None = _setting(
        "SIRTAKI_SPIN_US",
        _microseconds,
        None,
        False,
        "How long a thread that waits for a peer looks before it sleeps, in microseconds. Default: 50 if "
        "every rank of the host has a core of its own, else 0.",
    )
    hostname: str | None = _setting(
        "SIRTAKI_HOSTNAME",
        str,
        None,
        False,
        "Overrides the name of this rank's host. Ranks with different names behave as on different machines, "
        "which serves to try out several hosts on one.",
    )
    network_interface: str | None = _setting(
        "SIRTAKI_NETWORK_INTERFACE",
        str,
        None,
        False,
        "Name of the network interface over which the hosts coordinate, for example eth0. Default: any that "
        "the other hosts reach.",
    )
    start_timeout: float = _setting(
        "SIRTAKI_START_TIMEOUT",
        _timeout,
        120.0,
        False,
        "Seconds that init() waits for the other ranks to call it, and then for the connections between them.",
    )
    stall_check_time_seconds: float = _setting(
        "SIRTAKI_STALL_CHECK_TIME_SECONDS",
        _patience,
        60.0,
        False,
        "Seconds after which rank 0 warns of tensors that some ranks have submitted and others have not, and who "
        "they are; 0 never.",
    )
    stall_shutdown_time_seconds: float = _setting(
        "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS",
        _patience,
        0.0,
        False,
        "Seconds after which such tensors end the job, with StalledError on all ranks; 0 never. Rank 0's value counts.",
    )
    unresponsive_time_seconds: float = _setting(
        "SIRTAKI_UNRESPONSIVE_TIME_SECONDS",
        _silence,
        60.0,
        True,
        "Seconds after which a rank that gives no sign of life, because it is stopped or its host hangs, ends the "
        "job, with UnresponsiveError on all others; 0 never, for example to halt a rank in a debugger.",
    )
    timeline: str | None = _setting(
        "SIRTAKI_TIMELINE",
        str,
        None,
        False,
        "File for the timeline of this rank, from init() to the end; in a job of several ranks the rank's number comes "
        "before the suffix, or where the name has {rank}.",
    )
    timeline_mark_cycles: bool = _setting(
        "SIRTAKI_TIMELINE_MARK_CYCLES",
        _flag,
        False,
        False,
        "1 shows the batches in a lane of their own in the timeline that SIRTAKI_TIMELINE starts.",
    )
    metrics_port: int | None = _setting(
        "SIRTAKI_METRICS_PORT",
        _port,
        None,
        False,
        "Serves the counters to Prometheus: the port of each host's first rank, the others of the host take those that "
        "follow; 0 is any free port. Needs the extra `metrics`.",
    )
    log_level: int | None = _setting(
        "SIRTAKI_LOG_LEVEL",
        _level,
        None,
        False,
        "Least level of the messages of the logger `sirtaki`: trace, debug, info, warning, error, fatal or off. "
        "Default: what the application has set, else warning.",
    )
    allow_unwrapped_optimizer: bool = _setting(
        "SIRTAKI_ALLOW_UNWRAPPED_OPTIMIZER",
        _flag,
        False,
        False,
        "1 silences the warning about a Keras model that trains in a job of several ranks without "
        "DistributedOptimizer.",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings.

        Raises:
            ConfigError: a value cannot be used, or a ``SIRTAKI_*`` variable does not exist (a misspelt
                setting would otherwise be ignored in silence).

        Example:
            >>> Settings.from_environment({"SIRTAKI_FUSION_THRESHOLD": "1048576"}).fusion_threshold
            1048576
        """
        values: dict[str, Any] = {}
        known = set(_INTERNAL) | _DEVELOPMENT
        for field in dataclasses.fields(cls):
            variable = field.metadata["variable"]
            known.add(variable)
            if variable in environment:
                try:
                    values[field.name] = field.metadata["parse"](environment[variable])
                except ValueError as error:
                    raise ConfigError(f"{variable}={environment[variable]!r} cannot be used: {error}") from None
        unknown = sorted(
            v
            for v in environment
            if v.startswith("SIRTAKI_") and v not in known and not v.startswith(_DEVELOPMENT_PREFIX)
        )
        if unknown:
            settings = sorted(f.metadata["variable"] for f in dataclasses.fields(cls))
            raise ConfigError(
                f"unknown setting {', '.join(unknown)}; remove it or correct its name. Settings are: "
                f"{', '.join(settings)}"
            )
        return cls(**values)

    def agreed(self) -> dict[str, Any]:
        """Return the settings that must be equal on all ranks, by variable."""
        return {f.metadata["variable"]: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["agreed"]}


def as_markdown() -> str:
    """Return docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Environment variables, read at `init()`; a bad value or an unknown `SIRTAKI_*` name is an error there.",
        'Those marked "all ranks" must be equal on all ranks. This page is generated by `make docs`.',
        "",
        "| variable | default | all ranks | meaning |",
        "|---|---|---|---|",
    ]
    for field in dataclasses.fields(Settings):
        default = "see meaning" if "Default:" in field.metadata["doc"] else ""
        if isinstance(field.default, (int, float)):
            default = str(int(field.default))
        agreed = "yes" if field.metadata["agreed"] else ""
        lines.append(f"| `{field.metadata['variable']}` | {default} | {agreed} | {field.metadata['doc']} |")
    return "\n".join(lines) + "\n"
