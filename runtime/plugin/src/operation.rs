//! The C structures of an operation and how calls cross between them and typed calls: one macro that generated code expands
//! with the operation's table.

/// Kinds of inputs: `tensor`, `optional_tensor`, `tensor_mut`, `optional_tensor_mut`, `texts`, `tokenizer`.
/// Parameters: `optional` or `required`, then `i64`, `f32`, `f64`, `bool` or `case(Type)`, then the parameter's bit in `given`.
/// Kinds of outputs: `tensor`, `dynamic` and `texts`, each also `optional_…`.
macro_rules! plugin_kernel {
    // Inputs from C.
    (@field tensor) => { *const crate::abi::Tensor };
    (@field optional_tensor) => { *const crate::abi::Tensor };
    (@field tensor_mut) => { *mut crate::abi::Tensor };
    (@field optional_tensor_mut) => { *mut crate::abi::Tensor };
    (@field texts) => { *const crate::abi::Texts };
    (@field tokenizer) => { *const crate::abi::Tokenizer };
    (@read $self:ident texts $input:ident) => {
        // SAFETY: promised by the caller.
        let $input = unsafe { crate::abi::texts(stringify!($input), $self.$input) }?;
    };
    (@read $self:ident tokenizer $input:ident) => {
        // SAFETY: promised by the caller.
        let $input = unsafe { crate::abi::tokenizer(stringify!($input), $self.$input) }?;
    };
    (@read $self:ident $kind:ident $input:ident) => {};
    (@initial tensor $input:ident) => { lz_core::TensorView::empty() };
    (@initial tensor_mut $input:ident) => { lz_core::TensorMut::empty() };
    (@initial texts $input:ident) => { &$input };
    (@initial tokenizer $input:ident) => { $input };
    (@initial $kind:ident $input:ident) => { None };
    (@describe $self:ident texts $input:ident $args:ident) => {};
    (@describe $self:ident tokenizer $input:ident $args:ident) => {};
    (@describe $self:ident $kind:ident $input:ident $args:ident) => {
        // SAFETY: promised by the caller. The tensor is described in place.
        unsafe { crate::abi::$kind(stringify!($input), $self.$input, &mut $args.$input) }?;
    };
    // Inputs to C. What is changed in place is read and written through the outputs' view of it.
    (@borrow $call:ident $out:ident tensor $input:ident) => { let $input = crate::abi::Tensor::of(&$call.$input); };
    (@borrow $call:ident $out:ident optional_tensor $input:ident) => {
        let $input = $call.$input.as_ref().map(crate::abi::Tensor::of);
    };
    (@borrow $call:ident $out:ident tensor_mut $input:ident) => {
        let mut $input = crate::abi::Tensor::of_mut(&mut $out.$input);
    };
    (@borrow $call:ident $out:ident optional_tensor_mut $input:ident) => {
        let mut $input = $out.$input.as_mut().map(crate::abi::Tensor::of_mut);
    };
    (@borrow $call:ident $out:ident texts $input:ident) => {
        let items = crate::abi::text_items($call.$input);
        let $input = crate::abi::Texts { items: items.as_ptr(), count: items.len() };
    };
    (@borrow $call:ident $out:ident tokenizer $input:ident) => {
        let $input = crate::abi::Tokenizer::of($call.$input)?;
    };
    (@pointer tensor_mut $local:ident) => { &raw mut $local };
    (@pointer optional_tensor $local:ident) => { crate::abi::pointer($local.as_ref()) };
    (@pointer optional_tensor_mut $local:ident) => { crate::abi::pointer_mut($local.as_mut()) };
    (@pointer $kind:ident $local:ident) => { &raw const $local };
    // Parameters.
    (@param bool) => { u8 };
    (@param case($ty:ident)) => { u32 };
    (@param $number:ident) => { $number };
    (@value $self:ident bool $param:ident) => { $self.$param != 0 };
    (@value $self:ident case($ty:ident) $param:ident) => {
        crate::abi::case(stringify!($param), lz_ops::$ty::from_number($self.$param), $self.$param, lz_ops::$ty::NAMES)?
    };
    (@value $self:ident $number:ident $param:ident) => { $self.$param };
    (@given $self:ident required $bit:literal $value:expr) => { $value };
    (@given $self:ident optional $bit:literal $value:expr) => {
        if crate::abi::is_given($self.given, $bit) { Some($value) } else { None }
    };
    (@to_c bool $value:expr) => { u8::from($value) };
    (@to_c case($ty:ident) $value:expr) => { $value as u32 };
    (@to_c $number:ident $value:expr) => { $value };
    // Outputs.
    (@slot dynamic) => { *mut crate::abi::Dynamic };
    (@slot optional_dynamic) => { *mut crate::abi::Dynamic };
    (@slot texts) => { *mut crate::abi::TextsOutput };
    (@slot optional_texts) => { *mut crate::abi::TextsOutput };
    (@slot $tensor:ident) => { *mut crate::abi::Tensor };
    (@lend_output tensor $slot:expr) => { crate::abi::Tensor::of_mut(&mut $slot) };
    (@lend_output optional_tensor $slot:expr) => { $slot.as_mut().map(crate::abi::Tensor::of_mut) };
    (@lend_output dynamic $slot:expr) => { crate::abi::Dynamic::of(&mut *$slot) };
    (@lend_output optional_dynamic $slot:expr) => { $slot.as_deref_mut().map(crate::abi::Dynamic::of) };
    (@lend_output texts $slot:expr) => { crate::abi::TextsOutput::of(&mut *$slot) };
    (@lend_output optional_texts $slot:expr) => { $slot.as_deref_mut().map(crate::abi::TextsOutput::of) };
    (@output_pointer tensor $local:ident) => { &raw mut $local };
    (@output_pointer dynamic $local:ident) => { &raw mut $local };
    (@output_pointer texts $local:ident) => { &raw mut $local };
    (@output_pointer $optional:ident $local:ident) => { crate::abi::pointer_mut($local.as_mut()) };
    (
        $name:literal, $args_name:literal, $out_name:literal;
        $typed:ident, $call:ident, $out:ident, $kernel:ident => $args:ident, $slots:ident;
        inputs($($input:ident: $input_kind:ident),*);
        params($($param:ident: $presence:ident $param_kind:ident $(($ty:ident))? $bit:literal),*);
        outputs($($output:ident: $kind:ident),*);
    ) => {
        #[doc = concat!("`", $args_name, "`: the arguments of `", $name, "`.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        #[allow(missing_docs, reason = "the fields are those of the operation")]
        pub struct $args {
            /// Bytes of this structure.
            pub size: usize,
            /// Which parameters are given: bit n is the n-th parameter. Kernels get all of them.
            pub given: u64,
            $(pub $input: crate::operation::plugin_kernel!(@field $input_kind),)*
            $(pub $param: crate::operation::plugin_kernel!(@param $param_kind $(($ty))?),)*
        }

        // SAFETY: `repr(C)`, begins with its size, and holds pointers and numbers.
        unsafe impl crate::abi::Versioned for $args {}

        // SAFETY: the C structure of that name is generated from the same schema.
        #[cfg(feature = "cxx")]
        unsafe impl cxx::ExternType for $args {
            type Id = cxx::type_id!($args_name);
            type Kind = cxx::kind::Trivial;
        }

        #[doc = concat!("`", $out_name, "`: the output slots of a kernel of `", $name, "`.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        #[allow(missing_docs, reason = "the fields are those of the operation")]
        pub struct $slots {
            /// Bytes of this structure.
            pub size: usize,
            $(pub $output: crate::operation::plugin_kernel!(@slot $kind),)*
        }

        impl $args {
            /// Passes the arguments to `body` in the form that the engine takes.
            ///
            /// # Safety
            /// Every pointer is null or names a structure of its kind. What those describe stays unchanged until `body` returns,
            /// and nobody else uses what the operation changes in place until then.
            #[inline]
            #[allow(unused_mut, clippy::all, reason = "operations differ in what they use")]
            pub unsafe fn with_views<R>(&self, body: impl FnOnce(&lz_ops::$typed<'_>) -> R) -> Result<R, lz_core::Reason> {
                $(crate::operation::plugin_kernel!(@read self $input_kind $input);)*
                let mut args = lz_ops::$typed {
                    $($input: crate::operation::plugin_kernel!(@initial $input_kind $input),)*
                    $($param: crate::operation::plugin_kernel!(
                        @given self $presence $bit crate::operation::plugin_kernel!(@value self $param_kind $(($ty))? $param)
                    ),)*
                };
                $(crate::operation::plugin_kernel!(@describe self $input_kind $input args);)*
                Ok(body(&args))
            }
        }

        impl lz_ops::$kernel for crate::native::Native<$args, $slots> {
            #[allow(unused_mut, unused_variables, clippy::all, reason = "operations differ in what they use")]
            fn run(
                &self,
                call: &lz_ops::$call<'_>,
                mut out: lz_ops::$out<'_>,
                run: &mut lz_core::Run<'_>,
            ) -> Result<(), lz_core::KernelError> {
                $(crate::operation::plugin_kernel!(@borrow call out $input_kind $input);)*
                let args = $args {
                    size: size_of::<$args>(),
                    given: u64::MAX,
                    $($input: crate::operation::plugin_kernel!(@pointer $input_kind $input),)*
                    $($param: crate::operation::plugin_kernel!(@to_c $param_kind $(($ty))? call.$param),)*
                };
                $(let mut $output = crate::operation::plugin_kernel!(@lend_output $kind out.$output);)*
                let slots = $slots {
                    size: size_of::<$slots>(),
                    $($output: crate::operation::plugin_kernel!(@output_pointer $kind $output),)*
                };
                self.invoke(&args, &slots, run)
            }
        }
    };
}

/// `entry`: the kernel of a C function table by the name of its operation.
macro_rules! plugin_entries {
    ($($name:literal => $module:ident($args:ident, $slots:ident) $entry:ident;)*) => {
        /// A registry entry for the kernel behind a table of the spec's operation; `None` if the operation is unknown.
        ///
        /// # Safety
        /// As for [`Native::new`](crate::native::Native::new), with the table of the operation that the spec names.
        pub unsafe fn entry(
            spec: lz_core::KernelSpec,
            vtable: *const std::ffi::c_void,
            owner: std::sync::Arc<dyn std::any::Any + Send + Sync>,
        ) -> Result<Option<lz_core::KernelEntry>, lz_core::Reason> {
            Ok(Some(match spec.operation.as_str() {
                $($name => {
                    type Kernel = crate::native::Native<$module::$args, $module::$slots>;
                    // SAFETY: promised by the caller.
                    let kernel = unsafe { Kernel::new(vtable.cast(), owner) }?;
                    lz_ops::$entry(spec, kernel)
                })*
                _ => return Ok(None),
            }))
        }
    };
}

pub(crate) use {plugin_entries, plugin_kernel};
