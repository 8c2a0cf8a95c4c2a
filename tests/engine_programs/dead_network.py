"""Two ranks on two hosts whose network dies without a word. Argument: a FIFO.

Rank 0 shuts the loopback interface down and, when both ranks have raised, up again: the launcher needs it too.
"""

import subprocess
import sys

import sirtaki

sirtaki.init()
sirtaki.barrier()
if sirtaki.rank() == 0:
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
try:
    while True:
        sirtaki.barrier()
except sirtaki.errors.RanksFailedError as error:
    if sirtaki.rank() == 0:
        with open(sys.argv[1]) as fifo:
            fifo.read()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    else:
        with open(sys.argv[1], "w") as fifo:
            fifo.write("raised")
    print(type(error).__name__, error.ranks, error, flush=True)
    raise
