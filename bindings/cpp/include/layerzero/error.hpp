// Exceptions. Every one carries its reasons as data.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lz {

/// Why something is wrong; fields that do not apply are empty.
struct Reason {
    std::string code;     ///< for machines: `SHAPE_MISMATCH`
    std::string argument; ///< the argument it is about
    std::string axis;     ///< the axis it is about
    std::string required; ///< what was needed
    std::string found;    ///< what was there
    std::string message;  ///< the whole sentence
};

/// Something went wrong; `reasons()` says what.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string &message) : std::runtime_error(message) {}
    Error(const std::string &message, std::string operation, std::string kernel, std::vector<Reason> reasons)
        : std::runtime_error(message), operation_(std::move(operation)), kernel_(std::move(kernel)),
          reasons_(std::move(reasons)) {}

    /// Everything that is wrong.
    [[nodiscard]] const std::vector<Reason> &reasons() const noexcept { return reasons_; }
    /// The operation, or the file, that it is about.
    [[nodiscard]] const std::string &operation() const noexcept { return operation_; }
    /// The kernel that it is about.
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

/// The call itself is wrong.
class ValidationError : public Error {
    using Error::Error;
};

/// No kernel can run the call; the reasons of every candidate are there.
class NoKernelFound : public Error {
    using Error::Error;
};

/// A lock names a kernel that cannot run the call.
class LockedError : public NoKernelFound {
    using NoKernelFound::NoKernelFound;
};

/// No kernel is known to be safe inside a graph capture.
class CudaGraphUnsafe : public NoKernelFound {
    using NoKernelFound::NoKernelFound;
};

/// A kernel ran and failed, and so did its fallbacks, or there are none.
class KernelExecutionError : public Error {
    using Error::Error;
};

/// A file, a policy or a descriptor is wrong; `what()` is the whole diagnostic.
class ConfigurationError : public Error {
    using Error::Error;
};

} // namespace lz
