// Allreduce: every member of a set ends with the reduction of all members' tensors.
//
// Per chunk of the batch, in one host:
//   small   pack into my slot; when all have packed, everybody reduces everything.
//   large   pack; when all have packed, rank i of n reduces slice i of all slots into its own slot; when all
//           have reduced, everybody unpacks each slice from its owner's slot.
// Packing chunk k comes before unpacking chunk k - 1, so that ranks seldom wait for one another.
//
// Between hosts, slice i is exchanged by the i-th member of each host (its *channel*); there are as many
// channels as the smallest host has members, and one for small chunks. A channel cuts its slice into a part
// per host: the host's channel adds that part's partial sums in the order of hosts and sends the result to
// the others. So each byte crosses the network twice, and each result is computed once, in a fixed order.
#ifndef SIRTAKI_ALLREDUCE_H_
#define SIRTAKI_ALLREDUCE_H_

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "mpi_exchange.h"
#include "pieces.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

class Allreduce {
 public:
  // `mpi` may be null in a job on one host.
  Allreduce(size_t slot_bytes, StageBoard* stages, MpiExchange* mpi)
      : slot_bytes_(slot_bytes), stages_(stages), mpi_(mpi) {}

  // False: the job has failed, and the outputs are undefined.
  bool run(Tickets* tickets, const SetLayout& layout, const Kernels& kernels, const Scaling& scaling,
           const std::vector<Piece>& pieces);

 private:
  struct Slice {
    size_t begin;  // in elements
    size_t end;
    size_t size() const { return end - begin; }
  };
  struct Chunk {
    uint64_t ticket;
    size_t bytes;
    size_t num_slices;
  };
  static Slice cut(size_t num_elements, size_t element_bytes, size_t num_slices, size_t index);

  bool reduce_everything(const SetLayout&, const Kernels&, const Scaling&, const Chunk&, PieceCursor* out);
  bool reduce_slice(const SetLayout&, const Kernels&, const Scaling&, const Chunk&);
  bool reduce_across_hosts(const SetLayout&, const Kernels&, const Scaling&, const Chunk&,
                           const std::vector<const void*>& sources, Slice slice);
  bool unpack(const SetLayout&, const Kernels&, const Chunk&, PieceCursor* out);

  size_t slot_bytes_;
  StageBoard* stages_;
  MpiExchange* mpi_;
  std::vector<char> partials_;  // scratch
};

}  // namespace sirtaki

#endif  // SIRTAKI_ALLREDUCE_H_
