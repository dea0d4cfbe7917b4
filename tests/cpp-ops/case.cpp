// Reads cases and compares results.
#include "checks.hpp"

#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace {

std::shared_ptr<std::uint8_t[]> aligned(std::size_t size) {
    auto *memory = static_cast<std::uint8_t *>(std::aligned_alloc(64, (size + 63) / 64 * 64 + 64));
    return {memory, [](std::uint8_t *memory) { std::free(memory); }};
}

double half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double mantissa = bits & 1023;
    double value = 0.0;
    if (exponent == 31) {
        value = mantissa == 0.0 ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = std::ldexp(mantissa, -24);
    } else {
        value = std::ldexp(1024.0 + mantissa, exponent - 25);
    }
    return (bits >> 15) != 0 ? -value : value;
}

/// An eight-bit float with this many bits of mantissa; `e4m3` has no infinities.
double eighth(std::uint8_t bits, int mantissa_bits, int bias) {
    const int magnitude = bits & 0x7f;
    const int exponent = magnitude >> mantissa_bits;
    const double mantissa = magnitude & ((1 << mantissa_bits) - 1);
    double value = 0.0;
    if (mantissa_bits == 3 && magnitude == 0x7f) {
        value = NAN;
    } else if (mantissa_bits == 2 && exponent == 31) {
        value = mantissa == 0.0 ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    } else {
        value = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    }
    return (bits >> 7) != 0 ? -value : value;
}

template <class T> T load(const std::uint8_t *from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

std::optional<double> element(lz::DType dtype, const std::uint8_t *from) {
    switch (dtype) {
    case lz::DType::F64: return load<double>(from);
    case lz::DType::F32: return load<float>(from);
    case lz::DType::F16: return half(load<std::uint16_t>(from));
    case lz::DType::BF16: {
        const std::uint32_t bits = static_cast<std::uint32_t>(load<std::uint16_t>(from)) << 16;
        float value = 0.0F;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
    }
    case lz::DType::F8_E4M3: return eighth(*from, 3, 7);
    case lz::DType::F8_E5M2: return eighth(*from, 2, 15);
    case lz::DType::I8: return static_cast<std::int8_t>(*from);
    default: return std::nullopt;
    }
}

bool agree(double actual, double expected, double rtol, double atol) {
    if (std::isnan(actual) || std::isnan(expected)) {
        return std::isnan(actual) == std::isnan(expected);
    }
    return actual == expected || std::fabs(actual - expected) <= atol + rtol * std::fabs(expected);
}

} // namespace

void Case::restore() {
    for (auto &[name, argument] : arguments) {
        if (argument.tag == 1 || argument.tag == 2) {
            std::memcpy(argument.memory.window.get(), argument.memory.original.data(),
                        argument.memory.original.size());
        }
    }
}

lz::Tensor Case::output_tensor(const std::string &name) {
    const Expected &result = expected.at(name);
    lz::Tensor tensor = lz::Tensor::empty(result.dtype, lz::Dims(result.shape));
    std::memset(tensor.view_mut().data(), 0x5a, result.bytes.size());
    return tensor;
}

std::optional<lz::Tensor> Case::optional_output_tensor(const std::string &name) {
    if (expected.at(name).tag == 0) {
        return std::nullopt;
    }
    return output_tensor(name);
}

void Case::compare(const std::string &name, const Expected &result, const std::uint8_t *actual, bool exact) {
    const std::size_t size = lz::size_of(result.dtype);
    for (std::size_t at = 0; at + size <= result.bytes.size(); at += size) {
        const std::uint8_t *expected_bytes = result.bytes.data() + at;
        if (std::memcmp(actual + at, expected_bytes, size) == 0) {
            continue;
        }
        const auto actual_value = element(result.dtype, actual + at);
        const auto expected_value = element(result.dtype, expected_bytes);
        if (!exact && result.rtol >= 0.0 && actual_value && expected_value &&
            agree(*actual_value, *expected_value, result.rtol, result.atol)) {
            continue;
        }
        problems.push_back(name + ": element " + std::to_string(at / size) + " is " +
                           std::to_string(actual_value.value_or(0)) + ", expected " +
                           std::to_string(expected_value.value_or(0)));
        return;
    }
}

void Case::expect(const std::string &name, const lz::Tensor &found, bool exact) {
    const Expected &result = expected.at(name);
    if (result.tag != 1 || found.dtype() != result.dtype ||
        !std::equal(found.shape().begin(), found.shape().end(), result.shape.begin(), result.shape.end())) {
        problems.push_back(name + " has a different shape or dtype than the reference");
        return;
    }
    compare(name, result, static_cast<const std::uint8_t *>(found.data()), exact);
}

void Case::expect(const std::string &name, const std::optional<lz::Tensor> &found, bool exact) {
    if (found.has_value() != (expected.at(name).tag != 0)) {
        problems.push_back(name + " is present only in one of the result and the reference");
    } else if (found) {
        expect(name, *found, exact);
    }
}

void Case::expect(const std::string &name, const std::vector<std::string> &found, bool) {
    if (found != expected.at(name).texts) {
        problems.push_back(name + " has different texts than the reference");
    }
}

void Case::expect_written(bool exact) {
    for (const auto &[name, argument] : arguments) {
        if (argument.tag != 2) {
            continue;
        }
        const bool same =
            std::memcmp(argument.memory.window.get(), argument.after.data(), argument.after.size()) == 0;
        if (!same && exact) {
            problems.push_back(name + ": the in-place result differs from the reference");
        }
    }
}

Reader::Reader(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

template <class T> T Reader::number() {
    if (bytes_.size() - at_ < sizeof(T)) {
        throw std::runtime_error("the file of cases is truncated");
    }
    const T value = load<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return value;
}

std::vector<std::uint8_t> Reader::block() {
    const auto size = static_cast<std::size_t>(number<std::uint64_t>());
    if (bytes_.size() - at_ < size) {
        throw std::runtime_error("the file of cases is truncated");
    }
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    at_ += size;
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

std::string Reader::text() {
    const std::vector<std::uint8_t> bytes = block();
    return {bytes.begin(), bytes.end()};
}

std::vector<std::int64_t> Reader::sizes() {
    std::vector<std::int64_t> sizes(number<std::uint32_t>());
    for (std::int64_t &size : sizes) {
        size = number<std::int64_t>();
    }
    return sizes;
}

std::vector<std::string> Reader::strings() {
    std::vector<std::string> texts(number<std::uint32_t>());
    for (std::string &one : texts) {
        one = text();
    }
    return texts;
}

bool Reader::next(Case &drawn) {
    if (at_ == bytes_.size()) {
        return false;
    }
    drawn = Case();
    drawn.operation = text();
    for (auto count = number<std::uint32_t>(); count > 0; --count) {
        const std::string name = text();
        Argument argument;
        argument.tag = number<std::uint8_t>();
        switch (argument.tag) {
        case 0: break;
        case 1:
        case 2: {
            Memory &memory = argument.memory;
            memory.dtype = static_cast<lz::DType>(number<std::uint8_t>());
            memory.shape = sizes();
            memory.strides = sizes();
            memory.first = number<std::uint64_t>();
            memory.original = block();
            memory.window = aligned(memory.original.size());
            std::memcpy(memory.window.get(), memory.original.data(), memory.original.size());
            if (argument.tag == 2) {
                argument.after = block();
            }
            break;
        }
        case 3:
            argument.texts = strings();
            break;
        case 4: argument.tokenizer = std::make_unique<lz::Tokenizer>(lz::Tokenizer::from_json(text())); break;
        case 6: argument.real = number<double>(); break;
        default: argument.integer = number<std::int64_t>(); break;
        }
        Argument &stored = drawn.arguments[name] = std::move(argument);
        stored.views.assign(stored.texts.begin(), stored.texts.end());
    }
    for (auto count = number<std::uint32_t>(); count > 0; --count) {
        const std::string name = text();
        Expected result;
        result.tag = number<std::uint8_t>();
        if (result.tag == 1) {
            result.dtype = static_cast<lz::DType>(number<std::uint8_t>());
            result.shape = sizes();
            result.bytes = block();
            result.rtol = number<double>();
            result.atol = number<double>();
        } else if (result.tag == 2) {
            result.texts = strings();
        }
        drawn.expected[name] = std::move(result);
    }
    return true;
}
