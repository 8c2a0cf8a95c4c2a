// How requests and jobs end other than well: disagreement, a name twice, ranks that leave, fail or die.
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "job.h"

namespace sirtaki::testing {
namespace {

JobOptions on_hosts(std::vector<int32_t> host_of) {
  JobOptions options;
  options.host_of = std::move(host_of);
  return options;
}

void disagreement_is_an_error_on_all_and_the_name_is_free_again(const JobOptions& options) {
  Job job(options);
  job.on_every_rank([&](int32_t rank) {
    for (int round = 0; round < 5; ++round) {
      const std::vector<float> values(rank == 1 ? 3 : 4, 1.0f);
      const auto bad = job.submit_floats(rank, {"w"}, values);
      job.wait(rank, *bad);
      expect_equal(bad->error, SIRTAKI_MISMATCH);
      expect_contains(bad->message, "disagree about w");
      const auto good = job.submit_floats(rank, {"w"}, {1.0f});
      job.wait(rank, *good);
      expect_equal(good->error, SIRTAKI_OK);
      expect_equal(floats(good->output), std::vector<float>{static_cast<float>(job.size())});
    }
  });
  job.leave_all();
}

void name_in_flight_twice_is_refused() {
  Job job(on_hosts({0, 0}));
  const auto first = job.submit_floats(0, {"w"}, {1.0f});
  const auto again = job.submit_floats(0, {"w"}, {1.0f});
  expect(again->done(), "it is refused at once");
  expect_equal(again->error, SIRTAKI_DUPLICATE_NAME);
  const auto other = job.submit_floats(1, {"w"}, {2.0f});
  job.wait(0, *first);
  job.wait(1, *other);
  expect_equal(first->error, SIRTAKI_OK);
  expect_equal(floats(other->output), std::vector<float>{3.0f});
  job.leave_all();
}

void who_waits_for_a_rank_that_left_is_told(const JobOptions& options) {
  Job job(options);
  const int32_t leaver = job.size() - 1;
  job.on_every_rank([&](int32_t rank) {
    if (rank == leaver) return job.leave(rank);
    const auto call = job.submit_floats(rank, {"w"}, {1.0f});
    job.wait(rank, *call);
    expect_equal(call->error, SIRTAKI_RANK_LEFT);
    // Others may have been told, and have left, before this rank asks.
    expect_contains(call->message, "shut down and cannot take part");
    expect_contains(call->message, std::to_string(leaver));
    job.leave(rank);
  });
}

// A rank that has left but still has its engine fills up the log for all of its host, until it closes.
void log_goes_on_when_its_slowest_reader_closes(JobOptions options) {
  options.log_ring_bytes = 1024;
  Job job(options);
  const int32_t leaver = job.size() - 1;
  const int32_t asking = leaver - 1;
  Engine& engine = job.engine(leaver);
  engine.leave();
  while (engine.wait([&] { return engine.may_end(); }, -1) != Outcome::kDone) {
  }
  job.stop(leaver);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "left behind " + std::to_string(i);
    calls.push_back(job.submit_floats(asking, {name.c_str()}, {1.0f}));
  }
  // Long enough for the log to be full; were it not, the rest would prove nothing, but hold as well.
  job.engine(asking).wait([&] { return calls.back()->done(); }, 300 * 1000 * 1000);
  job.drop(leaver);
  for (const auto& call : calls) {
    job.wait(asking, *call);
    expect_equal(call->error, SIRTAKI_RANK_LEFT);
  }
  for (int32_t rank = leaver - 1; rank >= 0; --rank) job.engine(rank).leave();
  for (int32_t rank = leaver - 1; rank >= 0; --rank) job.leave(rank);
}

// Application threads go on submitting while another thread of their rank shuts down.
void requests_during_shutdown_end_once() {
  Job job(on_hosts({0, 0}));
  job.on_every_rank([&](int32_t rank) {
    Engine& engine = job.engine(rank);
    std::atomic<bool> stop{false};
    std::vector<std::unique_ptr<Call>> calls;
    std::thread submitter([&] {
      for (int i = 0; !stop.load() || i < 50; ++i) {
        const std::string name = "s" + std::to_string(i);
        calls.push_back(job.submit_floats(rank, {name.c_str()}, {1.0f}));
        if (calls.back()->done() && calls.back()->error == SIRTAKI_NOT_INITIALIZED) break;
      }
    });
    engine.leave();
    while (engine.wait([&] { return engine.all_left(); }, -1) != Outcome::kDone) {
    }
    stop.store(true);
    submitter.join();
    for (const auto& call : calls) {
      expect_equal(call->times_done.load(), 1);
      expect(call->error == SIRTAKI_OK || call->error == SIRTAKI_RANK_LEFT ||
                 call->error == SIRTAKI_NOT_INITIALIZED,
             "error " + std::to_string(call->error) + ": " + call->message);
    }
    job.drop(rank);
  });
}

// All ranks have requests in flight when one fails; every one ends once, with the same text.
void failure_reaches_everybody(JobOptions options, const std::function<void(Job*, int32_t)>& fail,
                               const std::string& text) {
  options.will_fail = true;
  Job job(options);
  const int32_t failing = job.size() - 1;
  job.on_every_rank([&](int32_t rank) {
    for (int round = 0;; ++round) {
      if (rank == failing && round == 20) {
        fail(&job, rank);
        return;
      }
      const std::string name = "f" + std::to_string(round % 3);
      const auto call = job.submit_floats(rank, {name.c_str()}, std::vector<float>(30000, 1.0f));
      const auto barrier = job.submit(rank, {nullptr, SIRTAKI_BARRIER}, std::make_unique<Call>(), {});
      job.wait(rank, *call);
      job.wait(rank, *barrier);
      expect_equal(call->times_done.load(), 1);
      if (call->error == SIRTAKI_OK && barrier->error == SIRTAKI_OK) continue;
      const Call& ended = call->error == SIRTAKI_OK ? *barrier : *call;
      expect_equal(ended.error, SIRTAKI_RANKS_FAILED);
      expect_contains(ended.message, text);
      break;
    }
    const auto late = job.submit_floats(rank, {"late"}, {1.0f});
    job.wait(rank, *late);
    expect_equal(late->error, SIRTAKI_RANKS_FAILED);
    expect_contains(late->message, text);
    expect_equal(job.engine(rank).failed_rank(), failing);
  });
}

void announced_failure(const JobOptions& options) {
  failure_reaches_everybody(
      options,
      [](Job* job, int32_t rank) {
        expect(job->engine(rank).announce_failure("a bolt is loose"), "it is the first failure");
      },
      "a bolt is loose");
}

void death(const JobOptions& options) {
  failure_reaches_everybody(options, [](Job* job, int32_t rank) { job->drop(rank); }, "ended unexpectedly");
}

// A rank that dies while peers are in the middle of a batch that needs it, with more to come.
void death_with_requests_in_flight(JobOptions options) {
  options.will_fail = true;
  Job job(options);
  const int32_t dying = job.size() - 1;
  job.on_every_rank([&](int32_t rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 12; ++i) {
      const std::string name = "d" + std::to_string(i);
      const size_t n = i % 3 == 0 ? 50000 : 100;
      calls.push_back(job.submit_floats(rank, {name.c_str()}, std::vector<float>(n, 1.0f)));
    }
    if (rank == dying) {
      job.wait(rank, *calls[0]);
      job.drop(rank);
      // The engine is gone with its process; what it had not ended, nobody hears of.
      return;
    }
    const auto last = job.submit_floats(rank, {"needs all"}, {1.0f});
    job.wait(rank, *last);
    expect_equal(last->error, SIRTAKI_RANKS_FAILED);
    for (const auto& call : calls) {
      job.wait(rank, *call);
      expect_equal(call->times_done.load(), 1);
    }
  });
}

}  // namespace

void add_ending_tests(Suite* suite) {
  suite->add("ending: disagreement",
             [] { disagreement_is_an_error_on_all_and_the_name_is_free_again(on_hosts({0, 0, 0})); });
  suite->add("ending: disagreement between hosts",
             [] { disagreement_is_an_error_on_all_and_the_name_is_free_again(on_hosts({0, 1})); });
  suite->add("ending: a name in flight twice", name_in_flight_twice_is_refused);
  suite->add("ending: a rank left", [] { who_waits_for_a_rank_that_left_is_told(on_hosts({0, 0, 0})); });
  suite->add("ending: a rank of another host left",
             [] { who_waits_for_a_rank_that_left_is_told(on_hosts({0, 0, 1})); });
  suite->add("ending: the log goes on when its slowest reader closes",
             [] { log_goes_on_when_its_slowest_reader_closes(on_hosts({0, 0, 0})); });
  suite->add("ending: the log goes on when its slowest reader on another host closes",
             [] { log_goes_on_when_its_slowest_reader_closes(on_hosts({0, 1, 1})); });
  suite->add("ending: requests during shutdown end once", requests_during_shutdown_end_once);
  suite->add("ending: announced failure", [] { announced_failure(on_hosts({0, 0, 0})); });
  suite->add("ending: announced failure on another host", [] { announced_failure(on_hosts({0, 0, 1, 1})); });
  suite->add("ending: death", [] { death(on_hosts({0, 0, 0})); });
  suite->add("ending: death on another host", [] { death(on_hosts({0, 0, 1, 1})); });
  suite->add("ending: death of another host's agent", [] { death(on_hosts({0, 0, 1})); });
  suite->add("ending: death with requests in flight",
             [] { death_with_requests_in_flight(on_hosts({0, 0, 0})); });
  suite->add("ending: death with requests in flight between hosts",
             [] { death_with_requests_in_flight(on_hosts({0, 1, 1})); });
}

}  // namespace sirtaki::testing
