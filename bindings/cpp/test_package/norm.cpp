// Normalizes one row with the packaged library.
#include <layerzero/layerzero.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

int main() try {
    const lz::Engine engine;
    const std::vector<float> x{3.0F, 4.0F};
    const auto result = lz::ops::norm_rms(engine, {.x = {std::span(x), {1, 2}}});
    const float first = result.output.as<float>()[0];
    std::printf("layerzero %s: %f\n", lz::version().c_str(), static_cast<double>(first));
    return std::fabs(first - 0.848528F) < 1e-5F ? 0 : 1;
} catch (const lz::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
