//! A softmax that is written out, and that no attention took.

use std::sync::LazyLock;

use super::pattern::{Pattern, binary, capture, unary};
use super::rewriter::Rewriter;
use crate::graph::NodeId;

/// `exp(x - max(x)) / sum(exp(x - max(x)))`.
static SOFTMAX: LazyLock<Pattern> = LazyLock::new(|| {
    let row = |function, x| {
        let column = Pattern::Column(Box::new(Pattern::Reduce(function, Box::new(x))));
        Pattern::Across(Box::new(column))
    };
    let exponent = || unary("exp", binary("sub", capture("x"), row("maximum", capture("x"))));
    binary("div", exponent(), row("sum", exponent()))
});

/// The input and the interior nodes of a softmax that is written out.
pub fn written_out(rewriter: &Rewriter<'_>, id: NodeId) -> Option<(NodeId, Vec<NodeId>)> {
    let found = SOFTMAX.find(rewriter, id)?;
    Some((found.node("x")?, found.interior))
}

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        if let Some((x, interior)) = written_out(rewriter, id) {
            let last = rewriter.node(x).rank().saturating_sub(1);
            rewriter.rewrite(id, &interior, |build| build.softmax(x, last, false).map(Some));
        }
    });
}
