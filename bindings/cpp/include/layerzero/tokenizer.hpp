// Tokenizers, for `tokenize_encode` and `tokenize_decode`.
#pragma once

#include <span>
#include <string_view>

#include <layerzero/detail/failure.hpp>

namespace lz {

/// Options for loading a tokenizer.
struct TokenizerOptions {
    /// Ignore truncation and padding in the definition instead of rejecting it: texts are encoded completely.
    bool whole_texts = false;
};

/// A tokenizer: a `tokenizer.json` in the Hugging Face format, a SentencePiece model, or one of the other formats of `from_file`.
class Tokenizer {
  public:
    /// Loads a `tokenizer.json`, a SentencePiece model, a `tekken.json`, a `vocab.txt` next to its `tokenizer_config.json`, or the tiktoken
    /// ranks of a built-in encoding. The content decides which of them a file is.
    static Tokenizer from_file(std::string_view path, TokenizerOptions options = {}) {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_load(*tokenizer.handle_, detail::to_str(path), options.whole_texts));
        return tokenizer.described();
    }
    /// Parses the content of a `tokenizer.json`.
    static Tokenizer from_json(std::string_view json, TokenizerOptions options = {}) {
        Tokenizer tokenizer;
        const auto *bytes = reinterpret_cast<const std::uint8_t *>(json.data());
        detail::check(bridge::tokenizer_parse(*tokenizer.handle_, {bytes, json.size()}, options.whole_texts));
        return tokenizer.described();
    }

    /// The same tokenizer for untrusted texts: special tokens in a text are encoded as plain text.
    [[nodiscard]] Tokenizer splitting_special_tokens() const {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_split_special(*handle_, *tokenizer.handle_));
        return tokenizer.described();
    }

    /// The C representation.
    [[nodiscard]] const lz_tokenizer *raw() const noexcept { return &description_; }

  private:
    Tokenizer() : handle_(bridge::tokenizer_new()) {}
    Tokenizer described() && = delete;
    Tokenizer described() & {
        bridge::tokenizer_describe(*handle_, &description_);
        return std::move(*this);
    }

    rust::Box<bridge::TokenizerHandle> handle_;
    lz_tokenizer description_{};
};

/// A borrowed tokenizer.
class TokenizerView {
  public:
    TokenizerView(const Tokenizer &tokenizer) noexcept : tokenizer_(*tokenizer.raw()) {}
    explicit TokenizerView(const lz_tokenizer &tokenizer) noexcept : tokenizer_(tokenizer) {}

    /// SHA-256 of all parts of the definition that affect results.
    [[nodiscard]] std::span<const std::uint8_t, 32> digest() const noexcept {
        return std::span<const std::uint8_t, 32>(tokenizer_.digest);
    }
    /// The `tokenizer.json` that it was loaded from.
    [[nodiscard]] std::string_view json() const noexcept { return {tokenizer_.json, tokenizer_.json_size}; }
    /// The C representation.
    [[nodiscard]] const lz_tokenizer *raw() const noexcept { return &tokenizer_; }

  private:
    lz_tokenizer tokenizer_;
};

} // namespace lz
