// Tensors: borrowed views, and tensors that own their memory.
//
// The metadata of a view is not validated here; calls validate it and report errors. Elements are never copied here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <layerzero/dlpack.hpp>
#include <layerzero/dtype.hpp>
#include <layerzero/error.hpp>
#include <layerzero/lz_plugin.h>

namespace lz {

/// The kind of device.
enum class Platform : std::uint8_t {
    Cpu = LZ_CPU,
    Cuda = LZ_CUDA,
    Rocm = LZ_ROCM,
    Hpu = LZ_HPU,
    Xpu = LZ_XPU,
    Metal = LZ_METAL,
};

/// The device of a tensor.
struct Device {
    Platform platform = Platform::Cpu;
    /// Index of the device on its platform.
    std::uint16_t device = 0;
    friend bool operator==(const Device &, const Device &) = default;
};

/// The former name of `Device`.
using Place [[deprecated("use lz::Device")]] = Device;

/// Sizes or strides.
using Dims = std::span<const std::int64_t>;

namespace detail {

template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = DType::F64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::F32; };
template <> struct DTypeOf<std::int64_t> { static constexpr DType value = DType::I64; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::I32; };
template <> struct DTypeOf<std::int16_t> { static constexpr DType value = DType::I16; };
template <> struct DTypeOf<std::int8_t> { static constexpr DType value = DType::I8; };
template <> struct DTypeOf<std::uint64_t> { static constexpr DType value = DType::U64; };
template <> struct DTypeOf<std::uint32_t> { static constexpr DType value = DType::U32; };
template <> struct DTypeOf<std::uint16_t> { static constexpr DType value = DType::U16; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::U8; };
template <> struct DTypeOf<bool> { static constexpr DType value = DType::Bool; };

inline lz_tensor describe(void *data, DType dtype, Dims shape, const Dims *strides, Device device) {
    if (shape.size() > LZ_MAX_RANK) {
        throw ValidationError("a tensor can have at most 8 dimensions");
    }
    if (strides != nullptr && strides->size() != shape.size()) {
        throw ValidationError("the number of strides must equal the number of dimensions");
    }
    lz_tensor tensor{};
    tensor.data = data;
    tensor.rank = static_cast<std::uint32_t>(shape.size());
    tensor.dtype = static_cast<std::uint8_t>(dtype);
    tensor.platform = static_cast<std::uint8_t>(device.platform);
    tensor.device = device.device;
    std::int64_t dense = 1;
    for (std::size_t at = shape.size(); at-- > 0;) {
        tensor.shape[at] = shape[at];
        tensor.strides[at] = strides != nullptr ? (*strides)[at] : dense;
        // The call rejects sizes that overflow; this only avoids undefined behavior.
        dense = static_cast<std::int64_t>(static_cast<std::uint64_t>(dense) *
                                          static_cast<std::uint64_t>(std::max<std::int64_t>(shape[at], 1)));
    }
    return tensor;
}

/// The accessors that all views share.
class AnyView {
  public:
    /// Sizes.
    [[nodiscard]] Dims shape() const noexcept { return {tensor_.shape, tensor_.rank}; }
    /// Strides in elements.
    [[nodiscard]] Dims strides() const noexcept { return {tensor_.strides, tensor_.rank}; }
    /// Number of dimensions.
    [[nodiscard]] std::size_t rank() const noexcept { return tensor_.rank; }
    /// Element type.
    [[nodiscard]] DType dtype() const noexcept { return static_cast<DType>(tensor_.dtype); }
    /// The device.
    [[nodiscard]] Device device() const noexcept {
        return {static_cast<Platform>(tensor_.platform), tensor_.device};
    }
    /// The former name of `device`.
    [[deprecated("use device()")]] [[nodiscard]] Device place() const noexcept { return device(); }
    /// Number of elements.
    [[nodiscard]] std::int64_t elements() const noexcept {
        std::int64_t product = 1;
        for (const std::int64_t size : shape()) {
            product *= size;
        }
        return product;
    }
    /// Whether it is dense row-major.
    [[nodiscard]] bool is_contiguous() const noexcept {
        std::int64_t expected = 1;
        for (std::size_t at = tensor_.rank; at-- > 0;) {
            if (tensor_.shape[at] == 0) {
                return true;
            }
            if (tensor_.shape[at] != 1 && tensor_.strides[at] != expected) {
                return false;
            }
            expected *= tensor_.shape[at];
        }
        return true;
    }

  protected:
    explicit AnyView(const lz_tensor &tensor) noexcept : tensor_(tensor) {}

    template <class T> [[nodiscard]] std::span<T> elements_as() const {
        if (dtype() != DTypeOf<std::remove_const_t<T>>::value || device() != Device{} || !is_contiguous()) {
            throw ValidationError("the tensor is not contiguous, not in host memory, or has another dtype");
        }
        return {static_cast<T *>(tensor_.data), static_cast<std::size_t>(elements())};
    }

    lz_tensor tensor_;
};

} // namespace detail

class TensorMut;
class Tensor;

/// A borrowed read-only tensor.
class TensorView : public detail::AnyView {
  public:
    /// A view of dense row-major host memory.
    template <class T>
    TensorView(std::span<T> data, Dims shape)
        : AnyView(detail::describe(const_cast<std::remove_const_t<T> *>(data.data()),
                                   detail::DTypeOf<std::remove_const_t<T>>::value, shape, nullptr, {})) {
        if (elements() > static_cast<std::int64_t>(data.size())) {
            throw ValidationError("the span has fewer elements than the shape");
        }
    }
    template <class T>
    TensorView(std::span<T> data, std::initializer_list<std::int64_t> shape)
        : TensorView(data, Dims(shape.begin(), shape.size())) {}
    /// A view of memory on any device, dense row-major.
    TensorView(const void *data, DType dtype, Dims shape, Device device = {})
        : AnyView(detail::describe(const_cast<void *>(data), dtype, shape, nullptr, device)) {}
    /// A view of memory on any device, with strides in elements.
    TensorView(const void *data, DType dtype, Dims shape, Dims strides, Device device = {})
        : AnyView(detail::describe(const_cast<void *>(data), dtype, shape, &strides, device)) {}
    /// The bytes of a text, for inputs that are texts (`score_mod`); the text must outlive the view.
    [[nodiscard]] static TensorView of_text(std::string_view text) {
        const std::int64_t length = static_cast<std::int64_t>(text.size());
        return TensorView(text.data(), DType::U8, Dims(&length, 1));
    }
    /// A read-only view of a writable one.
    TensorView(const TensorMut &tensor) noexcept;
    /// A view of a tensor; the tensor must outlive it.
    TensorView(const Tensor &tensor) noexcept;

    /// The first element.
    [[nodiscard]] const void *data() const noexcept { return tensor_.data; }
    /// The elements; throws unless they are dense, in host memory and of this type.
    template <class T> [[nodiscard]] std::span<const T> as() const { return elements_as<const T>(); }

    /// The C representation.
    [[nodiscard]] const lz_tensor *raw() const noexcept { return &tensor_; }
    /// From the C representation.
    [[nodiscard]] static TensorView borrow(const lz_tensor *tensor) noexcept { return TensorView(*tensor); }

  private:
    explicit TensorView(const lz_tensor &tensor) noexcept : AnyView(tensor) {}
};

/// A borrowed writable tensor.
class TensorMut : public detail::AnyView {
  public:
    /// A view of dense row-major host memory.
    template <class T>
        requires(!std::is_const_v<T>)
    TensorMut(std::span<T> data, Dims shape)
        : AnyView(detail::describe(data.data(), detail::DTypeOf<T>::value, shape, nullptr, {})) {
        if (elements() > static_cast<std::int64_t>(data.size())) {
            throw ValidationError("the span has fewer elements than the shape");
        }
    }
    template <class T>
        requires(!std::is_const_v<T>)
    TensorMut(std::span<T> data, std::initializer_list<std::int64_t> shape)
        : TensorMut(data, Dims(shape.begin(), shape.size())) {}
    /// A view of memory on any device, dense row-major.
    TensorMut(void *data, DType dtype, Dims shape, Device device = {})
        : AnyView(detail::describe(data, dtype, shape, nullptr, device)) {}
    /// A view of memory on any device, with strides in elements.
    TensorMut(void *data, DType dtype, Dims shape, Dims strides, Device device = {})
        : AnyView(detail::describe(data, dtype, shape, &strides, device)) {}
    /// A view of a tensor; the tensor must outlive it.
    TensorMut(Tensor &tensor) noexcept;

    /// The first element.
    [[nodiscard]] void *data() const noexcept { return tensor_.data; }
    /// The elements; throws unless they are dense, in host memory and of this type.
    template <class T> [[nodiscard]] std::span<T> as() const { return elements_as<T>(); }

    /// The C representation.
    [[nodiscard]] lz_tensor *raw() const noexcept { return const_cast<lz_tensor *>(&tensor_); }
    /// From the C representation.
    [[nodiscard]] static TensorMut borrow(const lz_tensor *tensor) noexcept { return TensorMut(*tensor); }

  private:
    explicit TensorMut(const lz_tensor &tensor) noexcept : AnyView(tensor) {}
    friend class TensorView;
};

inline TensorView::TensorView(const TensorMut &tensor) noexcept : AnyView(*tensor.raw()) {}

/// A tensor that owns its memory or shares its ownership. Copies share the memory.
class Tensor {
  public:
    /// Allocates dense row-major host memory, not initialized.
    static Tensor empty(DType dtype, Dims shape) {
        lz_tensor tensor = detail::describe(nullptr, dtype, shape, nullptr, {});
        std::size_t bytes = size_of(dtype);
        for (const std::int64_t size : shape) {
            bytes *= static_cast<std::size_t>(size);
        }
        void *memory = std::aligned_alloc(64, (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64);
        if (memory == nullptr) {
            throw std::bad_alloc();
        }
        tensor.data = memory;
        return Tensor(tensor, std::shared_ptr<void>(memory, std::free));
    }
    static Tensor empty(DType dtype, std::initializer_list<std::int64_t> shape) {
        return empty(dtype, Dims(shape.begin(), shape.size()));
    }

    /// Takes ownership of a DLPack tensor without copying; its deleter is called when the last copy is destroyed.
    static Tensor from_dlpack(DLManagedTensorVersioned *managed) {
        if (managed == nullptr) {
            throw ValidationError("the DLPack tensor is null");
        }
        std::shared_ptr<void> owner(managed, [](void *given) {
            auto *tensor = static_cast<DLManagedTensorVersioned *>(given);
            if (tensor->deleter != nullptr) {
                tensor->deleter(tensor);
            }
        });
        if (managed->version.major != DLPACK_MAJOR_VERSION) {
            throw ValidationError("the DLPack tensor has an unsupported major version");
        }
        return Tensor(detail::from_dlpack(managed->dl_tensor), std::move(owner),
                      (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0);
    }
    /// As above, for the unversioned structure of DLPack before 1.0.
    static Tensor from_dlpack(DLManagedTensor *managed) {
        if (managed == nullptr) {
            throw ValidationError("the DLPack tensor is null");
        }
        std::shared_ptr<void> owner(managed, [](void *given) {
            auto *tensor = static_cast<DLManagedTensor *>(given);
            if (tensor->deleter != nullptr) {
                tensor->deleter(tensor);
            }
        });
        return Tensor(detail::from_dlpack(managed->dl_tensor), std::move(owner));
    }

    /// Exports the tensor to DLPack without copying; the receiver calls the deleter.
    [[nodiscard]] DLManagedTensorVersioned *to_dlpack() const {
        struct Shared {
            DLManagedTensorVersioned managed{};
            lz_tensor tensor{};
            std::shared_ptr<void> owner;
        };
        auto shared = std::make_unique<Shared>();
        shared->tensor = tensor_;
        shared->owner = owner_;
        shared->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
        shared->managed.manager_ctx = shared.get();
        shared->managed.flags = read_only_ ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
        shared->managed.deleter = [](DLManagedTensorVersioned *given) {
            delete static_cast<Shared *>(given->manager_ctx);
        };
        detail::to_dlpack(shared->tensor, shared->managed.dl_tensor);
        return &shared.release()->managed;
    }

    /// A read-only view.
    [[nodiscard]] TensorView view() const noexcept { return TensorView::borrow(&tensor_); }
    /// A writable view.
    [[nodiscard]] TensorMut view_mut() {
        if (read_only_) {
            throw ValidationError("the tensor is read-only");
        }
        return TensorMut::borrow(&tensor_);
    }

    [[nodiscard]] Dims shape() const noexcept { return {tensor_.shape, tensor_.rank}; }
    [[nodiscard]] Dims strides() const noexcept { return {tensor_.strides, tensor_.rank}; }
    [[nodiscard]] DType dtype() const noexcept { return static_cast<DType>(tensor_.dtype); }
    [[nodiscard]] Device device() const noexcept { return view().device(); }
    /// The former name of `device`.
    [[deprecated("use device()")]] [[nodiscard]] Device place() const noexcept { return device(); }
    [[nodiscard]] std::int64_t elements() const noexcept { return view().elements(); }
    [[nodiscard]] const void *data() const noexcept { return tensor_.data; }
    /// The elements; throws unless they are dense, in host memory and of this type.
    template <class T> [[nodiscard]] std::span<const T> as() const { return view().as<T>(); }
    template <class T> [[nodiscard]] std::span<T> as_mut() { return view_mut().as<T>(); }

    /// A tensor in memory owned by `owner`.
    Tensor(const lz_tensor &tensor, std::shared_ptr<void> owner, bool read_only = false) noexcept
        : tensor_(tensor), owner_(std::move(owner)), read_only_(read_only) {}

  private:
    lz_tensor tensor_;
    std::shared_ptr<void> owner_;
    bool read_only_ = false;
};

inline TensorView::TensorView(const Tensor &tensor) noexcept : TensorView(tensor.view()) {}
inline TensorMut::TensorMut(Tensor &tensor) noexcept : TensorMut(*tensor.view().raw()) {}

} // namespace lz
