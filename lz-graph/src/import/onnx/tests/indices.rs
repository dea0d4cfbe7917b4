//! Indices outside a dimension are refused, never another row. Negative ones count from the end.

use lz_core::{Tensor, TensorView};

use super::super::{Options, from_bytes};
use super::writer::*;
use crate::interpret;
use crate::testing::engine;

/// Runs a node with data of shape [2, 3] and these indices.
fn run(
    operator: &str,
    indices: &[i64],
    shape: &str,
    updates: Option<(&[f32], &str)>,
) -> Result<Vec<f32>, String> {
    let inputs = if updates.is_some() { "x i u" } else { "x i" };
    let mut values = vec![value("x", 1, "2 3"), value("i", 7, shape)];
    values.extend(updates.map(|(_, shape)| value("u", 1, shape)));
    let graph = graph(vec![node(operator, inputs, "y")], vec![], values, vec![value("y", 1, "")]);
    let graph = from_bytes(&model(18, graph).0, &Options::default()).map_err(|error| error.to_string())?;
    let sizes = |text: &str| text.split(' ').map(|size| size.parse().unwrap()).collect::<Vec<i64>>();
    let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], &[2, 3]).unwrap();
    let indices = Tensor::from_slice(indices, &sizes(shape)).unwrap();
    let updates = updates.map(|(data, shape)| Tensor::from_slice(data, &sizes(shape)).unwrap());
    let mut views: Vec<TensorView<'_>> = vec![x.view(), indices.view()];
    views.extend(updates.iter().map(Tensor::view));
    let outputs = interpret::run(&engine(), &graph, &views).map_err(|error| error.to_string())?;
    Ok(outputs[0].view().as_slice::<f32>().unwrap().to_vec())
}

#[test]
fn gather_nd_refuses_an_index_of_another_row() {
    assert_eq!(run("GatherND", &[0, 2, -1, -3], "2 2", None).unwrap(), [2.0, 3.0]);
    for wrong in [[0, 3], [0, -4], [2, 0], [-3, 0]] {
        let error = run("GatherND", &wrong, "1 2", None).unwrap_err();
        assert!(error.contains("[VALUE_OUT_OF_RANGE] indices[0] is "), "{error}");
    }
    let error = run("GatherND", &[0, 3], "1 2", None).unwrap_err();
    assert!(error.contains("indices[0] is 3, but must be between -3 and 2"), "{error}");
}

#[test]
fn gather_counts_negative_indices_from_the_end() {
    let found = run("Gather", &[-1, 0, -2], "3", None).unwrap();
    assert_eq!(found, [3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    assert_eq!(run("GatherElements", &[-1, 0, -2], "1 3", None).unwrap(), [3.0, 1.0, 2.0]);
    for wrong in [-3, 2] {
        let error = run("Gather", &[wrong], "1", None).unwrap_err();
        assert!(error.contains(&format!("indices[0] is {wrong}, but must be between -2 and 1")), "{error}");
        let error = run("GatherElements", &[wrong, 0, 0], "1 3", None).unwrap_err();
        assert!(error.contains("VALUE_OUT_OF_RANGE"), "{error}");
    }
}

#[test]
fn scatter_nd_refuses_an_index_of_another_row() {
    let found = run("ScatterND", &[1, -1], "1 2", Some((&[9.0], "1"))).unwrap();
    assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]);
    let error = run("ScatterND", &[0, 4], "1 2", Some((&[9.0], "1"))).unwrap_err();
    assert!(error.contains("indices[0] is 4, but must be between -3 and 2"), "{error}");
}

#[test]
fn scatter_elements_refuses_an_index_of_another_row() {
    // Indices that cover a part of the rows address the flattened tensor.
    let found = run("ScatterElements", &[1], "1 1", Some((&[9.0], "1 1"))).unwrap();
    assert_eq!(found, [0.0, 1.0, 2.0, 9.0, 4.0, 5.0]);
    let error = run("ScatterElements", &[2], "1 1", Some((&[9.0], "1 1"))).unwrap_err();
    assert!(error.contains("indices[0] is 2, but must be between -2 and 1"), "{error}");
}
