// The part of TensorFlow's C API that the op library uses, met at run time.
//
// The library is built without TensorFlow and is loaded by TensorFlow: the framework's symbols are already
// in the process and are looked up there, so one binary serves TensorFlow 2.16 and later. The
// declarations state facts of that interface (names, arguments, numbers); a function that a future version
// drops is reported by name instead of failing at link time.
//
// Knows nothing of Python and nothing of the engine.
#ifndef SIRTAKI_TENSORFLOW_TF_C_API_H_
#define SIRTAKI_TENSORFLOW_TF_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <string>

extern "C" {
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
}

namespace sirtaki::tensorflow {

// TF_Code.
enum Code : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
};

// TF_DataType, those that the engine knows.
enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

struct TfApi {
  TF_Status* (*NewStatus)();
  void (*DeleteStatus)(TF_Status*);
  void (*SetStatus)(TF_Status*, int code, const char* message);
  int (*GetCode)(const TF_Status*);
  const char* (*Message)(const TF_Status*);

  void (*DeleteTensor)(TF_Tensor*);
  int (*NumDims)(const TF_Tensor*);
  int64_t (*Dim)(const TF_Tensor*, int index);
  size_t (*TensorByteSize)(const TF_Tensor*);
  void* (*TensorData)(const TF_Tensor*);
  size_t (*DataTypeSize)(int dtype);

  TF_OpDefinitionBuilder* (*NewOpDefinitionBuilder)(const char* name);
  void (*OpDefinitionBuilderAddAttr)(TF_OpDefinitionBuilder*, const char* spec);
  void (*OpDefinitionBuilderAddInput)(TF_OpDefinitionBuilder*, const char* spec);
  void (*OpDefinitionBuilderAddOutput)(TF_OpDefinitionBuilder*, const char* spec);
  void (*OpDefinitionBuilderSetIsStateful)(TF_OpDefinitionBuilder*, bool);
  void (*OpDefinitionBuilderSetShapeInferenceFunction)(TF_OpDefinitionBuilder*,
                                                       void (*)(TF_ShapeInferenceContext*, TF_Status*));
  void (*RegisterOpDefinition)(TF_OpDefinitionBuilder*, TF_Status*);  // takes the builder

  int64_t (*ShapeInferenceContextNumInputs)(TF_ShapeInferenceContext*);
  TF_ShapeHandle* (*NewShapeHandle)();
  void (*DeleteShapeHandle)(TF_ShapeHandle*);
  void (*ShapeInferenceContextGetInput)(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);
  void (*ShapeInferenceContextSetOutput)(TF_ShapeInferenceContext*, int index, TF_ShapeHandle*, TF_Status*);
  void (*ShapeInferenceContextSetUnknownShape)(TF_ShapeInferenceContext*, TF_Status*);
  TF_ShapeHandle* (*ShapeInferenceContextScalar)(TF_ShapeInferenceContext*);
  TF_ShapeHandle* (*ShapeInferenceContextVectorFromSize)(TF_ShapeInferenceContext*, size_t size);
  int (*ShapeInferenceContextRankKnown)(TF_ShapeInferenceContext*, TF_ShapeHandle*);
  int64_t (*ShapeInferenceContextRank)(TF_ShapeInferenceContext*, TF_ShapeHandle*);
  void (*ShapeInferenceContextWithRankAtLeast)(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t rank,
                                               TF_ShapeHandle* result, TF_Status*);
  void (*ShapeInferenceContextSubshape)(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start,
                                        int64_t end, TF_ShapeHandle* result, TF_Status*);
  void (*ShapeInferenceContextConcatenateShapes)(TF_ShapeInferenceContext*, TF_ShapeHandle* first,
                                                 TF_ShapeHandle* second, TF_ShapeHandle* result, TF_Status*);

  TF_KernelBuilder* (*NewKernelBuilder)(const char* op, const char* device,
                                        void* (*create)(TF_OpKernelConstruction*),
                                        void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));
  TF_KernelBuilder* (*NewAsyncKernelBuilder)(
      const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),
      void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*destroy)(void*));
  void (*RegisterKernelBuilder)(const char* name, TF_KernelBuilder*, TF_Status*);  // takes the builder
  void (*OpKernelConstruction_GetAttrSize)(TF_OpKernelConstruction*, const char* name, int32_t* list_size,
                                           int32_t* total_size, TF_Status*);
  void (*OpKernelConstruction_GetAttrString)(TF_OpKernelConstruction*, const char* name, char* value,
                                             size_t max_length, TF_Status*);
  void (*OpKernelConstruction_GetAttrInt64)(TF_OpKernelConstruction*, const char* name, int64_t*, TF_Status*);
  void (*OpKernelConstruction_GetAttrType)(TF_OpKernelConstruction*, const char* name, int*, TF_Status*);
  void (*OpKernelConstruction_Failure)(TF_OpKernelConstruction*, TF_Status*);
  void (*OpKernelContext_Failure)(TF_OpKernelContext*, TF_Status*);

  int (*NumInputs)(TF_OpKernelContext*);
  void (*GetInput)(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
  TF_Tensor* (*AllocateOutput)(TF_OpKernelContext*, int index, int dtype, const int64_t* dims, int num_dims,
                               size_t bytes, TF_Status*);
  TF_Tensor* (*ForwardInputOrAllocateOutput)(TF_OpKernelContext*, const int* candidates, int num_candidates,
                                             int output_index, const int64_t* dims, int num_dims,
                                             int* forwarded_input, TF_Status*);
};

// Looks everything up in the TensorFlow that this process has loaded. Returns an empty text, or what is
// missing and what to do; call it once, before anything else here.
std::string load_tf_api();

const TfApi& tf();

struct StatusDeleter {
  void operator()(TF_Status* status) const { tf().DeleteStatus(status); }
};
using Status = std::unique_ptr<TF_Status, StatusDeleter>;
inline Status new_status() { return Status(tf().NewStatus()); }
inline bool ok(const Status& status) { return tf().GetCode(status.get()) == kOk; }

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { tf().DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

}  // namespace sirtaki::tensorflow

#endif  // SIRTAKI_TENSORFLOW_TF_C_API_H_
