//! What every generated operation has in common: argument conversion, the pieces of the fast check, and the macros that
//! declare the types and methods of an operation from tables.
//!
//! Generated code imports this module as `lz` and holds only what differs between operations. Everything here is generic
//! over, or expanded for, concrete types and inlined into its caller: nothing on the path of a call is dispatched
//! dynamically.

mod arguments;
pub mod arith;
mod checks;
mod fields;
mod functions;
mod macros;

pub use std::marker::PhantomData;
pub use std::ops::Deref;

pub use crate::args::{Arg, Handle, OutArg};
pub use crate::check::fast::{UNBOUND, bind, bind_pack, next_are, next_is, output_fits};
pub use crate::check::{allocate, check_call, disagreement, produced, values};
pub use crate::context::{Context, Extent, FRESH_OUTPUT, Field, FieldKind, device_bits, digest_bits};
pub use crate::error::Error;
pub use crate::expr::Value;
pub use crate::kernel::{Kernel, KernelEntry, KernelError, Specialized};
pub use crate::operation::OperationInfo;
pub use crate::run::{Run, Scratch};
pub use crate::spec::KernelSpec;
pub use crate::tensor::{Device, Dims, Tensor, TensorMut, TensorView};
pub use crate::{
    arguments, axes, checked_call, checks, enumeration, every, kernel_trait, operation_functions, output,
    output_methods, output_slots, same_device, shape, sizes, slot, specialization, unbound, value_rule,
    written_disjoint,
};
pub use lz_schema::DType;

pub use arguments::{FromArg, ToArg};
pub use checks::{
    Input, bind_dtype, broadcasts, contiguous, disjoint, dtype_bits, dtype_set, has_dtype, holds, last_dense,
    on_host, on_same_device, output_is_disjoint, pack_size, rank_at_most, same_size, sound, stride_class,
    without, writes_are_disjoint,
};
