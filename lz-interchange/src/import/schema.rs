//! The plan of an import as the YAML of a schema.

use std::fmt::Write;

use lz_schema::definition::DTYPES;
use lz_schema::dtype::DType;
use lz_schema::expr::Value;

use super::{ArgumentPlan, ArgumentRole, AxisPlan, AxisRole, Definition, Plan, our_dtype};
use crate::export::dtype_name;
use crate::naming;
use crate::yaml::{quoted, text, word};

/// The whole file.
pub(super) fn write(definition: &Definition, plan: &Plan<'_>) -> String {
    let mut yaml = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        yaml,
        "operation: {}\nversion: 1\nsummary: {}\n",
        naming::snake(&definition.name),
        quoted(&summary(definition))
    );
    yaml.push_str(&text(0, "doc", &doc(definition)));
    let sections = [
        ("axes", axes(plan)),
        ("types", types(plan)),
        ("inputs", inputs(plan)),
        ("params", params(plan)),
        ("outputs", outputs(plan)),
        ("constraints", constraints(plan)),
        ("equivalence", equivalence(definition, plan)),
        ("workloads", vec![workload(plan)]),
    ];
    for (name, lines) in sections {
        section(&mut yaml, name, &lines);
    }
    yaml.push_str("\ndefinition:\n");
    memory(&mut yaml, definition, plan);
    yaml
}

fn section(yaml: &mut String, name: &str, lines: &[String]) {
    match (name, lines) {
        // A schema may have no outputs of its own, but must say so.
        ("outputs", []) => yaml.push_str("\noutputs: {}\n"),
        (_, []) => {}
        _ => {
            let _ = writeln!(yaml, "\n{name}:");
            lines.iter().for_each(|line| _ = writeln!(yaml, "  {line}"));
        }
    }
}

fn summary(definition: &Definition) -> String {
    let line = definition
        .description
        .iter()
        .flat_map(|text| text.lines())
        .map(str::trim)
        .find(|line| !line.is_empty());
    match line {
        Some(line) => match line.split_once(". ") {
            Some((sentence, _)) => format!("{sentence}."),
            None => line.to_owned(),
        },
        // A summary is one line, and a name may contain line breaks.
        None => {
            let words: Vec<&str> = definition.name.split_whitespace().collect();
            format!("Imported from the definition {}.", words.join(" "))
        }
    }
}

fn doc(definition: &Definition) -> String {
    let said = definition.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let said = said.map(|text| format!("{text}\n\n")).unwrap_or_default();
    let reference = if definition.reference.is_some() {
        "What is computed is said by the Python text `definition.reference` below."
    } else {
        "The definition that this was imported from has no reference."
    };
    format!("{said}{reference}\n")
}

/// A description that our `doc` keeps letter by letter.
fn keeps(description: &str) -> bool {
    !description.trim().is_empty() && description.trim_end() == description
}

fn with_doc(mut fields: Vec<String>, description: Option<&str>) -> String {
    fields.extend(description.filter(|text| keeps(text)).map(|text| format!("doc: {}", quoted(text))));
    format!("{{ {} }}", fields.join(", "))
}

fn axes(plan: &Plan<'_>) -> Vec<String> {
    let stated = plan.axes.iter().filter_map(|axis| {
        let role = format!("role: {}", naming::role(&axis.ours));
        let fields = match axis.role {
            AxisRole::Fixed(value) => vec![role, format!("value: {value}")],
            AxisRole::Bound => {
                let mut sizes = vec![1, 2, 3, 4, 8];
                if let Some(Value::Int(size)) = plan.workload.get(&axis.ours) {
                    sizes.push(*size);
                }
                sizes.sort_unstable();
                sizes.dedup();
                vec![role, "select: { bucket: [1, 16, 256, 4096] }".to_owned(), format!("fuzz: {sizes:?}")]
            }
            AxisRole::Dynamic => vec![role, "dynamic: true".to_owned()],
            AxisRole::Derived(_) | AxisRole::Number(_) | AxisRole::Nothing => return None,
        };
        let description = axis.defined.and_then(|axis| axis.description.as_deref());
        Some(format!("{}: {}", axis.ours, with_doc(fields, description)))
    });
    stated.collect()
}

fn types(plan: &Plan<'_>) -> Vec<String> {
    let all: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    plan.variables.iter().map(|input| format!("{}: [{}]", naming::variable(input), all.join(", "))).collect()
}

fn shape(plan: &Plan<'_>, argument: &ArgumentPlan<'_>) -> String {
    let dims = plan.dims(argument.argument.shape.as_deref().unwrap_or_default());
    let written = dims.iter().map(|dim| {
        let plain = dim.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
        if plain { dim.clone() } else { quoted(dim) }
    });
    format!("shape: [{}]", written.collect::<Vec<_>>().join(", "))
}

fn inputs(plan: &Plan<'_>) -> Vec<String> {
    let tensors = plan.inputs.iter().filter(|input| input.role == ArgumentRole::Tensor);
    tensors
        .map(|input| {
            let mut fields = vec![shape(plan, input), format!("dtype: {}", input.dtype)];
            if input.argument.optional == Some(true) {
                fields.push("optional: true".to_owned());
            }
            let in_place =
                |output: &ArgumentPlan<'_>| output.role == ArgumentRole::InPlace && output.name == input.name;
            if plan.outputs.iter().any(in_place) {
                fields.push("access: read_write".to_owned());
            }
            format!("{}: {}", input.ours, with_doc(fields, input.argument.description.as_deref()))
        })
        .collect()
}

fn params(plan: &Plan<'_>) -> Vec<String> {
    let params = plan.inputs.iter().filter_map(|input| match input.role {
        ArgumentRole::Param(ty) => {
            let fields = vec![format!("type: {ty}")];
            Some(format!("{}: {}", input.ours, with_doc(fields, input.argument.description.as_deref())))
        }
        _ => None,
    });
    params.collect()
}

fn outputs(plan: &Plan<'_>) -> Vec<String> {
    let outputs = plan.outputs.iter().filter(|output| output.role == ArgumentRole::Tensor);
    outputs
        .map(|output| {
            let fields = vec![shape(plan, output), format!("dtype: {}", output.dtype)];
            format!("{}: {}", output.ours, with_doc(fields, output.argument.description.as_deref()))
        })
        .collect()
}

fn constraints(plan: &Plan<'_>) -> Vec<String> {
    let stated = plan.constraints.iter().filter_map(|constraint| {
        let check = quoted(constraint.stated.as_ref()?);
        Some(format!("- {{ check: {check}, code: CONSTRAINT_FAILED, message: {} }}", quoted(constraint.text)))
    });
    stated.collect()
}

/// Tolerances that fit a single rounding of each format, as the catalog has them.
fn equivalence(definition: &Definition, plan: &Plan<'_>) -> Vec<String> {
    let changed = plan.outputs.iter().filter(|output| output.role == ArgumentRole::InPlace);
    let changed = changed.filter_map(|output| plan.inputs.iter().find(|input| input.name == output.name));
    let made = plan.outputs.iter().filter(|output| output.role == ArgumentRole::Tensor);
    let dtypes: Vec<&str> = changed.chain(made).map(|argument| argument.dtype.as_str()).collect();
    let any = dtypes.iter().any(|dtype| plan.variables.iter().any(|input| naming::variable(input) == *dtype));
    let floats =
        DType::ALL.into_iter().filter(|dtype| dtype.is_float() && (any || dtypes.contains(&dtype.name())));
    let tolerances: Vec<String> = floats
        .map(|dtype| {
            let tolerance = match dtype {
                DType::F64 => "1e-9",
                DType::F32 => "1e-5",
                DType::F16 => "1e-3",
                DType::BF16 => "1e-2",
                DType::F8E4M3 => "0.125",
                DType::F8E5M2 => "0.25",
                _ => "0.5",
            };
            format!("{dtype}: [{tolerance}, {tolerance}]")
        })
        .collect();
    if !tolerances.is_empty() {
        vec![format!("close: {{ {} }}", tolerances.join(", "))]
    } else if definition.op_type.contains("sampling") {
        vec!["distribution: { significance: 1e-6 }".to_owned()]
    } else {
        vec!["exact: true".to_owned()]
    }
}

fn workload(plan: &Plan<'_>) -> String {
    let mut fields = Vec::new();
    for axis in plan.axes.iter().filter(|axis| axis.role == AxisRole::Bound) {
        fields.extend(plan.workload.get(&axis.ours).map(|size| format!("{}: {size}", axis.ours)));
    }
    fields.extend(plan.variables.iter().map(|input| format!("{}: f32", naming::variable(input))));
    for input in plan.inputs.iter().filter(|input| matches!(input.role, ArgumentRole::Param(_))) {
        fields.extend(plan.workload.get(&input.ours).map(|value| format!("{}: {value}", input.ours)));
    }
    let optional = |input: &&ArgumentPlan<'_>| {
        input.role == ArgumentRole::Tensor && input.argument.optional == Some(true)
    };
    let given: Vec<&str> = plan.inputs.iter().filter(optional).map(|input| input.ours.as_str()).collect();
    if !given.is_empty() {
        fields.push(format!("given: [{}]", given.join(", ")));
    }
    format!("example: {{ {} }}", fields.join(", "))
}

/// The section `definition`: names, order, and what the schema above does not say.
fn memory(yaml: &mut String, definition: &Definition, plan: &Plan<'_>) {
    let _ =
        write!(yaml, "  name: {}\n  op_type: {}\n", quoted(&definition.name), quoted(&definition.op_type));
    if let Some(description) = &definition.description {
        yaml.push_str(&text(2, "description", description));
    }
    let quote_all = |texts: &[String]| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
    if let Some(tags) = &definition.tags {
        let _ = writeln!(yaml, "  tags: [{}]", quote_all(tags));
    }
    let axes: Vec<String> = plan.axes.iter().filter_map(axis_memory).collect();
    let inputs = plan.inputs.iter().map(|input| argument_memory(plan, input, false)).collect();
    let outputs = plan.outputs.iter().map(|output| argument_memory(plan, output, true)).collect();
    for (name, lines) in [("axes", axes), ("inputs", inputs), ("outputs", outputs)] {
        let _ = writeln!(yaml, "  {name}:{}", if lines.is_empty() { " {}" } else { "" });
        lines.iter().for_each(|line| _ = writeln!(yaml, "    {line}"));
    }
    if definition.constraints.is_some() {
        let _ = writeln!(yaml, "  constraints:{}", if plan.constraints.is_empty() { " []" } else { "" });
        for constraint in &plan.constraints {
            let mark = if constraint.value_dependent { ", value_dependent: true" } else { "" };
            let _ = writeln!(yaml, "    - {{ check: {}{mark} }}", quoted(constraint.text));
        }
    }
    let texts =
        [("reference", &definition.reference), ("init", &definition.init), ("check", &definition.check)];
    for (key, python) in texts {
        if let Some(python) = python {
            yaml.push_str(&text(2, key, python));
        }
    }
}

fn entry(name: &str, ours: &str, mut fields: Vec<String>) -> String {
    if !ours.is_empty() && ours != name {
        fields.insert(0, format!("as: {ours}"));
    }
    let fields = if fields.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", fields.join(", ")) };
    format!("{}: {fields}", word(name))
}

fn axis_memory(plan: &AxisPlan<'_>) -> Option<String> {
    let stated = matches!(plan.role, AxisRole::Fixed(_) | AxisRole::Bound | AxisRole::Dynamic);
    let Some(axis) = plan.defined else {
        return stated.then(|| entry(plan.name, &plan.ours, vec!["undefined: true".to_owned()]));
    };
    let mut fields = Vec::new();
    if !stated {
        fields.push(format!("type: {}", if axis.constant { "const" } else { "var" }));
        fields.extend(axis.value.map(|value| format!("value: {value}")));
        fields.extend(axis.description.as_ref().map(|text| format!("description: {}", quoted(text))));
        return Some(entry(plan.name, "", fields));
    }
    if axis.constant && !matches!(plan.role, AxisRole::Fixed(_)) {
        fields.push("type: const".to_owned());
        fields.extend(axis.value.map(|value| format!("value: {value}")));
    }
    let description = axis.description.as_ref().filter(|text| !keeps(text));
    fields.extend(description.map(|text| format!("description: {}", quoted(text))));
    Some(entry(plan.name, &plan.ours, fields))
}

fn argument_memory(plan: &Plan<'_>, planned: &ArgumentPlan<'_>, output: bool) -> String {
    let argument = planned.argument;
    let mut fields = Vec::new();
    let in_place = planned.role == ArgumentRole::InPlace;
    let input = plan.inputs.iter().find(|input| in_place && input.name == planned.name);
    // What an export would answer for each key if nothing were written here.
    let answered_shape = match planned.role {
        ArgumentRole::Tensor => argument.shape.clone().filter(|shape| direct(plan, shape)).map(Some),
        ArgumentRole::InPlace => {
            input.and_then(|input| input.argument.shape.clone()).filter(|shape| direct(plan, shape)).map(Some)
        }
        ArgumentRole::Param(_) => Some(None),
        ArgumentRole::Nothing => None,
    };
    if answered_shape.as_ref() != Some(&argument.shape) {
        fields.push(match &argument.shape {
            Some(shape) => {
                format!("shape: [{}]", shape.iter().map(|axis| quoted(axis)).collect::<Vec<_>>().join(", "))
            }
            None => "scalar: true".to_owned(),
        });
    }
    let ours = input.map_or(planned.dtype.as_str(), |input| input.dtype.as_str());
    let answered_dtype = match planned.role {
        ArgumentRole::Param("int") => Some("int64"),
        ArgumentRole::Param("f64") => Some("float64"),
        ArgumentRole::Param("f32") => Some("float32"),
        ArgumentRole::Param(other) => Some(other),
        ArgumentRole::Nothing => None,
        _ => our_dtype(&argument.dtype).filter(|dtype| dtype.name() == ours).and_then(dtype_name),
    };
    if answered_dtype != Some(argument.dtype.as_str()) {
        debug_assert!(DTYPES.contains(&argument.dtype.as_str()), "the reader lets no other through");
        fields.push(format!("dtype: {}", argument.dtype));
    }
    let answered_optional =
        (!output && planned.role == ArgumentRole::Tensor && argument.optional == Some(true)).then_some(true);
    // An in-place output says nothing of being optional unless it is written here.
    if answered_optional != argument.optional {
        fields.extend(argument.optional.map(|optional| format!("optional: {optional}")));
    }
    fields.extend(argument.param.as_ref().map(|param| format!("param: {}", quoted(param))));
    let kept = planned.role != ArgumentRole::Nothing && !in_place;
    let description = argument.description.as_ref().filter(|text| !(kept && keeps(text)));
    fields.extend(description.map(|text| format!("description: {}", quoted(text))));
    entry(planned.name, &planned.ours, fields)
}

/// Whether every dimension is a bare axis of the schema, so that an export names the axes again.
fn direct(plan: &Plan<'_>, shape: &[String]) -> bool {
    shape.iter().all(|name| {
        plan.axis(name)
            .is_some_and(|axis| matches!(axis.role, AxisRole::Fixed(_) | AxisRole::Bound | AxisRole::Dynamic))
    })
}
