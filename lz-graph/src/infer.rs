//! Shapes and dtypes of a call's outputs from a schema, with symbolic sizes.
//!
//! The counterpart of `lz_core::check` before sizes are known: what can be decided is decided, two sizes that may be equal become a
//! [`SizeCheck`]. Before a call runs, `lz_core::check` validates it with the real sizes.

use lz_core::expr::Value;
use lz_core::{DType, Reason, ReasonCode};
use lz_schema::expr::ast::Arithmetic;
use lz_schema::expr::{Function, Node, NodeKind, Program, Typed};
use lz_schema::model::{Cases, DTypeRef, Dim as SchemaDim, Operation, Slot};

use crate::dim::Dim;
use crate::graph::{Param, SizeCheck};

/// Sizes and element type of a tensor.
pub type Type = (Vec<Dim>, DType);

/// The outputs of a call: `None` where it does not produce one. `params` has one entry per param of the schema.
pub fn outputs(
    operation: &Operation,
    inputs: &[Option<Type>],
    params: &[Option<Param>],
    checks: &mut Vec<SizeCheck>,
) -> Result<Vec<Option<Type>>, Vec<Reason>> {
    let mut inference = Inference {
        operation,
        inputs,
        params,
        axes: operation.axes.iter().map(|axis| axis.value.map(Dim::from)).collect(),
        packs: vec![None; operation.axes.len()],
        types: vec![None; operation.types.len()],
        checks,
        problems: Vec::new(),
    };
    inference.check_given();
    inference.bind_dtypes();
    inference.bind_shapes();
    if !inference.problems.is_empty() {
        return Err(inference.problems);
    }
    let types = operation.outputs.iter().map(|output| {
        if let Some(when) = &output.when {
            match inference.constant(when) {
                Some(Value::Bool(true)) => {}
                Some(_) => return Ok(None),
                None => return Err(inference.unknown(&output.name, &when.text)),
            }
        }
        let dtype = inference.pick(&output.dtype).and_then(|dtype| inference.dtype(*dtype));
        let dims = inference.pick(&output.shape);
        let (Some(dtype), Some(dims)) = (dtype, dims) else {
            return Err(inference.unknown(&output.name, "its dtype or shape"));
        };
        let mut shape = Vec::new();
        for dim in dims {
            inference.push_sizes(dim, &mut shape).map_err(|text| inference.unknown(&output.name, &text))?;
        }
        Ok(Some((shape, dtype)))
    });
    types.collect::<Result<_, Reason>>().map_err(|reason| vec![reason])
}

struct Inference<'a> {
    operation: &'a Operation,
    inputs: &'a [Option<Type>],
    params: &'a [Option<Param>],
    axes: Vec<Option<Dim>>,
    packs: Vec<Option<Vec<Dim>>>,
    types: Vec<Option<DType>>,
    checks: &'a mut Vec<SizeCheck>,
    problems: Vec<Reason>,
}

impl Inference<'_> {
    fn check_given(&mut self) {
        if self.inputs.len() != self.operation.inputs.len()
            || self.params.len() != self.operation.params.len()
        {
            let (inputs, params) = (self.operation.inputs.len(), self.operation.params.len());
            self.problems.push(
                Reason::new(ReasonCode::MissingArgument)
                    .required(format!("{inputs} inputs and {params} params"))
                    .found(format!("{} and {}", self.inputs.len(), self.params.len())),
            );
            return;
        }
        for (input, about) in self.inputs.iter().zip(&self.operation.inputs) {
            if input.is_none() && about.optional.is_none() {
                self.problems.push(Reason::new(ReasonCode::MissingArgument).argument(&about.name));
            }
        }
        for (param, about) in self.params.iter().zip(&self.operation.params) {
            if param.is_none() && about.default.is_none() {
                self.problems.push(Reason::new(ReasonCode::MissingArgument).argument(&about.name));
            }
        }
    }

    fn bind_dtypes(&mut self) {
        for (index, about) in self.operation.inputs.iter().enumerate() {
            let Some(Some((_, dtype))) = self.inputs.get(index) else { continue };
            let Some(reference) = self.pick(&about.dtype).copied() else { continue };
            let allowed = match reference {
                DTypeRef::Fixed(fixed) => fixed == *dtype,
                DTypeRef::Variable(variable) => {
                    let known = *self.types[variable].get_or_insert(*dtype);
                    known == *dtype && self.operation.types[variable].dtypes.contains(dtype)
                }
            };
            if !allowed {
                let required = match reference {
                    DTypeRef::Fixed(fixed) => fixed.long_name().to_owned(),
                    DTypeRef::Variable(variable) => {
                        let about = &self.operation.types[variable];
                        let names: Vec<&str> = about.dtypes.iter().map(|dtype| dtype.long_name()).collect();
                        format!("{} (one of {})", about.name, names.join(", "))
                    }
                };
                self.problems.push(
                    Reason::new(ReasonCode::DtypeMismatch)
                        .argument(&about.name)
                        .required(required)
                        .found(dtype.long_name()),
                );
            }
        }
    }

    fn bind_shapes(&mut self) {
        for (index, about) in self.operation.inputs.iter().enumerate() {
            let Some(Some((shape, _))) = self.inputs.get(index) else { continue };
            let Some(dims) = self.pick(&about.shape).cloned() else { continue };
            if about.broadcast {
                continue;
            }
            let pack = dims.iter().position(|dim| matches!(dim, SchemaDim::Pack(_)));
            let plain = dims.len() - usize::from(pack.is_some());
            if shape.len() < plain || (pack.is_none() && shape.len() != plain) {
                self.problems.push(
                    Reason::new(ReasonCode::RankMismatch)
                        .argument(&about.name)
                        .required(format!("{plain} dimensions"))
                        .found(format!("{:?}", shape)),
                );
                continue;
            }
            let packed = shape.len() - plain;
            let mut next = shape.iter();
            for dim in &dims {
                match dim {
                    SchemaDim::Pack(axis) => {
                        let sizes: Vec<Dim> = next.by_ref().take(packed).cloned().collect();
                        self.bind_pack(*axis, &sizes, &about.name);
                    }
                    SchemaDim::Axis(axis) => {
                        if let Some(size) = next.next() {
                            self.bind_axis(*axis, size.clone(), &about.name);
                        }
                    }
                    SchemaDim::Offset(axis, offset) => {
                        if let Some(size) = next.next() {
                            self.bind_axis(*axis, size.minus(&Dim::from(*offset)), &about.name);
                        }
                    }
                    SchemaDim::Fixed(fixed) => {
                        if let Some(size) = next.next() {
                            self.require_equal(size, &Dim::from(*fixed), &about.name, "a fixed size");
                        }
                    }
                    SchemaDim::Expr(_) => {
                        next.next();
                    }
                }
            }
        }
    }

    fn bind_axis(&mut self, axis: usize, size: Dim, argument: &str) {
        match self.axes[axis].clone() {
            Some(known) => self.require_equal(&size, &known, argument, &self.operation.axes[axis].name),
            None => self.axes[axis] = Some(size),
        }
    }

    fn bind_pack(&mut self, axis: usize, sizes: &[Dim], argument: &str) {
        let name = &self.operation.axes[axis].name;
        match self.packs[axis].clone() {
            Some(known) if known.len() == sizes.len() => {
                for (size, known) in sizes.iter().zip(&known) {
                    self.require_equal(size, known, argument, name);
                }
            }
            Some(known) => self.problems.push(
                Reason::new(ReasonCode::RankMismatch)
                    .argument(argument)
                    .axis(name)
                    .required(format!("{known:?}"))
                    .found(format!("{sizes:?}")),
            ),
            None => {
                self.axes[axis] = Some(Dim::product(sizes));
                self.packs[axis] = Some(sizes.to_vec());
            }
        }
    }

    /// Two sizes that must agree: known now, or compared at run time.
    fn require_equal(&mut self, size: &Dim, other: &Dim, argument: &str, what: &str) {
        let difference = size.minus(other);
        match difference.constant() {
            Some(0) => {}
            Some(_) => self.problems.push(
                Reason::new(ReasonCode::AxisMismatch)
                    .argument(argument)
                    .axis(what)
                    .required(other.to_string())
                    .found(size.to_string()),
            ),
            None => self.checks.push(SizeCheck {
                left: size.clone(),
                right: other.clone(),
                because: format!("{what} of `{argument}` in {}", self.operation.name),
            }),
        }
    }

    fn pick<'t, T>(&self, cases: &'t Cases<T>) -> Option<&'t T> {
        match cases {
            Cases::One(only) => Some(only),
            Cases::By(param, alternatives) => match self.param(*param)? {
                Value::Enum(case) => alternatives.get(case as usize),
                _ => None,
            },
        }
    }

    fn dtype(&self, reference: DTypeRef) -> Option<DType> {
        match reference {
            DTypeRef::Fixed(dtype) => Some(dtype),
            DTypeRef::Variable(variable) => self.types[variable],
        }
    }

    /// The value of a param that does not depend on symbols.
    fn param(&self, index: usize) -> Option<Value> {
        match self.params.get(index)? {
            Some(Param::Int(dim)) => dim.constant().map(Value::Int),
            Some(Param::Float(value)) => Some(Value::Float(*value)),
            Some(Param::Bool(value)) => Some(Value::Bool(*value)),
            Some(Param::Enum(case)) => Some(Value::Enum(*case)),
            None => self.constant(self.operation.params[index].default.as_ref()?),
        }
    }

    /// The value of an expression whose variables are constant.
    fn constant(&self, expression: &Typed) -> Option<Value> {
        let slots = self.operation.slots();
        let mut values = vec![Value::Int(0); slots.len()];
        for variable in expression.variables() {
            let index = usize::from(variable.index);
            values[index] = match slots.get(index)? {
                Slot::Axis(axis) => Value::Int(self.axes[*axis].as_ref()?.constant()?),
                Slot::Param(param) => self.param(*param)?,
                Slot::Given(input) => Value::Bool(self.inputs.get(*input)?.is_some()),
            };
        }
        Program::compile(expression).eval(&values).ok()
    }

    fn push_sizes(&self, dim: &SchemaDim, shape: &mut Vec<Dim>) -> Result<(), String> {
        let axis =
            |axis: usize| self.axes[axis].clone().ok_or_else(|| self.operation.axes[axis].name.clone());
        match dim {
            SchemaDim::Axis(index) => shape.push(axis(*index)?),
            SchemaDim::Offset(index, offset) => shape.push(axis(*index)?.plus(&Dim::from(*offset))),
            SchemaDim::Fixed(size) => shape.push(Dim::from(*size)),
            SchemaDim::Pack(index) => {
                let name = || self.operation.axes[*index].name.clone();
                shape.extend(self.packs[*index].clone().ok_or_else(name)?);
            }
            SchemaDim::Expr(expression) => {
                shape.push(self.size(&expression.root).ok_or_else(|| expression.text.clone())?)
            }
        }
        Ok(())
    }

    /// An int expression as a symbolic size.
    fn size(&self, node: &Node) -> Option<Dim> {
        match &node.kind {
            NodeKind::Constant(Value::Int(value)) => Some(Dim::from(*value)),
            NodeKind::Variable { index, .. } => match self.operation.slots().get(usize::from(*index))? {
                Slot::Axis(axis) => self.axes[*axis].clone(),
                Slot::Param(param) => match self.params.get(*param)? {
                    Some(Param::Int(dim)) => Some(dim.clone()),
                    Some(_) => None,
                    None => self.size(&self.operation.params[*param].default.as_ref()?.root),
                },
                Slot::Given(_) => None,
            },
            NodeKind::Negate(operand) => Some(self.size(operand)?.times(&Dim::from(-1))),
            NodeKind::Arithmetic { operator, left, right } => {
                let (left, right) = (self.size(left)?, self.size(right)?);
                match operator {
                    Arithmetic::Add => Some(left.plus(&right)),
                    Arithmetic::Subtract => Some(left.minus(&right)),
                    Arithmetic::Multiply => Some(left.times(&right)),
                    Arithmetic::FloorDivide => Some(left.floor_div(&right)),
                    Arithmetic::Modulo => Some(left.modulo(&right)),
                    Arithmetic::Divide => None,
                }
            }
            NodeKind::Conditional { condition, then, otherwise } => match self.truth(condition)? {
                true => self.size(then),
                false => self.size(otherwise),
            },
            NodeKind::Call { function, arguments } => {
                let mut sizes = arguments.iter().map(|argument| self.size(argument));
                let first = sizes.next()??;
                match function {
                    Function::Min => sizes.try_fold(first, |least, size| Some(least.smaller(&size?))),
                    Function::Max => sizes.try_fold(first, |most, size| Some(most.larger(&size?))),
                    Function::CeilDiv => {
                        let divisor = sizes.next()??;
                        Some(first.plus(&divisor).minus(&Dim::from(1)).floor_div(&divisor))
                    }
                    Function::Abs => first.constant().map(|value| Dim::from(value.abs())),
                    Function::Sqrt | Function::Exp | Function::Log | Function::Tanh => None,
                }
            }
            _ => None,
        }
    }

    /// A condition whose variables are constant.
    fn truth(&self, node: &Node) -> Option<bool> {
        let expression = Typed { root: node.clone(), text: String::new(), ty: node.ty.clone() };
        match self.constant(&expression)? {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    fn unknown(&self, output: &str, what: &str) -> Reason {
        Reason::new(ReasonCode::ExpressionFailed)
            .message(format!("output {output} of {}: `{what}` cannot be computed", self.operation.name))
    }
}
