//! Reference of `posenc.rope`: each pair of features is rotated by the angle of its position and frequency,
//! in f64.

use lz_core::KernelError;
use lz_core::tensor::Indices;

use crate::{PosencRopeCall, PosencRopeLayout, PosencRopeOut};

/// Runs the operation.
pub fn run(call: &PosencRopeCall<'_>, mut out: PosencRopeOut<'_>) -> Result<(), KernelError> {
    let half = call.axes.half_rotary;
    let shape = [call.axes.batch, call.axes.seq, call.axes.heads, call.axes.head_dim];
    for index in Indices::new(&shape) {
        let [b, s, h, feature] = *index else { continue };
        let index_of = |feature: i64| match call.layout {
            PosencRopeLayout::Bshd => [b, s, h, feature],
            PosencRopeLayout::Bhsd => [b, h, s, feature],
        };
        let x = call.x.at(&index_of(feature));
        if feature >= 2 * half {
            out.output.set(&index_of(feature), x);
            continue;
        }
        // The frequency of the feature, whether it is the second of its pair, and the location of the other
        // one.
        let (frequency, second) = if call.interleaved {
            (feature / 2, feature % 2 == 1)
        } else {
            (feature % half, feature >= half)
        };
        let step = if call.interleaved { 1 } else { half };
        let other = call.x.at(&index_of(if second { feature - step } else { feature + step }));
        let position = call.positions.map_or(s, |positions| positions.int_at(&[b, s]));
        let (cos, sin) = (call.cos.at(&[position, frequency]), call.sin.at(&[position, frequency]));
        out.output
            .set(&index_of(feature), if second { x * cos + other * sin } else { x * cos - other * sin });
    }
    Ok(())
}
