// Looks up TensorFlow's C API in the libraries that the process has already loaded.
#include "tf_c_api.h"

#include <dlfcn.h>

#include <vector>

namespace sirtaki::tensorflow {
namespace {

TfApi api;

class Lookup {
 public:
  Lookup() {
    // The C API lives in the framework library up to now; the other one holds the rest of TensorFlow.
    for (const char* library : {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"}) {
      if (void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY)) handles_.push_back(handle);
    }
  }

  template <typename Function>
  void find(const std::string& name, Function*& target) {
    for (void* handle : handles_) {
      if (void* symbol = dlsym(handle, ("TF_" + name).c_str())) {
        target = reinterpret_cast<Function*>(symbol);
        return;
      }
    }
    if (!missing_.empty()) missing_ += ", ";
    missing_ += "TF_" + name;
  }

  std::string problem() const {
    if (handles_.empty()) {
      return "TensorFlow's libraries (libtensorflow_framework.so.2) are not loaded in this process; import "
             "tensorflow before this library, and check that it is a Linux build of TensorFlow 2.16 or later";
    }
    if (missing_.empty()) return "";
    return "this TensorFlow does not export " + missing_ + "; Sirtaki needs TensorFlow 2.16 or later";
  }

 private:
  std::vector<void*> handles_;
  std::string missing_;
};

}  // namespace

const TfApi& tf() { return api; }

std::string load_tf_api() {
  Lookup lookup;
  lookup.find("NewStatus", api.NewStatus);
  lookup.find("DeleteStatus", api.DeleteStatus);
  lookup.find("SetStatus", api.SetStatus);
  lookup.find("GetCode", api.GetCode);
  lookup.find("Message", api.Message);
  lookup.find("DeleteTensor", api.DeleteTensor);
  lookup.find("NumDims", api.NumDims);
  lookup.find("Dim", api.Dim);
  lookup.find("TensorByteSize", api.TensorByteSize);
  lookup.find("TensorData", api.TensorData);
  lookup.find("DataTypeSize", api.DataTypeSize);
  lookup.find("NewOpDefinitionBuilder", api.NewOpDefinitionBuilder);
  lookup.find("OpDefinitionBuilderAddAttr", api.OpDefinitionBuilderAddAttr);
  lookup.find("OpDefinitionBuilderAddInput", api.OpDefinitionBuilderAddInput);
  lookup.find("OpDefinitionBuilderAddOutput", api.OpDefinitionBuilderAddOutput);
  lookup.find("OpDefinitionBuilderSetIsStateful", api.OpDefinitionBuilderSetIsStateful);
  lookup.find("OpDefinitionBuilderSetShapeInferenceFunction",
              api.OpDefinitionBuilderSetShapeInferenceFunction);
  lookup.find("RegisterOpDefinition", api.RegisterOpDefinition);
  lookup.find("ShapeInferenceContextNumInputs", api.ShapeInferenceContextNumInputs);
  lookup.find("NewShapeHandle", api.NewShapeHandle);
  lookup.find("DeleteShapeHandle", api.DeleteShapeHandle);
  lookup.find("ShapeInferenceContextGetInput", api.ShapeInferenceContextGetInput);
  lookup.find("ShapeInferenceContextSetOutput", api.ShapeInferenceContextSetOutput);
  lookup.find("ShapeInferenceContextSetUnknownShape", api.ShapeInferenceContextSetUnknownShape);
  lookup.find("ShapeInferenceContextScalar", api.ShapeInferenceContextScalar);
  lookup.find("ShapeInferenceContextVectorFromSize", api.ShapeInferenceContextVectorFromSize);
  lookup.find("ShapeInferenceContextRankKnown", api.ShapeInferenceContextRankKnown);
  lookup.find("ShapeInferenceContextRank", api.ShapeInferenceContextRank);
  lookup.find("ShapeInferenceContextWithRankAtLeast", api.ShapeInferenceContextWithRankAtLeast);
  lookup.find("ShapeInferenceContextSubshape", api.ShapeInferenceContextSubshape);
  lookup.find("ShapeInferenceContextConcatenateShapes", api.ShapeInferenceContextConcatenateShapes);
  lookup.find("NewKernelBuilder", api.NewKernelBuilder);
  lookup.find("NewAsyncKernelBuilder", api.NewAsyncKernelBuilder);
  lookup.find("RegisterKernelBuilder", api.RegisterKernelBuilder);
  lookup.find("OpKernelConstruction_GetAttrSize", api.OpKernelConstruction_GetAttrSize);
  lookup.find("OpKernelConstruction_GetAttrString", api.OpKernelConstruction_GetAttrString);
  lookup.find("OpKernelConstruction_GetAttrInt64", api.OpKernelConstruction_GetAttrInt64);
  lookup.find("OpKernelConstruction_GetAttrType", api.OpKernelConstruction_GetAttrType);
  lookup.find("OpKernelConstruction_Failure", api.OpKernelConstruction_Failure);
  lookup.find("OpKernelContext_Failure", api.OpKernelContext_Failure);
  lookup.find("NumInputs", api.NumInputs);
  lookup.find("GetInput", api.GetInput);
  lookup.find("AllocateOutput", api.AllocateOutput);
  lookup.find("ForwardInputOrAllocateOutput", api.ForwardInputOrAllocateOutput);
  return lookup.problem();
}

}  // namespace sirtaki::tensorflow
