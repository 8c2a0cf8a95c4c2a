// Who is where: the ranks of a job on their hosts, and a process set split by host.
#ifndef SIRTAKI_TOPOLOGY_H_
#define SIRTAKI_TOPOLOGY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sirtaki {

struct Topology {
  int32_t rank = 0;
  std::vector<int32_t> host_of;        // by global rank; hosts are numbered by their lowest rank
  std::vector<int32_t> local_rank_of;  // by global rank

  int32_t size() const { return static_cast<int32_t>(host_of.size()); }
  int32_t host() const { return host_of[rank]; }
  int32_t local_rank() const { return local_rank_of[rank]; }
  int32_t local_size() const {
    return static_cast<int32_t>(std::count(host_of.begin(), host_of.end(), host()));
  }
};

// A process set as the data plane sees it from this rank. Reductions add first the members of a host in rank
// order, then the hosts in the order of `hosts`.
struct SetLayout {
  std::vector<int32_t> ranks;               // all members, ascending
  std::vector<std::vector<int32_t>> hosts;  // members by host, hosts by their lowest member
  size_t my_host = 0;                       // index into hosts
  size_t my_index = 0;                      // index into hosts[my_host]
  std::vector<uint32_t> local_ranks;        // of hosts[my_host]

  size_t size() const { return ranks.size(); }
  bool one_host() const { return hosts.size() == 1; }
  // Index into ranks; of this rank, and of a rank that is a member.
  size_t my_member() const { return member_of(hosts[my_host][my_index]); }
  size_t member_of(int32_t rank) const {
    return static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  bool contains(int32_t rank) const { return std::binary_search(ranks.begin(), ranks.end(), rank); }
};

// `ranks` ascending, this rank among them.
SetLayout make_layout(const Topology& topology, const std::vector<int32_t>& ranks);

}  // namespace sirtaki

#endif  // SIRTAKI_TOPOLOGY_H_
