// Point-to-point messages between hosts through whatever MPI mpi4py has loaded.
//
// MPI is met through function pointers. On 64-bit Linux one prototype serves MPICH-like MPIs, whose handles
// are 32-bit integers, and Open MPI-like ones, whose handles are pointers: an integer argument is passed in a
// register, of which the callee reads what it needs. Requests and statuses live in buffers large enough for
// both.
//
// Guarantees: nothing here blocks in MPI, which would burn a core and could not be left when a peer has died.
// Waiting tests, yields, then sleeps for growing moments, and is given up once the job has failed; buffers of
// messages given up must stay allocated, for MPI may still write to them.
#ifndef SIRTAKI_MPI_EXCHANGE_H_
#define SIRTAKI_MPI_EXCHANGE_H_

#include <array>
#include <cstdint>
#include <deque>

#include "long_wait.h"
#include "metrics.h"
#include "segment.h"

namespace sirtaki {

struct MpiTable {
  int (*isend)(const void* buffer, int count, intptr_t datatype, int rank, int tag, intptr_t comm,
               void* request);
  int (*irecv)(void* buffer, int count, intptr_t datatype, int rank, int tag, intptr_t comm, void* request);
  int (*test)(void* request, int* done, void* status);
  intptr_t comm;  // ours alone, errors returned; its ranks are the job's
  intptr_t byte_type;
};

class MpiExchange {
 public:
  MpiExchange(const MpiTable& table, Segment* segment, int64_t spin_ns, const LongWait* long_wait)
      : table_(table), segment_(segment), spin_ns_(spin_ns), long_wait_(long_wait) {}

  // Post a message of at most 2^31 - 1 bytes; between two ranks messages match in the order of posting.
  void send(int32_t rank, const void* buffer, size_t bytes);
  void receive(int32_t rank, void* buffer, size_t bytes);
  // Counts how long this rank waits for whom.
  void count_waits(Metrics* metrics) { metrics_ = metrics; }

  // Waits for all that was posted. False: the job has failed.
  bool finish();

 private:
  struct Request {
    int32_t rank;
    alignas(16) std::array<char, 16> bytes{};
  };
  void check(int code, const char* what, int32_t rank);

  MpiTable table_;
  Segment* segment_;
  int64_t spin_ns_;
  const LongWait* long_wait_;
  std::deque<Request> requests_;
  Metrics* metrics_ = nullptr;
};

}  // namespace sirtaki

#endif  // SIRTAKI_MPI_EXCHANGE_H_
