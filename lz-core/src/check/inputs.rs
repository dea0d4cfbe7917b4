//! Inputs: kinds, dtypes, shapes, memory and the values of index tensors.

use lz_schema::expr::Value;
use lz_schema::model::{Contiguous, DTypeRef, DeviceRule, Dim, Input, Kind, ValueRule};

use super::device_values::on_host;
use super::{Checker, Origin, values};
use crate::args::Arg;
use crate::reason::{Reason, ReasonCode};
use crate::tensor::{Device, Dims, TensorView, may_overlap};

impl<'c> Checker<'c, '_> {
    /// Inputs in binding order: required ones first.
    fn binding_order(&self) -> impl Iterator<Item = (usize, &'c Input)> + use<'c> {
        let inputs = &self.operation.inputs;
        let of = move |optional: bool| {
            inputs.iter().enumerate().filter(move |(_, input)| input.optional.is_some() == optional)
        };
        of(false).chain(of(true))
    }

    pub(super) fn check_kinds(&mut self) {
        for (input, arg) in self.operation.inputs.iter().zip(self.args) {
            let (fits, required) = match (input.kind, arg) {
                (_, Arg::Absent) => {
                    if input.optional.is_none() {
                        self.problems.push(
                            Reason::new(ReasonCode::MissingArgument)
                                .argument(&input.name)
                                .message(format!("{} must be given", input.name)),
                        );
                    }
                    continue;
                }
                (Kind::Tensor, Arg::TensorMut(_)) => (true, ""),
                (Kind::Tensor, Arg::Tensor(_)) => {
                    (!input.read_write, "a writable tensor, because it is changed in place")
                }
                (Kind::Tensor, _) => (false, "a tensor"),
                (Kind::Text, Arg::Text(_)) | (Kind::Tokenizer, Arg::Handle(_)) => (true, ""),
                (Kind::Text, _) => (false, "a batch of strings"),
                (Kind::Tokenizer, _) => (false, "a tokenizer"),
            };
            if !fits {
                self.problems.push(
                    Reason::new(ReasonCode::ArgumentKind)
                        .argument(&input.name)
                        .required(required)
                        .found(arg.kind_name()),
                );
            } else if let Some(view) = arg.tensor()
                && let Some(reason) = memory_problem(&view)
            {
                self.problems.push(reason.argument(&input.name));
            }
        }
    }

    pub(super) fn check_dtypes(&mut self) {
        for (index, input) in self.binding_order() {
            let Some(view) = self.args[index].tensor() else { continue };
            let Some(reference) = self.bound.pick(self.operation, &input.dtype).copied() else { continue };
            let found = view.dtype();
            match reference {
                DTypeRef::Fixed(dtype) if dtype == found => {}
                DTypeRef::Fixed(dtype) => self.problems.push(
                    Reason::new(ReasonCode::DtypeUnsupported)
                        .argument(&input.name)
                        .required(dtype.long_name())
                        .found(found.long_name())
                        .message(format!(
                            "{} is {}, but must be {}",
                            input.name,
                            found.long_name(),
                            dtype.long_name()
                        )),
                ),
                DTypeRef::Variable(variable) => self.check_type_variable(index, variable, found),
            }
        }
    }

    fn check_type_variable(&mut self, index: usize, variable: usize, found: lz_schema::DType) {
        let input = &self.operation.inputs[index];
        let definition = &self.operation.types[variable];
        match (self.bound.types[variable], self.type_origin[variable]) {
            (Some(dtype), Some(origin)) if dtype != found => {
                let first = &self.operation.inputs[origin].name;
                self.problems.push(
                    Reason::new(ReasonCode::DtypeMismatch)
                        .argument(&input.name)
                        .required(dtype.long_name())
                        .found(found.long_name())
                        .message(format!(
                            "{} is {}, but {first} bound {} to {}; cast one of them",
                            input.name,
                            found.long_name(),
                            definition.name,
                            dtype.long_name()
                        )),
                );
            }
            (Some(_), _) => {}
            (None, _) if definition.dtypes.contains(&found) => {
                self.bound.types[variable] = Some(found);
                self.type_origin[variable] = Some(index);
            }
            (None, _) => {
                let allowed: Vec<&str> = definition.dtypes.iter().map(|dtype| dtype.long_name()).collect();
                self.problems.push(
                    Reason::new(ReasonCode::DtypeUnsupported)
                        .argument(&input.name)
                        .required(allowed.join(" or "))
                        .found(found.long_name())
                        .message(format!(
                            "{} is {}, but {} may only be {}",
                            input.name,
                            found.long_name(),
                            definition.name,
                            allowed.join(" or ")
                        )),
                );
            }
        }
    }

    pub(super) fn bind_shapes(&mut self) {
        for (index, input) in self.binding_order() {
            let Some(dims) = self.bound.pick(self.operation, &input.shape) else { continue };
            match &self.args[index] {
                // A batch of strings where a tensor is required binds nothing: that it is no tensor was reported.
                Arg::Text(texts) if input.kind == Kind::Text => {
                    let count = Dims::new(&[texts.len() as i64]).unwrap_or(Dims::empty());
                    self.bind_shape(index, dims, &count);
                }
                arg => {
                    let Some(view) = arg.tensor() else { continue };
                    let shape = view.layout().shape;
                    if input.broadcast {
                        self.check_broadcast_rank(input, dims, &shape);
                    } else {
                        self.bind_shape(index, dims, &shape);
                    }
                }
            }
        }
    }

    fn check_broadcast_rank(&mut self, input: &Input, dims: &[Dim], shape: &Dims) {
        if shape.len() > dims.len() {
            self.problems.push(rank_problem(input, format!("at most {} dimensions", dims.len()), shape));
        }
    }

    fn bind_shape(&mut self, index: usize, dims: &[Dim], shape: &Dims) {
        let input = &self.operation.inputs[index];
        let packed = dims.iter().any(|dim| matches!(dim, Dim::Pack(_)));
        let plain = dims.len() - usize::from(packed);
        if (packed && shape.len() < plain) || (!packed && shape.len() != plain) {
            let required = format!(
                "{}{plain} dimensions {}",
                if packed { "at least " } else { "" },
                self.shape_text(dims)
            );
            self.problems.push(rank_problem(input, required, shape));
            return;
        }
        let mut dimension = 0;
        for dim in dims {
            match dim {
                Dim::Axis(axis) => self.bind_axis(index, *axis, dimension, shape[dimension]),
                Dim::Offset(axis, offset) => match shape[dimension].checked_sub(*offset) {
                    Some(size) if size >= 0 => self.bind_axis(index, *axis, dimension, size),
                    _ => self.problems.push(
                        Reason::new(ReasonCode::ShapeMismatch)
                            .argument(&input.name)
                            .axis(&self.operation.axes[*axis].name)
                            .required(format!("at least {offset}"))
                            .found(shape[dimension].to_string()),
                    ),
                },
                Dim::Fixed(size) if shape[dimension] != *size => self.problems.push(
                    Reason::new(ReasonCode::ShapeMismatch)
                        .argument(&input.name)
                        .required(size.to_string())
                        .found(shape[dimension].to_string())
                        .message(format!(
                            "{}.shape[{dimension}] is {}, but must be {size}",
                            input.name, shape[dimension]
                        )),
                ),
                Dim::Pack(axis) => {
                    let count = shape.len() - plain;
                    self.bind_pack(index, *axis, &shape[dimension..dimension + count]);
                    dimension += count;
                    continue;
                }
                Dim::Fixed(_) | Dim::Expr(_) => {}
            }
            dimension += 1;
        }
    }

    fn bind_axis(&mut self, index: usize, axis: usize, dimension: usize, size: i64) {
        match self.bound.axes[axis] {
            None => {
                self.bound.axes[axis] = Some(size);
                self.axis_origin[axis] = Some(Origin { input: index, dimension });
            }
            Some(bound) if bound == size => {}
            Some(bound) => {
                let name = &self.operation.axes[axis].name;
                let input = &self.operation.inputs[index].name;
                let origin = match self.axis_origin[axis] {
                    Some(origin) => {
                        let first = &self.operation.inputs[origin.input].name;
                        format!("{first}.shape[{}] bound {name} to {bound}", origin.dimension)
                    }
                    None => format!("the schema fixes {name} to {bound}"),
                };
                self.problems.push(
                    Reason::new(ReasonCode::AxisMismatch)
                        .argument(input)
                        .axis(name)
                        .required(bound.to_string())
                        .found(size.to_string())
                        .message(format!("{input}.shape[{dimension}] ({name}) is {size}, but {origin}")),
                );
            }
        }
    }

    fn bind_pack(&mut self, index: usize, axis: usize, sizes: &[i64]) {
        let Some(dims) = Dims::new(sizes) else { return };
        let name = &self.operation.axes[axis].name;
        let input = &self.operation.inputs[index].name;
        match &self.bound.packs[axis] {
            None => {
                // An invalid shape was already reported; its product is not used.
                self.bound.axes[axis] = Some(dims.product().unwrap_or(0));
                self.bound.packs[axis] = Some(dims);
                self.axis_origin[axis] = Some(Origin { input: index, dimension: 0 });
            }
            Some(bound) if **bound == *dims => {}
            Some(bound) => {
                let first = self.axis_origin[axis]
                    .map_or("another input", |origin| self.operation.inputs[origin.input].name.as_str());
                self.problems.push(
                    Reason::new(ReasonCode::AxisMismatch)
                        .argument(input)
                        .axis(name)
                        .required(format!("{bound:?}"))
                        .found(format!("{dims:?}"))
                        .message(format!(
                            "{input} has {dims:?} for {name}, but {first} bound {name} to {bound:?}"
                        )),
                );
            }
        }
    }

    /// Dimensions that need all axes: expressions and broadcast inputs.
    pub(super) fn check_computed_dimensions(&mut self) {
        for (index, input) in self.operation.inputs.iter().enumerate() {
            let (Some(view), Some(dims)) =
                (self.args[index].tensor(), self.bound.pick(self.operation, &input.shape))
            else {
                continue;
            };
            let sizes = match self.bound.sizes(dims) {
                Ok(sizes) => sizes,
                Err(reason) => {
                    self.problems.push(reason.argument(&input.name));
                    continue;
                }
            };
            let shape = view.shape();
            if input.broadcast {
                let missing = sizes.len().saturating_sub(shape.len());
                for (dimension, (&size, &full)) in shape.iter().zip(&sizes[missing..]).enumerate() {
                    if size != full && size != 1 {
                        self.problems.push(
                            Reason::new(ReasonCode::BroadcastMismatch)
                                .argument(&input.name)
                                .required(format!("{full} or 1"))
                                .found(size.to_string())
                                .message(format!(
                                    "{}.shape[{dimension}] is {size}, but must be {full} or 1",
                                    input.name
                                )),
                        );
                    }
                }
            } else if sizes.len() == shape.len() {
                let packed = sizes.len() + 1 - dims.len().min(sizes.len() + 1);
                for (dimension, dim) in dims.iter().enumerate() {
                    let Dim::Expr(expression) = dim else { continue };
                    let follows_pack = dims.iter().take(dimension).any(|dim| matches!(dim, Dim::Pack(_)));
                    let position =
                        if follows_pack { (dimension + packed).saturating_sub(1) } else { dimension };
                    if let (Some(&size), Some(&required)) = (shape.get(position), sizes.get(position))
                        && size != required
                    {
                        self.problems.push(
                            Reason::new(ReasonCode::ShapeMismatch)
                                .argument(&input.name)
                                .required(format!("{} = {required}", expression.text))
                                .found(size.to_string())
                                .message(format!(
                                    "{}.shape[{position}] is {size}, but must be {} = {required}",
                                    input.name, expression.text
                                )),
                        );
                    }
                }
            }
        }
    }

    /// Strides, devices and overlap of inputs that are written in place.
    pub(super) fn check_memory(&mut self) {
        let mut shared: Option<(usize, Device)> = None;
        for (index, input) in self.operation.inputs.iter().enumerate() {
            let Some(view) = self.args[index].tensor() else { continue };
            match input.contiguous {
                Contiguous::All if !view.layout().is_contiguous() => self.problems.push(
                    Reason::new(ReasonCode::NotContiguous)
                        .argument(&input.name)
                        .required("a dense row-major tensor")
                        .found(format!("strides {:?}", view.strides())),
                ),
                Contiguous::Last if !view.layout().last_is_dense() => self.problems.push(
                    Reason::new(ReasonCode::StrideLastDim)
                        .argument(&input.name)
                        .required("stride 1 in the last dimension")
                        .found(format!("strides {:?}", view.strides())),
                ),
                _ => {}
            }
            let device = view.device();
            match input.device {
                DeviceRule::Any => {}
                DeviceRule::Host if device.is_host() => {}
                DeviceRule::Host => self.problems.push(
                    Reason::new(ReasonCode::DeviceMismatch)
                        .argument(&input.name)
                        .required("host memory")
                        .found(device.to_string()),
                ),
                DeviceRule::Same => match shared {
                    None => shared = Some((index, device)),
                    Some((_, first)) if first == device => {}
                    Some((origin, first)) => {
                        let origin = &self.operation.inputs[origin].name;
                        self.problems.push(
                            Reason::new(ReasonCode::DeviceMismatch)
                                .argument(&input.name)
                                .required(first.to_string())
                                .found(device.to_string())
                                .message(format!(
                                    "{} is on {device}, but {origin} is on {first}",
                                    input.name
                                )),
                        );
                    }
                },
            }
        }
        self.check_read_write_overlap();
    }

    fn check_read_write_overlap(&mut self) {
        for (index, input) in self.operation.inputs.iter().enumerate().filter(|(_, input)| input.read_write) {
            let Some(written) = self.args[index].tensor() else { continue };
            if written.layout().overlaps_itself() {
                self.problems.push(self_overlap(&input.name, &written));
            }
            for (other, definition) in self.operation.inputs.iter().enumerate() {
                // Itself, or a pair that was checked before.
                if definition.read_write && other <= index {
                    continue;
                }
                if let Some(read) = self.args[other].tensor()
                    && may_overlap(&written, &read)
                {
                    self.problems.push(overlap(&input.name, &definition.name));
                }
            }
        }
    }

    /// Checks that read data. Device memory is read only for `debug`.
    pub(super) fn check_values(&mut self) {
        let operation = self.operation;
        for (index, input) in operation.inputs.iter().enumerate() {
            let (Some(rule), Some(view)) = (&input.values, self.args[index].tensor()) else { continue };
            if !values::is_checked(&view) {
                continue;
            }
            let what = format!("the values of {}", input.name);
            let problem = on_host(&view, |view| self.value_problem(rule, view, &what)).flatten();
            if let Some(reason) = problem {
                let sentence = format!("{}{}", input.name, reason.sentence());
                self.problems.push(reason.argument(&input.name).message(sentence));
            }
        }
    }

    fn value_problem(&mut self, rule: &ValueRule, view: &TensorView<'_>, what: &str) -> Option<Reason> {
        let mut int = |expression| match self.evaluate(expression, what) {
            Some(Value::Int(value)) => Some(value),
            _ => None,
        };
        match rule {
            ValueRule::IndexInto(end) => values::index_problem(view, int(end)?),
            ValueRule::Between(low, high) => match (self.evaluate(low, what)?, self.evaluate(high, what)?) {
                (Value::Int(low), Value::Int(high)) => values::range_problem(view, low, high),
                (Value::Float(low), Value::Float(high)) => values::range_problem(view, low, high),
                _ => None,
            },
            ValueRule::IndptrOf(total) => values::indptr_problem(view, int(total)?),
            ValueRule::IndptrWithin(total) => values::indptr_within_problem(view, int(total)?),
            ValueRule::PartitionOf(total) => values::partition_problem(view, int(total)?),
            ValueRule::ScoreMod(parameters) => values::score_mod_problem(view, int(parameters)?),
        }
    }

    fn shape_text(&self, dims: &[Dim]) -> String {
        let names: Vec<String> = dims
            .iter()
            .map(|dim| match dim {
                Dim::Axis(axis) => self.operation.axes[*axis].name.clone(),
                Dim::Pack(axis) => format!("{}...", self.operation.axes[*axis].name),
                Dim::Fixed(size) => size.to_string(),
                Dim::Offset(axis, offset) => format!("{} + {offset}", self.operation.axes[*axis].name),
                Dim::Expr(expression) => expression.text.clone(),
            })
            .collect();
        format!("[{}]", names.join(", "))
    }
}

fn rank_problem(input: &Input, required: String, shape: &Dims) -> Reason {
    Reason::new(ReasonCode::RankMismatch)
        .argument(&input.name)
        .message(format!("{} has {} dimensions {shape:?}, but needs {required}", input.name, shape.len()))
        .required(required)
        .found(format!("{} dimensions {shape:?}", shape.len()))
}

/// The problem of a view by itself.
pub(super) fn memory_problem(view: &TensorView<'_>) -> Option<Reason> {
    if view.is_sound() {
        return None;
    }
    if let Some(reason) = view.layout().problem() {
        return Some(reason);
    }
    let size = view.dtype().size();
    if !view.address().is_multiple_of(size) {
        return Some(
            Reason::new(ReasonCode::PointerMisaligned)
                .required(format!("an address that is a multiple of {size}"))
                .found(format!("{:#x}", view.address())),
        );
    }
    Some(
        Reason::new(ReasonCode::NullData)
            .required("memory behind a tensor that has elements")
            .found("a null pointer"),
    )
}

pub(super) fn overlap(written: &str, other: &str) -> Reason {
    Reason::new(ReasonCode::OutputOverlap)
        .argument(written)
        .message(format!("{written} shares memory with {other}; give it memory of its own"))
}

pub(super) fn self_overlap(name: &str, view: &TensorView<'_>) -> Reason {
    Reason::new(ReasonCode::OutputOverlap).argument(name).message(format!(
        "{name} is written, but its strides {:?} let several elements of {:?} share memory",
        view.strides(),
        view.shape()
    ))
}
