//! Macros for the trait of an operation's kernels, and for operations that specialize another.

/// The trait of an operation's kernels, and how such a kernel enters the registry and is run.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_trait {
    (
        $name:literal, $info:ident, $args:ident, $call:ident, $out:ident, $kernel:ident, $handle:ident, $entry:ident;
        outputs($($slot:ident: $kind:ident),*) $(;)?
    ) => {
        #[doc = concat!("A kernel of `", $name, "`.")]
        pub trait $kernel: Send + Sync + 'static {
            /// Runs a checked call into checked output slots. Inputs that are changed in place are read and written through
            /// `out`.
            fn run(
                &self,
                call: &$call<'_>,
                out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError>;

            /// This kernel and its spec as a registry entry.
            fn into_entry(self, spec: $crate::call::KernelSpec) -> $crate::call::KernelEntry
            where
                Self: Sized,
            {
                $entry(spec, self)
            }
        }

        /// A typed kernel in the registry.
        pub struct $handle(Box<dyn $kernel>);

        impl $crate::call::Kernel for $handle {
            fn as_any(&self) -> &dyn ::std::any::Any {
                self
            }

            fn run(
                &self,
                args: &mut [$crate::call::Arg<'_>],
                outputs: &mut [$crate::call::OutArg<'_>],
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                let Some(args) = $args::from_args(args) else {
                    let message = concat!("the arguments are not those of `", $name, "`");
                    return Err($crate::call::KernelError::failed(message));
                };
                let mut checked = None;
                let call = args.check_in(&mut checked).map_err($crate::call::KernelError::invalid)?;
                #[allow(unused_mut, unused_variables, reason = "operations without outputs read none")]
                let mut next = outputs.iter_mut();
                $(let $slot = $crate::slot!(@take next, $kind, $slot);)*
                let out = call.outputs($($slot),*).map_err($crate::call::KernelError::invalid)?;
                self.0.run(call, out, run)
            }
        }

        #[doc = concat!("A registry entry for a kernel of `", $name, "`.")]
        pub fn $entry(spec: $crate::call::KernelSpec, kernel: impl $kernel) -> $crate::call::KernelEntry {
            $crate::call::KernelEntry::new(spec, $handle(Box::new(kernel))).of(&$info)
        }

        impl $call<'_> {
            /// Runs it with this kernel: directly if it is typed, else with dynamic arguments.
            #[inline]
            pub fn run_kernel(
                &self,
                entry: &$crate::call::KernelEntry,
                mut out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                match entry.typed::<$handle>() {
                    Some(handle) => handle.0.run(self, out, run),
                    None => entry.run(&mut self.to_args(), &mut out.to_args(), run),
                }
            }

            /// Runs it with a kernel of the caller's choice: no engine, no selection, the same instructions as calling the
            /// kernel. The call and the output slots were checked when they were created; a panic of the kernel reaches
            /// the caller.
            #[inline(always)]
            pub fn run_static<K: $kernel + ?Sized>(
                &self,
                kernel: &K,
                out: $out<'_>,
                scratch: &mut $crate::call::Scratch,
            ) -> Result<(), $crate::call::KernelError> {
                kernel.run(self, out, &mut $crate::call::Run::unbounded(scratch))
            }
        }
    };
}

/// The call and the kernels of an operation that is a special case of another one. The call is checked as a call of the
/// general operation whose axes are equal, and dereferences to that call. Expanded in a module inside that of the general
/// operation, whose private functions it uses.
#[doc(hidden)]
#[macro_export]
macro_rules! specialization {
    (
        $name:literal, $info:ident, $args:ident, $call:ident, $out:ident, $kernel:ident, $handle:ident, $entry:ident;
        number $number:literal of $general_args:ident, $general_call:ident, $general_kernel:ident;
        context($flags:literal, $axes:literal, $scalars:literal) without($($removed:literal),*);
        outputs($($slot:ident: $kind:ident),*);
        written($($written:ident: $written_kind:ident),*) $(;)?
    ) => {
        #[doc = concat!("A checked call of `", $name, "`, which is a call of the general operation.")]
        ///
        /// Only `check` creates one, so that kernels need not check anything.
        pub struct $call<'a>($general_call<'a>);

        impl<'a> $crate::call::Deref for $call<'a> {
            type Target = $general_call<'a>;
            #[inline(always)]
            fn deref(&self) -> &$general_call<'a> {
                &self.0
            }
        }

        impl<'a> $args<'a> {
            #[inline]
            fn bind<'r, 'c>(&'c self, checked: &'r mut Option<$call<'c>>) -> Option<&'r $call<'c>> {
                let general: *const $general_args<'c> = ::std::ptr::from_ref(self).cast();
                // SAFETY: arguments with different numbers are the same `repr(C)` structure.
                let general: &'c $general_args<'c> = unsafe { &*general };
                general.bind_as::<_, $number>(checked, $call)
            }
        }

        $crate::checks!($info, $args, $call);

        impl $call<'_> {
            #[cold]
            #[inline(never)]
            fn problems(&self, outputs: Option<&[$crate::call::OutArg<'_>]>) -> $crate::call::Error {
                match $crate::call::check_call($info.schema(), &self.args.to_args(), outputs) {
                    Err(error) => error,
                    Ok(_) => $crate::call::disagreement(&$info),
                }
            }

            /// The context from the stride classes of the outputs: that of the general operation without the replaced axes.
            #[inline(always)]
            fn packed(&self, $($slot: u64),*) -> $crate::call::Context {
                let words: [u64; $flags + $axes + $scalars] = $crate::call::without(self.words($($slot),*), [$($removed),*]);
                $crate::call::Context::packed($crate::call::Extent::new($flags, $axes, $scalars), words)
            }
        }

        $crate::output_methods!(
            $info, $call, $out;
            outputs($($slot: $kind),*);
            written($($written: $written_kind),*);
        );

        $crate::kernel_trait!(
            $name, $info, $args, $call, $out, $kernel, $handle, $entry;
            outputs($($slot: $kind),*);
        );

        impl<K: $general_kernel> $kernel for $crate::call::Specialized<K> {
            #[inline]
            fn run(
                &self,
                call: &$call<'_>,
                out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                <K as $general_kernel>::run(&self.0, call, out, run)
            }
        }
    };
}
