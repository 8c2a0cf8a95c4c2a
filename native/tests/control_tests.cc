// The control plane's pure parts: messages, signatures, pieces, fusion, sequencer. The rules between many
// ranks are tested at length in tests/control_plane_simulation.py.
#include <string>
#include <vector>

#include "../fusion.h"
#include "../messages.h"
#include "../pieces.h"
#include "../sequencer.h"
#include "../signature.h"
#include "check.h"

namespace sirtaki::testing {
namespace {

void messages_keep_values_and_refuse_what_is_cut_short() {
  std::string bytes;
  Writer(&bytes).value(int32_t{-7}).value(uint64_t{1} << 40).bytes("text");
  Reader reader(bytes);
  expect_equal(reader.value<int32_t>(), -7);
  expect_equal(reader.value<uint64_t>(), uint64_t{1} << 40);
  expect_equal(reader.rest(), "text");
  expect_equal(reader.rest(), "");
  expect_throws<std::runtime_error>([&] { reader.value<char>(); });
  for (size_t n = 0; n < sizeof(SubmitRecord); ++n) {
    expect_throws<std::runtime_error>([&] { Reader(std::string(n, 'x')).value<SubmitRecord>(); });
  }
}

void keys_of_unnamed_calls_hold_set_and_occurrence() {
  for (uint32_t set : {0u, 1u, 9999u, (1u << 23) - 1}) {
    for (uint64_t occurrence : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << kUnnamedSetShift) - 1}) {
      const Key key = unnamed_key(set, occurrence);
      expect(is_unnamed(key), "is_unnamed(key)");
      expect_equal(unnamed_set(key), set);
      expect_equal(unnamed_occurrence(key), occurrence);
    }
  }
  expect(!is_unnamed(Key{1} << 62), "a number of a name is none of an unnamed call");
}

sirtaki_request request_of(int32_t kind, const std::vector<sirtaki_tensor>& tensors) {
  sirtaki_request request{};
  request.kind = kind;
  request.reduce_op = SIRTAKI_SUM;
  request.dtype = SIRTAKI_FLOAT32;
  request.root_rank = 3;
  request.prescale_factor = 0.5;
  request.postscale_factor = 2.0;
  request.tensors = tensors.data();
  request.num_tensors = static_cast<int32_t>(tensors.size());
  return request;
}

void signatures_hold_what_must_agree_and_no_more() {
  const int64_t dims[] = {4, 5};
  const std::vector<sirtaki_tensor> tensors{
      {nullptr, nullptr, dims, 2}, {nullptr, nullptr, dims, 1}, {nullptr, nullptr, dims, 0}};
  const Signature reduced = decode_signature(encode_signature(request_of(SIRTAKI_ALLREDUCE, tensors)));
  expect_equal(reduced.kind, SIRTAKI_ALLREDUCE);
  expect_equal(reduced.reduce_op, SIRTAKI_SUM);
  expect_equal(reduced.root_rank, 0);
  expect_equal(reduced.prescale_factor, 0.5);
  expect_equal(reduced.postscale_factor, 2.0);
  expect_equal(reduced.shapes, std::vector<std::vector<int64_t>>{{4, 5}, {4}, {}});
  expect_equal(reduced.num_bytes(), int64_t{25 * 4});
  expect(!fusion_class(reduced).empty(), "an allreduce may be fused");

  const Signature gathered = decode_signature(encode_signature(request_of(SIRTAKI_ALLGATHER, {tensors[0]})));
  expect_equal(gathered.shapes, std::vector<std::vector<int64_t>>{{-1, 5}});
  expect_equal(gathered.prescale_factor, 1.0);
  expect_equal(fusion_class(gathered), "");
  const Signature sent = decode_signature(encode_signature(request_of(SIRTAKI_BROADCAST, {tensors[0]})));
  expect_equal(sent.root_rank, 3);

  const std::string bytes = encode_signature(request_of(SIRTAKI_ALLREDUCE, tensors));
  for (size_t n = 0; n < bytes.size(); ++n) {
    expect_throws<std::runtime_error>([&] { decode_signature(std::string_view(bytes).substr(0, n)); });
  }
}

void pieces_are_one_run_of_bytes_however_it_is_cut() {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t step = 1; step <= text.size(); ++step) {
    std::vector<std::string> inputs;
    for (size_t at = 0, n = 0; at < text.size(); at += n++) inputs.push_back(text.substr(at, n));
    std::vector<std::string> outputs;
    for (const std::string& input : inputs) outputs.emplace_back(input.size(), '?');
    std::vector<Piece> pieces;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].empty()) pieces.push_back({inputs[i].data(), outputs[i].data(), inputs[i].size()});
    }
    PieceCursor in(&pieces);
    PieceCursor out(&pieces);
    for (size_t at = 0; at < text.size(); at += step) {
      std::string part(std::min(step, text.size() - at), '?');
      in.copy_inputs_to(part.data(), part.size());
      expect_equal(part, text.substr(at, part.size()));
      out.copy_to_outputs(part.data(), part.size());
    }
    expect_equal(outputs, inputs);
  }
}

void fusion_keeps_to_class_set_and_threshold() {
  const std::string a = "a";
  const std::string b = "b";
  const std::string alone;
  const std::vector<ReadyTensor> ready{{0, 6, &a}, {0, 6, &b}, {0, 4, &a},     {1, 1, &a},
                                       {0, 1, &a}, {0, 9, &b}, {0, 1, &alone}, {0, 99, &a}};
  const std::vector<std::vector<size_t>> expected{{0, 2}, {1}, {3}, {4}, {5}, {6}, {7}};
  expect_equal(plan_fusion(ready, 10), expected);
  expect_equal(plan_fusion({}, 10), std::vector<std::vector<size_t>>{});
  expect_equal(plan_fusion({ready[0]}, 0), std::vector<std::vector<size_t>>{{0}});
}

// A sequencer of two ranks with the names "a", "b" (1, 2) and one signature (1).
struct Sequenced {
  explicit Sequenced(int32_t size = 2) : sequencer(size, 1 << 20, 1 << 20) {
    const int64_t dims[] = {4};
    const std::vector<sirtaki_tensor> tensors{{nullptr, nullptr, dims, 1}};
    sequencer.assign_name(scoped_name(0, "a"));
    sequencer.assign_name(scoped_name(0, "b"));
    sequencer.assign_signature(encode_signature(request_of(SIRTAKI_ALLREDUCE, tensors)));
    sequencer.assign_signature(encode_signature(request_of(SIRTAKI_BROADCAST, tensors)));
    while (sequencer.has_entry()) sequencer.take_entry();
  }
  void submit(int32_t rank, Key key, uint32_t signature = 1) {
    std::string payload;
    Writer(&payload).value(SubmitRecord{key, signature, 0});
    sequencer.handle(rank, Record::kSubmit, payload);
  }
  Sequencer sequencer;
};

void sequencer_executes_what_all_have_submitted() {
  Sequenced s;
  s.submit(0, 1);
  s.submit(0, 2);
  s.submit(1, 2);
  s.sequencer.plan();
  if (!expect(s.sequencer.has_entry(), "'b' is complete")) return;
  const LogEntry entry = s.sequencer.take_entry();
  expect_equal(entry.type, Record::kExecute);
  Reader reader(entry.payload);
  const auto header = reader.value<ExecuteHeader>();
  expect_equal(header.sequence, uint64_t{1});
  expect_equal(header.num_items, 1u);
  expect_equal(reader.value<ExecuteItem>().key, Key{2});
  expect(!s.sequencer.has_entry(), "'a' is not complete");
  const std::vector<Incomplete> waiting = s.sequencer.incomplete();
  if (!expect_equal(waiting.size(), size_t{1})) return;
  expect_equal(waiting[0].name, "a");
  expect_equal(waiting[0].missing, std::vector<int32_t>{1});
}

void sequencer_hands_out_a_disagreement_once() {
  Sequenced s;
  s.submit(0, 1, 1);
  s.submit(1, 1, 2);
  s.sequencer.plan();
  expect(!s.sequencer.has_entry(), "nothing is executed");
  if (!expect(s.sequencer.has_rare_event(), "a disagreement is to be decided")) return;
  const RareEvent event = s.sequencer.take_rare_event();
  expect_equal(event.kind, RareEvent::Kind::kDisagreement);
  expect_equal(event.key, Key{1});
  expect_equal(event.signatures.size(), size_t{2});
  expect(!s.sequencer.has_rare_event(), "once");
}

void sequencer_refuses_records_that_break_the_protocol() {
  Sequenced s;
  expect_throws<std::runtime_error>([&] { s.submit(2, 1); });
  expect_throws<std::runtime_error>([&] { s.submit(-1, 1); });
  expect_throws<std::runtime_error>([&] { s.submit(0, 3); });
  expect_throws<std::runtime_error>([&] { s.submit(0, 1, 3); });
  expect_throws<std::runtime_error>([&] { s.submit(0, unnamed_key(7, 0)); });
  expect_throws<std::runtime_error>([&] { s.sequencer.handle(0, Record::kSubmit, "short"); });
  expect_throws<std::runtime_error>([&] { s.sequencer.handle(0, Record::kExecute, ""); });
  s.submit(0, 1);
  expect_throws<std::runtime_error>([&] { s.submit(0, 1); });
}

}  // namespace

void add_control_tests(Suite* suite) {
  suite->add("messages keep values and refuse what is cut short",
             messages_keep_values_and_refuse_what_is_cut_short);
  suite->add("keys of unnamed calls hold set and occurrence", keys_of_unnamed_calls_hold_set_and_occurrence);
  suite->add("signatures hold what must agree and no more", signatures_hold_what_must_agree_and_no_more);
  suite->add("pieces are one run of bytes however it is cut", pieces_are_one_run_of_bytes_however_it_is_cut);
  suite->add("fusion keeps to class, set and threshold", fusion_keeps_to_class_set_and_threshold);
  suite->add("sequencer executes what all have submitted", sequencer_executes_what_all_have_submitted);
  suite->add("sequencer hands out a disagreement once", sequencer_hands_out_a_disagreement_once);
  suite->add("sequencer refuses records that break the protocol",
             sequencer_refuses_records_that_break_the_protocol);
}

}  // namespace sirtaki::testing
