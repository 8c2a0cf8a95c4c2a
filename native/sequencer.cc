#include "sequencer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "engine_abi.h"

namespace sirtaki {
namespace {

std::string list_ranks(const std::vector<int32_t>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return out;
}

}  // namespace

Sequencer::Sequencer(int32_t size, int64_t fusion_threshold, size_t capacity)
    : size_(size),
      fusion_threshold_(fusion_threshold),
      capacity_(capacity),
      left_(static_cast<size_t>(size)),
      joined_(static_cast<size_t>(size)) {
  std::vector<int32_t> everybody(static_cast<size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  sets_.emplace(0, std::move(everybody));
}

void Sequencer::handle(int32_t rank, Record type, std::string_view payload) {
  if (rank < 0 || rank >= size_) throw std::runtime_error("a record came from a rank outside the job");
  switch (type) {
    case Record::kSubmit:
      submit(rank, payload);
      return;
    case Record::kInternName:
    case Record::kInternSignature: {
      const bool is_name = type == Record::kInternName;
      if (is_name ? is_known(&names_, Record::kAssignName, payload)
                  : is_known(&signatures_, Record::kAssignSignature, payload)) {
        return;
      }
      RareEvent event;
      event.kind = is_name ? RareEvent::Kind::kNewName : RareEvent::Kind::kNewSignature;
      event.rank = rank;
      event.bytes = payload;
      rare_.push_back(std::move(event));
      return;
    }
    case Record::kLeave:
      leave(rank);
      return;
    case Record::kJoin:
      join(rank);
      return;
    case Record::kForgotten:
      forgotten_by(rank);
      return;
    default:
      throw std::runtime_error("a rank sent a record that only the sequencer may send");
  }
}

void Sequencer::assign_name(std::string_view scoped_name) {
  if (names_.contains(scoped_name)) return;
  Reader reader(scoped_name);
  const auto process_set = reader.value<uint32_t>();
  // Asked for before the rank read that its set is gone, which has ended the request there.
  if (members(process_set) == nullptr) return;
  const uint32_t number = names_.add(scoped_name, {std::string(reader.rest()), process_set}, sequence_);
  LogEntry entry{Record::kAssignName, {}};
  Writer(&entry.payload).value(number).bytes(scoped_name);
  log_.push_back(std::move(entry));
  retire();
}

void Sequencer::assign_signature(std::string_view bytes) {
  if (signatures_.contains(bytes)) return;
  Signature s = decode_signature(bytes);
  std::string fuses_with = fusion_class(s);
  const uint32_t number = signatures_.add(bytes, {std::move(s), std::move(fuses_with)}, sequence_);
  LogEntry entry{Record::kAssignSignature, {}};
  Writer(&entry.payload).value(number).bytes(bytes);
  log_.push_back(std::move(entry));
  retire();
}

void Sequencer::post_error(Key key, int32_t rank, int32_t code, std::string_view text) {
  LogEntry entry{Record::kError, {}};
  Writer(&entry.payload).value(ErrorHeader{key, rank, code}).bytes(text);
  log_.push_back(std::move(entry));
}

void Sequencer::refuse(Key key, int32_t code, std::string_view text) {
  post_error(key, kEveryRank, code, text);
  --num_undecided_;
  end_join_when_due();
}

const std::vector<int32_t>* Sequencer::members(uint32_t process_set) const {
  const auto it = sets_.find(process_set);
  if (it != sets_.end()) return &it->second;
  if (process_set >= next_set_) throw std::runtime_error("a record names an unknown process set");
  return nullptr;
}

std::string Sequencer::describe(Key key) const {
  if (is_unnamed(key)) {
    const uint32_t set = unnamed_set(key);
    return "unnamed call " + std::to_string(unnamed_occurrence(key)) +
           (set == 0 ? "" : " of process set " + std::to_string(set));
  }
  const auto* name = names_.find(static_cast<uint32_t>(key));
  return name != nullptr ? name->facts.text : "unknown tensor";
}

void Sequencer::submit(int32_t rank, std::string_view bytes) {
  Reader reader(bytes);
  const auto record = reader.value<SubmitRecord>();
  if (left_[rank]) return;  // sent before the rank read its own LEFT entry, which has ended the request there
  auto* signature = signatures_.find(record.signature);
  auto* name = is_unnamed(record.key) ? nullptr : names_.find(static_cast<uint32_t>(record.key));
  const bool name_dropped = !is_unnamed(record.key) && name == nullptr;
  if (name_dropped && !names_.was_given(static_cast<uint32_t>(record.key))) {
    throw std::runtime_error("a record names an unknown tensor");
  }
  if (signature == nullptr) throw std::runtime_error("a record has an unknown signature");
  // A name is dropped with its process set, and the rank ends the request when it reads so.
  if (name_dropped) return;
  const uint32_t process_set = name != nullptr ? name->facts.process_set : unnamed_set(record.key);
  const std::vector<int32_t>* set = members(process_set);
  if (set == nullptr) return;  // likewise, of the removal of the set
  const std::vector<int32_t>& ranks = *set;
  const auto member = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (member == ranks.end() || *member != rank) {
    throw std::runtime_error("rank " + std::to_string(rank) + " submitted to a process set it is not in");
  }
  const auto index = static_cast<size_t>(member - ranks.begin());
  signature->last_use = sequence_;
  if (name != nullptr) name->last_use = sequence_;

  Pending& pending = pending_[record.key];
  if (pending.count == 0) {
    pending.serial = ++serial_;
    pending.process_set = process_set;
    pending.first_signature = record.signature;
    pending.signatures.assign(ranks.size(), 0);
    if (record.num_payloads > 0) pending.payloads.resize(ranks.size());
  }
  if (pending.signatures[index] != 0) {
    throw std::runtime_error("rank " + std::to_string(rank) + " submitted " + describe(record.key) +
                             " twice");
  }
  pending.signatures[index] = record.signature;
  lateness_.arrive(rank, &pending.arrivals);
  pending.disagrees |= record.signature != pending.first_signature;
  ++pending.count;
  if (record.num_payloads > 0 && !pending.disagrees) {
    auto& payload = pending.payloads[index];
    for (uint32_t i = 0; i < record.num_payloads; ++i) payload.push_back(reader.value<int64_t>());
  }
  if (is_complete(pending, ranks)) {
    complete(record.key, &pending);
    pending_.erase(record.key);
  } else if (num_left_ > 0) {
    const bool needs_left = std::any_of(ranks.begin(), ranks.end(), [this](int32_t r) { return left_[r]; });
    if (needs_left) {
      fail_for_left(record.key, pending);
      pending_.erase(record.key);
    }
  }
}

bool Sequencer::is_complete(const Pending& pending, const std::vector<int32_t>& ranks) const {
  if (pending.count == static_cast<int32_t>(ranks.size())) return true;
  if (num_joined_ == 0) return false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (pending.signatures[i] == 0 && !joined_[ranks[i]]) return false;
  }
  return true;
}

void Sequencer::complete(Key key, Pending* pending) {
  const std::vector<int32_t>& ranks = *members(pending->process_set);
  if (pending->disagrees) {
    RareEvent event;
    event.kind = RareEvent::Kind::kDisagreement;
    event.key = key;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (pending->signatures[i] == 0) continue;
      event.signatures.emplace_back(ranks[i], signatures_.find(pending->signatures[i])->bytes);
    }
    ++num_undecided_;
    rare_.push_back(std::move(event));
    return;
  }
  const Signature& s = signatures_.find(pending->first_signature)->facts.signature;
  Ready ready{key, pending->first_signature, pending->process_set, {}, {}, {}};
  ready.last = lateness_.complete(pending->arrivals);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (pending->signatures[i] == 0) ready.absent.push_back(ranks[i]);
  }
  if (!ready.absent.empty()) {
    const bool lacks_root = s.kind == SIRTAKI_BROADCAST &&
                            std::binary_search(ready.absent.begin(), ready.absent.end(), s.root_rank);
    if (lacks_root) return fail_for_joined(key, *pending, "as its root");
    const bool can_do_without = s.kind == SIRTAKI_ALLREDUCE || s.kind == SIRTAKI_ALLGATHER ||
                                s.kind == SIRTAKI_BROADCAST || s.kind == SIRTAKI_BARRIER;
    if (!can_do_without) return fail_for_joined(key, *pending, "because every rank has a part in it");
  }
  const size_t num_payloads = s.num_payloads(ranks.size());
  for (auto& payload : pending->payloads) {
    payload.resize(num_payloads);  // an absent member gives nothing
    ready.payloads.insert(ready.payloads.end(), payload.begin(), payload.end());
  }
  ready_.push_back(std::move(ready));
  // A change of the sets takes effect at its place in the log: nothing may be put in order around it later.
  if (s.kind == SIRTAKI_ADD_PROCESS_SET || s.kind == SIRTAKI_REMOVE_PROCESS_SET) plan();
}

void Sequencer::join(int32_t rank) {
  if (left_[rank]) return;
  if (joined_[rank]) throw std::runtime_error("rank " + std::to_string(rank) + " joined twice");
  if (num_left_ > 0) {
    std::vector<int32_t> gone;
    for (int32_t r = 0; r < size_; ++r) {
      if (left_[r]) gone.push_back(r);
    }
    post_error(kJoinKey, rank, SIRTAKI_RANK_LEFT,
               "join() cannot be completed: " + list_ranks(gone) + " shut down without joining");
    return;
  }
  joined_[rank] = true;
  ++num_joined_;
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (is_complete(it->second, *members(it->second.process_set))) {
      complete(it->first, &it->second);
      it = pending_.erase(it);
    } else {
      ++it;
    }
  }
  last_joined_ = rank;
  end_join_when_due();
}

// All have joined, and all that was in flight has ended in the log.
void Sequencer::end_join_when_due() {
  if (num_joined_ < size_ || num_undecided_ > 0) return;
  plan();
  joined_.assign(joined_.size(), false);
  num_joined_ = 0;
  LogEntry entry{Record::kJoined, {}};
  Writer(&entry.payload).value(last_joined_);
  log_.push_back(std::move(entry));
}

void Sequencer::leave(int32_t rank) {
  if (left_[rank]) return;
  // What is ready was complete before this rank left, so it still takes part in it: it reads the log up to
  // its own LEFT entry, which therefore must come after.
  plan();
  left_[rank] = true;
  ++num_left_;
  forgotten_by(rank);
  // Those who wait in join would wait for ever.
  for (int32_t r = 0; r < size_; ++r) {
    if (!joined_[r]) continue;
    post_error(kJoinKey, r, SIRTAKI_RANK_LEFT,
               "join() cannot be completed: rank " + std::to_string(rank) + " shut down without joining");
    joined_[r] = false;
  }
  num_joined_ = 0;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const std::vector<int32_t>& ranks = *members(it->second.process_set);
    if (std::binary_search(ranks.begin(), ranks.end(), rank)) {
      fail_for_left(it->first, it->second);
      it = pending_.erase(it);
    } else {
      ++it;
    }
  }
  LogEntry entry{Record::kLeft, {}};
  Writer(&entry.payload).value(rank);
  log_.push_back(std::move(entry));
}

void Sequencer::fail_for_left(Key key, const Pending& pending) {
  std::vector<int32_t> gone;
  for (int32_t r : *members(pending.process_set)) {
    if (left_[r]) gone.push_back(r);
  }
  post_to_submitters(key, pending, SIRTAKI_RANK_LEFT,
                     "'" + describe(key) + "' cannot be completed: " + list_ranks(gone) +
                         (gone.size() == 1 ? " has" : " have") +
                         " shut down and cannot take part any more. Make sure that all ranks call the same "
                         "collectives equally often; in fit, that they have equally many batches.");
}

void Sequencer::fail_for_joined(Key key, const Pending& pending, const char* why) {
  const std::vector<int32_t>& ranks = *members(pending.process_set);
  std::vector<int32_t> absent;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (pending.signatures[i] == 0) absent.push_back(ranks[i]);
  }
  post_to_submitters(key, pending, SIRTAKI_RANK_JOINED,
                     "'" + describe(key) + "' cannot be completed: it needs " + list_ranks(absent) +
                         ", which called join() and gives nothing any more, " + why +
                         ". Call it before any rank joins.");
}

void Sequencer::post_to_submitters(Key key, const Pending& pending, int32_t code, const std::string& text) {
  const std::vector<int32_t>& ranks = *members(pending.process_set);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (pending.signatures[i] != 0) post_error(key, ranks[i], code, text);
  }
}

void Sequencer::plan() {
  if (ready_.empty()) return;
  // Sets with the same absent members; the sets themselves are the groups without any.
  std::map<std::pair<uint32_t, std::vector<int32_t>>, uint32_t> groups;
  std::vector<ReadyTensor> tensors;
  tensors.reserve(ready_.size());
  for (const Ready& r : ready_) {
    uint32_t group = r.process_set;
    if (!r.absent.empty()) {
      const auto next = static_cast<uint32_t>(~groups.size());
      group = groups.try_emplace({r.process_set, r.absent}, next).first->second;
    }
    const SignatureFacts& s = signatures_.find(r.signature)->facts;
    tensors.push_back({group, s.signature.num_bytes(), &s.fusion_class});
  }
  for (const auto& batch : plan_fusion(tensors, fusion_threshold_)) execute(batch);
  ready_.clear();
}

void Sequencer::execute(const std::vector<size_t>& batch) {
  const Ready& first = ready_[batch.front()];
  const Signature& signature = signatures_.find(first.signature)->facts.signature;
  const bool about_sets =
      signature.kind == SIRTAKI_ADD_PROCESS_SET || signature.kind == SIRTAKI_REMOVE_PROCESS_SET;
  const std::vector<int64_t> payloads = about_sets ? change_sets(signature) : first.payloads;
  LogEntry entry{Record::kExecute, {}};
  Writer writer(&entry.payload);
  writer.value(ExecuteHeader{++sequence_, first.process_set, static_cast<uint32_t>(batch.size()),
                             static_cast<uint32_t>(payloads.size()),
                             static_cast<uint32_t>(first.absent.size()), lateness_.now_ns()});
  for (size_t i : batch) {
    const Ready& ready = ready_[i];
    writer.value(ExecuteItem{ready.key, ready.signature, ready.last.rank, ready.last.waited_ns});
  }
  for (int64_t value : payloads) writer.value(value);
  for (int32_t rank : first.absent) writer.value(rank);
  log_.push_back(std::move(entry));
}

std::vector<int64_t> Sequencer::change_sets(const Signature& signature) {
  if (signature.kind == SIRTAKI_ADD_PROCESS_SET) {
    const uint32_t number = next_set_++;
    sets_.emplace(number, std::vector<int32_t>(signature.values.begin(), signature.values.end()));
    return {number};
  }
  const auto number = static_cast<uint32_t>(signature.values.at(0));
  // Every rank ends its own requests in the set when it reads the entry.
  for (auto it = pending_.begin(); it != pending_.end();) {
    it = it->second.process_set == number ? pending_.erase(it) : std::next(it);
  }
  for (uint32_t name : names_.oldest(names_.size())) {
    if (names_.find(name)->facts.process_set == number) names_.drop(name);
  }
  sets_.erase(number);
  return {number};
}

template <typename Facts>
bool Sequencer::is_known(InternTable<Facts>* table, Record assign, std::string_view bytes) {
  const uint32_t number = table->number_of(bytes);
  if (number == 0) return false;
  auto* entry = table->find(number);
  // Unless it is retired, its ASSIGN entry is in the log, where the asking rank will meet it.
  if (!entry->retired) return true;
  entry->retired = false;
  entry->last_use = sequence_;
  LogEntry out{assign, {}};
  Writer(&out.payload).value(number).bytes(bytes);
  log_.push_back(std::move(out));
  return true;
}

// Forgets the names and signatures unused for longest, in rounds: the log tells the ranks to forget a number,
// each confirms that, and then it is dropped here. In between the number still counts: a rank may have
// submitted under it before it read the entry, and whoever asks for the same bytes again gets the same number
// again. So the ranks never speak of one tensor by two numbers, and no submission is lost.
void Sequencer::retire() {
  const bool too_many = names_.size() > capacity_ || signatures_.size() > capacity_;
  if (!too_many || num_to_forget_ > 0) return;
  const auto pick = [this](auto* table, std::vector<uint32_t>* retired, Record record) {
    if (table->size() <= capacity_) return;
    for (uint32_t number : table->oldest(table->size() - capacity_ + (capacity_ + 3) / 4)) {
      auto* entry = table->find(number);
      // The newest stay: somebody waits for the number that was just given.
      if (entry->last_use == sequence_) continue;
      entry->retired = true;
      retired->push_back(number);
      LogEntry out{record, {}};
      Writer(&out.payload).value(number).bytes(entry->bytes);
      log_.push_back(std::move(out));
    }
  };
  pick(&names_, &retired_names_, Record::kForgetName);
  pick(&signatures_, &retired_signatures_, Record::kForgetSignature);
  if (retired_names_.empty() && retired_signatures_.empty()) return;
  log_.push_back({Record::kForgetMark, {}});
  has_forgotten_ = left_;
  num_to_forget_ = size_ - num_left_;
}

void Sequencer::forgotten_by(int32_t rank) {
  if (num_to_forget_ == 0 || has_forgotten_[rank]) return;
  has_forgotten_[rank] = true;
  if (--num_to_forget_ == 0) drop_retired();
}

void Sequencer::drop_retired() {
  std::set<uint32_t> names_in_use;
  std::set<uint32_t> signatures_in_use;
  for (const auto& [key, pending] : pending_) {
    if (!is_unnamed(key)) names_in_use.insert(static_cast<uint32_t>(key));
    signatures_in_use.insert(pending.signatures.begin(), pending.signatures.end());
  }
  for (const Ready& ready : ready_) {
    if (!is_unnamed(ready.key)) names_in_use.insert(static_cast<uint32_t>(ready.key));
    signatures_in_use.insert(ready.signature);
  }
  const auto drop = [this](auto* table, std::vector<uint32_t>* retired, const std::set<uint32_t>& in_use) {
    for (uint32_t number : *retired) {
      const auto* entry = table->find(number);
      // Names of disagreements are still to be told.
      const bool stays =
          entry == nullptr || !entry->retired || in_use.count(number) != 0 || num_undecided_ > 0;
      if (!stays) table->drop(number);
    }
    retired->clear();
  };
  drop(&names_, &retired_names_, names_in_use);
  drop(&signatures_, &retired_signatures_, signatures_in_use);
}

std::vector<Incomplete> Sequencer::incomplete() const {
  std::vector<Incomplete> all;
  for (const auto& [key, pending] : pending_) {
    Incomplete& entry = all.emplace_back(Incomplete{pending.serial, describe(key), {}, {}});
    const std::vector<int32_t>& ranks = *members(pending.process_set);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (pending.signatures[i] != 0) {
        entry.submitted.push_back(ranks[i]);
      } else if (!joined_[ranks[i]]) {
        entry.missing.push_back(ranks[i]);
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.serial < b.serial; });
  return all;
}

LogEntry Sequencer::take_entry() {
  LogEntry entry = std::move(log_.front());
  log_.pop_front();
  return entry;
}

RareEvent Sequencer::take_rare_event() {
  RareEvent event = std::move(rare_.front());
  rare_.pop_front();
  return event;
}

}  // namespace sirtaki
