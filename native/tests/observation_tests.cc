// The timeline and the log of messages: what happens when too much comes at once, and how lines are written.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "../engine_abi.h"
#include "../log.h"
#include "../timeline.h"
#include "../timeline_text.h"
#include "check.h"

namespace sirtaki::testing {
namespace {

std::string text_of(const TimelineText& text) { return std::string(text.view()); }

void numbers_and_moments_are_written_like_printf() {
  const std::vector<int64_t> times{0,
                                   1,
                                   999,
                                   1000,
                                   1001,
                                   99'999,
                                   100'000,
                                   999'999'999,
                                   1'000'000'000,
                                   1'000'000'001,
                                   59'123'456'789,
                                   59'999'999'999,
                                   60'000'000'000,
                                   123'456'789'012'345'678,
                                   std::numeric_limits<int64_t>::max()};
  TimelineText text;
  for (const int64_t ns : times) {
    std::array<char, 64> expected;
    std::snprintf(expected.data(), expected.size(), "%lld.%03d", static_cast<long long>(ns / 1000),
                  static_cast<int>(ns % 1000));
    for (const bool moment : {false, true, true}) {  // the second moment has its digits already
      text.clear();
      text.reserve(64);
      moment ? text.put_moment(ns) : text.put_time(ns);
      expect_equal(text_of(text), expected.data());
    }
    text.clear();
    text.put_number(static_cast<uint64_t>(ns));
    expect_equal(text_of(text), std::to_string(ns));
  }
  text.clear();
  text.put_number(std::numeric_limits<uint64_t>::max());
  expect_equal(text_of(text), "18446744073709551615");
}

void text_grows_and_escapes() {
  TimelineText text;
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    text.reserve(64);
    text.put_escaped("a\"\\\n\x7f\xc3\xa9");
    expected += "a\\\"\\\\\\u000a\\u007f\xc3\xa9";
  }
  expect(text_of(text) == expected, "a text of many pieces is the pieces one after the other");
}

void full_ring_drops_and_goes_on() {
  TimelineRing ring(4);
  TimelineEvent event{};
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 4; ++i) {
      event.batch = 10 * round + i;
      expect(ring.push(event), "there is room");
    }
    expect(!ring.push(event), "it is full");
    for (uint64_t i = 0; i < 4; ++i) {
      expect(ring.pop(&event), "there is an event");
      expect_equal(event.batch, 10 * round + i);
    }
    expect(!ring.pop(&event), "it is empty");
  }
}

void ring_of_many_writers_loses_nothing_it_took() {
  TimelineRing ring(64);
  constexpr uint64_t kWriters = 4;
  constexpr uint64_t kEvents = 5000;
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&ring, w] {
      TimelineEvent event{};
      for (uint64_t i = 0; i < kEvents; ++i) {
        event.batch = w;
        event.bytes = i;
        while (!ring.push(event)) std::this_thread::yield();
      }
    });
  }
  std::vector<uint64_t> next(kWriters);
  TimelineEvent event{};
  for (uint64_t taken = 0; taken < kWriters * kEvents;) {
    if (!ring.pop(&event)) {
      std::this_thread::yield();
      continue;
    }
    expect_equal(event.bytes, next[event.batch]++);
    ++taken;
  }
  for (std::thread& writer : writers) writer.join();
}

// More events than the ring holds, from a thread that the writer cannot keep up with.
void lost_events_are_counted_in_the_file() {
  std::string path = "/tmp/sirtaki-timeline-XXXXXX";
  const int fd = mkstemp(path.data());
  Timeline& timeline = Timeline::instance();
  message_log().open();
  expect(timeline.start(FileDescriptor(dup(fd)), 0, "{\"ph\":\"M\"},\n", false), "it starts");
  expect(!timeline.start(FileDescriptor(dup(fd)), 0, "{\"ph\":\"M\"},\n", false), "it is on already");
  constexpr uint64_t kRequests = 200'000;
  for (uint64_t i = 0; i < kRequests; ++i) {
    const TimelineTag tag = timeline.open("", 0);
    TimelineEvent event{};
    event.kind = TimelineEvent::Kind::kDone;
    event.session = tag.session;
    event.lane = tag.lane;
    event.batch = i;
    event.submitted_ns = tag.submitted_ns;
    event.decided_ns = event.begin_ns = event.end_ns = tag.submitted_ns;
    timeline.record(event);
  }
  expect(timeline.stop(), "it was on");
  expect(!timeline.stop(), "it is off");
  std::ifstream file(path);
  uint64_t written = 0;
  uint64_t lost = 0;
  std::string line;
  while (std::getline(file, line)) {
    if (line.find("\"batch\":") != std::string::npos) ++written;
    const auto at = line.find(" events lost");
    if (at != std::string::npos) lost += std::stoull(line.substr(line.rfind('"', at) + 1));
  }
  expect_equal(line, "");
  expect_equal(written + lost, kRequests);
  expect(lost > 0, "the writer, which sleeps between two looks, cannot keep up");
  message_log().close();
  LogMessage message;
  uint64_t told = 0;
  while (message_log().take(&message)) {
    const auto at = message.text.find(" events lost");
    if (at != std::string::npos)
      told += std::stoull(message.text.substr(message.text.rfind(' ', at - 1) + 1));
  }
  expect_equal(told, lost);
  close(fd);
  unlink(path.c_str());
}

void file_that_cannot_be_written_ends_the_timeline_and_is_told() {
  Timeline& timeline = Timeline::instance();
  message_log().open();
  std::string path = "/tmp/sirtaki-timeline-XXXXXX";
  const int fd = mkstemp(path.data());
  // The header can be written, and then nothing: the descriptor becomes one that is always full.
  const int given = dup(fd);
  expect(timeline.start(FileDescriptor(given), 0, "{\"ph\":\"M\"},\n", false), "it starts");
  std::FILE* full = std::fopen("/dev/full", "w");
  dup2(fileno(full), given);
  const TimelineTag tag = timeline.open("w", 0);
  TimelineEvent event{};
  event.kind = TimelineEvent::Kind::kFailed;
  event.session = tag.session;
  event.lane = tag.lane;
  timeline.record(event);
  timeline.stop();
  expect(!Timeline::is_on(), "it is off");
  message_log().close();
  LogMessage message;
  expect(message_log().take(&message), "there is a message");
  expect_contains(message.text, "cannot be written: No space left on device");
  expect(!message_log().take(&message), "there is one message");
  std::fclose(full);
  close(fd);
  unlink(path.c_str());
}

void log_holds_so_many_messages_and_says_how_many_it_lost() {
  MessageLog log;
  log.open();
  for (int i = 0; i < 1003; ++i) log.write(LogLevel::kInfo, std::to_string(i));
  LogMessage message;
  for (int i = 0; i < 1000; ++i) {
    expect(log.take(&message), "there is a message");
    expect_equal(message.text, std::to_string(i));
  }
  expect(log.take(&message), "there is a message");
  expect_contains(message.text, "3 messages were lost");
  log.close();
  expect(!log.take(&message), "it is empty and closed");
}

}  // namespace

void add_observation_tests(Suite* suite) {
  suite->add("timeline: numbers and moments are written like printf",
             numbers_and_moments_are_written_like_printf);
  suite->add("timeline: text grows and escapes", text_grows_and_escapes);
  suite->add("timeline: full ring drops and goes on", full_ring_drops_and_goes_on);
  suite->add("timeline: ring of many writers loses nothing it took",
             ring_of_many_writers_loses_nothing_it_took);
  suite->add("timeline: lost events are counted in the file", lost_events_are_counted_in_the_file);
  suite->add("timeline: file that cannot be written ends it and is told",
             file_that_cannot_be_written_ends_the_timeline_and_is_told);
  suite->add("log: holds so many messages and says how many it lost",
             log_holds_so_many_messages_and_says_how_many_it_lost);
}

}  // namespace sirtaki::testing
