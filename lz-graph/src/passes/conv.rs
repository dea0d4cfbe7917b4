//! Convolutions take over what follows them: factors and addends per channel (batch norms), the sum with another tensor (residuals) and
//! ReLU.

use super::rewriter::Rewriter;
use super::{activations, linear, query};
use crate::dim::Dim;
use crate::graph::{Graph, NodeId};

/// Index of `residual` among the inputs.
const RESIDUAL: usize = 3;

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        let _ = relu(rewriter, id) || per_channel(rewriter, id) || residual(rewriter, id);
    });
}

/// A convolution without activation that nothing else uses.
fn plain(rewriter: &Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    query::calls(graph, id, "primitive.conv2d")
        && query::case(graph, id, "activation") == Some("none")
        && rewriter.uses(id) == 1
}

/// A [`plain`] convolution that adds nothing yet: what follows comes right after its sums and bias.
fn open(rewriter: &Rewriter<'_>, id: NodeId) -> bool {
    plain(rewriter, id) && rewriter.graph().node(id).input(RESIDUAL).is_none()
}

/// `conv(x) + y` with `y` of the same shape. If both are convolutions, the first takes the result of the second.
fn residual(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "add") else { return false };
    let fits = |conv: NodeId, other: NodeId| {
        // Constants per channel become part of the bias, once the weights are folded.
        open(rewriter, conv)
            && graph.node(conv).shape == graph.node(other).shape
            && channel_constant(graph, other).is_none()
    };
    let Some((conv, other)) = [(a, b), (b, a)].into_iter().find(|(conv, other)| fits(*conv, *other)) else {
        return false;
    };
    let node = graph.node(conv);
    let (Some(call), mut inputs) = (node.call().cloned(), node.inputs.clone()) else { return false };
    inputs.resize(inputs.len().max(RESIDUAL + 1), None);
    inputs[RESIDUAL] = Some(other);
    rewriter.rewrite(id, &[conv], |build| build.call_with(call, inputs).map(Some))
}

fn relu(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    let graph = rewriter.graph();
    let Some(("relu", conv)) = activations::plain(graph, id) else { return false };
    if !plain(rewriter, conv) {
        return false;
    }
    let node = graph.node(conv);
    let Some(call) = node.call().and_then(|call| linear::with_case(call, "activation", "relu")) else {
        return false;
    };
    let inputs = node.inputs.clone();
    rewriter.rewrite(id, &[conv], |build| build.call_with(call, inputs).map(Some))
}

/// `conv(x) * scale`, `+ shift`, `- shift` with constants per channel. New weights are constants once they are folded.
fn per_channel(rewriter: &mut Rewriter<'_>, id: NodeId) -> bool {
    if rewriter.engine().is_none() {
        return false;
    }
    let graph = rewriter.graph();
    let Some((function, a, b)) = query::binary(graph, id) else { return false };
    let operands = match function {
        "mul" | "add" => vec![(a, b), (b, a)],
        "sub" | "div" => vec![(a, b)],
        _ => return false,
    };
    for (conv, operand) in operands {
        if !open(rewriter, conv) {
            continue;
        }
        let Some(values) = channel_constant(graph, operand) else { continue };
        let node = graph.node(conv);
        let (Some(weight), bias, Some(call)) = (node.input(1), node.input(2), node.call().cloned()) else {
            continue;
        };
        let constant = |id: NodeId| query::is_constant(graph, id);
        if !constant(weight) || !bias.is_none_or(constant) {
            continue;
        }
        let (function, mut inputs) = (function.to_owned(), node.inputs.clone());
        let channels = graph.node(weight).shape[0].clone();
        return rewriter.rewrite(id, &[conv], |build| {
            let vector = build.reshape(values, vec![channels.clone()])?;
            if matches!(function.as_str(), "mul" | "div") {
                let one = Dim::from(1);
                let column = build.reshape(vector, vec![channels, one.clone(), one.clone(), one])?;
                inputs[1] = Some(build.binary(&function, weight, column)?);
                inputs[2] = bias.map(|bias| build.binary(&function, bias, vector)).transpose()?;
            } else {
                inputs[2] = Some(match (bias, function.as_str()) {
                    (Some(bias), _) => build.binary(&function, bias, vector)?,
                    (None, "sub") => build.unary("neg", vector)?,
                    (None, _) => vector,
                });
            }
            build.call_with(call, inputs).map(Some)
        });
    }
    false
}

/// A constant with one element per channel: `[channels, 1, 1]` or `[1, channels, 1, 1]` that is repeated.
fn channel_constant(graph: &Graph, id: NodeId) -> Option<NodeId> {
    let source = query::before_expand(graph, id);
    let mut shape = graph.node(source).shape.clone();
    while shape.len() < 4 {
        shape.insert(0, Dim::from(1));
    }
    let fits = shape[0].is(1) && shape[2].is(1) && shape[3].is(1) && shape[1] == graph.node(id).shape[1];
    (fits && query::is_constant(graph, source)).then_some(source)
}
