// Texts and tokens: batches in one flat array, streaming decoding, and the tokens of conversations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/engine.hpp>
#include <layerzero/ops/tokenize_decode.hpp>
#include <layerzero/ops/tokenize_encode.hpp>
#include <layerzero/tokenizer.hpp>

namespace lz {

/// Options for encoding a batch.
struct EncodeOptions {
    /// Whether the post-processor adds special tokens, such as the begin-of-text token.
    bool add_special_tokens = true;
    /// Whether the byte range of each token is returned.
    bool return_offsets = false;
};

/// The tokens of several texts in one array.
class FlatTokens {
  public:
    explicit FlatTokens(ops::TokenizeEncodeOutput output) : output_(std::move(output)) {}

    /// Number of texts.
    [[nodiscard]] std::size_t size() const { return indptr().size() - 1; }
    /// The ids of all texts.
    [[nodiscard]] std::span<const std::int32_t> tokens() const { return output_.tokens.as<std::int32_t>(); }
    /// The start of the ids of each text; ends with the number of all ids.
    [[nodiscard]] std::span<const std::int64_t> indptr() const { return output_.indptr.as<std::int64_t>(); }
    /// The first byte of each token in the UTF-8 of its text and the byte after its last one; empty unless it was requested.
    [[nodiscard]] std::span<const std::int64_t> offsets() const {
        return output_.offsets ? output_.offsets->as<std::int64_t>() : std::span<const std::int64_t>();
    }
    /// The ids of one text.
    [[nodiscard]] std::span<const std::int32_t> operator[](std::size_t text) const {
        const auto [start, count] = range(text);
        return tokens().subspan(start, count);
    }
    /// The offsets of one text: two for each of its ids.
    [[nodiscard]] std::span<const std::int64_t> offsets(std::size_t text) const {
        const auto [start, count] = range(text);
        return output_.offsets ? offsets().subspan(2 * start, 2 * count) : offsets();
    }

  private:
    [[nodiscard]] std::pair<std::size_t, std::size_t> range(std::size_t text) const {
        if (text >= size()) {
            throw ValidationError("there is no text " + std::to_string(text) + " in a batch of " + std::to_string(size()));
        }
        const auto start = static_cast<std::size_t>(indptr()[text]);
        return {start, static_cast<std::size_t>(indptr()[text + 1]) - start};
    }

    ops::TokenizeEncodeOutput output_;
};

/// Encodes texts into one flat array.
inline FlatTokens encode_batch(const Engine &engine, const Tokenizer &tokenizer, std::span<const std::string_view> texts,
                               EncodeOptions options = {}) {
    return FlatTokens(ops::tokenize_encode(engine, {.texts = texts,
                                                    .tokenizer = tokenizer,
                                                    .add_special_tokens = options.add_special_tokens,
                                                    .return_offsets = options.return_offsets}));
}

/// The number of tokens of each text.
inline std::vector<std::size_t> count_tokens(const Engine &engine, const Tokenizer &tokenizer,
                                             std::span<const std::string_view> texts, bool add_special_tokens = true) {
    const FlatTokens batch = encode_batch(engine, tokenizer, texts, {.add_special_tokens = add_special_tokens});
    std::vector<std::size_t> counts(batch.size());
    for (std::size_t text = 0; text < counts.size(); ++text) {
        counts[text] = batch[text].size();
    }
    return counts;
}

/// The tokens of a conversation, rendered with the chat template of the model. `messages` are `ChatMessage`s or a JSON list.
template <class Messages>
inline FlatTokens encode_chat(const Engine &engine, const Tokenizer &tokenizer, const Messages &messages,
                              const ChatOptions &options = {}) {
    // The template writes the special tokens itself.
    const std::string text = tokenizer.apply_chat_template(messages, options);
    const std::string_view texts[] = {text};
    return encode_batch(engine, tokenizer, texts, {.add_special_tokens = false});
}

/// Decodes ids step by step: each step returns the text that cannot change any more, never a part of a character.
class TextStream {
  public:
    explicit TextStream(const Tokenizer &tokenizer, bool skip_special_tokens = true) : handle_(bridge::text_stream_new()) {
        detail::check(bridge::text_stream_start(*handle_, tokenizer.handle(), skip_special_tokens));
    }

    /// Adds ids and returns the text that they complete.
    std::string push(std::span<const std::int32_t> ids) {
        rust::String text;
        detail::check(bridge::text_stream_push(*handle_, {ids.data(), ids.size()}, text));
        return std::string(text);
    }
    /// Adds an id and returns the text that it completes.
    std::string push(std::int32_t id) { return push(std::span(&id, 1)); }
    /// Ends the text: returns what is left, with U+FFFD for an incomplete character. The stream can be used for another text then.
    std::string finish() {
        rust::String text;
        detail::check(bridge::text_stream_finish(*handle_, text));
        return std::string(text);
    }

  private:
    rust::Box<bridge::TextStreamHandle> handle_;
};

} // namespace lz
