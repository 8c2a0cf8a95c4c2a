// A fake: the three functions of MPI that the engine calls, between threads of this process that play ranks.
//
// It is MPI at its least helpful: nothing moves until both sides have posted and one of them tests, so
// buffers that are given back or changed too early show. Messages between two ranks match in the order of
// posting.
#ifndef SIRTAKI_TESTS_FAKE_MPI_H_
#define SIRTAKI_TESTS_FAKE_MPI_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../mpi_exchange.h"

namespace sirtaki::testing {

class FakeMpi {
 public:
  explicit FakeMpi(int32_t size);

  // What the given rank calls MPI through; valid as long as this object lives.
  MpiTable table(int32_t rank);

 private:
  struct Transfer {
    const char* from = nullptr;
    char* to = nullptr;
    size_t bytes = 0;
    bool done = false;
  };
  // The sends and receives, in order of posting, that have met no partner.
  struct Channel {
    std::deque<Transfer*> sends;
    std::deque<Transfer*> receives;
  };
  struct Communicator {
    FakeMpi* mpi;
    int32_t rank;
  };

  static int isend(const void* buffer, int count, intptr_t datatype, int rank, int tag, intptr_t comm,
                   void* request);
  static int irecv(void* buffer, int count, intptr_t datatype, int rank, int tag, intptr_t comm,
                   void* request);
  static int test(void* request, int* done, void* status);
  static Transfer* post(intptr_t comm, int peer, bool is_send, const Transfer& transfer, void* request);
  void match(Channel* channel);

  // What a request's bytes hold.
  struct Posted {
    FakeMpi* mpi;
    Transfer* transfer;
  };
  static_assert(sizeof(Posted) <= 16, "the engine keeps 16 bytes for a request");

  std::mutex mutex_;
  std::vector<Communicator> communicators_;
  std::map<std::pair<int32_t, int32_t>, Channel> channels_;  // by sender and receiver
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

}  // namespace sirtaki::testing

#endif  // SIRTAKI_TESTS_FAKE_MPI_H_
