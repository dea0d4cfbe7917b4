// The structures of DLPack 1.x, as in its specification, and conversions to and from tensors.
//
// If another dlpack.h was included before, its structures are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include <layerzero/dtype.hpp>
#include <layerzero/error.hpp>
#include <layerzero/lz_plugin.h>

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1
#define DLPACK_FLAG_BITMASK_READ_ONLY (UINT64_C(1) << 0)

extern "C" {

typedef struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

typedef enum : int32_t {
    kDLCPU = 1,
    kDLCUDA = 2,
    kDLCUDAHost = 3,
    kDLMetal = 8,
    kDLROCM = 10,
    kDLROCMHost = 11,
    kDLCUDAManaged = 13,
    kDLOneAPI = 14,
} DLDeviceType;

typedef struct DLDevice {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLBool = 6,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e5m2 = 12,
    kDLFloat8_e8m0fnu = 14,
    kDLFloat4_e2m1fn = 17,
} DLDataTypeCode;

typedef struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

} // extern "C"
#endif

namespace lz::detail {

/// A dtype and its DLPack representation.
struct DLPackType {
    DType dtype;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

inline constexpr DLPackType dlpack_types[] = {
    {DType::F64, 2, 64, 1},      {DType::F32, 2, 32, 1},   {DType::F16, 2, 16, 1},    {DType::BF16, 4, 16, 1},
    {DType::F8_E4M3, 10, 8, 1},  {DType::F8_E5M2, 12, 8, 1}, {DType::F8_E8M0, 14, 8, 1}, {DType::F4_E2M1x2, 17, 4, 2},
    {DType::I64, 0, 64, 1},      {DType::I32, 0, 32, 1},   {DType::I16, 0, 16, 1},    {DType::I8, 0, 8, 1},
    {DType::U64, 1, 64, 1},      {DType::U32, 1, 32, 1},   {DType::U16, 1, 16, 1},    {DType::U8, 1, 8, 1},
    {DType::Bool, 6, 8, 1},
};

inline lz_tensor from_dlpack(const DLTensor &given) {
    if (given.ndim < 0 || given.ndim > LZ_MAX_RANK) {
        throw ValidationError("a tensor can have at most 8 dimensions");
    }
    lz_tensor tensor{};
    for (const DLPackType &type : dlpack_types) {
        if (type.code == given.dtype.code && type.bits == given.dtype.bits && type.lanes == given.dtype.lanes) {
            tensor.dtype = static_cast<std::uint8_t>(type.dtype);
        }
    }
    if (tensor.dtype == 0) {
        throw ValidationError("the dtype of the DLPack tensor is not supported");
    }
    switch (static_cast<int>(given.device.device_type)) {
    case 1:  // the host
    case 3:  // pinned for CUDA
    case 11: // pinned for ROCm
        tensor.platform = LZ_CPU;
        break;
    case 2:
    case 13: // managed
        tensor.platform = LZ_CUDA;
        break;
    case 8: tensor.platform = LZ_METAL; break;
    case 10: tensor.platform = LZ_ROCM; break;
    case 14: tensor.platform = LZ_XPU; break;
    default: throw ValidationError("the device of the DLPack tensor is not supported");
    }
    tensor.device = tensor.platform == LZ_CPU ? std::uint16_t{0} : static_cast<std::uint16_t>(given.device.device_id);
    tensor.rank = static_cast<std::uint32_t>(given.ndim);
    std::int64_t dense = 1;
    for (std::int32_t at = given.ndim; at-- > 0;) {
        tensor.shape[at] = given.shape[at];
        tensor.strides[at] = given.strides != nullptr ? given.strides[at] : dense;
        dense = static_cast<std::int64_t>(static_cast<std::uint64_t>(dense) *
                                          static_cast<std::uint64_t>(given.shape[at] > 1 ? given.shape[at] : 1));
    }
    tensor.data = given.data == nullptr ? nullptr : static_cast<char *>(given.data) + given.byte_offset;
    return tensor;
}

/// The result refers to the sizes and strides of `tensor`.
inline void to_dlpack(lz_tensor &tensor, DLTensor &result) {
    static constexpr int device_types[] = {1, 2, 10, 0, 14, 8};
    const int device_type = tensor.platform < 6 ? device_types[tensor.platform] : 0;
    if (device_type == 0) {
        throw ValidationError("DLPack does not support the device of the tensor");
    }
    result.data = tensor.data;
    result.device = {static_cast<DLDeviceType>(device_type), tensor.device};
    result.ndim = static_cast<std::int32_t>(tensor.rank);
    for (const DLPackType &type : dlpack_types) {
        if (static_cast<std::uint8_t>(type.dtype) == tensor.dtype) {
            result.dtype = {type.code, type.bits, type.lanes};
        }
    }
    result.shape = tensor.shape;
    result.strides = tensor.strides;
    result.byte_offset = 0;
}

} // namespace lz::detail
