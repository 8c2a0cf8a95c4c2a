// What the thread that drives the engine does while it waits long for a peer in the midst of a batch.
//
// It cannot leave a batch half done, but a person who presses Ctrl-C while a peer is stopped must be heard.
// The engine knows nothing of that: a caller that drives may give an action, the waits of the data plane run
// it several times a second, and what it does to end the wait is to fail the job.
#ifndef SIRTAKI_LONG_WAIT_H_
#define SIRTAKI_LONG_WAIT_H_

#include <functional>

namespace sirtaki {

using LongWaitAction = std::function<void()>;

// Belongs to the holder of the engine's role, like the data plane itself.
class LongWait {
 public:
  // nullptr: nothing.
  void set_action(const LongWaitAction* action) { action_ = action; }
  void happens() const {
    if (action_ != nullptr) (*action_)();
  }

 private:
  const LongWaitAction* action_ = nullptr;
};

}  // namespace sirtaki

#endif  // SIRTAKI_LONG_WAIT_H_
