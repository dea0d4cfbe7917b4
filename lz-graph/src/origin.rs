//! Ids of nodes, and where nodes came from.

use std::fmt;

/// A node of a graph, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Where a node came from, for messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The node's name in the imported model.
    pub name: String,
    /// The operator as the front end spells it.
    pub operator: String,
    /// The place in the user's source, if the front end has it.
    pub source: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.operator.is_empty(), self.name.is_empty()) {
            (true, true) => f.write_str("a node without a name")?,
            (true, false) => write!(f, "`{}`", self.name)?,
            (false, true) => write!(f, "{}", self.operator)?,
            (false, false) => write!(f, "{} `{}`", self.operator, self.name)?,
        }
        if !self.source.is_empty() {
            write!(f, " at {}", self.source)?;
        }
        Ok(())
    }
}
