// Allgather and broadcast: members give blocks of bytes, every member gets all blocks.
//
// A broadcast is the case in which one member, the root, has a block. Per chunk of the blocks, each member
// copies its part into its slot and its peers on the host copy it from there. For each block that comes from
// another host, one member of this host, its *deputy*, receives the chunk into a lane of its own slot. Each
// block crosses to each other host once, and the deputies share the work evenly.
#ifndef SIRTAKI_BLOCK_EXCHANGE_H_
#define SIRTAKI_BLOCK_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "mpi_exchange.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

struct Block {
  const char* input;  // on the member that gives it, else ignored
  char* output;       // where this member wants it; null: it does not
  size_t bytes;       // the same on all members
};

class BlockExchange {
 public:
  BlockExchange(size_t slot_bytes, StageBoard* stages, MpiExchange* mpi)
      : slot_bytes_(slot_bytes), stages_(stages), mpi_(mpi) {}

  // `blocks` by member of the set. False: the job has failed, and the outputs are undefined.
  bool run(uint64_t sequence, const SetLayout& layout, const std::vector<Block>& blocks);

 private:
  size_t slot_bytes_;
  StageBoard* stages_;
  MpiExchange* mpi_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_BLOCK_EXCHANGE_H_
