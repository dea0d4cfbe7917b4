//! Graphs as text: one line per node, for `explain`, snapshots and messages.

use std::fmt;

use lz_schema::model::ParamType;

use crate::graph::{Graph, Node, NodeId, NodeKind, Param, View};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.symbols.iter().enumerate() {
            write!(f, "s{index} = {} in {}..=", symbol.name, symbol.min)?;
            if symbol.max == i64::MAX { writeln!(f)? } else { writeln!(f, "{}", symbol.max)? }
        }
        for id in self.ids() {
            writeln!(f, "{}", self.line(id))?;
        }
        for check in &self.checks {
            writeln!(f, "check {} == {}: {}", check.left, check.right, check.because)?;
        }
        let outputs: Vec<String> =
            self.outputs.iter().map(|output| format!("{}: {}", output.name, output.node)).collect();
        write!(f, "return {}", outputs.join(", "))
    }
}

impl Graph {
    /// One node as text: `%3: f32[s0, 64] = mlp.linear(%1, %2)`.
    pub fn line(&self, id: NodeId) -> String {
        let node = self.node(id);
        let sizes: Vec<String> = node.shape.iter().map(ToString::to_string).collect();
        format!("{id}: {}[{}] = {}", node.dtype.name(), sizes.join(", "), self.expression(node))
    }

    fn expression(&self, node: &Node) -> String {
        let mut arguments: Vec<String> = Vec::new();
        let inputs = || {
            node.inputs.iter().map(|input| input.map_or_else(|| "-".to_owned(), |input| input.to_string()))
        };
        let name = match &node.kind {
            NodeKind::Input(index) => {
                let input = &self.inputs[*index];
                return format!("input {}{}", input.name, if input.mutable { " (mutable)" } else { "" });
            }
            NodeKind::Constant(index) => match self.scalar_text(*index) {
                Some(value) => return format!("constant {value}"),
                None => return format!("constant {}", self.constants[*index].name),
            },
            NodeKind::Sizes(dims) => {
                arguments.extend(dims.iter().map(ToString::to_string));
                "sizes".to_owned()
            }
            NodeKind::Call(call) => {
                let last = node.inputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                arguments.extend(inputs().take(last));
                for (param, about) in call.params.iter().zip(&call.operation.schema().params) {
                    if let Some(param) = param {
                        arguments.push(format!("{}={}", about.name, param_text(param, &about.ty)));
                    }
                }
                call.operation.name.to_string()
            }
            NodeKind::Projection(output) => {
                arguments.extend(inputs());
                format!("output {output} of")
            }
            NodeKind::Written(input) => {
                arguments.extend(inputs());
                format!("written {input} of")
            }
            NodeKind::View(view) => {
                arguments.extend(inputs());
                match view {
                    View::Reshape => "reshape".to_owned(),
                    View::Expand => "expand".to_owned(),
                    View::Permute(order) => {
                        arguments.push(format!("{order:?}"));
                        "permute".to_owned()
                    }
                    View::Slice { axis, start, step } => {
                        arguments.push(format!("axis={axis}, start={start}, step={step}"));
                        "slice".to_owned()
                    }
                }
            }
            NodeKind::Concat(axis) => {
                arguments.extend(inputs());
                arguments.push(format!("axis={axis}"));
                "concat".to_owned()
            }
        };
        format!("{name}({})", arguments.join(", "))
    }

    fn scalar_text(&self, constant: usize) -> Option<String> {
        let view = self.constants.get(constant)?.view();
        let index = [0i64; lz_core::tensor::MAX_RANK];
        (view.elements() == 1).then(|| view.at(&index[..view.rank()]).to_string())
    }
}

fn param_text(param: &Param, ty: &ParamType) -> String {
    match (param, ty) {
        (Param::Int(dim), _) => dim.to_string(),
        (Param::Float(value), _) => value.to_string(),
        (Param::Bool(value), _) => value.to_string(),
        (Param::Enum(case), ParamType::Enum(cases)) => {
            cases.get(*case as usize).cloned().unwrap_or_else(|| case.to_string())
        }
        (Param::Enum(case), _) => case.to_string(),
    }
}
