//! The layout of the packed context that selection uses as key: the location of each property of a call.
//!
//! The generator and the engine (for operations registered at run time) both use this layout.

use crate::model::{Kind, Operation, ParamType, Select, Slot};

/// Number of flag words in a context.
pub const FLAG_WORDS: u32 = 4;
/// Maximum number of axes and statistics in a context.
pub const MAX_AXES: usize = 16;
/// Maximum number of numeric params in a context.
pub const MAX_SCALARS: usize = 12;
/// Bits of a dtype variable.
pub const DTYPE_BITS: u32 = 5;
/// Bits of an enum param.
pub const ENUM_BITS: u32 = 5;
/// Bits of a tensor's stride class.
pub const STRIDE_BITS: u32 = 6;
/// Bits of the device of the tensors.
pub const PLACE_BITS: u32 = 11;
/// Bits of a handle's digest.
pub const DIGEST_BITS: u32 = 60;

/// One field of a context and its location.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldLayout {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: FieldKind,
    /// Its location.
    pub store: Store,
}

/// The kind of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// Axis, by index, and its bucketing.
    Axis(usize, Select),
    /// Param, by index.
    Param(usize),
    /// Param that is a statistic, by index; stored behind the axes.
    Statistic(usize),
    /// `given(input)`, by input index.
    Given(usize),
    /// Dtype variable, by index.
    DType(usize),
    /// Stride class of an input, by index.
    Strides(usize),
    /// Stride class of an output that is allocated before the call, by index.
    OutputStrides(usize),
    /// Digest of a handle input, by index.
    Digest(usize),
    /// Device of the tensors.
    Device,
}

/// The location of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Bits of a flag word.
    Flag {
        /// Word.
        word: u32,
        /// Lowest bit.
        shift: u32,
        /// Number of bits.
        bits: u32,
    },
    /// Axis or statistic, by number.
    Axis(usize),
    /// Numeric param number.
    Scalar(usize),
}

/// Computes the layout of an operation's contexts; `Err` names the limit that is exceeded.
pub fn context_layout(operation: &Operation) -> Result<Vec<FieldLayout>, String> {
    let mut packer = Packer::default();
    let mut fields = Vec::new();
    let (mut axes, mut scalars) = (operation.axes.len(), 0);
    for slot in operation.slots() {
        let (name, kind, store) = match slot {
            Slot::Axis(axis) => {
                let definition = &operation.axes[axis];
                (definition.name.clone(), FieldKind::Axis(axis, definition.select.clone()), Store::Axis(axis))
            }
            Slot::Param(param) if operation.params[param].statistic.is_some() => {
                axes += 1;
                let name = operation.params[param].name.clone();
                (name, FieldKind::Statistic(param), Store::Axis(axes - 1))
            }
            Slot::Param(param) => {
                let definition = &operation.params[param];
                let store = match &definition.ty {
                    ParamType::Bool => packer.take(1)?,
                    ParamType::Enum(cases) if cases.len() > 1 << ENUM_BITS => {
                        return Err(format!(
                            "enum {} has more than {} cases",
                            definition.name,
                            1 << ENUM_BITS
                        ));
                    }
                    ParamType::Enum(_) => packer.take(ENUM_BITS)?,
                    ParamType::Int | ParamType::F32 | ParamType::F64 => {
                        scalars += 1;
                        Store::Scalar(scalars - 1)
                    }
                };
                (definition.name.clone(), FieldKind::Param(param), store)
            }
            Slot::Given(input) => {
                (format!("given({})", operation.inputs[input].name), FieldKind::Given(input), packer.take(1)?)
            }
        };
        fields.push(FieldLayout { name, kind, store });
    }
    for (index, variable) in operation.types.iter().enumerate() {
        let store = packer.take(DTYPE_BITS)?;
        fields.push(FieldLayout { name: variable.name.clone(), kind: FieldKind::DType(index), store });
    }
    for (index, input) in operation.inputs.iter().enumerate() {
        let (name, kind, bits) = match input.kind {
            Kind::Tensor => (format!("strides({})", input.name), FieldKind::Strides(index), STRIDE_BITS),
            Kind::Tokenizer => (format!("digest({})", input.name), FieldKind::Digest(index), DIGEST_BITS),
            Kind::Text => continue,
        };
        fields.push(FieldLayout { name, kind, store: packer.take(bits)? });
    }
    for (index, output) in operation.outputs.iter().enumerate() {
        if !output.is_dynamic(operation) {
            let (name, kind) = (format!("strides({})", output.name), FieldKind::OutputStrides(index));
            fields.push(FieldLayout { name, kind, store: packer.take(STRIDE_BITS)? });
        }
    }
    fields.push(FieldLayout {
        name: "place".to_owned(),
        kind: FieldKind::Device,
        store: packer.take(PLACE_BITS)?,
    });
    if axes > MAX_AXES {
        return Err(format!("an operation may have at most {MAX_AXES} axes and statistics"));
    }
    if scalars > MAX_SCALARS {
        return Err(format!("an operation may have at most {MAX_SCALARS} numeric params"));
    }
    Ok(fields)
}

/// Allocates bits within words, never across a word boundary.
#[derive(Default)]
struct Packer {
    word: u32,
    used: u32,
}

impl Packer {
    fn take(&mut self, bits: u32) -> Result<Store, String> {
        if self.used + bits > 64 {
            self.word += 1;
            self.used = 0;
        }
        if self.word >= FLAG_WORDS {
            return Err(format!(
                "the operation needs more than the {} flag bits of a context",
                FLAG_WORDS * 64
            ));
        }
        let store = Store::Flag { word: self.word, shift: self.used, bits };
        self.used += bits;
        Ok(store)
    }
}
