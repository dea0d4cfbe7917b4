//! Activations written out: GELU in both forms, SiLU, ReLU; gates; and the catalog's operations for all of them.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
use std::sync::LazyLock;

use lz_core::DType;

use super::pattern::{Number, Pattern, binary, capture, plus, power, product, unary};
use super::query;
use super::rewriter::Rewriter;
use crate::build::ParamValue;
use crate::graph::{Graph, NodeId};

/// An activation that is written out, and the function of `primitive.activation` that it is.
struct Spelling {
    function: &'static str,
    pattern: Pattern,
}

static SPELLINGS: LazyLock<Vec<Spelling>> = LazyLock::new(|| {
    let x = || capture("x");
    let erf = unary("erf", product(FRAC_1_SQRT_2, [x()]));
    let cubic = binary("add", x(), product(0.044_715, [power(x(), 3)]));
    let tanh = unary("tanh", product(FRAC_2_PI.sqrt(), [cubic]));
    // x (1 + 0.044715 x²) is the same polynomial.
    let factored = plus(product(0.044_715, [power(x(), 2)]), Number::Is(1.0));
    let factored = unary("tanh", product(FRAC_2_PI.sqrt(), [x(), factored]));
    let spelling = |function, pattern| Spelling { function, pattern };
    vec![
        spelling("gelu", product(0.5, [x(), plus(erf, Number::Is(1.0))])),
        spelling("gelu_tanh", product(0.5, [x(), plus(tanh, Number::Is(1.0))])),
        spelling("gelu_tanh", product(0.5, [x(), plus(factored, Number::Is(1.0))])),
        spelling("silu", product(1.0, [x(), Pattern::Activation("sigmoid", Box::new(x()))])),
        spelling("silu", binary("div", x(), plus(unary("exp", unary("neg", x())), Number::Is(1.0)))),
        spelling("sigmoid", unary("reciprocal", plus(unary("exp", unary("neg", x())), Number::Is(1.0)))),
    ]
});

pub fn run(rewriter: &mut Rewriter<'_>) {
    rewriter.each(|rewriter, id| {
        for spelling in SPELLINGS.iter() {
            if let Some(found) = spelling.pattern.find(rewriter, id)
                && let Some(x) = found.node("x")
                && rewriter.rewrite(id, &found.interior, |build| {
                    build.activation(spelling.function, x, None).map(Some)
                })
            {
                return;
            }
        }
        if let Some(x) = clamped_at_zero(rewriter.graph(), id) {
            rewriter.rewrite(id, &[], |build| build.activation("relu", x, None).map(Some));
            return;
        }
        steep_silu(rewriter, id);
        gate(rewriter, id);
    });
}

/// `max(x, 0)`.
fn clamped_at_zero(graph: &Graph, id: NodeId) -> Option<NodeId> {
    query::with_scalar(graph, id)
        .filter(|with| with.function == "maximum" && with.value == 0.0)
        .map(|with| with.x)
}

/// The function and the input of an activation that has no constants of its own: as a primitive or as the catalog's operation.
pub fn plain(graph: &Graph, id: NodeId) -> Option<(&str, NodeId)> {
    let call = graph.node(id).call()?;
    let x = graph.node(id).input(0)?;
    match &*call.operation.name {
        "primitive.activation" => {
            let function = query::case(graph, id, "function")?;
            let plain = matches!(function, "relu" | "sigmoid" | "silu" | "gelu" | "gelu_tanh");
            plain.then_some((function, x))
        }
        "activation.relu" => Some(("relu", x)),
        "activation.silu" if query::float(graph, id, "alpha") == Some(1.0) => Some(("silu", x)),
        "activation.gelu" => match query::case(graph, id, "approximate")? {
            "tanh" => Some(("gelu_tanh", x)),
            _ => Some(("gelu", x)),
        },
        _ => None,
    }
}

/// `x * sigmoid(alpha * x)`.
fn steep_silu(rewriter: &mut Rewriter<'_>, id: NodeId) {
    static STEEP: LazyLock<Pattern> = LazyLock::new(|| {
        let inner = Pattern::Product(Number::Capture("alpha"), vec![capture("x")]);
        product(1.0, [capture("x"), Pattern::Activation("sigmoid", Box::new(inner))])
    });
    let Some(found) = STEEP.find(rewriter, id) else { return };
    let (Some(x), Some(alpha)) = (found.node("x"), found.number("alpha")) else { return };
    let alpha = ParamValue::from(alpha);
    rewriter.rewrite(id, &found.interior, |build| {
        build.call("activation.silu", &[Some(x)], &[("alpha", alpha)]).map(Some)
    });
}

/// `silu(gate) * up` and `gelu(gate) * up`, unless the gate is a linear layer's: that is a gated block, or an epilogue.
fn gate(rewriter: &mut Rewriter<'_>, id: NodeId) {
    let graph = rewriter.graph();
    let Some((a, b)) = query::binary_of(graph, id, "mul") else { return };
    for (activated, up) in [(a, b), (b, a)] {
        let Some((function, x)) = plain(graph, activated) else { continue };
        let approximate = match function {
            "silu" => None,
            "gelu" => Some("none"),
            "gelu_tanh" => Some("tanh"),
            _ => continue,
        };
        let known = matches!(graph.node(id).dtype, DType::F32 | DType::F16 | DType::BF16);
        if !known || rewriter.uses(activated) != 1 {
            continue;
        }
        rewriter.rewrite(id, &[activated], |build| match approximate {
            None => build.call("activation.silu_mul", &[Some(x), Some(up)], &[]).map(Some),
            Some(form) => {
                let params = [("approximate", ParamValue::from(form))];
                build.call("activation.gelu_mul", &[Some(x), Some(up)], &params).map(Some)
            }
        });
        return;
    }
}
