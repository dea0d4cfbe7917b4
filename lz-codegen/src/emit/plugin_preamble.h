/*
 * The C ABI of LayerZero: the arguments of kernels in shared libraries, and the symbols that such a library exports.
 *
 * A plugin is a shared library that exports two things:
 *
 *     const uint32_t lz_plugin_abi = LZ_ABI_VERSION;
 *     lz_status lz_plugin_init(const lz_host *host, lz_plugin *plugin);
 *
 * The host reads `lz_plugin_abi` before it calls anything. A different major number is refused; a different minor number
 * only means that one side has more fields than the other. `lz_plugin_init` fills in the plugin: a capability descriptor
 * (JSON, schemas/contracts/capabilities.v1.schema.json), and one table of functions for each kernel that it describes.
 *
 * Every structure that may grow begins with its size in bytes. Fields are only ever added at the end, so a field exists if
 * the size includes it (`LZ_HAS`). The arguments of an operation are fixed by its version; `lz_kernel` names the version it was built for.
 *
 * Functions of a kernel may be called from any thread, several at once, and must not let anything unwind out of them. Tensors
 * and texts belong to the host and are valid during the call. Every call was checked against the operation's schema: shapes agree,
 * params have values (defaults are filled in), outputs have the right size and overlap nothing that is read.
 */
#ifndef LZ_PLUGIN_H
#define LZ_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LZ_ABI_MAJOR 1u
#define LZ_ABI_MINOR 0u
#define LZ_ABI_VERSION ((LZ_ABI_MAJOR << 16) | LZ_ABI_MINOR)
#define LZ_MAX_RANK 8

/* Whether a structure is large enough to have a field. */
#define LZ_HAS(structure, field)                                                                                       \
    ((structure)->size >= (size_t)((const char *)&(structure)->field - (const char *)(structure)) + sizeof((structure)->field))

#if defined(_WIN32)
#define LZ_EXPORT __declspec(dllexport)
#else
#define LZ_EXPORT __attribute__((visibility("default")))
#endif

/* The result of a function. */
typedef int32_t lz_status;
enum {
    LZ_OK = 0,            /* success */
    LZ_FAILED = 1,        /* failed for this call; a fallback may run */
    LZ_DECLINED = 2,      /* declines this call; nothing was written */
    LZ_OUT_OF_MEMORY = 3, /* not enough memory */
    LZ_BACKEND_LOST = 4,  /* the whole backend is unusable for a while */
    LZ_DEVICE_LOST = 5    /* the device's context is lost */
};

/* The platform of a device. */
enum { LZ_CPU = 0, LZ_CUDA = 1, LZ_ROCM = 2, LZ_HPU = 3, LZ_XPU = 4, LZ_METAL = 5 };

/* A borrowed tensor. */
typedef struct lz_tensor {
    void *data;                   /* address of the element at index 0 */
    int64_t shape[LZ_MAX_RANK];   /* the first `rank` count */
    int64_t strides[LZ_MAX_RANK]; /* in elements; the first `rank` count */
    uint32_t rank;
    uint8_t dtype;    /* LZ_F32 and so on */
    uint8_t platform; /* LZ_CPU and so on */
    uint16_t device;
} lz_tensor;

/* UTF-8, not terminated. */
typedef struct lz_text {
    const char *data;
    size_t size;
} lz_text;

/* A batch of strings. */
typedef struct lz_texts {
    const lz_text *items;
    size_t count;
} lz_texts;

/* A tokenizer of the host. */
typedef struct lz_tokenizer {
    size_t size;
    const void *handle; /* private to the host */
    uint8_t digest[32]; /* SHA-256 of everything that can change a result */
    const char *json;   /* the tokenizer.json that it was made from */
    size_t json_size;
} lz_tokenizer;

/* A tensor whose size the kernel determines: `lz_run::make_tensor` allocates it. */
typedef struct lz_dynamic {
    lz_tensor tensor; /* the allocated tensor */
    void *slot;       /* private to the host */
} lz_dynamic;

/* Strings that the kernel produces: `lz_run::make_texts` passes them to the host. */
typedef struct lz_texts_output {
    void *slot; /* private to the host */
} lz_texts_output;

/* Resources of a running kernel. */
typedef struct lz_run {
    size_t size;
    void *stream;             /* the caller's stream on its device; NULL on the host */
    void *workspace;          /* the bytes that the kernel's `workspace` requested, 64-byte aligned */
    uint64_t workspace_bytes; /* its size */
    char *error;              /* buffer for an error message, in UTF-8 */
    size_t error_capacity;    /* size of the buffer, including the terminator */
    lz_status (*make_tensor)(struct lz_run *run, lz_dynamic *output, uint8_t dtype, uint32_t rank, const int64_t *shape);
    lz_status (*make_texts)(struct lz_run *run, lz_texts_output *output, const lz_text *items, size_t count);
} lz_run;

/* One kernel of a plugin. */
typedef struct lz_kernel {
    size_t size;
    const char *id;             /* its id in the descriptor */
    const char *operation;      /* "norm.rms" */
    uint32_t operation_version; /* LZ_NORM_RMS_VERSION, as this header had it when the plugin was built */
    const void *vtable;         /* a lz_norm_rms_kernel, valid until teardown */
} lz_kernel;

/* The description of a plugin. All pointers are valid until teardown. */
typedef struct lz_plugin {
    size_t size;            /* set by the host: its capacity */
    const char *descriptor; /* JSON, terminated */
    const lz_kernel *kernels;
    size_t kernel_count;
    void (*teardown)(void); /* called once, after the last call; may be NULL */
} lz_plugin;

/* The host, for use while a plugin starts. */
typedef struct lz_host {
    size_t size;
    uint32_t abi_version;
    const char *version; /* of LayerZero */
    char *error;         /* buffer for the reason why the plugin does not start */
    size_t error_capacity;
} lz_host;

/* The type of `lz_plugin_init`. */
typedef lz_status (*lz_plugin_init_function)(const lz_host *host, lz_plugin *plugin);

/* An output slot of a caller. For callers, not for kernels. */
typedef struct lz_output {
    uint32_t state;         /* LZ_OUTPUT_… */
    const lz_tensor *given; /* the caller's tensor */
    void *owner;            /* owns the result */
    void (*release)(void *owner);
    lz_texts texts;   /* resulting strings */
    lz_tensor tensor; /* the result; uninitialized before the call */
} lz_output;
enum {
    LZ_OUTPUT_WANTED = 0,    /* to be allocated */
    LZ_OUTPUT_GIVEN = 1,     /* the caller passes the tensor */
    LZ_OUTPUT_ABSENT = 2,    /* the call does not produce it */
    LZ_OUTPUT_ALLOCATED = 3, /* in memory of the caller's allocator */
    LZ_OUTPUT_OWNED = 4      /* owned by `owner` */
};

/* Options of a call. For callers, not for kernels. */
typedef struct lz_call_options {
    size_t size;
    void *stream;  /* on the tensors' device; NULL is the default stream */
    void *context; /* for `allocate` */
    /* Memory for results; NULL where there is none. */
    void *(*allocate)(void *context, uint64_t bytes, uint64_t alignment, uint32_t platform, uint32_t device);
} lz_call_options;

