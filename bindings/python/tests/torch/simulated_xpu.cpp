// A torch device of type `xpu` whose memory is that of the host and whose functions run there. Tests use it, because the machines that run
// them have no GPU: for torch and for everything that calls it, its tensors are on an Intel GPU.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

constexpr c10::DeviceType XPU = c10::DeviceType::XPU;
constexpr c10::DeviceIndex DEVICES = 2;
thread_local c10::DeviceIndex current = 0;

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void* memory = c10::alloc_cpu(bytes);
        return {memory, memory, &c10::free_cpu, c10::Device(XPU, current)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(XPU, &allocator)

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return XPU; }
    c10::Device exchangeDevice(c10::Device device) const override {
        return c10::Device(XPU, std::exchange(current, device.index()));
    }
    c10::Device getDevice() const override { return c10::Device(XPU, current); }
    void setDevice(c10::Device device) const override { current = device.index(); }
    void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
    c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
    c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
    c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
    c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
    c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(XPU, Guard)

// The memory of a tensor as a tensor of the host.
at::Tensor on_host(const at::Tensor& tensor) {
    if (!tensor.is_xpu()) {
        return tensor;
    }
    return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                         tensor.options().device(c10::kCPU));
}

c10::Device device_or_current(std::optional<c10::Device> device) {
    return device && device->has_index() ? *device : c10::Device(XPU, current);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
    c10::DeviceGuard guard(device_or_current(device));
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::XPU),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
    c10::DeviceGuard guard(device_or_current(device));
    return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::XPU), c10::dtype_or_default(dtype));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool) {
    on_host(self).copy_(on_host(from));
    return self;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
    on_host(to).copy_(on_host(from));
    return to;
}

// Allocates on the device of the tensor.
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
    c10::DeviceGuard guard(self.device());
    return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
    if (to.sizes() != from.sizes()) {
        resize_(to, from.sym_sizes(), std::nullopt);
    }
    return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return on_host(self).item(); }

void fallback(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
    at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
    library.impl("empty.memory_format", empty);
    library.impl("empty_strided", empty_strided);
    library.impl("copy_", copy_);
    library.impl("_copy_from", copy_from);
    library.impl("_copy_from_and_resize", copy_from_and_resize);
    library.impl("_local_scalar_dense", local_scalar_dense);
    library.impl("as_strided", at::native::as_strided_tensorimpl);
    library.impl("view", at::native::view);
    library.impl("_reshape_alias", at::native::_reshape_alias);
    library.impl("resize_", resize_);
    // Without a kernel of the device torch would use a composition that is less accurate.
    library.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, XPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

namespace at {

struct XPUHooks final : at::XPUHooksInterface {
    void init() const override {}
    bool hasXPU() const override { return true; }
    int32_t getGlobalIdxFromDevice(const c10::Device& device) const override { return device.index(); }
    c10::DeviceIndex getNumGPUs() const override { return DEVICES; }
    c10::DeviceIndex current_device() const override { return current; }
    void deviceSynchronize(c10::DeviceIndex) const override {}
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::Device getDeviceFromPtr(void*) const override { return c10::Device(XPU, current); }
};
// torch finds the hooks by the name of their type.
REGISTER_XPU_HOOKS(XPUHooks)

}  // namespace at
