"""Runs a rank's program under a watchdog: after the time limit it prints all stacks and ends.

    python rank_main.py script.py argument ...
    python rank_main.py package.module:function argument ...

The limit comes in SIRTAKI_TEST_WATCHDOG_SECONDS. A function gets the arguments as strings.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import runpy
import sys


def main() -> None:
    faulthandler.enable()
    # Never cancelled: the hang may be in what runs at exit.
    faulthandler.dump_traceback_later(float(os.environ["SIRTAKI_TEST_WATCHDOG_SECONDS"]), exit=True)
    target, *arguments = sys.argv[1:]
    sys.argv[:] = [target, *arguments]
    module, colon, function = target.partition(":")
    if colon:
        getattr(importlib.import_module(module), function)(*arguments)
    else:
        # As `python script.py` does.
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
