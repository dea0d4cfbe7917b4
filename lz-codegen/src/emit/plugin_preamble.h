/*
 * The C ABI of LayerZero: what a kernel in a shared library is called with, and what such a library exports.
 *
 * A plugin is a shared library that exports two things:
 *
 *     const uint32_t lz_plugin_abi = LZ_ABI_VERSION;
 *     lz_status lz_plugin_init(const lz_host *host, lz_plugin *plugin);
 *
 * The host reads `lz_plugin_abi` before it calls anything. A different major number is refused; a different minor one only
 * means that one side knows more fields than the other. `lz_plugin_init` fills in the plugin: a capability descriptor
 * (JSON, schemas/contracts/capabilities.v1.schema.json), and one table of functions for each kernel that it describes.
 *
 * Every structure that may grow begins with its size in bytes. Fields are only ever added at the end, so a field is there if
 * the size says so (`LZ_HAS`). What an operation takes is fixed by its version; `lz_kernel` names the version it was built for.
 *
 * Functions of a kernel may be called from any thread, several at once, and must not let anything unwind out of them. Tensors
 * and texts are the host's, for the time of the call. Every call was checked against the operation's schema: shapes agree,
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
    LZ_OK = 0,            /* it worked */
    LZ_FAILED = 1,        /* it failed for this call; another kernel may try */
    LZ_DECLINED = 2,      /* it declines this call; nothing was written */
    LZ_OUT_OF_MEMORY = 3, /* there was not enough memory */
    LZ_BACKEND_LOST = 4,  /* the whole backend should not be used for a while */
    LZ_DEVICE_LOST = 5    /* the device's context is lost */
};

/* Where memory is. */
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
    const void *handle; /* the host's own */
    uint8_t digest[32]; /* SHA-256 of everything that can change a result */
    const char *json;   /* the tokenizer.json that it was made from */
    size_t json_size;
} lz_tokenizer;

/* A tensor whose size the kernel finds out: `lz_run::make_tensor` allocates it. */
typedef struct lz_dynamic {
    lz_tensor tensor; /* what was made */
    void *slot;       /* the host's own */
} lz_dynamic;

/* Strings that the kernel makes: `lz_run::make_texts` hands them over. */
typedef struct lz_texts_output {
    void *slot; /* the host's own */
} lz_texts_output;

/* What a running kernel may use. */
typedef struct lz_run {
    size_t size;
    void *stream;             /* the caller's stream on its device; NULL on the host */
    void *workspace;          /* as much as the kernel's `workspace` asked for, 64-byte aligned */
    uint64_t workspace_bytes; /* how much that is */
    char *error;              /* where the kernel says what went wrong, in UTF-8 */
    size_t error_capacity;    /* bytes there, the terminator included */
    lz_status (*make_tensor)(struct lz_run *run, lz_dynamic *output, uint8_t dtype, uint32_t rank, const int64_t *shape);
    lz_status (*make_texts)(struct lz_run *run, lz_texts_output *output, const lz_text *items, size_t count);
} lz_run;

/* One kernel of a plugin. */
typedef struct lz_kernel {
    size_t size;
    const char *id;             /* as the descriptor calls it */
    const char *operation;      /* "norm.rms" */
    uint32_t operation_version; /* LZ_NORM_RMS_VERSION, as this header had it when the plugin was built */
    const void *vtable;         /* a lz_norm_rms_kernel that stays where it is until teardown */
} lz_kernel;

/* What a plugin says of itself. All pointers stay good until teardown. */
typedef struct lz_plugin {
    size_t size;            /* set by the host: what it has room for */
    const char *descriptor; /* JSON, terminated */
    const lz_kernel *kernels;
    size_t kernel_count;
    void (*teardown)(void); /* called once, after the last call; may be NULL */
} lz_plugin;

/* What a plugin may use of its host while it starts. */
typedef struct lz_host {
    size_t size;
    uint32_t abi_version;
    const char *version; /* of LayerZero */
    char *error;         /* where the plugin says why it does not start */
    size_t error_capacity;
} lz_host;

/* What a plugin exports as `lz_plugin_init`. */
typedef lz_status (*lz_plugin_init_function)(const lz_host *host, lz_plugin *plugin);

/* Where a caller wants a result, and how it gets it. For callers, not for kernels. */
typedef struct lz_output {
    uint32_t state;         /* LZ_OUTPUT_… */
    const lz_tensor *given; /* the caller's */
    void *owner;            /* keeps what was made alive */
    void (*release)(void *owner);
    lz_texts texts;   /* strings that were made */
    lz_tensor tensor; /* what was made; nobody reads it before */
} lz_output;
enum {
    LZ_OUTPUT_WANTED = 0,    /* the caller wants it made */
    LZ_OUTPUT_GIVEN = 1,     /* the caller gives the tensor */
    LZ_OUTPUT_ABSENT = 2,    /* the call does not produce it */
    LZ_OUTPUT_ALLOCATED = 3, /* memory of the caller's allocator holds it */
    LZ_OUTPUT_OWNED = 4      /* `owner` holds it */
};

/* How a call is made. For callers, not for kernels. */
typedef struct lz_call_options {
    size_t size;
    void *stream;  /* on the tensors' device; NULL is the device's own */
    void *context; /* for `allocate` */
    /* Memory for results; NULL where there is none. */
    void *(*allocate)(void *context, uint64_t bytes, uint64_t alignment, uint32_t platform, uint32_t device);
} lz_call_options;

