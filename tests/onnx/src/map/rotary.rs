//! `RotaryEmbedding`: features of each head rotated by cos/sin tables.

use super::arguments::Arguments;
use super::sequences::Sequences;
use super::tensors::{float_as, indices, named};
use super::{MapError, MappedCall, MappedOutput, unsupported};
use lz_core::Tensor;
use lz_ops::{PosencRope, PosencRopeLayout};

/// `RotaryEmbedding` maps to `posenc.rope`.
pub fn rotary_embedding(arguments: &Arguments<'_>) -> Result<Vec<MappedCall>, MapError> {
    arguments.only(&["interleaved", "num_heads", "rotary_embedding_dim"], 4)?;
    let input = arguments.input(0)?;
    let shape = input.shape.clone();
    let x = Sequences::read(input, arguments.int("num_heads", 0)?)?;
    let (cos, sin) = (arguments.input(1)?, arguments.input(2)?);
    let half = cos.shape.last().copied().unwrap_or(0);
    let rotary = arguments.int("rotary_embedding_dim", 0)?;
    if rotary != 0 && rotary != 2 * half as i64 {
        return Err(unsupported(format!("{rotary} rotary features with tables of {half} frequencies")));
    }
    let table_rows = cos.element_count() / half.max(1);
    let table_shape = [table_rows as i64, half as i64];
    let (cos, sin) = (float_as(cos, &table_shape)?, float_as(sin, &table_shape)?);
    let positions = match arguments.optional(3) {
        Some(positions) => indices(positions)?,
        // Without positions the tables have a row per token of each batch row.
        None => {
            let rows: Vec<i64> = (0..x.batch * x.length).collect();
            Tensor::from_slice(&rows, &[x.batch, x.length])?
        }
    };
    let interleaved = arguments.int("interleaved", 0)? != 0;
    let layout = if x.heads_first { PosencRopeLayout::Bhsd } else { PosencRopeLayout::Bshd };
    Ok(vec![MappedCall::new("posenc.rope", move |engine| {
        let call = PosencRope::new(x.view(x.heads_first)?, cos.view(), sin.view())
            .positions(positions.view())
            .interleaved(interleaved)
            .layout(layout);
        let result = lz_ops::posenc_rope(engine, call)?;
        Ok(vec![MappedOutput { output: 0, tensor: named(&result.output, &shape)? }])
    })])
}
