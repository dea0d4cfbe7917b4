// Tokenizers, for `tokenize_encode` and `tokenize_decode`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <layerzero/detail/failure.hpp>

namespace lz {

/// Options for loading a tokenizer.
struct TokenizerOptions {
    /// Ignore truncation and padding in the definition instead of rejecting it: texts are encoded completely.
    bool whole_texts = false;
};

/// A message of a conversation.
struct ChatMessage {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    std::string_view role;
    std::string_view content;
};

/// Options of a chat template. `tools`, `documents` and `variables` are JSON texts: lists, and an object of further variables of the
/// template. Empty ones are not given.
struct ChatOptions {
    std::string_view tools = {};
    std::string_view documents = {};
    std::string_view variables = {};
    /// A template, or the name of one of the tokenizer's; empty for the default.
    std::string_view chat_template = {};
    /// Whether the text ends with the header of a new message of the assistant.
    bool add_generation_prompt = false;
    /// Whether the text ends inside of the last message, which the model continues.
    bool continue_final_message = false;
    /// The field of the last message that is continued.
    std::string_view continued_field = "content";
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

    /// A built-in encoding of tiktoken: `o200k_base`, `cl100k_base` and others.
    static Tokenizer from_encoding(std::string_view name) {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_of_encoding(*tokenizer.handle_, detail::to_str(name)));
        return tokenizer.described();
    }

    /// The number of tokens, with added ones. Ids may be larger if a definition skips some.
    [[nodiscard]] std::size_t vocab_size() const noexcept { return bridge::tokenizer_vocabulary_size(*handle_); }
    /// The token of an id, of the model or added; nothing for an unknown id.
    [[nodiscard]] std::optional<std::string> id_to_token(std::int32_t id) const {
        rust::String token;
        if (id < 0 || !bridge::tokenizer_token_of(*handle_, static_cast<std::uint32_t>(id), token)) {
            return std::nullopt;
        }
        return std::string(token);
    }
    /// The id of a token, of the model or added; nothing for an unknown token.
    [[nodiscard]] std::optional<std::int32_t> token_to_id(std::string_view token) const {
        std::uint32_t id = 0;
        if (!bridge::tokenizer_id_of(*handle_, detail::to_str(token), id)) {
            return std::nullopt;
        }
        return static_cast<std::int32_t>(id);
    }

    /// The same tokenizer for untrusted texts: special tokens in a text are encoded as plain text.
    [[nodiscard]] Tokenizer splitting_special_tokens() const {
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_split_special(*handle_, *tokenizer.handle_));
        return tokenizer.described();
    }

    /// The same tokenizer with a chat template. `special_tokens` are variables of the template, such as `bos_token`. Without this, the
    /// templates come from `tokenizer_config.json` and `chat_template.jinja` next to the file of the tokenizer.
    [[nodiscard]] Tokenizer
    with_chat_template(std::string_view chat_template,
                       std::span<const std::pair<std::string_view, std::string_view>> special_tokens = {}) const {
        std::vector<rust::Str> names{rust::Str("chat_template")};
        std::vector<rust::Str> values{detail::to_str(chat_template)};
        for (const auto &[name, token] : special_tokens) {
            names.push_back(detail::to_str(name));
            values.push_back(detail::to_str(token));
        }
        const rust::String config =
            bridge::chat_config({names.data(), names.size()}, {values.data(), values.size()});
        Tokenizer tokenizer;
        detail::check(bridge::tokenizer_with_chat(*handle_, config, *tokenizer.handle_));
        return tokenizer.described();
    }

    /// Renders a conversation with the chat template of the model, as Transformers does.
    [[nodiscard]] std::string apply_chat_template(std::span<const ChatMessage> messages,
                                                  const ChatOptions &options = {}) const {
        std::vector<rust::Str> roles;
        std::vector<rust::Str> contents;
        for (const ChatMessage &message : messages) {
            roles.push_back(detail::to_str(message.role));
            contents.push_back(detail::to_str(message.content));
        }
        return rendered(bridge::chat_messages({roles.data(), roles.size()}, {contents.data(), contents.size()}), options);
    }
    /// The same for messages as a JSON list of objects, which may have more fields, such as `tool_calls`.
    [[nodiscard]] std::string apply_chat_template(std::string_view messages, const ChatOptions &options = {}) const {
        return rendered(detail::to_str(messages), options);
    }

    /// How far the verification of the native kernel is: `not started`, `running`, `verified`, or why no kernel is equal to the
    /// definition, which then encodes itself. The first call starts it.
    [[nodiscard]] std::string verification() const { return std::string(bridge::tokenizer_verification(*handle_)); }
    /// Starts the verification of the native kernel and waits until it has ended, at most for these seconds. Returns whether it has ended.
    bool wait_verified(std::optional<double> seconds = std::nullopt) const {
        return bridge::tokenizer_wait_verified(*handle_, seconds.value_or(-1.0));
    }

    /// The C representation.
    [[nodiscard]] const lz_tokenizer *raw() const noexcept { return &description_; }
    /// The handle, for other headers.
    [[nodiscard]] const bridge::TokenizerHandle &handle() const noexcept { return *handle_; }

  private:
    [[nodiscard]] std::string rendered(rust::Str messages, const ChatOptions &options) const {
        const bridge::ChatVariables variables{
            detail::to_str(options.tools),
            detail::to_str(options.documents),
            detail::to_str(options.variables),
            detail::to_str(options.chat_template),
            options.continue_final_message ? detail::to_str(options.continued_field) : rust::Str(),
            options.add_generation_prompt,
        };
        rust::String text;
        detail::check(bridge::tokenizer_render_chat(*handle_, messages, variables, text));
        return std::string(text);
    }

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
