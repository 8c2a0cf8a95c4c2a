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
#include "pieces.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

// What one member gives.
struct Block {
  // On the member that gives it: where it lies, and where it goes. On others the outputs count only.
  std::vector<Piece> pieces;
  size_t bytes = 0;    // of all pieces, the same on all members
  bool wanted = true;  // false: this member has no room for it
};

class BlockExchange {
 public:
  BlockExchange(size_t slot_bytes, StageBoard* stages, MpiExchange* mpi)
      : slot_bytes_(slot_bytes), stages_(stages), mpi_(mpi) {}

  // `blocks` by member of the set. False: the job has failed, and the outputs are undefined.
  bool run(Tickets* tickets, const SetLayout& layout, const std::vector<Block>& blocks);

 private:
  size_t slot_bytes_;
  StageBoard* stages_;
  MpiExchange* mpi_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_BLOCK_EXCHANGE_H_
