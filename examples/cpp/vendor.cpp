// A vendor plugin: needs only the headers, not the library. Its kernel crashes if the first element is exactly 13.
#include <layerzero/ops/activation_relu.hpp>
#include <layerzero/plugin.hpp>

#include <algorithm>
#include <cstdlib>

namespace {

constexpr const char *descriptor = R"({
    "schema_version": "1.0", "backend": "vendor", "backend_version": "1.0", "platform": "cpu",
    "ops": {"activation.relu": [{
        "kernel_id": "vendor.relu", "dtypes": ["float32"], "requires_layouts": ["any"], "requires_contiguous": true,
        "writes_into_output": true, "priority": 99}]}})";

void relu(const lz::ops::ActivationRelu &call, const lz::ops::ActivationReluOut &out, lz::Run &) {
    const auto from = call.x.as<float>();
    const auto to = out.output.as<float>();
    if (!from.empty() && from[0] == 13.0F) {
        std::abort();
    }
    std::transform(from.begin(), from.end(), to.begin(), [](float value) { return std::max(value, 0.0F); });
}

std::vector<lz::Kernel> kernels() { return {lz::ops::activation_relu_kernel("vendor.relu", relu)}; }

} // namespace

LZ_PLUGIN(descriptor, kernels)
