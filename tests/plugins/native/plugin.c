/* A C plugin: one kernel of norm.rms for contiguous f32. Each FAULT_… macro enables one fault. */
#include <layerzero/lz_plugin.h>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef FAULT_NAMED_CPU
#define NAME "cpu"
#elif defined(FAULT_NAMED_TORCH)
#define NAME "Torch"
#elif !defined(NAME)
#define NAME "c"
#endif

#ifdef FAULT_NEWER
const uint32_t lz_plugin_abi = LZ_ABI_VERSION + 1;
#elif defined(FAULT_VERSION)
const uint32_t lz_plugin_abi = (LZ_ABI_MAJOR + 1) << 16;
#else
const uint32_t lz_plugin_abi = LZ_ABI_VERSION;
#endif

static lz_status workspace(void *context, const lz_norm_rms_args *args, uint64_t *bytes) {
    (void)context;
    *bytes = (uint64_t)args->x->shape[args->x->rank - 1] * sizeof(double);
#ifdef FAULT_WORKSPACE
    *bytes = (uint64_t)1 << 40;
#endif
    return LZ_OK;
}

static lz_status run(void *context, const lz_norm_rms_args *args, const lz_norm_rms_out *out, lz_run *run) {
    (void)context;
#ifdef FAULT_RUN
    strcpy(run->error, "requested test failure");
    return LZ_FAILED;
#endif
#ifdef FAULT_UNTERMINATED
    memset(run->error, 'x', run->error_capacity);
    return LZ_FAILED;
#endif
#ifdef FAULT_STATUS
    return 77;
#endif
#ifdef FAULT_CRASH
    *(volatile int *)8 = 1;
#endif
#ifdef FAULT_HANG
    for (;;) {
        const struct timespec second = {1, 0};
        nanosleep(&second, NULL);
    }
#endif
#ifdef FAULT_OOM
    for (;;) {
        char *memory = malloc(1 << 24);
        if (memory == NULL) {
            abort();
        }
        memset(memory, 1, 1 << 24);
    }
#endif
    const lz_tensor *x = args->x;
    const int64_t hidden = x->shape[x->rank - 1];
    int64_t rows = 1;
    for (uint32_t at = 0; at + 1 < x->rank; ++at) {
        rows *= x->shape[at];
    }
    double *squares = run->workspace;
    for (int64_t row = 0; row < rows; ++row) {
        const float *from = (const float *)x->data + row * hidden;
        float *to = (float *)out->output->data + row * hidden;
        double sum = 0;
        for (int64_t at = 0; at < hidden; ++at) {
            squares[at] = (double)from[at] * from[at];
            sum += squares[at];
        }
        const double scale = sqrt(sum / (double)hidden + args->eps);
        for (int64_t at = 0; at < hidden; ++at) {
            to[at] = (float)(from[at] / scale);
        }
    }
    return LZ_OK;
}

#ifdef FAULT_NEWER
/* A vtable of a later minor version, with additional fields. */
static const struct {
    lz_norm_rms_kernel known;
    void *unknown[4];
} later = {
    .known = {.size = sizeof(later), .workspace = workspace, .run = run},
};
#define TABLE later.known
#else
#define TABLE vtable
static const lz_norm_rms_kernel vtable = {
#ifdef FAULT_OLDER
    /* A vtable of an earlier version, without the last field. */
    .size = offsetof(lz_norm_rms_kernel, release),
#else
    .size = sizeof(vtable),
#endif
    .workspace = workspace,
#ifndef FAULT_NO_RUN
    .run = run,
#endif
};
#endif

static const lz_kernel kernels[] = {{
    .size = sizeof(lz_kernel),
    .id = NAME ".norm.rms",
    .operation = "norm.rms",
#ifdef FAULT_OPERATION_VERSION
    .operation_version = LZ_NORM_RMS_VERSION + 1,
#else
    .operation_version = LZ_NORM_RMS_VERSION,
#endif
    .vtable = &TABLE,
}};

#ifndef FAULT_SYMBOL
LZ_EXPORT lz_status lz_plugin_init(const lz_host *host, lz_plugin *plugin) {
#ifdef FAULT_INIT
    strncpy(host->error, "requested initialization failure", host->error_capacity);
    return LZ_FAILED;
#endif
#ifdef FAULT_INIT_CRASH
    *(volatile int *)8 = 1;
#endif
    (void)host;
    plugin->descriptor =
#ifdef FAULT_DESCRIPTOR
        "{";
#else
        "{\"schema_version\": \"1.0\", \"backend\": \"" NAME "\", \"backend_version\": \"1.0\", \"platform\": \"cpu\","
        " \"ops\": {\"norm.rms\": [{\"kernel_id\": \"" NAME ".norm.rms\", \"dtypes\": [\"float32\"],"
        " \"requires_layouts\": [\"any\"], \"params\": [\"eps\"], \"requires_contiguous\": true,"
        " \"writes_into_output\": true, \"priority\": 99, \"workspace_bytes\": \"hidden * 8\"}]}}";
#endif
    plugin->kernels = kernels;
    plugin->kernel_count = 1;
    return LZ_OK;
}
#endif
