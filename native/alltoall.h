// Alltoall: every member gives each other member a part of its own.
//
// Inside a host, per round: each member copies its next part for each local member into a lane of its slot,
// and takes its own parts from the lanes that the others have for it. Between hosts the two members concerned
// exchange messages directly, through scratch memory of the engine's, since MPI may write to the buffers of
// messages that were given up when the job failed. Each byte crosses the network once.
#ifndef SIRTAKI_ALLTOALL_H_
#define SIRTAKI_ALLTOALL_H_

#include <cstdint>
#include <vector>

#include "mpi_exchange.h"
#include "stage.h"
#include "topology.h"

namespace sirtaki {

class Alltoall {
 public:
  struct Part {
    const char* input;  // for that member
    char* output;       // from that member; null: not wanted
  };

  Alltoall(size_t slot_bytes, StageBoard* stages, MpiExchange* mpi)
      : slot_bytes_(slot_bytes), stages_(stages), mpi_(mpi) {}

  // `bytes[s * n + r]` is what member s of n gives to member r; `parts` by member. False: the job has failed,
  // and the outputs are undefined.
  bool run(Tickets* tickets, const SetLayout& layout, const std::vector<size_t>& bytes,
           const std::vector<Part>& parts);

 private:
  size_t slot_bytes_;
  StageBoard* stages_;
  MpiExchange* mpi_;
  std::vector<char> outbox_;
  std::vector<char> inbox_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_ALLTOALL_H_
