// One thread per process that watches the peers' lives and, on each host's agent, carries the control plane
// between hosts.
//
// It sleeps in epoll on sockets, so that a peer's death is noticed at once, whatever the engine's driver
// does:
//   * every rank watches the agent of its host, the agent watches all local ranks (by socket, and by pidfd,
//     which a forked child that inherited the socket cannot keep alive);
//   * rank 0's relay has a TCP connection to each other host's agent. Up records of a remote host arrive here
//     and wait in the inbox for the sequencer; log entries go out to all hosts.
// A failure that appears on a host's failure board is passed on to all other hosts.
//
// The same pairs watch each other for silence (see heartbeat.h): within a host a count in the rank's block
// tells that its relay thread runs, between hosts a frame does, or any other bytes. A peer that is silent for
// too long has a failure posted in its name. That costs a relay thread eight wake-ups per limit.
#ifndef SIRTAKI_RELAY_H_
#define SIRTAKI_RELAY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "heartbeat.h"
#include "messages.h"
#include "platform.h"
#include "segment.h"
#include "topology.h"

namespace sirtaki {

// What the relay is given at start; file descriptors become its own.
struct RelayLinks {
  struct Peer {
    int32_t rank;
    FileDescriptor socket;
    FileDescriptor pidfd;  // may be invalid where the kernel or a container does not give one
    Heartbeat::Pulse pulse{};
  };
  struct Host {
    int32_t agent;  // global rank at the other end
    FileDescriptor socket;
  };
  std::vector<Peer> peers;
  std::vector<Host> hosts;  // on rank 0: all other hosts; on other agents: host 0
};

struct InboxRecord {
  int32_t rank;
  Record type;
  std::string payload;
};

class Relay {
 public:
  // `doorbell`: the eventfd with which the ranks of this host wake their agent's relay (theirs to signal, the
  // agent's to read). `labels`: how errors speak of each global rank. `unresponsive_ns`: how long a peer may
  // be silent, 0: for ever; the same on all ranks.
  Relay(const Topology& topology, Segment* segment, RelayLinks links, FileDescriptor doorbell,
        std::vector<std::string> labels, int64_t unresponsive_ns);
  ~Relay();

  // Signals the agent of this host that an up ring has records, the log has room, or the board a failure.
  void knock();

  // Rank 0 only.
  bool has_inbox() const { return inbox_size_.load(std::memory_order_acquire) != 0; }
  bool take_inbox(InboxRecord* record);
  void send_to_hosts(Record type, std::string_view payload);
  void note_left(int32_t rank);

  // In a forked child, which has no relay thread: closes its copies of the descriptors.
  void abandon_after_fork();

  // Waits until everything queued, and a failure if there is one, is on its way; then ends the thread.
  void stop();

 private:
  struct Link {
    int32_t agent;
    FileDescriptor socket;
    std::string received;
    uint64_t times_heard = 0;
    Heartbeat::Pulse pulse;
    std::mutex mutex;  // guards what follows: the driver and the relay thread both send
    std::string unsent;
    bool broken = false;
  };

  bool is_agent() const { return topology_.local_rank() == 0; }
  bool is_remote_agent() const { return is_agent() && topology_.host() != 0; }
  void watch(int fd, uint64_t tag, uint32_t events);
  void loop();
  void on_peer_gone(size_t peer);
  void on_link_readable(Link* link);
  void on_link_closed(Link* link, int error);
  void on_frame(int32_t rank, Record type, std::string_view payload);
  void forward_up_rings();
  bool drain_log_backlog();  // whether it wrote any
  void forward_failure();
  int idle_ms() const;
  void beat();
  bool may_go(const RelayLinks::Peer& peer) const;
  bool may_go(const Link& link) const;
  void report_death(int32_t rank);
  void report_silence(int32_t rank);
  void send(Link* link, int32_t rank, Record type, std::string_view payload);
  void flush(Link* link);
  bool everything_sent();
  static bool everything_sent(Link* link);
  bool host_has_left(int32_t host) const;

  Topology topology_;
  std::vector<int32_t> ranks_here_;  // global ranks of this host, by local rank
  Segment* segment_;
  std::vector<RelayLinks::Peer> peers_;
  std::vector<std::unique_ptr<Link>> links_;
  FileDescriptor doorbell_;
  FileDescriptor stop_event_;
  FileDescriptor epoll_;
  std::vector<std::string> labels_;
  std::vector<std::atomic<bool>> left_;  // by global rank

  std::mutex inbox_mutex_;
  std::deque<InboxRecord> inbox_;
  std::atomic<size_t> inbox_size_{0};

  std::deque<std::pair<Record, std::string>> log_backlog_;  // remote agents: entries that found the log full
  bool failure_forwarded_ = false;
  Heartbeat heartbeat_;
  std::thread thread_;
};

}  // namespace sirtaki

#endif  // SIRTAKI_RELAY_H_
