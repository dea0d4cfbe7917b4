//! Weight quantization: linear layers with constant weights become layers with int8 or int4 weights.
//!
//! This changes values, so it is no pass: it runs after them if the caller requests it, and reports the error of every layer.

use std::fmt;

use lz_core::{DType, TensorView};
use lz_engine::Engine;
use lz_ops::{MlpLinearPack, Quantize, QuantizeFormat, QuantizeGranularity};

use crate::build::{Builder, ParamValue};
use crate::error::GraphError;
use crate::graph::{Graph, NodeId};
use crate::passes::query;

/// The float layer that is replaced.
const LINEAR: &str = "mlp.linear";

/// Rows that the error of a layer is measured on, spread over all of them.
const MAX_ERROR_ROWS: i64 = 64;

/// The integer format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One byte per weight.
    Int8,
    /// Half a byte per weight.
    Int4,
}

impl Format {
    /// The format with this name.
    pub fn from_name(name: &str) -> Option<Format> {
        [Format::Int8, Format::Int4].into_iter().find(|format| format.name() == name)
    }

    /// Inputs that share a scale unless stated otherwise. A scale per output feature is accurate enough for eight bits, not for four.
    pub fn default_group(self) -> i64 {
        match self {
            Format::Int8 => 0,
            Format::Int4 => 128,
        }
    }

    /// The schema's name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Int8 => "int8",
            Format::Int4 => "int4",
        }
    }
}

/// What is quantized, and how.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The format of weights.
    pub format: Format,
    /// Adjacent inputs that share a scale; 0 means all inputs of an output feature.
    pub group: i64,
    /// Whether rows of activations are quantized to int8 as well, when the graph runs. Only with `Int8` and without groups.
    pub activations: bool,
    /// Whether layers are quantized whose weights are used in another way too (tied embeddings).
    pub tied: bool,
    /// Whether weights are laid out in panels, as the native kernels of the host read them fastest; otherwise in rows.
    pub panels: bool,
}

/// One linear layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The name of its weights, or of its node if a pass made them.
    pub name: String,
    /// `[out_features, in_features]`.
    pub shape: [i64; 2],
    /// Bytes before and after.
    pub bytes: [usize; 2],
    /// The norm of the difference, relative to the norm of the weights; `None` for a layer that was left alone.
    pub error: Option<f64>,
    /// Why it was left alone.
    pub kept: Option<&'static str>,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns] = self.shape;
        match (self.error, self.kept) {
            (Some(error), _) => {
                let [before, after] = self.bytes;
                write!(f, "{} [{rows}, {columns}]: {before} to {after} bytes, error {error:.2e}", self.name)
            }
            (None, reason) => {
                write!(f, "{} [{rows}, {columns}]: kept, {}", self.name, reason.unwrap_or_default())
            }
        }
    }
}

/// Quantizes the weights of all linear layers of a normalized graph.
pub fn quantize_weights(
    graph: &mut Graph,
    engine: &Engine,
    options: &Options,
) -> Result<Vec<Layer>, GraphError> {
    if options.group < 0 || (options.activations && (options.format != Format::Int8 || options.group != 0)) {
        let message = "int8 activations need int8 weights without groups, and a group has at least one input";
        return Err(GraphError::Invalid { stage: "quantization", findings: vec![message.to_owned()] });
    }
    let other_uses = other_uses(graph);
    let mut build = Builder::continuing(std::mem::take(graph));
    let mut layers = Vec::new();
    let mut replaced: Vec<(NodeId, NodeId)> = Vec::new();
    // Layers may share weights.
    let mut stored: Vec<(usize, Stored)> = Vec::new();
    for id in build.graph().ids() {
        let Some((weight, mut layer)) = linear(build.graph(), id) else { continue };
        let address = build.graph().constant(weight).map_or(0, |constant| constant.view().address());
        if !options.tied && other_uses.contains(&address) {
            layer.kept = Some("its weights are used by another operation too");
            layers.push(layer);
            continue;
        }
        let weights = match stored.iter().find(|(known, _)| *known == address) {
            Some((_, weights)) => *weights,
            None => {
                let weights = quantize(&mut build, weight, engine, options, &mut layer)?;
                stored.push((address, weights));
                layers.push(layer);
                weights
            }
        };
        let new = replace(&mut build, id, weights, options)?;
        replaced.push((id, new));
    }
    for (old, new) in replaced {
        build.graph_mut().replace_uses(old, new);
    }
    *graph = build.into_graph();
    graph.normalize()?;
    Ok(layers)
}

/// A linear layer with constant weights of two dimensions.
fn linear(graph: &Graph, id: NodeId) -> Option<(NodeId, Layer)> {
    let node = graph.node(id);
    node.call().filter(|call| &*call.operation.name == LINEAR)?;
    let weight = node.input(1)?;
    let constant = graph.constant(weight)?;
    let view = constant.view();
    let &[rows, columns] = view.shape() else { return None };
    let name = if constant.name.is_empty() { node.origin.name.clone() } else { constant.name.clone() };
    let bytes = view.elements() as usize * view.dtype().size();
    let layer = Layer { name, shape: [rows, columns], bytes: [bytes, bytes], error: None, kept: None };
    (rows > 0 && columns > 0).then_some((weight, layer))
}

/// Addresses of constants that are not only weights of linear layers. Tied parameters may be two constants with the same memory.
fn other_uses(graph: &Graph) -> Vec<usize> {
    let mut found = Vec::new();
    for node in &graph.nodes {
        let is_linear = node.call().is_some_and(|call| &*call.operation.name == LINEAR);
        for (index, input) in node.inputs.iter().enumerate() {
            let Some(input) = input.filter(|_| !is_linear || index != 1) else { continue };
            if let Some(constant) = graph.constant(graph.root(input)) {
                found.push(constant.view().address());
            }
        }
    }
    found
}

/// Constants of quantized weights and their scales.
#[derive(Clone, Copy)]
struct Stored {
    values: NodeId,
    scale: NodeId,
}

fn quantize(
    build: &mut Builder,
    weight: NodeId,
    engine: &Engine,
    options: &Options,
    layer: &mut Layer,
) -> Result<Stored, GraphError> {
    let graph = build.graph();
    let origin = graph.node(weight).origin.clone();
    let failed = |error| GraphError::run(&origin, error);
    let Some(constant) = graph.constant(weight) else {
        return Err(build.error("a linear layer has no constant weights"));
    };
    let format = match options.format {
        Format::Int8 => QuantizeFormat::Int8,
        Format::Int4 => QuantizeFormat::Int4,
    };
    let call = if options.group == 0 {
        Quantize::new(constant.view(), format, QuantizeGranularity::Channel)
    } else {
        Quantize::new(constant.view(), format, QuantizeGranularity::Block).block_size(options.group)
    };
    let result = lz_ops::quantize(engine, call).map_err(failed)?;
    let Some(scale) = result.scale_out else {
        return Err(build.error("quantization returned no scales"));
    };
    let values = result.quantized;
    layer.error = Some(relative_error(&constant.view(), &values.view(), &scale.view(), options));
    let values = match options.panels {
        true => lz_ops::mlp_linear_pack(engine, MlpLinearPack::new(values.view())).map_err(failed)?.packed,
        false => values,
    };
    layer.bytes[1] = values.bytes().len() + scale.bytes().len();
    build.at_node(weight);
    Ok(Stored { values: build.owned(values), scale: build.owned(scale) })
}

/// The norm of the difference between weights and stored values, relative to the norm of the weights.
fn relative_error(
    weight: &TensorView<'_>,
    values: &TensorView<'_>,
    scale: &TensorView<'_>,
    options: &Options,
) -> f64 {
    let &[rows, columns] = weight.shape() else { return f64::NAN };
    let step = (rows / MAX_ERROR_ROWS).max(1);
    let (mut difference, mut norm) = (0.0, 0.0);
    for row in (0..rows).step_by(step as usize) {
        for column in 0..columns {
            let stored = match options.format {
                Format::Int8 => values.int_at(&[row, column]),
                Format::Int4 => {
                    let byte = values.int_at(&[row, column / 2]);
                    // The sign bit of a nibble is its highest one.
                    (((byte >> (4 * (column % 2))) & 15) ^ 8) - 8
                }
            };
            let scale =
                if options.group == 0 { scale.at(&[row]) } else { scale.at(&[row, column / options.group]) };
            let value = weight.at(&[row, column]);
            difference += (value - stored as f64 * scale).powi(2);
            norm += value * value;
        }
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// The layer with quantized weights.
fn replace(
    build: &mut Builder,
    id: NodeId,
    weights: Stored,
    options: &Options,
) -> Result<NodeId, GraphError> {
    build.at_node(id);
    let node = build.graph().node(id).clone();
    let activation = query::case(build.graph(), id, "activation").unwrap_or("none").to_owned();
    let Stored { values: weight, scale } = weights;
    let (Some(x), bias) = (node.input(0), node.input(2)) else {
        return Err(build.error("a linear layer has no input"));
    };
    let layout = if options.panels { "panels" } else { "plain" };
    let layout = ("weight_layout", ParamValue::from(layout));
    let activation = ("activation", ParamValue::from(activation.as_str()));
    if !options.activations {
        let granularity = if options.group == 0 { "channel" } else { "block" };
        let mut params = vec![
            ("format", ParamValue::from(options.format.name())),
            ("granularity", ParamValue::from(granularity)),
            layout,
            activation,
        ];
        if options.group > 0 {
            params.push(("block_size", ParamValue::from(options.group)));
        }
        let inputs = [Some(x), Some(weight), Some(scale), None, bias];
        return build.call("mlp.linear.weight_only", &inputs, &params);
    }
    // One scale per row: all leading dimensions are rows.
    let shape = build.shape(x).to_vec();
    let Some((features, outer)) = shape.split_last() else {
        return Err(build.error("a linear layer has an input without dimensions"));
    };
    let rows = outer.iter().fold(crate::dim::Dim::from(1), |product, size| product.times(size));
    let x = build.reshape(x, vec![rows, features.clone()])?;
    let row_params = [("format", ParamValue::from("int8")), ("granularity", ParamValue::from("channel"))];
    let values = build.call("quantize", &[Some(x)], &row_params)?;
    let row_scale = build.projection(values, 1)?;
    let dtype = match node.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "f32",
    };
    let params = [layout, activation, ("output_dtype", ParamValue::from(dtype))];
    let inputs = [Some(values), Some(weight), Some(row_scale), Some(scale), None, bias];
    let result = build.call("mlp.linear.int8", &inputs, &params)?;
    build.reshape(result, node.shape)
}

#[cfg(test)]
mod tests {
    use lz_core::Tensor;

    use super::*;
    use crate::dim::Dim;
    use crate::interpret;
    use crate::testing::engine;

    const FEATURES: i64 = 24;

    /// A table of rows, a layer with its own weights, and a layer with the table's.
    fn tied() -> Graph {
        let mut build = Builder::new();
        let rows = Dim::from(build.graph_mut().symbol("rows", 0, 64));
        let numbers = |count: i64, seed: i64| -> Vec<f32> {
            (0..count).map(|value| ((value + seed) as f32 * 0.37).sin()).collect()
        };
        let tensor =
            |shape: [i64; 2], seed| Tensor::from_slice(&numbers(shape[0] * shape[1], seed), &shape).unwrap();
        let ids = build.input("ids", vec![rows], DType::I64);
        let table = build.owned(tensor([10, FEATURES], 1));
        let weight = build.owned(tensor([FEATURES, FEATURES], 2));
        let x = build.take(table, 0, ids).unwrap();
        let params = [("activation", ParamValue::from("relu"))];
        let hidden = build.call("mlp.linear", &[Some(x), Some(weight), None], &params).unwrap();
        let logits = build.call("mlp.linear", &[Some(hidden), Some(table), None], &[]).unwrap();
        build.output("logits", logits);
        build.finish().unwrap()
    }

    fn results(graph: &Graph) -> Vec<f32> {
        let ids = Tensor::from_slice(&[3i64, 0, 9], &[3]).unwrap();
        let outputs = interpret::run(&engine(), graph, &[ids.view()]).unwrap();
        outputs[0].view().as_slice::<f32>().unwrap().to_vec()
    }

    fn relative_difference(a: &[f32], b: &[f32]) -> f32 {
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
        norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut a.iter().copied())
    }

    #[test]
    fn layers_are_quantized_and_tied_weights_are_kept() {
        let expected = results(&tied());
        for (format, group, activations, limit) in [
            (Format::Int8, 0, false, 0.02),
            (Format::Int8, 8, false, 0.02),
            (Format::Int4, 8, false, 0.2),
            (Format::Int4, 7, false, 0.2),
            (Format::Int8, 0, true, 0.03),
        ] {
            for (tied_too, panels) in [(false, true), (true, true), (true, false)] {
                let mut graph = tied();
                let options = Options { format, group, activations, tied: tied_too, panels };
                let layers = quantize_weights(&mut graph, &engine(), &options).unwrap();
                assert_eq!(layers.len(), 2);
                assert_eq!(layers[1].kept.is_none(), tied_too, "{}", layers[1]);
                let error = layers[0].error.unwrap();
                assert!(error > 0.0 && error < f64::from(limit), "{format:?} {group}: {error}");
                let difference = relative_difference(&expected, &results(&graph));
                assert!(difference > 0.0 && difference < limit, "{format:?} {group}: {difference}");
                let left = graph
                    .nodes
                    .iter()
                    .filter(|node| node.call().is_some_and(|call| &*call.operation.name == LINEAR));
                assert_eq!(left.count(), usize::from(!tied_too));
            }
        }
    }

    #[test]
    fn options_that_no_operation_has_are_refused() {
        let options =
            Options { format: Format::Int4, group: 0, activations: true, tied: false, panels: true };
        let error = quantize_weights(&mut tied(), &engine(), &options).unwrap_err();
        assert!(error.to_string().contains("int8 activations need int8 weights"), "{error}");
    }
}
