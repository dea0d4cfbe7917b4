// Kernels implemented in C++: the interface of a running kernel, and kernel objects for engines and plugins.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/lz_plugin.h>
#include <layerzero/tensor.hpp>

namespace lz {

/// Thrown by a kernel that declines a call before it has written any output.
class Declined : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Resources of a running kernel.
class Run {
  public:
    explicit Run(lz_run *run) noexcept : run_(run) {}

    /// The caller's stream; null on the host.
    [[nodiscard]] void *stream() const noexcept { return run_->stream; }
    /// Scratch memory of the size returned by the kernel's `workspace`, 64-byte aligned.
    [[nodiscard]] std::span<std::byte> workspace() const noexcept {
        return {static_cast<std::byte *>(run_->workspace), static_cast<std::size_t>(run_->workspace_bytes)};
    }
    [[nodiscard]] lz_run *raw() const noexcept { return run_; }

  private:
    lz_run *run_;
};

/// An output tensor whose size the kernel determines.
class DynamicOutput {
  public:
    /// Allocates the tensor.
    TensorMut make(Run &run, DType dtype, Dims shape) const {
        const lz_status status = run.raw()->make_tensor(run.raw(), output_, static_cast<std::uint8_t>(dtype),
                                                        static_cast<std::uint32_t>(shape.size()), shape.data());
        if (status != LZ_OK) {
            throw std::bad_alloc();
        }
        return TensorMut::borrow(&output_->tensor);
    }
    [[nodiscard]] static DynamicOutput borrow(lz_dynamic *output) noexcept { return DynamicOutput(output); }

  private:
    explicit DynamicOutput(lz_dynamic *output) noexcept : output_(output) {}
    lz_dynamic *output_;
};

/// A text output of a kernel.
class TextsOutput {
  public:
    /// Sets the texts.
    void make(Run &run, std::span<const std::string> texts) const {
        std::vector<lz_text> items;
        items.reserve(texts.size());
        for (const std::string &text : texts) {
            items.push_back({text.data(), text.size()});
        }
        if (run.raw()->make_texts(run.raw(), output_, items.data(), items.size()) != LZ_OK) {
            throw std::runtime_error("a text is not valid UTF-8");
        }
    }
    [[nodiscard]] static TextsOutput borrow(lz_texts_output *output) noexcept { return TextsOutput(output); }

  private:
    explicit TextsOutput(lz_texts_output *output) noexcept : output_(output) {}
    lz_texts_output *output_;
};

/// A kernel of an operation; created by `lz::ops::norm_rms_kernel(...)` and similar functions.
class Kernel {
  public:
    Kernel(std::string id, const char *operation, std::uint32_t version, std::shared_ptr<const void> vtable)
        : id_(std::move(id)), operation_(operation), version_(version), vtable_(std::move(vtable)) {}

    [[nodiscard]] const std::string &id() const noexcept { return id_; }
    [[nodiscard]] const char *operation() const noexcept { return operation_; }
    [[nodiscard]] std::uint32_t operation_version() const noexcept { return version_; }
    /// The vtable.
    [[nodiscard]] const void *vtable() const noexcept { return vtable_.get(); }

  private:
    std::string id_;
    const char *operation_;
    std::uint32_t version_;
    std::shared_ptr<const void> vtable_;
};

} // namespace lz
