// Runs a plugin in a worker process and continues after it crashes: isolated FOLDER PLUGIN WORKER.
#include <layerzero/layerzero.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main(int count, char **arguments) try {
    if (count != 4) {
        std::fprintf(stderr, "usage: isolated FOLDER PLUGIN WORKER\n");
        return 2;
    }
    const lz::Engine engine;
    engine.configure("plugins.directories", {arguments[1]});
    engine.configure("backend_isolation", "vendor: subprocess");
    engine.configure("worker.program", arguments[3]);
    const lz::Plugin plugin = engine.load_plugin(arguments[2]);
    if (plugin.backend != "vendor" || plugin.runs_in.empty()) {
        std::fprintf(stderr, "%s does not run in a worker process\n", plugin.backend.c_str());
        return 1;
    }
    std::vector<float> x = {-1.0F, 2.0F};
    const lz::ops::ActivationRelu args{.x = {std::span(x), {2}}};
    if (engine.which(args).kernel != "vendor.relu" ||
        lz::ops::activation_relu(engine, args).output.as<float>()[1] != 2.0F) {
        std::fprintf(stderr, "the kernel of the plugin was not selected\n");
        return 1;
    }
    // The worker process crashes, a fallback kernel runs, and the explanation contains the reason.
    x = {13.0F, -2.0F};
    const auto survived = lz::ops::activation_relu(engine, args);
    const std::string why = engine.explain(args).text;
    if (survived.output.as<float>()[0] != 13.0F || why.find("WORKER_CRASHED") == std::string::npos) {
        std::fprintf(stderr, "%s\n", why.c_str());
        return 1;
    }
    std::printf("%s in %s crashed, and a fallback kernel ran\n", plugin.kernels.at(0).c_str(), plugin.runs_in.c_str());
    return 0;
} catch (const lz::Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
