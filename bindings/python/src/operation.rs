//! The Python function of an operation: one macro that generated code expands with the operation's table.
//!
//! The code on the path of a call is expanded for each operation, so that it is compiled for its types.

/// Kinds of inputs: `tensor`, `optional`, `writable`, `optional_writable`, `texts`, `tokenizer`.
/// Kinds of parameters: `int`, `float`, `float32`, `bool`, `case(Type)`, after `optional` or `required`.
/// Kinds of outputs: `tensor`, `optional_tensor`, `dynamic`, `optional_dynamic`, `texts`, `optional_texts`. Each names the
/// method of the call that states its shape and dtype, or whether it is produced, and two locals.
macro_rules! python_function {
    // Inputs.
    (@borrow texts $local:ident $object:ident $frame:ident) => {
        let $local = $frame.texts(stringify!($object), $object)?;
        let $local = $local.as_strs();
    };
    (@borrow tokenizer $local:ident $object:ident $frame:ident) => {
        let $local = $frame.tokenizer(stringify!($object), $object)?;
    };
    (@borrow $kind:ident $local:ident $object:ident $frame:ident) => {};
    (@initial tensor $local:ident) => { lz_core::TensorView::empty() };
    (@initial writable $local:ident) => { lz_core::TensorMut::empty() };
    (@initial texts $local:ident) => { &$local };
    (@initial tokenizer $local:ident) => { &*$local };
    (@initial $kind:ident $local:ident) => { None };
    (@describe texts $object:ident $frame:ident $args:ident) => {};
    (@describe tokenizer $object:ident $frame:ident $args:ident) => {};
    (@describe $kind:ident $object:ident $frame:ident $args:ident) => {
        let mut guard = crate::tensor::BorrowGuard::EMPTY;
        $frame.$kind(stringify!($object), $object, &mut $args.$object, &mut guard)?;
    };
    (@view tensor $view:expr) => { Some(&mut $view) };
    (@view optional $view:expr) => { $view.as_mut() };
    // SAFETY: the description is of the same memory, in elements of the same size.
    (@view writable $view:expr) => { Some(unsafe { $view.description() }) };
    (@view optional_writable $view:expr) => { $view.as_mut().map(|tensor| unsafe { tensor.description() }) };
    // Parameters.
    (@read case($ty:ident) $param:ident $frame:ident) => {
        $frame.case(stringify!($param), lz_ops::$ty::NAMES, $param)?.and_then(lz_ops::$ty::from_number)
    };
    (@read $kind:ident $param:ident $frame:ident) => { $frame.$kind(stringify!($param), $param)? };
    (@presence optional $param:ident $frame:ident $value:expr) => { $value };
    (@presence required $param:ident $frame:ident $value:expr) => { $frame.must(stringify!($param), $value)? };
    (@hosted int $value:expr) => { crate::python_kernel::Param::Int($value) };
    (@hosted float $value:expr) => { crate::python_kernel::Param::Float($value) };
    (@hosted float32 $value:expr) => { crate::python_kernel::Param::Float(f64::from($value)) };
    (@hosted bool $value:expr) => { crate::python_kernel::Param::Bool($value) };
    (@hosted case($ty:ident) $value:expr) => {
        crate::python_kernel::Param::Text(lz_ops::$ty::NAMES.get($value as usize).copied().unwrap_or_default())
    };
    // Outputs.
    (@storage tensor) => { crate::output::OutputSlot::EMPTY };
    (@storage optional_tensor) => { crate::output::OutputSlot::EMPTY };
    (@storage $kind:ident) => { None };
    (@new_view tensor $view:ident) => { let mut $view = lz_core::TensorMut::empty(); };
    (@new_view optional_tensor $view:ident) => { let mut $view = lz_core::TensorMut::empty(); };
    (@new_view $kind:ident $view:ident) => {};
    (@take tensor $output:ident $method:ident $storage:ident $view:ident $call:ident $frame:ident $given:ident) => {
        $storage.take(&mut $frame, &mut $given, stringify!($output), &mut $view)?;
    };
    (@take optional_tensor $output:ident $method:ident $storage:ident $view:ident $call:ident $frame:ident $given:ident) => {
        if $call.$method().is_some() {
            $storage.take(&mut $frame, &mut $given, stringify!($output), &mut $view)?;
        }
    };
    (@seen tensor $view:ident) => { $view.as_view() };
    (@seen optional_tensor $view:ident) => { $view.as_view() };
    (@allocate tensor $method:ident $storage:ident $view:ident $call:ident $frame:expr) => {
        $storage.allocate(&mut *$frame, $call.$method(), &mut $view)?;
    };
    (@allocate optional_tensor $method:ident $storage:ident $view:ident $call:ident $frame:expr) => {
        $storage.allocate(&mut *$frame, $call.$method(), &mut $view)?;
    };
    (@allocate $kind:ident $method:ident $storage:ident $view:ident $call:ident $frame:expr) => {};
    (@pass tensor $method:ident $storage:ident $view:ident $call:ident) => { &$view };
    (@pass optional_tensor $method:ident $storage:ident $view:ident $call:ident) => { $storage.is_present().then_some(&$view) };
    (@pass dynamic $method:ident $storage:ident $view:ident $call:ident) => { &mut $storage };
    (@pass texts $method:ident $storage:ident $view:ident $call:ident) => { &mut $storage };
    (@pass $kind:ident $method:ident $storage:ident $view:ident $call:ident) => { $call.$method().then_some(&mut $storage) };
    (@expected tensor $method:ident $call:ident) => { crate::results::ExpectedOutput::from($call.$method()) };
    (@expected optional_tensor $method:ident $call:ident) => { crate::results::ExpectedOutput::from($call.$method()) };
    (@expected dynamic $method:ident $call:ident) => { crate::results::ExpectedOutput::dynamic(true) };
    (@expected texts $method:ident $call:ident) => { crate::results::ExpectedOutput::dynamic(true) };
    (@expected $kind:ident $method:ident $call:ident) => { crate::results::ExpectedOutput::dynamic($call.$method()) };
    (@object tensor $storage:ident $py:ident) => { $storage.into_object() };
    (@object optional_tensor $storage:ident $py:ident) => { $storage.into_object() };
    (@object dynamic $storage:ident $py:ident) => {
        $storage.map(|value| crate::output::dynamic($py, &value)).transpose()?
    };
    (@object optional_dynamic $storage:ident $py:ident) => { crate::operation::python_function!(@object dynamic $storage $py) };
    (@object $texts:ident $storage:ident $py:ident) => {
        $storage.map(|value| value.into_pyobject($py).map(Bound::into_any)).transpose()?
    };
    (@collect $py:ident) => { Ok($py.None().into_bound($py)) };
    (@collect $py:ident tensor $storage:ident) => {
        Ok($storage.into_object().unwrap_or_else(|| $py.None().into_bound($py)))
    };
    (@collect $py:ident $($kind:ident $storage:ident)*) => {
        crate::output::returned(
            $py,
            [$(crate::operation::python_function!(@object $kind $storage $py)),*].into_iter().flatten(),
        )
    };
    // All outputs have known sizes. A kernel in Python allocates its own results, so slots are allocated only once a native
    // kernel was selected.
    (
        @run known($out:ident) $without_out:ident $py:ident $frame:ident $call:ident [$($hosted:tt)*]
        [$($output:ident: $kind:ident($method:ident, $storage:ident, $view:ident)),*] [$($bytes:ident $bytes_method:ident),*]
    ) => {
        let mut ready = None;
        let mut given = crate::output::Out::new($out);
        if given.is_given() {
            $(crate::operation::python_function!(@new_view $kind $view);)*
            $(crate::operation::python_function!(@take $kind $output $method $storage $view $call $frame given);)*
            $(crate::output::nibbles($call.$bytes_method(), &mut $bytes);)*
            given.finish(&$frame)?;
            let checked =
                // SAFETY: only the slots in `ready` are used from here on.
                unsafe { $call.outputs_at(&mut ready, $(crate::operation::python_function!(@pass $kind $method $storage $view $call)),*) };
            if let Err(error) = checked {
                let views = [$(crate::operation::python_function!(@seen $kind $view)),*];
                return crate::output::compute_apart(&mut $frame, &error, &$call.to_args(), &views, $out, $without_out);
            }
        }
        let context = match &ready {
            Some(out) => $call.context_with(out),
            None => $call.context(),
        };
        $frame.dispatch(&context, |frame, entry, run| {
            if let Some(hosted) = crate::python_kernel::PythonKernel::of(entry) {
                return crate::operation::python_function!(@run_hosted entry hosted frame $call $out $($hosted)* [$($kind $method),*]);
            }
            let out = match &mut ready {
                Some(out) => out,
                None => {
                    $(crate::operation::python_function!(@new_view $kind $view);)*
                    $(crate::operation::python_function!(@allocate $kind $method $storage $view $call frame);)*
                    // SAFETY: as above.
                    unsafe { $call.outputs_at(&mut ready, $(crate::operation::python_function!(@pass $kind $method $storage $view $call)),*) }
                        .map_err(lz_core::KernelError::invalid)?
                }
            };
            frame.native(|| $call.run_kernel(entry, out.reborrow(), run))
        })?;
        drop(ready);
    };
    // The kernel determines sizes, or there are no outputs: there is no `out`, and nothing to put off.
    (
        @run unknown() $without_out:ident $py:ident $frame:ident $call:ident [$($hosted:tt)*]
        [$($output:ident: $kind:ident($method:ident, $storage:ident, $view:ident)),*] [$($bytes:ident $bytes_method:ident),*]
    ) => {
        let out = None;
        $(crate::operation::python_function!(@new_view $kind $view);)*
        let mut prepare = |frame: &mut crate::call::Frame<'a, 'py>| -> Result<(), lz_core::KernelError> {
            $(crate::operation::python_function!(@allocate $kind $method $storage $view $call frame);)*
            Ok(())
        };
        prepare(&mut $frame).map_err(|error| crate::error::raise_kernel($py, $frame.operation, error))?;
        {
            let mut slots = None;
            // SAFETY: only the slots in `slots` are used from here on.
            let ready = unsafe { $call.outputs_at(&mut slots, $(crate::operation::python_function!(@pass $kind $method $storage $view $call)),*) }
                .map_err(|error| $frame.raise(&error))?;
            let context = $call.context_with(ready);
            $frame.dispatch(&context, |frame, entry, run| {
                if let Some(hosted) = crate::python_kernel::PythonKernel::of(entry) {
                    return crate::operation::python_function!(@run_hosted entry hosted frame $call out $($hosted)* [$($kind $method),*]);
                }
                let out = ready.reborrow();
                frame.native(|| $call.run_kernel(entry, out, run))
            })?;
        }
    };
    (
        @run_hosted $entry:ident $hosted:ident $frame:ident $call:ident $out:ident ($($input:ident),*)
        ($($param:ident: $presence:ident $param_kind:ident $(($ty:ident))?),*) [$($kind:ident $method:ident),*]
    ) => {{
        let recorder = $entry.kernel.recorder();
        if let Some(recorder) = recorder {
            recorder.record_arguments(&$call.to_args());
        }
        let expected = [$(crate::operation::python_function!(@expected $kind $method $call)),*];
        let outcome = $hosted.run(
            $frame,
            &[$($input),*],
            &[$(($param, crate::operation::python_function!(@hosted $param_kind $(($ty))? $call.$param))),*],
            &expected,
            $out,
        );
        if let (Some(recorder), Ok(())) = (recorder, &outcome) {
            crate::python_kernel_run::record_results(recorder, $frame, &$call.to_args(), &expected, $out);
        }
        outcome
    }};
    (
        $info:ident, $args:ident;
        signature($name:literal, $positional:literal, $required:literal, $doc:literal);
        parameters($($parameter:ident),*);
        inputs($($input:ident: $input_kind:ident($borrowed:ident)),*);
        params($($param:ident: $presence:ident $param_kind:ident $(($ty:ident))?),*);
        hosted $positional_inputs:tt;
        outputs $sizes:ident $out:tt [$($output:ident: $kind:ident($method:ident, $storage:ident, $view:ident)),*];
        $(bytes($($packed:ident: $packed_kind:ident if $case_param:ident in [$($case:literal),*]),*);)?
        bytes_outputs $bytes_outputs:tt;
    ) => {
        static SIGNATURE: crate::fastcall::Signature =
            crate::fastcall::Signature::new($name, $doc, &[$(stringify!($parameter)),*], $positional, $required);

        /// The operation.
        pub static ENTRY: crate::fastcall::Entry =
            crate::fastcall::Entry { operation: &lz_ops::$info, signature: &SIGNATURE, call: entry, call_with };

        /// # Safety
        /// Only the interpreter calls this.
        unsafe extern "C" fn entry(
            _function: *mut ffi::PyObject,
            arguments: *const *mut ffi::PyObject,
            count: usize,
            keywords: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            // SAFETY: these are the interpreter's arguments.
            unsafe { crate::fastcall::enter(&ENTRY, arguments, count, keywords, call) }
        }

        /// # Safety
        /// Only plans call this, with arguments of the interpreter.
        unsafe fn call_with<'py>(
            py: Python<'py>,
            selection: crate::selection::Selection<'_>,
            arguments: *const *mut ffi::PyObject,
            count: usize,
            keywords: *mut ffi::PyObject,
        ) -> PyResult<Bound<'py, PyAny>> {
            // SAFETY: as above.
            let arguments = unsafe { SIGNATURE.parse(py, arguments, count, keywords) }?;
            call(py, selection, arguments)
        }

        #[allow(unused_mut, unused_variables, clippy::all, reason = "operations differ in what they use")]
        fn call<'a, 'py>(
            py: Python<'py>,
            selection: crate::selection::Selection<'a>,
            arguments: crate::fastcall::Arguments<'a, 'py, { [$(stringify!($parameter)),*].len() }>,
        ) -> PyResult<Bound<'py, PyAny>> {
            let [$($parameter),*] = arguments;
            let without_out = || call(py, selection, SIGNATURE.without_out(arguments));
            let mut frame = crate::call::Frame::new(py, &lz_ops::$info, selection);
            $(crate::operation::python_function!(@borrow $input_kind $borrowed $input frame);)*
            let mut args = lz_ops::$args {
                $($input: crate::operation::python_function!(@initial $input_kind $borrowed),)*
                $($param: crate::operation::python_function!(
                    @presence $presence $param frame crate::operation::python_function!(@read $param_kind $(($ty))? $param frame)
                ),)*
            };
            $(crate::operation::python_function!(@describe $input_kind $input frame args);)*
            $($(
                if let (true, Some(view)) = (
                    crate::call::Frame::is_one_of($case_param, &[$($case),*]),
                    crate::operation::python_function!(@view $packed_kind args.$packed),
                ) {
                    view.take_bytes_for_nibbles();
                }
            )*)?
            let mut checked = None;
            let call = args.check_in(&mut checked).map_err(|error| frame.raise(&error))?;
            $(let mut $storage = crate::operation::python_function!(@storage $kind);)*
            crate::operation::python_function!(
                @run $sizes $out without_out py frame call [$positional_inputs ($($param: $presence $param_kind $(($ty))?),*)]
                [$($output: $kind($method, $storage, $view)),*] $bytes_outputs
            );
            if let Some(result) = frame.take_result() {
                return Ok(result);
            }
            crate::operation::python_function!(@collect py $($kind $storage)*)
        }
    };
}

pub(crate) use python_function;
