//! The operations that descriptors, tables and policies may name, by name and by alias.

use lz_schema::diagnostics::nearest;
use lz_schema::expr::{Type, VariableTable};
use lz_schema::model::{Alias, Kind, Operation, ParamType, Slot};

/// Operations by name and alias.
#[derive(Debug, Clone, Default)]
pub struct Catalog<'a> {
    operations: Vec<&'a Operation>,
}

/// A target of a name, with the alias that fixes some params.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The operation.
    pub operation: &'a Operation,
    /// The alias, if the name was one.
    pub alias: Option<&'a Alias>,
}

impl<'a> Catalog<'a> {
    /// A catalog of these operations.
    pub fn new(operations: impl IntoIterator<Item = &'a Operation>) -> Catalog<'a> {
        Catalog { operations: operations.into_iter().collect() }
    }

    /// Resolves a name: one operation, all operations of an alias, or nothing.
    pub fn resolve(&self, name: &str) -> Vec<Target<'a>> {
        if let Some(operation) = self.operations.iter().find(|operation| operation.name == name) {
            return vec![Target { operation, alias: None }];
        }
        let with_alias = self.operations.iter().filter_map(|operation| {
            let alias = operation.aliases.iter().find(|alias| alias.name == name)?;
            Some(Target { operation, alias: Some(alias) })
        });
        with_alias.collect()
    }

    /// All names, operations first.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        let operations = self.operations.iter().map(|operation| operation.name.as_str());
        let aliases = self.operations.iter().flat_map(|operation| &operation.aliases);
        operations.chain(aliases.map(|alias| alias.name.as_str()))
    }

    /// The most similar name.
    pub fn nearest(&self, name: &str) -> Option<&'a str> {
        nearest(name, self.names())
    }
}

/// The scope of limit expressions, numbered by the operation's slots.
pub(crate) fn scope(operation: &Operation) -> VariableTable {
    let mut table = VariableTable::new();
    for slot in operation.slots() {
        match slot {
            Slot::Axis(axis) => table.add(operation.axes[axis].name.as_str(), Type::Int),
            Slot::Param(param) => {
                let param = &operation.params[param];
                let ty = match &param.ty {
                    ParamType::Int => Type::Int,
                    ParamType::F32 | ParamType::F64 => Type::Float,
                    ParamType::Bool => Type::Bool,
                    ParamType::Enum(cases) => Type::enumeration(cases.iter().cloned()),
                };
                table.add(param.name.as_str(), ty)
            }
            Slot::Given(input) => table.add_given(operation.inputs[input].name.as_str()),
        };
    }
    table
}

/// Whether an input is a KV-cache tensor, by the naming convention of the schemas.
pub fn is_cache(operation: &Operation, input: usize) -> bool {
    operation
        .inputs
        .get(input)
        .is_some_and(|input| input.kind == Kind::Tensor && input.name.contains("cache"))
}
