//! The interpreter: a typed tree compiled to a list of stack operations.
//!
//! Evaluation neither recurses nor allocates. Types are checked at compile time, so the stack contains plain 64-bit words (the
//! bits of an int or float, 0 or 1 for a bool, the index of a case). Only loads check the type of a value.

use super::arith::{self, EvalError};
use super::ast::{Arithmetic, Comparison, Logic};
use super::typed::{Function, Node, NodeKind, Typed};
use super::value::{Type, Value};

/// The maximum stack depth of a valid expression.
pub(super) const STACK_LIMIT: usize = 64;

/// A stack of this size suffices for nearly all expressions and is cheaper to clear.
const SMALL_STACK: usize = 12;

/// A compiled expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    operations: Vec<Operation>,
    constants: Vec<u64>,
    stack: usize,
    result: ResultKind,
}

/// A source of the values of a scope's slots.
pub trait Slots {
    /// The value of a slot; `None` if the slot does not exist.
    fn slot(&self, index: usize) -> Option<Value>;
}

impl Slots for [Value] {
    #[inline]
    fn slot(&self, index: usize) -> Option<Value> {
        self.get(index).copied()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultKind {
    Int,
    Float,
    Bool,
    Enum,
}

/// One instruction. Binary instructions pop the right operand, then the left one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Pushes a constant, given by its index in the table.
    Constant(u32),
    LoadInt(u16),
    LoadFloat(u16),
    LoadBool(u16),
    LoadEnum(u16),
    Widen,
    NegateInt,
    NegateFloat,
    Not,
    ArithmeticInt(Arithmetic),
    ArithmeticFloat(Arithmetic),
    CompareInt(Comparison),
    CompareFloat(Comparison),
    /// Equality of bools or of cases.
    CompareWord(Comparison),
    CeilDivide,
    MinInt,
    MaxInt,
    AbsInt,
    MinFloat,
    MaxFloat,
    AbsFloat,
    Sqrt,
    Exp,
    Log,
    Tanh,
    Jump(u32),
    /// Pops the condition and jumps if it is false.
    JumpUnless(u32),
    /// Jumps and keeps the operand as the result if it is false; pops it otherwise.
    AndThen(u32),
    /// Jumps and keeps the operand as the result if it is true; pops it otherwise.
    OrElse(u32),
    /// Pops an item of a list; if it equals the new top, replaces the top by true and jumps.
    FoundInt(u32),
    FoundFloat(u32),
    FoundWord(u32),
    /// Replaces the top by false after the last item of a list.
    NotFound,
}

impl Program {
    /// Compiles a checked expression.
    pub fn compile(typed: &Typed) -> Program {
        let mut compiler = Compiler::default();
        compiler.node(&typed.root);
        let result = match typed.root.ty {
            Type::Int => ResultKind::Int,
            Type::Float => ResultKind::Float,
            Type::Bool => ResultKind::Bool,
            Type::Enum(_) => ResultKind::Enum,
        };
        let Compiler { operations, constants, deepest, .. } = compiler;
        Program { operations, constants, stack: deepest, result }
    }

    /// Evaluates with the values of the scope's slots.
    pub fn eval(&self, values: &[Value]) -> Result<Value, EvalError> {
        let word = self.word(values)?;
        Ok(match self.result {
            ResultKind::Int => Value::Int(word as i64),
            ResultKind::Float => Value::Float(f64::from_bits(word)),
            ResultKind::Bool => Value::Bool(word != 0),
            ResultKind::Enum => Value::Enum(word as u32),
        })
    }

    /// As [`Program::eval`], for a bool expression.
    pub fn eval_bool(&self, values: &[Value]) -> Result<bool, EvalError> {
        self.eval_bool_of(values)
    }

    /// As [`Program::eval`], for an int expression.
    pub fn eval_int(&self, values: &[Value]) -> Result<i64, EvalError> {
        self.eval_int_of(values)
    }

    /// As [`Program::eval_bool`], with values from any [`Slots`].
    pub fn eval_bool_of(&self, values: &(impl Slots + ?Sized)) -> Result<bool, EvalError> {
        match self.result {
            ResultKind::Bool => Ok(self.word(values)? != 0),
            _ => Err(EvalError::WrongType),
        }
    }

    /// As [`Program::eval_int`], with values from any [`Slots`].
    pub fn eval_int_of(&self, values: &(impl Slots + ?Sized)) -> Result<i64, EvalError> {
        match self.result {
            ResultKind::Int => Ok(self.word(values)? as i64),
            _ => Err(EvalError::WrongType),
        }
    }

    /// As [`Program::eval`], for a float expression, or an int expression that is widened.
    pub fn eval_float(&self, values: &[Value]) -> Result<f64, EvalError> {
        match self.result {
            ResultKind::Float => Ok(f64::from_bits(self.word(values)?)),
            ResultKind::Int => Ok(arith::widen(self.word(values)? as i64)),
            _ => Err(EvalError::WrongType),
        }
    }

    /// The value of the program, if it is constant and cannot fail.
    pub fn is_constant(&self) -> bool {
        matches!(self.operations.as_slice(), [Operation::Constant(_)])
    }

    pub(super) fn stack_needed(&self) -> usize {
        self.stack
    }

    fn word(&self, values: &(impl Slots + ?Sized)) -> Result<u64, EvalError> {
        if self.stack <= SMALL_STACK {
            run::<SMALL_STACK, _>(&self.operations, 0, &self.constants, values)
        } else {
            run::<STACK_LIMIT, _>(&self.operations, 0, &self.constants, values)
        }
    }
}

/// A stack of fixed size; misuse is an error, never a panic.
struct Stack<const SIZE: usize> {
    words: [u64; SIZE],
    height: usize,
}

impl<const SIZE: usize> Stack<SIZE> {
    #[inline]
    fn push(&mut self, word: u64) -> Result<(), EvalError> {
        *self.words.get_mut(self.height).ok_or(EvalError::Malformed)? = word;
        self.height += 1;
        Ok(())
    }

    #[inline]
    fn pop(&mut self) -> Result<u64, EvalError> {
        self.height = self.height.checked_sub(1).ok_or(EvalError::Malformed)?;
        self.words.get(self.height).copied().ok_or(EvalError::Malformed)
    }

    #[inline]
    fn top(&self) -> Result<u64, EvalError> {
        self.words.get(self.height.wrapping_sub(1)).copied().ok_or(EvalError::Malformed)
    }

    #[inline]
    fn ints(&mut self) -> Result<(i64, i64), EvalError> {
        let right = self.pop()?;
        Ok((self.pop()? as i64, right as i64))
    }

    #[inline]
    fn floats(&mut self) -> Result<(f64, f64), EvalError> {
        let right = self.pop()?;
        Ok((f64::from_bits(self.pop()?), f64::from_bits(right)))
    }
}

fn run<const SIZE: usize, S: Slots + ?Sized>(
    operations: &[Operation],
    start: usize,
    constants: &[u64],
    values: &S,
) -> Result<u64, EvalError> {
    let mut stack = Stack { words: [0; SIZE], height: 0 };
    let mut position = start;
    while let Some(operation) = operations.get(position) {
        position += 1;
        match *operation {
            Operation::Constant(index) => {
                stack.push(constants.get(index as usize).copied().ok_or(EvalError::Malformed)?)?;
            }
            Operation::LoadInt(slot) => match values.slot(usize::from(slot)) {
                Some(Value::Int(value)) => stack.push(value as u64)?,
                _ => return Err(EvalError::BadSlot { slot }),
            },
            Operation::LoadFloat(slot) => match values.slot(usize::from(slot)) {
                Some(Value::Float(value)) => stack.push(value.to_bits())?,
                _ => return Err(EvalError::BadSlot { slot }),
            },
            Operation::LoadBool(slot) => match values.slot(usize::from(slot)) {
                Some(Value::Bool(value)) => stack.push(u64::from(value))?,
                _ => return Err(EvalError::BadSlot { slot }),
            },
            Operation::LoadEnum(slot) => match values.slot(usize::from(slot)) {
                Some(Value::Enum(case)) => stack.push(u64::from(case))?,
                _ => return Err(EvalError::BadSlot { slot }),
            },
            Operation::Widen => {
                let value = stack.pop()? as i64;
                stack.push(arith::widen(value).to_bits())?;
            }
            Operation::NegateInt => {
                let value = stack.pop()? as i64;
                stack.push(arith::negate_int(value)? as u64)?;
            }
            Operation::NegateFloat => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::negate_float(value).to_bits())?;
            }
            Operation::Not => {
                let word = stack.pop()?;
                stack.push(u64::from(word == 0))?;
            }
            Operation::ArithmeticInt(operator) => {
                let (left, right) = stack.ints()?;
                stack.push(arithmetic_int(operator, left, right)? as u64)?;
            }
            Operation::ArithmeticFloat(operator) => {
                let (left, right) = stack.floats()?;
                stack.push(arithmetic_float(operator, left, right)?.to_bits())?;
            }
            Operation::CompareInt(operator) => {
                let (left, right) = stack.ints()?;
                stack.push(u64::from(arith::compare(operator, left, right)))?;
            }
            Operation::CompareFloat(operator) => {
                let (left, right) = stack.floats()?;
                stack.push(u64::from(arith::compare(operator, left, right)))?;
            }
            Operation::CompareWord(operator) => {
                let right = stack.pop()?;
                let left = stack.pop()?;
                stack.push(u64::from(arith::compare(operator, left, right)))?;
            }
            Operation::CeilDivide => {
                let (left, right) = stack.ints()?;
                stack.push(arith::ceil_divide_int(left, right)? as u64)?;
            }
            Operation::MinInt => {
                let (left, right) = stack.ints()?;
                stack.push(arith::min_int(left, right) as u64)?;
            }
            Operation::MaxInt => {
                let (left, right) = stack.ints()?;
                stack.push(arith::max_int(left, right) as u64)?;
            }
            Operation::AbsInt => {
                let value = stack.pop()? as i64;
                stack.push(arith::abs_int(value)? as u64)?;
            }
            Operation::MinFloat => {
                let (left, right) = stack.floats()?;
                stack.push(arith::min_float(left, right).to_bits())?;
            }
            Operation::MaxFloat => {
                let (left, right) = stack.floats()?;
                stack.push(arith::max_float(left, right).to_bits())?;
            }
            Operation::AbsFloat => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::abs_float(value).to_bits())?;
            }
            Operation::Sqrt => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::sqrt_float(value)?.to_bits())?;
            }
            Operation::Exp => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::exp_float(value)?.to_bits())?;
            }
            Operation::Log => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::log_float(value)?.to_bits())?;
            }
            Operation::Tanh => {
                let value = f64::from_bits(stack.pop()?);
                stack.push(arith::tanh_float(value).to_bits())?;
            }
            Operation::Jump(target) => position = target as usize,
            Operation::JumpUnless(target) => {
                if stack.pop()? == 0 {
                    position = target as usize;
                }
            }
            Operation::AndThen(target) => {
                if stack.top()? == 0 {
                    position = target as usize;
                } else {
                    stack.pop()?;
                }
            }
            Operation::OrElse(target) => {
                if stack.top()? == 0 {
                    stack.pop()?;
                } else {
                    position = target as usize;
                }
            }
            Operation::FoundInt(target) | Operation::FoundWord(target) => {
                if stack.pop()? == stack.top()? {
                    stack.pop()?;
                    stack.push(1)?;
                    position = target as usize;
                }
            }
            Operation::FoundFloat(target) => {
                if f64::from_bits(stack.pop()?) == f64::from_bits(stack.top()?) {
                    stack.pop()?;
                    stack.push(1)?;
                    position = target as usize;
                }
            }
            Operation::NotFound => {
                stack.pop()?;
                stack.push(0)?;
            }
        }
    }
    stack.pop()
}

#[inline]
fn arithmetic_int(operator: Arithmetic, left: i64, right: i64) -> arith::IntResult {
    match operator {
        Arithmetic::Add => arith::add_int(left, right),
        Arithmetic::Subtract => arith::subtract_int(left, right),
        Arithmetic::Multiply => arith::multiply_int(left, right),
        Arithmetic::FloorDivide => arith::floor_divide_int(left, right),
        Arithmetic::Modulo => arith::modulo_int(left, right),
        // Type checking widens the operands of `/`.
        Arithmetic::Divide => Err(EvalError::Malformed),
    }
}

#[inline]
fn arithmetic_float(operator: Arithmetic, left: f64, right: f64) -> arith::FloatResult {
    match operator {
        Arithmetic::Add => arith::add_float(left, right),
        Arithmetic::Subtract => arith::subtract_float(left, right),
        Arithmetic::Multiply => arith::multiply_float(left, right),
        Arithmetic::Divide => arith::divide_float(left, right),
        Arithmetic::FloorDivide => arith::floor_divide_float(left, right),
        Arithmetic::Modulo => arith::modulo_float(left, right),
    }
}

#[derive(Default)]
struct Compiler {
    operations: Vec<Operation>,
    constants: Vec<u64>,
    height: usize,
    deepest: usize,
}

impl Compiler {
    /// Emits a node, which pushes one word. Constant nodes are folded unless they fail: evaluation may never reach them, so the
    /// error is left to it.
    fn node(&mut self, node: &Node) {
        let start = self.operations.len();
        let height = self.height;
        self.emit(node);
        self.height = height;
        self.grow();
        let reads = self.operations.iter().skip(start).any(|operation| {
            use Operation::{LoadBool, LoadEnum, LoadFloat, LoadInt};
            matches!(operation, LoadInt(_) | LoadFloat(_) | LoadBool(_) | LoadEnum(_))
        });
        if !reads
            && self.operations.len() > start + 1
            && let Ok(word) = run::<STACK_LIMIT, [Value]>(&self.operations, start, &self.constants, &[])
        {
            self.operations.truncate(start);
            self.constant(word);
        }
    }

    fn emit(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::Constant(value) => self.constant(match *value {
                Value::Int(value) => value as u64,
                Value::Float(value) => value.to_bits(),
                Value::Bool(value) => u64::from(value),
                Value::Enum(case) => u64::from(case),
            }),
            NodeKind::Variable { index, .. } => self.operations.push(match node.ty {
                Type::Int => Operation::LoadInt(*index),
                Type::Float => Operation::LoadFloat(*index),
                Type::Bool => Operation::LoadBool(*index),
                Type::Enum(_) => Operation::LoadEnum(*index),
            }),
            NodeKind::Widen(operand) => self.unary(operand, Operation::Widen),
            NodeKind::Negate(operand) => {
                let operation = by_type(node, Operation::NegateInt, Operation::NegateFloat);
                self.unary(operand, operation);
            }
            NodeKind::Not(operand) => self.unary(operand, Operation::Not),
            NodeKind::Arithmetic { operator, left, right } => {
                self.node(left);
                let operation =
                    by_type(node, Operation::ArithmeticInt(*operator), Operation::ArithmeticFloat(*operator));
                self.unary(right, operation);
            }
            NodeKind::Logic { operator, left, right } => {
                self.node(left);
                let jump = self.operations.len();
                self.operations.push(Operation::Jump(0));
                self.height -= 1;
                self.node(right);
                let end = self.operations.len() as u32;
                self.patch(
                    jump,
                    match operator {
                        Logic::And => Operation::AndThen(end),
                        Logic::Or => Operation::OrElse(end),
                    },
                );
            }
            NodeKind::Compare { operator, left, right } => {
                self.node(left);
                let operation = match left.ty {
                    Type::Int => Operation::CompareInt(*operator),
                    Type::Float => Operation::CompareFloat(*operator),
                    Type::Bool | Type::Enum(_) => Operation::CompareWord(*operator),
                };
                self.unary(right, operation);
            }
            NodeKind::Member { negated, item, list } => self.member(*negated, item, list),
            NodeKind::Conditional { condition, then, otherwise } => {
                self.node(condition);
                let unless = self.operations.len();
                self.operations.push(Operation::Jump(0));
                self.height -= 1;
                self.node(then);
                let jump = self.operations.len();
                self.operations.push(Operation::Jump(0));
                self.height -= 1;
                self.patch(unless, Operation::JumpUnless(self.operations.len() as u32));
                self.node(otherwise);
                self.patch(jump, Operation::Jump(self.operations.len() as u32));
            }
            NodeKind::Call { function, arguments } => {
                for (position, argument) in arguments.iter().enumerate() {
                    self.node(argument);
                    let operation = match function {
                        Function::CeilDiv if position == 1 => Operation::CeilDivide,
                        Function::Min if position > 0 => {
                            by_type(node, Operation::MinInt, Operation::MinFloat)
                        }
                        Function::Max if position > 0 => {
                            by_type(node, Operation::MaxInt, Operation::MaxFloat)
                        }
                        Function::Abs => by_type(node, Operation::AbsInt, Operation::AbsFloat),
                        Function::Sqrt => Operation::Sqrt,
                        Function::Exp => Operation::Exp,
                        Function::Log => Operation::Log,
                        Function::Tanh => Operation::Tanh,
                        Function::CeilDiv | Function::Min | Function::Max => continue,
                    };
                    self.operations.push(operation);
                    self.height -= usize::from(position > 0);
                }
            }
        }
    }

    fn member(&mut self, negated: bool, item: &Node, list: &[Node]) {
        self.node(item);
        let mut found = Vec::with_capacity(list.len());
        for other in list {
            self.node(other);
            found.push(self.operations.len());
            self.operations.push(Operation::NotFound);
            self.height -= 1;
        }
        self.operations.push(Operation::NotFound);
        let end = self.operations.len() as u32;
        for index in found {
            self.patch(
                index,
                match item.ty {
                    Type::Int => Operation::FoundInt(end),
                    Type::Float => Operation::FoundFloat(end),
                    Type::Bool | Type::Enum(_) => Operation::FoundWord(end),
                },
            );
        }
        if negated {
            self.operations.push(Operation::Not);
        }
    }

    fn unary(&mut self, operand: &Node, operation: Operation) {
        self.node(operand);
        self.operations.push(operation);
    }

    fn constant(&mut self, word: u64) {
        let index = self.constants.iter().position(|known| *known == word).unwrap_or_else(|| {
            self.constants.push(word);
            self.constants.len() - 1
        });
        self.operations.push(Operation::Constant(index as u32));
    }

    fn grow(&mut self) {
        self.height += 1;
        self.deepest = self.deepest.max(self.height);
    }

    fn patch(&mut self, index: usize, operation: Operation) {
        if let Some(slot) = self.operations.get_mut(index) {
            *slot = operation;
        }
    }
}

fn by_type(node: &Node, int: Operation, float: Operation) -> Operation {
    if node.ty == Type::Int { int } else { float }
}
