"""Starts the rank supervisor; ``mpiexec`` runs this file by its path.

Not as ``-m sirtaki.launcher...``: that would import ``sirtaki``, and with it the engine and NumPy, in a
process that only watches. The package `launcher` is imported on its own instead. Its folder goes to the
end of the path, so that no file of Sirtaki can stand in for one of the standard library.
"""

import importlib
import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    sys.path.append(os.path.dirname(here))
    sys.exit(importlib.import_module("launcher.rank_supervisor").main())
