// Failures of the bridge as exceptions.
#pragma once

#include <string>
#include <string_view>

#include <layerzero/detail/bridge.h>
#include <layerzero/error.hpp>

namespace lz::detail {

inline Reason to_reason(const bridge::Reason &reason) {
    return {std::string(reason.code),     std::string(reason.argument), std::string(reason.axis),
            std::string(reason.required), std::string(reason.found),    std::string(reason.message)};
}

inline std::vector<Reason> to_reasons(const rust::Vec<bridge::Reason> &given) {
    std::vector<Reason> reasons;
    reasons.reserve(given.size());
    for (const bridge::Reason &reason : given) {
        reasons.push_back(to_reason(reason));
    }
    return reasons;
}

[[noreturn]] inline void raise(bridge::Failure *given) {
    const rust::Box<bridge::Failure> failure = rust::Box<bridge::Failure>::from_raw(given);
    const std::string message(bridge::failure_message(*failure));
    std::string operation(bridge::failure_operation(*failure));
    std::string kernel(bridge::failure_kernel(*failure));
    std::vector<Reason> reasons = to_reasons(bridge::failure_reasons(*failure));
    switch (bridge::failure_kind(*failure)) {
    case 1: throw ValidationError(message, std::move(operation), std::move(kernel), std::move(reasons));
    case 2: throw NoKernelFound(message, std::move(operation), std::move(kernel), std::move(reasons));
    case 3: throw LockedError(message, std::move(operation), std::move(kernel), std::move(reasons));
    case 4: throw CudaGraphUnsafe(message, std::move(operation), std::move(kernel), std::move(reasons));
    case 5: throw KernelExecutionError(message, std::move(operation), std::move(kernel), std::move(reasons));
    case 7: throw UnknownOperation(message, std::move(operation), std::move(kernel), std::move(reasons));
    default: throw ConfigurationError(message, std::move(operation), std::move(kernel), std::move(reasons));
    }
}

/// Throws if there is a failure.
inline void check(bridge::Failure *failure) {
    if (failure != nullptr) [[unlikely]] {
        raise(failure);
    }
}

inline rust::Str to_str(std::string_view text) { return {text.data(), text.size()}; }

} // namespace lz::detail
