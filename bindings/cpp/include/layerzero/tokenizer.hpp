// Tokenizers, as `tokenize_encode` and `tokenize_decode` take them.
#pragma once

#include <span>
#include <string_view>

#include <layerzero/detail/failure.hpp>

namespace lz {

/// How a tokenizer is read.
struct TokenizerOptions {
    /// Ignore truncation and padding that a definition states, instead of refusing it: texts are encoded whole.
    bool whole_texts = false;
};

/// A tokenizer: a `tokenizer.json` in the Hugging Face format, or a SentencePiece model.
class Tokenizer {
  public:
    /// Reads a file: a SentencePiece model if its name ends in `.model`, else a `tokenizer.json`.
    static Tokenizer from_file(std::string_view path, TokenizerOptions options = {}) {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_load(*tokenizer.handle_, detail::to_str(path), options.whole_texts));
        return tokenizer.described();
    }
    /// Reads the content of such a file.
    static Tokenizer from_json(std::string_view json, TokenizerOptions options = {}) {
        Tokenizer tokenizer;
        const auto *bytes = reinterpret_cast<const std::uint8_t *>(json.data());
        detail::check(bridge::tokenizer_parse(*tokenizer.handle_, {bytes, json.size()}, options.whole_texts));
        return tokenizer.described();
    }

    /// The same tokenizer for texts from outside: special tokens in a text are encoded as the plain text they are.
    [[nodiscard]] Tokenizer splitting_special_tokens() const {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_split_special(*handle_, *tokenizer.handle_));
        return tokenizer.described();
    }

    /// As it crosses.
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

    /// SHA-256 of everything that can change a result.
    [[nodiscard]] std::span<const std::uint8_t, 32> digest() const noexcept {
        return std::span<const std::uint8_t, 32>(tokenizer_.digest);
    }
    /// The `tokenizer.json` that it was made from.
    [[nodiscard]] std::string_view json() const noexcept { return {tokenizer_.json, tokenizer_.json_size}; }
    /// As it crosses.
    [[nodiscard]] const lz_tokenizer *raw() const noexcept { return &tokenizer_; }

  private:
    lz_tokenizer tokenizer_;
};

} // namespace lz
