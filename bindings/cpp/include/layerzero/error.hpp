// Exceptions. Each contains its reasons as data.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lz {

/// The reason of an error; fields that do not apply are empty.
struct Reason {
    std::string code;     ///< reason code: `SHAPE_MISMATCH`
    std::string argument; ///< the argument
    std::string axis;     ///< the axis
    std::string required; ///< the required value
    std::string found;    ///< the actual value
    std::string message;  ///< the full message
};

/// Base class of all errors.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string &message) : std::runtime_error(message) {}
    Error(const std::string &message, std::string operation, std::string kernel, std::vector<Reason> reasons)
        : std::runtime_error(message), operation_(std::move(operation)), kernel_(std::move(kernel)),
          reasons_(std::move(reasons)) {}

    /// All reasons.
    [[nodiscard]] const std::vector<Reason> &reasons() const noexcept { return reasons_; }
    /// The operation or file that the error refers to.
    [[nodiscard]] const std::string &operation() const noexcept { return operation_; }
    /// The kernel that the error refers to.
    [[nodiscard]] const std::string &kernel() const noexcept { return kernel_; }
    /// Whether any reason has this code.
    [[nodiscard]] bool has(const std::string &code) const noexcept {
        for (const Reason &reason : reasons_) {
            if (reason.code == code) {
                return true;
            }
        }
        return false;
    }

  private:
    std::string operation_;
    std::string kernel_;
    std::vector<Reason> reasons_;
};

/// The arguments of the call are invalid.
class ValidationError : public Error {
    using Error::Error;
};

/// No kernel is valid for the call; contains the reasons of every candidate.
class NoKernelFound : public Error {
    using Error::Error;
};

/// The policy locks the operation to a kernel that is not valid for the call.
class LockedError : public NoKernelFound {
    using NoKernelFound::NoKernelFound;
};

/// No kernel is verified as safe for graph capture.
class CudaGraphUnsafe : public NoKernelFound {
    using NoKernelFound::NoKernelFound;
};

/// A kernel failed, and so did its fallbacks, if any.
class KernelExecutionError : public Error {
    using Error::Error;
};

/// A file, a policy or a descriptor is invalid; `what()` is the full diagnostic.
class ConfigurationError : public Error {
    using Error::Error;
};

/// No operation or alias has this name; `what()` suggests a similar one.
class UnknownOperation : public ConfigurationError {
    using ConfigurationError::ConfigurationError;
};

} // namespace lz
