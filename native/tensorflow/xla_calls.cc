// The custom-call target that XLA's programs call for a collective.
//
//   * The call blocks XLA's thread until the engine is done: a program has no other way to wait. That all
//   ranks make
//     their calls in one order is for tf_bindings/xla_calls.py to see to, which chains them.
//   * What is to be done is a text that tf_bindings/xla_calls.py has written when the program was traced:
//       version kind reduce_op dtype root_rank process_set prescale_bits postscale_bits num_tensors
//       name_bytes
//     then for each tensor
//       output_rows num_dims dims...
//     all numbers in decimal and separated by spaces, a newline, and the name.
//   * Operands are the tensors, and behind them whatever orders this call after others. Results are the
//   reduced
//     tensors, or one int32 where there are none.
//   * XLA's status has no exported setter; it is a struct with one std::optional<std::string> (xla/service/
//     custom_call_status_internal.h).
#include "xla_calls.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine_abi.h"
#include "engine_link.h"

namespace sirtaki::tensorflow {
namespace {

constexpr char kTarget[] = "sirtaki_collective";
constexpr int64_t kVersion = 1;

struct XlaStatus {
  std::optional<std::string> message;
};

// The numbers of the description, one after the other.
class Numbers {
 public:
  Numbers(const char* text, size_t bytes) : text_(text, bytes), position_(text_.c_str()) {}
  int64_t next() {
    char* end = nullptr;
    const int64_t value = strtoll(position_, &end, 10);
    position_ = end;
    return value;
  }
  std::string rest(int64_t bytes) const {
    return position_ < text_.c_str() + text_.size()
               ? std::string(position_ + 1, static_cast<size_t>(bytes))  // behind the newline
               : std::string();
  }

 private:
  std::string text_;
  const char* position_;
};

struct Description {
  int32_t kind, reduce_op, dtype, root_rank, process_set;
  double prescale, postscale;
  std::string name;
  std::vector<int64_t> output_rows;
  std::vector<std::vector<int64_t>> dims;
};

double as_double(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns what is wrong with the text, empty if nothing is.
std::string parse(const char* text, size_t bytes, Description* result) {
  Numbers numbers(text, bytes);
  if (numbers.next() != kVersion)
    return "the program was traced by another version of Sirtaki: trace it again";
  result->kind = static_cast<int32_t>(numbers.next());
  result->reduce_op = static_cast<int32_t>(numbers.next());
  result->dtype = static_cast<int32_t>(numbers.next());
  result->root_rank = static_cast<int32_t>(numbers.next());
  result->process_set = static_cast<int32_t>(numbers.next());
  result->prescale = as_double(numbers.next());
  result->postscale = as_double(numbers.next());
  const int64_t num_tensors = numbers.next();
  const int64_t name_bytes = numbers.next();
  for (int64_t i = 0; i < num_tensors; ++i) {
    result->output_rows.push_back(numbers.next());
    std::vector<int64_t>& dims = result->dims.emplace_back(static_cast<size_t>(numbers.next()));
    for (int64_t& dim : dims) dim = numbers.next();
  }
  result->name = numbers.rest(name_bytes);
  return "";
}

// One call, on the stack of the thread that waits.
struct Call {
  const Description* description;
  std::vector<void*> outputs;
  std::string wrong_rows;
  int64_t result = 0;
  std::mutex mutex;
  std::condition_variable is_done;
  bool done = false;
  std::string error;
};

void* output_for(void* context, int32_t index, const int64_t* rows, int32_t num_members) {
  Call* call = static_cast<Call*>(context);
  int64_t total = 0;
  for (int32_t member = 0; member < num_members; ++member) total += rows[member];
  const int64_t expected = call->description->output_rows[static_cast<size_t>(index)];
  if (total == expected) return call->outputs[static_cast<size_t>(index)];
  call->wrong_rows = "'" + call->description->name + "' gave " + std::to_string(total) +
                     " rows and XLA's program was compiled for " + std::to_string(expected);
  return nullptr;
}

void set_result(void* context, int64_t value) { static_cast<Call*>(context)->result = value; }

void engine_done(void* context, int32_t error, const char* message) {
  Call* call = static_cast<Call*>(context);
  count_completion();
  const std::lock_guard<std::mutex> lock(call->mutex);
  if (error != SIRTAKI_OK) {
    call->error = !call->wrong_rows.empty() ? call->wrong_rows
                  : message != nullptr      ? message
                                            : "Sirtaki's engine gave no reason";
  }
  call->done = true;
  // Under the lock: once it is gone, so may the call be.
  call->is_done.notify_one();
}

std::string perform(void* out, const void** in, const char* text, size_t bytes) {
  const sirtaki_engine_api* api = engine();
  if (api == nullptr) return "no engine: import sirtaki.tensorflow and call init()";
  Description description;
  std::string problem = parse(text, bytes, &description);
  if (!problem.empty()) return problem;

  const size_t num_tensors = description.dims.size();
  Call call;
  call.description = &description;
  // XLA hands a single result on as it is, and several as an array.
  for (size_t i = 0; i < num_tensors; ++i) {
    call.outputs.push_back(num_tensors == 1 ? out : static_cast<void**>(out)[i]);
  }
  const bool gathers = description.kind == SIRTAKI_ALLGATHER;
  std::vector<sirtaki_tensor> tensors;
  for (size_t i = 0; i < num_tensors; ++i) {
    const std::vector<int64_t>& dims = description.dims[i];
    tensors.push_back(
        {in[i], gathers ? nullptr : call.outputs[i], dims.data(), static_cast<int32_t>(dims.size())});
  }
  sirtaki_request request{};
  request.kind = description.kind;
  request.reduce_op = description.reduce_op;
  request.dtype = description.dtype;
  request.root_rank = description.root_rank;
  request.process_set = description.process_set;
  request.num_tensors = static_cast<int32_t>(num_tensors);
  request.prescale_factor = description.prescale;
  request.postscale_factor = description.postscale;
  request.name = description.name.empty() ? nullptr : description.name.c_str();
  request.tensors = tensors.data();
  request.allocate_output = gathers ? output_for : nullptr;
  request.set_result = set_result;
  request.done = engine_done;
  request.context = &call;
  count_submission(request.kind, request.num_tensors, 0, names_gradients(description.name));
  api->submit(&request);

  std::unique_lock<std::mutex> lock(call.mutex);
  call.is_done.wait(lock, [&call] { return call.done; });
  if (call.error.empty() && num_tensors == 0) *static_cast<int32_t*>(out) = static_cast<int32_t>(call.result);
  return call.error;
}

void collective(void* out, const void** in, const char* text, size_t bytes, XlaStatus* status) {
  std::string problem = perform(out, in, text, bytes);
  if (!problem.empty()) status->message = std::move(problem);
}

}  // namespace

std::string register_xla_target() {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return "libtensorflow_cc.so.2 is not loaded";
  using Global = void* (*)();
  using Register = void (*)(void*, const std::string&, void*, const std::string&);
  const auto global = reinterpret_cast<Global>(dlsym(library, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  const auto add = reinterpret_cast<Register>(
      dlsym(library,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_string"
            "IcSt11char_traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) {
    return "this TensorFlow does not export xla::CustomCallTargetRegistry";
  }
  add(global(), kTarget, reinterpret_cast<void*>(collective), "Host");
  return "";
}

}  // namespace sirtaki::tensorflow
