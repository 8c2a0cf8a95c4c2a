// Asynchronous CPU kernels: each hands its tensors to the engine and returns.
//
// Guarantees:
//   * A kernel never blocks one of TensorFlow's threads and never takes Python's GIL.
//   * The output is the input's buffer wherever the two have one size and TensorFlow allows it.
//   * TensorFlow hears "done" exactly once for each call, with no lock held, after every reference to the
//     tensors is gone, so that the next op may reuse the buffers as well.
#include "kernels.h"

#include <string.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attributes.h"
#include "conversions.h"
#include "engine_abi.h"
#include "engine_link.h"
#include "op_definitions.h"
#include "tf_c_api.h"

namespace sirtaki::tensorflow {
namespace {

struct Kernel {
  int32_t kind = 0;
  int32_t reduce_op = 0;
  int32_t dtype = 0;     // sirtaki_dtype
  int32_t tf_dtype = 0;  // TF_DataType
  int32_t root_rank = 0;
  int32_t process_set = 0;
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
  std::string name;
  bool carries_gradients = false;

  bool gathers() const { return kind == SIRTAKI_ALLGATHER || kind == SIRTAKI_ALLTOALL; }
  bool has_tensors() const { return kind != SIRTAKI_BARRIER && kind != SIRTAKI_JOIN; }
  std::string described(const char* what) const {
    return std::string(what) + " of " + (name.empty() ? "an unnamed tensor" : name);
  }
};

struct Buffers {
  std::vector<int64_t> dims;
  Tensor input;
  Tensor output;
  Tensor rows;  // what each member has given: the second outputs of an allgather and an alltoall
};

// What must live from the kernel's start until the engine is done.
struct Call {
  TF_OpKernelContext* context;
  std::function<void()> done;
  const Kernel* kernel;
  std::vector<Buffers> tensors;
  int64_t result = 0;  // of a join
};

// Ends the call. Whatever it holds of TensorFlow's goes first: done() may free the step, and a tensor that
// is still referenced here could not be forwarded by the next op.
void finish(std::unique_ptr<Call> call, int code, const char* message) {
  if (code != kOk) {
    const Status status = new_status();
    tf().SetStatus(status.get(), code, message == nullptr ? "Sirtaki's engine gave no reason" : message);
    tf().OpKernelContext_Failure(call->context, status.get());
  }
  const std::function<void()> done = std::move(call->done);
  call.reset();
  done();
}

void finish_with(std::unique_ptr<Call> call, const Status& status) {
  const int code = tf().GetCode(status.get());
  const std::string message = tf().Message(status.get());
  finish(std::move(call), code, message.c_str());
}

void engine_done(void* context, int32_t error, const char* message) {
  std::unique_ptr<Call> call(static_cast<Call*>(context));
  count_completion();
  if (error == SIRTAKI_OK && call->kernel->gathers()) {
    for (const Buffers& buffers : call->tensors) {
      if (buffers.rows != nullptr) continue;
      error = SIRTAKI_INTERNAL;
      message = "the engine finished without asking for an output; please report this";
    }
  }
  if (error == SIRTAKI_OK && call->kernel->kind == SIRTAKI_JOIN) {
    const Status status = new_status();
    const Tensor output(
        tf().AllocateOutput(call->context, 0, kInt32, nullptr, 0, sizeof(int32_t), status.get()));
    if (!ok(status)) return finish_with(std::move(call), status);
    *static_cast<int32_t*>(tf().TensorData(output.get())) = static_cast<int32_t>(call->result);
  }
  finish(std::move(call), status_code(error), message);
}

void set_result(void* context, int64_t value) { static_cast<Call*>(context)->result = value; }

void* allocate_gathered(void* context, int32_t index, const int64_t* rows, int32_t num_members) {
  static char no_elements;  // an address for an empty result: NULL would mean that there is no memory
  Call* call = static_cast<Call*>(context);
  Buffers& tensor = call->tensors[static_cast<size_t>(index)];
  std::vector<int64_t> dims = tensor.dims;
  dims[0] = 0;
  for (int32_t member = 0; member < num_members; ++member) dims[0] += rows[member];
  size_t bytes = tf().DataTypeSize(call->kernel->tf_dtype);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);

  const Status status = new_status();
  tensor.output.reset(tf().AllocateOutput(call->context, index, call->kernel->tf_dtype, dims.data(),
                                          static_cast<int>(dims.size()), bytes, status.get()));
  if (!ok(status)) return nullptr;
  const int64_t count = num_members;
  const size_t rows_bytes = sizeof(int64_t) * static_cast<size_t>(num_members);
  const int rows_index = static_cast<int>(call->tensors.size()) + index;
  Tensor output(tf().AllocateOutput(call->context, rows_index, kInt64, &count, 1, rows_bytes, status.get()));
  if (!ok(status)) return nullptr;
  memcpy(tf().TensorData(output.get()), rows, rows_bytes);
  tensor.rows = std::move(output);
  return bytes == 0 ? &no_elements : tf().TensorData(tensor.output.get());
}

bool take_input(Call* call, int index, const Status& status) {
  TF_Tensor* input = nullptr;
  tf().GetInput(call->context, index, &input, status.get());
  if (!ok(status)) return false;
  call->tensors[static_cast<size_t>(index)].input.reset(input);
  return true;
}

// Forwarding works only while nobody holds the input: it is let go first, and taken again only if it stayed
// apart.
bool take_output_like_input(Call* call, int index, const Status& status, int64_t* in_place) {
  Buffers& buffers = call->tensors[static_cast<size_t>(index)];
  buffers.input.reset();
  int forwarded = -1;
  buffers.output.reset(tf().ForwardInputOrAllocateOutput(call->context, &index, 1, index, buffers.dims.data(),
                                                         static_cast<int>(buffers.dims.size()), &forwarded,
                                                         status.get()));
  if (!ok(status)) return false;
  if (forwarded != index) return take_input(call, index, status);
  ++*in_place;
  return true;
}

// This rank's share of the rows, as engine_abi.h says it. Where there is no such share, because the process
// set is unknown or another's, the engine says so when it gets the request.
bool take_share(Call* call, int index, const sirtaki_position& position, const Status& status) {
  Buffers& buffers = call->tensors[static_cast<size_t>(index)];
  std::vector<int64_t> dims = buffers.dims;
  const int64_t rows = dims[0];
  dims[0] = position.rank < 0 ? 0 : rows / position.size + (position.rank < rows % position.size ? 1 : 0);
  size_t bytes = tf().DataTypeSize(call->kernel->tf_dtype);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);
  buffers.output.reset(tf().AllocateOutput(call->context, index, call->kernel->tf_dtype, dims.data(),
                                           static_cast<int>(dims.size()), bytes, status.get()));
  return ok(status);
}

// Takes the tensors, and outputs for them where their sizes are known already. Returns what is wrong with
// them, empty if nothing is; TensorFlow's own complaints are in `status`.
std::string take_tensors(Call* call, const Status& status, int64_t* in_place) {
  const Kernel& kernel = *call->kernel;
  sirtaki_position position{-1, 1, 0, 1, 0, 1};
  if (kernel.kind == SIRTAKI_REDUCESCATTER) {
    if (engine()->locate(kernel.process_set, &position) != SIRTAKI_OK) position.rank = -1;
  }
  for (int i = 0; i < static_cast<int>(call->tensors.size()); ++i) {
    if (!take_input(call, i, status)) return "";
    Buffers& buffers = call->tensors[static_cast<size_t>(i)];
    for (int d = 0; d < tf().NumDims(buffers.input.get()); ++d) {
      buffers.dims.push_back(tf().Dim(buffers.input.get(), d));
    }
    const bool needs_rows = kernel.gathers() || kernel.kind == SIRTAKI_REDUCESCATTER;
    if (needs_rows && buffers.dims.empty()) {
      return ": a scalar has no rows; give it a first dimension, as in x[None]";
    }
    if (kernel.gathers()) continue;
    const bool taken = kernel.kind == SIRTAKI_REDUCESCATTER
                           ? take_share(call, i, position, status)
                           : take_output_like_input(call, i, status, in_place);
    if (!taken) return "";
  }
  return "";
}

// An alltoall's second input; none given means the same number of rows to each.
std::string take_splits(Call* call, std::vector<int64_t>* splits, const Status& status) {
  TF_Tensor* raw = nullptr;
  tf().GetInput(call->context, 1, &raw, status.get());
  if (!ok(status)) return "";
  const Tensor input(raw);
  if (tf().NumDims(raw) != 1) return ": splits must be a vector, one number for each rank";
  const auto* values = static_cast<const int64_t*>(tf().TensorData(raw));
  splits->assign(values, values + tf().Dim(raw, 0));
  if (!splits->empty()) return "";
  sirtaki_position position{};
  if (engine()->locate(call->kernel->process_set, &position) != SIRTAKI_OK || position.rank < 0) return "";
  const int64_t rows = call->tensors[0].dims[0];
  if (rows % position.size != 0) {
    return ": its " + std::to_string(rows) + " rows cannot be shared out evenly to " +
           std::to_string(position.size) + " ranks; give splits";
  }
  splits->assign(static_cast<size_t>(position.size), rows / position.size);
  return "";
}

const char* function_name(int32_t kind) {
  switch (kind) {
    case SIRTAKI_ALLTOALL:
      return "alltoall";
    case SIRTAKI_REDUCESCATTER:
      return "reducescatter";
    case SIRTAKI_ALLGATHER:
      return "allgather";
    default:
      return "a collective";
  }
}

void compute(void* kernel_pointer, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& kernel = *static_cast<const Kernel*>(kernel_pointer);
  // `done` is a std::function on the caller's stack that is gone once we return.
  auto call = std::make_unique<Call>();
  call->context = context;
  call->done = std::move(*reinterpret_cast<std::function<void()>*>(done));
  call->kernel = &kernel;
  const sirtaki_engine_api* api = engine();
  if (api == nullptr) {
    return finish(std::move(call), kFailedPrecondition,
                  "no engine: import sirtaki.tensorflow and call init()");
  }
  if (kernel.kind == SIRTAKI_ALLTOALL) {
    call->tensors.resize(1);
  } else if (kernel.has_tensors()) {
    call->tensors.resize(static_cast<size_t>(tf().NumInputs(context)));
  }

  const Status status = new_status();
  int64_t in_place = 0;
  std::vector<int64_t> splits;
  std::string problem = take_tensors(call.get(), status, &in_place);
  if (problem.empty() && ok(status) && kernel.kind == SIRTAKI_ALLTOALL) {
    problem = take_splits(call.get(), &splits, status);
  }
  if (!ok(status)) return finish_with(std::move(call), status);
  if (!problem.empty()) {
    problem = kernel.described(function_name(kernel.kind)) + problem;
    return finish(std::move(call), kInvalidArgument, problem.c_str());
  }

  // The engine may be done, and the call and even the kernel gone, before submit returns; what it may read
  // until then is therefore kept here.
  const std::string name = kernel.name;
  const int32_t kind = kernel.kind;
  const bool carries_gradients = kernel.carries_gradients;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<sirtaki_tensor> tensors;
  shapes.reserve(call->tensors.size());
  tensors.reserve(call->tensors.size());
  for (const Buffers& buffers : call->tensors) {
    void* output = buffers.output ? tf().TensorData(buffers.output.get()) : nullptr;
    const void* input = buffers.input ? tf().TensorData(buffers.input.get()) : output;
    const std::vector<int64_t>& shape = shapes.emplace_back(buffers.dims);
    tensors.push_back({input, output, shape.data(), static_cast<int32_t>(shape.size())});
  }
  sirtaki_request request{};
  request.kind = kind;
  request.reduce_op = kernel.reduce_op;
  request.dtype = kernel.dtype;
  request.root_rank = kernel.root_rank;
  request.process_set = kernel.process_set;
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.prescale_factor = kernel.prescale_factor;
  request.postscale_factor = kernel.postscale_factor;
  request.name = name.empty() ? nullptr : name.c_str();
  request.tensors = tensors.data();
  request.values = splits.data();
  request.num_values = static_cast<int32_t>(splits.size());
  request.allocate_output = kernel.gathers() ? allocate_gathered : nullptr;
  request.set_result = set_result;
  request.done = engine_done;
  request.context = call.release();
  count_submission(kind, request.num_tensors, in_place, carries_gradients);
  api->submit(&request);
}

template <sirtaki_kind kind>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  Attributes attributes(construction);
  kernel->kind = kind;
  if (kernel->has_tensors()) {
    kernel->tf_dtype = attributes.type("T");
    kernel->dtype = engine_dtype(kernel->tf_dtype);
  }
  if (kind != SIRTAKI_JOIN) {
    kernel->process_set = attributes.int32("process_set");
    kernel->name = attributes.text("tensor_name");
    kernel->carries_gradients = names_gradients(kernel->name);
  }
  if (kind == SIRTAKI_ALLREDUCE || kind == SIRTAKI_REDUCESCATTER) {
    kernel->reduce_op = attributes.int32("reduce_op");
    kernel->prescale_factor = attributes.bits_of_double("prescale_bits");
    kernel->postscale_factor = attributes.bits_of_double("postscale_bits");
  }
  if (kind == SIRTAKI_BROADCAST) kernel->root_rank = attributes.int32("root_rank");
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace

std::string register_kernels() {
  const std::pair<const char*, void* (*)(TF_OpKernelConstruction*)> kernels[] = {
      {kAllreduceOp, create<SIRTAKI_ALLREDUCE>}, {kGroupedAllreduceOp, create<SIRTAKI_ALLREDUCE>},
      {kAllgatherOp, create<SIRTAKI_ALLGATHER>}, {kBroadcastOp, create<SIRTAKI_BROADCAST>},
      {kAlltoallOp, create<SIRTAKI_ALLTOALL>},   {kReducescatterOp, create<SIRTAKI_REDUCESCATTER>},
      {kBarrierOp, create<SIRTAKI_BARRIER>},     {kJoinOp, create<SIRTAKI_JOIN>},
  };
  for (const auto& [op, create_kernel] : kernels) {
    TF_KernelBuilder* builder = tf().NewAsyncKernelBuilder(op, "CPU", create_kernel, compute, destroy);
    const Status status = new_status();
    tf().RegisterKernelBuilder(op, builder, status.get());
    if (!ok(status)) {
      return std::string("TensorFlow refused the kernel of ") + op + ": " + tf().Message(status.get());
    }
  }
  return "";
}

}  // namespace sirtaki::tensorflow
