// Support for generated calls: C representation of arguments, output slots, options.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <layerzero/detail/failure.hpp>
#include <layerzero/engine.hpp>
#include <layerzero/tensor.hpp>
#include <layerzero/tokenizer.hpp>

namespace lz {

/// A required param: omitting it is a compile error.
template <class T> struct Required {
    T value;
    constexpr Required(T given) noexcept : value(given) {}
    constexpr operator T() const noexcept { return value; }
};

/// Allocates the outputs that the caller does not pass.
class Allocator {
  public:
    virtual ~Allocator() = default;
    /// Allocates at least `bytes` bytes with this alignment on a device; returns null on failure.
    virtual void *allocate(std::uint64_t bytes, std::uint64_t alignment, Device target) noexcept = 0;
    /// Releases memory from `allocate`.
    virtual void release(void *memory, Device target) noexcept = 0;
};

/// Options of a call.
struct Options {
    /// The stream on the tensors' device; null is the device's default stream.
    void *stream = nullptr;
    /// Allocator for outputs; null allocates host memory.
    std::shared_ptr<Allocator> allocator = nullptr;
};

namespace detail {

/// Passes a parameter: writes its field and sets its bit in `given`.
template <class Field, class Value>
void pass(std::uint64_t &given, unsigned bit, Field &field, const Required<Value> &from) noexcept {
    given |= std::uint64_t{1} << bit;
    field = static_cast<Field>(from.value);
}
template <class Field, class Value>
void pass(std::uint64_t &given, unsigned bit, Field &field, const std::optional<Value> &from) noexcept {
    if (from) {
        pass(given, bit, field, Required<Value>(*from));
    }
}

/// The C representation of texts; must not outlive them.
class CrossingTexts {
  public:
    explicit CrossingTexts(std::span<const std::string_view> texts) {
        items_.reserve(texts.size());
        for (const std::string_view text : texts) {
            items_.push_back({text.data(), text.size()});
        }
        texts_ = {items_.data(), items_.size()};
    }
    [[nodiscard]] const lz_texts *raw() const noexcept { return &texts_; }

  private:
    std::vector<lz_text> items_;
    lz_texts texts_{};
};

/// The output slots of one call; releases the outputs that were not taken.
template <std::size_t N> class Outputs {
  public:
    explicit Outputs(const Options &options) : given_(options) {
        options_.size = sizeof(options_);
        options_.stream = options.stream;
        options_.context = options.allocator.get();
        options_.allocate = options.allocator ? allocate_there : allocate_here;
        for (lz_output &output : outputs_) {
            output.state = LZ_OUTPUT_WANTED;
            output.given = nullptr;
            output.owner = nullptr;
            output.release = nullptr;
            output.texts = {};
        }
    }
    Outputs(const Outputs &) = delete;
    Outputs &operator=(const Outputs &) = delete;
    ~Outputs() {
        for (lz_output &output : outputs_) {
            if (output.state == LZ_OUTPUT_ALLOCATED || output.state == LZ_OUTPUT_OWNED) [[unlikely]] {
                (void)hold(output);
            }
        }
    }

    [[nodiscard]] lz_output *data() noexcept { return outputs_.data(); }
    [[nodiscard]] const lz_call_options *options() const noexcept { return &options_; }

    /// Sets the tensor of an output.
    void give(std::size_t at, const TensorMut &tensor) noexcept {
        outputs_[at].given = tensor.raw();
        outputs_[at].state = LZ_OUTPUT_GIVEN;
    }
    void give(std::size_t at, const std::optional<TensorMut> &tensor) noexcept {
        if (tensor) {
            give(at, *tensor);
        }
    }

    /// Takes a required output.
    [[nodiscard]] Tensor take(std::size_t at) {
        const lz_tensor tensor = outputs_[at].tensor;
        return Tensor(tensor, hold(outputs_[at]));
    }
    /// Takes an optional output.
    [[nodiscard]] std::optional<Tensor> take_optional(std::size_t at) {
        if (outputs_[at].state == LZ_OUTPUT_ABSENT) {
            return std::nullopt;
        }
        return take(at);
    }
    /// Takes a text output.
    [[nodiscard]] std::vector<std::string> take_texts(std::size_t at) {
        const lz_texts texts = outputs_[at].texts;
        std::vector<std::string> taken;
        taken.reserve(texts.count);
        for (std::size_t item = 0; item < texts.count; ++item) {
            taken.emplace_back(texts.items[item].data, texts.items[item].size);
        }
        return taken;
    }

  private:
    static void *allocate_here(void *, std::uint64_t bytes, std::uint64_t alignment, std::uint32_t platform,
                               std::uint32_t) {
        if (platform != LZ_CPU || bytes > SIZE_MAX - alignment) {
            return nullptr;
        }
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    static void *allocate_there(void *context, std::uint64_t bytes, std::uint64_t alignment, std::uint32_t platform,
                                std::uint32_t device) {
        const Device target{static_cast<Platform>(platform), static_cast<std::uint16_t>(device)};
        return static_cast<Allocator *>(context)->allocate(bytes, alignment, target);
    }

    /// The owner of the memory of an output.
    std::shared_ptr<void> hold(lz_output &output) {
        const std::uint32_t state = std::exchange(output.state, LZ_OUTPUT_WANTED);
        if (state == LZ_OUTPUT_OWNED) {
            return std::shared_ptr<void>(output.owner, output.release);
        }
        if (!given_.allocator) {
            return std::shared_ptr<void>(output.tensor.data, std::free);
        }
        const Device target = TensorView::borrow(&output.tensor).device();
        return std::shared_ptr<void>(output.tensor.data, [allocator = given_.allocator, target](void *memory) {
            allocator->release(memory, target);
        });
    }

    const Options &given_;
    lz_call_options options_;
    // Not initialized completely: the call writes the rest.
    std::array<lz_output, N> outputs_;
};

} // namespace detail
} // namespace lz
