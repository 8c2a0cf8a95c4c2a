// The shared segment: rings between threads that play ranks, stages and tickets, the failure board.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../segment.h"
#include "../stage.h"
#include "check.h"

namespace sirtaki::testing {
namespace {

SegmentShape small_shape(uint32_t local_size) {
  SegmentShape shape{};
  shape.local_size = local_size;
  shape.num_slots = 2;
  shape.slot_bytes = 4096;
  shape.up_ring_bytes = 256;
  shape.log_ring_bytes = 512;
  return shape;
}

// The same segment as each of its ranks has it.
std::vector<std::unique_ptr<Segment>> make_segments(const SegmentShape& shape) {
  const FileDescriptor fd(memfd_create("sirtaki-test", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(shape.total_bytes())) != 0) {
    throw std::runtime_error("cannot make a segment");
  }
  std::vector<std::unique_ptr<Segment>> all;
  for (uint32_t r = 0; r < shape.local_size; ++r) {
    all.push_back(std::make_unique<Segment>(fd.get(), shape, r));
  }
  return all;
}

void ring_bytes_wrap_around_at_every_offset() {
  std::vector<char> memory(64);
  RingBytes ring(memory.data(), memory.size());
  for (uint64_t position = 0; position < 256; position += 8) {
    for (size_t n : {0, 1, 7, 8, 9, 40, 56}) {
      const std::string sent(n, static_cast<char>('a' + n % 26));
      ring.put(position, Record::kError, sent);
      Record type{};
      std::string got;
      expect_equal(ring.get(position, &type, &got), position + RingBytes::record_bytes(n));
      expect_equal(type, Record::kError);
      expect_equal(got, sent);
    }
  }
}

void full_up_ring_refuses_until_it_is_read() {
  const auto segments = make_segments(small_shape(2));
  Segment& writer = *segments[1];
  Segment& reader = *segments[0];
  int written = 0;
  while (writer.write_up(Record::kSubmit, std::string(24, static_cast<char>('a' + written)))) ++written;
  expect_equal(written, 8);
  expect_equal(writer.own_block().up_blocked.load(), 1u);
  Record type{};
  std::string payload;
  expect(!reader.has_up(0) && reader.has_up(1), "the reader sees whose ring holds records");
  for (int i = 0; i < written; ++i) {
    expect(reader.read_up(1, &type, &payload), "a record is there");
    expect_equal(payload, std::string(24, static_cast<char>('a' + i)));
    expect_equal(writer.own_block().up_blocked.load(), 0u);
  }
  expect(!reader.read_up(1, &type, &payload), "the ring is empty again");
  expect(writer.write_up(Record::kLeave, {}), "there is room again");
  expect(reader.read_up(1, &type, &payload), "a record is there");
  expect_equal(type, Record::kLeave);
}

void log_waits_for_its_slowest_reader_and_not_for_one_that_left() {
  const auto segments = make_segments(small_shape(3));
  const std::string text(56, 'x');
  int written = 0;
  while (segments[0]->write_log(Record::kError, text)) ++written;
  expect_equal(written, 8);
  expect_equal(segments[0]->header().log_blocked.load(), 1u);
  Record type{};
  std::string payload;
  expect(segments[0]->read_log(&type, &payload), "rank 0 reads");
  expect(!segments[0]->write_log(Record::kError, text), "ranks 1 and 2 have not read");
  expect(segments[1]->read_log(&type, &payload), "rank 1 reads");
  expect(!segments[0]->write_log(Record::kError, text), "rank 2 has not read");
  segments[2]->stop_reading_log();
  expect(!segments[2]->has_log(), "nothing is for a rank that stopped reading");
  expect(segments[0]->write_log(Record::kError, text), "rank 2 is not waited for");
}

void records_pass_between_threads_in_order() {
  constexpr int kRecords = 3000;
  const auto segments = make_segments(small_shape(3));
  const auto payload_of = [](uint32_t rank, int i) {
    return std::string(static_cast<size_t>(i) % 50, static_cast<char>('a' + rank)) + std::to_string(i);
  };
  std::vector<std::thread> threads;
  // Ranks write up; rank 0 turns what it reads into the log, which all read.
  for (uint32_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      for (int i = 0; i < kRecords;) {
        if (segments[r]->write_up(Record::kSubmit, payload_of(r, i))) {
          ++i;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  threads.emplace_back([&] {
    Record type{};
    std::string payload;
    std::vector<int> next(3);
    for (int total = 0; total < 3 * kRecords;) {
      bool read = false;
      for (uint32_t r = 0; r < 3; ++r) {
        if (!segments[0]->read_up(r, &type, &payload)) continue;
        read = true;
        expect_equal(payload, payload_of(r, next[r]++));
        while (!segments[0]->write_log(Record::kError, payload_of(r, total))) std::this_thread::yield();
        ++total;
      }
      if (!read) std::this_thread::yield();
    }
  });
  for (uint32_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      Record type{};
      std::string payload;
      for (int i = 0; i < 3 * kRecords;) {
        if (!segments[r]->read_log(&type, &payload)) {
          std::this_thread::yield();
          continue;
        }
        const size_t letters = static_cast<size_t>(i) % 50;
        expect_equal(payload.substr(letters), std::to_string(i));
        ++i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each rank writes its slot, and reads the others' once they have packed; the slots come round many times.
void slots_pass_between_threads(int64_t spin_ns) {
  constexpr uint32_t kRanks = 3;
  constexpr uint64_t kBatches = 200;
  constexpr uint64_t kChunks = 3;
  const auto segments = make_segments(small_shape(kRanks));
  const std::vector<uint32_t> everybody{0, 1, 2};
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      StageBoard board(segments[r].get(), spin_ns);
      for (uint64_t sequence = 1; sequence <= kBatches; ++sequence) {
        for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
          const uint64_t ticket = make_ticket(sequence, chunk);
          char* slot = board.claim_slot(ticket, everybody);
          if (!expect(slot != nullptr, "the job has not failed")) return;
          const uint64_t sent = ticket * kRanks + r;
          std::memcpy(slot, &sent, sizeof sent);
          board.publish(Stage::kPacked, ticket);
          expect(board.wait_all(everybody, Stage::kPacked, ticket), "the job has not failed");
          for (uint32_t other : everybody) {
            uint64_t got;
            std::memcpy(&got, board.slot(other, ticket), sizeof got);
            expect_equal(got, ticket * kRanks + other);
          }
          board.publish(Stage::kDone, ticket);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void failure_ends_waits_for_stages() {
  const auto segments = make_segments(small_shape(2));
  std::thread waiter([&] {
    StageBoard board(segments[1].get(), 0);
    expect(!board.wait(0, Stage::kPacked, make_ticket(1, 0)), "the wait is given up");
  });
  segments[0]->post_failure(0, "gone");
  waiter.join();
  expect(segments[1]->failed(), "the other rank knows");
}

void first_failure_stays() {
  const auto segments = make_segments(small_shape(3));
  std::atomic<int> firsts{0};
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      if (segments[r]->post_failure(static_cast<int32_t>(r), "rank " + std::to_string(r) + " is gone")) {
        firsts.fetch_add(1);
      }
      expect(segments[r]->failed(), "it is posted when post_failure returns");
      expect_equal(segments[r]->failure_text(),
                   "rank " + std::to_string(segments[r]->failed_rank()) + " is gone");
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_equal(firsts.load(), 1);
}

void long_failure_text_is_cut_at_a_character() {
  const auto segments = make_segments(small_shape(1));
  std::string text;
  while (text.size() < 8000) text += "\u00e9";  // two bytes each
  segments[0]->post_failure(0, "x" + text);
  const std::string kept = segments[0]->failure_text();
  expect_equal(kept.size(), size_t{3999});
  expect_equal(kept, ("x" + text).substr(0, kept.size()));
}

}  // namespace

void add_segment_tests(Suite* suite) {
  suite->add("ring: bytes wrap around at every offset", ring_bytes_wrap_around_at_every_offset);
  suite->add("ring: a full up ring refuses until it is read", full_up_ring_refuses_until_it_is_read);
  suite->add("ring: the log waits for its slowest reader, not for one that left",
             log_waits_for_its_slowest_reader_and_not_for_one_that_left);
  suite->add("ring: records pass between threads in order", records_pass_between_threads_in_order);
  suite->add("stage: slots pass between threads that sleep", [] { slots_pass_between_threads(0); });
  suite->add("stage: slots pass between threads that spin", [] { slots_pass_between_threads(20 * 1000); });
  suite->add("stage: a failure ends waits", failure_ends_waits_for_stages);
  suite->add("failure board: the first failure stays", first_failure_stays);
  suite->add("failure board: a long text is cut at a character", long_failure_text_is_cut_at_a_character);
}

}  // namespace sirtaki::testing
