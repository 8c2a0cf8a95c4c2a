#include "fake_mpi.h"

#include <cstring>

#include "check.h"

namespace sirtaki::testing {
namespace {

constexpr intptr_t kByteType = 77;

}  // namespace

FakeMpi::FakeMpi(int32_t size) {
  for (int32_t r = 0; r < size; ++r) communicators_.push_back({this, r});
}

MpiTable FakeMpi::table(int32_t rank) {
  return {isend, irecv, test, reinterpret_cast<intptr_t>(&communicators_[static_cast<size_t>(rank)]),
          kByteType};
}

int FakeMpi::isend(const void* buffer, int count, intptr_t datatype, int rank, int, intptr_t comm,
                   void* request) {
  expect_equal(datatype, kByteType);
  post(comm, rank, true, {static_cast<const char*>(buffer), nullptr, static_cast<size_t>(count), false},
       request);
  return 0;
}

int FakeMpi::irecv(void* buffer, int count, intptr_t datatype, int rank, int, intptr_t comm, void* request) {
  expect_equal(datatype, kByteType);
  post(comm, rank, false, {nullptr, static_cast<char*>(buffer), static_cast<size_t>(count), false}, request);
  return 0;
}

FakeMpi::Transfer* FakeMpi::post(intptr_t comm, int peer, bool is_send, const Transfer& transfer,
                                 void* request) {
  const auto& [mpi, rank] = *reinterpret_cast<Communicator*>(comm);
  const std::lock_guard<std::mutex> lock(mpi->mutex_);
  mpi->transfers_.push_back(std::make_unique<Transfer>(transfer));
  Transfer* posted = mpi->transfers_.back().get();
  if (is_send) {
    mpi->channels_[{rank, peer}].sends.push_back(posted);
  } else {
    mpi->channels_[{peer, rank}].receives.push_back(posted);
  }
  const Posted handle{mpi, posted};
  std::memcpy(request, &handle, sizeof handle);
  return posted;
}

int FakeMpi::test(void* request, int* done, void*) {
  Posted handle;
  std::memcpy(&handle, request, sizeof handle);
  const std::lock_guard<std::mutex> lock(handle.mpi->mutex_);
  for (auto& [ranks, channel] : handle.mpi->channels_) handle.mpi->match(&channel);
  *done = handle.transfer->done ? 1 : 0;
  return 0;
}

void FakeMpi::match(Channel* channel) {
  while (!channel->sends.empty() && !channel->receives.empty()) {
    Transfer& send = *channel->sends.front();
    Transfer& receive = *channel->receives.front();
    if (expect_equal(send.bytes, receive.bytes)) std::memcpy(receive.to, send.from, send.bytes);
    send.done = receive.done = true;
    channel->sends.pop_front();
    channel->receives.pop_front();
  }
}

}  // namespace sirtaki::testing
