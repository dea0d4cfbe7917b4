//! The symbol table of one operation, for its shapes and expressions.

use crate::expr::{Scope, Type, Variable};
use crate::source::Span;

/// All names that a shape or an expression of the operation may use.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// Axes, in order.
    pub axes: Vec<AxisSymbol>,
    /// Params, in order.
    pub params: Vec<ParamSymbol>,
    /// Optional inputs, in order: name.
    pub given: Vec<String>,
    /// Required inputs.
    pub required: Vec<String>,
    /// Dtype variables, in order.
    pub types: Vec<TypeSymbol>,
}

#[derive(Debug)]
pub(super) struct AxisSymbol {
    pub name: String,
    pub span: Span,
    pub pack: bool,
    pub dynamic: bool,
    pub fixed: bool,
    /// The declaration has errors, so its uses are not checked.
    pub broken: bool,
    /// The first use in a shape or expression.
    pub used: Option<Span>,
}

#[derive(Debug)]
pub(super) struct ParamSymbol {
    pub name: String,
    pub span: Span,
    /// `None` if the declared type has errors; expressions that use the parameter are then not checked.
    pub ty: Option<Type>,
    /// Expressions of the schema may not read it.
    pub is_statistic: bool,
}

#[derive(Debug)]
pub(super) struct TypeSymbol {
    pub name: String,
    pub span: Span,
    pub used_by_input: bool,
    pub used_by_output: Option<Span>,
}

/// The item that a slot refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol {
    Axis(usize),
    Param(usize),
    Given(usize),
}

impl Symbols {
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.name == name)
    }

    pub fn param(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }

    pub fn type_variable(&self, name: &str) -> Option<usize> {
        self.types.iter().position(|variable| variable.name == name)
    }

    /// The slot of a symbol; the order is that of `model::Operation::slots`.
    pub fn slot(&self, symbol: Symbol) -> u16 {
        let index = match symbol {
            Symbol::Axis(axis) => axis,
            Symbol::Param(param) => self.axes.len() + param,
            Symbol::Given(given) => self.axes.len() + self.params.len() + given,
        };
        // Slots are u16; real schemas have far fewer than 65536 names.
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    pub fn symbol(&self, slot: u16) -> Symbol {
        let index = usize::from(slot);
        match index.checked_sub(self.axes.len()) {
            None => Symbol::Axis(index),
            Some(index) => match index.checked_sub(self.params.len()) {
                None => Symbol::Param(index),
                Some(index) => Symbol::Given(index),
            },
        }
    }

    /// Whether the name is a parameter whose declared type has errors.
    pub fn has_invalid_type(&self, name: &str) -> bool {
        self.params.iter().any(|param| param.name == name && param.ty.is_none())
    }
}

impl Scope for Symbols {
    fn variable(&self, name: &str) -> Option<Variable> {
        if let Some(axis) = self.axis(name) {
            return Some(Variable { index: self.slot(Symbol::Axis(axis)), ty: Type::Int });
        }
        let param = self.param(name)?;
        let ty = self.params.get(param)?.ty.clone()?;
        Some(Variable { index: self.slot(Symbol::Param(param)), ty })
    }

    fn names(&self) -> Vec<String> {
        let axes = self.axes.iter().map(|axis| axis.name.clone());
        axes.chain(self.params.iter().map(|param| param.name.clone())).collect()
    }

    fn is_given_name(&self, input: &str) -> Option<Variable> {
        let given = self.given.iter().position(|name| name == input)?;
        Some(Variable { index: self.slot(Symbol::Given(given)), ty: Type::Bool })
    }

    fn given_names(&self) -> Vec<String> {
        self.given.clone()
    }
}
