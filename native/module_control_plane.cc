#include "module_control_plane.h"

#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine_abi.h"
#include "fusion.h"
#include "kernels.h"
#include "messages.h"
#include "signature.h"

namespace py = pybind11;

namespace sirtaki {
namespace {

py::dict describe_signature(const py::bytes& bytes) {
  const Signature s = decode_signature(std::string_view(bytes));
  py::dict out;
  out["kind"] = s.kind;
  out["reduce_op"] = s.reduce_op;
  out["dtype"] = s.dtype;
  out["root_rank"] = s.root_rank;
  out["prescale_factor"] = s.prescale_factor;
  out["postscale_factor"] = s.postscale_factor;
  out["shapes"] = s.shapes;
  out["values"] = s.values;
  return out;
}

py::tuple log_entry_as_tuple(const LogEntry& entry) {
  Reader reader(entry.payload);
  switch (entry.type) {
    case Record::kAssignName:
    case Record::kAssignSignature: {
      const auto number = reader.value<uint32_t>();
      return py::make_tuple(entry.type == Record::kAssignName ? "assign_name" : "assign_signature", number,
                            py::bytes(std::string(reader.rest())));
    }
    case Record::kExecute: {
      const auto header = reader.value<ExecuteHeader>();
      std::vector<Key> keys;
      for (uint32_t i = 0; i < header.num_items; ++i) keys.push_back(reader.value<ExecuteItem>().key);
      std::vector<int64_t> payloads;
      for (uint32_t i = 0; i < header.num_payloads; ++i) payloads.push_back(reader.value<int64_t>());
      std::vector<int32_t> absent;
      for (uint32_t i = 0; i < header.num_absent; ++i) absent.push_back(reader.value<int32_t>());
      return py::make_tuple("execute", header.sequence, keys, payloads, header.process_set, absent);
    }
    case Record::kError: {
      const auto header = reader.value<ErrorHeader>();
      return py::make_tuple("error", header.key, header.rank, header.code, std::string(reader.rest()));
    }
    case Record::kLeft:
      return py::make_tuple("left", reader.value<int32_t>());
    case Record::kJoined:
      return py::make_tuple("joined", reader.value<int32_t>());
    case Record::kForgetMark:
      return py::make_tuple("forget_mark");
    case Record::kForgetName:
    case Record::kForgetSignature: {
      const auto number = reader.value<uint32_t>();
      return py::make_tuple(entry.type == Record::kForgetName ? "forget_name" : "forget_signature", number,
                            py::bytes(std::string(reader.rest())));
    }
    default:
      throw std::runtime_error("not a log entry");
  }
}

}  // namespace

py::dict rare_event_as_dict(const RareEvent& event) {
  py::dict out;
  switch (event.kind) {
    case RareEvent::Kind::kNewName:
      out["kind"] = "new_name";
      break;
    case RareEvent::Kind::kNewSignature:
      out["kind"] = "new_signature";
      break;
    case RareEvent::Kind::kDisagreement:
      out["kind"] = "disagreement";
      break;
  }
  out["rank"] = event.rank;
  out["bytes"] = py::bytes(event.bytes);
  out["key"] = event.key;
  py::list signatures;
  for (const auto& [rank, bytes] : event.signatures)
    signatures.append(py::make_tuple(rank, py::bytes(bytes)));
  out["signatures"] = signatures;
  return out;
}

py::list incomplete_as_list(const std::vector<Incomplete>& all) {
  py::list out;
  for (const Incomplete& i : all) out.append(py::make_tuple(i.serial, i.name, i.submitted, i.missing));
  return out;
}

void bind_control_plane(py::module_* module) {
  py::module_& m = *module;
  // For tests: the state machine alone, without an engine around it.
  py::class_<Sequencer>(m, "Sequencer")
      .def(py::init<int32_t, int64_t, size_t>(), py::arg("size"), py::arg("fusion_threshold"),
           py::arg("capacity") = size_t{1} << 20)
      .def("intern_name", [](Sequencer& s, int32_t rank,
                             const std::string& bytes) { s.handle(rank, Record::kInternName, bytes); })
      .def("intern_signature",
           [](Sequencer& s, int32_t rank, const std::string& bytes) {
             s.handle(rank, Record::kInternSignature, bytes);
           })
      .def(
          "submit",
          [](Sequencer& s, int32_t rank, Key key, uint32_t signature, const std::vector<int64_t>& payloads) {
            std::string record;
            Writer writer(&record);
            writer.value(SubmitRecord{key, signature, static_cast<uint32_t>(payloads.size())});
            for (int64_t value : payloads) writer.value(value);
            s.handle(rank, Record::kSubmit, record);
          },
          py::arg("rank"), py::arg("key"), py::arg("signature"), py::arg("payloads") = std::vector<int64_t>{})
      .def("forgotten", [](Sequencer& s, int32_t rank) { s.handle(rank, Record::kForgotten, {}); })
      .def("join", [](Sequencer& s, int32_t rank) { s.handle(rank, Record::kJoin, {}); })
      .def("refuse",
           [](Sequencer& s, Key key, int32_t code, const std::string& text) { s.refuse(key, code, text); })
      .def("leave", [](Sequencer& s, int32_t rank) { s.handle(rank, Record::kLeave, {}); })
      .def("assign_name", [](Sequencer& s, const std::string& name) { s.assign_name(name); })
      .def("assign_signature", [](Sequencer& s, const std::string& bytes) { s.assign_signature(bytes); })
      .def("plan", &Sequencer::plan)
      .def("describe", &Sequencer::describe)
      .def("all_left", &Sequencer::all_left)
      .def("incomplete", [](const Sequencer& s) { return incomplete_as_list(s.incomplete()); })
      .def("take_log",
           [](Sequencer& s) {
             py::list out;
             while (s.has_entry()) out.append(log_entry_as_tuple(s.take_entry()));
             return out;
           })
      .def("take_rare_events", [](Sequencer& s) {
        py::list out;
        while (s.has_rare_event()) out.append(rare_event_as_dict(s.take_rare_event()));
        return out;
      });
  m.def("describe_signature", &describe_signature);
  m.def("scoped_name",
        [](uint32_t set, const std::string& name) { return py::bytes(scoped_name(set, name)); });
  m.def("unnamed_key", &unnamed_key);
  m.def("is_reducible", &is_reducible, py::arg("dtype"), py::arg("reduce_op"));
  m.def(
      "encode_signature",
      [](int32_t kind, int32_t reduce_op, int32_t dtype, int32_t root_rank, double prescale, double postscale,
         const std::vector<std::vector<int64_t>>& shapes, const std::vector<int64_t>& values) {
        std::vector<sirtaki_tensor> tensors;
        for (const auto& s : shapes)
          tensors.push_back({nullptr, nullptr, s.data(), static_cast<int32_t>(s.size())});
        sirtaki_request request{};
        request.kind = kind;
        request.reduce_op = reduce_op;
        request.dtype = dtype;
        request.root_rank = root_rank;
        request.prescale_factor = prescale;
        request.postscale_factor = postscale;
        request.tensors = tensors.data();
        request.num_tensors = static_cast<int32_t>(tensors.size());
        request.values = values.data();
        request.num_values = static_cast<int32_t>(values.size());
        return py::bytes(encode_signature(request));
      },
      py::arg("kind"), py::arg("reduce_op"), py::arg("dtype"), py::arg("root_rank"), py::arg("prescale"),
      py::arg("postscale"), py::arg("shapes"), py::arg("values") = std::vector<int64_t>{});
  m.def("plan_fusion",
        [](const std::vector<std::tuple<uint32_t, int64_t, std::string>>& ready, int64_t threshold) {
          std::vector<ReadyTensor> tensors;
          for (const auto& [set, bytes, cls] : ready) tensors.push_back({set, bytes, &cls});
          return plan_fusion(tensors, threshold);
        });
}

}  // namespace sirtaki
