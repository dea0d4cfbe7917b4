//! The docstring of an operation for `help` and the stub: its mathematics, arguments and results, and a call with the sizes of a real
//! model.

use std::fmt::Write as _;

use lz_schema::DType;
use lz_schema::expr::{Program, Typed, Value};
use lz_schema::model::{
    Cases, Constant, DTypeRef, Dim, Input, Kind, Operation, Param, ParamType, ValueRule, Workload,
};

use super::docs::{dtype_cases, shape_cases};
use super::python::signature_order;

/// The whole text.
pub fn text(operation: &Operation) -> String {
    let mut text = format!("{}\n\n{}\n\nArgs:\n", operation.summary, operation.doc.trim_end());
    for input in signature_order(operation) {
        let what = match input.kind {
            Kind::Tensor => {
                format!("{} {}", shape_cases(operation, &input.shape), dtype_cases(operation, &input.dtype))
            }
            Kind::Text => "strings".to_owned(),
            Kind::Tokenizer => "a tokenizer".to_owned(),
        };
        let _ = writeln!(text, "    {}: {what}. {}", input.name, input.doc.trim());
    }
    for param in &operation.params {
        let default = param.default.as_ref();
        let default = default.map_or("required".to_owned(), |default| format!("default `{}`", default.text));
        let _ = writeln!(text, "    {}: {} ({default}).", param.name, param.doc.trim().trim_end_matches('.'));
    }
    if !operation.outputs.is_empty() {
        text.push_str("\nReturns:\n");
    }
    for output in &operation.outputs {
        let what = match output.kind {
            Kind::Text => "strings".to_owned(),
            _ => {
                format!("{} {}", shape_cases(operation, &output.shape), dtype_cases(operation, &output.dtype))
            }
        };
        let when = output.when.as_ref().map_or(String::new(), |when| format!(" Only where `{}`.", when.text));
        let _ = writeln!(text, "    {}: {what}. {}{when}", output.name, output.doc.trim());
    }
    // Short names are for reading; the smallest call is the easiest to try.
    let examples = operation.workloads.iter().filter_map(|workload| Example::new(operation, workload));
    if let Some(example) = examples.min_by_key(|example| example.elements) {
        let _ = write!(text, "\nExample:\n{}", example.text);
    }
    text
}

/// A call as a program would make it.
struct Example {
    text: String,
    /// Elements of all inputs.
    elements: i64,
}

/// The sizes and values of a workload.
struct Sizes<'a> {
    operation: &'a Operation,
    workload: &'a Workload,
    /// One value an expression slot.
    values: Vec<Value>,
}

impl Example {
    /// From a workload, unless it leaves something open.
    fn new(operation: &Operation, workload: &Workload) -> Option<Example> {
        let sizes = Sizes { operation, workload, values: workload.values(operation)? };
        let (mut text, mut elements) = (String::new(), 0i64);
        let mut arguments: Vec<String> = Vec::new();
        let mut by_name = false;
        for input in signature_order(operation) {
            let at = operation.inputs.iter().position(|known| known.name == input.name)?;
            if !workload.given[at] {
                by_name = true;
                continue;
            }
            let value = match input.kind {
                Kind::Text => "[\"Hello, world!\"]".to_owned(),
                Kind::Tokenizer => "lz.Tokenizer.from_file(\"tokenizer.json\")".to_owned(),
                Kind::Tensor => {
                    let shape = sizes.shape(&input.shape)?;
                    let count = shape.iter().try_fold(1i64, |count, size| count.checked_mul(*size))?;
                    elements = elements.checked_add(count)?;
                    sizes.tensor(input, &shape)?
                }
            };
            let name = &input.name;
            let _ = writeln!(text, "    {name} = {value}");
            arguments.push(if by_name { format!("{name}={name}") } else { name.clone() });
        }
        for (param, stated) in operation.params.iter().zip(&workload.params) {
            if let Some(stated) = stated {
                arguments.push(format!("{}={}", param.name, literal(param, stated)?));
            }
        }
        let mut results: Vec<&str> = Vec::new();
        for output in &operation.outputs {
            if output.when.as_ref().is_none_or(|when| sizes.eval(when) == Some(Value::Bool(true))) {
                results.push(&output.name);
            }
        }
        let call = format!("lz.ops.{}({})", operation.flat_name(), arguments.join(", "));
        let _ = match results.as_slice() {
            [] => writeln!(text, "    {call}"),
            results => writeln!(text, "    {} = {call}", results.join(", ")),
        };
        Some(Example { text, elements })
    }
}

impl Sizes<'_> {
    fn eval(&self, expression: &Typed) -> Option<Value> {
        Program::compile(expression).eval(&self.values).ok()
    }

    fn whole(&self, expression: &Typed) -> Option<i64> {
        match self.eval(expression)? {
            Value::Int(value) => Some(value),
            _ => None,
        }
    }

    fn chosen<'c, T>(&self, cases: &'c Cases<T>) -> Option<&'c T> {
        match cases {
            Cases::One(only) => Some(only),
            Cases::By(param, cases) => match self.values.get(self.operation.axes.len() + param)? {
                Value::Enum(case) => cases.get(*case as usize),
                _ => None,
            },
        }
    }

    fn shape(&self, shape: &Cases<Vec<Dim>>) -> Option<Vec<i64>> {
        let mut sizes = Vec::new();
        for dim in self.chosen(shape)? {
            match dim {
                Dim::Axis(axis) | Dim::Pack(axis) => {
                    sizes.extend(self.workload.axes.get(*axis)?.as_ref()?);
                }
                Dim::Fixed(size) => sizes.push(*size),
                Dim::Offset(axis, by) => match self.values.get(*axis)? {
                    Value::Int(size) => sizes.push(size + by),
                    _ => return None,
                },
                Dim::Expr(expression) => sizes.push(self.whole(expression)?),
            }
        }
        Some(sizes)
    }

    /// A tensor whose values the operation accepts, in torch's words.
    fn tensor(&self, input: &Input, shape: &[i64]) -> Option<String> {
        let dtype = match self.chosen(&input.dtype)? {
            DTypeRef::Fixed(dtype) => *dtype,
            DTypeRef::Variable(variable) => (*self.workload.types.get(*variable)?)?,
        };
        let name = dtype.long_name();
        let (sizes, last) = (tuple(shape), shape.last().copied().unwrap_or(1));
        let filled = |value: i64| format!("torch.full({sizes}, {value}, dtype=torch.{name})");
        let counted = |step: i64| match step {
            1 => format!("torch.arange({last}, dtype=torch.{name})"),
            step => format!("torch.arange({last}, dtype=torch.{name}) * {step}"),
        };
        Some(match &input.values {
            Some(ValueRule::IndexInto(end)) => {
                format!("torch.randint({}, {sizes}, dtype=torch.{name})", self.whole(end)?)
            }
            // Numbers of a large range are indices, which differ from each other; those of a small one are lengths.
            Some(ValueRule::Between(low, high)) => match (self.whole(low)?, self.whole(high)?) {
                (..=0, high @ 4096..) if shape.len() > 1 => {
                    format!("torch.randint({}, {sizes}, dtype=torch.{name})", high + 1)
                }
                (..=0, 4096..) if (1..4096).contains(&last) => counted(1),
                (_, high) => filled(high),
            },
            Some(ValueRule::IndptrOf(total) | ValueRule::IndptrWithin(total)) => {
                counted(divided(self.whole(total)?, last - 1)?)
            }
            Some(ValueRule::PartitionOf(total)) => filled(divided(self.whole(total)?, last)?),
            Some(ValueRule::ScoreMod(_)) => {
                format!("\"{:last$}\"", "score", last = usize::try_from(last).ok()?)
            }
            None => match dtype {
                DType::F64 | DType::F32 | DType::F16 | DType::BF16 => {
                    format!("torch.randn({sizes}, dtype=torch.{name})")
                }
                DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 | DType::F4E2M1x2 => {
                    format!("torch.empty({sizes}, dtype=torch.{name})")
                }
                DType::Bool => format!("torch.ones({sizes}, dtype=torch.{name})"),
                _ => format!("torch.zeros({sizes}, dtype=torch.{name})"),
            },
        })
    }
}

fn tuple(sizes: &[i64]) -> String {
    let list: Vec<String> = sizes.iter().map(i64::to_string).collect();
    format!("({}{})", list.join(", "), if sizes.len() == 1 { "," } else { "" })
}

/// The quotient, where there is no rest.
fn divided(total: i64, parts: i64) -> Option<i64> {
    (parts > 0 && total % parts == 0).then(|| total / parts)
}

fn literal(param: &Param, value: &Constant) -> Option<String> {
    Some(match (value, &param.ty) {
        (Constant::Int(value), _) => value.to_string(),
        (Constant::Float(value), _) => format!("{value:?}"),
        (Constant::Bool(value), _) => if *value { "True" } else { "False" }.to_owned(),
        (Constant::Enum(case), ParamType::Enum(cases)) => format!("\"{}\"", cases.get(*case as usize)?),
        (Constant::Enum(_), _) => return None,
    })
}
