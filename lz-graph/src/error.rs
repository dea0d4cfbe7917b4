//! Errors of every stage, with the node and where it came from.

use std::fmt;
use std::sync::Arc;

use lz_core::{Reason, ReasonCode};

use crate::origin::{NodeId, Origin};

/// Why a graph cannot be built, planned or run.
#[derive(Debug, Clone)]
pub enum GraphError {
    /// The front end met a node that it cannot import.
    Import {
        /// The node.
        origin: Arc<Origin>,
        /// Why.
        message: String,
    },
    /// A file that cannot be read.
    File {
        /// Its name.
        path: String,
        /// Why.
        message: String,
    },
    /// A call whose arguments do not satisfy the operation's schema.
    Call {
        /// The operation.
        operation: String,
        /// The node.
        origin: Arc<Origin>,
        /// Every problem.
        reasons: Vec<Reason>,
    },
    /// Nodes depend on each other in a cycle.
    Cycle {
        /// A node of the cycle.
        node: NodeId,
        /// Where it came from.
        origin: Arc<Origin>,
    },
    /// A validator refused the result of a stage.
    Invalid {
        /// The stage.
        stage: &'static str,
        /// Every finding.
        findings: Vec<String>,
    },
    /// Inputs of a run that do not fit the graph.
    Input {
        /// The input; empty if it is about all of them.
        name: String,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// A kernel failed, or no kernel is eligible.
    Run {
        /// The node.
        origin: Arc<Origin>,
        /// The engine's error.
        error: Box<lz_core::Error>,
    },
    /// A saved program that does not fit this process.
    Artifact {
        /// What differs, and what to do.
        message: String,
    },
}

impl GraphError {
    /// A node that cannot be imported.
    pub fn import(origin: &Origin, message: impl Into<String>) -> GraphError {
        GraphError::Import { origin: Arc::new(origin.clone()), message: message.into() }
    }

    /// An error of the engine at a node.
    pub fn run(origin: &Arc<Origin>, error: lz_core::Error) -> GraphError {
        GraphError::Run { origin: origin.clone(), error: Box::new(error) }
    }

    /// An input of a run that does not fit.
    pub fn input(name: impl Into<String>, message: impl Into<String>) -> GraphError {
        GraphError::Input { name: name.into(), message: message.into() }
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphError::Import { origin, message } => write!(f, "cannot import {origin}: {message}"),
            GraphError::File { path, message } => write!(f, "{path}: {message}"),
            GraphError::Call { operation, origin, reasons } => {
                write!(f, "{origin}: invalid call of {operation}")?;
                reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))
            }
            GraphError::Cycle { node, origin } => {
                write!(f, "the graph has a cycle through {node} ({origin})")
            }
            GraphError::Invalid { stage, findings } => {
                write!(f, "{stage}: {} problems", findings.len())?;
                findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
            }
            GraphError::Input { name, message } if name.is_empty() => f.write_str(message),
            GraphError::Input { name, message } => write!(f, "input `{name}`: {message}"),
            GraphError::Run { origin, error } => write!(f, "{origin}: {error}"),
            GraphError::Artifact { message } => f.write_str(message),
        }
    }
}

impl std::error::Error for GraphError {}

impl From<GraphError> for lz_core::Error {
    fn from(error: GraphError) -> lz_core::Error {
        let message = error.to_string();
        match error {
            GraphError::Run { error, .. } => *error,
            GraphError::Input { name, .. } => {
                let reason = Reason::new(ReasonCode::ShapeMismatch).argument(&name).message(message);
                lz_core::Error::Validation { operation: "graph".to_owned(), reasons: vec![reason] }
            }
            GraphError::Call { operation, reasons, .. } => lz_core::Error::Validation { operation, reasons },
            _ => lz_core::Error::Configuration {
                subject: "a compiled model".to_owned(),
                reasons: vec![Reason::new(ReasonCode::OperationUnknown).message(message.clone())],
                message,
            },
        }
    }
}
