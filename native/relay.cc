#include "relay.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "log.h"

namespace sirtaki {
namespace {

struct WireFrame {
  uint32_t payload_bytes;
  uint32_t type;
  int32_t rank;
  uint32_t reserved;
};

enum Tag : uint64_t {
  kStopTag = 0,
  kDoorbellTag = 1,
  kPeerTag = uint64_t{1} << 32,
  kLinkTag = uint64_t{2} << 32
};
constexpr uint64_t kTagKind = ~((uint64_t{1} << 32) - 1);

// How long a process that ends waits for its last words to leave.
constexpr int64_t kFlushLimitNs = int64_t{2} * 1000 * 1000 * 1000;

}  // namespace

Relay::Relay(const Topology& topology, Segment* segment, RelayLinks links, FileDescriptor doorbell,
             std::vector<std::string> labels, int64_t unresponsive_ns)
    : topology_(topology),
      segment_(segment),
      peers_(std::move(links.peers)),
      doorbell_(std::move(doorbell)),
      stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      labels_(std::move(labels)),
      left_(static_cast<size_t>(topology.size())),
      heartbeat_(unresponsive_ns) {
  if (!stop_event_.valid() || !epoll_.valid()) {
    throw std::system_error(errno, std::generic_category(), "cannot start the relay thread");
  }
  // Ascending ranks of a host have ascending local ranks.
  for (int32_t r = 0; r < topology_.size(); ++r) {
    if (topology_.host_of[r] == topology_.host()) ranks_here_.push_back(r);
  }
  for (RelayLinks::Host& host : links.hosts) {
    auto link = std::make_unique<Link>();
    link->agent = host.agent;
    link->socket = std::move(host.socket);
    links_.push_back(std::move(link));
  }
  watch(stop_event_.get(), kStopTag, EPOLLIN);
  if (is_agent()) watch(doorbell_.get(), kDoorbellTag, EPOLLIN);
  for (size_t i = 0; i < peers_.size(); ++i) {
    watch(peers_[i].socket.get(), kPeerTag | i, EPOLLIN | EPOLLRDHUP);
    if (peers_[i].pidfd.valid()) watch(peers_[i].pidfd.get(), kPeerTag | i, EPOLLIN);
  }
  for (size_t i = 0; i < links_.size(); ++i)
    watch(links_[i]->socket.get(), kLinkTag | i, EPOLLIN | EPOLLRDHUP);

  // The first sign of life here and not in the thread, which may not run before this process is stopped.
  beat();

  thread_ = start_thread("sirtaki-relay", [this] { loop(); });
}

Relay::~Relay() { stop(); }

void Relay::watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot watch a descriptor");
  }
}

void Relay::knock() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto& sleeps = segment_->header().relay_sleeps;
  if (sleeps.load(std::memory_order_relaxed) != 0 && sleeps.exchange(0) != 0) eventfd_signal(doorbell_.get());
}

void Relay::stop() {
  if (!thread_.joinable()) return;
  eventfd_signal(stop_event_.get());
  thread_.join();
}

void Relay::abandon_after_fork() {
  for (auto& peer : peers_) {
    peer.socket.close();
    peer.pidfd.close();
  }
  for (auto& link : links_) link->socket.close();
  doorbell_.close();
  stop_event_.close();
  epoll_.close();
  if (thread_.joinable()) thread_.detach();  // it runs in the parent; there is nothing to join here
}

void Relay::loop() {
  std::array<epoll_event, 16> events;
  auto& sleeps = segment_->header().relay_sleeps;
  int64_t stop_by = 0;
  for (;;) {
    beat();
    if (is_agent()) {
      forward_up_rings();
      drain_log_backlog();
    }
    forward_failure();
    if (stop_by != 0 && (everything_sent() || now_ns() > stop_by)) return;
    if (is_agent()) {
      // Announce the sleep, then look once more: a rank that writes after this look knocks.
      sleeps.store(1, std::memory_order_seq_cst);
      bool work = (segment_->failed() && !failure_forwarded_) || drain_log_backlog();
      for (uint32_t r = 0; is_remote_agent() && r < segment_->shape().local_size; ++r)
        work |= segment_->has_up(r);
      if (work) {
        sleeps.store(0, std::memory_order_relaxed);
        continue;
      }
    }
    const int n = epoll_wait(epoll_.get(), events.data(), events.size(), stop_by != 0 ? 10 : idle_ms());
    if (is_agent()) sleeps.store(0, std::memory_order_relaxed);
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
      const auto index = static_cast<size_t>(tag & ~kTagKind);
      if (tag == kStopTag) {
        eventfd_clear(stop_event_.get());
        stop_by = now_ns() + kFlushLimitNs;
      } else if (tag == kDoorbellTag) {
        eventfd_clear(doorbell_.get());
      } else if ((tag & kTagKind) == kPeerTag) {
        on_peer_gone(index);
      } else {
        Link* link = links_[index].get();
        if ((events[i].events & EPOLLOUT) != 0) flush(link);
        if ((events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) on_link_readable(link);
      }
    }
  }
}

// Peers never send anything: whatever wakes us here is the end of the process at the other end.
void Relay::on_peer_gone(size_t index) {
  RelayLinks::Peer& peer = peers_[index];
  if (!peer.socket.valid()) return;
  peer.socket.close();
  peer.pidfd.close();
  if (!may_go(peer)) report_death(peer.rank);
}

// The agent's peers may go once they have left; the agent goes last, so its peers must have left themselves.
bool Relay::may_go(const RelayLinks::Peer& peer) const {
  const int32_t must_have_left = is_agent() ? peer.rank : topology_.rank;
  const auto local = static_cast<uint32_t>(topology_.local_rank_of[must_have_left]);
  return segment_->block(local).left.load(std::memory_order_acquire) != 0;
}

// Rank 0 goes when all have left, another agent when all of its host have.
bool Relay::may_go(const Link& link) const {
  return host_has_left(topology_.rank == 0 ? topology_.host_of[link.agent] : topology_.host());
}

void Relay::report_death(int32_t rank) {
  // After a failure ranks end because of it; that is no news.
  if (!segment_->failed()) {
    log_message(LogLevel::kInfo, "noticed the end of " + labels_[rank] + ", which had not left the job");
  }
  segment_->post_failure(rank,
                         labels_[rank] +
                             " ended unexpectedly: it was killed, crashed, or exited without leaving the "
                             "job. The job cannot go on; look for that rank's own last messages.");
}

void Relay::report_silence(int32_t rank) {
  std::array<char, 32> limit;
  std::snprintf(limit.data(), limit.size(), "%g", static_cast<double>(heartbeat_.limit_ns()) * 1e-9);
  // The limit and not the time that was measured: several ranks may report this, all with the same text.
  segment_->post_failure(
      rank,
      labels_[rank] + " has been unresponsive for more than " + limit.data() +
          " seconds: it is stopped (SIGSTOP, Ctrl-Z, a debugger), or its host or the network to it hangs. "
          "The job cannot go on. If it is meant to be stopped for so long, raise "
          "SIRTAKI_UNRESPONSIVE_TIME_SECONDS; 0 means for ever.",
      SIRTAKI_UNRESPONSIVE);
}

int Relay::idle_ms() const {
  const int64_t idle_ns = heartbeat_.idle_ns(now_ns());
  constexpr int64_t kNsPerMs = 1000 * 1000;
  constexpr int64_t kMostMs = 24 * 60 * 60 * 1000;
  return idle_ns < 0 ? -1 : static_cast<int>(std::min((idle_ns + kNsPerMs - 1) / kNsPerMs, kMostMs));
}

void Relay::beat() {
  if (!heartbeat_.is_due(now_ns())) return;
  segment_->own_block().heartbeat.fetch_add(1, std::memory_order_relaxed);
  for (auto& link : links_) {
    // To a peer that does not read nothing is added.
    if (everything_sent(link.get())) send(link.get(), topology_.rank, Record::kHeartbeat, {});
  }
  if (segment_->failed()) {
    // Whoever has posted the failure may have been stopped before it woke all.
    segment_->wake_all();
    return;
  }
  for (RelayLinks::Peer& peer : peers_) {
    const auto local = static_cast<uint32_t>(topology_.local_rank_of[peer.rank]);
    const uint64_t count = segment_->block(local).heartbeat.load(std::memory_order_relaxed);
    if (heartbeat_.is_silent(&peer.pulse, count) && !may_go(peer)) report_silence(peer.rank);
  }
  for (auto& link : links_) {
    if (heartbeat_.is_silent(&link->pulse, link->times_heard) && !may_go(*link)) report_silence(link->agent);
  }
}

bool Relay::host_has_left(int32_t host) const {
  for (int32_t r = 0; r < topology_.size(); ++r) {
    if (topology_.host_of[r] == host && !left_[r].load(std::memory_order_acquire)) return false;
  }
  return true;
}

void Relay::note_left(int32_t rank) { left_[rank].store(true, std::memory_order_release); }

void Relay::on_link_closed(Link* link, int error) {
  log_message(LogLevel::kDebug, "the connection to " + labels_[link->agent] + " was closed");
  {
    const std::lock_guard<std::mutex> lock(link->mutex);
    link->broken = true;
    link->unsent.clear();
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link->socket.get(), nullptr);
  if (may_go(*link)) return;
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    segment_->post_failure(link->agent,
                           labels_[link->agent] +
                               " cannot be reached any more: its host has gone down without a word, or the "
                               "network to it has (" +
                               std::generic_category().message(error) + "). The job cannot go on.");
    return;
  }
  report_death(link->agent);
}

void Relay::on_link_readable(Link* link) {
  std::array<char, 65536> buffer;
  bool closed = false;
  int error = 0;
  for (;;) {
    const ssize_t n = recv(link->socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      link->received.append(buffer.data(), static_cast<size_t>(n));
      ++link->times_heard;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    error = n < 0 ? errno : 0;
    closed = n == 0 || (error != EAGAIN && error != EWOULDBLOCK);
    break;
  }
  size_t at = 0;
  WireFrame frame;
  while (link->received.size() - at >= sizeof frame) {
    std::memcpy(&frame, link->received.data() + at, sizeof frame);
    if (link->received.size() - at - sizeof frame < frame.payload_bytes) break;
    const std::string_view payload(link->received.data() + at + sizeof frame, frame.payload_bytes);
    on_frame(frame.rank, static_cast<Record>(frame.type), payload);
    at += sizeof frame + frame.payload_bytes;
  }
  link->received.erase(0, at);
  if (closed) on_link_closed(link, error);
}

void Relay::on_frame(int32_t rank, Record type, std::string_view payload) {
  if (type == Record::kHeartbeat) return;  // that bytes came is what counts
  if (type == Record::kFailure) {
    Reader reader(payload);
    const auto code = reader.value<int32_t>();
    log_message(LogLevel::kInfo, "heard from another host that the job has failed: " +
                                     std::string(payload.substr(sizeof code)));
    segment_->post_failure(rank, reader.rest(), code);
    return;
  }
  if (topology_.rank == 0) {
    {
      const std::lock_guard<std::mutex> lock(inbox_mutex_);
      inbox_.push_back({rank, type, std::string(payload)});
    }
    inbox_size_.fetch_add(1, std::memory_order_release);
    segment_->ring(0);
    return;
  }
  log_backlog_.emplace_back(type, payload);
  if (type == Record::kExecute) stamp_execute(&log_backlog_.back().second, now_ns());
  drain_log_backlog();
}

bool Relay::drain_log_backlog() {
  bool wrote = false;
  while (!log_backlog_.empty()) {
    const auto& [type, payload] = log_backlog_.front();
    if (type == Record::kLeft) {
      const auto rank = Reader(payload).value<int32_t>();
      note_left(rank);
      if (topology_.host_of[rank] == topology_.host()) {
        const auto local = static_cast<uint32_t>(topology_.local_rank_of[rank]);
        segment_->block(local).left.store(1, std::memory_order_release);
      }
    }
    if (!segment_->write_log(type, payload)) break;
    log_backlog_.pop_front();
    wrote = true;
  }
  if (wrote) segment_->ring_all();
  return wrote;
}

void Relay::forward_up_rings() {
  if (!is_remote_agent()) return;
  Record type;
  std::string payload;
  for (uint32_t local = 0; local < segment_->shape().local_size; ++local) {
    while (segment_->read_up(local, &type, &payload)) {
      // A rank that leaves because the job has failed must not be heard of before the failure is.
      forward_failure();
      send(links_.front().get(), ranks_here_[local], type, payload);
    }
  }
}

void Relay::forward_failure() {
  if (failure_forwarded_ || !segment_->failed()) return;
  failure_forwarded_ = true;
  std::string payload;
  Writer(&payload).value(segment_->failure_code()).bytes(segment_->failure_text());
  for (auto& link : links_) send(link.get(), segment_->failed_rank(), Record::kFailure, payload);
}

bool Relay::take_inbox(InboxRecord* record) {
  if (!has_inbox()) return false;
  const std::lock_guard<std::mutex> lock(inbox_mutex_);
  *record = std::move(inbox_.front());
  inbox_.pop_front();
  inbox_size_.fetch_sub(1, std::memory_order_release);
  return true;
}

void Relay::send_to_hosts(Record type, std::string_view payload) {
  for (auto& link : links_) send(link.get(), 0, type, payload);
}

void Relay::send(Link* link, int32_t rank, Record type, std::string_view payload) {
  const WireFrame frame{static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(type), rank, 0};
  {
    const std::lock_guard<std::mutex> lock(link->mutex);
    if (link->broken) return;
    Writer(&link->unsent).value(frame).bytes(payload);
  }
  flush(link);
}

// Sends what the socket takes; the rest goes when epoll says that it takes more.
void Relay::flush(Link* link) {
  const std::lock_guard<std::mutex> lock(link->mutex);
  size_t sent = 0;
  while (sent < link->unsent.size()) {
    const ssize_t n = ::send(link->socket.get(), link->unsent.data() + sent, link->unsent.size() - sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;  // full, or broken: then the reading side notices
    sent += static_cast<size_t>(n);
  }
  link->unsent.erase(0, sent);
  if (link->broken) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (link->unsent.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT));
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].get() == link) event.data.u64 = kLinkTag | i;
  }
  if (sent > 0 || !link->unsent.empty()) epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->socket.get(), &event);
}

bool Relay::everything_sent() {
  if (!log_backlog_.empty() && !segment_->failed()) return false;
  if (!std::all_of(links_.begin(), links_.end(), [](auto& link) { return everything_sent(link.get()); }))
    return false;
  return failure_forwarded_ || !segment_->failed();
}

bool Relay::everything_sent(Link* link) {
  const std::lock_guard<std::mutex> lock(link->mutex);
  return link->unsent.empty();
}

}  // namespace sirtaki
