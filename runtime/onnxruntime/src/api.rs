//! The part of ONNX Runtime's C ABI that custom operations need.
//!
//! The ABI is a table of functions. Functions are only added at its end, so that an index never changes. [`VERSION`] is the oldest
//! version with all functions and callbacks that are used here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use lz_core::DType;

/// The version of the ABI: ONNX Runtime 1.16, the first whose kernels return errors.
pub const VERSION: u32 = 16;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque! {
    /// An error; a null pointer is success.
    Status,
    /// The options of a session.
    SessionOptions,
    /// A set of custom operations.
    CustomOpDomain,
    /// A node of a model.
    KernelInfo,
    /// One run of a node.
    KernelContext,
    /// A value of a model.
    Value,
    /// The type and shape of a tensor.
    TensorInfo,
}

/// The functions that return the tables of functions.
#[repr(C)]
#[derive(Debug)]
pub struct ApiBase {
    get_api: unsafe extern "C" fn(version: u32) -> *const Entry,
    _get_version: unsafe extern "C" fn() -> *const c_char,
}

/// A function of a table. Its type depends on its index.
type Entry = *const c_void;

/// The functions of one ONNX Runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api(*const Entry);

// SAFETY: the table is constant, and its functions may be called by any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// A description of a custom operation. ONNX Runtime reads fields up to its `version`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "the names are those of ONNX Runtime's documentation")]
pub struct CustomOpDescription {
    pub version: u32,
    pub create_kernel:
        Option<unsafe extern "C" fn(*const Self, *const Entry, *const KernelInfo) -> *mut c_void>,
    pub get_name: unsafe extern "C" fn(*const Self) -> *const c_char,
    pub get_execution_provider_type: unsafe extern "C" fn(*const Self) -> *const c_char,
    pub get_input_type: unsafe extern "C" fn(*const Self, usize) -> c_int,
    pub get_input_type_count: unsafe extern "C" fn(*const Self) -> usize,
    pub get_output_type: unsafe extern "C" fn(*const Self, usize) -> c_int,
    pub get_output_type_count: unsafe extern "C" fn(*const Self) -> usize,
    pub kernel_compute: Option<unsafe extern "C" fn(*mut c_void, *mut KernelContext)>,
    pub kernel_destroy: unsafe extern "C" fn(*mut c_void),
    pub get_input_characteristic: unsafe extern "C" fn(*const Self, usize) -> c_int,
    pub get_output_characteristic: unsafe extern "C" fn(*const Self, usize) -> c_int,
    pub get_input_memory_type: unsafe extern "C" fn(*const Self, usize) -> c_int,
    pub get_variadic_input_min_arity: unsafe extern "C" fn(*const Self) -> c_int,
    pub get_variadic_input_homogeneity: unsafe extern "C" fn(*const Self) -> c_int,
    pub get_variadic_output_min_arity: unsafe extern "C" fn(*const Self) -> c_int,
    pub get_variadic_output_homogeneity: unsafe extern "C" fn(*const Self) -> c_int,
    pub create_kernel_v2:
        unsafe extern "C" fn(*const Self, *const Entry, *const KernelInfo, *mut *mut c_void) -> *mut Status,
    pub kernel_compute_v2: unsafe extern "C" fn(*mut c_void, *mut KernelContext) -> *mut Status,
    /// Callbacks of later versions, none of which is used.
    pub later: [Entry; 7],
}

macro_rules! functions {
    ($($index:literal => fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Api {
            $(#[expect(clippy::disallowed_methods, reason = "the only conversion from an entry of the table to a function")]
            unsafe fn $name(self, $($argument: $type),*) $(-> $result)? {
                type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                // SAFETY: the table has this function at this index, and the caller's arguments are valid.
                unsafe {
                    let function: Function = std::mem::transmute::<Entry, Function>(*self.0.add($index));
                    function($($argument),*)
                }
            })*
        }
    };
}

functions! {
    0 => fn create_status(code: c_int, message: *const c_char) -> *mut Status;
    2 => fn get_error_message(status: *const Status) -> *const c_char;
    26 => fn create_custom_op_domain(name: *const c_char, out: *mut *mut CustomOpDomain) -> *mut Status;
    27 => fn custom_op_domain_add(domain: *mut CustomOpDomain, op: *const CustomOpDescription) -> *mut Status;
    28 => fn add_custom_op_domain(options: *mut SessionOptions, domain: *mut CustomOpDomain) -> *mut Status;
    51 => fn get_tensor_mutable_data(value: *mut Value, out: *mut *mut c_void) -> *mut Status;
    60 => fn get_tensor_element_type(info: *const TensorInfo, out: *mut c_int) -> *mut Status;
    61 => fn get_dimensions_count(info: *const TensorInfo, out: *mut usize) -> *mut Status;
    62 => fn get_dimensions(info: *const TensorInfo, out: *mut i64, count: usize) -> *mut Status;
    65 => fn get_tensor_type_and_shape(value: *const Value, out: *mut *mut TensorInfo) -> *mut Status;
    85 => fn attribute_float(info: *const KernelInfo, name: *const c_char, out: *mut f32) -> *mut Status;
    86 => fn attribute_int64(info: *const KernelInfo, name: *const c_char, out: *mut i64) -> *mut Status;
    87 => fn attribute_string(info: *const KernelInfo, name: *const c_char, out: *mut c_char, size: *mut usize) -> *mut Status;
    88 => fn get_input_count(context: *const KernelContext, out: *mut usize) -> *mut Status;
    89 => fn get_output_count(context: *const KernelContext, out: *mut usize) -> *mut Status;
    90 => fn get_input(context: *const KernelContext, index: usize, out: *mut *const Value) -> *mut Status;
    91 => fn get_output(context: *mut KernelContext, index: usize, sizes: *const i64, rank: usize, out: *mut *mut Value) -> *mut Status;
    93 => fn release_status(status: *mut Status);
    99 => fn release_tensor_info(info: *mut TensorInfo);
}

/// A tensor of ONNX Runtime.
#[derive(Debug)]
pub struct TensorValue {
    /// The number of its element type in ONNX.
    pub element_type: c_int,
    /// Its sizes; it is dense row-major.
    pub shape: Vec<i64>,
    /// Its first element.
    pub data: *mut u8,
}

impl Api {
    /// The functions of an ONNX Runtime, or `None` if it is older than [`VERSION`].
    ///
    /// # Safety
    /// `base` is null or a pointer that ONNX Runtime passed to `RegisterCustomOps`.
    pub unsafe fn of(base: *const ApiBase) -> Option<Api> {
        // SAFETY: the caller guarantees the pointer.
        let base = unsafe { base.as_ref() }?;
        // SAFETY: the function may be called with any version, and returns null for one that it does not have.
        let table = unsafe { (base.get_api)(VERSION) };
        (!table.is_null()).then_some(Api(table))
    }

    /// A new error.
    pub fn failure(self, message: &str) -> *mut Status {
        let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // ORT_FAIL. SAFETY: the message is a C string, which is copied.
        unsafe { self.create_status(1, text.as_ptr()) }
    }

    /// The message of an error; the status is released.
    fn check(self, status: *mut Status) -> Result<(), String> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a status that is not null has a message, and is released once.
        unsafe {
            let message = CStr::from_ptr(self.get_error_message(status)).to_string_lossy().into_owned();
            self.release_status(status);
            Err(message)
        }
    }

    /// A new domain.
    pub fn create_domain(self, name: &CStr) -> Result<*mut CustomOpDomain, String> {
        let mut domain = std::ptr::null_mut();
        // SAFETY: the name is a C string, which is copied.
        self.check(unsafe { self.create_custom_op_domain(name.as_ptr(), &mut domain) })?;
        Ok(domain)
    }

    /// Adds an operation to a domain.
    pub fn add_to_domain(
        self,
        domain: *mut CustomOpDomain,
        op: &'static CustomOpDescription,
    ) -> Result<(), String> {
        // SAFETY: `create_domain` returned the domain; the description is never freed.
        self.check(unsafe { self.custom_op_domain_add(domain, op) })
    }

    /// Adds a domain to the options of a session.
    pub fn add_domain(self, options: *mut SessionOptions, domain: *mut CustomOpDomain) -> Result<(), String> {
        // SAFETY: ONNX Runtime passed the options; `create_domain` returned the domain, which is never freed.
        self.check(unsafe { self.add_custom_op_domain(options, domain) })
    }

    /// A float attribute of a node; `None` if it has no float of this name.
    pub fn float(self, info: *const KernelInfo, name: &CStr) -> Option<f32> {
        let mut value = 0.0;
        // SAFETY: ONNX Runtime passed the node; the name is a C string.
        self.check(unsafe { self.attribute_float(info, name.as_ptr(), &mut value) }).ok().map(|()| value)
    }

    /// An integer attribute of a node; `None` if it has no integer of this name.
    pub fn int(self, info: *const KernelInfo, name: &CStr) -> Option<i64> {
        let mut value = 0;
        // SAFETY: as in `float`.
        self.check(unsafe { self.attribute_int64(info, name.as_ptr(), &mut value) }).ok().map(|()| value)
    }

    /// A string attribute of a node; `None` if it has no string of this name.
    pub fn string(self, info: *const KernelInfo, name: &CStr) -> Option<String> {
        let mut size = 0;
        // SAFETY: as in `float`; a null buffer returns the size, with the final zero.
        self.check(unsafe { self.attribute_string(info, name.as_ptr(), std::ptr::null_mut(), &mut size) })
            .ok()?;
        let mut buffer = vec![0u8; size];
        // SAFETY: as above; the buffer has `size` bytes.
        self.check(unsafe {
            self.attribute_string(info, name.as_ptr(), buffer.as_mut_ptr().cast(), &mut size)
        })
        .ok()?;
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(text.to_string_lossy().into_owned())
    }

    /// The number of inputs and of outputs of a node, without trailing ones that are left out.
    pub fn counts(self, context: *const KernelContext) -> Result<(usize, usize), String> {
        let (mut inputs, mut outputs) = (0, 0);
        // SAFETY: ONNX Runtime passed the context.
        self.check(unsafe { self.get_input_count(context, &mut inputs) })?;
        // SAFETY: as above.
        self.check(unsafe { self.get_output_count(context, &mut outputs) })?;
        Ok((inputs, outputs))
    }

    /// An input; `None` if it is left out.
    pub fn input(self, context: *const KernelContext, index: usize) -> Result<Option<TensorValue>, String> {
        let mut value = std::ptr::null();
        // SAFETY: ONNX Runtime passed the context, and the caller an index within the count.
        self.check(unsafe { self.get_input(context, index, &mut value) })?;
        // An input is only read; the same function returns the address of inputs and outputs.
        if value.is_null() { Ok(None) } else { self.tensor(value.cast_mut()).map(Some) }
    }

    /// Allocates an output; `None` if the node leaves it out.
    pub fn output(
        self,
        context: *mut KernelContext,
        index: usize,
        shape: &[i64],
    ) -> Result<Option<TensorValue>, String> {
        let mut value = std::ptr::null_mut();
        // SAFETY: as in `input`; the shape has `len` sizes.
        self.check(unsafe { self.get_output(context, index, shape.as_ptr(), shape.len(), &mut value) })?;
        if value.is_null() { Ok(None) } else { self.tensor(value).map(Some) }
    }

    fn tensor(self, value: *mut Value) -> Result<TensorValue, String> {
        let mut info = std::ptr::null_mut();
        // SAFETY: ONNX Runtime returned the value; for a value that is not a tensor the function returns an error.
        self.check(unsafe { self.get_tensor_type_and_shape(value, &mut info) })?;
        let described = self.described(info);
        // SAFETY: the information was returned above and is released once.
        unsafe { self.release_tensor_info(info) };
        let (element_type, shape) = described?;
        let mut data = std::ptr::null_mut();
        // SAFETY: the value is a tensor.
        self.check(unsafe { self.get_tensor_mutable_data(value, &mut data) })?;
        Ok(TensorValue { element_type, shape, data: data.cast() })
    }

    fn described(self, info: *const TensorInfo) -> Result<(c_int, Vec<i64>), String> {
        let (mut element_type, mut rank) = (0, 0);
        // SAFETY: the caller passes the information of a tensor.
        self.check(unsafe { self.get_tensor_element_type(info, &mut element_type) })?;
        // SAFETY: as above.
        self.check(unsafe { self.get_dimensions_count(info, &mut rank) })?;
        let mut shape = vec![0; rank];
        // SAFETY: as above; `shape` has `rank` elements.
        self.check(unsafe { self.get_dimensions(info, shape.as_mut_ptr(), rank) })?;
        Ok((element_type, shape))
    }
}

/// The element types that ONNX and LayerZero have, with their numbers in ONNX. 4-bit floats are missing: ONNX counts them one by
/// one, LayerZero in pairs. So are 8-bit powers of two, which only the latest versions have.
const TYPES: [(DType, c_int); 15] = [
    (DType::F32, 1),
    (DType::U8, 2),
    (DType::I8, 3),
    (DType::U16, 4),
    (DType::I16, 5),
    (DType::I32, 6),
    (DType::I64, 7),
    (DType::Bool, 9),
    (DType::F16, 10),
    (DType::F64, 11),
    (DType::U32, 12),
    (DType::U64, 13),
    (DType::BF16, 16),
    (DType::F8E4M3, 17),
    (DType::F8E5M2, 19),
];

/// The number of an element type in ONNX.
pub fn element_type(dtype: DType) -> Option<c_int> {
    TYPES.iter().find(|(one, _)| *one == dtype).map(|(_, number)| *number)
}

/// The element type with a number in ONNX.
pub fn dtype(number: c_int) -> Option<DType> {
    TYPES.iter().find(|(_, one)| *one == number).map(|(dtype, _)| *dtype)
}
