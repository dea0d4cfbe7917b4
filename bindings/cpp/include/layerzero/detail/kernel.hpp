// Adapts a kernel object in C++ to the C ABI. Exceptions do not escape: they become a status and a message.
#pragma once

#include <cstring>
#include <exception>
#include <new>

#include <layerzero/detail/call.hpp>
#include <layerzero/kernel.hpp>

namespace lz {
namespace detail {

inline std::vector<std::string_view> borrow_texts(const lz_texts &texts) {
    std::vector<std::string_view> views;
    views.reserve(texts.count);
    for (std::size_t at = 0; at < texts.count; ++at) {
        views.emplace_back(texts.items[at].data, texts.items[at].size);
    }
    return views;
}

inline lz_status fail(lz_run *run, lz_status status, const char *message) noexcept {
    if (run != nullptr && run->error != nullptr && run->error_capacity > 0) {
        const std::size_t length = std::min(std::strlen(message), run->error_capacity - 1);
        std::memcpy(run->error, message, length);
        run->error[length] = '\0';
    }
    return status;
}

/// The status of the exception that is being handled.
inline lz_status caught(lz_run *run) noexcept {
    try {
        throw;
    } catch (const Declined &error) {
        return fail(run, LZ_DECLINED, error.what());
    } catch (const std::bad_alloc &error) {
        return fail(run, LZ_OUT_OF_MEMORY, error.what());
    } catch (const std::exception &error) {
        return fail(run, LZ_FAILED, error.what());
    } catch (...) {
        return fail(run, LZ_FAILED, "the kernel threw an exception that is not a std::exception");
    }
}

/// A kernel object of any operation. One type, because smart pointers for each operation would take most of the time of compiling
/// a program.
class AnyKernel {
  public:
    virtual ~AnyKernel() = default;
};

/// Owns a kernel object and the vtable that refers to it.
struct KernelOwner {
    std::unique_ptr<const AnyKernel> object;

    virtual ~KernelOwner() = default;
};

template <class Vtable> struct OwnedKernel final : KernelOwner {
    Vtable vtable{};
};

/// The C functions of a kernel object.
template <class Abi, class Object> struct Table {
    static lz_status workspace(void *context, const typename Abi::Args *args, std::uint64_t *bytes) noexcept {
        try {
            *bytes = Abi::with_arguments(
                *args, [&](const typename Abi::Arguments &call) { return object(context).workspace(call); });
            return LZ_OK;
        } catch (...) {
            return caught(nullptr);
        }
    }
    static lz_status run(void *context, const typename Abi::Args *args, const typename Abi::Out *out,
                         lz_run *run) noexcept {
        try {
            Run borrowed(run);
            Abi::with_arguments(*args, [&](const typename Abi::Arguments &call) {
                object(context).run(call, Abi::output_slots(*out), borrowed);
            });
            return LZ_OK;
        } catch (...) {
            return caught(run);
        }
    }

  private:
    static const Object &object(void *context) noexcept {
        return static_cast<const Object &>(*static_cast<KernelOwner *>(context)->object);
    }
};

template <class Abi, class Object> Kernel make_kernel(std::string id, std::unique_ptr<const Object> object) {
    auto *owned = new OwnedKernel<typename Abi::Vtable>;
    std::shared_ptr<KernelOwner> owner(static_cast<KernelOwner *>(owned));
    owner->object = std::unique_ptr<const AnyKernel>(object.release());
    owned->vtable.size = sizeof(owned->vtable);
    owned->vtable.context = owner.get();
    owned->vtable.workspace = &Table<Abi, Object>::workspace;
    owned->vtable.run = &Table<Abi, Object>::run;
    const void *table = &owned->vtable;
    return Kernel(std::move(id), Abi::Arguments::operation, Abi::Arguments::version,
                  std::shared_ptr<const void>(std::move(owner), table));
}

/// A kernel that is a function.
template <class Abi, class Object, class Function> Kernel make_function_kernel(std::string id, Function function) {
    struct Called final : Object {
        Function function;
        explicit Called(Function given) : function(std::move(given)) {}
        void run(const typename Abi::Arguments &call, const typename Abi::Places &out, Run &run) const override {
            function(call, out, run);
        }
    };
    return make_kernel<Abi, Object>(std::move(id), std::unique_ptr<const Object>(new Called(std::move(function))));
}

} // namespace detail

/// A kernel written in C++ of the operation with these arguments and output slots. Parameters have values; an exception
/// becomes the kernel's failure.
template <class Arguments, class Out> class OperationKernel : public detail::AnyKernel {
  public:
    /// Runs a checked call, from any thread.
    virtual void run(const Arguments &call, const Out &out, Run &run) const = 0;
    /// Bytes of scratch memory that a call needs, at most what the descriptor declares.
    virtual std::uint64_t workspace([[maybe_unused]] const Arguments &call) const { return 0; }
};

inline void Engine::register_backend(std::string_view descriptor, std::vector<Kernel> kernels) const {
    rust::Vec<bridge::KernelRecord> records;
    for (const Kernel &kernel : kernels) {
        bridge::KernelRecord record;
        record.id = kernel.id();
        record.operation = kernel.operation();
        record.operation_version = kernel.operation_version();
        record.vtable = reinterpret_cast<std::uintptr_t>(kernel.vtable());
        records.push_back(std::move(record));
    }
    // The engine owns the kernels and calls the deleter when it drops the last one.
    auto *owner = new std::vector<Kernel>(std::move(kernels));
    bridge::Failure *failure = bridge::engine_register(
        *engine_, detail::to_str(descriptor), {records.data(), records.size()},
        reinterpret_cast<std::uintptr_t>(owner),
        reinterpret_cast<std::uintptr_t>(
            +[](void *given) { delete static_cast<std::vector<Kernel> *>(given); }));
    detail::check(failure);
}

} // namespace lz
