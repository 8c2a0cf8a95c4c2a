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
# An engine has a segment of some MiB and stacks of threads: one that stayed would show at once. Measured growth is
# 1 to 1.4 KiB a round, of unknown origin; the bound is 2 KiB a round, and 1 MiB for the allocator's noise.
resources.compare(f"{rounds} rounds", before, resources.held(), 1024 + 2 * rounds)
