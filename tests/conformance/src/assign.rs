//! Assigns sizes, dtypes, params and presence for one call, such that all constraints of the schema hold, or
//! all but one.
//!
//! Constraints are met by repair: a variable of a violated constraint is redrawn, one at a time. If a
//! constraint equates a size with an expression, the size is computed.

use lz_core::DType;
use lz_core::expr::{Program, Value};
use lz_schema::expr::ast::Comparison;
use lz_schema::expr::{Node, NodeKind, Typed};
use lz_schema::model::{Cases, DTypeRef, Dim, Fuzz, Input, Kind, Operation, ParamType, Slot};

use crate::random::Random;

/// Maximum number of elements of a drawn input.
const MAX_ELEMENTS: i64 = 20_000;
/// Maximum number of repairs before a draw is abandoned.
const REPAIRS: usize = 200;

/// Everything about a call except its memory.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Per axis; a pack is its product.
    pub axes: Vec<i64>,
    /// Per axis; the sizes of a pack.
    pub packs: Vec<Vec<i64>>,
    /// Per param; `None` if omitted.
    pub params: Vec<Option<Value>>,
    /// Per input.
    pub given: Vec<bool>,
    /// Per dtype variable.
    pub types: Vec<DType>,
}

/// A property that a draw fixes, so that every case is drawn often enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Focus {
    /// An enum or bool param has this value.
    Param(usize, Value),
    /// A param is omitted.
    Default(usize),
    /// An optional input is present or absent.
    Given(usize, bool),
    /// A dtype variable.
    Type(usize, DType),
}

/// An operation prepared for drawing: compiled programs, candidate values.
#[derive(Debug)]
pub struct Prepared {
    /// The schema.
    pub operation: &'static Operation,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// The focuses that draws rotate through.
    pub focuses: Vec<Focus>,
    defaults: Vec<Option<Program>>,
    constraints: Vec<Program>,
    /// Values inside the range of each param.
    inside: Vec<Vec<Value>>,
    /// Values outside the range of each param.
    pub outside: Vec<Vec<Value>>,
}

impl Prepared {
    /// Prepares a schema.
    pub fn new(operation: &'static Operation) -> Prepared {
        let slots = operation.slots();
        let mut inside = Vec::new();
        let mut outside = Vec::new();
        for (index, param) in operation.params.iter().enumerate() {
            let range = param.range.as_ref().map(Program::compile);
            let mut values = vec![Value::Int(0); slots.len()];
            let (right, wrong) = candidates(&param.ty).into_iter().partition(|value| {
                values[operation.axes.len() + index] = *value;
                range.as_ref().is_none_or(|range| range.eval_bool(&values) == Ok(true))
            });
            inside.push(right);
            outside.push(wrong);
        }
        let compile = |typed: &Option<Typed>| typed.as_ref().map(Program::compile);
        Prepared {
            operation,
            slots,
            focuses: focuses(operation),
            defaults: operation.params.iter().map(|param| compile(&param.default)).collect(),
            constraints: operation
                .constraints
                .iter()
                .map(|constraint| Program::compile(&constraint.check))
                .collect(),
            inside,
            outside,
        }
    }

    /// Excludes extreme and non-finite float params, whose results say little about a kernel.
    pub fn tame(mut self) -> Prepared {
        for values in &mut self.inside {
            values.retain(|value| match value {
                Value::Float(value) => value.abs() < 100.0,
                _ => true,
            });
        }
        self
    }

    /// Draws an assignment that meets every constraint, or every one except `violated`; `None` if repair
    /// fails. `size` in 0..=100 bounds the axes, so that a failing case can be shrunk with its seed.
    pub fn assign(
        &self,
        random: &mut Random,
        size: u8,
        focus: &[Focus],
        violated: Option<usize>,
    ) -> Option<Assignment> {
        let operation = self.operation;
        let mut drawn = Assignment {
            axes: vec![0; operation.axes.len()],
            packs: vec![Vec::new(); operation.axes.len()],
            params: vec![None; operation.params.len()],
            given: operation.inputs.iter().map(|input| input.optional.is_none()).collect(),
            types: operation.types.iter().filter_map(|variable| variable.dtypes.first().copied()).collect(),
        };
        for slot in 0..self.slots.len() {
            self.redraw(random, &mut drawn, slot, size, violated.is_some());
        }
        for (variable, dtype) in operation.types.iter().zip(&mut drawn.types) {
            *dtype = random.pick(&variable.dtypes).copied()?;
        }
        let pinned = self.pin(&mut drawn, focus);
        self.normalize(&mut drawn);
        for _ in 0..REPAIRS {
            let values = self.values(&drawn);
            let Some(wrong) = self.first_violation(&values, violated) else {
                return self.fits(&drawn).then_some(drawn);
            };
            let check = &operation.constraints[wrong].check;
            if violated != Some(wrong) && random.one_in(2) {
                self.solve(&mut drawn, check, &values);
            } else {
                let variables: Vec<usize> = check
                    .variables()
                    .iter()
                    .map(|variable| usize::from(variable.index))
                    .filter(|slot| !pinned.contains(slot))
                    .collect();
                let slot = *random.pick(&variables)?;
                let wide = violated == Some(wrong);
                self.redraw_for(random, &mut drawn, slot, size, wide.then_some(check));
            }
            self.normalize(&mut drawn);
        }
        None
    }

    /// The first constraint that does not have the expected truth value.
    fn first_violation(&self, values: &[Value], violated: Option<usize>) -> Option<usize> {
        self.constraints.iter().enumerate().position(|(index, constraint)| {
            let should = violated != Some(index);
            constraint.eval_bool(values) != Ok(should)
        })
    }

    fn pin(&self, drawn: &mut Assignment, focus: &[Focus]) -> Vec<usize> {
        let operation = self.operation;
        let mut pinned = Vec::new();
        for focus in focus {
            match *focus {
                Focus::Param(param, value) => {
                    drawn.params[param] = Some(value);
                    pinned.push(operation.axes.len() + param);
                }
                Focus::Default(param) => {
                    drawn.params[param] = None;
                    pinned.push(operation.axes.len() + param);
                }
                Focus::Given(input, given) => {
                    drawn.given[input] = given;
                    pinned.extend(operation.inputs[input].optional.map(usize::from));
                }
                Focus::Type(variable, dtype) => drawn.types[variable] = dtype,
            }
        }
        pinned
    }

    fn redraw(&self, random: &mut Random, drawn: &mut Assignment, slot: usize, size: u8, wide: bool) {
        match self.slots[slot] {
            Slot::Axis(axis) => self.redraw_axis(random, drawn, axis, size),
            Slot::Param(param) => {
                let optional = self.operation.params[param].default.is_some();
                drawn.params[param] = if optional && random.one_in(2) {
                    None
                } else {
                    // Extreme values come last and are drawn occasionally, or always if `wide`.
                    let values = &self.inside[param];
                    let candidates =
                        if wide || random.one_in(4) { values.len() } else { values.len().min(12) };
                    random.pick(&values[..candidates]).copied()
                };
            }
            Slot::Given(input) => drawn.given[input] = random.one_in(2),
        }
    }

    /// Redraws a slot; to violate a constraint, also from the literals it contains and their neighbors.
    fn redraw_for(
        &self,
        random: &mut Random,
        drawn: &mut Assignment,
        slot: usize,
        size: u8,
        violate: Option<&Typed>,
    ) {
        let Some(check) = violate else { return self.redraw(random, drawn, slot, size, false) };
        match self.slots[slot] {
            Slot::Axis(axis) if self.operation.axes[axis].value.is_none() => {
                let mut sizes = vec![0, 1, 2, 3, 5];
                literals(&check.root, &mut sizes);
                let drawn_size = random.pick(&sizes).copied().unwrap_or(0).max(0);
                if self.operation.axes[axis].pack {
                    drawn.packs[axis] = vec![drawn_size];
                }
                drawn.axes[axis] = drawn_size;
            }
            _ => self.redraw(random, drawn, slot, size, true),
        }
    }

    fn redraw_axis(&self, random: &mut Random, drawn: &mut Assignment, axis: usize, size: u8) {
        let definition = &self.operation.axes[axis];
        if definition.dynamic {
            return;
        }
        if definition.pack {
            let count = random.below(4);
            drawn.packs[axis] = (0..count).map(|_| fuzz(random, &definition.fuzz, size)).collect();
        } else {
            drawn.axes[axis] = definition.value.unwrap_or_else(|| fuzz(random, &definition.fuzz, size));
        }
    }

    /// If a constraint has the form `axis == expression`, assigns the axis.
    fn solve(&self, drawn: &mut Assignment, check: &Typed, values: &[Value]) {
        let NodeKind::Compare { operator: Comparison::Equal, left, right } = &check.root.kind else { return };
        for (one, other) in [(left, right), (right, left)] {
            let NodeKind::Variable { index, .. } = &one.kind else { continue };
            let typed = Typed { root: (**other).clone(), text: String::new(), ty: other.ty.clone() };
            if let Slot::Axis(axis) = self.slots[usize::from(*index)]
                && let Ok(Value::Int(size @ 0..=64)) = Program::compile(&typed).eval(values)
            {
                drawn.axes[axis] = size;
                return;
            }
        }
    }

    /// Computes pack products, and sets axes that no given input has to 0, as in a checked call.
    fn normalize(&self, drawn: &mut Assignment) {
        let operation = self.operation;
        let mut seen = vec![false; operation.axes.len()];
        for (input, given) in operation.inputs.iter().zip(&drawn.given) {
            if !given || input.broadcast {
                continue;
            }
            for dim in drawn.pick(operation, &input.shape).into_iter().flatten() {
                if let Dim::Axis(axis) | Dim::Pack(axis) | Dim::Offset(axis, _) = dim {
                    seen[*axis] = true;
                }
            }
        }
        for (axis, definition) in operation.axes.iter().enumerate() {
            if definition.pack {
                drawn.axes[axis] = drawn.packs[axis].iter().product();
            }
            if !seen[axis] && definition.value.is_none() {
                drawn.axes[axis] = 0;
                drawn.packs[axis].clear();
            }
        }
    }

    /// The value of every slot; 0 if it cannot be computed.
    pub fn values(&self, drawn: &Assignment) -> Vec<Value> {
        let operation = self.operation;
        let mut values: Vec<Value> = drawn.axes.iter().map(|&size| Value::Int(size)).collect();
        values.resize(self.slots.len(), Value::Bool(false));
        for (param, given) in drawn.params.iter().enumerate() {
            let definition = &operation.params[param];
            let value = given.or_else(|| self.defaults[param].as_ref()?.eval(&values).ok());
            values[operation.axes.len() + param] = match (&definition.ty, value) {
                (ParamType::F32, Some(Value::Float(value))) => Value::Float(f64::from(value as f32)),
                (_, Some(value)) => value,
                (ParamType::Int, None) => Value::Int(0),
                (ParamType::F32 | ParamType::F64, None) => Value::Float(0.0),
                (ParamType::Bool, None) => Value::Bool(false),
                (ParamType::Enum(_), None) => Value::Enum(0),
            };
        }
        for (slot, meaning) in self.slots.iter().enumerate() {
            if let Slot::Given(input) = meaning {
                values[slot] = Value::Bool(drawn.given[*input]);
            }
        }
        values
    }

    /// Whether every given input can be allocated and has a valid rank.
    fn fits(&self, drawn: &Assignment) -> bool {
        let values = self.values(drawn);
        self.operation.inputs.iter().zip(&drawn.given).filter(|(_, given)| **given).all(|(input, _)| {
            self.shape(drawn, &values, input).is_some_and(|shape| {
                shape.len() <= lz_core::tensor::MAX_RANK
                    && shape.iter().all(|size| *size >= 0)
                    && (shape.contains(&0)
                        || shape
                            .iter()
                            .try_fold(1i64, |product, size| product.checked_mul(*size))
                            .is_some_and(|elements| elements <= MAX_ELEMENTS))
            })
        })
    }

    /// The full shape of an input; `None` if an expression cannot be computed.
    pub fn shape(&self, drawn: &Assignment, values: &[Value], input: &Input) -> Option<Vec<i64>> {
        let mut shape = Vec::new();
        if input.kind == Kind::Tokenizer {
            return Some(shape);
        }
        for dim in drawn.pick(self.operation, &input.shape)? {
            match dim {
                Dim::Axis(axis) => shape.push(drawn.axes[*axis]),
                Dim::Fixed(size) => shape.push(*size),
                Dim::Offset(axis, offset) => shape.push(drawn.axes[*axis].checked_add(*offset)?),
                Dim::Pack(axis) => shape.extend(&drawn.packs[*axis]),
                Dim::Expr(expression) => shape.push(Program::compile(expression).eval_int(values).ok()?),
            }
        }
        Some(shape)
    }
}

impl Assignment {
    /// The alternative selected by the enum param.
    pub fn pick<'t, T>(&self, operation: &Operation, cases: &'t Cases<T>) -> Option<&'t T> {
        match cases {
            Cases::One(only) => Some(only),
            Cases::By(param, alternatives) => {
                let value = self.params[*param].or_else(|| {
                    operation.params[*param].default.as_ref().and_then(|default| default.fold_constant())
                });
                match value {
                    Some(Value::Enum(case)) => alternatives.get(case as usize),
                    _ => None,
                }
            }
        }
    }

    /// The dtype of an input.
    pub fn dtype(&self, operation: &Operation, input: &Input) -> Option<DType> {
        match self.pick(operation, &input.dtype)? {
            DTypeRef::Fixed(dtype) => Some(*dtype),
            DTypeRef::Variable(variable) => self.types.get(*variable).copied(),
        }
    }
}

fn focuses(operation: &Operation) -> Vec<Focus> {
    let mut focuses = Vec::new();
    for (index, param) in operation.params.iter().enumerate() {
        match &param.ty {
            ParamType::Enum(cases) => {
                focuses.extend((0..cases.len()).map(|case| Focus::Param(index, Value::Enum(case as u32))));
            }
            ParamType::Bool => {
                focuses.extend([true, false].map(|value| Focus::Param(index, Value::Bool(value))));
            }
            _ => {}
        }
        if param.default.is_some() {
            focuses.push(Focus::Default(index));
        }
    }
    for (index, input) in operation.inputs.iter().enumerate() {
        if input.optional.is_some() {
            focuses.extend([true, false].map(|given| Focus::Given(index, given)));
        }
    }
    for (index, variable) in operation.types.iter().enumerate() {
        focuses.extend(variable.dtypes.iter().map(|dtype| Focus::Type(index, *dtype)));
    }
    focuses
}

fn fuzz(random: &mut Random, fuzz: &Fuzz, size: u8) -> i64 {
    let size = i64::from(size.min(100));
    match fuzz {
        Fuzz::Range(low, high) => random.between(*low, low + (high - low) * size / 100),
        Fuzz::List(sizes) => {
            let count = (sizes.len() as i64 * size / 100).clamp(1, sizes.len().max(1) as i64) as usize;
            random.pick(&sizes[..count.min(sizes.len())]).copied().unwrap_or(0)
        }
    }
}

/// Values to try, common ones first.
fn candidates(ty: &ParamType) -> Vec<Value> {
    match ty {
        ParamType::Int => [
            0,
            1,
            2,
            3,
            -1,
            4,
            5,
            7,
            8,
            16,
            32,
            33,
            -2,
            -3,
            64,
            31,
            2147483647,
            2147483648,
            -2147483648,
            -2147483649,
            i64::MAX,
            i64::MIN,
        ]
        .map(Value::Int)
        .to_vec(),
        ParamType::F32 | ParamType::F64 => [
            1.0,
            0.5,
            0.125,
            0.25,
            2.0,
            0.0,
            1e-5,
            0.9,
            0.7,
            3.0,
            1.5,
            -1.0,
            30.0,
            1e-3,
            -0.5,
            1e-30,
            1e30,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ]
        .map(Value::Float)
        .to_vec(),
        ParamType::Bool => [true, false].map(Value::Bool).to_vec(),
        ParamType::Enum(cases) => (0..cases.len() as u32).map(Value::Enum).collect(),
    }
}

/// The integer literals of an expression, and their neighbors.
fn literals(node: &Node, found: &mut Vec<i64>) {
    if let NodeKind::Constant(Value::Int(value)) = node.kind {
        found.extend([value.saturating_sub(1), value, value.saturating_add(1)]);
    }
    for child in node.children() {
        literals(child, found);
    }
}
