// The engine: selects the kernel for each call and explains selections. Copies refer to the same engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/detail/failure.hpp>
#include <layerzero/tensor.hpp>

namespace lz {

class Kernel;

/// The selection for a call.
struct Plan {
    std::string kernel;                  ///< the selected kernel
    std::vector<std::string> fallbacks;  ///< fallback kernels, best first
    std::vector<std::string> transforms; ///< required conversions of arguments
    std::uint64_t workspace_bytes = 0;   ///< scratch memory
    double score = 0.0;
};

/// One candidate of a selection.
struct Candidate {
    std::string kernel;
    std::string backend;
    bool chosen = false;
    double score = 0.0;
    std::vector<Reason> reasons; ///< why it is not valid; empty if it is valid
};

/// An explanation of a selection.
struct Explanation {
    std::optional<Plan> plan;          ///< empty if no kernel is valid
    std::vector<Candidate> candidates; ///< valid ones best first, then the others
    std::string text;                  ///< a human-readable table
    std::string json;                  ///< machine-readable
};

/// One configuration value and its source.
struct ConfigEntry {
    std::string key;
    std::string value;
    std::string source;
};

/// A kernel of the registry.
struct KernelInfo {
    std::string id;
    std::string operation;
    std::string backend;
    std::string version;
};

/// A loaded plugin.
struct Plugin {
    std::string backend;
    std::vector<std::string> kernels;
    std::string runs_in; ///< the process that runs it and the setting that requires it; empty for this process
};

/// A plugin that replaced another one.
struct PluginReload {
    std::string backend;
    std::string version;
    std::vector<std::string> kernels;
    std::string runs_in;                                       ///< as in `Plugin`
    std::vector<std::pair<std::string, std::string>> replaced; ///< kernels that it replaced, with their versions
    std::uint64_t compared_calls = 0;                          ///< calls of the trial that were compared with the reference
    std::vector<std::string> untried;                          ///< kernels that could not be tried
    bool unloaded = false;                                     ///< whether nothing uses the old library any more
};

/// A kernel version that is compared with the stable one.
struct Canary {
    std::string kernel;       ///< `<id>@<version>`
    std::uint8_t percent = 0; ///< of the calls
    std::string state;        ///< "running", "promoted" or "rolled_back"
    std::string why;          ///< the reason of the verdict; empty while it runs
    std::uint64_t calls = 0;
    std::uint64_t compared = 0;
    std::uint64_t mismatches = 0;
    std::uint64_t errors = 0;
    std::uint64_t median_ns = 0;
    std::uint64_t stable_median_ns = 0;
    std::string problem; ///< the latest mismatch or error
};

/// One check of readiness.
struct ReadinessCheck {
    std::string name;
    bool ok = false;
    std::string detail;
};

/// Whether calls can be served.
struct Readiness {
    bool ready = false;
    std::vector<ReadinessCheck> checks;
};

/// What happened to a watched policy file.
struct ConfigChange {
    std::string state;   ///< "applied", "unchanged", "refused" or "unreadable"
    std::string message; ///< why, if the previous policy stays in force
};

/// Receives what happened to a watched file, on a thread of the library. An exception that it throws is discarded.
using ConfigCallback = std::function<void(const ConfigChange &)>;

namespace detail {

inline void call_config(void *owner, const bridge::ConfigChange *change) noexcept {
    try {
        (*static_cast<ConfigCallback *>(owner))({std::string(change->state), std::string(change->message)});
    } catch (...) {
    }
}

inline void release_config(void *owner) noexcept { delete static_cast<ConfigCallback *>(owner); }

} // namespace detail

/// Watches a policy file until it is destroyed.
class [[nodiscard]] ConfigWatch {
  public:
    explicit ConfigWatch(rust::Box<bridge::WatchHandle> watch) : watch_(std::move(watch)) {}

    /// Stops watching. The settings stay.
    void close() { bridge::watch_stop(*watch_); }

  private:
    rust::Box<bridge::WatchHandle> watch_;
};

/// The outcome of measuring one kernel.
struct Measured {
    std::string kernel;
    std::string state;           ///< "measured", "failed", "passed" (skipped: not valid, or failed before) or "untouched"
    double median_ns = 0.0;      ///< per run
    double p95_ns = 0.0;         ///< per run
    std::uint64_t samples = 0;   ///< number of samples
    std::vector<Reason> reasons; ///< why it was not measured
};

/// The result of measuring the kernels of a call.
struct Tuned {
    std::vector<Measured> kernels; ///< measured ones first, fastest first
    bool settled = false;          ///< whether the order is statistically settled; false if the sample limit was reached
    bool kept = false;             ///< whether the measurements were stored in the database
    /// The fastest kernel; empty if none could be measured.
    [[nodiscard]] std::string best() const {
        return !kernels.empty() && kernels.front().state == "measured" ? kernels.front().kernel : std::string();
    }
};

/// The database of measurements and kernel health of an engine.
struct PerfDb {
    std::string path;
    std::string state;                ///< "writable", "read_only" or "closed"
    std::string why;                  ///< the last error; empty if none
    std::uint64_t measurements = 0;   ///< number of measurements
    std::uint64_t dropped_writes = 0; ///< since it was opened
};

/// The times of one kernel in two databases.
struct KernelDifference {
    std::string kernel;
    double before_ns = 0.0;           ///< median; 0 if it was not measured
    double after_ns = 0.0;            ///< median; 0 if it was not measured
    std::uint64_t before_samples = 0; ///< number of samples
    std::uint64_t after_samples = 0;  ///< number of samples
    std::string change;               ///< "none", "slower" or "faster"
};

/// A call whose times or whose fastest kernel changed.
struct CallDifference {
    std::string operation;
    std::string dtypes;
    std::string sizes;                     ///< the bucket of sizes in words
    std::string device;
    std::string before;                    ///< the fastest kernel before
    std::string after;                     ///< the fastest kernel after
    double ratio = 1.0;                    ///< time of the fastest kernel after, divided by that before
    std::string change;                    ///< "none", "slower" or "faster"
    std::vector<KernelDifference> kernels; ///< all kernels of the call
};

/// The differences between the measurements of two databases.
struct PerfDbDifference {
    std::vector<CallDifference> calls;   ///< calls that changed, slower ones first
    std::uint64_t compared = 0;          ///< number of calls measured in both
    std::uint64_t slower = 0;            ///< number of calls whose fastest kernel is slower than before
    std::uint64_t faster = 0;            ///< number of calls whose fastest kernel is faster than before
    std::uint64_t decisions_changed = 0; ///< number of calls with another fastest kernel
};

/// A circuit breaker with recorded failures.
struct Circuit {
    std::string scope;          ///< "kernel", "backend" or "device"
    std::string name;           ///< kernel, backend or device
    std::string version;        ///< the version that failed; empty for devices
    std::string state;          ///< "closed", "open" or "half_open"
    std::uint32_t failures = 0; ///< recorded count
    std::uint32_t openings = 0; ///< recorded count
    std::string last_error;
    double retry_seconds = 0.0; ///< time until the next probe
    bool stored_only = false;   ///< only in the database, not used by this engine
};

/// A loaded dispatch table.
struct DispatchTable {
    std::string path;
    std::vector<std::string> operations;
    std::string stale; ///< why it is stale and not used; empty if it is used
};

/// Number of calls that a kernel ran.
struct CallCount {
    std::string operation;
    std::string kernel;
    std::string backend;
    std::uint64_t count = 0;
};

/// The counters of an engine.
struct Metrics {
    std::uint64_t selections = 0;
    std::uint64_t cache_hits = 0;
    std::uint64_t cache_misses = 0;
    std::uint64_t refusals = 0; ///< selections without an eligible kernel
    std::uint64_t executions = 0;
    std::uint64_t failures = 0;
    std::uint64_t fallbacks = 0;
    std::uint64_t circuit_openings = 0;
    std::uint64_t worker_restarts = 0;
    std::vector<CallCount> calls;
    std::string json; ///< all metrics, including latency histograms
};

/// A backend or plugin that did not load.
struct LoadProblem {
    std::string name;    ///< the backend, or the path of the plugin
    std::string message; ///< why, in one text
    std::vector<Reason> reasons;
};

/// A policy overlay for the calls of this thread. It is removed by the destructor, which must run on the same thread.
class [[nodiscard]] Scope {
  public:
    explicit Scope(rust::Box<bridge::Scope> scope) : scope_(std::move(scope)) {}

  private:
    rust::Box<bridge::Scope> scope_;
};

/// Selects and runs kernels.
class Engine {
  public:
    /// Creates an engine with all built-in kernels.
    Engine() : Engine(bridge::engine_new()) {
        if (bridge::abi_version() >> 16 != LZ_ABI_MAJOR) {
            throw Error("the headers and the library of LayerZero have different versions");
        }
    }
    /// Creates an engine configured by a policy file, the environment (`LAYERZERO_…`), stored measurements (`perfdb.path`), and the
    /// plugins of `plugins.load`. The default file is the one named by `LAYERZERO_CONFIG`, or `layerzero.yaml` if it exists.
    static Engine open(std::string_view config = {}) {
        rust::Box<bridge::Engine> engine = bridge::engine_reference();
        detail::check(bridge::engine_open(*engine, detail::to_str(config)));
        return Engine(std::move(engine));
    }
    /// Creates an engine with only the reference kernels.
    static Engine reference() { return Engine(bridge::engine_reference()); }

    Engine(const Engine &other) : engine_(bridge::engine_share(*other.engine_)) {}
    Engine(Engine &&other) noexcept = default;
    Engine &operator=(const Engine &other) {
        engine_ = bridge::engine_share(*other.engine_);
        return *this;
    }
    Engine &operator=(Engine &&other) noexcept = default;
    ~Engine() = default;

    /// Sets one value of the policy: `engine.configure("strict_mode", true)`.
    void configure(std::string_view key, std::string_view value) const {
        detail::check(bridge::engine_configure(*engine_, detail::to_str(key), detail::to_str(value)));
    }
    void configure(std::string_view key, const char *value) const { configure(key, std::string_view(value)); }
    void configure(std::string_view key, bool value) const { configure(key, value ? "true" : "false"); }
    void configure(std::string_view key, std::int64_t value) const { configure(key, std::to_string(value)); }
    void configure(std::string_view key, int value) const { configure(key, std::to_string(value)); }
    void configure(std::string_view key, double value) const { configure(key, std::to_string(value)); }
    /// Sets one list of the policy: `engine.configure("deny", {"torch.*"})`.
    void configure(std::string_view key, std::span<const std::string_view> values) const {
        const std::vector<rust::Str> texts = to_strs(values);
        detail::check(bridge::engine_configure_list(*engine_, detail::to_str(key), {texts.data(), texts.size()}));
    }
    void configure(std::string_view key, std::initializer_list<std::string_view> values) const {
        configure(key, std::span<const std::string_view>(values.begin(), values.size()));
    }
    /// Loads a policy file. An invalid file changes nothing, and the exception contains all errors.
    void load_config(std::string_view path) const {
        detail::check(bridge::engine_load_config(*engine_, detail::to_str(path)));
    }
    /// Watches a policy file and applies its changes. An invalid file changes nothing. `callback` receives every outcome,
    /// including that of the first read.
    ConfigWatch watch_config(std::string_view path, ConfigCallback callback = {}) const {
        rust::Box<bridge::WatchHandle> watch = bridge::watch_new();
        auto owner = std::make_unique<ConfigCallback>(std::move(callback));
        const std::uintptr_t call = *owner ? reinterpret_cast<std::uintptr_t>(&detail::call_config) : 0;
        detail::check(bridge::watch_start(*watch, *engine_, detail::to_str(path), call,
                                          reinterpret_cast<std::uintptr_t>(owner.release()),
                                          reinterpret_cast<std::uintptr_t>(&detail::release_config)));
        return ConfigWatch(std::move(watch));
    }
    /// All configuration values, each with its source.
    [[nodiscard]] std::vector<ConfigEntry> config() const {
        std::vector<ConfigEntry> entries;
        for (const bridge::ConfigEntry &entry : bridge::engine_config(*engine_)) {
            entries.push_back({std::string(entry.key), std::string(entry.value), std::string(entry.source)});
        }
        return entries;
    }

    /// Locks an operation or alias to a kernel.
    void lock(std::string_view operation, std::string_view kernel) const {
        detail::check(bridge::engine_lock(*engine_, detail::to_str(operation), detail::to_str(kernel)));
    }
    /// Removes a lock.
    void unlock(std::string_view operation) const {
        detail::check(bridge::engine_unlock(*engine_, detail::to_str(operation)));
    }
    /// Prefers backends or kernels for this thread's calls during the lifetime of the scope.
    Scope prefer(std::initializer_list<std::string_view> patterns) const {
        const std::vector<rust::Str> texts = to_strs({patterns.begin(), patterns.size()});
        rust::Box<bridge::Scope> scope = bridge::scope_new();
        detail::check(bridge::engine_prefer(*engine_, {texts.data(), texts.size()}, *scope));
        return Scope(std::move(scope));
    }
    /// Runs only reference kernels for this thread's calls during the lifetime of the scope.
    Scope disabled() const {
        rust::Box<bridge::Scope> scope = bridge::scope_new();
        detail::check(bridge::engine_disabled(*engine_, *scope));
        return Scope(std::move(scope));
    }

    /// The selection for the arguments of any operation.
    template <class Arguments> [[nodiscard]] Plan which(const Arguments &args) const {
        Explanation explanation = explain(args);
        if (!explanation.plan) {
            std::vector<Reason> reasons;
            for (Candidate &candidate : explanation.candidates) {
                reasons.insert(reasons.end(), candidate.reasons.begin(), candidate.reasons.end());
            }
            throw NoKernelFound(explanation.text, Arguments::operation, "", std::move(reasons));
        }
        return std::move(*explanation.plan);
    }
    /// Explains the selection: all candidates with all reasons.
    template <class Arguments> [[nodiscard]] Explanation explain(const Arguments &args) const {
        bridge::Explanation answer{};
        lz_explain(*this, args, answer);
        return explanation(answer);
    }

    /// Registers a backend with kernels implemented in C++ according to a descriptor: all kernels or none.
    void register_backend(std::string_view descriptor, std::vector<Kernel> kernels) const;
    /// Loads a plugin from one of `plugins.directories` after checking its owner, permissions, hash and signature. The setting
    /// `backend_isolation` determines whether it runs in this process or in a worker process.
    Plugin load_plugin(std::string_view path) const {
        bridge::PluginInfo plugin{};
        detail::check(bridge::engine_load_plugin(*engine_, detail::to_str(path), plugin));
        return {std::string(plugin.backend), to_strings(plugin.kernels), std::string(plugin.runs_in)};
    }
    /// Loads other versions of registered kernels next to them, as `<id>@<version>`, after a trial. The settings `rollout.shares`
    /// and `rollout.canaries`, rules and locks give them calls.
    Plugin load_plugin_alongside(std::string_view path) const {
        bridge::PluginInfo plugin{};
        detail::check(bridge::engine_load_plugin_alongside(*engine_, detail::to_str(path), plugin));
        return {std::string(plugin.backend), to_strings(plugin.kernels), std::string(plugin.runs_in)};
    }
    /// Replaces the kernels of a backend by those of a new plugin, under load: they are tried first, then replaced in one step. Waits
    /// up to `drain_seconds` until no call uses the old library, which is then unloaded. On error nothing changes.
    PluginReload reload_plugin(std::string_view path, double drain_seconds = 5.0) const {
        bridge::ReloadInfo info{};
        detail::check(bridge::engine_reload_plugin(*engine_, detail::to_str(path), drain_seconds, info));
        PluginReload reload{std::string(info.backend),
                            std::string(info.version),
                            to_strings(info.kernels),
                            std::string(info.runs_in),
                            {},
                            info.compared_calls,
                            to_strings(info.untried),
                            info.unloaded};
        for (std::size_t index = 0; index + 1 < info.replaced.size(); index += 2) {
            reload.replaced.emplace_back(std::string(info.replaced[index]), std::string(info.replaced[index + 1]));
        }
        return reload;
    }
    /// The canaries: those of the settings, and versions with a verdict.
    [[nodiscard]] std::vector<Canary> canaries() const {
        std::vector<Canary> canaries;
        for (const bridge::CanaryInfo &one : bridge::engine_canaries(*engine_)) {
            canaries.push_back({std::string(one.kernel), one.percent, std::string(one.state), std::string(one.why),
                                one.calls, one.compared, one.mismatches, one.errors, one.median_ns,
                                one.stable_median_ns, std::string(one.problem)});
        }
        return canaries;
    }
    /// Routes all calls of a kernel to a version (`<id>@<version>`), whatever the settings say.
    void promote_version(std::string_view version) const {
        detail::check(bridge::engine_promote_version(*engine_, detail::to_str(version)));
    }
    /// Routes no more calls to a version, whatever the settings say.
    void roll_back_version(std::string_view version) const {
        detail::check(bridge::engine_roll_back_version(*engine_, detail::to_str(version)));
    }
    /// Whether calls can be served on these platforms ("cpu", "cuda", …): kernels, health, dispatch tables, compilation, capture,
    /// memory, database, telemetry and versions.
    [[nodiscard]] Readiness readiness_check(std::initializer_list<std::string_view> platforms = {"cpu"}) const {
        const std::vector<rust::Str> names = to_strs({platforms.begin(), platforms.size()});
        bridge::ReadinessInfo info{};
        detail::check(bridge::engine_readiness(*engine_, {names.data(), names.size()}, info));
        Readiness readiness{info.ready, {}};
        for (const bridge::CheckInfo &one : info.checks) {
            readiness.checks.push_back({std::string(one.name), one.ok, std::string(one.detail)});
        }
        return readiness;
    }
    /// The metrics of this engine, including all calls of this thread.
    [[nodiscard]] Metrics metrics() const {
        const bridge::MetricsInfo info = bridge::engine_metrics(*engine_);
        Metrics metrics{info.selections, info.cache_hits, info.cache_misses, info.refusals, info.executions,
                        info.failures, info.fallbacks, info.circuit_openings, info.worker_restarts, {},
                        std::string(info.json)};
        for (const bridge::CallCount &one : info.calls) {
            metrics.calls.push_back(
                {std::string(one.operation), std::string(one.kernel), std::string(one.backend), one.count});
        }
        return metrics;
    }
    /// The metrics in the OpenMetrics text format, which Prometheus reads.
    [[nodiscard]] std::string metrics_text() const { return std::string(bridge::engine_metrics_text(*engine_)); }
    /// Waits until every call that `verify` sampled so far is verified. Returns false after the timeout.
    [[nodiscard]] bool wait_for_verification(double seconds) const {
        return bridge::engine_wait_for_verification(*engine_, seconds);
    }
    /// Replays a reproducer that `verify` wrote; the result is JSON, and `kernel_now` says what the kernel does now.
    [[nodiscard]] std::string replay(std::string_view path) const {
        rust::String replay;
        detail::check(bridge::engine_replay(*engine_, detail::to_str(path), replay));
        return std::string(replay);
    }
    /// Starts to record selections and kernel runs. A recording in progress is discarded.
    void start_recording() const { bridge::engine_start_recording(*engine_); }
    /// Ends the recording and writes it as a trace that Perfetto and `chrome://tracing` open.
    void stop_recording(std::string_view path) const {
        detail::check(bridge::engine_stop_recording(*engine_, detail::to_str(path)));
    }
    /// The built-in backends and the plugins of `plugins.load` that did not load, and why. Empty if all did.
    [[nodiscard]] std::vector<LoadProblem> load_problems() const {
        std::vector<LoadProblem> problems;
        for (const bridge::LoadProblem &one : bridge::engine_problems(*engine_)) {
            problems.push_back({std::string(one.name), std::string(one.message), detail::to_reasons(one.reasons)});
        }
        return problems;
    }
    /// Removes a backend and its kernels; returns whether there was one.
    bool unregister_backend(std::string_view name) const {
        return bridge::engine_unregister(*engine_, detail::to_str(name));
    }
    /// Unregisters the kernels with this id, of one operation if it is given. Throws `UnknownOperation` or `ConfigurationError`
    /// for unknown names.
    void unregister_kernel(std::string_view id, std::string_view operation = {}) const {
        detail::check(bridge::engine_unregister_kernel(*engine_, detail::to_str(id), detail::to_str(operation)));
    }

    /// Measures all kernels that are valid for this call, interleaved, until their order is settled, and stores the measurements,
    /// which later selections use. Takes `lz::Options` as a call does. Every run writes the in-place arguments: pass copies.
    template <class Arguments, class... Given> Tuned tune(const Arguments &args, const Given &...options) const {
        bridge::Tuned result{};
        lz_tune(*this, args, result, options...);
        Tuned tuned{{}, result.settled, result.kept};
        for (const bridge::Measured &one : result.kernels) {
            tuned.kernels.push_back({std::string(one.kernel), std::string(one.state), one.median_ns, one.p95_ns,
                                     one.samples, detail::to_reasons(one.reasons)});
        }
        return tuned;
    }
    /// Attaches a database file for measurements and health, which selections use. An engine has at most one; `Engine::open` uses
    /// the one named by `perfdb.path`.
    void open_perfdb(std::string_view path) const {
        detail::check(bridge::engine_open_perfdb(*engine_, detail::to_str(path)));
    }
    /// The measurement database; empty if there is none.
    [[nodiscard]] std::optional<PerfDb> perfdb() const {
        const bridge::PerfDbInfo info = bridge::engine_perfdb(*engine_);
        if (info.path.empty()) {
            return std::nullopt;
        }
        return PerfDb{std::string(info.path), std::string(info.state), std::string(info.why), info.measurements,
                      info.dropped_writes};
    }
    /// Exports all measurements to a file, one JSON object per line, and returns their number.
    std::uint64_t export_perfdb(std::string_view path) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_export_perfdb(*engine_, detail::to_str(path), count));
        return count;
    }
    /// Imports measurements from such a file, from this or another machine, and returns the number of stored ones.
    std::uint64_t import_perfdb(std::string_view path) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_import_perfdb(*engine_, detail::to_str(path), count));
        return count;
    }

    /// Compares the measurements of two database files, or of environments of one (`FILE@torch=2.14,driver=580`). A difference counts
    /// if it exceeds the threshold (0.05 for 5 percent) and the noise.
    [[nodiscard]] PerfDbDifference diff_perfdb(std::string_view before, std::string_view after,
                                               double threshold = 0.05) const {
        bridge::PerfDbDifference found{};
        detail::check(
            bridge::engine_diff_perfdb(*engine_, detail::to_str(before), detail::to_str(after), threshold, found));
        PerfDbDifference difference{{}, found.compared, found.slower, found.faster, found.decisions_changed};
        for (const bridge::CallDifference &call : found.calls) {
            CallDifference one{std::string(call.operation), std::string(call.dtypes), std::string(call.sizes),
                               std::string(call.device),    std::string(call.before), std::string(call.after),
                               call.ratio,                  std::string(call.change), {}};
            for (const bridge::KernelDifference &kernel : call.kernels) {
                one.kernels.push_back({std::string(kernel.kernel), kernel.before_ns, kernel.after_ns,
                                       kernel.before_samples, kernel.after_samples, std::string(kernel.change)});
            }
            difference.calls.push_back(std::move(one));
        }
        return difference;
    }
    /// Merges database files of several machines into one, which is created or, if it exists, also merged. Nothing is lost, and a file
    /// that is merged again counts once. Returns the number of measurements.
    static std::uint64_t merge_perfdb(std::string_view into, std::initializer_list<std::string_view> files) {
        const std::vector<rust::Str> texts = to_strs({files.begin(), files.size()});
        std::uint64_t count = 0;
        detail::check(bridge::merge_perfdb(detail::to_str(into), {texts.data(), texts.size()}, count));
        return count;
    }

    /// All circuit breakers with recorded failures: those of this engine, then those that are only in the database.
    [[nodiscard]] std::vector<Circuit> circuits() const {
        std::vector<Circuit> circuits;
        for (const bridge::CircuitInfo &one : bridge::engine_circuits(*engine_)) {
            circuits.push_back({std::string(one.scope), std::string(one.name), std::string(one.version),
                                std::string(one.state), one.failures, one.openings, std::string(one.last_error),
                                one.retry_seconds, one.stored_only});
        }
        return circuits;
    }
    /// Clears the recorded failures of a kernel or backend, or of all, in this engine and in the database. Returns the number of
    /// circuit breakers that were reset. Other running processes are not affected.
    std::uint64_t reset_kernel(std::string_view name = {}) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_reset_kernel(*engine_, detail::to_str(name), count));
        return count;
    }

    /// Loads a dispatch table written by `lz solve`. A table from different hardware is rejected with a list of the differences.
    void load_dispatch_table(std::string_view path) const {
        detail::check(bridge::engine_load_table(*engine_, detail::to_str(path)));
    }
    /// Unloads all dispatch tables.
    void unload_dispatch_tables() const { bridge::engine_unload_tables(*engine_); }
    /// The loaded dispatch tables.
    [[nodiscard]] std::vector<DispatchTable> dispatch_tables() const {
        std::vector<DispatchTable> tables;
        for (const bridge::TableInfo &table : bridge::engine_tables(*engine_)) {
            tables.push_back({std::string(table.path), to_strings(table.operations), std::string(table.stale)});
        }
        return tables;
    }
    /// Names of the operations.
    [[nodiscard]] std::vector<std::string> operations() const {
        return to_strings(bridge::engine_operations(*engine_));
    }
    /// The statistic of values that a param of an operation takes, measured on a tensor in host memory: for
    /// `moe.experts` the `max_expert_load` of the indices. Passed in a call, it lets selection depend on it and changes no result.
    [[nodiscard]] std::int64_t statistic(std::string_view operation, std::string_view param,
                                         const TensorView &tensor) const {
        std::int64_t value = 0;
        detail::check(bridge::engine_statistic(*engine_, detail::to_str(operation), detail::to_str(param),
                                               reinterpret_cast<std::size_t>(tensor.raw()), value));
        return value;
    }
    /// All kernels.
    [[nodiscard]] std::vector<KernelInfo> kernels() const {
        std::vector<KernelInfo> kernels;
        for (const bridge::KernelInfo &kernel : bridge::engine_kernels(*engine_)) {
            kernels.push_back({std::string(kernel.id), std::string(kernel.operation), std::string(kernel.backend),
                               std::string(kernel.version)});
        }
        return kernels;
    }
    /// A counter that is incremented by every change that can affect a decision.
    [[nodiscard]] std::uint64_t generation() const { return bridge::engine_generation(*engine_); }
    /// The number of calls that ran a fallback kernel after a failure.
    [[nodiscard]] std::uint64_t fallbacks() const { return bridge::engine_fallbacks(*engine_); }

    /// The engine of the bridge, for generated calls.
    [[nodiscard]] const bridge::Engine &raw() const noexcept { return *engine_; }

  private:
    explicit Engine(rust::Box<bridge::Engine> engine) : engine_(std::move(engine)) {}

    static std::vector<rust::Str> to_strs(std::span<const std::string_view> texts) {
        std::vector<rust::Str> strs;
        strs.reserve(texts.size());
        for (const std::string_view text : texts) {
            strs.push_back(detail::to_str(text));
        }
        return strs;
    }
    static std::vector<std::string> to_strings(const rust::Vec<rust::String> &texts) {
        std::vector<std::string> strings;
        for (const rust::String &text : texts) {
            strings.emplace_back(text);
        }
        return strings;
    }
    static Explanation explanation(const bridge::Explanation &answer) {
        Explanation result;
        if (!answer.kernel.empty()) {
            result.plan = Plan{std::string(answer.kernel), to_strings(answer.fallbacks), to_strings(answer.transforms),
                               answer.workspace_bytes, answer.score};
        }
        for (const bridge::Candidate &candidate : answer.candidates) {
            result.candidates.push_back({std::string(candidate.kernel), std::string(candidate.backend),
                                         candidate.chosen, candidate.score, detail::to_reasons(candidate.reasons)});
        }
        result.text = std::string(answer.text);
        result.json = std::string(answer.json);
        return result;
    }

    rust::Box<bridge::Engine> engine_;
};

/// The version of LayerZero.
inline std::string version() { return std::string(bridge::version()); }

} // namespace lz
