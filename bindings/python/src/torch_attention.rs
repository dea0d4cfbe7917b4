//! torch's attention kernels, called through its C ABI instead of its dispatcher, and tensor views created
//! in the same way.
//!
//! On the way from Python to a kernel torch parses arguments and checks modes, autograd and dispatch keys;
//! each change of layout is another call with the same overhead. The functions of the C ABI skip that, and
//! their views cost a tenth. They are looked up by name in the libraries that the process has loaded. Where a
//! function is missing or fails, the Python adapter is called, which raises the error.

use std::ffi::c_int;
use std::ptr;

use pyo3::Borrowed;
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyTuple};

use crate::private;
use crate::tensor::torch::{Handle, TensorHandle, handle, object_of, sibling_library};
use crate::vectorcall::PyObject_Vectorcall;

type Numbers = unsafe extern "C" fn(Handle, *mut *const i64) -> c_int;
type Number = unsafe extern "C" fn(Handle, *mut i64) -> c_int;
type Reinterpret = unsafe extern "C" fn(Handle, i64, *const i64, *const i64, i64, *mut Handle) -> c_int;
/// Queries, keys, values; the numbers of queries and keys; output parameters.
type Flash = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    *const Handle,
    *const Handle,
    i64,
    i64,
    f64,
    i32,
    i32,
    *const f64,
    *const i64,
    *const i64,
    *const Handle,
    *const Handle,
    *mut Handle,
    *mut Handle,
    *mut Handle,
    *mut Handle,
    *mut Handle,
) -> c_int;
type Cudnn = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    *const Handle,
    i32,
    f64,
    i32,
    i32,
    *const f64,
    *mut Handle,
    *mut Handle,
    *mut Handle,
    *mut Handle,
    *mut i64,
    *mut i64,
    *mut Handle,
    *mut Handle,
    *mut Handle,
) -> c_int;
type OnHost = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    f64,
    i32,
    *const Handle,
    *const f64,
    *mut Handle,
    *mut Handle,
) -> c_int;

/// The functions for views, and the attention kernels that exist.
struct Functions {
    rank: Number,
    sizes: Numbers,
    strides: Numbers,
    offset: Number,
    reinterpret: Reinterpret,
    delete: unsafe extern "C" fn(Handle) -> c_int,
    flash: Option<Flash>,
    cudnn: Option<Cudnn>,
    on_host: Option<OnHost>,
    flash_is_on: Py<PyAny>,
    cudnn_is_on: Py<PyAny>,
    /// `scaled_dot_product_attention`, which selects a kernel itself, and the names of its keyword arguments.
    own: Py<PyAny>,
    own_names: Py<PyTuple>,
}

static FUNCTIONS: PyOnceLock<Option<Functions>> = PyOnceLock::new();

fn functions(py: Python<'_>) -> Option<&'static Functions> {
    let find =
        || py.import("torch").ok().filter(|_| private::allowed()).and_then(|torch| Functions::find(&torch));
    FUNCTIONS.get_or_init(py, find).as_ref()
}

impl Functions {
    fn find(torch: &Bound<'_, PyAny>) -> Option<Functions> {
        let (host, device) = (sibling_library(torch, "torch_cpu")?, sibling_library(torch, "torch_cuda"));
        let switches = torch.getattr("backends").ok()?.getattr("cuda").ok()?;
        let functional = torch.getattr("nn").ok()?.getattr("functional").ok()?;
        // SAFETY: the names and types are those of torch's C ABI, which keeps both. None of the libraries is
        // ever unloaded.
        unsafe {
            let found = Functions {
                rank: *host.get(b"aoti_torch_get_dim").ok()?,
                sizes: *host.get(b"aoti_torch_get_sizes").ok()?,
                strides: *host.get(b"aoti_torch_get_strides").ok()?,
                offset: *host.get(b"aoti_torch_get_storage_offset").ok()?,
                reinterpret: *host.get(b"aoti_torch__reinterpret_tensor").ok()?,
                delete: *host.get(b"aoti_torch_delete_tensor_object").ok()?,
                flash: device.as_ref().and_then(|device| {
                    device.get::<Flash>(b"aoti_torch_cuda__flash_attention_forward").ok().map(|found| *found)
                }),
                cudnn: device.as_ref().and_then(|device| {
                    let name = b"aoti_torch_cuda__scaled_dot_product_cudnn_attention";
                    device.get::<Cudnn>(name).ok().map(|found| *found)
                }),
                on_host: host
                    .get::<OnHost>(b"aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu")
                    .ok()
                    .map(|found| *found),
                flash_is_on: switches.getattr("flash_sdp_enabled").ok()?.unbind(),
                cudnn_is_on: switches.getattr("cudnn_sdp_enabled").ok()?.unbind(),
                own: functional.getattr("scaled_dot_product_attention").ok()?.unbind(),
                own_names: PyTuple::new(torch.py(), ["scale", "enable_gqa"]).ok()?.unbind(),
            };
            std::mem::forget((host, device));
            Some(found)
        }
    }

    /// A tensor's sizes, strides and storage offset.
    fn shape<const N: usize>(&self, tensor: Handle) -> Option<Shape<N>> {
        let (mut rank, mut offset) = (0, 0);
        let (mut sizes, mut strides) = (ptr::null(), ptr::null());
        // SAFETY: the handle is a tensor's; sizes and strides have one entry per dimension, and live as long
        // as the tensor.
        unsafe {
            let succeeded = (self.rank)(tensor, &raw mut rank) == 0
                && (self.sizes)(tensor, &raw mut sizes) == 0
                && (self.strides)(tensor, &raw mut strides) == 0
                && (self.offset)(tensor, &raw mut offset) == 0;
            (succeeded && rank == N as i64).then(|| Shape {
                sizes: *sizes.cast::<[i64; N]>(),
                strides: *strides.cast::<[i64; N]>(),
                offset,
            })
        }
    }

    /// A view of the same memory with another shape.
    fn view<const N: usize>(&self, tensor: Handle, shape: &Shape<N>) -> Option<TensorHandle> {
        let mut view = TensorHandle::empty(self.delete);
        // SAFETY: `N` sizes and strides; they stay inside the tensor's memory, because they are a permutation
        // or another division of its dimensions.
        let code = unsafe {
            (self.reinterpret)(
                tensor,
                N as i64,
                shape.sizes.as_ptr(),
                shape.strides.as_ptr(),
                shape.offset,
                view.slot(),
            )
        };
        (code == 0).then_some(view)
    }

    /// A view with the dimensions of heads and positions transposed.
    fn transposed(&self, tensor: Handle) -> Option<TensorHandle> {
        self.view(tensor, &self.shape::<4>(tensor)?.swapped())
    }
}

/// Sizes, strides and storage offset of a tensor.
#[derive(Clone, Copy)]
struct Shape<const N: usize> {
    sizes: [i64; N],
    strides: [i64; N],
    offset: i64,
}

impl<const N: usize> Shape<N> {
    /// With the second and third dimensions swapped.
    fn swapped(mut self) -> Shape<N> {
        self.sizes.swap(1, 2);
        self.strides.swap(1, 2);
        self
    }

    /// Without a dimension of size 1.
    fn without<const M: usize>(&self, removed: usize) -> Shape<M> {
        let at = |dim: usize| if dim < removed { dim } else { dim + 1 };
        Shape {
            sizes: std::array::from_fn(|dim| self.sizes[at(dim)]),
            strides: std::array::from_fn(|dim| self.strides[at(dim)]),
            offset: self.offset,
        }
    }

    /// With an added dimension of size 1.
    fn with<const M: usize>(&self, added: usize) -> Shape<M> {
        let at = |dim: usize| if dim < added { dim } else { dim - 1 };
        let mut wider = Shape {
            sizes: std::array::from_fn(|dim| self.sizes[at(dim).min(N - 1)]),
            strides: std::array::from_fn(|dim| self.strides[at(dim).min(N - 1)]),
            offset: self.offset,
        };
        wider.sizes[added] = 1;
        wider
    }
}

/// Which kernel of torch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Flash,
    Cudnn,
    OnHost,
    /// `scaled_dot_product_attention`, which selects a kernel itself; with `grouped`, queries have more heads
    /// than keys.
    Own {
        grouped: bool,
    },
}

/// A call of one of the C functions.
struct Call {
    functions: &'static Functions,
    library: Library,
    inputs: [Handle; 3],
    is_decode: bool,
    heads_first: bool,
    causal: bool,
    sm_scale: f64,
}

// SAFETY: the handles are tensors that the caller holds for the duration of the call.
unsafe impl Send for Call {}

impl Call {
    /// The output in the caller's layout, and the lse with heads before positions; nothing if torch's
    /// function fails.
    fn run(&self) -> Option<(TensorHandle, TensorHandle)> {
        let functions = self.functions;
        // Flash attention has positions before heads; the others have heads first.
        let needs_heads_first = self.library != Library::Flash;
        let transposes = needs_heads_first != self.heads_first;
        let [q, k, v] = self.inputs;
        let dim = if needs_heads_first { 2 } else { 1 };
        let rows = match (self.is_decode, transposes) {
            (true, _) => Some(functions.view(q, &functions.shape::<3>(q)?.with::<4>(dim))?),
            (false, true) => Some(functions.transposed(q)?),
            (false, false) => None,
        };
        let (keys, values) = if transposes {
            (Some(functions.transposed(k)?), Some(functions.transposed(v)?))
        } else {
            (None, None)
        };
        let used =
            |view: &Option<TensorHandle>, given: Handle| view.as_ref().map_or(given, TensorHandle::get);
        let (output, lse) = self.attend([used(&rows, q), used(&keys, k), used(&values, v)])?;
        if self.is_decode {
            let shape = functions.shape::<4>(output.get())?.without::<3>(dim);
            return Some((functions.view(output.get(), &shape)?, lse));
        }
        Some((if transposes { functions.transposed(output.get())? } else { output }, lse))
    }

    fn attend(&self, [q, k, v]: [Handle; 3]) -> Option<(TensorHandle, TensorHandle)> {
        let functions = self.functions;
        let mut outputs: [TensorHandle; 7] = std::array::from_fn(|_| TensorHandle::empty(functions.delete));
        let [output, lse, others @ ..] = &mut outputs;
        let (output, lse) = (output.slot(), lse.slot());
        let [first, second, third, fourth, fifth] = others.each_mut().map(TensorHandle::slot);
        let (scale, causal, mut number, mut another) =
            (&raw const self.sm_scale, i32::from(self.causal), 0, 0);
        let none = ptr::null();
        // SAFETY: live tensors with the dimensions that each function expects; absent arguments are null;
        // every output parameter is a local variable.
        let code = unsafe {
            match self.library {
                Library::Flash => {
                    let (queries, keys) =
                        (functions.shape::<4>(q)?.sizes[1], functions.shape::<4>(k)?.sizes[1]);
                    functions.flash?(
                        q,
                        k,
                        v,
                        none,
                        none,
                        queries,
                        keys,
                        0.0,
                        causal,
                        0,
                        scale,
                        ptr::null(),
                        ptr::null(),
                        none,
                        none,
                        output,
                        lse,
                        first,
                        second,
                        third,
                    )
                }
                Library::Cudnn => functions.cudnn?(
                    q,
                    k,
                    v,
                    none,
                    0,
                    0.0,
                    causal,
                    0,
                    scale,
                    output,
                    lse,
                    first,
                    second,
                    &raw mut number,
                    &raw mut another,
                    third,
                    fourth,
                    fifth,
                ),
                Library::OnHost => functions.on_host?(q, k, v, 0.0, causal, none, scale, output, lse),
                Library::Own { .. } => return None,
            }
        };
        let [output, lse, ..] = outputs;
        (code == 0).then_some((output, lse))
    }
}

/// A call with Python arguments.
struct PythonCall<'a, 'py> {
    library: Library,
    inputs: [Borrowed<'a, 'py, PyAny>; 3],
    is_decode: bool,
    causal: bool,
    sm_scale: f64,
    return_lse: bool,
    layout: &'a str,
}

impl<'py> PythonCall<'_, 'py> {
    fn run(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(functions) = functions(py) else { return Ok(None) };
        if let Library::Own { grouped } = self.library {
            return self.run_own(py, functions, grouped);
        }
        let (is_on, name) = match self.library {
            Library::Cudnn => (&functions.cudnn_is_on, "CUDNN_ATTENTION"),
            _ => (&functions.flash_is_on, "FLASH_ATTENTION"),
        };
        if !is_on.bind(py).call0()?.is_truthy()? {
            let message = format!("{name} is disabled by the caller's torch.nn.attention.sdpa_kernel");
            return Err(PyNotImplementedError::new_err(message));
        }
        let [Some(q), Some(k), Some(v)] = self.inputs.map(handle) else { return Ok(None) };
        let heads_first = self.layout == "BHSD";
        let (library, is_decode, causal, sm_scale) =
            (self.library, self.is_decode, self.causal, self.sm_scale);
        let inputs = [q.get(), k.get(), v.get()];
        let call = Call { functions, library, inputs, is_decode, heads_first, causal, sm_scale };
        let Some((output, lse)) = py.detach(move || call.run()) else { return Ok(None) };
        let output = object_of(py, &output)?;
        if !self.return_lse {
            return Ok(Some(output));
        }
        // Flash attention returns `[batch, heads, positions]`.
        let Some(shape) = functions.shape::<3>(lse.get()) else { return Ok(None) };
        let lse = match (is_decode, heads_first) {
            (true, _) => functions.view(lse.get(), &shape.without::<2>(2)),
            (false, false) => functions.view(lse.get(), &shape.swapped()),
            (false, true) => Some(lse),
        };
        let Some(lse) = lse else { return Ok(None) };
        Ok(Some(PyTuple::new(py, [output, object_of(py, &lse)?])?.into_any()))
    }

    /// Calls torch's Python function with as few arguments as possible; only the views are created natively.
    fn run_own(
        &self,
        py: Python<'py>,
        functions: &'static Functions,
        grouped: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let transposes = self.layout != "BHSD";
        let [Some(q), Some(k), Some(v)] = self.inputs.map(handle) else { return Ok(None) };
        let mut views = [const { None }; 3];
        if transposes {
            let rows = if self.is_decode { None } else { functions.transposed(q.get()) };
            views = [rows, functions.transposed(k.get()), functions.transposed(v.get())];
        }
        if self.is_decode {
            views[0] =
                functions.shape::<3>(q.get()).and_then(|shape| functions.view(q.get(), &shape.with::<4>(2)));
        }
        let needed = [transposes || self.is_decode, transposes, transposes];
        if views.iter().zip(needed).any(|(view, needed)| view.is_none() && needed) {
            return Ok(None);
        }
        let mut objects = self.inputs.map(|input| input.to_owned());
        for (object, view) in objects.iter_mut().zip(views) {
            if let Some(view) = view {
                *object = object_of(py, &view)?;
            }
        }
        let [q, k, v] = &objects;
        let (dropout, scale) = (PyFloat::new(py, 0.0), PyFloat::new(py, self.sm_scale));
        let (causal, grouped) = (PyBool::new(py, self.causal), PyBool::new(py, grouped));
        let none = py.None();
        let arguments = [
            q.as_ptr(),
            k.as_ptr(),
            v.as_ptr(),
            none.as_ptr(),
            dropout.as_ptr(),
            causal.as_ptr(),
            scale.as_ptr(),
            grouped.as_ptr(),
        ];
        // SAFETY: six positional and two keyword arguments; all are alive during the call.
        let output = unsafe {
            let result = PyObject_Vectorcall(
                functions.own.as_ptr(),
                arguments.as_ptr(),
                6,
                functions.own_names.as_ptr(),
            );
            Bound::from_owned_ptr_or_err(py, result)?
        };
        if !transposes && !self.is_decode {
            return Ok(Some(output));
        }
        let view = handle(output.as_borrowed()).and_then(|result| {
            if !self.is_decode {
                return functions.transposed(result.get());
            }
            functions.view(result.get(), &functions.shape::<4>(result.get())?.without::<3>(2))
        });
        match view {
            Some(view) => object_of(py, &view).map(Some),
            None if self.is_decode => output.call_method1("squeeze", (2,)).map(Some),
            None => output.call_method1("transpose", (1, 2)).map(Some),
        }
    }
}

/// Calls the Python adapter, for calls that failed here.
#[cold]
fn call_adapter<'py>(
    py: Python<'py>,
    name: &str,
    inputs: [Option<&Bound<'py, PyAny>>; 5],
    params: &[(&str, Bound<'py, PyAny>)],
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = PyDict::new(py);
    for (name, value) in params {
        keywords.set_item(name, value)?;
    }
    py.import("layerzero.backends.torch")?.getattr(name)?.call(PyTuple::new(py, inputs)?, Some(&keywords))
}

macro_rules! kernels {
    ($($library:expr, $prefill:ident, $prefill_in_python:literal, $decode:ident, $decode_in_python:literal;)*) => { $(
        #[pyfunction]
        #[pyo3(signature = (q, k, v, mask, alibi_slopes=None, *, causal, causal_offset, window_left, window_right, soft_cap, sm_scale, return_lse, layout))]
        #[expect(clippy::too_many_arguments, reason = "the operation's arguments")]
        fn $prefill<'py>(
            py: Python<'py>,
            q: &Bound<'py, PyAny>,
            k: &Bound<'py, PyAny>,
            v: &Bound<'py, PyAny>,
            mask: Option<&Bound<'py, PyAny>>,
            alibi_slopes: Option<&Bound<'py, PyAny>>,
            causal: bool,
            causal_offset: Bound<'py, PyAny>,
            window_left: Bound<'py, PyAny>,
            window_right: Bound<'py, PyAny>,
            soft_cap: Bound<'py, PyAny>,
            sm_scale: f64,
            return_lse: bool,
            layout: &str,
        ) -> PyResult<Bound<'py, PyAny>> {
            let call = PythonCall { library: $library, inputs: [q, k, v].map(Bound::as_borrowed), is_decode: false, causal, sm_scale, return_lse, layout };
            if let Some(result) = call.run(py)? {
                return Ok(result);
            }
            let params = [
                ("causal", causal.into_pyobject(py)?.to_owned().into_any()), ("causal_offset", causal_offset),
                ("window_left", window_left), ("window_right", window_right), ("soft_cap", soft_cap),
                ("sm_scale", sm_scale.into_pyobject(py)?.into_any()),
                ("return_lse", return_lse.into_pyobject(py)?.to_owned().into_any()),
                ("layout", layout.into_pyobject(py)?.into_any()),
            ];
            call_adapter(py, $prefill_in_python, [Some(q), Some(k), Some(v), mask, alibi_slopes], &params)
        }

        #[pyfunction]
        #[pyo3(signature = (q, k, v, kv_lens, alibi_slopes=None, *, window_left, soft_cap, sm_scale, return_lse, layout))]
        #[expect(clippy::too_many_arguments, reason = "the operation's arguments")]
        fn $decode<'py>(
            py: Python<'py>,
            q: &Bound<'py, PyAny>,
            k: &Bound<'py, PyAny>,
            v: &Bound<'py, PyAny>,
            kv_lens: Option<&Bound<'py, PyAny>>,
            alibi_slopes: Option<&Bound<'py, PyAny>>,
            window_left: Bound<'py, PyAny>,
            soft_cap: Bound<'py, PyAny>,
            sm_scale: f64,
            return_lse: bool,
            layout: &str,
        ) -> PyResult<Bound<'py, PyAny>> {
            let call = PythonCall { library: $library, inputs: [q, k, v].map(Bound::as_borrowed), is_decode: true, causal: false, sm_scale, return_lse, layout };
            if let Some(result) = call.run(py)? {
                return Ok(result);
            }
            let params = [
                ("window_left", window_left), ("soft_cap", soft_cap), ("sm_scale", sm_scale.into_pyobject(py)?.into_any()),
                ("return_lse", return_lse.into_pyobject(py)?.to_owned().into_any()),
                ("layout", layout.into_pyobject(py)?.into_any()),
            ];
            call_adapter(py, $decode_in_python, [Some(q), Some(k), Some(v), kv_lens, alibi_slopes], &params)
        }
    )* };
}

kernels! {
    Library::Flash, torch_flash_prefill, "_flash_prefill", torch_flash_decode, "_flash_decode";
    Library::Cudnn, torch_cudnn_prefill, "_cudnn_prefill", torch_cudnn_decode, "_cudnn_decode";
    Library::OnHost, torch_host_prefill, "_host_prefill", torch_host_decode, "_host_decode";
    Library::Own { grouped: false }, torch_own_prefill, "_own_prefill", torch_own_decode, "_own_decode";
    Library::Own { grouped: true }, torch_own_grouped_prefill, "_own_grouped_prefill", torch_own_grouped_decode, "_own_grouped_decode";
}

/// Reshapes the first two dimensions to one or two others: a view, or a copy if they are not contiguous with
/// each other.
#[pyfunction]
#[pyo3(signature = (tensor, first, second=None))]
fn reshape_leading<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    first: i64,
    second: Option<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    if let (Some(functions), Some(whole)) = (functions(py), handle(tensor.as_borrowed()))
        && let Some(Shape {
            sizes: [outer, inner, heads, features],
            strides: [far, near, head, feature],
            offset,
        }) = functions.shape::<4>(whole.get())
    {
        // The stride of a dimension of size 1 has no meaning.
        let step = if inner == 1 { far } else { near };
        let is_dense = outer == 1 || far == inner * step;
        let view = match second {
            _ if !is_dense || outer * inner != first * second.unwrap_or(1) => None,
            None => functions.view(
                whole.get(),
                &Shape { sizes: [first, heads, features], strides: [step, head, feature], offset },
            ),
            Some(second) => {
                let sizes = [first, second, heads, features];
                functions.view(
                    whole.get(),
                    &Shape { sizes, strides: [second * step, step, head, feature], offset },
                )
            }
        };
        if let Some(view) = view {
            return object_of(py, &view);
        }
    }
    let shape: Vec<i64> = tensor.getattr("shape")?.extract()?;
    let sizes: Vec<i64> =
        [Some(first), second].into_iter().flatten().chain(shape.into_iter().skip(2)).collect();
    tensor.call_method1("reshape", (sizes,))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(torch_flash_prefill, module)?)?;
    module.add_function(wrap_pyfunction!(torch_flash_decode, module)?)?;
    module.add_function(wrap_pyfunction!(torch_cudnn_prefill, module)?)?;
    module.add_function(wrap_pyfunction!(torch_cudnn_decode, module)?)?;
    module.add_function(wrap_pyfunction!(torch_host_prefill, module)?)?;
    module.add_function(wrap_pyfunction!(torch_host_decode, module)?)?;
    module.add_function(wrap_pyfunction!(torch_own_prefill, module)?)?;
    module.add_function(wrap_pyfunction!(torch_own_decode, module)?)?;
    module.add_function(wrap_pyfunction!(torch_own_grouped_prefill, module)?)?;
    module.add_function(wrap_pyfunction!(torch_own_grouped_decode, module)?)?;
    module.add_function(wrap_pyfunction!(reshape_leading, module)?)
}
