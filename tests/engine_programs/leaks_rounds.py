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


go(50)
before = resources.held()
go(rounds)
# Measured: 1 to 3 bytes of heap and less than one object a round, of caches that fill. The bounds let no round keep an
# object of 64 bytes, and no page per round.
resources.compare(
    f"{rounds} rounds", before, resources.held(), heap=16 * 1024 + 32 * rounds, blocks=500 + rounds // 2, resident=1024
)
