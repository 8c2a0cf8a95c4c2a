#include "sequencer.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "engine_abi.h"
#include "signature.h"

namespace sirtaki {

Sequencer::Sequencer(int32_t size, int64_t fusion_threshold)
    : size_(size),
      fusion_threshold_(fusion_threshold),
      sets_(1),
      left_(static_cast<size_t>(size)),
      names_(1),
      signatures_(1) {
  sets_[0].resize(static_cast<size_t>(size));
  std::iota(sets_[0].begin(), sets_[0].end(), 0);
}

void Sequencer::handle(int32_t rank, Record type, std::string_view payload) {
  if (rank < 0 || rank >= size_) throw std::runtime_error("a record came from a rank outside the job");
  switch (type) {
    case Record::kSubmit:
      submit(rank, Reader(payload).value<SubmitRecord>());
      return;
    case Record::kInternName:
    case Record::kInternSignature: {
      const bool is_name = type == Record::kInternName;
      auto& numbers = is_name ? name_numbers_ : signature_numbers_;
      // Known already: its ASSIGN entry is in the log, where the asking rank will meet it.
      if (numbers.count(std::string(payload)) != 0) return;
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
    default:
      throw std::runtime_error("a rank sent a record that only the sequencer may send");
  }
}

void Sequencer::assign_name(std::string_view scoped_name) {
  const auto number = static_cast<uint32_t>(names_.size());
  if (!name_numbers_.try_emplace(std::string(scoped_name), number).second) return;
  Reader reader(scoped_name);
  const auto process_set = reader.value<uint32_t>();
  names_.push_back({std::string(reader.rest()), process_set});
  LogEntry entry{Record::kAssignName, {}};
  Writer(&entry.payload).value(number).bytes(scoped_name);
  log_.push_back(std::move(entry));
}

void Sequencer::assign_signature(std::string_view bytes) {
  const auto number = static_cast<uint32_t>(signatures_.size());
  if (!signature_numbers_.try_emplace(std::string(bytes), number).second) return;
  const Signature s = decode_signature(bytes);
  signatures_.push_back({std::string(bytes), fusion_class(s), s.num_bytes(), s.kind == SIRTAKI_ALLGATHER});
  LogEntry entry{Record::kAssignSignature, {}};
  Writer(&entry.payload).value(number).bytes(bytes);
  log_.push_back(std::move(entry));
}

void Sequencer::post_error(Key key, int32_t rank, int32_t code, std::string_view text) {
  LogEntry entry{Record::kError, {}};
  Writer(&entry.payload).value(ErrorHeader{key, rank, code}).bytes(text);
  log_.push_back(std::move(entry));
}

const std::vector<int32_t>& Sequencer::members(uint32_t process_set) const {
  if (process_set >= sets_.size()) throw std::runtime_error("a record names an unknown process set");
  return sets_[process_set];
}

uint32_t Sequencer::set_of(Key key) const {
  if (is_unnamed(key)) return unnamed_set(key);
  if (key == 0 || key >= names_.size()) throw std::runtime_error("a record names an unknown tensor");
  return names_[key].process_set;
}

std::string Sequencer::describe(Key key) const {
  if (is_unnamed(key)) return "unnamed call " + std::to_string(unnamed_occurrence(key));
  return key != 0 && key < names_.size() ? names_[key].text : "unknown tensor";
}

void Sequencer::submit(int32_t rank, const SubmitRecord& record) {
  if (record.signature == 0 || record.signature >= signatures_.size()) {
    throw std::runtime_error("a record has an unknown signature");
  }
  if (left_[rank]) return;  // sent before the rank read its own LEFT entry, which has ended the request there
  const uint32_t process_set = set_of(record.key);
  const std::vector<int32_t>& ranks = members(process_set);
  const auto member = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (member == ranks.end() || *member != rank) {
    throw std::runtime_error("rank " + std::to_string(rank) + " submitted to a process set it is not in");
  }
  const auto index = static_cast<size_t>(member - ranks.begin());

  Pending& pending = pending_[record.key];
  if (pending.count == 0) {
    pending.serial = ++serial_;
    pending.process_set = process_set;
    pending.first_signature = record.signature;
    pending.signatures.assign(ranks.size(), 0);
    pending.rows.assign(ranks.size(), 0);
  }
  if (pending.signatures[index] != 0) {
    throw std::runtime_error("rank " + std::to_string(rank) + " submitted " + describe(record.key) +
                             " twice");
  }
  pending.signatures[index] = record.signature;
  pending.rows[index] = record.rows;
  pending.disagrees |= record.signature != pending.first_signature;
  if (++pending.count == static_cast<int32_t>(ranks.size())) {
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

void Sequencer::complete(Key key, Pending* pending) {
  if (!pending->disagrees) {
    ready_.push_back({key, pending->first_signature, pending->process_set, std::move(pending->rows)});
    return;
  }
  RareEvent event;
  event.kind = RareEvent::Kind::kDisagreement;
  event.key = key;
  const std::vector<int32_t>& ranks = members(pending->process_set);
  for (size_t i = 0; i < ranks.size(); ++i) {
    event.signatures.emplace_back(ranks[i], signatures_[pending->signatures[i]].bytes);
  }
  rare_.push_back(std::move(event));
}

void Sequencer::leave(int32_t rank) {
  if (left_[rank]) return;
  // What is ready was complete before this rank left, so it still takes part in it: it reads the log up to
  // its own LEFT entry, which therefore must come after.
  plan();
  left_[rank] = true;
  ++num_left_;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const std::vector<int32_t>& ranks = members(it->second.process_set);
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
  const std::vector<int32_t>& ranks = members(pending.process_set);
  std::string who;
  int num_gone = 0;
  for (int32_t r : ranks) {
    if (left_[r]) who += (num_gone++ == 0 ? "" : ", ") + std::to_string(r);
  }
  const std::string text = "'" + describe(key) + "' cannot be completed: " +
                           (num_gone == 1 ? "rank " + who + " has" : "ranks " + who + " have") +
                           " shut down and cannot take part any more. Make sure that all ranks call the same "
                           "collectives equally often; in fit, that they have equally many batches.";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (pending.signatures[i] != 0) post_error(key, ranks[i], SIRTAKI_RANK_LEFT, text);
  }
}

void Sequencer::plan() {
  if (ready_.empty()) return;
  std::vector<ReadyTensor> tensors;
  tensors.reserve(ready_.size());
  for (const Ready& r : ready_) {
    const Signed& s = signatures_[r.signature];
    tensors.push_back({r.process_set, s.num_bytes, &s.fusion_class});
  }
  for (const auto& batch : plan_fusion(tensors, fusion_threshold_)) execute(batch);
  ready_.clear();
}

void Sequencer::execute(const std::vector<size_t>& batch) {
  const Ready& first = ready_[batch.front()];
  const bool gathers = signatures_[first.signature].gathers;
  LogEntry entry{Record::kExecute, {}};
  Writer writer(&entry.payload);
  writer.value(ExecuteHeader{++sequence_, first.process_set, static_cast<uint32_t>(batch.size()),
                             gathers ? static_cast<uint32_t>(first.rows.size()) : 0, 0});
  for (size_t i : batch) writer.value(ExecuteItem{ready_[i].key, ready_[i].signature, 0});
  if (gathers) {
    for (int64_t rows : first.rows) writer.value(rows);
  }
  log_.push_back(std::move(entry));
}

std::vector<Incomplete> Sequencer::incomplete() const {
  std::vector<Incomplete> all;
  for (const auto& [key, pending] : pending_) {
    Incomplete& entry = all.emplace_back(Incomplete{pending.serial, describe(key), {}, {}});
    const std::vector<int32_t>& ranks = members(pending.process_set);
    for (size_t i = 0; i < ranks.size(); ++i) {
      (pending.signatures[i] != 0 ? entry.submitted : entry.missing).push_back(ranks[i]);
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
