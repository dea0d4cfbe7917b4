//! Draws valid calls of a schema, with real memory for every tensor.

use lz_core::check::{Bound, OutputSpec, infer_outputs};
use lz_core::expr::Value;
use lz_core::tensor::Layout;
use lz_schema::model::{Contiguous, DeviceRule, Input, Kind};

use crate::assign::{Assignment, Focus, Prepared};
use crate::call::{OwnedArg, OwnedCall, OwnedOut};
use crate::fill::{Numbers, Rule, fill_by_rule, fill_freely, rule};
use crate::memory::{OwnedTensor, Pattern};
use crate::random::Random;
use crate::text;

/// Drawing parameters.
#[derive(Debug, Clone, Copy)]
pub struct Drawing<'a> {
    /// Bound of the axes, in percent of the schema's `fuzz` range.
    pub size: u8,
    /// Fixed properties.
    pub focus: &'a [Focus],
    /// Values of tensors without a rule.
    pub numbers: Numbers,
    /// Whether tensors may be marked as device memory; nothing can read them then.
    pub devices: bool,
}

/// A drawn call and how it was drawn.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// The call.
    pub call: OwnedCall,
    /// Its assignment.
    pub assignment: Assignment,
    /// The value of every slot.
    pub values: Vec<Value>,
    /// Result of the interpreted check.
    pub bound: Bound,
}

impl Drawn {
    /// The size of an axis, or of the first dimension of a pack.
    pub fn size(&self, axis: usize) -> Option<i64> {
        match self.bound.packs.get(axis) {
            Some(Some(pack)) => pack.first().copied(),
            _ => self.bound.axes.get(axis).copied().flatten(),
        }
    }
}

/// Draws a valid call. The error says why it failed: no assignment was found in many attempts, or validation
/// rejects the drawn call, in which case one of the two is wrong.
pub fn draw_valid(prepared: &Prepared, random: &mut Random, drawing: &Drawing<'_>) -> Result<Drawn, String> {
    for attempt in 0..200 {
        // A focus that is incompatible with the rest is eventually dropped.
        let focus = if attempt < 150 { drawing.focus } else { &[] };
        let Some(assignment) = prepared.assign(random, drawing.size, focus, None) else { continue };
        let Some(args) = arguments(prepared, random, &assignment, drawing, true) else { continue };
        let mut call = OwnedCall { args, outputs: Vec::new() };
        let bound = call
            .interpret(prepared.operation, false)
            .map_err(|error| format!("validation rejects a call drawn as valid: {error}\n{call:?}"))?;
        let values = prepared.values(&assignment);
        call.outputs = outputs(prepared, random, &call, &bound)?;
        return Ok(Drawn { call, assignment, values, bound });
    }
    Err("no valid call was found; the axes' `fuzz` ranges rarely satisfy the constraints".to_owned())
}

/// The arguments of an assignment; `None` if `must_hold` and no values satisfy a rule.
pub fn arguments(
    prepared: &Prepared,
    random: &mut Random,
    assignment: &Assignment,
    drawing: &Drawing<'_>,
    must_hold: bool,
) -> Option<Vec<OwnedArg>> {
    let operation = prepared.operation;
    let values = prepared.values(assignment);
    let device = (drawing.devices && random.one_in(10)).then(|| random.below(3) as u16);
    let mut args = Vec::new();
    for (input, &given) in operation.inputs.iter().zip(&assignment.given) {
        if !given {
            args.push(OwnedArg::Absent);
            continue;
        }
        let shape = prepared.shape(assignment, &values, input)?;
        args.push(match input.kind {
            Kind::Text => OwnedArg::Text(text::texts(random, shape.first().copied().unwrap_or(0))),
            Kind::Tokenizer => OwnedArg::Handle(text::tokenizer(random)),
            Kind::Tensor => {
                let shape = if input.broadcast { shrink_broadcast(random, shape) } else { shape };
                let dtype = assignment.dtype(operation, input)?;
                let pattern = pattern(random, input);
                let mut tensor = OwnedTensor::new(random, &shape, dtype, pattern);
                match rule(input, &values) {
                    Some(rule) => {
                        if !fill_by_rule(random, &mut tensor, rule) && must_hold {
                            return None;
                        }
                    }
                    None if input.values.is_some() && must_hold => return None,
                    None => fill_freely(random, &input.name, &mut tensor, drawing.numbers),
                }
                if let Some(index) = device
                    && input.device == DeviceRule::Same
                {
                    tensor.put_on_device(index);
                }
                if input.read_write { OwnedArg::Written(tensor) } else { OwnedArg::Tensor(tensor) }
            }
        });
    }
    args.extend(assignment.params.iter().map(|param| param.map_or(OwnedArg::Absent, OwnedArg::Value)));
    Some(args)
}

/// The value rule of an input in a drawn call.
pub fn rule_of(drawn: &Drawn, input: &Input) -> Option<Rule> {
    rule(input, &drawn.values)
}

fn pattern(random: &mut Random, input: &Input) -> Pattern {
    let patterns: &[Pattern] = match input.contiguous {
        Contiguous::All => &[Pattern::Contiguous],
        Contiguous::Last => &[Pattern::Contiguous, Pattern::Padded],
        Contiguous::None if input.read_write || input.values.is_some() => &Pattern::WRITTEN,
        Contiguous::None => &Pattern::READ,
    };
    random.pick(patterns).copied().unwrap_or(Pattern::Contiguous)
}

/// A broadcast input may omit leading dimensions, and any of the others may be 1.
fn shrink_broadcast(random: &mut Random, shape: Vec<i64>) -> Vec<i64> {
    let missing = if random.one_in(2) { 0 } else { random.below(shape.len() + 1) };
    shape.into_iter().skip(missing).map(|size| if random.one_in(4) { 1 } else { size }).collect()
}

/// Outputs of a valid call.
pub fn outputs(
    prepared: &Prepared,
    random: &mut Random,
    call: &OwnedCall,
    bound: &Bound,
) -> Result<Vec<OwnedOut>, String> {
    let specs = infer_outputs(prepared.operation, bound).map_err(|reason| reason.to_string())?;
    let device = prepared
        .operation
        .inputs
        .iter()
        .zip(&call.args)
        .find_map(|(input, arg)| (input.device == DeviceRule::Same).then(|| arg.tensor()).flatten())
        .map(|tensor| tensor.layout().device);
    Ok(specs
        .into_iter()
        .map(|spec| match spec {
            OutputSpec::Absent => OwnedOut::Absent,
            OutputSpec::Dynamic(_) => OwnedOut::Dynamic(None),
            OutputSpec::Text => OwnedOut::Text(None),
            OutputSpec::Tensor(shape, dtype) => {
                let pattern = random.pick(&Pattern::WRITTEN).copied().unwrap_or(Pattern::Contiguous);
                let mut tensor = OwnedTensor::new(random, &shape, dtype, pattern);
                if let Some(device) = device {
                    tensor.relabel(|layout: &mut Layout| layout.device = device);
                }
                OwnedOut::Tensor(tensor)
            }
        })
        .collect())
}
