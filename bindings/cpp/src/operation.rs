//! The entries of an operation: one macro that generated code expands with the operation's table.

/// Kinds of outputs: `tensor`, `dynamic` and `texts`, each also `optional_…`. Each names its number, the method of the call
/// that states its shape and dtype, or whether it is produced, and two locals.
macro_rules! cpp_entries {
    (@device $call:ident) => { lz_core::tensor::Device::HOST };
    (@device $call:ident $input:ident) => { $call.$input.device() };
    (@allocate $find:ident $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        let mut $output = lz_core::TensorMut::empty();
        let $present = crate::output::$find(
            &lz_ops::$info, stringify!($output), || $call.$method(), $slot, &$options, $device, &mut $output,
        )?;
    };
    (@prepare tensor $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        crate::operation::cpp_entries!(@allocate prepare $info $output $method $slot $present $call $options $device);
    };
    (@prepare optional_tensor $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        crate::operation::cpp_entries!(@allocate prepare_optional $info $output $method $slot $present $call $options $device);
    };
    (@prepare dynamic $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        let mut $output = None;
    };
    (@prepare texts $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        let mut $output = None;
    };
    (@prepare $kind:ident $info:ident $output:ident $method:ident $slot:ident $present:ident $call:ident $options:ident $device:ident) => {
        let mut $output = None;
        let $present = $call.$method();
    };
    (@see tensor $output:ident $views:ident) => { $views.push($output.as_view()); };
    (@see optional_tensor $output:ident $views:ident) => { $views.push($output.as_view()); };
    (@see $kind:ident $output:ident $views:ident) => {};
    (@replace tensor $output:ident $rest:ident) => {
        let $output = $rest.next().unwrap_or_else(lz_core::TensorMut::empty);
    };
    (@replace optional_tensor $output:ident $rest:ident) => {
        crate::operation::cpp_entries!(@replace tensor $output $rest);
    };
    (@replace $kind:ident $output:ident $rest:ident) => {};
    (@copy tensor $info:ident $output:ident $results:ident) => {
        crate::output::copy_result(&lz_ops::$info, $results.next(), &mut $output)?;
    };
    (@copy optional_tensor $info:ident $output:ident $results:ident) => {
        crate::operation::cpp_entries!(@copy tensor $info $output $results);
    };
    (@copy $kind:ident $info:ident $output:ident $results:ident) => {};
    (@run $info:ident $engine:ident $call:ident $options:ident $tuned:ident $out:ident) => {
        $options.run(|| match $tuned.as_mut() {
            None => $call.run_in(&$engine.inner, $out),
            Some(tuned) => crate::perfdb::measure(
                &$engine.inner,
                &lz_ops::$info,
                &$call.context_with($out),
                &mut |entry, run| $call.run_kernel(entry, $out.reborrow(), run),
                tuned,
            ),
        })?
    };
    (@pass tensor $output:ident $present:ident) => { &$output };
    (@pass optional_tensor $output:ident $present:ident) => { $present.then_some(&$output) };
    (@pass dynamic $output:ident $present:ident) => { &mut $output };
    (@pass texts $output:ident $present:ident) => { &mut $output };
    (@pass $kind:ident $output:ident $present:ident) => { if $present { Some(&mut $output) } else { None } };
    (@hand_over tensor $info:ident $output:ident $slot:ident $present:ident) => {};
    (@hand_over optional_tensor $info:ident $output:ident $slot:ident $present:ident) => {};
    (@hand_over dynamic $info:ident $output:ident $slot:ident $present:ident) => {
        crate::output::hand_over_tensor($slot, lz_core::check::produced(&lz_ops::$info, stringify!($output), $output)?);
    };
    (@hand_over texts $info:ident $output:ident $slot:ident $present:ident) => {
        crate::output::hand_over_texts($slot, lz_core::check::produced(&lz_ops::$info, stringify!($output), $output)?);
    };
    (@hand_over optional_dynamic $info:ident $output:ident $slot:ident $present:ident) => {
        if $present {
            crate::operation::cpp_entries!(@hand_over dynamic $info $output $slot $present);
        } else {
            crate::output::absent($slot);
        }
    };
    (@hand_over optional_texts $info:ident $output:ident $slot:ident $present:ident) => {
        if $present {
            crate::operation::cpp_entries!(@hand_over texts $info $output $slot $present);
        } else {
            crate::output::absent($slot);
        }
    };
    (
        $name:literal, $info:ident, $function:ident, $explain:ident, $args:ident;
        device($($followed:ident)?);
        outputs($($output:ident: $kind:ident($number:literal, $method:ident, $slot:ident, $present:ident)),*);
    ) => {
        #[doc = concat!("Calls `", $name, "`, or measures its kernels if `tuned` is not null.")]
        ///
        /// # Safety
        /// The pointers name structures as `lz_plugin.h` describes them, and what those describe lives as long as the call.
        #[allow(unused_variables, unused_mut, clippy::all, reason = "operations differ in what they use")]
        pub unsafe fn $function(
            engine: &crate::engine::Engine,
            args: *const $args,
            outputs: *mut lz_plugin::abi::Output,
            options: *const lz_plugin::abi::CallOptions,
            tuned: *mut crate::data::Tuned,
        ) -> *mut crate::call::Failure {
            crate::call::guarded_call(|| {
                const OUTPUTS: &[&str] = &[$(stringify!($output)),*];
                let mut buffer = crate::call::VersionBuffer::default();
                // SAFETY: promised by the caller.
                let (args, mut outputs, options) = unsafe {
                    crate::call::Call::<{ OUTPUTS.len() }>::read(&lz_ops::$info, args, outputs, options, &mut buffer)
                }?;
                let outputs = &mut outputs;
                // SAFETY: as above.
                let outcome = unsafe {
                    args.with_views(|args| -> crate::call::Outcome {
                        let mut checked = None;
                        let call = args.check_in(&mut checked)?;
                        let device = crate::operation::cpp_entries!(@device call $($followed)?);
                        $(
                            let $slot = outputs.at($number)?;
                            crate::operation::cpp_entries!(
                                @prepare $kind $info $output $method $slot $present call options device
                            );
                        )*
                        let mut apart: Option<Vec<lz_core::Tensor>> = None;
                        {
                            let mut slots = None;
                            match call.outputs_at(&mut slots, $(crate::operation::cpp_entries!(@pass $kind $output $present)),*) {
                                Ok(out) => crate::operation::cpp_entries!(@run $info engine call options tuned out),
                                Err(error) => {
                                    let mut views = Vec::new();
                                    $(crate::operation::cpp_entries!(@see $kind $output views);)*
                                    apart = crate::output::apart(&lz_ops::$info, &error, &call.to_args(), &views)?;
                                    if apart.is_none() {
                                        return Err(error.into());
                                    }
                                }
                            }
                        }
                        if let Some(mut apart) = apart {
                            {
                                let mut rest = apart.iter_mut().map(lz_core::Tensor::view_mut);
                                $(crate::operation::cpp_entries!(@replace $kind $output rest);)*
                                let mut slots = None;
                                let out = call.outputs_at(&mut slots, $(crate::operation::cpp_entries!(@pass $kind $output $present)),*)?;
                                crate::operation::cpp_entries!(@run $info engine call options tuned out);
                            }
                            let mut results = apart.iter();
                            $(crate::operation::cpp_entries!(@copy $kind $info $output results);)*
                        }
                        $(crate::operation::cpp_entries!(@hand_over $kind $info $output $slot $present);)*
                        Ok(())
                    })
                };
                crate::call::or_invalid_argument(&lz_ops::$info, outcome)
            })
        }

        #[doc = concat!("Reports what would be run for a call of `", $name, "`, and why; or adds it to other calls.")]
        ///
        /// # Safety
        /// As above; `explanation.calls` is 0 or the address of a [`crate::block::Calls`], which is used while the arguments live.
        pub unsafe fn $explain(
            engine: &crate::engine::Engine,
            args: *const $args,
            explanation: &mut crate::data::Explanation,
        ) -> *mut crate::call::Failure {
            crate::call::guarded_call(|| {
                let mut buffer = None;
                // SAFETY: promised by the caller.
                let args = unsafe { crate::call::arguments(&lz_ops::$info, args, &mut buffer) }?;
                // SAFETY: as above.
                let outcome = unsafe {
                    args.with_views(|args| -> crate::call::Outcome {
                        if explanation.calls != 0 {
                            return crate::block::collect(explanation.calls, &lz_ops::$info, &args.to_args());
                        }
                        let context = args.check()?.context();
                        Ok(crate::inspect::explain(&engine.inner, &lz_ops::$info, &context, explanation)?)
                    })
                };
                crate::call::or_invalid_argument(&lz_ops::$info, outcome)
            })
        }
    };
}

pub(crate) use cpp_entries;
