// Ops that misbehave on demand, for tests of what a worker's death, a slow call or a failed GPU does to the rest.
// All pass their float input through.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace mpspool {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr float kPoison = 13.0f;
constexpr float kSlow = 17.0f;
constexpr float kLongestSleepS = 60.0f;

REGISTER_OP("TestingAbort")
    .Input("x: float")
    .Output("y: float")
    .SetIsStateful()  // keeps constant folding from calling it while the model is loaded
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Passes x through; aborts the process when any element equals 13.");

REGISTER_OP("TestingSleep")
    .Input("x: float")
    .Output("y: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Passes x through after the first element's count of seconds, between 0 and 60, or once the file is there that "
         "TESTING_WAKE names.");

REGISTER_OP("TestingCudaFault")
    .Input("x: float")
    .Output("y: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Passes x through; fails as a call does whose kernel has faulted when any element equals 13, and takes "
         "three seconds when any equals 17.");

class TestingAbort : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const auto values = input.flat<float>();
    for (int64_t i = 0; i < values.size(); ++i) {
      if (values(i) == kPoison) std::abort();
    }
    context->set_output(0, input);
  }
};

class TestingCudaFault : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const auto values = input.flat<float>();
    for (int64_t i = 0; i < values.size(); ++i) {
      OP_REQUIRES(context, values(i) != kPoison,
                  absl::InternalError("failed to enqueue async memcpy from device to host: CUDA_ERROR_ILLEGAL_ADDRESS: "
                                      "an illegal memory access was encountered"));
      if (values(i) == kSlow) std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    context->set_output(0, input);
  }
};

class TestingSleep : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const auto values = input.flat<float>();
    if (values.size() > 0) {
      const auto seconds = std::chrono::duration<float>(std::clamp(values(0), 0.0f, kLongestSleepS));
      const auto end = std::chrono::steady_clock::now() + seconds;
      const char* wake = std::getenv("TESTING_WAKE");
      while (std::chrono::steady_clock::now() < end && (wake == nullptr || !std::filesystem::exists(wake))) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    context->set_output(0, input);
  }
};

REGISTER_KERNEL_BUILDER(Name("TestingAbort").Device(tensorflow::DEVICE_CPU), TestingAbort);
REGISTER_KERNEL_BUILDER(Name("TestingCudaFault").Device(tensorflow::DEVICE_CPU), TestingCudaFault);
REGISTER_KERNEL_BUILDER(Name("TestingSleep").Device(tensorflow::DEVICE_CPU), TestingSleep);

}  // namespace mpspool
