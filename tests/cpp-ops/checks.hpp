// Cases that Rust drew and ran, as C++ reads them, and how results are held to them.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <layerzero/layerzero.hpp>

/// The engines that every case is run by.
struct Engines {
    lz::Engine reference = lz::Engine::reference();
    lz::Engine selected;
};

/// A tensor with its memory: a window in which the elements lie with any strides.
struct Memory {
    lz::DType dtype{};
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    std::uint64_t first = 0;
    std::vector<std::uint8_t> original;
    /// What runs see; aligned for every dtype, as it was in Rust.
    std::shared_ptr<std::uint8_t[]> window;

    [[nodiscard]] lz::TensorMut view() const {
        return {window.get() + first, dtype, lz::Dims(shape), lz::Dims(strides)};
    }
};

/// One argument.
struct Argument {
    std::uint8_t tag = 0;
    Memory memory;
    std::vector<std::uint8_t> after; // what the reference left in the window
    std::vector<std::string> texts;
    std::vector<std::string_view> views;
    std::unique_ptr<lz::Tokenizer> tokenizer;
    std::int64_t integer = 0;
    double real = 0.0;
};

/// One result of the reference.
struct Wanted {
    std::uint8_t tag = 0;
    lz::DType dtype{};
    std::vector<std::int64_t> shape;
    std::vector<std::uint8_t> bytes;
    std::vector<std::string> texts;
    double rtol = -1.0; // negative: bit for bit
    double atol = 0.0;
};

/// One call.
class Case {
  public:
    std::string operation;
    std::map<std::string, Argument> arguments;
    std::map<std::string, Wanted> wanted;
    std::vector<std::string> problems;
    bool echoed = false; // a kernel in C++ handed the call on

    [[nodiscard]] lz::TensorView tensor(const std::string &name) { return arguments.at(name).memory.view(); }
    [[nodiscard]] lz::TensorMut tensor_mut(const std::string &name) { return arguments.at(name).memory.view(); }
    [[nodiscard]] std::optional<lz::TensorView> optional_tensor(const std::string &name) {
        if (arguments.at(name).tag == 0) {
            return std::nullopt;
        }
        return tensor(name);
    }
    [[nodiscard]] std::optional<lz::TensorMut> optional_tensor_mut(const std::string &name) {
        if (arguments.at(name).tag == 0) {
            return std::nullopt;
        }
        return tensor_mut(name);
    }
    [[nodiscard]] std::span<const std::string_view> texts(const std::string &name) { return arguments.at(name).views; }
    [[nodiscard]] const lz::Tokenizer &tokenizer(const std::string &name) { return *arguments.at(name).tokenizer; }
    template <class T> [[nodiscard]] T param(const std::string &name) {
        const Argument &argument = arguments.at(name);
        if constexpr (std::is_floating_point_v<T>) {
            return static_cast<T>(argument.tag == 6 ? argument.real : static_cast<double>(argument.integer));
        } else {
            return static_cast<T>(argument.integer);
        }
    }
    template <class T> [[nodiscard]] std::optional<T> optional_param(const std::string &name) {
        if (arguments.at(name).tag == 0) {
            return std::nullopt;
        }
        return param<T>(name);
    }

    /// Fills the windows again with what they held before the first run.
    void restore();
    /// A new tensor for a result, filled with garbage.
    [[nodiscard]] lz::Tensor place(const std::string &name);
    [[nodiscard]] std::optional<lz::Tensor> optional_place(const std::string &name);
    /// Holds a result to the reference's, bit for bit or as the schema judges.
    void expect(const std::string &name, const lz::Tensor &found, bool exact);
    void expect(const std::string &name, const std::optional<lz::Tensor> &found, bool exact);
    void expect(const std::string &name, const std::vector<std::string> &found, bool exact);
    /// Holds what was changed in place to the reference's.
    void expect_written(bool exact);

  private:
    void compare(const std::string &name, const Wanted &wanted, const std::uint8_t *found, bool exact);
};

inline lz::TensorMut mutable_view(lz::Tensor &tensor) { return tensor; }
inline std::optional<lz::TensorMut> mutable_view(std::optional<lz::Tensor> &tensor) {
    if (!tensor) {
        return std::nullopt;
    }
    return lz::TensorMut(*tensor);
}

/// How a kernel in C++ hands over what somebody else made for it.
inline void hand_over(const lz::TensorMut &place, const lz::Tensor &made, lz::Run &) {
    std::memcpy(place.data(), made.data(), static_cast<std::size_t>(made.elements()) * lz::size_of(made.dtype()));
}
inline void hand_over(const lz::DynamicOutput &place, const lz::Tensor &made, lz::Run &run) {
    hand_over(place.make(run, made.dtype(), lz::Dims(made.shape())), made, run);
}
inline void hand_over(const lz::TextsOutput &place, const std::vector<std::string> &made, lz::Run &run) {
    place.make(run, made);
}
template <class Place, class Made>
void hand_over(const std::optional<Place> &place, const std::optional<Made> &made, lz::Run &run) {
    if (place) {
        hand_over(*place, made.value(), run);
    }
}

/// How one operation is checked.
struct Check {
    const char *operation;
    void (*run)(const Engines &engines, Case &drawn);
};

/// Every operation.
const std::vector<Check> &all_checks();

/// Reads the next case; false at the end.
class Reader {
  public:
    explicit Reader(std::vector<std::uint8_t> bytes);
    bool next(Case &drawn);

  private:
    template <class T> T number();
    std::string text();
    std::vector<std::int64_t> sizes();
    std::vector<std::uint8_t> block();
    std::vector<std::string> strings();

    std::vector<std::uint8_t> bytes_;
    std::size_t at_ = 0;
};
