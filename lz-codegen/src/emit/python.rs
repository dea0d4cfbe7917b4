//! One Python function an operation, called by the interpreter's fastest convention: views of the caller's tensors in, the
//! caller's own kind of tensors out. What all of them share is in `bindings/python/src`; here is what differs.

use std::ffi::CString;

use lz_schema::dtype::DType;
use lz_schema::model::{Cases, DTypeRef, Kind, Operation, Param, ParamType};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use super::docstring;
use super::stub::text_signature;
use crate::names::{OperationNames, ident};

/// Inputs in the order of the Python signature: those that must be given, then those that may.
pub fn signature_order(operation: &Operation) -> impl Iterator<Item = &lz_schema::model::Input> {
    let of =
        |optional: bool| operation.inputs.iter().filter(move |input| input.optional.is_some() == optional);
    of(false).chain(of(true))
}

/// Whether every output's size is known before the run, so that `out=` makes sense.
pub fn takes_out(operation: &Operation) -> bool {
    !operation.outputs.is_empty() && operation.outputs.iter().all(|output| !output.is_dynamic(operation))
}

/// The function of one operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let names = OperationNames::of(operation);
    let (args, info) = (&names.args, &names.info);
    let signature = signature(operation);
    let mut locals: Vec<_> = signature_order(operation).map(|input| ident(&input.name)).collect();
    locals.extend(operation.params.iter().map(|param| ident(&param.name)));
    if takes_out(operation) {
        locals.push(ident("out"));
    }
    let count = locals.len();
    let lent = operation.inputs.iter().filter_map(lent);
    let imports = operation.inputs.iter().filter_map(|input| import(operation, input));
    let fields = operation.inputs.iter().map(|input| {
        let (field, local) = (ident(&input.name), format_ident!("lent_{}", input.name));
        let value = match (input.kind, input.read_write, input.optional.is_some()) {
            (Kind::Tensor, false, false) => quote! { TensorView::empty() },
            (Kind::Tensor, true, false) => quote! { TensorMut::empty() },
            (Kind::Tensor, _, true) => quote! { None },
            (Kind::Text, ..) => quote! { &#local },
            (Kind::Tokenizer, ..) => quote! { &*#local },
        };
        quote! { #field: #value }
    });
    let params = operation.params.iter().map(|param| {
        let (field, name) = (ident(&param.name), &param.name);
        let value = match &param.ty {
            ParamType::Int => quote! { frame.int(#name, #field)? },
            ParamType::F32 => quote! { frame.float32(#name, #field)? },
            ParamType::F64 => quote! { frame.float(#name, #field)? },
            ParamType::Bool => quote! { frame.bool(#name, #field)? },
            ParamType::Enum(_) => {
                let ty = OperationNames::enumeration(operation, name);
                quote! { frame.case(#name, #ty::NAMES, #field)?.and_then(#ty::from_number) }
            }
        };
        if param.default.is_some() {
            quote! { #field: #value }
        } else {
            quote! { #field: frame.must(#name, #value)? }
        }
    });
    let body = outputs(operation);
    quote! {
        #signature

        /// The operation.
        pub static ENTRY: Entry = Entry { operation: &#info, signature: &SIGNATURE, call: entry, along };

        /// # Safety
        /// For the interpreter to call.
        unsafe extern "C" fn entry(
            _function: *mut ffi::PyObject,
            arguments: *const *mut ffi::PyObject,
            count: usize,
            keywords: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            unsafe { enter(&ENTRY, arguments, count, keywords, call) }
        }

        /// # Safety
        /// For plans, with what the interpreter passes.
        unsafe fn along<'py>(
            py: Python<'py>,
            way: Way<'_>,
            arguments: *const *mut ffi::PyObject,
            count: usize,
            keywords: *mut ffi::PyObject,
        ) -> PyResult<Bound<'py, PyAny>> {
            let arguments = unsafe { SIGNATURE.parse(py, arguments, count, keywords) }?;
            call(py, way, arguments)
        }

        fn call<'a, 'py>(
            py: Python<'py>,
            way: Way<'a>,
            arguments: Arguments<'a, 'py, #count>,
        ) -> PyResult<Bound<'py, PyAny>> {
            let [#(#locals),*] = arguments;
            let mut frame = Frame::new(py, &#info, way);
            #(#lent)*
            let mut args = #args { #(#fields,)* #(#params,)* };
            #(#imports)*
            let mut checked = None;
            let call = args.check_in(&mut checked).map_err(|error| frame.raise(&error))?;
            #body
        }
    }
}

/// The static that says what the function takes.
fn signature(operation: &Operation) -> TokenStream {
    let function = Literal::c_string(&c_string(&operation.flat_name()));
    let text = format!("{}\n--\n\n{}", text_signature(operation), docstring::text(operation).trim_end());
    let doc = Literal::c_string(&c_string(&text));
    let mut parameters: Vec<&str> = signature_order(operation).map(|input| input.name.as_str()).collect();
    let positional = parameters.len();
    let mut required: u64 = signature_order(operation)
        .enumerate()
        .filter(|(_, input)| input.optional.is_none())
        .map(|(at, _)| 1 << at)
        .sum();
    for param in &operation.params {
        if param.default.is_none() {
            required |= 1 << parameters.len();
        }
        parameters.push(&param.name);
    }
    if takes_out(operation) {
        parameters.push("out");
    }
    quote! {
        /// What it takes.
        static SIGNATURE: Signature =
            Signature::new(#function, #doc, &[#(#parameters),*], #positional, #required);
    }
}

/// Schemas hold no zero characters; should one, it ends the text.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// The param and its cases for which a dtype is two floats in a byte: libraries without such a dtype have bytes there.
fn nibbles<'a>(operation: &'a Operation, dtype: &Cases<DTypeRef>) -> Option<(&'a Param, Vec<&'a str>)> {
    let Cases::By(param, all) = dtype else { return None };
    let param = operation.params.get(*param)?;
    let ParamType::Enum(cases) = &param.ty else { return None };
    let packed = cases.iter().zip(all).filter(|(_, dtype)| **dtype == DTypeRef::Fixed(DType::F4E2M1x2));
    let packed: Vec<&str> = packed.map(|(case, _)| case.as_str()).collect();
    (!packed.is_empty()).then_some((param, packed))
}

/// What is borrowed before the arguments are put together.
fn lent(input: &lz_schema::model::Input) -> Option<TokenStream> {
    let (local, object, name) = (format_ident!("lent_{}", input.name), ident(&input.name), &input.name);
    match input.kind {
        Kind::Tensor => None,
        Kind::Text => Some(quote! {
            let #local = frame.texts(#name, #object)?;
            let #local = #local.as_strs();
        }),
        Kind::Tokenizer => Some(quote! { let #local = frame.tokenizer(#name, #object)?; }),
    }
}

/// How a tensor is described in the arguments, where it stays.
fn import(operation: &Operation, input: &lz_schema::model::Input) -> Option<TokenStream> {
    if input.kind != Kind::Tensor {
        return None;
    }
    let (hold, object, name) = (format_ident!("hold_{}", input.name), ident(&input.name), &input.name);
    let fill = match (input.read_write, input.optional.is_some()) {
        (false, false) => quote! { tensor },
        (false, true) => quote! { optional },
        (true, false) => quote! { writable },
        (true, true) => quote! { optional_writable },
    };
    let packed = nibbles(operation, &input.dtype).map(|(param, cases)| {
        let param = ident(&param.name);
        let view = match (input.read_write, input.optional.is_some()) {
            (false, false) => quote! { Some(&mut args.#object) },
            (false, true) => quote! { args.#object.as_mut() },
            (true, false) => quote! { Some(unsafe { args.#object.description() }) },
            (true, true) => quote! { args.#object.as_mut().map(|tensor| unsafe { tensor.description() }) },
        };
        quote! {
            if let (true, Some(view)) = (Frame::is_one_of(#param, &[#(#cases),*]), #view) {
                view.take_bytes_for_nibbles();
            }
        }
    });
    Some(quote! {
        let mut #hold = Hold::NOTHING;
        frame.#fill(#name, #object, &mut args.#object, &mut #hold)?;
        #packed
    })
}

/// From the checked call to the returned objects.
fn outputs(operation: &Operation) -> TokenStream {
    let mut declare = Vec::new();
    let mut views = Vec::new();
    let mut take = Vec::new();
    let mut allocate = Vec::new();
    let mut pass = Vec::new();
    let mut collect = Vec::new();
    for output in &operation.outputs {
        let (name, local) = (&output.name, format_ident!("place_{}", output.name));
        let spec = format_ident!("{}_spec", output.name);
        if output.is_dynamic(operation) {
            let wants = format_ident!("wants_{}", output.name);
            let made = match output.kind {
                Kind::Text => quote! { value.into_pyobject(py).map(Bound::into_any) },
                _ => quote! { crate::output::dynamic(py, &value) },
            };
            declare.push(quote! { let mut #local = None; });
            pass.push(if output.when.is_some() {
                quote! { call.#wants().then_some(&mut #local) }
            } else {
                quote! { &mut #local }
            });
            collect.push(quote! { #local.map(|value| #made).transpose()? });
            continue;
        }
        let view = format_ident!("view_{}", output.name);
        declare.push(quote! { let mut #local = Place::EMPTY; });
        views.push(quote! { let mut #view = TensorMut::empty(); });
        allocate.push(quote! { #local.allocate(&mut *frame, call.#spec(), &mut #view)?; });
        let packed = nibbles(operation, &output.dtype)
            .map(|_| quote! { crate::output::nibbles(call.#spec(), &mut #view); });
        let taken = quote! {
            #local.take(&mut frame, &mut given, #name, &mut #view)?;
            #packed
        };
        if output.when.is_some() {
            take.push(quote! { if call.#spec().is_some() { #taken } });
            pass.push(quote! { #local.is_there().then_some(&#view) });
        } else {
            take.push(taken);
            pass.push(quote! { &#view });
        }
        collect.push(quote! { #local.into_object() });
    }
    let hosted = hosted(operation);
    let collected = match operation.outputs.as_slice() {
        [] => quote! { Ok(py.None().into_bound(py)) },
        [output] if !output.is_dynamic(operation) && output.when.is_none() => {
            let local = format_ident!("place_{}", output.name);
            quote! { Ok(#local.into_object().unwrap_or_else(|| py.None().into_bound(py))) }
        }
        _ => quote! {
            crate::output::returned(py, [#(#collect),*].into_iter().flatten())
        },
    };
    // A result that a kernel of Python's makes by itself needs no place; so places are made only when a native one runs. Where
    // the kernel finds out how large the results are, and where there are none, there is nothing to put off.
    let run = if takes_out(operation) {
        quote! {
            let mut ready = None;
            let mut given = Out::new(out);
            if given.is_given() {
                #(#views)*
                #(#take)*
                given.finish(&frame)?;
                // SAFETY: only what is in the room is looked at from here on.
                unsafe { call.outputs_at(&mut ready, #(#pass),*) }.map_err(|error| frame.raise(&error))?;
            }
            let context = match &ready {
                Some(out) => call.context_with(out),
                None => call.context(),
            };
            frame.dispatch(&context, |frame, entry, run| {
                if let Some(hosted) = Hosted::of(entry) {
                    return #hosted;
                }
                let out = match &mut ready {
                    Some(out) => out,
                    None => {
                        #(#views)*
                        #(#allocate)*
                        // SAFETY: as above.
                        unsafe { call.outputs_at(&mut ready, #(#pass),*) }.map_err(KernelError::invalid)?
                    }
                };
                frame.native(|| call.run_kernel(entry, out.reborrow(), run))
            })?;
            drop(ready);
        }
    } else {
        quote! {
            let out = Option::<Borrowed<'a, 'py, PyAny>>::None;
            #(#views)*
            let mut prepare = |frame: &mut Frame<'a, 'py>| -> Result<(), KernelError> { #(#allocate)* Ok(()) };
            prepare(&mut frame).map_err(|error| crate::error::raise_kernel(py, frame.operation, error))?;
            {
                let mut room = None;
                // SAFETY: only what is in the room is looked at from here on.
                let ready = unsafe { call.outputs_at(&mut room, #(#pass),*) }.map_err(|error| frame.raise(&error))?;
                let context = call.context_with(ready);
                frame.dispatch(&context, |frame, entry, run| {
                    if let Some(hosted) = Hosted::of(entry) {
                        return #hosted;
                    }
                    let out = ready.reborrow();
                    frame.native(|| call.run_kernel(entry, out, run))
                })?;
            }
        }
    };
    quote! {
        #(#declare)*
        #run
        if let Some(result) = frame.take_result() {
            return Ok(result);
        }
        #collected
    }
}

/// How a kernel in Python is called: the caller's objects, every param with its value, and what each result must be.
fn hosted(operation: &Operation) -> TokenStream {
    let inputs = signature_order(operation).map(|input| ident(&input.name));
    let params = operation.params.iter().map(|param| {
        let field = ident(&param.name);
        let value = match &param.ty {
            ParamType::Int => quote! { Param::Int(call.#field) },
            ParamType::F32 => quote! { Param::Float(f64::from(call.#field)) },
            ParamType::F64 => quote! { Param::Float(call.#field) },
            ParamType::Bool => quote! { Param::Bool(call.#field) },
            ParamType::Enum(_) => {
                let ty = OperationNames::enumeration(operation, &param.name);
                quote! { Param::Text(#ty::NAMES.get(call.#field as usize).copied().unwrap_or_default()) }
            }
        };
        quote! { (#field, #value) }
    });
    let wanted = operation.outputs.iter().map(|output| {
        let (spec, wants) = (format_ident!("{}_spec", output.name), format_ident!("wants_{}", output.name));
        match (output.is_dynamic(operation), output.when.is_some()) {
            (false, _) => quote! { Wanted::from(call.#spec()) },
            (true, true) => quote! { Wanted::dynamic(call.#wants()) },
            (true, false) => quote! { Wanted::dynamic(true) },
        }
    });
    quote! { hosted.run(frame, &[#(#inputs),*], &[#(#params),*], &[#(#wanted),*], out) }
}

/// The module of all functions.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    quote! {
        use crate::function::Entry;

        #(mod #modules;)*

        /// Every operation.
        pub static ENTRIES: &[&Entry] = &[#(&#modules::ENTRY),*];
    }
}
