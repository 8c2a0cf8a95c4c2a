// Reduce-scatter: every member ends with its own share of the reduction of all members' tensors.
//
// Per round, each member copies the next part of every member's share into a lane of its slot; then, on one
// host, member m reduces lane m of all slots straight into its result. Between hosts, one member of each
// host, m's *deputy* there, reduces lane m of its host's slots and sends the partial sums to m, which adds
// them in the order of hosts. So the additions and their order are those of an allreduce, and the bits are
// equal.
#ifndef SIRTAKI_REDUCE_SCATTER_H_
#define SIRTAKI_REDUCE_SCATTER_H_

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "mpi_exchange.h"
#include "pieces.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

class ReduceScatter {
 public:
  ReduceScatter(size_t slot_bytes, StageBoard* stages, MpiExchange* mpi)
      : slot_bytes_(slot_bytes), stages_(stages), mpi_(mpi) {}

  // `shares` by member: the inputs that belong to its share; in this rank's own share, the outputs too.
  // False: the job has failed, and the outputs are undefined.
  bool run(Tickets* tickets, const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
           const std::vector<std::vector<Piece>>& shares);

 private:
  bool reduce_across_hosts(const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
                           uint64_t ticket, size_t lane_bytes, const std::vector<size_t>& chunks,
                           char* result);

  size_t slot_bytes_;
  StageBoard* stages_;
  MpiExchange* mpi_;
  std::vector<char> result_;
  std::vector<char> partials_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_REDUCE_SCATTER_H_
