// The operations as TensorFlow sees them.
//
//   * All of them are stateful: stateless ones could be folded or merged, and then one rank would call what
//     another does not.
//   * Scale factors travel as the bits of a float64 in an integer attribute, because TensorFlow's own float
//     attributes keep only 32 bits and a float64 reduction deserves its 53 digits.
//   * tensor_name is the name that the ranks agree on; empty means "the next unnamed call of this process".
#include "op_definitions.h"

#include <initializer_list>
#include <memory>
#include <utility>

#include "tf_c_api.h"

namespace sirtaki::tensorflow {
namespace {

// Which of them can be reduced how is for tf_bindings/operations.py to say, and for the engine.
constexpr char kTypes[] =
    "T: {bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double, "
    "complex64, complex128}";
constexpr char kNameAttr[] = "tensor_name: string = ''";
constexpr char kProcessSetAttr[] = "process_set: int = 0";
constexpr char kReduceOpAttr[] = "reduce_op: int";
// 4607182418800017408 is the bit pattern of 1.0.
constexpr char kPrescaleAttr[] = "prescale_bits: int = 4607182418800017408";
constexpr char kPostscaleAttr[] = "postscale_bits: int = 4607182418800017408";
constexpr char kNumTensors[] = "N: int >= 1";
constexpr char kRootRankAttr[] = "root_rank: int";

// VectorFromSize passes its argument on as a signed dimension, where -1 is an unknown one; the C API has no
// other way to make it.
constexpr size_t kUnknownDimension = static_cast<size_t>(-1);

struct ShapeDeleter {
  void operator()(TF_ShapeHandle* handle) const { tf().DeleteShapeHandle(handle); }
};
using Shape = std::unique_ptr<TF_ShapeHandle, ShapeDeleter>;
Shape new_shape() { return Shape(tf().NewShapeHandle()); }
bool failed(const TF_Status* status) { return tf().GetCode(status) != kOk; }

// Every output has the shape of the input with its number.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = tf().ShapeInferenceContextNumInputs(context);
  for (int64_t i = 0; i < count; ++i) {
    const Shape shape = new_shape();
    tf().ShapeInferenceContextGetInput(context, static_cast<int>(i), shape.get(), status);
    if (failed(status)) return;
    tf().ShapeInferenceContextSetOutput(context, static_cast<int>(i), shape.get(), status);
    if (failed(status)) return;
  }
}

// The input's shape but for the first dimension, which no rank knows beforehand; a null shape after a
// failure.
Shape with_unknown_rows(TF_ShapeInferenceContext* context, int input, TF_Status* status) {
  Shape shape = new_shape();
  tf().ShapeInferenceContextGetInput(context, input, shape.get(), status);
  if (failed(status) || !tf().ShapeInferenceContextRankKnown(context, shape.get())) return shape;
  const Shape unknown_rows(tf().ShapeInferenceContextVectorFromSize(context, kUnknownDimension));
  const Shape with_rows = new_shape(), rest = new_shape();
  Shape result = new_shape();
  tf().ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1, with_rows.get(), status);
  if (failed(status)) return nullptr;
  const int64_t rank = tf().ShapeInferenceContextRank(context, with_rows.get());
  tf().ShapeInferenceContextSubshape(context, with_rows.get(), 1, rank, rest.get(), status);
  if (failed(status)) return nullptr;
  tf().ShapeInferenceContextConcatenateShapes(context, unknown_rows.get(), rest.get(), result.get(), status);
  return failed(status) ? nullptr : std::move(result);
}

void shapes_with_unknown_rows(TF_ShapeInferenceContext* context, int count, TF_Status* status) {
  for (int i = 0; i < count; ++i) {
    const Shape shape = with_unknown_rows(context, i, status);
    if (failed(status)) return;
    tf().ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    if (failed(status)) return;
  }
}

// `count` results, and for each how many rows each rank has given: vectors with an element for each rank.
void gathered_shapes(TF_ShapeInferenceContext* context, int count, TF_Status* status) {
  shapes_with_unknown_rows(context, count, status);
  if (failed(status)) return;
  const Shape unknown_vector(tf().ShapeInferenceContextVectorFromSize(context, kUnknownDimension));
  for (int i = count; i < 2 * count && !failed(status); ++i) {
    tf().ShapeInferenceContextSetOutput(context, i, unknown_vector.get(), status);
  }
}

void allgather_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  gathered_shapes(context, static_cast<int>(tf().ShapeInferenceContextNumInputs(context)), status);
}

void alltoall_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  gathered_shapes(context, 1, status);
}

void reducescatter_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  shapes_with_unknown_rows(context, static_cast<int>(tf().ShapeInferenceContextNumInputs(context)), status);
}

void scalar_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(tf().ShapeInferenceContextScalar(context));
  tf().ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void no_shapes(TF_ShapeInferenceContext*, TF_Status*) {}

struct Definition {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  std::initializer_list<const char*> attrs;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
};

std::string register_definition(const Definition& definition) {
  TF_OpDefinitionBuilder* builder = tf().NewOpDefinitionBuilder(definition.name);
  for (const char* input : definition.inputs) tf().OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : definition.outputs) tf().OpDefinitionBuilderAddOutput(builder, output);
  for (const char* attr : definition.attrs) tf().OpDefinitionBuilderAddAttr(builder, attr);
  tf().OpDefinitionBuilderSetIsStateful(builder, true);
  tf().OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
  const Status status = new_status();
  tf().RegisterOpDefinition(builder, status.get());
  if (ok(status)) return "";
  return std::string("TensorFlow refused the definition of ") + definition.name + ": " +
         tf().Message(status.get());
}

}  // namespace

std::string register_op_definitions() {
  const Definition definitions[] = {
      {kAllreduceOp,
       {"tensor: T"},
       {"reduced: T"},
       {kTypes, kReduceOpAttr, kPrescaleAttr, kPostscaleAttr, kProcessSetAttr, kNameAttr},
       same_shapes},
      {kGroupedAllreduceOp,
       {"tensors: N * T"},
       {"reduced: N * T"},
       {kNumTensors, kTypes, kReduceOpAttr, kPrescaleAttr, kPostscaleAttr, kProcessSetAttr, kNameAttr},
       same_shapes},
      {kAllgatherOp,
       {"tensors: N * T"},
       {"gathered: N * T", "rows: N * int64"},
       {kNumTensors, kTypes, kProcessSetAttr, kNameAttr},
       allgather_shapes},
      {kBroadcastOp,
       {"tensor: T"},
       {"received: T"},
       {kTypes, kRootRankAttr, kProcessSetAttr, kNameAttr},
       same_shapes},
      {kAlltoallOp,
       {"tensor: T", "splits: int64"},
       {"received: T", "rows: int64"},
       {kTypes, kProcessSetAttr, kNameAttr},
       alltoall_shapes},
      {kReducescatterOp,
       {"tensors: N * T"},
       {"shares: N * T"},
       {kNumTensors, kTypes, kReduceOpAttr, kPrescaleAttr, kPostscaleAttr, kProcessSetAttr, kNameAttr},
       reducescatter_shapes},
      {kBarrierOp, {}, {}, {kProcessSetAttr, kNameAttr}, no_shapes},
      {kJoinOp, {}, {"last_rank: int32"}, {}, scalar_shape},
      {kPositionOp, {}, {"value: int32"}, {"what: string", kProcessSetAttr}, scalar_shape},
  };
  for (const Definition& definition : definitions) {
    std::string problem = register_definition(definition);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace sirtaki::tensorflow
