//! Matrix products.

use lz_core::DType;

use super::super::op::{Handler, Op, Outputs, one};
use crate::dim::Dim;
use crate::error::GraphError;
use crate::graph::NodeId;

pub const OPERATORS: &[(&str, Handler)] =
    &[("Einsum", einsum), ("Gemm", gemm), ("MatMul", matmul), ("MatMulInteger", matmul_integer)];

fn matmul(op: &mut Op<'_>) -> Outputs {
    let (a, b) = (op.x(0)?, op.x(1)?);
    one(op.build.matmul(a, b)?)
}

/// `alpha A B + beta C`; a bias of one row is part of the product.
fn gemm(op: &mut Op<'_>) -> Outputs {
    let (mut a, mut b) = (op.x(0)?, op.x(1)?);
    let addend = op.maybe(2)?;
    let (alpha, beta) = (op.float("alpha", 1.0)?, op.float("beta", 1.0)?);
    let (transpose_a, transpose_b) = (op.flag("transA", false)?, op.flag("transB", false)?);
    // Before opset 7 it permitted what is always permitted since.
    op.attribute("broadcast");
    if op.build.rank(a) != 2 || op.build.rank(b) != 2 {
        return Err(op.error("both factors must be matrices"));
    }
    if transpose_a {
        a = op.build.transpose(a, 0, 1)?;
    }
    let columns = op.build.shape(b)[usize::from(!transpose_b)].clone();
    let is_row = |op: &Op<'_>, addend: NodeId| op.build.shape(addend) == [columns.clone()];
    let bias = addend.filter(|&addend| beta == 1.0 && is_row(op, addend));
    if transpose_b && alpha == 1.0 && addend == bias {
        return one(op.build.linear(a, b, bias)?);
    }
    if transpose_b {
        b = op.build.transpose(b, 0, 1)?;
    }
    let product = op.build.call("primitive.matmul", &[Some(a), Some(b), bias], &[("alpha", alpha.into())])?;
    match addend.filter(|_| bias.is_none() && beta != 0.0) {
        None => one(product),
        Some(addend) => {
            let scaled =
                if beta == 1.0 { addend } else { op.build.binary_scalar("mul", addend, beta, false)? };
            one(op.build.binary("add", product, scaled)?)
        }
    }
}

/// Exact in f64: sums of products of 8-bit numbers are far below 2^53.
fn matmul_integer(op: &mut Op<'_>) -> Outputs {
    let mut factors = [op.x(0)?, op.x(1)?];
    for (index, factor) in factors.iter_mut().enumerate() {
        *factor = op.build.cast(*factor, DType::F64)?;
        if let Some(zero) = op.maybe(2 + index)? {
            let mut zero = op.build.cast(zero, DType::F64)?;
            // Zero points of A are one per row.
            if index == 0 && op.build.rank(zero) == 1 {
                zero = op.build.unsqueeze(zero, 1)?;
            }
            *factor = op.build.binary("sub", *factor, zero)?;
        }
    }
    let product = op.build.matmul(factors[0], factors[1])?;
    one(op.build.cast(product, DType::I32)?)
}

/// One or two operands without repeated labels or ellipses.
fn einsum(op: &mut Op<'_>) -> Outputs {
    let equation: String = op.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (terms, output) = match equation.split_once("->") {
        Some((terms, output)) => (terms.to_owned(), output.to_owned()),
        None => {
            // Labels that occur once, in alphabetical order.
            let mut labels: Vec<char> = equation.chars().filter(|c| *c != ',').collect();
            labels.sort_unstable();
            let once = labels.iter().filter(|c| labels.iter().filter(|other| other == c).count() == 1);
            (equation.clone(), once.collect())
        }
    };
    let terms: Vec<Vec<char>> = terms.split(',').map(|term| term.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let unique = |labels: &[char]| {
        labels
            .iter()
            .all(|c| c.is_ascii_alphabetic() && labels.iter().filter(|other| *other == c).count() == 1)
    };
    if !terms.iter().chain([&output]).all(|labels| unique(labels)) {
        return Err(
            op.error(format!("`{equation}` has repeated labels or an ellipsis, which is not supported"))
        );
    }
    if terms.len() != op.count() || !(1..=2).contains(&terms.len()) {
        return Err(op.error(format!("`{equation}` with {} operands, expected one or two", op.count())));
    }
    let mut operands = Vec::new();
    for (index, labels) in terms.iter().enumerate() {
        let x = op.x(index)?;
        if op.build.rank(x) != labels.len() {
            return Err(
                op.error(format!("operand {index} has {} dimensions in `{equation}`", op.build.rank(x)))
            );
        }
        let others: Vec<char> = terms
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .flat_map(|(_, labels)| labels.clone())
            .collect();
        operands.push(sum_out(op, x, labels, |label| output.contains(&label) || others.contains(&label))?);
    }
    let (result, labels) = match operands.as_slice() {
        [only] => only.clone(),
        [a, b] => contract(op, a, b, &output)?,
        _ => return Err(op.error("no operands")),
    };
    let order: Option<Vec<usize>> =
        output.iter().map(|label| labels.iter().position(|other| other == label)).collect();
    let Some(order) = order else { return Err(op.error(format!("`{equation}` has an unknown label"))) };
    one(op.build.permute(result, &order)?)
}

/// A tensor and the labels of its dimensions.
type Labeled = (NodeId, Vec<char>);

/// Sums over the labels that are not kept.
fn sum_out(
    op: &mut Op<'_>,
    x: NodeId,
    labels: &[char],
    keep: impl Fn(char) -> bool,
) -> Result<Labeled, GraphError> {
    let axes: Vec<usize> = (0..labels.len()).filter(|&axis| !keep(labels[axis])).collect();
    let kept = labels.iter().copied().filter(|label| keep(*label)).collect();
    let reduced = if axes.is_empty() { x } else { op.build.reduce("sum", x, &axes, false)? };
    Ok((reduced, kept))
}

/// The product of two operands, summed over labels that only they have.
fn contract(op: &mut Op<'_>, a: &Labeled, b: &Labeled, output: &[char]) -> Result<Labeled, GraphError> {
    let both = |label: &char| a.1.contains(label) && b.1.contains(label);
    let batch: Vec<char> =
        a.1.iter().copied().filter(|label| both(label) && output.contains(label)).collect();
    let inner: Vec<char> =
        a.1.iter().copied().filter(|label| both(label) && !output.contains(label)).collect();
    let own = |labels: &[char]| labels.iter().copied().filter(|label| !both(label)).collect::<Vec<char>>();
    let (left, right) = (own(&a.1), own(&b.1));
    let mut sizes = Vec::new();
    let mut matrix = |op: &mut Op<'_>, (x, labels): &Labeled, groups: [&[char]; 2]| {
        let wanted: Vec<char> = [&batch, groups[0], groups[1]].concat();
        let order: Vec<usize> =
            wanted.iter().filter_map(|label| labels.iter().position(|other| other == label)).collect();
        let moved = op.build.permute(*x, &order)?;
        let shape = op.build.shape(moved).to_vec();
        sizes.extend(wanted.iter().copied().zip(shape.iter().cloned()));
        let (first, rest) = shape.split_at(batch.len());
        let (rows, columns) = rest.split_at(groups[0].len());
        let mut matrices = first.to_vec();
        matrices.extend([Dim::product(rows), Dim::product(columns)]);
        op.build.reshape(moved, matrices)
    };
    let (a, b) = (matrix(op, a, [&left, &inner])?, matrix(op, b, [&inner, &right])?);
    let product = op.build.matmul(a, b)?;
    let labels: Vec<char> = [batch.as_slice(), &left, &right].concat();
    let shape = labels
        .iter()
        .filter_map(|label| sizes.iter().find(|(other, _)| other == label).map(|(_, size)| size.clone()))
        .collect();
    Ok((op.build.reshape(product, shape)?, labels))
}
