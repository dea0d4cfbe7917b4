// A C++ plugin: one kernel of norm.rms for contiguous f32, which throws if eps is 0.25.
#include <layerzero/ops/norm_rms.hpp>
#include <layerzero/plugin.hpp>

#include <cmath>
#include <stdexcept>

namespace {

constexpr const char *descriptor = R"({
    "schema_version": "1.0", "backend": "cpp", "backend_version": "1.0", "platform": "cpu",
    "ops": {"norm.rms": [{
        "kernel_id": "cpp.norm.rms", "dtypes": ["float32"], "requires_layouts": ["any"], "params": ["eps"],
        "requires_contiguous": true, "writes_into_output": true, "priority": 99}]}})";

#ifdef FAULT_RAW_THROW
// A vtable without the exception shim: exceptions leave it, and the host cannot catch them.
lz_status run(void *, const lz_norm_rms_args *, const lz_norm_rms_out *, lz_run *) {
    throw std::runtime_error("uncaught test exception");
}
const lz_norm_rms_kernel raw = {sizeof(lz_norm_rms_kernel), nullptr, nullptr, run, nullptr};
#endif

[[maybe_unused]] void normalize(const lz::ops::NormRms &call, const lz::ops::NormRmsOut &out, lz::Run &) {
    const float eps = call.eps.value();
    if (eps == 0.25F) {
        throw std::runtime_error("eps 0.25 is rejected");
    }
    const auto from = call.x.as<float>();
    const auto to = out.output.as<float>();
    const auto hidden = static_cast<std::size_t>(call.x.shape().back());
    for (std::size_t row = 0; row < from.size(); row += hidden) {
        double sum = 0.0;
        for (std::size_t at = row; at < row + hidden; ++at) {
            sum += static_cast<double>(from[at]) * from[at];
        }
        const double scale = std::sqrt(sum / static_cast<double>(hidden) + eps);
        for (std::size_t at = row; at < row + hidden; ++at) {
            to[at] = static_cast<float>(from[at] / scale);
        }
    }
}

std::vector<lz::Kernel> kernels() {
#ifdef FAULT_RAW_THROW
    return {lz::Kernel("cpp.norm.rms", "norm.rms", LZ_NORM_RMS_VERSION, std::shared_ptr<const void>(&raw, [](const void *) {}))};
#else
    return {lz::ops::norm_rms_kernel("cpp.norm.rms", normalize)};
#endif
}

} // namespace

LZ_PLUGIN(descriptor, kernels)
