/* Versions of a plugin with two kernels for contiguous f32. FAULT_FIRST is version 1.0, all others are 2.0. */
#include <layerzero/lz_plugin.h>

#include <math.h>
#include <string.h>
#include <time.h>

#ifdef FAULT_FIRST
#define VERSION "1.0"
#else
#define VERSION "2.0"
#endif

#ifdef FAULT_ABI
const uint32_t lz_plugin_abi = (LZ_ABI_MAJOR + 1) << 16;
#else
const uint32_t lz_plugin_abi = LZ_ABI_VERSION;
#endif

static lz_status norm(void *context, const lz_norm_rms_args *args, const lz_norm_rms_out *out, lz_run *run) {
    (void)context;
    (void)run;
#ifdef FAULT_FAILS
    strcpy(run->error, "requested test failure");
    return LZ_FAILED;
#endif
#ifdef FAULT_SLOW
    const struct timespec pause = {0, 300000};
    nanosleep(&pause, NULL);
#endif
    const lz_tensor *x = args->x;
    const int64_t hidden = x->shape[x->rank - 1];
    int64_t rows = 1;
    for (uint32_t at = 0; at + 1 < x->rank; ++at) {
        rows *= x->shape[at];
    }
#ifdef FAULT_FAILS_LATER
    /* Passes a trial, whose calls are larger. */
    if (hidden == 8) {
        strcpy(run->error, "requested test failure");
        return LZ_FAILED;
    }
#endif
    const float *weight = args->weight != NULL ? (const float *)args->weight->data : NULL;
    for (int64_t row = 0; row < rows; ++row) {
        const float *from = (const float *)x->data + row * hidden;
        float *to = (float *)out->output->data + row * hidden;
        double sum = 0;
        for (int64_t at = 0; at < hidden; ++at) {
            sum += (double)from[at] * from[at];
        }
        double scale = 1 / sqrt(sum / (double)hidden + args->eps);
#ifdef FAULT_WRONG
        scale *= 1.5;
#endif
#ifdef FAULT_SLIGHTLY_WRONG
        /* Passes a trial, whose calls are larger. */
        if (hidden == 8) {
            scale *= 1.01;
        }
#endif
        for (int64_t at = 0; at < hidden; ++at) {
            const double factor = weight != NULL ? weight[at] + (double)args->weight_offset : 1;
            to[at] = (float)(from[at] * scale * factor);
        }
    }
    return LZ_OK;
}

static lz_status relu(void *context, const lz_activation_relu_args *args, const lz_activation_relu_out *out, lz_run *run) {
    (void)context;
    (void)run;
    const lz_tensor *x = args->x;
    int64_t count = 1;
    for (uint32_t at = 0; at < x->rank; ++at) {
        count *= x->shape[at];
    }
    const float *from = (const float *)x->data;
    float *to = (float *)out->output->data;
    for (int64_t at = 0; at < count; ++at) {
        to[at] = from[at] < 0 ? 0 : from[at];
    }
    return LZ_OK;
}

static const lz_norm_rms_kernel norm_table = {.size = sizeof(norm_table), .run = norm};
static const lz_activation_relu_kernel relu_table = {.size = sizeof(relu_table), .run = relu};

static const lz_kernel kernels[] = {
    {.size = sizeof(lz_kernel),
     .id = "versioned.norm.rms",
     .operation = "norm.rms",
     .operation_version = LZ_NORM_RMS_VERSION,
     .vtable = &norm_table},
    {.size = sizeof(lz_kernel),
     .id = "versioned.relu",
     .operation = "activation.relu",
     .operation_version = LZ_ACTIVATION_RELU_VERSION,
     .vtable = &relu_table},
};

LZ_EXPORT lz_status lz_plugin_init(const lz_host *host, lz_plugin *plugin) {
#ifdef FAULT_NEVER
    strncpy(host->error, "requested initialization failure", host->error_capacity);
    return LZ_FAILED;
#endif
    (void)host;
    plugin->descriptor =
        "{\"schema_version\": \"1.0\", \"backend\": \"versioned\", \"backend_version\": \"" VERSION "\", \"platform\": \"cpu\","
        " \"ops\": {\"norm.rms\": [{\"kernel_id\": \"versioned.norm.rms\", \"dtypes\": [\"float32\"],"
        " \"requires_layouts\": [\"any\"], \"optional_inputs\": [\"weight\"], \"params\": [\"eps\", \"weight_offset\"],"
        " \"requires_contiguous\": true, \"writes_into_output\": true, \"priority\": 99}],"
        " \"activation.relu\": [{\"kernel_id\": \"versioned.relu\", \"dtypes\": [\"float32\"],"
        " \"requires_layouts\": [\"any\"], \"requires_contiguous\": true, \"writes_into_output\": true,"
        " \"priority\": 99}]}}";
    plugin->kernels = kernels;
    plugin->kernel_count = 2;
    return LZ_OK;
}
