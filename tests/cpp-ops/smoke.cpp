// Tests of the hand-written part of the C++ API: tensors, errors, options, policy, explanations, kernels in C++.
#include <layerzero/layerzero.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include <unistd.h>

namespace {

int failures = 0;

void check(bool condition, const char *what, int line) {
    if (!condition) {
        std::fprintf(stderr, "line %d: check failed: %s\n", line, what);
        ++failures;
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

constexpr const char *descriptor = R"({
    "schema_version": "1.0", "backend": "mine", "backend_version": "1.0", "platform": "cpu",
    "ops": {"norm.rms": [{
        "kernel_id": "mine.norm.rms", "dtypes": ["float32"], "requires_layouts": ["any"], "optional_inputs": ["weight"],
        "params": ["eps", "weight_offset"], "writes_into_output": true, "requires_contiguous": true, "priority": 99,
        "workspace_bytes": "64"}]}})";

std::vector<float> rows() { return {3.0F, 4.0F, 6.0F, 8.0F}; }

void calls() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    std::vector<float> weight = {2.0F, 3.0F};
    const auto result = lz::ops::norm_rms(
        engine, {.x = {std::span(x), {2, 2}}, .weight = lz::TensorView(std::span(weight), {2}), .eps = 0.0F});
    const auto found = result.output.as<float>();
    const float scale = std::sqrt(12.5F);
    CHECK(found.size() == 4);
    CHECK(std::fabs(found[0] - 3.0F / scale * 2.0F) < 1e-6F);
    CHECK(std::fabs(found[1] - 4.0F / scale * 3.0F) < 1e-6F);

    std::vector<float> out(4);
    lz::ops::norm_rms_into(engine, {.x = {std::span(x), {2, 2}}, .eps = 0.0F}, {.output = {std::span(out), {2, 2}}});
    CHECK(std::fabs(out[2] - 6.0F / std::sqrt(50.0F)) < 1e-6F);

    // The output may be an input, but not share only a part of its memory.
    std::vector<float> same = rows();
    lz::ops::norm_rms_into(engine, {.x = {std::span(same), {2, 2}}, .eps = 0.0F}, {.output = {std::span(same), {2, 2}}});
    CHECK(std::fabs(same[1] - 4.0F / scale) < 1e-6F && same[2] == out[2] && same[3] == out[3]);
    std::vector<float> parts = {3.0F, 4.0F, 6.0F, 8.0F, 9.0F, 9.0F};
    try {
        lz::ops::norm_rms_into(engine, {.x = {std::span(parts).first(4), {2, 2}}},
                               {.output = {std::span(parts).last(4), {2, 2}}});
        CHECK(!"an output that overlaps a part of an input must be an error");
    } catch (const lz::ValidationError &error) {
        CHECK(error.reasons().at(0).code == "OUTPUT_OVERLAP" && parts[2] == 6.0F);
    }

    // Every second column of a wider matrix, without a copy.
    std::vector<float> wide = {3.0F, -1.0F, 4.0F, -1.0F};
    const std::int64_t shape[] = {1, 2};
    const std::int64_t strides[] = {4, 2};
    const auto strided =
        lz::ops::norm_rms(engine, {.x = {wide.data(), lz::DType::F32, shape, strides}, .eps = 0.0F});
    CHECK(std::fabs(strided.output.as<float>()[1] - 4.0F / scale) < 1e-6F);

    // One query over two keys; the expression hides the second one.
    std::vector<float> q = {1.0F};
    std::vector<float> k = {1.0F, 1.0F};
    std::vector<float> v = {5.0F, 7.0F};
    const std::string only_first = "score if kv_idx == 0 else -inf";
    const auto attended = lz::ops::attention_gqa_prefill(
        engine, {.q = {std::span(q), {1, 1, 1, 1}}, .k = {std::span(k), {1, 2, 1, 1}}, .v = {std::span(v), {1, 2, 1, 1}},
                 .score_mod = lz::TensorView::of_text(only_first)});
    CHECK(attended.output.as<float>()[0] == 5.0F);

    // Two requests of one query and one key each: indices count from the beginning of the request.
    std::vector<std::int32_t> starts = {0, 1, 2};
    const auto ragged = lz::ops::attention_gqa_prefill_ragged(
        engine, {.q = {std::span(k), {2, 1, 1}}, .k = {std::span(k), {2, 1, 1}}, .v = {std::span(v), {2, 1, 1}},
                 .qo_indptr = {std::span(starts), {3}}, .kv_indptr = {std::span(starts), {3}},
                 .score_mod = lz::TensorView::of_text(only_first)});
    CHECK(ragged.output.as<float>()[0] == 5.0F && ragged.output.as<float>()[1] == 7.0F);
}

/// An ONNX model: `relu(x + b)` for `x` of shape [rows, 2], with b = [1, -1].
constexpr std::uint8_t model_bytes[] = {
    0x08, 0x0a, 0x42, 0x04, 0x0a, 0x00, 0x10, 0x12, 0x3a, 0x73, 0x0a, 0x16, 0x0a, 0x01, 0x78, 0x0a, 0x01, 0x62,
    0x12, 0x01, 0x73, 0x1a, 0x06, 0x6e, 0x6f, 0x64, 0x65, 0x5f, 0x73, 0x22, 0x03, 0x41, 0x64, 0x64, 0x0a, 0x14,
    0x0a, 0x01, 0x73, 0x12, 0x01, 0x79, 0x1a, 0x06, 0x6e, 0x6f, 0x64, 0x65, 0x5f, 0x79, 0x22, 0x04, 0x52, 0x65,
    0x6c, 0x75, 0x2a, 0x11, 0x08, 0x02, 0x10, 0x01, 0x42, 0x01, 0x62, 0x4a, 0x08, 0x00, 0x00, 0x80, 0x3f, 0x00,
    0x00, 0x80, 0xbf, 0x5a, 0x17, 0x0a, 0x01, 0x78, 0x12, 0x12, 0x0a, 0x10, 0x08, 0x01, 0x12, 0x0c, 0x0a, 0x06,
    0x12, 0x04, 0x72, 0x6f, 0x77, 0x73, 0x0a, 0x02, 0x08, 0x02, 0x62, 0x17, 0x0a, 0x01, 0x79, 0x12, 0x12, 0x0a,
    0x10, 0x08, 0x01, 0x12, 0x0c, 0x0a, 0x06, 0x12, 0x04, 0x72, 0x6f, 0x77, 0x73, 0x0a, 0x02, 0x08, 0x02};

/// An ONNX model: `x @ [[1, -2], [0.5, 4], [3, 1], [-1, 2]]` for `x` of shape [rows, 4].
constexpr std::uint8_t linear_bytes[] = {
    0x08, 0x0a, 0x12, 0x00, 0x3a, 0x74, 0x0a, 0x11, 0x0a, 0x01, 0x78, 0x0a, 0x01, 0x77, 0x12, 0x01, 0x79, 0x22,
    0x06, 0x4d, 0x61, 0x74, 0x4d, 0x75, 0x6c, 0x12, 0x00, 0x2a, 0x2b, 0x08, 0x04, 0x08, 0x02, 0x10, 0x01, 0x42,
    0x01, 0x77, 0x4a, 0x20, 0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0, 0x00, 0x00, 0x00, 0x3f, 0x00, 0x00,
    0x80, 0x40, 0x00, 0x00, 0x40, 0x40, 0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x80, 0xbf, 0x00, 0x00, 0x00, 0x40,
    0x5a, 0x17, 0x0a, 0x01, 0x78, 0x12, 0x12, 0x0a, 0x10, 0x08, 0x01, 0x12, 0x0c, 0x0a, 0x06, 0x12, 0x04, 0x72,
    0x6f, 0x77, 0x73, 0x0a, 0x02, 0x08, 0x04, 0x62, 0x17, 0x0a, 0x01, 0x79, 0x12, 0x12, 0x0a, 0x10, 0x08, 0x01,
    0x12, 0x0c, 0x0a, 0x06, 0x12, 0x04, 0x72, 0x6f, 0x77, 0x73, 0x0a, 0x02, 0x08, 0x02, 0x42, 0x04, 0x0a, 0x00,
    0x10, 0x12};

void quantized_models() {
    const std::span<const std::uint8_t> source(linear_bytes);
    const auto model = lz::CompiledModel::from_onnx(lz::Engine(), source, {.weights = "int8"});
    CHECK(model.quantized_layers().size() == 1);
    const std::vector<float> x = {1.0F, 2.0F, 3.0F, 4.0F};
    const auto found = model.run({lz::TensorView(std::span<const float>(x), {1, 4})});
    const auto y = found[0].as<float>();
    CHECK(std::fabs(y[0] - 7.0F) < 0.1F && std::fabs(y[1] - 17.0F) < 0.1F && y[0] != 7.0F);
    CHECK(lz::CompiledModel::from_onnx(lz::Engine(), source).quantized_layers().empty());
    for (const lz::CompileOptions &wrong : {lz::CompileOptions{.weights = "int3"}, lz::CompileOptions{.group = 64}}) {
        try {
            (void)lz::CompiledModel::from_onnx(lz::Engine(), source, wrong);
            CHECK(!"wrong options must be rejected");
        } catch (const lz::ValidationError &error) {
            CHECK(std::string(error.what()).find("int8 or int4") != std::string::npos);
        }
    }
}

void compiled_models() {
    const std::string folder = std::filesystem::temp_directory_path() / ("lz-models-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    const std::string source = folder + "/model.onnx";
    const std::string saved = folder + "/model.lz";
    std::ofstream(source, std::ios::binary).write(reinterpret_cast<const char *>(model_bytes), sizeof(model_bytes));
    const lz::CompiledModel model = lz::compile(source);
    CHECK(model.inputs() == std::vector<std::string>{"x"});
    CHECK(model.outputs() == std::vector<std::string>{"y"});
    std::vector<float> x = {1.0F, 2.0F, -3.0F, 0.5F};
    const lz::TensorView rows(std::span<const float>(x), {2, 2});
    const auto check_result = [&](const lz::CompiledModel &compiled) {
        const std::vector<lz::Tensor> found = compiled.run({rows});
        CHECK(found.size() == 1 && found[0].shape().size() == 2);
        const auto y = found[0].as<float>();
        CHECK(y[0] == 2.0F && y[1] == 1.0F && y[2] == 0.0F && y[3] == 0.0F);
    };
    check_result(model);
    check_result(lz::CompiledModel::from_onnx(lz::Engine(), std::span<const std::uint8_t>(model_bytes),
                                              {.optimize = false, .validation = "strict"}));
    const std::pair<std::string_view, lz::ModelInput> named[] = {{"x", rows}};
    CHECK(model.run(std::span(named)).size() == 1);
    CHECK(model.explain({rows}).find("score") != std::string::npos);
    CHECK(model.freeze().find("decisions") != std::string::npos);
    model.save(saved);
    check_result(lz::load(saved, {.verify = true}));
    try {
        (void)model.run({lz::TensorView(std::span<const float>(x), {4, 1})});
        CHECK(!"a wrong shape must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(std::string(error.what()).find("size 1 is 1, expected 2") != std::string::npos);
    }
    try {
        (void)lz::load(source);
        CHECK(!"an ONNX file is no saved model");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string(error.what()).find("the file is no compiled model") != std::string::npos);
    }
    try {
        (void)lz::compile(folder + "/absent.onnx");
        CHECK(!"a missing file must be an error");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string(error.what()).find("absent.onnx") != std::string::npos);
    }
    std::filesystem::remove_all(folder);
}

void page() {
    const lz::Engine engine;
    lz::Server server = lz::serve(engine);
    CHECK(server.url().starts_with("http://127.0.0.1:"));
    const lz::Server other = lz::serve(engine);
    CHECK(other.url() != server.url());
    server.close();
    CHECK(server.url().empty());
    try {
        (void)lz::serve(engine, static_cast<std::uint16_t>(std::stoi(other.url().substr(17))));
        CHECK(!"a port that is in use must be an error");
    } catch (const lz::Error &error) {
        CHECK(std::string(error.what()).find("cannot listen") != std::string::npos);
    }
}

void errors() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    std::vector<float> weight = {1.0F, 1.0F, 1.0F};
    const lz::ops::NormRms wrong{.x = {std::span(x), {2, 2}}, .weight = lz::TensorView(std::span(weight), {3})};
    try {
        (void)lz::ops::norm_rms(engine, wrong);
        CHECK(!"a wrong shape must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(error.operation() == "norm.rms");
        CHECK(error.reasons().size() == 1);
        CHECK(error.reasons().at(0).argument == "weight");
        CHECK(error.reasons().at(0).axis == "hidden");
        CHECK(!error.reasons().at(0).required.empty() && !error.reasons().at(0).found.empty());
    }
    try {
        engine.lock("norm.rms", "no.such.kernel");
        (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}});
        CHECK(!"a lock on an unknown kernel must be an error");
    } catch (const lz::NoKernelFound &error) {
        CHECK(std::string(error.what()).find("no.such.kernel") != std::string::npos);
    }
    engine.unlock("norm.rms");
    try {
        engine.lock("norm.rm", "reference.norm.rms");
        CHECK(!"an unknown operation must be an error");
    } catch (const lz::UnknownOperation &error) {
        CHECK(std::string(error.what()) == "unknown operation `norm.rm`; did you mean `norm.rms`?");
        CHECK(error.has("OPERATION_UNKNOWN") && error.operation() == "norm.rm");
    }
    CHECK(lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}}).output.elements() == 4);
    try {
        engine.configure("no_such_key", true);
        CHECK(!"an unknown key must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(!error.reasons().empty());
    }
    try {
        (void)lz::Tokenizer::from_json("{");
        CHECK(!"truncated JSON must be rejected");
    } catch (const lz::ConfigurationError &) {
    }
    try {
        const std::vector<std::int64_t> too_many(9, 1);
        (void)lz::TensorView(x.data(), lz::DType::F32, too_many);
        CHECK(!"nine dimensions must be rejected");
    } catch (const lz::ValidationError &) {
    }
}

constexpr const char *words = R"({
    "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "model": {"type": "WordLevel", "vocab": {"<end>": 0, "[unknown]": 1}, "unk_token": "[unknown]"}})";

void special_tokens() {
    const lz::Engine engine;
    const lz::Tokenizer tokenizer = lz::Tokenizer::from_json(words);
    const lz::Tokenizer split = tokenizer.splitting_special_tokens();
    const std::vector<std::string_view> texts = {"a<end>"};
    CHECK(lz::ops::tokenize_encode(engine, {.texts = texts, .tokenizer = tokenizer}).tokens.elements() == 2);
    CHECK(lz::ops::tokenize_encode(engine, {.texts = texts, .tokenizer = split}).tokens.elements() == 1);
}

void stated_truncation() {
    std::string cut = words;
    cut.insert(1, R"("truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},)");
    try {
        (void)lz::Tokenizer::from_json(cut);
        CHECK(!"a definition with truncation must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string_view(error.what()).find("truncation") != std::string_view::npos);
    }
    const lz::Engine engine;
    const lz::Tokenizer whole = lz::Tokenizer::from_json(cut, {.whole_texts = true});
    const std::vector<std::string_view> texts = {"a<end>"};
    CHECK(lz::ops::tokenize_encode(engine, {.texts = texts, .tokenizer = whole}).tokens.elements() == 2);
}

constexpr const char *bytes = R"({
    "version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "added_tokens": [{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "decoder": {"type": "ByteFallback"},
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "a", "merges": [], "ignore_merges": false,
              "vocab": {"<end>": 0, "a": 1, "b": 2, "<0xC3>": 3, "<0xBC>": 4}}})";

template <class Error> void refused(std::string_view expected, const auto &call) {
    try {
        call();
        CHECK(!"the call must be refused");
    } catch (const Error &error) {
        CHECK(std::string_view(error.what()).find(expected) != std::string_view::npos);
    }
}

void vocabularies() {
    const lz::Tokenizer tokenizer = lz::Tokenizer::from_json(bytes);
    CHECK(tokenizer.vocab_size() == 5);
    CHECK(tokenizer.id_to_token(0) == "<end>" && tokenizer.id_to_token(2) == "b");
    CHECK(!tokenizer.id_to_token(5) && !tokenizer.id_to_token(-1));
    CHECK(tokenizer.token_to_id("b") == 2 && !tokenizer.token_to_id("c"));
    const std::vector<std::string_view> texts = {"ab", "", "\xc3\xbc<end>"};
    CHECK(lz::count_tokens(lz::Engine(), tokenizer, texts) == std::vector<std::size_t>({2, 0, 3}));
    CHECK(lz::Tokenizer::from_encoding("r50k_base").vocab_size() == 50257);
    refused<lz::ConfigurationError>("expected one of", [] { (void)lz::Tokenizer::from_encoding("r50k"); });
}

void flat_batches() {
    const lz::Engine engine;
    const lz::Tokenizer tokenizer = lz::Tokenizer::from_json(bytes);
    const std::vector<std::string_view> texts = {"ab", "", "\xc3\xbc<end>"};
    const lz::FlatTokens batch = lz::encode_batch(engine, tokenizer, texts, {.return_offsets = true});
    CHECK(batch.size() == 3 && batch.tokens().size() == 5 && batch.offsets().size() == 10);
    CHECK(std::ranges::equal(batch.indptr(), std::vector<std::int64_t>{0, 2, 2, 5}));
    CHECK(std::ranges::equal(batch[0], std::vector<std::int32_t>{1, 2}) && batch[1].empty());
    CHECK(std::ranges::equal(batch[2], std::vector<std::int32_t>{3, 4, 0}));
    CHECK(std::ranges::equal(batch.offsets(0), std::vector<std::int64_t>{0, 1, 1, 2}) && batch.offsets(1).empty());
    CHECK(batch.offsets(2)[4] == 2 && batch.offsets(2)[5] == 7);
    CHECK(lz::encode_batch(engine, tokenizer, texts).offsets().empty());
    refused<lz::ValidationError>("no text 3", [&] { (void)batch[3]; });
    // The verification takes long under a sanitizer: with a timeout of 0 nothing is waited for.
    CHECK(tokenizer.verification() != "not started");
    CHECK(!tokenizer.wait_verified(0.0) || tokenizer.verification() != "running");
    const lz::FlatTokens again = lz::encode_batch(engine, tokenizer, texts, {.return_offsets = true});
    CHECK(std::ranges::equal(again.tokens(), batch.tokens()) && std::ranges::equal(again.offsets(), batch.offsets()));
}

using Numbers = std::vector<std::int64_t>;

/// The WordPiece tokenizer of the Python tests: ids are 2 `[CLS]`, 3 `[SEP]`, 5 `hello`, 8 `world`, 9 `.`.
lz::Tokenizer word_pieces() {
    const auto folder = std::filesystem::temp_directory_path() / ("lz-vocabulary-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\nHello\nworld\n.\n";
    std::ofstream(folder / "tokenizer_config.json") << R"({"do_lower_case": true})";
    lz::Tokenizer tokenizer = lz::Tokenizer::from_file((folder / "vocab.txt").string());
    std::filesystem::remove_all(folder);
    return tokenizer;
}

void padded_batches() {
    const lz::Engine engine;
    const lz::Tokenizer tokenizer = word_pieces();
    const std::vector<std::string_view> texts = {"hello", "world ."};
    const std::vector<std::string_view> pairs = {"world", "hello hello"};
    const lz::TokenBatch batch =
        lz::tokenize_batch(engine, tokenizer, texts, pairs, {.pad_id = "[PAD]", .return_offsets = true});
    CHECK(batch.size() == 2 && batch.length() == 7);
    CHECK(std::ranges::equal(batch.input_ids(), Numbers{2, 5, 3, 8, 3, 0, 0, 2, 8, 9, 3, 5, 5, 3}));
    CHECK(std::ranges::equal(batch.token_type_ids(), Numbers{0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1}));
    CHECK(std::ranges::equal(batch.special_tokens_mask(), Numbers{1, 0, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1}));
    CHECK(std::ranges::equal(batch.attention_mask(0), Numbers{1, 1, 1, 1, 1, 0, 0}));
    CHECK(std::ranges::equal(batch.attention_mask(1), Numbers(7, 1)) && batch.attention_mask().size() == 14);
    CHECK(std::ranges::equal(batch.sample(), Numbers{0, 1}));
    CHECK(std::ranges::equal(batch.offsets(1), Numbers{0, 0, 0, 5, 6, 7, 0, 0, 0, 5, 6, 11, 0, 0}));
    CHECK(std::ranges::equal(batch.offsets(0), Numbers{0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0}));

    const lz::TokenBatch left = lz::tokenize_batch(
        engine, tokenizer, texts, {.pad_to_multiple_of = 8, .padding_side = lz::Side::Left, .pad_id = 4});
    CHECK(left.length() == 8 && left.offsets().empty() && left.offsets(1).empty());
    CHECK(std::ranges::equal(left.input_ids(0), Numbers{4, 4, 4, 4, 4, 2, 5, 3}));
    CHECK(std::ranges::equal(left.token_type_ids(1), Numbers(8, 0)));

    // A row is part of a tensor without a copy, and batches can be copied.
    const auto rows = static_cast<std::int64_t>(left.size());
    CHECK(lz::TensorView(left.input_ids(), {rows, 8}).dtype() == lz::DType::I64);
    const lz::TokenBatch copy = left;
    CHECK(std::ranges::equal(copy.input_ids(), left.input_ids()) && copy.input_ids().data() != left.input_ids().data());

    // Windows of a truncated text share the tokens of the stride; those of a pair repeat the text that is not truncated.
    const std::vector<std::string_view> question = {"hello"};
    const std::vector<std::string_view> context = {"world . hello world ."};
    const lz::TokenBatch windows = lz::tokenize_batch(engine, tokenizer, question, context,
                                                      {.max_length = 7,
                                                       .stride = 1,
                                                       .truncation = lz::Truncation::OnlySecond,
                                                       .return_overflow = true,
                                                       .padding = lz::Padding::max_length(),
                                                       .pad_id = 0});
    CHECK(windows.size() == 2 && std::ranges::equal(windows.sample(), Numbers{0, 0}));
    CHECK(std::ranges::equal(windows.input_ids(0), Numbers{2, 5, 3, 8, 9, 5, 3}));
    CHECK(std::ranges::equal(windows.input_ids(1), Numbers{2, 5, 3, 5, 8, 9, 3}));
    const lz::TokenBatch end = lz::tokenize_batch(
        engine, tokenizer, context, {.add_special_tokens = false, .max_length = 2, .truncation_side = lz::Side::Left});
    CHECK(std::ranges::equal(end.input_ids(), Numbers{8, 9}));

    // Empty texts have special tokens only; empty batches have no rows.
    const std::vector<std::string_view> empty = {""};
    const lz::TokenBatch nothing = lz::tokenize_batch(engine, tokenizer, empty, {.return_offsets = true});
    CHECK(std::ranges::equal(nothing.input_ids(), Numbers{2, 3}) && std::ranges::equal(nothing.offsets(), Numbers(4, 0)));
    CHECK(lz::tokenize_batch(engine, tokenizer, empty, {.add_special_tokens = false}).input_ids(0).empty());
    const lz::TokenBatch fixed = lz::tokenize_batch(
        engine, tokenizer, empty, {.add_special_tokens = false, .padding = lz::Padding::fixed(2), .pad_id = 0});
    CHECK(std::ranges::equal(fixed.special_tokens_mask(), Numbers{1, 1}));
    const std::vector<std::string_view> none;
    const lz::TokenBatch no_rows = lz::tokenize_batch(engine, tokenizer, none, none, {.return_offsets = true});
    CHECK(no_rows.size() == 0 && no_rows.length() == 0 && no_rows.input_ids().empty());
    refused<lz::ValidationError>("no row 0", [&] { (void)no_rows.input_ids(0); });
    refused<lz::ValidationError>("no row 2", [&] { (void)batch.offsets(2); });
}

void invalid_batches() {
    const lz::Engine engine;
    const lz::Tokenizer tokenizer = word_pieces();
    const std::vector<std::string_view> texts = {"hello world", "hello"};
    const auto rejects = [&](std::string_view argument, std::string_view expected, const lz::BatchOptions &options) {
        try {
            (void)lz::tokenize_batch(engine, tokenizer, texts, options);
            CHECK(!"the options must be refused");
        } catch (const lz::ValidationError &error) {
            const bool is_expected = std::string_view(error.what()).find(expected) != std::string_view::npos;
            CHECK(is_expected && error.operation() == "tokenize_batch" && error.reasons().at(0).argument == argument);
        }
    };
    rejects("pad_id", "a row of 3 tokens must be padded to 4; set `pad_id`", {});
    rejects("pad_id", "`pad_id`: the tokenizer has no token 'nothing'", {.pad_id = "nothing"});
    rejects("pad_id", "`pad_id` must be an integer of at least 0, not -1", {.pad_id = -1});
    rejects("padding", "set `max_length` to truncate", {.padding = lz::Padding::fixed(2), .pad_id = 0});
    rejects("padding", "`max_length` is not given", {.padding = lz::Padding::max_length(), .pad_id = 0});
    rejects("padding", "`padding` must be an integer of at least 1, not 0", {.padding = lz::Padding::fixed(0)});
    rejects("padding", "does not fit into memory", {.padding = lz::Padding::fixed(INT64_MAX), .pad_id = 0});
    rejects("max_length", "`max_length` must be an integer of at least 0, not -1", {.max_length = -1});
    rejects("max_length", "leaves no room for text: 2 special tokens are added", {.max_length = 2, .pad_id = 0});
    rejects("stride", "`stride` must be an integer of at least 0, not -4", {.stride = -4});
    rejects("stride", "`stride` 1 must be less", {.max_length = 3, .stride = 1, .return_overflow = true, .pad_id = 0});
    rejects("pad_to_multiple_of", "must be an integer of at least 1, not 0", {.pad_to_multiple_of = 0});
    rejects("truncation", "no second text", {.max_length = 3, .truncation = lz::Truncation::OnlySecond, .pad_id = 0});
    rejects("truncation", "must be an enumerator from 0 to 2, not 7", {.truncation = static_cast<lz::Truncation>(7)});
    rejects("padding_side", "from 0 to 1, not 9", {.padding_side = static_cast<lz::Side>(9)});
    const std::vector<std::string_view> one = {"hello"};
    refused<lz::ValidationError>("2 texts and 1 second texts; expected pairs",
                                 [&] { (void)lz::tokenize_batch(engine, tokenizer, texts, one, {.pad_id = 0}); });
    refused<lz::ValidationError>("first text is too short to be truncated", [&] {
        (void)lz::tokenize_batch(engine, tokenizer, one, one, {.max_length = 4, .truncation = lz::Truncation::OnlyFirst});
    });
}

void streamed_texts() {
    const lz::Tokenizer tokenizer = lz::Tokenizer::from_json(bytes);
    lz::TextStream stream(tokenizer);
    CHECK(stream.push(1) == "a");
    // Half a character is no text.
    CHECK(stream.push(3).empty() && stream.push(4) == "\xc3\xbc");
    CHECK(stream.push(0).empty());
    const std::vector<std::int32_t> several = {2, 1, 3};
    CHECK(stream.push(several) == "ba");
    CHECK(stream.finish() == "\xef\xbf\xbd" && stream.push(2) == "b" && stream.finish().empty());
    lz::TextStream all(tokenizer, false);
    CHECK(all.push(0) == "<end>");
    refused<lz::ConfigurationError>("must not be negative", [&] { (void)stream.push(-1); });
}

void chat_templates() {
    const lz::Engine engine;
    const lz::Tokenizer plain = lz::Tokenizer::from_json(bytes);
    const std::vector<lz::ChatMessage> messages = {{"user", "\"a\"\n"}, {"assistant", "b "}};
    refused<lz::ConfigurationError>("no chat template", [&] { (void)plain.apply_chat_template(messages); });
    const std::vector<std::pair<std::string_view, std::string_view>> tokens = {{"eos_token", "<end>"}};
    const lz::Tokenizer tokenizer = plain.with_chat_template(
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}{% endfor %}{{ tools }}{{ extra }}"
        "{% if add_generation_prompt %}a:{% endif %}",
        tokens);
    CHECK(tokenizer.apply_chat_template(messages, {.variables = R"({"extra": 7})"}) == "u:\"a\"\n<end>a:b <end>None7");
    CHECK(tokenizer.apply_chat_template(messages, {.tools = R"(["x"])", .add_generation_prompt = true}) ==
          "u:\"a\"\n<end>a:b <end>['x']a:");
    CHECK(tokenizer.apply_chat_template(messages, {.continue_final_message = true}) == "u:\"a\"\n<end>a:b ");
    CHECK(tokenizer.apply_chat_template(R"([{"role": "x", "content": "", "thought": "b"}])",
                                        {.chat_template = "{{ messages[0].thought }}!",
                                         .continue_final_message = true,
                                         .continued_field = "thought"}) == "b");
    refused<lz::ConfigurationError>("add_generation_prompt", [&] {
        (void)tokenizer.apply_chat_template(messages, {.add_generation_prompt = true, .continue_final_message = true});
    });
    refused<lz::ConfigurationError>("messages of a conversation are not JSON", [&] { (void)tokenizer.apply_chat_template("{"); });
    refused<lz::ConfigurationError>("must be a JSON object", [&] {
        (void)tokenizer.apply_chat_template(messages, {.variables = "[]"});
    });
    const lz::ChatMessage one[] = {{"a", "b"}};
    const lz::FlatTokens ids = lz::encode_chat(engine, tokenizer, one, {.chat_template = "{{ messages[0].content }}{{ eos_token }}"});
    CHECK(ids.size() == 1 && std::ranges::equal(ids[0], std::vector<std::int32_t>{2, 0}));
    CHECK(tokenizer.splitting_special_tokens().apply_chat_template(one) == "a:b<end>None");
}

void blocks() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const lz::ops::NormRms norm{.x = {std::span(x), {2, 2}}, .eps = 0.0F};
    const lz::ops::ActivationRelu relu{.x = {std::span(x), {2, 2}}};
    const lz::BlockPlan plan = lz::plan_block(engine, norm, relu);
    CHECK(plan.kernels.size() == 2 && plan.kernels[0] == engine.which(norm).kernel);
    CHECK(plan.text.find("2 operations") != std::string::npos && plan.json.front() == '{' && plan.saved >= 0.0);

    const lz::BlockRun each = lz::run_block(engine, norm, relu);
    CHECK(each.plan.json.empty() && each.plan.kernels.empty() && each.kernels == std::vector<std::string>(2));
    engine.configure("plan_mode", true);
    const lz::BlockRun run = lz::run_block(engine, norm, relu);
    CHECK(run.kernels == plan.kernels && run.plan.text == plan.text);
    const auto expected = lz::ops::norm_rms(engine, norm);
    for (const lz::BlockRun *one : {&each, &run}) {
        CHECK(one->outputs.size() == 1);
        const auto found = one->outputs.at(0).as<float>();
        CHECK(found.size() == 4 && std::fabs(found[3] - expected.output.as<float>()[3]) < 1e-6F);
    }
    try {
        std::vector<float> weight = {1.0F, 1.0F, 1.0F};
        (void)lz::run_block(engine, norm, lz::ops::NormRms{.x = norm.x, .weight = lz::TensorView(std::span(weight), {3})});
        CHECK(!"a weight of another size must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(error.has("AXIS_MISMATCH"));
    }
    try {
        const std::vector<std::string_view> texts = {"a"};
        const lz::Tokenizer tokenizer = lz::Tokenizer::from_json(words);
        (void)lz::plan_block(engine, lz::ops::TokenizeEncode{.texts = texts, .tokenizer = tokenizer});
        CHECK(!"texts must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(error.has("TRANSFORM_UNAVAILABLE"));
    }
}

void formats_and_pairs() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const lz::ops::Quantize wide{.x = {std::span(x), {2, 2}}, .format = lz::ops::QuantizeFormat::Int8,
                                .granularity = lz::ops::QuantizeGranularity::Tensor};
    const lz::ops::Quantize narrow{.x = {std::span(x), {2, 2}}, .format = lz::ops::QuantizeFormat::Int4,
                                  .granularity = lz::ops::QuantizeGranularity::Tensor};
    const lz::FormatChoice choice =
        lz::choose_format(engine, "", lz::FormatCall{"int4", narrow}, lz::FormatCall{"int8", wide});
    CHECK(choice.format == "int8" && choice.kernel == engine.which(wide).kernel && !choice.requantize);
    try {
        (void)lz::choose_format(engine, "int4", lz::FormatCall{"int8", wide});
        CHECK(!"requantization must be allowed first");
    } catch (const lz::NoKernelFound &error) {
        CHECK(error.has("REQUANTIZATION_REQUIRED"));
    }
    engine.configure("quant_formats.requantization_enabled", true);
    CHECK(lz::choose_format(engine, "int4", lz::FormatCall{"int8", wide}).requantize);

    const lz::ops::NormRms draft{.x = {std::span(x), {2, 2}}};
    const lz::ops::NormRms target{.x = {std::span(x), {1, 4}}};
    const lz::KernelPair pair = lz::speculative_pair(engine, draft, target);
    CHECK(pair.draft == engine.which(draft).kernel && pair.target == engine.which(target).kernel);
    try {
        (void)lz::speculative_pair(engine, draft, target, {.draft = 2});
        CHECK(!"a draft model of two pipeline stages must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(error.has("SPEC_DECODE_PP_INCOMPATIBLE"));
    }
    CHECK(lz::speculative_tokens(engine, 1) == 5);
    engine.configure("speculative_decoding.num_speculative_tokens", 3);
    CHECK(lz::speculative_tokens(engine, 1) == 3);
}

void dlpack() {
    const lz::Engine engine;
    lz::Tensor x = lz::Tensor::empty(lz::DType::F32, {2, 2});
    std::ranges::copy(rows(), x.as_mut<float>().begin());
    const lz::Tensor taken = lz::Tensor::from_dlpack(x.to_dlpack());
    CHECK(taken.data() == x.data());
    CHECK(taken.shape()[1] == 2);
    const auto result = lz::ops::norm_rms(engine, {.x = taken});
    DLManagedTensorVersioned *managed = result.output.to_dlpack();
    CHECK(managed->dl_tensor.data == result.output.data());
    CHECK(managed->dl_tensor.dtype.bits == 32 && managed->dl_tensor.ndim == 2);
    managed->deleter(managed);

    // An unversioned tensor (DLPack before 1.0), with an offset and no strides.
    static int deleted = 0;
    std::int64_t sizes[] = {1, 2};
    std::vector<float> data = {9.0F, 3.0F, 4.0F};
    DLManagedTensor old{};
    old.dl_tensor.data = data.data();
    old.dl_tensor.device = {kDLCPU, 0};
    old.dl_tensor.ndim = 2;
    old.dl_tensor.dtype = {kDLFloat, 32, 1};
    old.dl_tensor.shape = sizes;
    old.dl_tensor.byte_offset = sizeof(float);
    old.deleter = [](DLManagedTensor *) { ++deleted; };
    {
        const lz::Tensor imported = lz::Tensor::from_dlpack(&old);
        CHECK(imported.as<float>()[0] == 3.0F);
    }
    CHECK(deleted == 1);
}

struct Counting final : lz::Allocator {
    int live = 0;
    int made = 0;
    bool refuse = false;
    void *allocate(std::uint64_t bytes, std::uint64_t alignment, lz::Device device) noexcept override {
        if (refuse || device != lz::Device{}) {
            return nullptr;
        }
        ++live;
        ++made;
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    void release(void *memory, lz::Device) noexcept override {
        --live;
        std::free(memory);
    }
};

void allocators() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const auto counting = std::make_shared<Counting>();
    {
        const auto result =
            lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}}, {.allocator = counting});
        CHECK(counting->live == 1);
    }
    CHECK(counting->live == 0 && counting->made == 1);
    counting->refuse = true;
    try {
        (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}}, {.allocator = counting});
        CHECK(!"a failing allocator must be an error");
    } catch (const lz::ValidationError &error) {
        CHECK(error.has("OUT_OF_MEMORY"));
    }
    CHECK(counting->live == 0);
}

void policy() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const lz::ops::NormRms args{.x = {std::span(x), {2, 2}}};
    const lz::Plan plan = engine.which(args);
    CHECK(!plan.kernel.empty());
    const lz::Explanation explanation = engine.explain(args);
    CHECK(explanation.plan && explanation.plan->kernel == plan.kernel);
    CHECK(explanation.candidates.size() >= 2);
    CHECK(explanation.text.find("norm.rms") != std::string::npos);
    CHECK(explanation.json.front() == '{');
    {
        const lz::Scope scope = engine.disabled();
        CHECK(engine.which(args).kernel == "reference.norm.rms");
    }
    CHECK(engine.which(args).kernel == plan.kernel);
    {
        const lz::Scope scope = engine.prefer({"reference"});
        CHECK(!engine.which(args).kernel.empty());
    }
    engine.configure("fallback_enabled", false);
    bool shown = false;
    for (const lz::ConfigEntry &entry : engine.config()) {
        shown = shown || (entry.key == "fallback_enabled" && entry.value == "false");
    }
    CHECK(shown);
    CHECK(engine.operations().size() > 30);
    const std::vector<std::int32_t> experts{0, 2, -1, 2, 2, 1};
    const lz::TensorView indices{std::span(experts), {3, 2}};
    CHECK(engine.statistic("moe.experts", "max_expert_load", indices) == 3);
    try {
        (void)engine.statistic("moe.experts", "load", indices);
        CHECK(!"an unknown statistic must be rejected");
    } catch (const lz::ValidationError &error) {
        CHECK(std::string(error.what()).find("max_expert_load") != std::string::npos);
    }
    try {
        (void)lz::Engine::open("/no/such/layerzero.yaml");
        CHECK(!"a missing file must be an error");
    } catch (const lz::ConfigurationError &error) {
        CHECK(error.operation().find("layerzero.yaml") != std::string::npos);
    }
    const std::filesystem::path wrong =
        std::filesystem::temp_directory_path() / ("lz-smoke-" + std::to_string(::getpid()) + ".yaml");
    std::ofstream(wrong) << "backend_isolation: {mine: subprocess}\nstrict_mod: true\n";
    try {
        (void)lz::Engine::open(wrong.string());
        CHECK(!"an invalid file must be rejected, because it may require isolation");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string(error.what()).find("did you mean `strict_mode`?") != std::string::npos);
    }
    const std::uint64_t before = engine.generation();
    try {
        engine.load_config(wrong.string());
        CHECK(!"an invalid file must be rejected by load_config");
    } catch (const lz::ConfigurationError &) {
        CHECK(engine.generation() == before);
    }
    try {
        engine.open_perfdb(wrong.string());
        CHECK(!"an invalid database must be rejected");
    } catch (const lz::ConfigurationError &) {
        CHECK(std::filesystem::file_size(wrong) == 55);
    }
    std::filesystem::remove(wrong);
    try {
        engine.load_dispatch_table("/no/such/table.json");
        CHECK(!"a missing table must be an error");
    } catch (const lz::ConfigurationError &) {
        CHECK(engine.dispatch_tables().empty());
    }
    CHECK(engine.kernels().size() >= engine.operations().size());
    const lz::Engine same = engine;
    CHECK(same.generation() == engine.generation());
}

void measuring() {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("lz-smoke-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    const std::string database = folder / "perf.db";
    const std::string lines = folder / "perf.jsonl";
    std::vector<float> x(std::size_t{64} * 256, 1.0F);
    const lz::ops::NormRms args{.x = {std::span(x), {64, 256}}};
    {
        const lz::Engine engine;
        CHECK(!engine.perfdb());
        try {
            (void)engine.export_perfdb(lines);
            CHECK(!"export without a database must be an error");
        } catch (const lz::ConfigurationError &error) {
            CHECK(error.has("PERFDB_UNAVAILABLE"));
        }
        CHECK(!engine.tune(args).kept); // measured, but not stored
        engine.open_perfdb(database);
        std::ofstream(lines) << "garbage\n";
        try {
            (void)engine.import_perfdb(lines);
            CHECK(!"malformed measurements must be rejected");
        } catch (const lz::ConfigurationError &error) {
            CHECK(std::string(error.what()).find("nothing was imported") != std::string::npos);
        }
        const lz::Tuned tuned = engine.tune(args, lz::Options{});
        CHECK(tuned.kept);
        CHECK(!tuned.best().empty());
        CHECK(tuned.kernels.front().median_ns > 0.0 && tuned.kernels.front().samples > 0);
        CHECK(engine.which(args).kernel == tuned.best());
        CHECK(engine.perfdb()->state == "writable");
        CHECK(engine.perfdb()->measurements >= 2);
        CHECK(engine.export_perfdb(lines) == engine.perfdb()->measurements);
        try {
            engine.open_perfdb((folder / "other.db").string());
            CHECK(!"a second database must be rejected");
        } catch (const lz::ConfigurationError &error) {
            CHECK(std::string(error.what()).find("perf.db") != std::string::npos);
        }
        try {
            (void)engine.tune(lz::ops::NormRms{.x = {x.data(), lz::DType::I64, lz::Dims{}}});
            CHECK(!"an invalid call must not be measured");
        } catch (const lz::ValidationError &error) {
            CHECK(!error.reasons().empty());
        }
    }
    // The next engine uses the stored measurements, and they can be exported to another one.
    const lz::Engine next;
    next.open_perfdb(database);
    CHECK(next.perfdb()->measurements >= 2);
    const lz::Engine elsewhere;
    elsewhere.open_perfdb((folder / "elsewhere.db").string());
    CHECK(elsewhere.import_perfdb(lines) == next.perfdb()->measurements);
    const std::string merged = folder / "merged.db";
    for (int repetition = 0; repetition < 2; ++repetition) {
        CHECK(lz::Engine::merge_perfdb(merged, {database, (folder / "elsewhere.db").string()}) ==
              next.perfdb()->measurements);
    }
    const lz::PerfDbDifference same = next.diff_perfdb(database, merged);
    CHECK(same.compared >= 1 && same.calls.empty() && same.slower == 0 && same.decisions_changed == 0);
    try {
        (void)next.diff_perfdb(database + "@color=red", merged);
        CHECK(!"an unknown field must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string(error.what()).find("color") != std::string::npos);
    }
    const lz::Engine nowhere;
    try {
        nowhere.open_perfdb(folder.string()); // a folder, not a file
        CHECK(!"a folder must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(error.has("PERFDB_UNAVAILABLE"));
    }
    std::filesystem::remove_all(folder);
}

void own_kernels() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const lz::ops::NormRms args{.x = {std::span(x), {2, 2}}};
    static std::atomic<int> alive = 0;
    struct Counted {
        Counted() { ++alive; }
        Counted(const Counted &) { ++alive; }
        ~Counted() { --alive; }
    };
    engine.register_backend(
        descriptor, {lz::ops::norm_rms_kernel("mine.norm.rms", [counted = Counted()](const lz::ops::NormRms &call,
                                                                                    const lz::ops::NormRmsOut &out,
                                                                                    lz::Run &) {
            CHECK(call.eps && *call.eps > 0.0F); // the default value
            std::ranges::fill(out.output.as<float>(), 7.0F);
        })});
    CHECK(engine.which(args).kernel == "mine.norm.rms");
    CHECK(lz::ops::norm_rms(engine, args).output.as<float>()[3] == 7.0F);
    engine.unregister_kernel("mine.norm.rms", "norm.rms");
    CHECK(engine.which(args).kernel != "mine.norm.rms");
    try {
        engine.unregister_kernel("mine.norm.rms");
        CHECK(!"a kernel that is not registered must be an error");
    } catch (const lz::ConfigurationError &error) {
        CHECK(error.has("KERNEL_UNKNOWN"));
    }

    struct Throwing final : lz::ops::NormRmsKernel {
        void run(const lz::ops::NormRms &, const lz::ops::NormRmsOut &, lz::Run &run) const override {
            CHECK(run.workspace().size() == 48);
            throw std::runtime_error("intentional failure");
        }
        std::uint64_t workspace(const lz::ops::NormRms &) const override { return 48; }
    };
    engine.register_backend(descriptor, {lz::ops::norm_rms_kernel("mine.norm.rms", std::make_unique<const Throwing>())});
    CHECK(lz::ops::norm_rms(engine, args).output.elements() == 4); // a fallback kernel ran
    CHECK(engine.fallbacks() == 1);
    const std::vector<lz::Circuit> circuits = engine.circuits();
    for (const lz::Circuit &circuit : circuits) {
        if (circuit.name != "mine.norm.rms") {
            std::printf("%s failed: %s\n", circuit.name.c_str(), circuit.last_error.c_str());
        }
    }
    CHECK(circuits.size() == 1 && circuits[0].name == "mine.norm.rms" && circuits[0].failures == 1);
    CHECK(circuits.size() == 1 && circuits[0].state == "closed" && circuits[0].scope == "kernel");
    CHECK(engine.reset_kernel("another.kernel") == 0 && engine.reset_kernel("mine.norm.rms") == 1);
    CHECK(engine.circuits().empty());
    engine.lock("norm.rms", "mine.norm.rms");
    try {
        (void)lz::ops::norm_rms(engine, args);
        CHECK(!"the exception of a locked kernel must be reported");
    } catch (const lz::Error &error) {
        CHECK(std::string(error.what()).find("mine.norm.rms") != std::string::npos);
    }
    try {
        engine.register_backend("{}", {});
        CHECK(!"an empty descriptor must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(!error.reasons().empty());
    }
}

void plugins() {
    const lz::Engine engine;
    engine.configure("plugins.directories", {"/usr/lib"});
    for (const auto &[path, code] : {std::pair{"/no/such/plugin.so", "PLUGIN_PERMISSION"},
                                     std::pair{"/proc/self/exe", "PLUGIN_PATH_NOT_ALLOWED"}}) {
        try {
            (void)engine.load_plugin(path);
            CHECK(!"a plugin outside the allowed folders must be rejected");
        } catch (const lz::ConfigurationError &error) {
            CHECK(error.reasons().at(0).code == code);
        }
    }
}

/// The value of a setting.
std::string setting(const lz::Engine &engine, const std::string &key) {
    for (const lz::ConfigEntry &entry : engine.config()) {
        if (entry.key == key) {
            return entry.value;
        }
    }
    return {};
}

/// Compiles a version of the test plugin into `folder`.
std::string plugin(const std::string &folder, const std::string &version) {
    const auto root = std::filesystem::path(__FILE__).parent_path() / ".." / "..";
    const std::string path = folder + "/" + version + ".so";
    const std::string command = "gcc -std=gnu11 -shared -fPIC -O1 -DFAULT_" + version + " -I " +
                                (root / "runtime/plugin/include").string() + " " +
                                (root / "tests/plugins/native/versioned.c").string() + " -o " + path + " -lm";
    CHECK(std::system(command.c_str()) == 0);
    return path;
}

void reload() {
    const std::string folder = std::filesystem::temp_directory_path() / ("lz-reload-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    const lz::Engine engine;
    engine.configure("plugins.directories", {folder});
    const auto version = [&] {
        std::string found;
        for (const lz::KernelInfo &kernel : engine.kernels()) {
            found = kernel.id == "versioned.norm.rms" ? kernel.version : found;
        }
        return found;
    };
    std::vector<float> x = {3.0F, 4.0F, 6.0F, 8.0F, 1.0F, 2.0F, 3.0F, 4.0F};
    const lz::ops::NormRms args{.x = {std::span(x), {1, 8}}};
    const std::vector<float> expected = [&] {
        const auto result = lz::ops::norm_rms(lz::Engine::reference(), args);
        return std::vector<float>(result.output.as<float>().begin(), result.output.as<float>().end());
    }();
    const auto is_right = [&] {
        const auto result = lz::ops::norm_rms(engine, args);
        const auto found = result.output.as<float>();
        bool right = true;
        for (std::size_t index = 0; index < expected.size(); ++index) {
            right = right && std::fabs(found[index] - expected[index]) < 1e-4F;
        }
        return right;
    };
    (void)engine.load_plugin(plugin(folder, "FIRST"));
    CHECK(version() == "1.0" && is_right());

    // A plugin with wrong results changes nothing.
    try {
        (void)engine.reload_plugin(plugin(folder, "WRONG"));
        CHECK(!"wrong results must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(error.reasons().at(0).code == "VERSION_REJECTED");
    }
    CHECK(version() == "1.0" && is_right());

    // Calls of other threads continue while the plugin is replaced. Under valgrind, which runs one thread at a time, they pause between
    // calls: without a pause they would take most of the time of the thread that replaces the plugin.
    const std::string replacement = plugin(folder, "SECOND");
    const bool pause = std::getenv("SMOKE_UNDER_VALGRIND") != nullptr;
    std::atomic<bool> stop = false;
    std::atomic<int> wrong = 0;
    std::atomic<int> made = 0;
    std::vector<std::thread> running;
    for (int number = 0; number < 3; ++number) {
        running.emplace_back([&] {
            while (!stop) {
                wrong += is_right() ? 0 : 1;
                ++made;
                if (pause) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
            }
        });
    }
    while (made < 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const lz::PluginReload done = engine.reload_plugin(replacement, 30.0);
    stop = true;
    for (std::thread &thread : running) {
        thread.join();
    }
    CHECK(wrong == 0);
    CHECK(done.backend == "versioned" && done.version == "2.0" && done.unloaded);
    CHECK(done.replaced.at(0).second == "1.0" && done.compared_calls > 0 && done.untried.empty());
    CHECK(version() == "2.0" && is_right());

    // Versions side by side: by share, then as a canary.
    CHECK(engine.unregister_backend("versioned"));
    CHECK(!engine.unregister_backend("versioned"));
    (void)engine.load_plugin(plugin(folder, "FIRST"));
    const std::string second = "versioned.norm.rms@2.0";
    CHECK(engine.load_plugin_alongside(plugin(folder, "SLIGHTLY_WRONG")).kernels.at(0) == second);
    engine.configure("rollout.canaries", (second + ": 50").c_str());
    for (int round = 0; round < 20; ++round) {
        CHECK(is_right());
    }
    const lz::Canary canary = engine.canaries().at(0);
    CHECK(canary.kernel == second && canary.state == "rolled_back" && canary.mismatches == 1);
    CHECK(canary.why.find("output[0, 0] is") != std::string::npos);
    CHECK(engine.explain(args).text.find("rolled back") != std::string::npos);
    engine.promote_version(second);
    CHECK(engine.canaries().at(0).percent == 100 && !is_right());
    engine.roll_back_version(second);
    CHECK(is_right());
    try {
        engine.promote_version("versioned.norm.rms@9");
        CHECK(!"an unknown version must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(error.reasons().at(0).code == "KERNEL_UNKNOWN");
    }

    // A watched policy file.
    const std::string policy = folder + "/layerzero.yaml";
    std::ofstream(policy) << "deterministic: true\n";
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<lz::ConfigChange> changes;
    const auto wait_for = [&](const std::string &state) {
        std::unique_lock lock(mutex);
        const auto is_there = [&] {
            return std::any_of(changes.begin(), changes.end(), [&](const auto &one) { return one.state == state; });
        };
        CHECK(changed.wait_for(lock, std::chrono::seconds(60), is_there));
        changes.clear();
    };
    {
        const lz::ConfigWatch watch = engine.watch_config(policy, [&](const lz::ConfigChange &change) {
            const std::lock_guard lock(mutex);
            changes.push_back(change);
            changed.notify_all();
        });
        wait_for("applied");
        CHECK(setting(engine, "deterministic") == "true");
        std::ofstream(policy) << "determinstic: false\n";
        wait_for("refused");
        CHECK(setting(engine, "deterministic") == "true");
        std::ofstream(policy) << "deterministic: false\n";
        wait_for("applied");
        CHECK(setting(engine, "deterministic") == "false");
    }
    try {
        (void)engine.watch_config("/no/such/folder/layerzero.yaml");
        CHECK(!"a missing folder must be an error");
    } catch (const lz::ConfigurationError &) {
    }
    std::filesystem::remove_all(folder);
}

void readiness() {
    const lz::Engine engine;
    const auto check_of = [&](const lz::Readiness &found, const std::string &name) {
        for (const lz::ReadinessCheck &check : found.checks) {
            if (check.name == name) {
                return check;
            }
        }
        CHECK(!"there is no such check");
        return lz::ReadinessCheck{};
    };
    CHECK(engine.readiness_check().ready);
    for (const char *name : {"kernels", "health", "backends", "circuits", "dispatch_table", "compilation", "capture", "memory",
                             "perfdb", "telemetry", "versions"}) {
        CHECK(check_of(engine.readiness_check(), name).ok);
    }
    CHECK(!check_of(engine.readiness_check({"cuda"}), "kernels").ok);
    engine.configure("memory.probe", true);
    engine.configure("memory_headroom_mb", std::int64_t{1} << 40);
    const lz::Readiness found = engine.readiness_check();
    CHECK(!found.ready && !check_of(found, "memory").ok);
    try {
        (void)engine.readiness_check({"gpu"});
        CHECK(!"an unknown platform must be rejected");
    } catch (const lz::ConfigurationError &) {
    }
}

void logs() {
    std::vector<lz::LogRecord> records;
    lz::set_log_callback([&](const lz::LogRecord &record) { records.push_back(record); });
    lz::set_log_levels("off,select=debug");
    const lz::Engine engine;
    std::vector<float> x = rows();
    (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}});
    CHECK(records.size() == 1);
    CHECK(records.at(0).area == "select" && records.at(0).level == lz::LogLevel::Debug);
    CHECK(records.at(0).message == "new decision" && records.at(0).fields.at(0).second == "norm.rms");
    // A setting that turns on log lines also turns on their level.
    lz::set_log_levels("off");
    records.clear();
    engine.configure("log_selections", true);
    (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}});
    CHECK(records.size() == 1 && records.at(0).message == "selected");
    engine.configure("log_selections", false);
    lz::set_log_levels("");
    records.clear();
    const std::string config = "logged-plugins.yaml";
    std::ofstream(config) << "plugins:\n  load: [/no/such/plugin.so]\n  directories: [/usr/lib]\n";
    std::filesystem::permissions(config, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const lz::Engine opened = lz::Engine::open(config);
    std::filesystem::remove(config);
    CHECK(opened.load_problems().size() == 1);
    CHECK(opened.load_problems().at(0).name == "/no/such/plugin.so");
    CHECK(!opened.load_problems().at(0).reasons.empty());
    CHECK(records.size() == 1 && records.at(0).area == "audit" && records.at(0).level == lz::LogLevel::Warn);
    try {
        lz::set_log_levels("selects=info");
        CHECK(!"an unknown area must be rejected");
    } catch (const lz::ConfigurationError &error) {
        CHECK(std::string(error.what()).find("did you mean `select`") != std::string::npos);
    }
    lz::set_log_callback({});
}

void metrics() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    const std::string trace = "recorded.json";
    engine.start_recording();
    for (int round = 0; round < 3; ++round) {
        (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}});
    }
    engine.stop_recording(trace);
    const lz::Metrics found = engine.metrics();
    CHECK(found.selections == 3 && found.executions == 3 && found.cache_misses == 1);
    CHECK(found.calls.size() == 1 && found.calls.at(0).operation == "norm.rms" && found.calls.at(0).count == 3);
    CHECK(found.json.find("\"kernel_latency\"") != std::string::npos);
    CHECK(engine.metrics_text().find("lz_selection_total 3") != std::string::npos);
    std::ifstream file(trace);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    CHECK(text.find("\"norm.rms→" + found.calls.at(0).kernel + "\"") != std::string::npos);
    CHECK(text.find("select norm.rms") != std::string::npos);
    std::filesystem::remove(trace);
    try {
        engine.stop_recording(trace);
        CHECK(!"there is no recording");
    } catch (const lz::ConfigurationError &) {
    }
}

void verification() {
    const lz::Engine engine;
    std::vector<float> x = rows();
    engine.configure("verify", "all");
    for (int round = 0; round < 3; ++round) {
        (void)lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}});
    }
    CHECK(engine.wait_for_verification(60));
    CHECK(engine.metrics().json.find("\"agreed\":3") != std::string::npos);
    try {
        (void)engine.replay("no-such-file");
        CHECK(!"there is no such file");
    } catch (const lz::ConfigurationError &) {
    }
}

void threads() {
    const lz::Engine engine;
    std::vector<std::thread> running;
    std::atomic<int> right = 0;
    for (int number = 0; number < 4; ++number) {
        running.emplace_back([&] {
            std::vector<float> x = rows();
            for (int round = 0; round < 100; ++round) {
                const auto result = lz::ops::norm_rms(engine, {.x = {std::span(x), {2, 2}}, .eps = 0.0F});
                right += std::fabs(result.output.as<float>()[0] - 3.0F / std::sqrt(12.5F)) < 1e-6F ? 1 : 0;
            }
        });
    }
    for (std::thread &thread : running) {
        thread.join();
    }
    CHECK(right == 400);
}

} // namespace

int main() {
    // A separate home, because circuit breakers stored in the user's database by other processes would affect these tests.
    const auto home = std::filesystem::temp_directory_path() / ("layerzero-smoke-" + std::to_string(::getpid()));
    std::filesystem::create_directories(home);
    ::setenv("HOME", home.c_str(), 1);
    calls();
    page();
    errors();
    compiled_models();
    quantized_models();
    special_tokens();
    stated_truncation();
    vocabularies();
    flat_batches();
    padded_batches();
    invalid_batches();
    streamed_texts();
    chat_templates();
    blocks();
    formats_and_pairs();
    dlpack();
    allocators();
    policy();
    measuring();
    own_kernels();
    plugins();
    reload();
    readiness();
    logs();
    metrics();
    verification();
    threads();
    std::filesystem::remove_all(home);
    std::printf("%s\n", failures == 0 ? "smoke test passed" : "smoke test failed");
    return failures == 0 ? 0 : 1;
}
