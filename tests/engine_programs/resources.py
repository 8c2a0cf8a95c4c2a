"""What a process holds: for programs that compare it before and after many rounds."""

import gc
import os

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def held():
    """Return threads, descriptors, names in /dev/shm and resident KiB of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * PAGE_KIB
    names = sum(name.startswith(("sirtaki", "mpich")) for name in os.listdir("/dev/shm"))
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "names": names,
        "resident": resident,
    }


def compare(what, before, after, growth_kib):
    """Print both; raise AssertionError if anything but memory differs, or memory has grown by more."""
    print(f"{what}: before {before}, after {after}, grown by {after['resident'] - before['resident']} KiB")
    for kind in ("threads", "descriptors"):
        assert after[kind] == before[kind], f"{what}: {kind} {before[kind]} -> {after[kind]}"
    assert after["names"] <= before["names"], f"{what}: names in /dev/shm {before['names']} -> {after['names']}"
    assert after["resident"] - before["resident"] <= growth_kib, f"{what}: {before} -> {after}"
