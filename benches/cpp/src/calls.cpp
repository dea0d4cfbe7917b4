// The timed calls from C++. Each runs `count` calls and returns nanoseconds per call.
#include <layerzero/layerzero.hpp>

#include <chrono>
#include <vector>

namespace {

constexpr std::int64_t hidden = 8;

template <class Work> double timed(std::uint64_t count, Work &&work) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t at = 0; at < count; ++at) {
        work();
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    return taken.count() / static_cast<double>(count);
}

const lz::Engine &engine() {
    static const lz::Engine instance;
    return instance;
}

} // namespace

extern "C" double bench_cpp_into(std::uint64_t count) {
    std::vector<float> x(hidden, 1.0F);
    std::vector<float> weight(hidden, 2.0F);
    std::vector<float> out(hidden);
    const lz::ops::NormRms args{.x = {std::span(x), {1, hidden}}, .weight = lz::TensorView(std::span(weight), {hidden})};
    const lz::ops::NormRmsOut outputs{.output = {std::span(out), {1, hidden}}};
    return timed(count, [&] { lz::ops::norm_rms_into(engine(), args, outputs); });
}

extern "C" double bench_cpp_fresh(std::uint64_t count) {
    std::vector<float> x(hidden, 1.0F);
    std::vector<float> weight(hidden, 2.0F);
    return timed(count, [&] {
        const auto result = lz::ops::norm_rms(
            engine(), {.x = {std::span(x), {1, hidden}}, .weight = lz::TensorView(std::span(weight), {hidden})});
        asm volatile("" : : "g"(&result) : "memory");
    });
}
