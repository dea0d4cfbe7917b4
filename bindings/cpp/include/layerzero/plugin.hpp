// Plugins in C++: kernels as objects or functions, exported through the C ABI. Needs only the headers, not the library.
//
//     std::vector<lz::Kernel> kernels() { return {lz::ops::norm_rms_kernel("mine.norm.rms", [](auto &call, auto &out, auto &) { … })}; }
//     LZ_PLUGIN(descriptor_json, kernels)
#pragma once

#include <cstring>
#include <exception>
#include <vector>

#include <layerzero/kernel.hpp>
#include <layerzero/lz_plugin.h>

namespace lz::detail {

/// The state of a plugin.
struct PluginState {
    std::vector<Kernel> kernels;
    std::vector<lz_kernel> records;
};

template <class MakeKernels>
lz_status start_plugin(const lz_host *host, lz_plugin *plugin, const char *descriptor, MakeKernels &&make,
                       PluginState &state) noexcept {
    try {
        state.kernels = make();
        for (const Kernel &kernel : state.kernels) {
            state.records.push_back({sizeof(lz_kernel), kernel.id().c_str(), kernel.operation(),
                                     kernel.operation_version(), kernel.vtable()});
        }
        plugin->descriptor = descriptor;
        plugin->kernels = state.records.data();
        plugin->kernel_count = state.records.size();
        return LZ_OK;
    } catch (const std::exception &error) {
        if (host->error_capacity > 0) {
            std::strncpy(host->error, error.what(), host->error_capacity - 1);
            host->error[host->error_capacity - 1] = '\0';
        }
        return LZ_FAILED;
    } catch (...) {
        return LZ_FAILED;
    }
}

} // namespace lz::detail

/// Exports a plugin: the JSON descriptor, and a function that creates its kernels.
#define LZ_PLUGIN(descriptor, make_kernels)                                                                            \
    namespace {                                                                                                        \
    /* Each plugin has its own: with external linkage two plugins would share it. */                                   \
    lz::detail::PluginState lz_plugin_state;                                                                           \
    }                                                                                                                  \
    extern "C" {                                                                                                       \
    extern LZ_EXPORT const uint32_t lz_plugin_abi;                                                                     \
    const uint32_t lz_plugin_abi = LZ_ABI_VERSION;                                                                     \
    LZ_EXPORT lz_status lz_plugin_init(const lz_host *host, lz_plugin *plugin) {                                       \
        plugin->teardown = [] { lz_plugin_state = {}; };                                                               \
        return lz::detail::start_plugin(host, plugin, (descriptor), (make_kernels), lz_plugin_state);                  \
    }                                                                                                                  \
    }
