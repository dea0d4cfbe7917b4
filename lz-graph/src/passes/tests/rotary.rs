//! Rotary embeddings in both pairings.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Halves,
    Adjacent,
    /// The sign is on the wrong half.
    WrongSign,
    /// Cosines that differ in the two halves.
    DifferentHalves,
    /// Only the first features are rotated.
    Partial,
}

/// `[batch, heads, length, features]` rotated as Hugging Face writes it.
fn rotary(build: &mut Builder, variant: Variant, shared_batch: bool) -> Built {
    let batch = Dim::from(build.graph_mut().symbol("batch", 1, i64::MAX));
    let length = Dim::from(build.graph_mut().symbol("length", 1, i64::MAX));
    let features = if variant == Variant::Partial { 12 } else { 8 };
    let x =
        build.input("x", vec![batch.clone(), length.clone(), Dim::from(2), Dim::from(features)], DType::F32);
    let whole = build.transpose(x, 1, 2)?;
    let x = if variant == Variant::Partial {
        build.slice(whole, 3, Dim::from(0), Dim::from(8), 1)?
    } else {
        whole
    };
    let rows = if shared_batch { Dim::from(1) } else { batch };
    let angles = build.input("angles", vec![rows.clone(), length.clone(), Dim::from(4)], DType::F32);
    let doubled = match variant {
        Variant::Adjacent => {
            let column = build.unsqueeze(angles, 3)?;
            let pairs = build.expand(column, &[rows.clone(), length.clone(), Dim::from(4), Dim::from(2)])?;
            build.reshape(pairs, vec![rows, length, Dim::from(8)])?
        }
        Variant::DifferentHalves => {
            let other = build.binary_scalar("mul", angles, 2.0, false)?;
            build.concat(&[angles, other], 2)?
        }
        _ => build.concat(&[angles, angles], 2)?,
    };
    let (cos, sin) = (build.unary("cos", doubled)?, build.unary("sin", doubled)?);
    let (cos, sin) = (build.unsqueeze(cos, 1)?, build.unsqueeze(sin, 1)?);
    let straight = build.binary("mul", x, cos)?;
    let turned = turned(build, x, variant)?;
    let turned = build.binary("mul", turned, sin)?;
    let rotated = build.binary("add", straight, turned)?;
    if variant == Variant::Partial {
        let rest = build.slice(whole, 3, Dim::from(8), Dim::from(4), 1)?;
        return build.concat(&[rotated, rest], 3);
    }
    Ok(rotated)
}

fn turned(build: &mut Builder, x: NodeId, variant: Variant) -> Built {
    if variant == Variant::Adjacent {
        let even = build.slice(x, 3, Dim::from(0), Dim::from(4), 2)?;
        let odd = build.slice(x, 3, Dim::from(1), Dim::from(4), 2)?;
        let negated = build.unary("neg", odd)?;
        let (first, second) = (build.unsqueeze(negated, 4)?, build.unsqueeze(even, 4)?);
        let pairs = build.concat(&[first, second], 4)?;
        let shape = build.shape(x).to_vec();
        return build.reshape(pairs, shape);
    }
    let low = build.slice(x, 3, Dim::from(0), Dim::from(4), 1)?;
    let high = build.slice(x, 3, Dim::from(4), Dim::from(4), 1)?;
    if variant == Variant::WrongSign {
        let negated = build.unary("neg", low)?;
        return build.concat(&[high, negated], 3);
    }
    let negated = build.unary("neg", high)?;
    build.concat(&[negated, low], 3)
}

#[test]
fn rotary_embeddings_are_one_call() {
    insta::assert_snapshot!(both(&graph(|build| rotary(build, Variant::Halves, true))));
}

#[test]
fn positions_of_each_batch_row_are_kept() {
    insta::assert_snapshot!(both(&graph(|build| rotary(build, Variant::Halves, false))));
}

#[test]
fn adjacent_and_partial_rotations_are_one_call() {
    for variant in [Variant::Adjacent, Variant::Partial] {
        let before = graph(|build| rotary(build, variant, true));
        let (after, _) = optimized(&before, &[]);
        assert_eq!(calls(&after), ["primitive.unary", "primitive.unary", "posenc.rope"], "{after}");
        assert_eq!(after.to_string().contains("interleaved=true"), variant == Variant::Adjacent, "{after}");
    }
}

#[test]
fn other_rotations_stay() {
    for variant in [Variant::WrongSign, Variant::DifferentHalves] {
        let before = graph(|build| rotary(build, variant, true));
        let (after, _) = optimized(&before, &[]);
        assert!(!calls(&after).contains(&"posenc.rope".to_owned()), "{after}");
    }
}
