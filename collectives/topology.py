"""Who is where: ranks grouped into hosts. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Topology:
    """The place of every rank.

    Attributes:
        rank: this process's global rank.
        host_of: by global rank, the number of its host; hosts are numbered by their lowest rank.
        local_rank_of: by global rank, its place among the ranks of its host.
    """

    rank: int
    host_of: tuple[int, ...]
    local_rank_of: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.host_of)

    @property
    def host(self) -> int:
        return self.host_of[self.rank]

    @property
    def num_hosts(self) -> int:
        return max(self.host_of) + 1

    @property
    def local_rank(self) -> int:
        return self.local_rank_of[self.rank]

    @property
    def local_size(self) -> int:
        return self.host_of.count(self.host)

    @property
    def cross_ranks(self) -> tuple[int, ...]:
        """Global ranks with this rank's local rank, one per host that has so many, by host."""
        same = [r for r in range(self.size) if self.local_rank_of[r] == self.local_rank]
        return tuple(sorted(same, key=lambda r: self.host_of[r]))

    def ranks_on(self, host: int) -> tuple[int, ...]:
        """Return the global ranks of a host, by local rank."""
        return tuple(r for r in range(self.size) if self.host_of[r] == host)

    def agent_of(self, host: int) -> int:
        """Return the rank that carries a host's control plane: its lowest."""
        return self.ranks_on(host)[0]


def group_by_host(rank: int, host_keys: Sequence[object]) -> Topology:
    """Group ranks whose host keys are equal.

    Example:
        >>> t = group_by_host(2, ["a", "b", "a", "b"])
        >>> t.host_of, t.local_rank_of, t.local_size
        ((0, 1, 0, 1), (0, 0, 1, 1), 2)
    """
    numbers: dict[object, int] = {}
    members: dict[object, int] = {}
    host_of = []
    local_rank_of = []
    for key in host_keys:
        host_of.append(numbers.setdefault(key, len(numbers)))
        local_rank_of.append(members.get(key, 0))
        members[key] = members.get(key, 0) + 1
    return Topology(rank, tuple(host_of), tuple(local_rank_of))
