//! The functions that callers use: one macro that generated code expands for each operation.

/// `run` and `run_in` of a checked call, the function of the operation and, where all outputs have known sizes, its
/// variant that writes into tensors of the caller's.
#[doc(hidden)]
#[macro_export]
macro_rules! operation_functions {
    (@declare $slot:ident tensor $spec:ident $info:ident $call:ident) => {
        let mut $slot = $crate::call::allocate(&$info, $call.$spec())?;
    };
    (@declare $slot:ident optional_tensor $spec:ident $info:ident $call:ident) => {
        let mut $slot = match $call.$spec() {
            Some(spec) => Some($crate::call::allocate(&$info, Some(spec))?),
            None => None,
        };
    };
    (@declare $slot:ident $kind:ident $spec:ident $info:ident $call:ident) => {
        let mut $slot = None;
    };
    (@pass $slot:ident tensor $spec:ident $call:ident) => { $slot.view_mut() };
    (@pass $slot:ident optional_tensor $spec:ident $call:ident) => { $slot.as_mut().map($crate::call::Tensor::view_mut) };
    (@pass $slot:ident dynamic $spec:ident $call:ident) => { &mut $slot };
    (@pass $slot:ident texts $spec:ident $call:ident) => { &mut $slot };
    (@pass $slot:ident $kind:ident $wants:ident $call:ident) => { if $call.$wants() { Some(&mut $slot) } else { None } };
    (@collect $slot:ident tensor $spec:ident $info:ident $call:ident) => { $slot };
    (@collect $slot:ident optional_tensor $spec:ident $info:ident $call:ident) => { $slot };
    (@collect $slot:ident dynamic $spec:ident $info:ident $call:ident) => {
        $crate::call::produced(&$info, stringify!($slot), $slot)?
    };
    (@collect $slot:ident texts $spec:ident $info:ident $call:ident) => {
        $crate::call::produced(&$info, stringify!($slot), $slot)?
    };
    (@collect $slot:ident $kind:ident $wants:ident $info:ident $call:ident) => {
        if $call.$wants() { Some($crate::call::produced(&$info, stringify!($slot), $slot)?) } else { None }
    };
    (
        $summary:literal;
        $info:ident, $args:ident, $call:ident, $out:ident, $output:ident;
        $function:ident($($slot:ident: $kind:ident / $spec:ident),*);
        $into:ident($($mutable:tt)?);
    ) => {
        $crate::operation_functions!(
            $summary;
            $info, $args, $call, $out, $output;
            $function($($slot: $kind / $spec),*);
        );

        #[doc = $summary]
        ///
        /// Writes into the tensors that the caller passes.
        #[inline]
        #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
        pub fn $into<'a, E: $crate::Dispatch>(
            engine: &E,
            args: &'a $($mutable)? $args<'a>,
            $($slot: $crate::call::slot!(@type 'a $kind)),*
        ) -> Result<(), $crate::call::Error> {
            let (mut checked, mut slots) = (None, None);
            let call = args.check_in(&mut checked)?;
            call.run_in(engine, call.outputs_in(&mut slots, $($slot),*)?)
        }
    };
    (
        $summary:literal;
        $info:ident, $args:ident, $call:ident, $out:ident, $output:ident;
        $function:ident($($slot:ident: $kind:ident / $spec:ident),*);
    ) => {
        #[doc = $summary]
        ///
        /// The results are allocated in host memory.
        pub fn $function<E: $crate::Dispatch>(engine: &E, args: $args<'_>) -> Result<$output, $crate::call::Error> {
            let (mut checked, mut slots) = (None, None);
            let call = args.check_in(&mut checked)?;
            $($crate::operation_functions!(@declare $slot $kind $spec $info call);)*
            let out = call.outputs_in(&mut slots, $($crate::operation_functions!(@pass $slot $kind $spec call)),*)?;
            call.run_in(engine, out)?;
            Ok($output { $($slot: $crate::operation_functions!(@collect $slot $kind $spec $info call),)* })
        }

        impl $call<'_> {
            /// Runs it with the kernel that the engine selects.
            #[inline]
            pub fn run<E: $crate::Dispatch>(&self, engine: &E, mut out: $out<'_>) -> Result<(), $crate::call::Error> {
                self.run_in(engine, &mut out)
            }

            /// [`run`](Self::run) with output slots that stay where they are.
            #[inline]
            pub fn run_in<E: $crate::Dispatch>(&self, engine: &E, out: &mut $out<'_>) -> Result<(), $crate::call::Error> {
                let outcome = engine.dispatch(&$info, &self.context_with(out), &mut |entry, run| {
                    self.run_kernel(entry, out.reborrow(), run)
                });
                match outcome {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        engine.run_split(&$info, error, &mut self.to_args(), &mut out.to_args())
                    }
                }
            }
        }
    };
}
