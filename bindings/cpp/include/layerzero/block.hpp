// Calls that are considered together: blocks of operations, quantization formats, and draft and target models.
#pragma once

#include <layerzero/engine.hpp>
#include <layerzero/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lz {

/// The kernels of a block of operations, selected jointly.
struct BlockPlan {
    std::vector<std::string> kernels; ///< the kernel of each operation; the same one for operations that it fuses
    double cost = 0.0;                ///< in score points
    double saved = 0.0;               ///< compared with selecting step by step
    std::string text;                 ///< human-readable, with conversions and differences
    std::string json;                 ///< machine-readable
};

/// The result of a block.
struct BlockRun {
    std::vector<Tensor> outputs;      ///< the outputs of the last operation that it produces
    std::vector<std::string> kernels; ///< the kernel that ran each operation as planned; empty for an ordinary call
    BlockPlan plan;                   ///< empty unless `plan_mode` is on
};

/// A call in one quantization format.
template <class Arguments> struct FormatCall {
    std::string_view format; ///< such as "int8"
    const Arguments &call;
};
template <class Arguments> FormatCall(std::string_view, const Arguments &) -> FormatCall<Arguments>;

/// The selected quantization format.
struct FormatChoice {
    std::string format;
    std::string kernel;      ///< the kernel that runs it
    bool requantize = false; ///< whether stored data must be requantized
    double points = 0.0;     ///< accuracy and speed, weighted by the settings
};

/// The kernels of a draft model and its target.
struct KernelPair {
    std::string draft;
    std::string target;
    double score = 0.0; ///< the sum of their scores
};

/// Pipeline stages of a draft model and its target.
struct PipelineStages {
    std::uint32_t draft = 1;
    std::uint32_t target = 1;
};

namespace detail {

/// Collects calls. They refer to the tensors of the arguments, which must outlive them.
template <class... Arguments> rust::Box<bridge::Calls> collect(const Engine &engine, const Arguments &...args) {
    rust::Box<bridge::Calls> calls = bridge::calls_new();
    bridge::Explanation collector{};
    collector.calls = reinterpret_cast<std::size_t>(&*calls);
    (lz_explain(engine, args, collector), ...);
    return calls;
}

inline BlockPlan to_plan(const bridge::BlockInfo &info) {
    BlockPlan plan{{}, info.cost, info.saved, std::string(info.text), std::string(info.json)};
    for (const rust::String &kernel : info.kernels) {
        plan.kernels.emplace_back(kernel);
    }
    return plan;
}

} // namespace detail

/// Selects the kernels of a block of operations on host tensors jointly. Each takes the first output of the previous one instead
/// of its first tensor argument; pass any tensor there, such as that of the first operation.
template <class... Arguments> [[nodiscard]] BlockPlan plan_block(const Engine &engine, const Arguments &...args) {
    rust::Box<bridge::Calls> calls = detail::collect(engine, args...);
    bridge::BlockInfo info{};
    detail::check(bridge::engine_plan_block(engine.raw(), *calls, info));
    return detail::to_plan(info);
}

/// Runs a block of operations on host tensors (see `plan_block`). With the setting `plan_mode` it runs as planned; otherwise each
/// operation is an ordinary call.
template <class... Arguments> [[nodiscard]] BlockRun run_block(const Engine &engine, const Arguments &...args) {
    rust::Box<bridge::Calls> calls = detail::collect(engine, args...);
    std::vector<lz_output> slots(bridge::calls_outputs(*calls));
    bridge::BlockInfo info{};
    detail::check(bridge::engine_run_block(engine.raw(), *calls, slots.data(), info));
    BlockRun run{{}, {}, detail::to_plan(info)};
    run.kernels = run.plan.kernels;
    if (info.json.empty()) {
        run.plan.kernels.clear();
    }
    for (std::size_t number = 0; number < info.outputs; ++number) {
        lz_output &slot = slots[number];
        run.outputs.emplace_back(slot.tensor, std::shared_ptr<void>(slot.owner, slot.release));
    }
    return run;
}

/// Selects among calls in several quantization formats, the preferred one first, by the settings `quant_formats`. `stored` is the
/// format of data that is already quantized; empty for other data. Throws `NoKernelFound` with the reasons of all formats.
template <class... Arguments>
[[nodiscard]] FormatChoice choose_format(const Engine &engine, std::string_view stored,
                                         const FormatCall<Arguments> &...calls) {
    rust::Box<bridge::Calls> collected = detail::collect(engine, calls.call...);
    const std::vector<rust::Str> formats = {detail::to_str(calls.format)...};
    bridge::FormatInfo info{};
    detail::check(bridge::engine_choose_format(engine.raw(), *collected, {formats.data(), formats.size()},
                                               detail::to_str(stored), info));
    return {std::string(info.format), std::string(info.kernel), info.requantize, info.points};
}

/// Selects the kernels of a draft model and its target together, by the settings `speculative_decoding`. Throws if they do not fit
/// together, with the property that prevents it.
template <class Draft, class Target>
[[nodiscard]] KernelPair speculative_pair(const Engine &engine, const Draft &draft, const Target &target,
                                          PipelineStages stages = {}) {
    rust::Box<bridge::Calls> calls = detail::collect(engine, draft, target);
    bridge::PairInfo info{};
    detail::check(bridge::engine_speculative_pair(engine.raw(), *calls, stages.draft, stages.target, info));
    return {std::string(info.draft), std::string(info.target), info.score};
}

/// The number of tokens to draft for a batch of this size, by the settings `speculative_decoding`.
[[nodiscard]] inline std::uint32_t speculative_tokens(const Engine &engine, std::uint32_t batch) {
    return bridge::engine_speculative_tokens(engine.raw(), batch);
}

} // namespace lz
