// Asynchronous CPU kernels: each hands its tensors to the engine and returns.
//
// Guarantees:
//   * A kernel never blocks one of TensorFlow's threads and never takes Python's GIL.
//   * The output is the input's buffer wherever TensorFlow allows it.
//   * TensorFlow hears "done" exactly once for each call, with no lock held, after every reference to the
//     tensors is gone, so that the next op may reuse the buffers as well.
#include "kernels.h"

#include <string.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

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
};

struct Buffers {
  std::vector<int64_t> dims;
  Tensor input;
  Tensor output;
};

// What must live from the kernel's start until the engine is done.
struct Call {
  TF_OpKernelContext* context;
  std::function<void()> done;
  const Kernel* kernel;
  std::vector<Buffers> tensors;
  Tensor rows;  // allgather's second output
};

int32_t engine_dtype(int tf_dtype) {
  switch (tf_dtype) {
    case kBool:
      return SIRTAKI_BOOL;
    case kUint8:
      return SIRTAKI_UINT8;
    case kInt8:
      return SIRTAKI_INT8;
    case kUint16:
      return SIRTAKI_UINT16;
    case kInt16:
      return SIRTAKI_INT16;
    case kUint32:
      return SIRTAKI_UINT32;
    case kInt32:
      return SIRTAKI_INT32;
    case kUint64:
      return SIRTAKI_UINT64;
    case kInt64:
      return SIRTAKI_INT64;
    case kHalf:
      return SIRTAKI_FLOAT16;
    case kBfloat16:
      return SIRTAKI_BFLOAT16;
    case kFloat:
      return SIRTAKI_FLOAT32;
    case kDouble:
      return SIRTAKI_FLOAT64;
    case kComplex64:
      return SIRTAKI_COMPLEX64;
    case kComplex128:
      return SIRTAKI_COMPLEX128;
    default:
      return -1;  // the operations' definitions let no other type through
  }
}

int status_code(int32_t error) {
  switch (error) {
    case SIRTAKI_OK:
      return kOk;
    case SIRTAKI_INVALID_ARGUMENT:
    case SIRTAKI_DUPLICATE_NAME:
      return kInvalidArgument;
    case SIRTAKI_MISMATCH:
    case SIRTAKI_NOT_INITIALIZED:
      return kFailedPrecondition;
    // Not UNAVAILABLE, which TensorFlow turns into INTERNAL on the way out of a tf.function.
    case SIRTAKI_RANKS_FAILED:
    case SIRTAKI_UNRESPONSIVE:
    case SIRTAKI_RANK_LEFT:
    case SIRTAKI_RANK_JOINED:
      return kAborted;
    case SIRTAKI_STALLED:
      return kDeadlineExceeded;
    case SIRTAKI_OUT_OF_MEMORY:
      return kResourceExhausted;
    default:
      return kInternal;
  }
}

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
  if (error == SIRTAKI_OK && call->kernel->kind == SIRTAKI_ALLGATHER && call->rows == nullptr) {
    error = SIRTAKI_INTERNAL;
    message = "the engine finished an allgather without asking for its output; please report this";
  }
  finish(std::move(call), status_code(error), message);
}

// An allgather's request has one tensor.
void* allocate_gathered(void* context, int32_t, const int64_t* rows, int32_t num_members) {
  static char no_elements;  // an address for an empty result: NULL would mean that there is no memory
  Call* call = static_cast<Call*>(context);
  Buffers& tensor = call->tensors[0];
  std::vector<int64_t> dims = tensor.dims;
  dims[0] = 0;
  for (int32_t member = 0; member < num_members; ++member) dims[0] += rows[member];
  size_t bytes = tf().DataTypeSize(call->kernel->tf_dtype);
  for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);

  const Status status = new_status();
  tensor.output.reset(tf().AllocateOutput(call->context, 0, call->kernel->tf_dtype, dims.data(),
                                          static_cast<int>(dims.size()), bytes, status.get()));
  if (!ok(status)) return nullptr;
  const int64_t count = num_members;
  const size_t rows_bytes = sizeof(int64_t) * static_cast<size_t>(num_members);
  Tensor rows_output(tf().AllocateOutput(call->context, 1, kInt64, &count, 1, rows_bytes, status.get()));
  if (!ok(status)) return nullptr;
  memcpy(tf().TensorData(rows_output.get()), rows, rows_bytes);
  call->rows = std::move(rows_output);
  return bytes == 0 ? &no_elements : tf().TensorData(tensor.output.get());
}

// Takes input `index`, and an output for it unless this is an allgather. Forwarding works only while nobody
// holds the input: its shape is read and it is let go first, and taken again only if it stayed apart.
bool take_tensor(Call& call, int index, const Status& status, int64_t& in_place) {
  Buffers& buffers = call.tensors[static_cast<size_t>(index)];
  TF_Tensor* input = nullptr;
  tf().GetInput(call.context, index, &input, status.get());
  if (!ok(status)) return false;
  buffers.input.reset(input);
  for (int d = 0; d < tf().NumDims(input); ++d) buffers.dims.push_back(tf().Dim(input, d));
  if (call.kernel->kind == SIRTAKI_ALLGATHER) return true;

  buffers.input.reset();
  int forwarded = -1;
  buffers.output.reset(tf().ForwardInputOrAllocateOutput(call.context, &index, 1, index, buffers.dims.data(),
                                                         static_cast<int>(buffers.dims.size()), &forwarded,
                                                         status.get()));
  if (!ok(status)) return false;
  if (forwarded == index) {
    ++in_place;
    return true;
  }
  tf().GetInput(call.context, index, &input, status.get());
  if (!ok(status)) return false;
  buffers.input.reset(input);
  return true;
}

void compute(void* kernel_pointer, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& kernel = *static_cast<const Kernel*>(kernel_pointer);
  // `done` is a std::function on the caller's stack that is gone once we return.
  auto call = std::make_unique<Call>();
  call->context = context;
  call->done = std::move(*reinterpret_cast<std::function<void()>*>(done));
  call->kernel = &kernel;
  call->tensors.resize(static_cast<size_t>(tf().NumInputs(context)));

  const Status status = new_status();
  int64_t in_place = 0;
  for (int i = 0; i < static_cast<int>(call->tensors.size()); ++i) {
    if (!take_tensor(*call, i, status, in_place)) return finish_with(std::move(call), status);
  }
  if (kernel.kind == SIRTAKI_ALLGATHER && call->tensors[0].dims.empty()) {
    const std::string message = "allgather of " + (kernel.name.empty() ? "an unnamed tensor" : kernel.name) +
                                ": a scalar has no rows to gather; give it a first dimension, as in x[None]";
    return finish(std::move(call), kInvalidArgument, message.c_str());
  }
  const sirtaki_engine_api* api = engine();
  if (api == nullptr) {
    return finish(std::move(call), kFailedPrecondition,
                  "no engine: import sirtaki.tensorflow and call init()");
  }

  // The engine may be done, and the call and even the kernel gone, before submit returns; what it may read
  // until then is therefore kept here.
  const std::string name = kernel.name;
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
  request.kind = kernel.kind;
  request.reduce_op = kernel.reduce_op;
  request.dtype = kernel.dtype;
  request.root_rank = kernel.root_rank;
  request.process_set = kernel.process_set;
  request.num_tensors = static_cast<int32_t>(tensors.size());
  request.prescale_factor = kernel.prescale_factor;
  request.postscale_factor = kernel.postscale_factor;
  request.name = name.empty() ? nullptr : name.c_str();
  request.tensors = tensors.data();
  request.context = call.release();
  request.allocate_output = kernel.kind == SIRTAKI_ALLGATHER ? allocate_gathered : nullptr;
  request.done = engine_done;
  count_submission(kernel.kind, request.num_tensors, in_place);
  api->submit(&request);
}

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction)
      : construction_(construction), status_(new_status()) {}
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  // TensorFlow looks at the failure after the kernel's creation; the first one counts.
  ~Attributes() {
    if (!ok(status_)) tf().OpKernelConstruction_Failure(construction_, status_.get());
  }

  int64_t integer(const char* name) {
    int64_t value = 0;
    if (ok(status_)) tf().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    return value;
  }
  int32_t int32(const char* name) { return static_cast<int32_t>(integer(name)); }
  double bits_of_double(const char* name) {
    const int64_t bits = integer(name);
    double value;
    static_assert(sizeof(value) == sizeof(bits), "the attribute holds a float64");
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  int type(const char* name) {
    int value = 0;
    if (ok(status_)) tf().OpKernelConstruction_GetAttrType(construction_, name, &value, status_.get());
    return value;
  }
  std::string text(const char* name) {
    int32_t list_size = 0, bytes = 0;
    if (ok(status_)) {
      tf().OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
    }
    if (!ok(status_) || bytes <= 0) return "";
    std::string value(static_cast<size_t>(bytes), '\0');
    tf().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(), status_.get());
    return value;
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

template <sirtaki_kind kind>
void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  Attributes attributes(construction);
  kernel->kind = kind;
  kernel->tf_dtype = attributes.type("T");
  kernel->dtype = engine_dtype(kernel->tf_dtype);
  kernel->process_set = attributes.int32("process_set");
  kernel->name = attributes.text("tensor_name");
  if (kind == SIRTAKI_ALLREDUCE) {
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
      {kAllreduceOp, create<SIRTAKI_ALLREDUCE>},
      {kGroupedAllreduceOp, create<SIRTAKI_ALLREDUCE>},
      {kAllgatherOp, create<SIRTAKI_ALLGATHER>},
      {kBroadcastOp, create<SIRTAKI_BROADCAST>},
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
