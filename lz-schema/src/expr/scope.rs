//! The scope in which names are resolved: a trait, and a table that implements it.

use std::collections::BTreeMap;

use super::value::Type;

/// The slot and the type of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variable {
    /// The index into the values slice.
    pub index: u16,
    /// The type of the value in that slot.
    pub ty: Type,
}

/// A variable together with the name that an expression uses for it.
///
/// The presence of an optional input is a variable, too; its name is written as in the text: `given(mask)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedVariable {
    /// The name.
    pub name: String,
    /// The index into the values slice.
    pub index: u16,
    /// The type of the value in that slot.
    pub ty: Type,
}

/// The names that an expression may use.
pub trait Scope {
    /// The variable of that name.
    fn variable(&self, name: &str) -> Option<Variable>;

    /// All variable names, for suggestions.
    fn names(&self) -> Vec<String>;

    /// The bool variable of `given(input)`; `None` if there is no such optional input.
    fn is_given_name(&self, input: &str) -> Option<Variable>;

    /// All names that `given` accepts, for suggestions.
    fn given_names(&self) -> Vec<String>;
}

/// A scope that assigns consecutive slots to its variables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VariableTable {
    variables: BTreeMap<String, Variable>,
    given: BTreeMap<String, Variable>,
    slots: u16,
}

impl VariableTable {
    /// An empty table.
    pub fn new() -> VariableTable {
        VariableTable::default()
    }

    /// Adds a variable and returns its slot. An existing name keeps its slot and gets the new type. `None` if all 65535 slots are
    /// used.
    pub fn add(&mut self, name: impl Into<String>, ty: Type) -> Option<u16> {
        Self::insert(&mut self.variables, &mut self.slots, name.into(), ty)
    }

    /// Adds an optional input for `given(input)` and returns its slot, as [`VariableTable::add`] does.
    pub fn add_given(&mut self, input: impl Into<String>) -> Option<u16> {
        Self::insert(&mut self.given, &mut self.slots, input.into(), Type::Bool)
    }

    /// The number of slots, which is the required length of the values slice.
    pub fn slots(&self) -> usize {
        usize::from(self.slots)
    }

    fn insert(
        table: &mut BTreeMap<String, Variable>,
        slots: &mut u16,
        name: String,
        ty: Type,
    ) -> Option<u16> {
        if let Some(present) = table.get_mut(&name) {
            present.ty = ty;
            return Some(present.index);
        }
        let index = *slots;
        *slots = slots.checked_add(1)?;
        table.insert(name, Variable { index, ty });
        Some(index)
    }
}

impl Scope for VariableTable {
    fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.variables.keys().cloned().collect()
    }

    fn is_given_name(&self, input: &str) -> Option<Variable> {
        self.given.get(input).cloned()
    }

    fn given_names(&self) -> Vec<String> {
        self.given.keys().cloned().collect()
    }
}
