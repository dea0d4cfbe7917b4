//! `GraphBuilder`: the functions of `lz_graph::build`, with nodes as ints.

use std::sync::Arc;

use lz_core::{DType, TensorView};
use lz_graph::build::{Builder, ParamValue};
use lz_graph::graph::{ConstantData, Origin, SharedMemory};
use lz_graph::{Dim, GraphError, NodeId};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyString};

use super::compiled::{CompiledGraph, Quantization, options};
use super::raise_graph;
use super::size::{Size, SymbolicSize, to_python};
use crate::error::validation_error;
use crate::tensor::{BorrowedTensor, Problem};

/// Builds a graph. Nodes are ints; shapes are lists of ints and `SymbolicSize`s.
#[pyclass(name = "GraphBuilder", module = "layerzero._native")]
pub struct GraphBuilder {
    builder: Option<Builder>,
}

/// The memory of a Python tensor; the object is kept alive.
pub(super) struct PythonMemory {
    tensor: BorrowedTensor,
    _object: Py<PyAny>,
}

impl PythonMemory {
    /// The memory of a tensor, on the host unless `on_device`.
    pub(super) fn borrow(
        py: Python<'_>,
        name: &str,
        tensor: Bound<'_, PyAny>,
        on_device: bool,
    ) -> PyResult<ConstantData> {
        let borrowed = BorrowedTensor::new(tensor.as_borrowed()).map_err(|problem| match problem {
            Problem::Python(error) => error,
            Problem::Reason(reason) => validation_error(py, "graph", *reason),
        })?;
        if !on_device && !borrowed.view().device().is_host() {
            return Err(PyValueError::new_err(format!("constant {name} is not in host memory")));
        }
        let memory = PythonMemory { tensor: borrowed, _object: tensor.unbind() };
        Ok(ConstantData::Shared(Arc::new(memory)))
    }
}

// SAFETY: the memory is only read, and the borrow is released with the GIL held, see `Drop`.
unsafe impl Send for PythonMemory {}
// SAFETY: as above.
unsafe impl Sync for PythonMemory {}

impl std::fmt::Debug for PythonMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PythonMemory").field("shape", &self.tensor.view().shape()).finish_non_exhaustive()
    }
}

impl Drop for PythonMemory {
    fn drop(&mut self) {
        // At interpreter shutdown the memory is left to the process.
        let released = Python::try_attach(|_| std::mem::replace(&mut self.tensor, BorrowedTensor::EMPTY));
        if released.is_none() {
            std::mem::forget(std::mem::replace(&mut self.tensor, BorrowedTensor::EMPTY));
        }
    }
}

impl SharedMemory for PythonMemory {
    fn view(&self) -> TensorView<'_> {
        self.tensor.view()
    }
}

fn dims(sizes: Vec<Size>) -> Vec<Dim> {
    sizes.into_iter().map(|size| size.0).collect()
}

fn dtype(name: &str) -> PyResult<DType> {
    let known = DType::ALL.iter().find(|dtype| dtype.long_name() == name || dtype.name() == name);
    known.copied().ok_or_else(|| PyValueError::new_err(format!("unknown dtype `{name}`")))
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

impl GraphBuilder {
    fn get(&mut self) -> PyResult<&mut Builder> {
        let finished = || PyValueError::new_err("the graph is finished; build another one");
        self.builder.as_mut().ok_or_else(finished)
    }

    /// Checks that nodes exist, so that ids of another graph are errors.
    fn known(&mut self, ids: &[u32]) -> PyResult<()> {
        let count = self.get()?.graph().nodes.len();
        match ids.iter().find(|id| **id as usize >= count) {
            Some(id) => Err(PyValueError::new_err(format!("the graph has no node {id}; it has {count}"))),
            None => Ok(()),
        }
    }

    fn build(
        &mut self,
        py: Python<'_>,
        inputs: &[u32],
        function: impl FnOnce(&mut Builder) -> Result<NodeId, GraphError>,
    ) -> PyResult<u32> {
        self.known(inputs)?;
        match function(self.get()?) {
            Ok(id) => Ok(id.0),
            Err(error) => Err(raise_graph(py, &error)),
        }
    }
}

#[pymethods]
impl GraphBuilder {
    #[new]
    fn new() -> GraphBuilder {
        GraphBuilder { builder: Some(Builder::new()) }
    }

    /// A size that is known when the graph runs.
    #[pyo3(signature = (name, min = 0, max = i64::MAX))]
    fn symbol(&mut self, name: &str, min: i64, max: i64) -> PyResult<SymbolicSize> {
        Ok(SymbolicSize(Dim::from(self.get()?.graph_mut().symbol(name, min, max))))
    }

    /// Names the source of the nodes that follow.
    #[pyo3(signature = (name, operator = "", source = ""))]
    fn at(&mut self, name: &str, operator: &str, source: &str) -> PyResult<()> {
        let text = |text: &str| text.to_owned();
        self.get()?.at(Origin { name: text(name), operator: text(operator), source: text(source) });
        Ok(())
    }

    /// An input of the graph.
    #[pyo3(signature = (name, shape, dtype, mutable = false))]
    fn input(&mut self, name: &str, shape: Vec<Size>, dtype: &str, mutable: bool) -> PyResult<u32> {
        let dtype = self::dtype(dtype)?;
        let builder = self.get()?;
        let shape = dims(shape);
        Ok(if mutable {
            builder.mutable_input(name, shape, dtype)
        } else {
            builder.input(name, shape, dtype)
        }
        .0)
    }

    /// A constant that shares the memory of a tensor, which must not be changed later. A tensor of a device is never read here.
    #[pyo3(signature = (name, tensor, on_device = false))]
    fn constant(
        &mut self,
        py: Python<'_>,
        name: &str,
        tensor: Bound<'_, PyAny>,
        on_device: bool,
    ) -> PyResult<u32> {
        let memory = PythonMemory::borrow(py, name, tensor, on_device)?;
        Ok(self.get()?.constant(name, memory).0)
    }

    /// A constant without dimensions.
    fn scalar(&mut self, py: Python<'_>, value: Bound<'_, PyAny>, dtype: &str) -> PyResult<u32> {
        let dtype = self::dtype(dtype)?;
        if dtype == DType::I64 {
            let value = value.extract::<i64>()?;
            return self.build(py, &[], |build| build.int_scalar(value));
        }
        let value = value.extract::<f64>()?;
        self.build(py, &[], |build| build.scalar(value, dtype))
    }

    /// Sizes as an int64 tensor with one dimension, or none if `scalar`.
    #[pyo3(signature = (sizes, scalar = false))]
    fn sizes(&mut self, sizes: Vec<Size>, scalar: bool) -> PyResult<u32> {
        Ok(self.get()?.sizes(dims(sizes), scalar).0)
    }

    /// A call of any operation: inputs by position, params by name.
    #[pyo3(signature = (operation, inputs, **params))]
    fn call(
        &mut self,
        py: Python<'_>,
        operation: &str,
        inputs: Vec<Option<u32>>,
        params: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let present: Vec<u32> = inputs.iter().copied().flatten().collect();
        let mut names: Vec<(String, Param)> = Vec::new();
        for (name, value) in params.into_iter().flatten() {
            names.push((name.extract()?, value.extract()?));
        }
        let params: Vec<(&str, ParamValue<'_>)> =
            names.iter().map(|(name, value)| (name.as_str(), value.get())).collect();
        let inputs: Vec<Option<NodeId>> = inputs.into_iter().map(|input| input.map(NodeId)).collect();
        self.build(py, &present, |build| build.call(operation, &inputs, &params))
    }

    /// Another output of a call.
    fn projection(&mut self, py: Python<'_>, call: u32, output: usize) -> PyResult<u32> {
        self.build(py, &[call], |build| build.projection(NodeId(call), output))
    }

    /// An input of a call after the call changed it in place.
    fn written(&mut self, py: Python<'_>, call: u32, input: usize) -> PyResult<u32> {
        self.build(py, &[call], |build| build.written(NodeId(call), input))
    }

    fn reshape(&mut self, py: Python<'_>, x: u32, shape: Vec<Size>) -> PyResult<u32> {
        self.build(py, &[x], |build| build.reshape_inferring(NodeId(x), dims(shape)))
    }

    fn permute(&mut self, py: Python<'_>, x: u32, order: Vec<usize>) -> PyResult<u32> {
        self.build(py, &[x], |build| build.permute(NodeId(x), &order))
    }

    fn expand(&mut self, py: Python<'_>, x: u32, shape: Vec<Size>) -> PyResult<u32> {
        self.build(py, &[x], |build| build.expand(NodeId(x), &dims(shape)))
    }

    /// Elements `start`, `start + step`, … of one dimension, `length` of them.
    fn slice(
        &mut self,
        py: Python<'_>,
        x: u32,
        axis: usize,
        start: Size,
        length: Size,
        step: i64,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.slice(NodeId(x), axis, start.0, length.0, step))
    }

    /// A slice as Python states it: negative bounds count from the end, bounds outside are clamped.
    #[pyo3(signature = (x, axis, start, end, step = 1))]
    fn python_slice(
        &mut self,
        py: Python<'_>,
        x: u32,
        axis: usize,
        start: Size,
        end: Option<Size>,
        step: i64,
    ) -> PyResult<u32> {
        let end = end.map(|size| size.0);
        self.build(py, &[x], |build| build.python_slice(NodeId(x), axis, start.0, end, step))
    }

    /// One element of a dimension, which disappears.
    fn select(&mut self, py: Python<'_>, x: u32, axis: usize, index: Size) -> PyResult<u32> {
        self.build(py, &[x], |build| build.select(NodeId(x), axis, index.0))
    }

    fn concat(&mut self, py: Python<'_>, parts: Vec<u32>, axis: usize) -> PyResult<u32> {
        self.build(py, &parts, |build| build.concat(&nodes(&parts), axis))
    }

    fn pad(&mut self, py: Python<'_>, x: u32, padding: Vec<(Size, Size)>, value: f64) -> PyResult<u32> {
        let padding: Vec<(Dim, Dim)> =
            padding.into_iter().map(|(before, after)| (before.0, after.0)).collect();
        self.build(py, &[x], |build| build.pad(NodeId(x), &padding, value))
    }

    fn full(&mut self, py: Python<'_>, shape: Vec<Size>, value: f64, dtype: &str) -> PyResult<u32> {
        let dtype = self::dtype(dtype)?;
        self.build(py, &[], |build| build.full(&dims(shape), value, dtype))
    }

    fn arange(&mut self, py: Python<'_>, start: Size, step: i64, count: Size, dtype: &str) -> PyResult<u32> {
        let dtype = self::dtype(dtype)?;
        self.build(py, &[], |build| build.arange(start.0, step, count.0, dtype))
    }

    fn unary(&mut self, py: Python<'_>, function: &str, x: u32) -> PyResult<u32> {
        self.build(py, &[x], |build| build.unary(function, NodeId(x)))
    }

    #[pyo3(signature = (function, x, constants = None))]
    fn activation(
        &mut self,
        py: Python<'_>,
        function: &str,
        x: u32,
        constants: Option<(f64, f64)>,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.activation(function, NodeId(x), constants))
    }

    fn binary(&mut self, py: Python<'_>, function: &str, a: u32, b: u32) -> PyResult<u32> {
        self.build(py, &[a, b], |build| build.binary(function, NodeId(a), NodeId(b)))
    }

    #[pyo3(signature = (function, x, value, reversed = false))]
    fn binary_scalar(
        &mut self,
        py: Python<'_>,
        function: &str,
        x: u32,
        value: f64,
        reversed: bool,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.binary_scalar(function, NodeId(x), value, reversed))
    }

    /// A function of an int tensor and a size.
    #[pyo3(signature = (function, x, value, reversed = false))]
    fn binary_size(
        &mut self,
        py: Python<'_>,
        function: &str,
        x: u32,
        value: Size,
        reversed: bool,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.binary_size(function, NodeId(x), value.0, reversed))
    }

    fn compare(&mut self, py: Python<'_>, function: &str, a: u32, b: u32) -> PyResult<u32> {
        self.build(py, &[a, b], |build| build.compare(function, NodeId(a), NodeId(b)))
    }

    fn compare_scalar(&mut self, py: Python<'_>, function: &str, x: u32, value: f64) -> PyResult<u32> {
        self.build(py, &[x], |build| build.compare_scalar(function, NodeId(x), value))
    }

    /// `a` where the condition holds, else `b`.
    fn select_where(&mut self, py: Python<'_>, condition: u32, a: u32, b: u32) -> PyResult<u32> {
        let all = [condition, a, b];
        self.build(py, &all, |build| build.select_where(NodeId(condition), NodeId(a), NodeId(b)))
    }

    fn cast(&mut self, py: Python<'_>, x: u32, dtype: &str) -> PyResult<u32> {
        let dtype = self::dtype(dtype)?;
        self.build(py, &[x], |build| build.cast(NodeId(x), dtype))
    }

    #[pyo3(signature = (function, x, axes, keep_dims = false))]
    fn reduce(
        &mut self,
        py: Python<'_>,
        function: &str,
        x: u32,
        axes: Vec<usize>,
        keep_dims: bool,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.reduce(function, NodeId(x), &axes, keep_dims))
    }

    #[pyo3(signature = (function, x, axis, keep_dims = false, last = false))]
    fn arg_reduce(
        &mut self,
        py: Python<'_>,
        function: &str,
        x: u32,
        axis: usize,
        keep_dims: bool,
        last: bool,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.arg_reduce(function, NodeId(x), axis, keep_dims, last))
    }

    #[pyo3(signature = (x, axis, log = false))]
    fn softmax(&mut self, py: Python<'_>, x: u32, axis: usize, log: bool) -> PyResult<u32> {
        self.build(py, &[x], |build| build.softmax(NodeId(x), axis, log))
    }

    #[pyo3(signature = (x, axis, exclusive = false, reverse = false))]
    fn cumsum(
        &mut self,
        py: Python<'_>,
        x: u32,
        axis: usize,
        exclusive: bool,
        reverse: bool,
    ) -> PyResult<u32> {
        self.build(py, &[x], |build| build.cumsum(NodeId(x), axis, exclusive, reverse))
    }

    fn matmul(&mut self, py: Python<'_>, a: u32, b: u32) -> PyResult<u32> {
        self.build(py, &[a, b], |build| build.matmul(NodeId(a), NodeId(b)))
    }

    #[pyo3(signature = (x, weight, bias = None))]
    fn linear(&mut self, py: Python<'_>, x: u32, weight: u32, bias: Option<u32>) -> PyResult<u32> {
        let all: Vec<u32> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
        self.build(py, &all, |build| build.linear(NodeId(x), NodeId(weight), bias.map(NodeId)))
    }

    /// Slices of one dimension at `indices`.
    fn take(&mut self, py: Python<'_>, x: u32, axis: usize, indices: u32) -> PyResult<u32> {
        self.build(py, &[x, indices], |build| build.take(NodeId(x), axis, NodeId(indices)))
    }

    /// Positions in flattened dimensions, from one tensor of indices per dimension; indices outside are refused at run time.
    fn linear_index(&mut self, py: Python<'_>, indices: Vec<u32>, sizes: Vec<Size>) -> PyResult<u32> {
        let sizes = dims(sizes);
        self.build(py, &indices, |build| build.linear_index(&nodes(&indices), &sizes))
    }

    /// One element per index along a dimension (torch's `gather`).
    fn take_along(&mut self, py: Python<'_>, x: u32, axis: usize, indices: u32) -> PyResult<u32> {
        self.build(py, &[x, indices], |build| build.take_along(NodeId(x), axis, NodeId(indices)))
    }

    #[pyo3(signature = (x, axis, k, largest = true, sorted = true))]
    fn topk(
        &mut self,
        py: Python<'_>,
        x: u32,
        axis: usize,
        k: Size,
        largest: bool,
        sorted: bool,
    ) -> PyResult<(u32, u32)> {
        self.known(&[x])?;
        match self.get()?.topk(NodeId(x), axis, k.0, largest, sorted) {
            Ok((values, indices)) => Ok((values.0, indices.0)),
            Err(error) => Err(raise_graph(py, &error)),
        }
    }

    /// The shape of a node.
    fn shape<'py>(&mut self, py: Python<'py>, x: u32) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.known(&[x])?;
        self.get()?.shape(NodeId(x)).iter().map(|dim| to_python(py, dim)).collect()
    }

    /// The dtype of a node.
    fn dtype(&mut self, x: u32) -> PyResult<&'static str> {
        self.known(&[x])?;
        Ok(self.get()?.dtype(NodeId(x)).long_name())
    }

    /// An output of the graph.
    fn output(&mut self, name: &str, node: u32) -> PyResult<()> {
        self.known(&[node])?;
        self.get()?.output(name, NodeId(node));
        Ok(())
    }

    /// Compiles the graph; the builder cannot be used any more.
    #[pyo3(signature = (
        optimize = true, disabled_passes = Vec::new(), validation = "normal", nan = "allow", on_change = "replan", quantization = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
    fn finish(
        &mut self,
        py: Python<'_>,
        optimize: bool,
        disabled_passes: Vec<String>,
        validation: &str,
        nan: &str,
        on_change: &str,
        quantization: Option<Quantization>,
    ) -> PyResult<CompiledGraph> {
        let options = options(optimize, disabled_passes, validation, nan, on_change, quantization)?;
        self.get()?;
        let Some(builder) = self.builder.take() else { return Err(PyValueError::new_err("no graph")) };
        let graph = builder.finish().map_err(|error| raise_graph(py, &error))?;
        CompiledGraph::new(py, graph, &options)
    }
}

/// A param as Python passes it.
enum Param {
    Size(Dim),
    Float(f64),
    Bool(bool),
    Text(String),
}

impl Param {
    fn get(&self) -> ParamValue<'_> {
        match self {
            Param::Size(dim) => ParamValue::Int(dim.clone()),
            Param::Float(value) => ParamValue::Float(*value),
            Param::Bool(value) => ParamValue::Bool(*value),
            Param::Text(text) => ParamValue::Case(text),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Param {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Param> {
        // A bool is an int in Python.
        if let Ok(value) = object.cast::<PyBool>() {
            return Ok(Param::Bool(value.is_true()));
        }
        if object.is_instance_of::<PyFloat>() {
            return Ok(Param::Float(object.extract()?));
        }
        if object.is_instance_of::<PyString>() {
            return Ok(Param::Text(object.extract()?));
        }
        match object.extract::<Size>() {
            Ok(size) => Ok(Param::Size(size.0)),
            Err(_) => Err(PyTypeError::new_err("a param must be an int, a size, a float, a bool or a str")),
        }
    }
}
