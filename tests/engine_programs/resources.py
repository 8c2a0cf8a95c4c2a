"""What a process holds: for programs that compare it before and after many rounds."""

import ctypes
import gc
import os
import sys

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallocInfo


def held():
    """Return what this process has: threads, descriptors, names in /dev/shm, resident KiB, and memory in use.

    ``heap`` are the bytes that malloc has given out, exactly, ``blocks`` the small objects of Python.
    """
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * PAGE_KIB
    names = sum(name.startswith(("sirtaki", "mpich")) for name in os.listdir("/dev/shm"))
    info = _libc.mallinfo2()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "names": names,
        "resident": resident,
        "heap": info.uordblks + info.hblkhd,
        "blocks": sys.getallocatedblocks(),
    }


def compare(what, before, after, **most):
    """Print both; raise AssertionError if something has grown by more than `most` says, or by anything at all."""
    grown = {kind: after[kind] - before[kind] for kind in before}
    print(f"{what}: had {before}, has grown by {grown}")
    for kind, growth in grown.items():
        assert growth <= most.get(kind, 0), f"{what}: {kind} {before[kind]} -> {after[kind]}"
    assert grown["threads"] == grown["descriptors"] == 0, grown
