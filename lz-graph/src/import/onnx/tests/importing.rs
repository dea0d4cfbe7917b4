//! What becomes of operators, sizes, functions and branches; and what is refused.

use super::super::{Options, from_bytes};
use super::writer::*;
use crate::GraphError;

const FLOAT: i64 = 1;

fn import(model: Message) -> Result<crate::Graph, GraphError> {
    from_bytes(&model.0, &Options::default())
}

fn check_error(model: Message, expected: &str) {
    assert_eq!(import(model).unwrap_err().to_string(), expected);
}

#[test]
fn arithmetic_with_shapes_leaves_no_kernel() {
    let nodes = vec![
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "batch").nested(5, int("axis", 0)),
        node("Unsqueeze", "batch axes", "rows"),
        node("Mul", "rows two", "doubled"),
        node("Concat", "doubled rest", "target").nested(5, int("axis", 0)),
        node("Reshape", "x target", "y"),
        node("Shape", "y", "z"),
    ];
    let constants = vec![
        int_tensor("zero", &[], &[0]),
        int_tensor("axes", &[1], &[0]),
        int_tensor("two", &[1], &[2]),
        int_tensor("rest", &[1], &[-1]),
    ];
    let inputs = vec![value("x", FLOAT, "batch length 6")];
    let outputs = vec![value("y", FLOAT, "? ?"), value("z", 7, "2")];
    let graph = import(model(18, graph(nodes, constants, inputs, outputs))).unwrap();
    insta::assert_snapshot!(graph.to_string());
}

#[test]
fn one_name_is_one_symbol_and_unknown_sizes_have_their_own() {
    let nodes = vec![node("Add", "a b", "y")];
    let inputs = vec![value("a", FLOAT, "batch ? 4"), value("b", FLOAT, "batch ? 4")];
    let graph = import(model(14, graph(nodes, vec![], inputs, vec![value("y", FLOAT, "")]))).unwrap();
    insta::assert_snapshot!(graph.to_string());
}

#[test]
fn layer_is_imported_with_constants_and_origins() {
    let nodes = vec![
        node("Gemm", "x w b", "h").text(3, "/layer/Gemm").nested(5, int("transB", 1)),
        node("Relu", "h", "a"),
        node("LayerNormalization", "a scale", "n"),
        node("ReduceMean", "n", "y").nested(5, ints("axes", &[-1])),
    ];
    let constants = vec![
        float_tensor("w", &[2, 3], &[1.0; 6]),
        float_tensor("b", &[2], &[0.5; 2]),
        float_tensor("scale", &[2], &[1.0; 2]),
    ];
    let inputs = vec![value("x", FLOAT, "n 3")];
    let graph = import(model(17, graph(nodes, constants, inputs, vec![value("y", FLOAT, "n 1")]))).unwrap();
    assert!(
        graph.nodes.iter().any(|node| node.origin.name == "/layer/Gemm" && node.origin.operator == "Gemm")
    );
    insta::assert_snapshot!(graph.to_string());
}

#[test]
fn function_is_inlined_with_its_attributes() {
    let body = vec![node("Softmax", "a", "b").nested(5, reference("axis", "dim")), node("Neg", "b", "c")];
    let function = message().text(1, "Negated").text(10, "local").text(4, "a").text(5, "c").all(7, body);
    let function = function.nested(9, opset("", 13));
    let call = node("Negated", "x", "y").text(7, "local").nested(5, int("dim", 0));
    let graph = graph(vec![call], vec![], vec![value("x", FLOAT, "2 3")], vec![value("y", FLOAT, "2 3")]);
    let model = model(13, graph).nested(8, opset("local", 1)).nested(25, function);
    insta::assert_snapshot!(import(model).unwrap().to_string());
}

#[test]
fn branch_with_a_constant_condition_is_resolved() {
    let branch = |operator: &str| {
        graph(vec![node(operator, "x", "inner")], vec![], vec![], vec![value("inner", FLOAT, "2")])
    };
    let choose = |condition: &str| {
        node("If", condition, "y")
            .nested(5, graph_attribute("then_branch", branch("Exp")))
            .nested(5, graph_attribute("else_branch", branch("Log")))
    };
    let yes = message().int(2, 9).int(5, 1).text(8, "yes");
    let outputs = vec![value("y", FLOAT, "2")];
    let known = graph(vec![choose("yes")], vec![yes], vec![value("x", FLOAT, "2")], outputs.clone());
    insta::assert_snapshot!(import(model(16, known)).unwrap().to_string());
    let inputs = vec![value("x", FLOAT, "2"), value("c", 9, "")];
    check_error(
        model(16, graph(vec![choose("c")], vec![], inputs, outputs)),
        "cannot import If `y`: control flow is not supported unless its condition is a constant (ai.onnx opset 16)",
    );
}

fn single(opset: i64, node: Message) -> Message {
    let inputs = vec![value("x", FLOAT, "2 3"), value("i", 7, "2")];
    model(opset, graph(vec![node], vec![], inputs, vec![value("y", FLOAT, "")]))
}

#[test]
fn refusals_name_node_operator_opset_and_reason() {
    let check = |node: Message, expected: &str| {
        check_error(single(18, node), &format!("cannot import {expected} (ai.onnx opset 18)"))
    };
    check(node("NonZero", "x", "y"), "NonZero `y`: the shape of the result depends on data");
    check(node("Fancy", "x", "y"), "Fancy `y`: the operator is not supported");
    check(
        node("Relu", "x", "y").nested(5, int("surprise", 1)),
        "Relu `y`: the attribute `surprise` is not supported",
    );
    check(node("Relu", "x i", "y"), "Relu `y`: input 1 (`i`) is not supported");
    check(node("Relu", "missing", "y"), "Relu `y`: the input `missing` is not defined before the node");
    check(node("Relu", "-", "y"), "Relu `y`: input 0 is missing");
    check(node("Add", "x i", "y"), "Add `y`: operands of f32 and i64, expected one type");
    check(
        node("Reshape", "x i", "y"),
        "Reshape `y`: input 1 depends on data; it must be a constant or depend on sizes only",
    );
    check(node("MaxPool", "x", "y z"), "MaxPool `y`: indices of the largest elements are not supported");
    check(node("Relu", "x", "y z"), "Relu `y`: output 1 (`z`) is not supported");
}

#[test]
fn model_errors_name_the_file() {
    check_error(
        single(5, node("Relu", "x", "y")),
        "model: opset 5 of ai.onnx is not supported, expected 6 to 27",
    );
    check_error(
        single(99, node("Relu", "x", "y")),
        "model: opset 99 of ai.onnx is not supported, expected 6 to 27",
    );
    check_error(message().int(1, 10), "model: at byte 0: `graph` is missing");
    check_error(
        model(18, graph(vec![node("Relu", "x", "x")], vec![], vec![value("x", FLOAT, "2")], vec![])),
        "model: the value `x` is defined twice",
    );
    check_error(
        model(18, graph(vec![], vec![], vec![], vec![value("y", FLOAT, "2")])),
        "model: no node computes the output `y`",
    );
    check_error(
        single(18, node("Shape", "x", "y")),
        "cannot import `y`: the output is declared as f32, found i64",
    );
    check_error(
        model(18, graph(vec![], vec![], vec![value("s", 8, "2")], vec![])),
        "cannot import `s`: tensors of String are not supported",
    );
}

#[test]
fn functions_that_call_themselves_are_refused() {
    let call = || node("Again", "a", "b").text(7, "local");
    let function = message().text(1, "Again").text(10, "local").text(4, "a").text(5, "b").nested(7, call());
    let graph = graph(vec![call()], vec![], vec![value("a", FLOAT, "2")], vec![value("b", FLOAT, "2")]);
    let model = model(13, graph).nested(8, opset("local", 1)).nested(25, function);
    let error = import(model).unwrap_err().to_string();
    assert!(error.contains("functions call each other more than 32 levels deep"), "{error}");
}

/// As torch exports `arange(n, dtype=float32)`.
#[test]
fn range_of_floats_up_to_a_size_is_symbolic() {
    let nodes = vec![
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n"),
        node("Cast", "n", "limit").nested(5, int("to", 1)),
        node("Range", "start limit step", "y"),
    ];
    let constants = vec![
        int_tensor("zero", &[], &[0]),
        float_tensor("start", &[], &[1.0]),
        float_tensor("step", &[], &[2.0]),
    ];
    let graph = graph(nodes, constants, vec![value("x", 1, "n")], vec![value("y", 1, "")]);
    let graph = from_bytes(&model(18, graph).0, &Options::default()).unwrap();
    for (length, expected) in [(0, &[][..]), (1, &[]), (2, &[1.0]), (6, &[1.0, 3.0, 5.0])] {
        let x = lz_core::Tensor::zeros(&[length], lz_core::DType::F32).unwrap();
        let outputs = crate::interpret::run(&crate::testing::engine(), &graph, &[x.view()]).unwrap();
        assert_eq!(outputs[0].view().as_slice::<f32>(), Some(expected), "{length}");
    }
}
