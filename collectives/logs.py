"""Sirtaki's messages go to the logger ``sirtaki`` of Python's `logging`, those of the native code included."""

from __future__ import annotations

import logging
import sys
import threading

from sirtaki import _native

logger = logging.getLogger("sirtaki")

TRACE = 5
# Horovod's names. Python has no trace and no off, and writes CRITICAL for fatal.
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "off": logging.CRITICAL + 1,
}
logging.addLevelName(TRACE, "TRACE")


class FallbackHandler(logging.Handler):
    """Writes to standard error as long as the application has set up no handler of its own."""

    rank: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record as one line per line of its text, each with the rank."""
        if logging.getLogger().handlers or any(h is not self for h in logger.handlers):
            return
        head = "sirtaki" if self.rank is None else f"[{self.rank}] sirtaki"
        try:
            text = "".join(f"{head} {record.levelname}: {line}\n" for line in self.format(record).splitlines())
            # One call, so that the lines of several ranks do not mix.
            sys.stderr.write(text)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


_fallback = FallbackHandler()


def configure(level: int | None) -> None:
    """Set the level of the logger if one is given, and see to it that messages come out somewhere."""
    if level is not None:
        logger.setLevel(level)
    if _fallback not in logger.handlers:
        logger.addHandler(_fallback)


class NativeMessages:
    """Carries the native code's messages into the logger, on a thread that sleeps until there is one."""

    def __init__(self, rank: int) -> None:
        _fallback.rank = rank
        _native.open_log()
        self._thread = threading.Thread(target=self._carry, name="sirtaki-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return once all messages so far have been handed over."""
        _native.close_log()
        self._thread.join()

    def _carry(self) -> None:
        while (message := _native.take_log_message()) is not None:
            level, text = message
            logger.log(level, "%s", text.decode("utf-8", "replace"))
