//! Macros for the outputs of a call: where kernels write, and what the caller gets.

/// Types and conversions of one output slot, by its kind.
#[doc(hidden)]
#[macro_export]
macro_rules! slot {
    // The slot as callers pass it.
    (@type $a:lifetime tensor) => { $crate::call::TensorMut<$a> };
    (@type $a:lifetime optional_tensor) => { Option<$crate::call::TensorMut<$a>> };
    (@type $a:lifetime dynamic) => { &$a mut Option<$crate::call::Tensor> };
    (@type $a:lifetime optional_dynamic) => { Option<&$a mut Option<$crate::call::Tensor>> };
    (@type $a:lifetime texts) => { &$a mut Option<Vec<String>> };
    (@type $a:lifetime optional_texts) => { Option<&$a mut Option<Vec<String>>> };
    // The slot by reference: tensors are not moved.
    (@borrowed $a:lifetime tensor) => { &$crate::call::TensorMut<$a> };
    (@borrowed $a:lifetime optional_tensor) => { Option<&$crate::call::TensorMut<$a>> };
    (@borrowed $a:lifetime $kind:ident) => { $crate::slot!(@type $a $kind) };
    (@borrow $slot:ident tensor) => { &$slot };
    (@borrow $slot:ident optional_tensor) => { $slot.as_ref() };
    (@borrow $slot:ident $kind:ident) => { $slot };
    // The owned result.
    (@owned tensor) => { $crate::call::Tensor };
    (@owned optional_tensor) => { Option<$crate::call::Tensor> };
    (@owned dynamic) => { $crate::call::Tensor };
    (@owned optional_dynamic) => { Option<$crate::call::Tensor> };
    (@owned texts) => { Vec<String> };
    (@owned optional_texts) => { Option<Vec<String>> };
    // What `accepts` looks at.
    (@seen $slot:ident tensor) => { $slot };
    (@seen $slot:ident optional_tensor) => { $slot };
    (@seen $slot:ident dynamic) => { true };
    (@seen $slot:ident texts) => { true };
    (@seen $slot:ident $kind:ident) => { $slot.is_some() };
    // The slot for the kernel. Copied field by field, because the fields were just written.
    (@duplicate $slot:ident tensor) => { unsafe { $slot.duplicate() } };
    (@duplicate $slot:ident optional_tensor) => { $slot.map(|slot| unsafe { slot.duplicate() }) };
    (@duplicate $slot:ident $kind:ident) => { $slot };
    (@alias $input:expr, tensor) => { unsafe { $input.duplicate() } };
    (@alias $input:expr, optional_tensor) => { $input.as_ref().map(|tensor| unsafe { tensor.duplicate() }) };
    // The slot as a dynamic output.
    (@problem $slot:ident tensor) => { $crate::call::OutArg::Tensor(unsafe { $slot.duplicate() }) };
    (@problem $slot:ident optional_tensor) => {
        $slot.map_or($crate::call::OutArg::Absent, |slot| $crate::call::OutArg::Tensor(unsafe { slot.duplicate() }))
    };
    (@problem $slot:ident $kind:ident) => { $crate::slot!(@arg $slot, $kind) };
    (@arg $slot:expr, tensor) => { $crate::call::OutArg::Tensor($slot) };
    (@arg $slot:expr, optional_tensor) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Tensor) };
    (@arg $slot:expr, dynamic) => { $crate::call::OutArg::Dynamic($slot) };
    (@arg $slot:expr, optional_dynamic) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Dynamic) };
    (@arg $slot:expr, texts) => { $crate::call::OutArg::Text($slot) };
    (@arg $slot:expr, optional_texts) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Text) };
    (@reborrow $slot:expr, tensor) => { $slot.reborrow() };
    (@reborrow $slot:expr, optional_tensor) => { $slot.as_mut().map($crate::call::TensorMut::reborrow) };
    (@reborrow $slot:expr, dynamic) => { &mut *$slot };
    (@reborrow $slot:expr, texts) => { &mut *$slot };
    (@reborrow $slot:expr, $kind:ident) => { $slot.as_deref_mut() };
    // The slot from the next dynamic output.
    (@find $next:ident, $variant:ident) => {
        match $next.next().map($crate::call::OutArg::reborrow) {
            Some($crate::call::OutArg::$variant(slot)) => Some(slot),
            _ => None,
        }
    };
    (@required $next:ident, $variant:ident, $slot:ident) => {
        match $crate::slot!(@find $next, $variant) {
            Some(slot) => slot,
            None => {
                let message = concat!("missing output `", stringify!($slot), "`");
                return Err($crate::call::KernelError::failed(message));
            }
        }
    };
    (@take $next:ident, tensor, $slot:ident) => { $crate::slot!(@required $next, Tensor, $slot) };
    (@take $next:ident, dynamic, $slot:ident) => { $crate::slot!(@required $next, Dynamic, $slot) };
    (@take $next:ident, texts, $slot:ident) => { $crate::slot!(@required $next, Text, $slot) };
    (@take $next:ident, optional_tensor, $slot:ident) => { $crate::slot!(@find $next, Tensor) };
    (@take $next:ident, optional_dynamic, $slot:ident) => { $crate::slot!(@find $next, Dynamic) };
    (@take $next:ident, optional_texts, $slot:ident) => { $crate::slot!(@find $next, Text) };
    // The stride class that selection sees.
    (@class $slot:expr, tensor) => { $slot.stride_class() };
    (@class $slot:expr, optional_tensor) => {
        $slot.as_ref().map_or($crate::call::FRESH_OUTPUT, $crate::call::TensorMut::stride_class)
    };
    (@class $slot:expr, $kind:ident) => { $crate::call::FRESH_OUTPUT };
    (@fresh $slot:ident) => { $crate::call::FRESH_OUTPUT };
}

/// Shape and dtype of an output of a checked call, and the check of a slot for it.
///
/// `same` and `any` list the inputs that the slot must not overlap; those in `same` are on the slot's device. `host` stands
/// where no input must be given: the slot is in host memory unless one of these is.
#[doc(hidden)]
#[macro_export]
macro_rules! output {
    (@fits $self:ident, $slot:ident, $dtype:expr, $shape:tt, ($($same:ident),*), ($($any:ident),*) $(, ($($given:ident),*))?) => {{
        let shape_and_dtype =
            || -> Option<bool> { Some($crate::sizes!(@are ($self.axes) $slot $shape) && $crate::call::output_fits($slot, $dtype)) };
        shape_and_dtype() == Some(true)
            $(&& $crate::call::output_is_disjoint($slot, &$self.args.$same, true))*
            $(&& $crate::call::output_is_disjoint($slot, &$self.args.$any, false))*
            $(&& ($slot.device().is_host() $(|| $self.args.$given.is_some())*))?
    }};
    (
        $self:ident, $spec:ident, $fits:ident: $dtype:expr, $shape:tt,
        same $same:tt, any $any:tt $(, host $host:tt)?
    ) => {
        /// Shape and dtype of this output; `None` if they cannot be computed.
        #[inline]
        pub fn $spec(&$self) -> Option<($crate::call::Dims, $crate::call::DType)> {
            Some(($crate::sizes!(($self.axes), $shape), $dtype))
        }

        #[inline(always)]
        fn $fits(&$self, slot: &$crate::call::TensorMut<'_>) -> bool {
            $crate::output!(@fits $self, slot, $dtype, $shape, $same, $any $(, $host)?)
        }
    };
    (
        $self:ident, $spec:ident, $fits:ident if $when:expr; $dtype:expr, $shape:tt,
        same $same:tt, any $any:tt $(, host $host:tt)?
    ) => {
        /// Shape and dtype of this output; `None` if this call does not produce it.
        #[inline]
        pub fn $spec(&$self) -> Option<($crate::call::Dims, $crate::call::DType)> {
            if !$when {
                return None;
            }
            Some(($crate::sizes!(($self.axes), $shape), $dtype))
        }

        #[inline(always)]
        fn $fits(&$self, slot: Option<&$crate::call::TensorMut<'_>>) -> bool {
            match slot {
                Some(slot) => $when && $crate::output!(@fits $self, slot, $dtype, $shape, $same, $any $(, $host)?),
                None => !$when,
            }
        }
    };
}

/// Output slots, results and contexts of an operation.
#[doc(hidden)]
#[macro_export]
macro_rules! output_slots {
    (
        $info:ident, $call:ident, $out:ident, $output:ident;
        outputs($($slot:ident: $kind:ident = $doc:literal),* $(,)?);
        written($($written:ident: $written_kind:ident),* $(,)?) $(;)?
    ) => {
        /// Output slots that were checked against the call, then the inputs that are changed in place.
        pub struct $out<'a> {
            $(#[doc = $doc] pub $slot: $crate::slot!(@type 'a $kind),)*
            $(/// Changed in place: read and written through this tensor.
            pub $written: $crate::slot!(@type 'a $written_kind),)*
            checked: $crate::call::PhantomData<&'a mut ()>,
        }

        impl $out<'_> {
            /// The same slots for a shorter lifetime.
            #[inline(always)]
            pub fn reborrow(&mut self) -> $out<'_> {
                $out {
                    $($slot: $crate::slot!(@reborrow self.$slot, $kind),)*
                    $($written: $crate::slot!(@reborrow self.$written, $written_kind),)*
                    checked: $crate::call::PhantomData,
                }
            }

            /// As dynamic outputs.
            pub fn to_args(&mut self) -> [$crate::call::OutArg<'_>; { const NAMES: &[&str] = &[$(stringify!($slot)),*]; NAMES.len() }] {
                [$($crate::slot!(@arg $crate::slot!(@reborrow self.$slot, $kind), $kind)),*]
            }
        }

        /// Results in host memory of their own.
        #[derive(Debug)]
        pub struct $output {
            $(#[doc = $doc] pub $slot: $crate::slot!(@owned $kind),)*
        }

        $crate::output_methods!(
            $info, $call, $out;
            outputs($($slot: $kind),*);
            written($($written: $written_kind),*);
        );
    };
}

/// Contexts of a checked call, and the check of its output slots.
#[doc(hidden)]
#[macro_export]
macro_rules! output_methods {
    (
        $info:ident, $call:ident, $out:ident;
        outputs($($slot:ident: $kind:ident),* $(,)?);
        written($($written:ident: $written_kind:ident),* $(,)?) $(;)?
    ) => {
        impl<'c> $call<'c> {
            /// The context of this call if its outputs are allocated for it.
            #[inline]
            pub fn context(&self) -> $crate::call::Context {
                self.packed($($crate::slot!(@fresh $slot)),*)
            }

            /// The context of this call with these output slots.
            #[inline]
            #[allow(unused_variables, reason = "not every operation has outputs of known size")]
            pub fn context_with(&self, out: &$out<'_>) -> $crate::call::Context {
                self.packed($($crate::slot!(@class out.$slot, $kind)),*)
            }

            /// Checks the output slots.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs<'a>(&self, $($slot: $crate::slot!(@type 'a $kind)),*) -> Result<$out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                let mut slots = None;
                self.outputs_in(&mut slots, $($slot),*)?;
                slots.ok_or_else(|| $crate::call::disagreement(&$info))
            }

            /// [`outputs`](Self::outputs) into storage of the caller's: the slots are too large to be moved on every call.
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs_in<'r, 'a>(
                &self,
                slots: &'r mut Option<$out<'a>>,
                $($slot: $crate::slot!(@type 'a $kind)),*
            ) -> Result<&'r mut $out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                // SAFETY: the slots that were passed in are not used after this call.
                unsafe { self.outputs_at(slots, $($crate::slot!(@borrow $slot $kind)),*) }
            }

            /// [`outputs_in`](Self::outputs_in) for slots that stay where they are: nothing large is copied.
            ///
            /// # Safety
            /// The slots that are passed in are not used while `slots` contains something.
            #[inline(always)]
            #[allow(unused_unsafe, clippy::too_many_arguments, reason = "operations differ in their outputs")]
            pub unsafe fn outputs_at<'r, 'a>(
                &self,
                slots: &'r mut Option<$out<'a>>,
                $($slot: $crate::slot!(@borrowed 'a $kind)),*
            ) -> Result<&'r mut $out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                if self.accepts($($crate::slot!(@seen $slot $kind)),*) {
                    // SAFETY: the caller does not use the slots as long as these exist.
                    Ok(slots.insert($out {
                        $($slot: $crate::slot!(@duplicate $slot $kind),)*
                        $($written: $crate::slot!(@alias self.args.$written, $written_kind),)*
                        checked: $crate::call::PhantomData,
                    }))
                } else {
                    // SAFETY: nothing is written through these.
                    Err(self.problems(Some(&[$($crate::slot!(@problem $slot $kind)),*])))
                }
            }
        }
    };
}
