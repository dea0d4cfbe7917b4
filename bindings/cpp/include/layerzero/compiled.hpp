// Compiled models: `lz::compile("model.onnx")` and saved models.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/detail/failure.hpp>
#include <layerzero/engine.hpp>
#include <layerzero/tensor.hpp>

namespace lz {

/// Options of `lz::compile`.
struct CompileOptions {
    /// Whether passes run.
    bool optimize = true;
    /// Which findings stop the compilation: "none", "normal" (errors) or "strict" (warnings too; every pass is verified).
    std::string_view validation = "normal";
    /// Store the weights of linear layers as integers: "int8" or "int4"; empty keeps them.
    std::string_view weights = {};
    /// Inputs that share a scale; 0 for all of an output feature. Default: 128 for int4, all for int8.
    std::optional<std::int64_t> group = std::nullopt;
    /// Compute with integers: the inputs of layers are quantized too. Needs int8 weights without groups.
    bool int8_activations = false;
    /// Also quantize weights that other operations use, such as tied embeddings.
    bool quantize_tied = false;

    [[nodiscard]] bridge::ModelOptions raw() const {
        return {optimize,
                detail::to_str(validation),
                detail::to_str(weights),
                group.value_or(-1),
                int8_activations,
                quantize_tied};
    }
};

/// Options of `lz::load`.
struct LoadOptions {
    /// Compare the elements of all weights with their hashes, which reads the whole file.
    bool verify = false;
    /// Refuse a model whose decisions name kernels that do not exist here, instead of selecting others.
    bool refuse_missing_kernels = false;
};

/// An input of a compiled model: a tensor that is read, or one that the model changes in place.
class ModelInput {
  public:
    ModelInput(const TensorView &tensor) noexcept : tensor_(*tensor.raw()) {}
    ModelInput(const Tensor &tensor) noexcept : ModelInput(tensor.view()) {}
    ModelInput(const TensorMut &tensor) noexcept : tensor_(*tensor.raw()), writable_(true) {}

    [[nodiscard]] const lz_tensor *raw() const noexcept { return &tensor_; }
    [[nodiscard]] bool writable() const noexcept { return writable_; }

  private:
    lz_tensor tensor_;
    bool writable_ = false;
};

/// A model that runs as one graph, for any sizes. Threads may share it; copies refer to the same model.
class CompiledModel {
  public:
    CompiledModel(const CompiledModel &other) : model_(bridge::model_share(*other.model_)) {}
    CompiledModel(CompiledModel &&other) noexcept = default;
    CompiledModel &operator=(const CompiledModel &other) {
        model_ = bridge::model_share(*other.model_);
        return *this;
    }
    CompiledModel &operator=(CompiledModel &&other) noexcept = default;
    ~CompiledModel() = default;

    /// Compiles an ONNX file. External data must be in its folder.
    static CompiledModel from_onnx(const Engine &engine, std::string_view path, CompileOptions options = {}) {
        CompiledModel model;
        detail::check(bridge::model_compile(*model.model_, engine.raw(), detail::to_str(path), options.raw()));
        return model;
    }
    /// Compiles an ONNX model in memory.
    static CompiledModel from_onnx(const Engine &engine, std::span<const std::uint8_t> bytes,
                                   CompileOptions options = {}) {
        CompiledModel model;
        detail::check(bridge::model_compile_bytes(*model.model_, engine.raw(), {bytes.data(), bytes.size()},
                                                  options.raw()));
        return model;
    }
    /// Loads a model that `save` wrote. Its weights stay in the file, which must not be changed meanwhile.
    static CompiledModel load(const Engine &engine, std::string_view path, LoadOptions options = {}) {
        CompiledModel model;
        detail::check(bridge::model_load(*model.model_, engine.raw(), detail::to_str(path), options.verify,
                                         options.refuse_missing_kernels));
        return model;
    }

    /// Runs the model with inputs in the order of `inputs()`; returns one tensor per name of `outputs()`.
    [[nodiscard]] std::vector<Tensor> run(std::span<const ModelInput> inputs) const {
        std::vector<std::size_t> addresses;
        std::vector<std::uint8_t> writable;
        for (const ModelInput &input : inputs) {
            addresses.push_back(reinterpret_cast<std::size_t>(input.raw()));
            writable.push_back(input.writable() ? 1 : 0);
        }
        std::vector<lz_output> slots(bridge::model_outputs(*model_).size());
        detail::check(bridge::model_run(*model_, {addresses.data(), addresses.size()},
                                        {writable.data(), writable.size()}, slots.data()));
        std::vector<Tensor> outputs;
        outputs.reserve(slots.size());
        for (lz_output &slot : slots) {
            outputs.emplace_back(slot.tensor, std::shared_ptr<void>(slot.owner, slot.release));
        }
        return outputs;
    }
    [[nodiscard]] std::vector<Tensor> run(std::initializer_list<ModelInput> inputs) const {
        return run(std::span<const ModelInput>(inputs.begin(), inputs.size()));
    }
    /// Runs the model with inputs by name.
    [[nodiscard]] std::vector<Tensor>
    run(std::span<const std::pair<std::string_view, ModelInput>> inputs) const {
        std::vector<ModelInput> ordered;
        for (const std::string &name : this->inputs()) {
            const ModelInput *found = nullptr;
            for (const auto &[given, input] : inputs) {
                found = given == name ? &input : found;
            }
            if (found == nullptr) {
                throw ValidationError("the input `" + name + "` is missing");
            }
            ordered.push_back(*found);
        }
        if (ordered.size() != inputs.size()) {
            throw ValidationError("inputs were given that the model does not have");
        }
        return run(std::span<const ModelInput>(ordered));
    }

    /// The names of the inputs.
    [[nodiscard]] std::vector<std::string> inputs() const { return to_strings(bridge::model_inputs(*model_)); }
    /// The names of the outputs.
    [[nodiscard]] std::vector<std::string> outputs() const { return to_strings(bridge::model_outputs(*model_)); }
    /// The graph after passes, one line per node.
    [[nodiscard]] std::string graph() const { return std::string(bridge::model_graph(*model_)); }
    /// What validators found, with phase and severity.
    [[nodiscard]] std::vector<std::string> findings() const { return to_strings(bridge::model_findings(*model_)); }
    /// Linear layers with quantized weights: bytes before and after, and the error of the weights.
    [[nodiscard]] std::vector<std::string> quantized_layers() const {
        return to_strings(bridge::model_quantized_layers(*model_));
    }
    /// All stages for inputs like these: passes, memory, and the kernel of every step and why it was selected.
    [[nodiscard]] std::string explain(std::span<const ModelInput> inputs) const {
        std::vector<std::size_t> addresses;
        for (const ModelInput &input : inputs) {
            addresses.push_back(reinterpret_cast<std::size_t>(input.raw()));
        }
        rust::String text;
        detail::check(bridge::model_explain(*model_, {addresses.data(), addresses.size()}, text));
        return std::string(text);
    }
    [[nodiscard]] std::string explain(std::initializer_list<ModelInput> inputs) const {
        return explain(std::span<const ModelInput>(inputs.begin(), inputs.size()));
    }
    /// The decisions of the plans so far, as the text of a lockfile.
    [[nodiscard]] std::string freeze() const {
        rust::String text;
        detail::check(bridge::model_freeze(*model_, text));
        return std::string(text);
    }
    /// Writes the graph, its weights and the decisions of the plans so far into one file.
    void save(std::string_view path) const { detail::check(bridge::model_save(*model_, detail::to_str(path))); }

  private:
    CompiledModel() : model_(bridge::model_new()) {}
    static std::vector<std::string> to_strings(const rust::Vec<rust::String> &given) {
        return {given.begin(), given.end()};
    }

    rust::Box<bridge::ModelHandle> model_;
};

/// Compiles an ONNX file with an engine of its own.
[[nodiscard]] inline CompiledModel compile(std::string_view path, CompileOptions options = {}) {
    return CompiledModel::from_onnx(Engine(), path, options);
}
/// Loads a saved model with an engine of its own.
[[nodiscard]] inline CompiledModel load(std::string_view path, LoadOptions options = {}) {
    return CompiledModel::load(Engine(), path, options);
}

} // namespace lz
