// The engine: decides which kernel runs a call, and can say why. A copy is the same engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/detail/failure.hpp>

namespace lz {

class Kernel;

/// What would be run for a call.
struct Plan {
    std::string kernel;                  ///< the chosen one
    std::vector<std::string> fallbacks;  ///< those that would be tried after it, best first
    std::vector<std::string> transforms; ///< what has to be converted for it
    std::uint64_t workspace_bytes = 0;   ///< scratch memory
    double score = 0.0;
};

/// One kernel that was looked at.
struct Candidate {
    std::string kernel;
    std::string backend;
    bool chosen = false;
    double score = 0.0;
    std::vector<Reason> reasons; ///< why it cannot run; empty when it can
};

/// Why a call would be run by the kernel it would be run by.
struct Explanation {
    std::optional<Plan> plan;          ///< nothing if no kernel can run it
    std::vector<Candidate> candidates; ///< possible ones best first, then the others
    std::string text;                  ///< a table for people
    std::string json;                  ///< everything, for machines
};

/// One value of the configuration, and where it came from.
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

/// A plugin that was loaded.
struct Plugin {
    std::string backend;
    std::vector<std::string> kernels;
    std::string runs_in; ///< where it runs and who said so; empty for this process
};

/// What became of one kernel when a call was measured.
struct Measured {
    std::string kernel;
    std::string state;           ///< "measured", "failed", "passed" (not run: it cannot, or has failed before) or "untouched"
    double median_ns = 0.0;      ///< of one run
    double p95_ns = 0.0;         ///< of one run
    std::uint64_t samples = 0;   ///< how many were taken
    std::vector<Reason> reasons; ///< why it was not measured
};

/// What measuring the kernels of a call found.
struct Tuned {
    std::vector<Measured> kernels; ///< measured ones first, fastest first
    bool settled = false;          ///< whether the order is settled, not only cut off at the most samples
    bool kept = false;             ///< whether it was written to the database
    /// The fastest kernel; empty if none could be measured.
    [[nodiscard]] std::string best() const {
        return !kernels.empty() && kernels.front().state == "measured" ? kernels.front().kernel : std::string();
    }
};

/// The database in which an engine keeps what was measured, and the health of kernels.
struct PerfDb {
    std::string path;
    std::string state;                ///< "writable", "read_only" or "closed"
    std::string why;                  ///< what went wrong last; empty if nothing did
    std::uint64_t measurements = 0;   ///< rows of all kernels
    std::uint64_t dropped_writes = 0; ///< since it was opened
};

/// A circuit breaker that has something to remember.
struct Circuit {
    std::string scope;          ///< "kernel", "backend" or "device"
    std::string name;           ///< whose it is
    std::string version;        ///< the version that failed; empty for devices
    std::string state;          ///< "closed", "open" or "half_open"
    std::uint32_t failures = 0; ///< that are not forgiven
    std::uint32_t openings = 0; ///< that are not forgiven
    std::string last_error;
    double retry_seconds = 0.0; ///< how long calls are refused
    bool stored_only = false;   ///< in the database, and not used by this engine
};

/// A dispatch table that was loaded.
struct DispatchTable {
    std::string path;
    std::vector<std::string> operations;
    std::string stale; ///< why it decides nothing any more; empty while it does
};

/// Something that is laid over the policy for the calls of this thread until this is destroyed, on the same thread.
class [[nodiscard]] Scope {
  public:
    explicit Scope(rust::Box<bridge::Scope> scope) : scope_(std::move(scope)) {}

  private:
    rust::Box<bridge::Scope> scope_;
};

/// Decides and dispatches.
class Engine {
  public:
    /// With every kernel that is built in.
    Engine() : Engine(bridge::engine_new()) {
        if (bridge::abi_version() >> 16 != LZ_ABI_MAJOR) {
            throw Error("the headers and the library of LayerZero are of different releases");
        }
    }
    /// As its operator set it up: a file, the environment (`LAYERZERO_…`), what was measured (`perfdb.path`), and the plugins
    /// of `plugins.load`. Without a name it is the file that `LAYERZERO_CONFIG` names, or `layerzero.yaml` if it is there.
    static Engine open(std::string_view config = {}) {
        rust::Box<bridge::Engine> engine = bridge::engine_reference();
        detail::check(bridge::engine_open(*engine, detail::to_str(config)));
        return Engine(std::move(engine));
    }
    /// With the references alone.
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
    /// Reads a policy file; a wrong one changes nothing, and the exception says everything that is wrong.
    void load_config(std::string_view path) const {
        detail::check(bridge::engine_load_config(*engine_, detail::to_str(path)));
    }
    /// Every value with where it came from.
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
    /// Ends a lock.
    void unlock(std::string_view operation) const {
        detail::check(bridge::engine_unlock(*engine_, detail::to_str(operation)));
    }
    /// Prefers backends or kernels for this thread's calls while the scope lives.
    Scope prefer(std::initializer_list<std::string_view> patterns) const {
        const std::vector<rust::Str> texts = to_strs({patterns.begin(), patterns.size()});
        rust::Box<bridge::Scope> scope = bridge::scope_new();
        detail::check(bridge::engine_prefer(*engine_, {texts.data(), texts.size()}, *scope));
        return Scope(std::move(scope));
    }
    /// Runs references only for this thread's calls while the scope lives.
    Scope disabled() const {
        rust::Box<bridge::Scope> scope = bridge::scope_new();
        detail::check(bridge::engine_disabled(*engine_, *scope));
        return Scope(std::move(scope));
    }

    /// What would be run for the arguments of any operation.
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
    /// Why that would be run: every candidate, every reason.
    template <class Arguments> [[nodiscard]] Explanation explain(const Arguments &args) const {
        bridge::Answer answer{};
        lz_ask(*this, args, answer);
        return explanation(answer);
    }

    /// Adds a backend whose kernels are written in C++: what the descriptor describes, all or none.
    void register_backend(std::string_view descriptor, std::vector<Kernel> kernels) const;
    /// Loads a plugin from one of `plugins.directories`, after its owner, permissions, hash and signature were checked;
    /// `backend_isolation` says whether it runs in this process or in one of its own.
    Plugin load_plugin(std::string_view path) const {
        bridge::PluginInfo plugin{};
        detail::check(bridge::engine_load_plugin(*engine_, detail::to_str(path), plugin));
        return {std::string(plugin.backend), to_strings(plugin.kernels), std::string(plugin.runs_in)};
    }
    /// Takes a backend and its kernels away.
    void unregister_backend(std::string_view name) const {
        bridge::engine_unregister(*engine_, detail::to_str(name));
    }

    /// Runs every kernel that could run this call, in turn, until their order is settled, and keeps what was measured;
    /// decisions follow it from then on. Takes `lz::Options` as a call does. What the call changes in place is changed by
    /// every run: give it a copy.
    template <class Arguments, class... Given> Tuned tune(const Arguments &args, const Given &...options) const {
        bridge::Tuned found{};
        lz_tune(*this, args, found, options...);
        Tuned tuned{{}, found.settled, found.kept};
        for (const bridge::Measured &one : found.kernels) {
            tuned.kernels.push_back({std::string(one.kernel), std::string(one.state), one.median_ns, one.p95_ns,
                                     one.samples, detail::to_reasons(one.reasons)});
        }
        return tuned;
    }
    /// Keeps measurements and health in a file from now on, and decides by what is in it. An engine has one such file:
    /// `Engine::open` takes the one that `perfdb.path` names.
    void open_perfdb(std::string_view path) const {
        detail::check(bridge::engine_open_perfdb(*engine_, detail::to_str(path)));
    }
    /// Where measurements are kept; nothing if they are not.
    [[nodiscard]] std::optional<PerfDb> perfdb() const {
        const bridge::PerfDbInfo info = bridge::engine_perfdb(*engine_);
        if (info.path.empty()) {
            return std::nullopt;
        }
        return PerfDb{std::string(info.path), std::string(info.state), std::string(info.why), info.measurements,
                      info.dropped_writes};
    }
    /// Writes all measurements to a file, one JSON object a line, and says how many.
    std::uint64_t export_perfdb(std::string_view path) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_export_perfdb(*engine_, detail::to_str(path), count));
        return count;
    }
    /// Reads measurements from such a file, of this or another machine, and says how many were taken.
    std::uint64_t import_perfdb(std::string_view path) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_import_perfdb(*engine_, detail::to_str(path), count));
        return count;
    }

    /// Every circuit that has something to remember: of this engine, then those that are only stored.
    [[nodiscard]] std::vector<Circuit> circuits() const {
        std::vector<Circuit> circuits;
        for (const bridge::CircuitInfo &one : bridge::engine_circuits(*engine_)) {
            circuits.push_back({std::string(one.scope), std::string(one.name), std::string(one.version),
                                std::string(one.state), one.failures, one.openings, std::string(one.last_error),
                                one.retry_seconds, one.stored_only});
        }
        return circuits;
    }
    /// Forgets the failures of a kernel or backend, or of all of them, here and in the database; says how many circuits that
    /// were. Other processes that run keep what they know.
    std::uint64_t reset_kernel(std::string_view name = {}) const {
        std::uint64_t count = 0;
        detail::check(bridge::engine_reset_kernel(*engine_, detail::to_str(name), count));
        return count;
    }

    /// Lets a dispatch table decide, as `lz solve` writes it; one of another machine is refused with everything that differs.
    void load_dispatch_table(std::string_view path) const {
        detail::check(bridge::engine_load_table(*engine_, detail::to_str(path)));
    }
    /// Goes on without dispatch tables.
    void unload_dispatch_tables() const { bridge::engine_unload_tables(*engine_); }
    /// The dispatch tables that were loaded.
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
    /// Every kernel.
    [[nodiscard]] std::vector<KernelInfo> kernels() const {
        std::vector<KernelInfo> kernels;
        for (const bridge::KernelInfo &kernel : bridge::engine_kernels(*engine_)) {
            kernels.push_back({std::string(kernel.id), std::string(kernel.operation), std::string(kernel.backend),
                               std::string(kernel.version)});
        }
        return kernels;
    }
    /// Moves with every change that a decision can depend on.
    [[nodiscard]] std::uint64_t generation() const { return bridge::engine_generation(*engine_); }
    /// How often a kernel failed and another one did its work.
    [[nodiscard]] std::uint64_t fallbacks() const { return bridge::engine_fallbacks(*engine_); }

    /// The engine behind the bridge, for generated calls.
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
    static Explanation explanation(const bridge::Answer &answer) {
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
