// Describes torch tensors, and converts them from and to handles, through torch's C++ API. Compiled against the headers of the installed torch by
// `lz torch-extension build`; no layout is assumed, because torch's own inline functions are compiled in.

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

namespace {

// The same as `Description` and `Outcome` in bindings/python/src/tensor/torch/extension.rs.
struct Description {
  void* data;
  const std::int64_t* sizes;
  const std::int64_t* strides;
  std::int64_t rank;
  std::int32_t dtype;
  std::int32_t device_type;
  std::int32_t device_index;
};

enum Outcome : std::int32_t { DESCRIBED = 0, NEGATED = 1, REQUIRES_GRAD = 2, UNUSUAL = 3 };

Outcome describe(const at::Tensor& tensor, Description& description) {
  if (!tensor.defined()) {
    return UNUSUAL;
  }
  if (tensor.requires_grad() && c10::GradMode::is_enabled()) {
    return REQUIRES_GRAD;
  }
  if (tensor.layout() != c10::kStrided) {
    return UNUSUAL;
  }
  if (tensor.is_neg()) {
    return NEGATED;
  }
  const auto sizes = tensor.sizes();
  const auto device = tensor.device();
  description.data = tensor.mutable_data_ptr();
  description.sizes = sizes.data();
  description.strides = tensor.strides().data();
  description.rank = static_cast<std::int64_t>(sizes.size());
  description.dtype = static_cast<std::int32_t>(tensor.scalar_type());
  description.device_type = static_cast<std::int32_t>(device.type());
  description.device_index = device.index();
  return DESCRIBED;
}

}  // namespace

// The object is a `torch.Tensor` or `torch.nn.Parameter`, not an instance of another subclass.
extern "C" __attribute__((visibility("default"))) std::int32_t layerzero_describe_tensor_1(
    PyObject* object,
    Description* description) noexcept {
  try {
    return describe(THPVariable_Unpack(object), *description);
  } catch (...) {
    // Tensors without memory or without sizes raise; the DLPack exchange API reports what is wrong with them.
    return UNUSUAL;
  }
}

// A handle of torch's C ABI that shares the tensor of an object, as torch's own function from 2.14 on. Zero is success.
extern "C" __attribute__((visibility("default"))) std::int32_t layerzero_tensor_from_object_1(
    PyObject* object,
    AtenTensorHandle* handle) noexcept {
  try {
    *handle = torch::aot_inductor::new_tensor_handle(at::Tensor(THPVariable_Unpack(object)));
    return 0;
  } catch (...) {
    return 1;
  }
}

// A Python object that shares the tensor of a handle. The second argument is a type in torch's function of the same signature; it is null.
extern "C" __attribute__((visibility("default"))) std::int32_t layerzero_object_from_tensor_1(
    AtenTensorHandle handle,
    void*,
    PyObject** object) noexcept {
  try {
    *object = THPVariable_Wrap(*torch::aot_inductor::tensor_handle_to_tensor_pointer(handle));
    return *object == nullptr;
  } catch (...) {
    return 1;
  }
}
