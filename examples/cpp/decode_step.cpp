// A part of a decode step of a small MLA model: RMS norm, then attention over latent keys. Prints the selected kernel.
#include <layerzero/layerzero.hpp>

#include <cstdio>
#include <vector>

int main() try {
    constexpr std::int64_t tokens = 1, heads = 4, latent = 32, rope = 8, length = 16;
    const lz::Engine engine;

    std::vector<float> hidden(tokens * heads * latent, 0.5F);
    const auto normed = lz::ops::norm_rms(engine, {.x = {std::span(hidden), {tokens, heads * latent}}, .eps = 1e-5F});

    const std::vector<float> q_pe(tokens * heads * rope, 0.1F);
    const std::vector<float> ckv(length * latent, 0.2F);
    const std::vector<float> kpe(length * rope, 0.3F);
    const std::int64_t q_shape[] = {tokens, heads, latent};
    const lz::ops::AttentionMlaDecode args{
        .q_nope = {normed.output.data(), lz::DType::F32, q_shape},
        .q_pe = {std::span(q_pe), {tokens, heads, rope}},
        .ckv = {std::span(ckv), {length, 1, latent}},
        .kpe = {std::span(kpe), {length, 1, rope}},
        .sm_scale = 0.125F,
    };
    const auto attended = lz::ops::attention_mla_decode(engine, args);
    std::printf("layerzero %s ran %s\n", lz::version().c_str(), engine.which(args).kernel.c_str());

    // All values are equal, so their weighted average is the same value.
    for (const float value : attended.output.as<float>()) {
        if (value < 0.19F || value > 0.21F) {
            std::fprintf(stderr, "unexpected value %f\n", static_cast<double>(value));
            return 1;
        }
    }
    return 0;
} catch (const lz::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    for (const lz::Reason &reason : error.reasons()) {
        std::fprintf(stderr, "  %s: %s\n", reason.code.c_str(), reason.message.c_str());
    }
    return 1;
}
