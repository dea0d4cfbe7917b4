//! The callbacks of a custom operation.

use std::ffi::{CString, c_char, c_int, c_void};

use lz_engine::Engine;

use crate::api::{self, Api, CustomOpDescription, KernelContext, KernelInfo, Status};
use crate::attributes;
use crate::catalog::Variant;
use crate::compute::Node;
use crate::guarded;

/// A custom operation. ONNX Runtime passes the address of its description, which is the first field, to the callbacks.
#[repr(C)]
pub struct CustomOp {
    description: CustomOpDescription,
    api: Api,
    engine: Engine,
    name: CString,
    variant: Variant,
}

/// The pointers to callbacks that are not used are null.
const NONE: *const c_void = std::ptr::null();
/// ONNX Runtime's number for a type that is not declared.
const ANY_TYPE: c_int = 0;
/// ONNX Runtime's numbers for required and optional inputs and outputs.
const REQUIRED: c_int = 0;
const OPTIONAL: c_int = 1;

impl CustomOp {
    /// A custom operation that an engine runs.
    pub fn new(api: Api, engine: Engine, variant: Variant) -> CustomOp {
        let description = CustomOpDescription {
            version: api::VERSION,
            create_kernel: None,
            get_name,
            get_execution_provider_type,
            get_input_type,
            get_input_type_count,
            get_output_type,
            get_output_type_count,
            kernel_compute: None,
            kernel_destroy,
            get_input_characteristic,
            get_output_characteristic,
            get_input_memory_type,
            get_variadic_input_min_arity: no_variadic,
            get_variadic_input_homogeneity: no_variadic,
            get_variadic_output_min_arity: no_variadic,
            get_variadic_output_homogeneity: no_variadic,
            create_kernel_v2,
            kernel_compute_v2,
            later: [NONE; 7],
        };
        let name = CString::new(variant.op_type.as_str()).unwrap_or_default();
        CustomOp { description, api, engine, name, variant }
    }

    /// The description that ONNX Runtime reads.
    pub fn description(&'static self) -> &'static CustomOpDescription {
        &self.description
    }

    /// The operation with a description.
    ///
    /// # Safety
    /// ONNX Runtime got the description from [`CustomOp::description`].
    unsafe fn of(description: *const CustomOpDescription) -> &'static CustomOp {
        // SAFETY: the description is the first field of a `repr(C)` structure that is never freed.
        unsafe { &*description.cast::<CustomOp>() }
    }
}

unsafe extern "C" fn get_name(op: *const CustomOpDescription) -> *const c_char {
    // SAFETY: ONNX Runtime passes a description of ours.
    unsafe { CustomOp::of(op) }.name.as_ptr()
}

/// Null is the CPU.
unsafe extern "C" fn get_execution_provider_type(_op: *const CustomOpDescription) -> *const c_char {
    std::ptr::null()
}

unsafe extern "C" fn get_input_type(op: *const CustomOpDescription, index: usize) -> c_int {
    // SAFETY: as in `get_name`.
    let op = unsafe { CustomOp::of(op) };
    op.variant.inputs.get(index).copied().flatten().unwrap_or(ANY_TYPE)
}

unsafe extern "C" fn get_input_type_count(op: *const CustomOpDescription) -> usize {
    // SAFETY: as in `get_name`.
    unsafe { CustomOp::of(op) }.variant.inputs.len()
}

unsafe extern "C" fn get_output_type(op: *const CustomOpDescription, index: usize) -> c_int {
    // SAFETY: as in `get_name`.
    let op = unsafe { CustomOp::of(op) };
    op.variant.outputs.get(index).copied().and_then(api::element_type).unwrap_or(ANY_TYPE)
}

unsafe extern "C" fn get_output_type_count(op: *const CustomOpDescription) -> usize {
    // SAFETY: as in `get_name`.
    unsafe { CustomOp::of(op) }.variant.outputs.len()
}

unsafe extern "C" fn get_input_characteristic(op: *const CustomOpDescription, index: usize) -> c_int {
    // SAFETY: as in `get_name`.
    let op = unsafe { CustomOp::of(op) };
    let input = op.variant.operation.schema().inputs.get(index);
    if input.is_some_and(|input| input.optional.is_some()) { OPTIONAL } else { REQUIRED }
}

unsafe extern "C" fn get_output_characteristic(op: *const CustomOpDescription, index: usize) -> c_int {
    // SAFETY: as in `get_name`.
    let op = unsafe { CustomOp::of(op) };
    // Those after the outputs of the schema are written inputs, which a node may leave out.
    let output = op.variant.operation.schema().outputs.get(index);
    if output.is_none_or(|output| output.when.is_some()) { OPTIONAL } else { REQUIRED }
}

/// Memory of the device of the execution provider.
unsafe extern "C" fn get_input_memory_type(_op: *const CustomOpDescription, _index: usize) -> c_int {
    0
}

unsafe extern "C" fn no_variadic(_op: *const CustomOpDescription) -> c_int {
    0
}

unsafe extern "C" fn create_kernel_v2(
    op: *const CustomOpDescription,
    _api: *const *const c_void,
    info: *const KernelInfo,
    kernel: *mut *mut c_void,
) -> *mut Status {
    // SAFETY: as in `get_name`.
    let op = unsafe { CustomOp::of(op) };
    guarded(op.api, || {
        let params = attributes::params(op.api, info, &op.variant)?;
        let node = Node { api: op.api, engine: op.engine.clone(), variant: &op.variant, params };
        // SAFETY: ONNX Runtime passes memory for one pointer.
        unsafe { kernel.write(Box::into_raw(Box::new(node)).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn kernel_compute_v2(kernel: *mut c_void, context: *mut KernelContext) -> *mut Status {
    // SAFETY: ONNX Runtime passes what `create_kernel_v2` wrote, possibly from several threads at once; a run does not change it.
    let node = unsafe { &*kernel.cast::<Node>() };
    guarded(node.api, || node.compute(context))
}

unsafe extern "C" fn kernel_destroy(kernel: *mut c_void) {
    // A node whose creation failed has no kernel.
    if !kernel.is_null() {
        // SAFETY: `create_kernel_v2` wrote the pointer, and ONNX Runtime destroys a kernel once.
        drop(unsafe { Box::from_raw(kernel.cast::<Node>()) });
    }
}
