//! Evaluates a score expression for several keys at once: a stack of arrays, one element per key. Neither recurses nor allocates.
//!
//! The functions are inlined into the kernel, so that they are compiled for its instruction set.

use lz_schema::expr::ast::{Arithmetic, Comparison, Logic};
use lz_schema::expr::{Function, Node, NodeKind, Value, arith};

use super::{Values, arithmetic, floor_divide, slot};

/// Maximum depth of the stack; a deeper expression has no steps and is evaluated score by score.
pub const MAX_DEPTH: usize = 24;

/// One step. Binary steps replace two operands by their result; bools are 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    Constant(f64),
    Score,
    KvIndex,
    /// A slot with the same value for all keys.
    Uniform(usize),
    Negate,
    Not,
    Arithmetic(Arithmetic),
    Compare(Comparison),
    And,
    Or,
    /// Pops a condition, a value for true and one for false, in the order of pushing.
    Select,
    CeilDivide,
    Min,
    Max,
    Abs,
    Sqrt,
    Exp,
    Log,
    Tanh,
    /// Pushes the operand below the top.
    CopySecond,
    /// Removes the operand below the top.
    DropSecond,
}

impl Step {
    /// Its name and its constant or slot, for evaluators in other languages.
    fn described(self) -> (&'static str, f64) {
        let name = match self {
            Step::Constant(value) => return ("constant", value),
            Step::Score => return ("slot", slot::SCORE as f64),
            Step::KvIndex => return ("slot", slot::KV_INDEX as f64),
            Step::Uniform(slot) => return ("slot", slot as f64),
            Step::Negate => "negate",
            Step::Not => "not",
            Step::Arithmetic(Arithmetic::Add) => "add",
            Step::Arithmetic(Arithmetic::Subtract) => "subtract",
            Step::Arithmetic(Arithmetic::Multiply) => "multiply",
            Step::Arithmetic(Arithmetic::Divide) => "divide",
            Step::Arithmetic(Arithmetic::FloorDivide) => "floor_divide",
            Step::Arithmetic(Arithmetic::Modulo) => "modulo",
            Step::Compare(Comparison::Equal) => "equal",
            Step::Compare(Comparison::NotEqual) => "not_equal",
            Step::Compare(Comparison::Less) => "less",
            Step::Compare(Comparison::LessOrEqual) => "less_or_equal",
            Step::Compare(Comparison::Greater) => "greater",
            Step::Compare(Comparison::GreaterOrEqual) => "greater_or_equal",
            Step::And => "and",
            Step::Or => "or",
            Step::Select => "select",
            Step::CeilDivide => "ceil_divide",
            Step::Min => "min",
            Step::Max => "max",
            Step::Abs => "abs",
            Step::Sqrt => "sqrt",
            Step::Exp => "exp",
            Step::Log => "log",
            Step::Tanh => "tanh",
            Step::CopySecond => "copy_second",
            Step::DropSecond => "drop_second",
        };
        (name, 0.0)
    }
}

/// The steps of a tree; `None` if they need too deep a stack.
pub(super) fn compile(root: &Node) -> Option<Box<[Step]>> {
    let compiler = Compiler::of(root);
    (compiler.deepest <= MAX_DEPTH).then(|| compiler.steps.into_boxed_slice())
}

/// The steps of a tree, whatever stack they need: names, and the value of a constant or the number of a slot.
pub(super) fn describe(root: &Node) -> Vec<(&'static str, f64)> {
    Compiler::of(root).steps.into_iter().map(Step::described).collect()
}

struct Compiler {
    steps: Vec<Step>,
    height: usize,
    deepest: usize,
}

impl Compiler {
    fn of(root: &Node) -> Compiler {
        let mut compiler = Compiler { steps: Vec::new(), height: 0, deepest: 0 };
        compiler.node(root);
        compiler
    }

    fn push(&mut self, step: Step) {
        self.height += 1;
        self.deepest = self.deepest.max(self.height);
        self.steps.push(step);
    }

    /// A step that pops `operands` and pushes a result.
    fn reduce(&mut self, step: Step, operands: usize) {
        self.height -= operands - 1;
        self.steps.push(step);
    }

    fn all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>) {
        nodes.into_iter().for_each(|node| self.node(node));
    }

    fn node(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::Constant(value) => self.push(Step::Constant(match value {
                Value::Int(value) => arith::widen(*value),
                Value::Float(value) => *value,
                Value::Bool(value) => f64::from(u8::from(*value)),
                Value::Enum(_) => f64::NAN,
            })),
            NodeKind::Variable { index, .. } => self.push(match usize::from(*index) {
                slot::SCORE => Step::Score,
                slot::KV_INDEX => Step::KvIndex,
                other => Step::Uniform(other),
            }),
            NodeKind::Widen(operand) => self.node(operand),
            NodeKind::Negate(operand) => {
                self.node(operand);
                self.reduce(Step::Negate, 1);
            }
            NodeKind::Not(operand) => {
                self.node(operand);
                self.reduce(Step::Not, 1);
            }
            NodeKind::Arithmetic { operator, left, right } => {
                self.all([&**left, right]);
                self.reduce(Step::Arithmetic(*operator), 2);
            }
            NodeKind::Logic { operator, left, right } => {
                self.all([&**left, right]);
                self.reduce(if *operator == Logic::And { Step::And } else { Step::Or }, 2);
            }
            NodeKind::Compare { operator, left, right } => {
                self.all([&**left, right]);
                self.reduce(Step::Compare(*operator), 2);
            }
            NodeKind::Member { negated, item, list } => {
                self.node(item);
                self.push(Step::Constant(0.0));
                for other in list {
                    self.push(Step::CopySecond);
                    self.node(other);
                    self.reduce(Step::Compare(Comparison::Equal), 2);
                    self.reduce(Step::Or, 2);
                }
                self.reduce(Step::DropSecond, 2);
                if *negated {
                    self.reduce(Step::Not, 1);
                }
            }
            NodeKind::Conditional { condition, then, otherwise } => {
                self.all([&**condition, then, otherwise]);
                self.reduce(Step::Select, 3);
            }
            NodeKind::Call { function, arguments } => self.call(*function, arguments),
        }
    }

    fn call(&mut self, function: Function, arguments: &[Node]) {
        let step = match function {
            Function::CeilDiv => Step::CeilDivide,
            Function::Min => Step::Min,
            Function::Max => Step::Max,
            Function::Abs => Step::Abs,
            Function::Sqrt => Step::Sqrt,
            Function::Exp => Step::Exp,
            Function::Log => Step::Log,
            Function::Tanh => Step::Tanh,
        };
        let is_binary = matches!(function, Function::CeilDiv | Function::Min | Function::Max);
        for (position, argument) in arguments.iter().enumerate() {
            self.node(argument);
            match (is_binary, position) {
                (true, 0) => {}
                (true, _) => self.reduce(step, 2),
                (false, _) => self.reduce(step, 1),
            }
        }
    }
}

/// Replaces the scores of the keys from `first_key` on. `values` has the slots that are the same for all keys.
#[inline(always)]
pub(super) fn evaluate<const N: usize>(
    steps: &[Step],
    values: &Values,
    first_key: usize,
    scores: &mut [f64; N],
    stack: &mut [[f64; N]; MAX_DEPTH],
) {
    // Index of the first free element.
    let mut height = 0;
    macro_rules! unary {
        ($operand:ident => $result:expr) => {{
            let Some(top) = height.checked_sub(1).and_then(|top| stack.get_mut(top)) else { return };
            top.iter_mut().for_each(|element| {
                let $operand = *element;
                *element = $result;
            });
        }};
    }
    macro_rules! binary {
        ($left:ident, $right:ident => $result:expr) => {{
            let Some((below, top)) =
                stack.get_mut(..height).and_then(<[_]>::split_last_mut).map(|(top, below)| (below, top))
            else {
                return;
            };
            let Some(target) = below.last_mut() else { return };
            for (element, right) in target.iter_mut().zip(top.iter()) {
                let ($left, $right) = (*element, *right);
                *element = $result;
            }
            height -= 1;
        }};
    }
    macro_rules! push {
        ($lanes:expr) => {{
            let lanes = $lanes;
            let Some(top) = stack.get_mut(height) else { return };
            *top = lanes;
            height += 1;
        }};
    }
    let truth = |value: bool| if value { 1.0 } else { 0.0 };
    for step in steps {
        match *step {
            Step::Constant(value) => push!([value; N]),
            Step::Score => push!(*scores),
            Step::KvIndex => push!(std::array::from_fn(|lane| (first_key + lane) as f64)),
            Step::Uniform(slot) => push!([values.get(slot).copied().unwrap_or(f64::NAN); N]),
            Step::Negate => unary!(operand => -operand),
            Step::Not => unary!(operand => 1.0 - operand),
            Step::Arithmetic(Arithmetic::Add) => binary!(left, right => left + right),
            Step::Arithmetic(Arithmetic::Subtract) => binary!(left, right => left - right),
            Step::Arithmetic(Arithmetic::Multiply) => binary!(left, right => left * right),
            Step::Arithmetic(Arithmetic::Divide) => binary!(left, right => left / right),
            Step::Arithmetic(operator) => binary!(left, right => arithmetic(operator, left, right)),
            Step::Compare(Comparison::Equal) => binary!(left, right => truth(left == right)),
            Step::Compare(Comparison::NotEqual) => binary!(left, right => truth(left != right)),
            Step::Compare(Comparison::Less) => binary!(left, right => truth(left < right)),
            Step::Compare(Comparison::LessOrEqual) => binary!(left, right => truth(left <= right)),
            Step::Compare(Comparison::Greater) => binary!(left, right => truth(left > right)),
            Step::Compare(Comparison::GreaterOrEqual) => binary!(left, right => truth(left >= right)),
            Step::And => binary!(left, right => left * right),
            Step::Or => binary!(left, right => if left > right { left } else { right }),
            Step::Select => {
                let Some([condition, then, otherwise]) =
                    height.checked_sub(3).and_then(|first| stack.get_mut(first..height))
                else {
                    return;
                };
                for ((condition, then), otherwise) in
                    condition.iter_mut().zip(then.iter()).zip(otherwise.iter())
                {
                    *condition = if *condition != 0.0 { *then } else { *otherwise };
                }
                height -= 2;
            }
            Step::CeilDivide => binary!(left, right => -floor_divide(-left, right)),
            Step::Min => binary!(left, right => arith::min_float(left, right)),
            Step::Max => binary!(left, right => arith::max_float(left, right)),
            Step::Abs => unary!(operand => operand.abs()),
            Step::Sqrt => unary!(operand => operand.sqrt()),
            Step::Exp => unary!(operand => operand.exp()),
            Step::Log => unary!(operand => operand.ln()),
            Step::Tanh => unary!(operand => operand.tanh()),
            Step::CopySecond => {
                let Some(second) = height.checked_sub(2).and_then(|second| stack.get(second)) else { return };
                push!(*second);
            }
            Step::DropSecond => binary!(_left, right => right),
        }
    }
    if let Some(result) = stack.first() {
        *scores = *result;
    }
}
