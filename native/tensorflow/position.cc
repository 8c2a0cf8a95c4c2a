// The kernel of the operation that says where this process stands, when it runs and not when it is traced.
#include "position.h"

#include <memory>

#include "attributes.h"
#include "conversions.h"
#include "engine_abi.h"
#include "engine_link.h"
#include "op_definitions.h"
#include "tf_c_api.h"

namespace sirtaki::tensorflow {
namespace {

struct Kernel {
  std::string what;
  int32_t process_set = 0;
};

void* create(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<Kernel>();
  Attributes attributes(construction);
  kernel->what = attributes.text("what");
  kernel->process_set = attributes.int32("process_set");
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

int32_t value_of(const std::string& what, const sirtaki_position& position) {
  if (what == "size") return position.size;
  if (what == "rank") return position.my_rank;
  if (what == "local_size") return position.local_size;
  if (what == "local_rank") return position.local_rank;
  return position.rank < 0 ? 0 : 1;  // included
}

std::string problem_of(int32_t error, int32_t process_set) {
  switch (error) {
    case SIRTAKI_OK:
      return "";
    case SIRTAKI_NOT_INITIALIZED:
      return "sirtaki is not initialized: call init() first";
    default:
      return "there is no process set " + std::to_string(process_set) + ", or it has been removed";
  }
}

void compute(void* kernel_pointer, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(kernel_pointer);
  sirtaki_position position{};
  const sirtaki_engine_api* api = engine();
  const int32_t error = api == nullptr ? SIRTAKI_NOT_INITIALIZED : api->locate(kernel.process_set, &position);
  const Status status = new_status();
  if (error == SIRTAKI_OK) {
    const Tensor output(tf().AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof(int32_t), status.get()));
    if (ok(status)) {
      *static_cast<int32_t*>(tf().TensorData(output.get())) = value_of(kernel.what, position);
    }
  } else {
    tf().SetStatus(status.get(), status_code(error), problem_of(error, kernel.process_set).c_str());
  }
  if (!ok(status)) tf().OpKernelContext_Failure(context, status.get());
}

}  // namespace

std::string register_position_kernel() {
  TF_KernelBuilder* builder = tf().NewKernelBuilder(kPositionOp, "CPU", create, compute, destroy);
  const Status status = new_status();
  tf().RegisterKernelBuilder(kPositionOp, builder, status.get());
  if (ok(status)) return "";
  return std::string("TensorFlow refused the kernel of ") + kPositionOp + ": " + tf().Message(status.get());
}

}  // namespace sirtaki::tensorflow
