"""Many rounds of init and shutdown leave nothing. Argument: number of rounds."""

import sys

import numpy as np
import resources
import sirtaki

rounds = int(sys.argv[1])


def go(count):
    for i in range(count):
        sirtaki.init()
        value = sirtaki.allreduce(np.full(100, 1.0), op=sirtaki.Sum)
        assert value[0] == sirtaki.size(), i
        sirtaki.shutdown()


go(150)
before = resources.held()
go(rounds)
# Measured: 0.2 to 7 KB of heap and 50 to 400 of Python's objects in all, whether 300 rounds or 1,000: caches that fill.
# The bounds of 1,000 rounds let no round keep an object, or 64 bytes; no round may keep a page.
resources.compare(
    f"{rounds} rounds", before, resources.held(), heap=16 * 1024 + 32 * rounds, blocks=900 + rounds // 4, resident=1024
)
