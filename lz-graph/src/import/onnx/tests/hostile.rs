//! Random changes to a valid model are errors or other models, never panics.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::{Options, from_bytes};
use super::writer::*;

/// One change to a buffer, at a random index.
#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Repeat(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        any::<Index>().prop_map(Mutation::Truncate),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let length = bytes.len();
    if length == 0 {
        return;
    }
    match mutation {
        Mutation::Set(at, byte) => bytes[at.index(length)] = *byte,
        Mutation::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Mutation::Insert(at, byte) => bytes.insert(at.index(length), *byte),
        Mutation::Remove(at) => drop(bytes.remove(at.index(length))),
        Mutation::Truncate(at) => bytes.truncate(at.index(length)),
        Mutation::Repeat(from, to) => {
            let (from, to) = (from.index(length), to.index(length));
            let piece = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(from..from, piece);
        }
    }
}

/// A model with an example of most forms: sizes, windows, slices, functions, branches.
fn large_model() -> Message {
    let branch =
        || graph(vec![node("Exp", "x", "inner")], vec![], vec![], vec![value("inner", 1, "n 3 8 8")]);
    let nodes = vec![
        node("Shape", "x", "shape"),
        node("Slice", "shape zeros twos", "head"),
        node("Mul", "head twos", "doubled"),
        node("Div", "doubled twos", "halved"),
        node("Concat", "halved minus", "target").nested(5, int("axis", 0)),
        node("Conv", "x w", "c").nested(5, ints("pads", &[1, 1, 1, 1])).nested(5, ints("strides", &[2, 2])),
        node("MaxPool", "c", "m").nested(5, ints("kernel_shape", &[2, 2])).nested(5, int("ceil_mode", 1)),
        node("Slice", "x zeros minus", "s"),
        node("Split", "x", "p q").nested(5, int("axis", 3)).nested(5, int("num_outputs", 2)),
        node("Pad", "p pads", "padded"),
        node("Reshape", "x target", "flat"),
        node("Softmax", "flat", "soft"),
        node("Tile", "soft repeats", "tiled"),
        node("If", "yes", "f").nested(5, graph_attribute("then_branch", branch())),
        node("Twice", "f", "g").text(7, "local"),
        node("ReduceMean", "g axes", "y").nested(5, int("keepdims", 0)),
        node("Range", "zero n one", "range"),
        node("Einsum", "flat flat", "e")
            .nested(5, message().text(1, "equation").text(4, "abc,dbc->ad").int(20, 3)),
    ];
    let constants = vec![
        int_tensor("zeros", &[1], &[0]),
        int_tensor("twos", &[1], &[2]),
        int_tensor("repeats", &[3], &[2, 3, 1]),
        int_tensor("minus", &[1], &[-1]),
        int_tensor("axes", &[2], &[2, 3]),
        int_tensor("pads", &[8], &[0, 0, 1, 1, 0, 0, 1, -1]),
        int_tensor("zero", &[], &[0]),
        int_tensor("one", &[], &[1]),
        int_tensor("n", &[], &[10]),
        message().int(2, 9).int(5, 1).text(8, "yes"),
        float_tensor("w", &[4, 3, 3, 3], &[0.5; 108]),
    ];
    let inputs = vec![value("x", 1, "n 3 8 8")];
    let outputs = ["m", "s", "q", "padded", "tiled", "y", "e"].map(|name| value(name, 1, "")).to_vec();
    let outputs = outputs.into_iter().chain([value("range", 7, "")]).collect();
    let body = vec![node("Add", "a a", "b")];
    let function = message().text(1, "Twice").text(10, "local").text(4, "a").text(5, "b").all(7, body);
    let model = model(18, graph(nodes, constants, inputs, outputs));
    model.nested(8, opset("local", 1)).nested(25, function)
}

#[test]
fn unchanged_model_is_imported() {
    let graph = from_bytes(&large_model().0, &Options::default()).unwrap();
    assert_eq!(graph.outputs.len(), 8);
}

#[test]
fn sizes_that_grow_without_limit_are_refused() {
    let mut nodes = vec![node("Shape", "x", "s0")];
    nodes.push(node("ReduceSum", "s0", "v0"));
    nodes.extend((0..40).map(|step| node("Mul", &format!("v{step} v{step}"), &format!("v{}", step + 1))));
    let graph = graph(nodes, vec![], vec![value("x", 1, "a b c")], vec![value("v40", 7, "1")]);
    let error = from_bytes(&model(18, graph).0, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("a size is too complex an expression"), "{error}");
}

#[test]
fn deeply_nested_graphs_are_refused() {
    let mut inner = graph(vec![], vec![], vec![], vec![]);
    for _ in 0..100 {
        inner = graph(
            vec![node("If", "c", "y").nested(5, graph_attribute("then_branch", inner))],
            vec![],
            vec![],
            vec![],
        );
    }
    let error = from_bytes(&model(18, inner).0, &Options::default()).unwrap_err().to_string();
    assert!(error.ends_with("graphs are nested more than 16 levels deep"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn mutated_models_never_panic(mutations in prop::collection::vec(mutation(), 1..6)) {
        let mut bytes = large_model().0;
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        let _ = from_bytes(&bytes, &Options::default());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(from_bytes(&bytes, &Options::default()).is_err());
    }
}
