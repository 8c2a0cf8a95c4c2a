#include "topology.h"

#include <map>

namespace sirtaki {

SetLayout make_layout(const Topology& topology, const std::vector<int32_t>& ranks) {
  SetLayout layout;
  layout.ranks = ranks;
  std::map<int32_t, size_t> index_of_host;
  for (int32_t rank : ranks) {
    const int32_t host = topology.host_of[rank];
    const auto [it, is_new] = index_of_host.try_emplace(host, layout.hosts.size());
    if (is_new) layout.hosts.emplace_back();
    std::vector<int32_t>& members = layout.hosts[it->second];
    if (rank == topology.rank) {
      layout.my_host = it->second;
      layout.my_index = members.size();
    }
    members.push_back(rank);
  }
  for (int32_t rank : layout.hosts[layout.my_host]) {
    layout.local_ranks.push_back(static_cast<uint32_t>(topology.local_rank_of[rank]));
  }
  return layout;
}

}  // namespace sirtaki
