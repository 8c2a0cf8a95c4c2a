// Whole jobs that go well: many threads of many ranks submit and wait at once, on one host and on two.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "job.h"

namespace sirtaki::testing {
namespace {

constexpr float kUnit = 0.25f;

std::vector<float> values_of(int32_t rank, size_t n, int seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] =
        kUnit * static_cast<float>((static_cast<size_t>(rank) * 31 + i + static_cast<size_t>(seed)) % 64);
  }
  return values;
}

std::vector<float> sum_of(int32_t size, size_t n, int seed) {
  std::vector<float> sum(n);
  for (int32_t rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, n, seed);
    for (size_t i = 0; i < n; ++i) sum[i] += values[i];
  }
  return sum;
}

bool expect_done(const Call& call, const Place& place = {}) {
  expect_equal(call.times_done.load(), 1, place);
  if (call.error == SIRTAKI_OK) return true;
  report_failure("error " + std::to_string(call.error) + ": " + call.message, place);
  return false;
}

// One thread of a rank: a few tensors in flight at a time, then the other collectives.
void work(Job* job, int32_t rank, int thread, int rounds) {
  const int32_t size = job->size();
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Call>> calls;
    // From none to several chunks of a slot, so that batches are fused, cut, and taken on the short way.
    const std::vector<size_t> lengths{1, 0, 300, 7, 3000 + static_cast<size_t>(thread) * 1000, 40000};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const std::string name = "t" + std::to_string(thread) + "." + std::to_string(i);
      calls.push_back(job->submit_floats(rank, {name.c_str()}, values_of(rank, lengths[i], round)));
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      job->wait(rank, *calls[i]);
      if (!expect_done(*calls[i])) return;
      expect(floats(calls[i]->output) == sum_of(size, lengths[i], round), "the sum is right");
    }

    const std::string gather_name = "gather" + std::to_string(thread);
    const auto rows = [&](int32_t r) {
      return (static_cast<size_t>(r) + static_cast<size_t>(round)) % 3 * 5000;
    };
    Spec gather{gather_name.c_str(), SIRTAKI_ALLGATHER};
    auto gathered = std::make_unique<Call>();
    const std::vector<float> own = values_of(rank, rows(rank), round);
    gathered->input.resize(own.size() * sizeof(float));
    if (!own.empty()) std::memcpy(gathered->input.data(), own.data(), gathered->input.size());
    gathered->row_bytes = sizeof(float);
    gathered = job->submit(rank, gather, std::move(gathered), {static_cast<int64_t>(own.size())});

    const std::string broadcast_name = "broadcast" + std::to_string(thread);
    Spec broadcast{broadcast_name.c_str(), SIRTAKI_BROADCAST};
    broadcast.root_rank = round % size;
    const auto sent = job->submit_floats(rank, broadcast, values_of(rank, 20000, thread));
    job->wait(rank, *gathered);
    job->wait(rank, *sent);
    if (!expect_done(*gathered) || !expect_done(*sent)) return;
    std::vector<float> all;
    for (int32_t r = 0; r < size; ++r) {
      const std::vector<float> part = values_of(r, rows(r), round);
      all.insert(all.end(), part.begin(), part.end());
    }
    expect(floats(gathered->output) == all, "the gathered rows are right");
    expect(floats(sent->output) == values_of(broadcast.root_rank, 20000, thread), "the broadcast is right");
  }
}

// Unnamed calls come from one thread of a rank only: what they are is told by their order.
void unnamed_work(Job* job, int32_t rank, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const size_t n = static_cast<size_t>(round) % 50;
    const auto first = job->submit_floats(rank, {}, values_of(rank, n, round));
    const auto barrier = job->submit(rank, {nullptr, SIRTAKI_BARRIER}, std::make_unique<Call>(), {});
    const auto second = job->submit_floats(rank, {}, values_of(rank, 2 * n, round));
    job->wait(rank, *second);
    job->wait(rank, *barrier);
    job->wait(rank, *first);
    if (!expect_done(*first) || !expect_done(*barrier) || !expect_done(*second)) return;
    expect(floats(first->output) == sum_of(job->size(), n, round), "the sum is right");
    expect(floats(second->output) == sum_of(job->size(), 2 * n, round), "the sum is right");
  }
}

void everything_at_once(JobOptions options, int rounds) {
  Job job(std::move(options));
  job.on_every_rank([&](int32_t rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) threads.emplace_back(work, &job, rank, t, rounds);
    threads.emplace_back(unnamed_work, &job, rank, 10 * rounds);
    for (std::thread& thread : threads) thread.join();
    job.leave(rank);
  });
}

JobOptions on_hosts(std::vector<int32_t> host_of) {
  JobOptions options;
  options.host_of = std::move(host_of);
  return options;
}

JobOptions spinning(JobOptions options) {
  options.spin_ns = 20 * 1000;
  return options;
}

// Rings that hold a handful of records: writers wait for readers all the time.
JobOptions with_tiny_rings(JobOptions options) {
  options.up_ring_bytes = 512;
  options.log_ring_bytes = 1024;
  options.fusion_threshold = 0;
  return options;
}

// A synchronous caller drives the engine itself while others submit.
void callers_that_wait_at_once(JobOptions options) {
  Job job(std::move(options));
  job.on_every_rank([&](int32_t rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const std::string name = "w" + std::to_string(t);
        for (int round = 0; round < 200; ++round) {
          const auto call = job.submit_floats(rank, {name.c_str()}, values_of(rank, 10, round));
          job.wait(rank, *call);
          if (!expect_done(*call)) return;
          expect(floats(call->output) == sum_of(job.size(), 10, round), "the sum is right");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  job.leave_all();
}

}  // namespace

void add_job_tests(Suite* suite) {
  suite->add("job: one rank", [] { everything_at_once(on_hosts({0}), 8); });
  suite->add("job: two ranks", [] { everything_at_once(on_hosts({0, 0}), 16); });
  suite->add("job: two ranks that spin", [] { everything_at_once(spinning(on_hosts({0, 0})), 16); });
  suite->add("job: four ranks", [] { everything_at_once(on_hosts({0, 0, 0, 0}), 8); });
  suite->add("job: two hosts of two ranks", [] { everything_at_once(on_hosts({0, 0, 1, 1}), 8); });
  suite->add("job: hosts of two ranks and one, interleaved",
             [] { everything_at_once(spinning(on_hosts({0, 1, 0})), 8); });
  suite->add("job: tiny rings", [] { everything_at_once(with_tiny_rings(on_hosts({0, 0})), 12); });
  suite->add("job: tiny rings on two hosts",
             [] { everything_at_once(with_tiny_rings(on_hosts({0, 0, 1})), 8); });
  suite->add("job: callers that wait at once", [] { callers_that_wait_at_once(on_hosts({0, 0, 0})); });
}

}  // namespace sirtaki::testing
