//! The typed tree: names are slots, cases are indices, every node has a type, every widening is an explicit node.

use super::arith::EvalError;
use super::ast::{Arithmetic, Comparison, Logic, Span};
use super::error::{ExprError, ExprErrorKind};
use super::program::Program;
use super::scope::NamedVariable;
use super::value::{Type, Value};

/// A type-checked expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Typed {
    /// The tree.
    pub root: Node,
    /// The source text; spans refer to it.
    pub text: String,
    /// The type of the whole.
    pub ty: Type,
}

/// One node of the typed tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it computes.
    pub kind: NodeKind,
    /// The type of the result.
    pub ty: Type,
    /// Its span in the text.
    pub span: Span,
}

/// What a typed node computes. Operands have exactly the types that the operation requires; there are no implicit conversions.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeKind {
    /// A literal or an enum's case.
    Constant(Value),
    /// The value in a slot. The name is as written; `given(mask)` is a variable of that name.
    Variable {
        /// The slot.
        index: u16,
        /// The name.
        name: String,
    },
    /// An int widened to a float.
    Widen(Box<Node>),
    /// `-operand`
    Negate(Box<Node>),
    /// `not operand`
    Not(Box<Node>),
    /// Arithmetic on two ints or two floats; `/` on floats only.
    Arithmetic {
        /// Which one.
        operator: Arithmetic,
        /// The left operand.
        left: Box<Node>,
        /// The right operand.
        right: Box<Node>,
    },
    /// `and` or `or`; the right operand is evaluated only if the left one does not determine the result.
    Logic {
        /// Which one.
        operator: Logic,
        /// The left operand.
        left: Box<Node>,
        /// The right operand.
        right: Box<Node>,
    },
    /// A comparison of two values of one type.
    Compare {
        /// Which one.
        operator: Comparison,
        /// The left operand.
        left: Box<Node>,
        /// The right operand.
        right: Box<Node>,
    },
    /// `item in [list]`: equality with the items from the left, stopping at the first that is equal.
    Member {
        /// Whether it is `not in`.
        negated: bool,
        /// The item.
        item: Box<Node>,
        /// The list; never empty.
        list: Vec<Node>,
    },
    /// `then if condition else otherwise`; only the selected branch is evaluated.
    Conditional {
        /// The condition.
        condition: Box<Node>,
        /// The value when it holds.
        then: Box<Node>,
        /// The value when it does not.
        otherwise: Box<Node>,
    },
    /// A function of one or more arguments.
    Call {
        /// Which one.
        function: Function,
        /// The arguments, all of one type; never empty.
        arguments: Vec<Node>,
    },
}

/// The functions of the language. `given` is not one of them: it is resolved to a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `ceil_div(int, int)`
    CeilDiv,
    /// `min(…)`, folded from the left
    Min,
    /// `max(…)`, folded from the left
    Max,
    /// `abs(x)`
    Abs,
    /// `sqrt(float)`
    Sqrt,
    /// `exp(float)`
    Exp,
    /// `log(float)`, the natural logarithm
    Log,
    /// `tanh(float)`
    Tanh,
}

impl Function {
    /// All functions with the names that texts use.
    pub const ALL: [(&'static str, Function); 8] = [
        ("ceil_div", Function::CeilDiv),
        ("min", Function::Min),
        ("max", Function::Max),
        ("abs", Function::Abs),
        ("sqrt", Function::Sqrt),
        ("exp", Function::Exp),
        ("log", Function::Log),
        ("tanh", Function::Tanh),
    ];

    /// Whether it takes floats only; an int argument is widened.
    pub fn is_float(self) -> bool {
        matches!(self, Function::Sqrt | Function::Exp | Function::Log | Function::Tanh)
    }
}

impl Node {
    /// The child nodes.
    pub fn children(&self) -> Vec<&Node> {
        match &self.kind {
            NodeKind::Constant(_) | NodeKind::Variable { .. } => vec![],
            NodeKind::Widen(operand) | NodeKind::Negate(operand) | NodeKind::Not(operand) => vec![operand],
            NodeKind::Arithmetic { left, right, .. }
            | NodeKind::Logic { left, right, .. }
            | NodeKind::Compare { left, right, .. } => vec![left, right],
            NodeKind::Member { item, list, .. } => std::iter::once(&**item).chain(list).collect(),
            NodeKind::Conditional { condition, then, otherwise } => vec![condition, then, otherwise],
            NodeKind::Call { arguments, .. } => arguments.iter().collect(),
        }
    }

    /// The variables in the subtree, without duplicates, in slot order.
    pub fn variables(&self) -> Vec<NamedVariable> {
        let mut found = Vec::new();
        self.visit(&mut |node| {
            if let NodeKind::Variable { index, name } = &node.kind {
                found.push(NamedVariable { name: name.clone(), index: *index, ty: node.ty.clone() });
            }
        });
        found.sort_by_key(|variable| variable.index);
        found.dedup_by_key(|variable| variable.index);
        found
    }

    /// Calls `visitor` for every node of the subtree.
    pub fn visit(&self, visitor: &mut impl FnMut(&Node)) {
        let mut waiting = vec![self];
        while let Some(node) = waiting.pop() {
            visitor(node);
            waiting.extend(node.children());
        }
    }

    /// The number of nodes of the subtree.
    pub fn size(&self) -> usize {
        let mut count = 0;
        self.visit(&mut |_| count += 1);
        count
    }

    /// Whether evaluation cannot fail, provided that the slots have values of the declared types.
    pub fn is_total(&self) -> bool {
        let mut total = true;
        self.visit(&mut |node| {
            total &= match &node.kind {
                NodeKind::Arithmetic { .. } => false,
                NodeKind::Negate(operand) => operand.ty == Type::Float,
                NodeKind::Call { function: Function::Min | Function::Max, .. } => true,
                NodeKind::Call { function: Function::Abs, .. } => node.ty == Type::Float,
                NodeKind::Call { function: Function::Tanh, .. } => true,
                NodeKind::Call { .. } => false,
                _ => true,
            };
        });
        total
    }

    /// Widens an int node to float; a float node is unchanged. Literals are converted directly.
    pub(super) fn widened(self) -> Node {
        let span = self.span;
        let kind = match (self.kind, &self.ty) {
            (kind, Type::Float) => kind,
            (NodeKind::Constant(Value::Int(value)), _) => {
                NodeKind::Constant(Value::Float(super::arith::widen(value)))
            }
            (kind, _) => NodeKind::Widen(Box::new(Node { kind, ty: self.ty, span })),
        };
        Node { kind, ty: Type::Float, span }
    }
}

impl Typed {
    /// Converts the expression to a type: the same one, or float for an int, which is widened.
    pub fn expect(self, ty: &Type) -> Result<Typed, ExprError> {
        if self.ty == *ty {
            return Ok(self);
        }
        if self.ty == Type::Int && *ty == Type::Float {
            return Ok(Typed { root: self.root.widened(), text: self.text, ty: Type::Float });
        }
        let kind = ExprErrorKind::TypeMismatch {
            context: "the expression".to_owned(),
            expected: ty.to_string(),
            found: self.ty,
        };
        Err(ExprError { kind, span: self.root.span })
    }

    /// The variables that the expression reads, without duplicates, in slot order.
    pub fn variables(&self) -> Vec<NamedVariable> {
        self.root.variables()
    }

    /// The value of a constant expression that evaluates without error.
    pub fn fold_constant(&self) -> Option<Value> {
        self.constant_result().and_then(Result::ok)
    }

    /// The result of a constant expression, including errors, so that `1 // 0` can be rejected early.
    pub fn constant_result(&self) -> Option<Result<Value, EvalError>> {
        self.variables().is_empty().then(|| Program::compile(self).eval(&[]))
    }

    /// Whether evaluation cannot fail, provided that the slots have values of the declared types.
    pub fn is_total(&self) -> bool {
        self.root.is_total()
    }
}
