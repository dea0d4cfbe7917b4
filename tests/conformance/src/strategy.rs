//! The drawing engine as proptest strategies, for property tests elsewhere. A failing case shrinks towards
//! small axes.

use lz_core::OperationInfo;
use proptest::prelude::*;

use crate::assign::Prepared;
use crate::broken::{Broken, breaks, draw_broken};
use crate::fill::Numbers;
use crate::random::Random;
use crate::suite::focus_of;
use crate::valid::{Drawing, Drawn, draw_valid};

/// Valid calls of an operation, with values in their tensors.
pub fn valid(info: &'static OperationInfo) -> impl Strategy<Value = Drawn> {
    let prepared = Prepared::new(info.schema()).tame();
    (any::<u64>().no_shrink(), 0u8..=100).prop_filter_map("no valid call was found", move |(seed, size)| {
        let focus = focus_of(&prepared, seed);
        let numbers = if seed % 4 == 0 { Numbers::Awkward } else { Numbers::Normal };
        let drawing = Drawing { size, focus: &focus, numbers, devices: false };
        draw_valid(&prepared, &mut Random::new(seed), &drawing).ok()
    })
}

/// Calls with exactly one fault, and the reason code that must be reported.
pub fn broken(info: &'static OperationInfo) -> impl Strategy<Value = Broken> {
    let prepared = Prepared::new(info.schema());
    let breaks = breaks(&prepared);
    (any::<u64>().no_shrink(), 0u8..=100).prop_filter_map("the fault does not apply", move |(seed, size)| {
        let broken = *breaks.get(seed as usize % breaks.len())?;
        draw_broken(&prepared, &mut Random::new(seed), broken, size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest! {
        #[test]
        fn drawn_calls_are_valid(mut drawn in valid(&lz_ops::NORM_LAYER)) {
            let outcome = drawn.call.interpret(lz_ops::NORM_LAYER.schema(), true);
            prop_assert!(outcome.is_ok(), "{outcome:?}");
        }

        #[test]
        fn broken_calls_give_their_reason(mut wrong in broken(&lz_ops::KV_APPEND)) {
            let outcome = wrong.call.interpret(lz_ops::KV_APPEND.schema(), wrong.broken.is_of_outputs());
            prop_assert!(outcome.is_err_and(|error| error.has(wrong.expected)), "{wrong:?}");
        }
    }
}
