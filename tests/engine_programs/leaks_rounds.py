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
# An engine has a segment of some MiB and stacks of threads: one that stayed would show at once. The bound allows
# 2 KiB a round, so that one forgotten record of a rank fails at 1,000 rounds, and noise of the allocator does not.
resources.compare(f"{rounds} rounds", before, resources.held(), 1024 + 2 * rounds)
