// Texts and tokens: batches in one flat array or as padded matrices, streaming decoding, and the tokens of conversations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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

/// A side of a row.
enum class Side : std::uint8_t { Left, Right };

/// Which text of a pair is truncated. Single texts are truncated with the first two.
enum class Truncation : std::uint8_t { LongestFirst, OnlyFirst, OnlySecond };

/// The length of padded rows.
class Padding {
  public:
    /// The length of the longest row.
    [[nodiscard]] static constexpr Padding longest() noexcept { return {Kind::Longest, 0}; }
    /// `BatchOptions::max_length`, which must be given.
    [[nodiscard]] static constexpr Padding max_length() noexcept { return {Kind::MaxLength, 0}; }
    /// A length of at least 1.
    [[nodiscard]] static constexpr Padding fixed(std::int64_t length) noexcept { return {Kind::Fixed, length}; }

    /// The number of the kind, for the bridge.
    [[nodiscard]] constexpr std::uint8_t kind() const noexcept { return static_cast<std::uint8_t>(kind_); }
    /// The length of `fixed`, otherwise 0.
    [[nodiscard]] constexpr std::int64_t length() const noexcept { return length_; }

  private:
    enum class Kind : std::uint8_t { Longest, MaxLength, Fixed };

    constexpr Padding(Kind kind, std::int64_t length) noexcept : kind_(kind), length_(length) {}

    Kind kind_;
    std::int64_t length_;
};

/// A padding token: nothing, its id, or its text.
using PadToken = std::variant<std::monostate, std::int32_t, std::string_view>;

/// Options of `tokenize_batch`.
struct BatchOptions {
    /// Whether the post-processor adds special tokens, such as the begin-of-text token.
    bool add_special_tokens = true;
    /// Maximum number of tokens of a row, with special tokens. Rows with more are truncated.
    std::optional<std::int64_t> max_length = std::nullopt;
    /// Tokens that consecutive windows of a truncated text share.
    std::int64_t stride = 0;
    /// Which text of a pair is truncated.
    Truncation truncation = Truncation::LongestFirst;
    /// The side that truncation cuts off.
    Side truncation_side = Side::Right;
    /// Whether the windows of a truncated text after the first one become rows too.
    bool return_overflow = false;
    /// The length of rows.
    Padding padding = Padding::longest();
    /// The length is rounded up to a multiple of this.
    std::int64_t pad_to_multiple_of = 1;
    /// The side that is padded.
    Side padding_side = Side::Right;
    /// The padding token, as an id or as a text of the vocabulary. Needed if a row is shorter than the others.
    PadToken pad_id = {};
    /// Whether the byte range of each token is returned.
    bool return_offsets = false;

    /// The options of the bridge, which refer to the text of the padding token.
    [[nodiscard]] bridge::BatchOptions raw() const {
        const auto *id = std::get_if<std::int32_t>(&pad_id);
        const auto *token = std::get_if<std::string_view>(&pad_id);
        return {add_special_tokens,
                max_length.has_value(),
                max_length.value_or(0),
                stride,
                static_cast<std::uint8_t>(truncation),
                static_cast<std::uint8_t>(truncation_side),
                return_overflow,
                padding.kind(),
                padding.length(),
                pad_to_multiple_of,
                static_cast<std::uint8_t>(padding_side),
                id != nullptr,
                id != nullptr ? *id : 0,
                token != nullptr,
                token != nullptr ? detail::to_str(*token) : rust::Str(),
                return_offsets};
    }
};

/// Texts, or pairs of texts, as matrices: one row per text, or per window of a truncated text. All rows have the same length. The
/// functions without argument return the whole matrix, row after row; those with the number of a row return that row.
class TokenBatch {
  public:
    explicit TokenBatch(bridge::TokenMatrices matrices) : matrices_(std::move(matrices)) {}

    /// Number of rows.
    [[nodiscard]] std::size_t size() const noexcept { return matrices_.sample.size(); }
    /// Number of tokens of each row, with padding.
    [[nodiscard]] std::size_t length() const noexcept { return matrices_.length; }

    /// Token ids.
    [[nodiscard]] std::span<const std::int64_t> input_ids() const noexcept { return all(matrices_.input_ids); }
    [[nodiscard]] std::span<const std::int64_t> input_ids(std::size_t row) const { return one(matrices_.input_ids, row); }
    /// 0 for padding, 1 for other tokens.
    [[nodiscard]] std::span<const std::int64_t> attention_mask() const noexcept { return all(matrices_.attention_mask); }
    [[nodiscard]] std::span<const std::int64_t> attention_mask(std::size_t row) const {
        return one(matrices_.attention_mask, row);
    }
    /// The type ids of the definition's post-processor; 0 for padding.
    [[nodiscard]] std::span<const std::int64_t> token_type_ids() const noexcept { return all(matrices_.token_type_ids); }
    [[nodiscard]] std::span<const std::int64_t> token_type_ids(std::size_t row) const {
        return one(matrices_.token_type_ids, row);
    }
    /// 1 for special tokens and padding, 0 for tokens of a text.
    [[nodiscard]] std::span<const std::int64_t> special_tokens_mask() const noexcept {
        return all(matrices_.special_tokens_mask);
    }
    [[nodiscard]] std::span<const std::int64_t> special_tokens_mask(std::size_t row) const {
        return one(matrices_.special_tokens_mask, row);
    }
    /// For each row, the number of the text that it comes from.
    [[nodiscard]] std::span<const std::int64_t> sample() const noexcept { return all(matrices_.sample); }
    /// The first byte of each token in the UTF-8 of its text and the byte after its last one; 0 and 0 for special tokens and padding.
    /// Empty unless it was requested.
    [[nodiscard]] std::span<const std::int64_t> offsets() const noexcept { return all(matrices_.offsets); }
    /// The offsets of one row: two for each of its tokens.
    [[nodiscard]] std::span<const std::int64_t> offsets(std::size_t row) const { return one(matrices_.offsets, row); }

  private:
    [[nodiscard]] static std::span<const std::int64_t> all(const rust::Vec<std::int64_t> &matrix) noexcept {
        return {matrix.data(), matrix.size()};
    }
    [[nodiscard]] std::span<const std::int64_t> one(const rust::Vec<std::int64_t> &matrix, std::size_t row) const {
        if (row >= size()) {
            throw ValidationError("there is no row " + std::to_string(row) + " in a batch of " + std::to_string(size()));
        }
        const std::size_t columns = matrix.size() / size();
        return all(matrix).subspan(row * columns, columns);
    }

    bridge::TokenMatrices matrices_;
};

namespace detail {

inline bridge::TokenRows token_rows(const FlatTokens &rows) {
    const auto slice = [](auto values) { return rust::Slice(values.data(), values.size()); };
    return {slice(rows.tokens()), slice(rows.indptr()), slice(rows.offsets())};
}

/// The tokens of texts without special tokens, which are added to whole rows.
inline FlatTokens encode_rows(const Engine &engine, const Tokenizer &tokenizer, std::span<const std::string_view> texts,
                              const BatchOptions &options) {
    return encode_batch(engine, tokenizer, texts,
                        {.add_special_tokens = false, .return_offsets = options.return_offsets});
}

} // namespace detail

/// Encodes texts into rows of equal length: truncated if they have more than `max_length` tokens, padded with `pad_id` if they are shorter.
inline TokenBatch tokenize_batch(const Engine &engine, const Tokenizer &tokenizer, std::span<const std::string_view> texts,
                                 const BatchOptions &options = {}) {
    const FlatTokens rows = detail::encode_rows(engine, tokenizer, texts, options);
    bridge::TokenMatrices matrices{};
    detail::check(bridge::tokenizer_batch(tokenizer.handle(), detail::token_rows(rows), options.raw(), matrices));
    return TokenBatch(std::move(matrices));
}

/// The same for pairs of texts: `pairs[b]` is the second text of `texts[b]`.
inline TokenBatch tokenize_batch(const Engine &engine, const Tokenizer &tokenizer, std::span<const std::string_view> texts,
                                 std::span<const std::string_view> pairs, const BatchOptions &options = {}) {
    const FlatTokens first = detail::encode_rows(engine, tokenizer, texts, options);
    const FlatTokens second = detail::encode_rows(engine, tokenizer, pairs, options);
    bridge::TokenMatrices matrices{};
    detail::check(bridge::tokenizer_batch_of_pairs(tokenizer.handle(), detail::token_rows(first), detail::token_rows(second),
                                                   options.raw(), matrices));
    return TokenBatch(std::move(matrices));
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
