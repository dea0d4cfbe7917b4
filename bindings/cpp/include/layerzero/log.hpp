// Log records of the engine: a callback of the program, or stderr.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/detail/failure.hpp>

namespace lz {

/// The level of a log record, from the least to the most verbose.
enum class LogLevel : std::uint8_t { Off, Error, Warn, Info, Debug, Trace };

/// A log record.
struct LogRecord {
    std::string area;                                        ///< "select", "fallback", "health", …
    LogLevel level = LogLevel::Off;
    std::string message;
    std::vector<std::pair<std::string, std::string>> fields; ///< names and values
};

/// Receives log records on any thread, possibly while a lock of the engine is held: it must not call an engine. An
/// exception that it throws is discarded.
using LogCallback = std::function<void(const LogRecord &)>;

namespace detail {

inline void call_log(void *owner, const bridge::LogRecord *record) noexcept {
    try {
        LogRecord copy{std::string(record->area), static_cast<LogLevel>(record->level), std::string(record->message), {}};
        for (std::size_t index = 0; index + 1 < record->fields.size(); index += 2) {
            copy.fields.emplace_back(std::string(record->fields[index]), std::string(record->fields[index + 1]));
        }
        (*static_cast<LogCallback *>(owner))(copy);
    } catch (...) {
    }
}

inline void release_log(void *owner) noexcept { delete static_cast<LogCallback *>(owner); }

} // namespace detail

/// Sends log records of all engines of this process to `callback`; an empty one restores the default, lines on stderr.
inline void set_log_callback(LogCallback callback) {
    if (!callback) {
        bridge::set_log_callback(0, 0, 0);
        return;
    }
    auto owner = std::make_unique<LogCallback>(std::move(callback));
    bridge::set_log_callback(reinterpret_cast<std::uintptr_t>(&detail::call_log),
                             reinterpret_cast<std::uintptr_t>(owner.release()),
                             reinterpret_cast<std::uintptr_t>(&detail::release_log));
}

/// Sets the levels as `LAYERZERO_LOG` does: `"info,select=debug"`. An empty text restores those of `LAYERZERO_LOG`, or
/// warnings and errors. Throws `ConfigurationError` if the text is invalid.
inline void set_log_levels(std::string_view levels) { detail::check(bridge::set_log_levels(detail::to_str(levels))); }

} // namespace lz
