//! Guards: conditions of a cached decision that vary within its cell, checked on every hit.

use super::operation_table::OperationTable;
use super::snapshot::Snapshot;
use crate::condition_parts::Modulus;
use crate::selection::filter;
use lz_core::context::{Context, Store};
use lz_core::expression_names::Values;
use lz_core::mode::Mode;

/// A condition and the truth value that it must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A remainder of an axis.
    Modulus { modulus: u32, remainder: u32, axis: u8, expect: bool },
    /// Part of a limit of a candidate.
    Part { position: u16, limit: u16, part: u16, expect: bool },
    /// The condition of a rule.
    Rule { rule: u16, expect: bool },
    /// The condition of a lock.
    Lock { lock: u16, expect: bool },
    /// Whether a candidate's scratch memory fits.
    Memory { position: u16, expect: bool },
    /// Whether a candidate's launch fits the device.
    Launch { position: u16, expect: bool },
    /// The answer of the dispatch tables, where it depends on scalars: a 48-bit digest.
    Table { digest: u64 },
}

/// Bits for modulus and remainder in the packed form.
const MODULUS_BITS: u32 = 26;

impl Guard {
    /// The compact form of a modulus condition; `None` if its numbers are too large.
    pub fn modulus(modulus: Modulus, expect: bool) -> Option<Guard> {
        let short = |number: i64| u32::try_from(number).ok().filter(|number| *number < 1 << MODULUS_BITS);
        let divisor = short(modulus.modulus).filter(|divisor| *divisor > 0)?;
        let remainder = short(modulus.remainder)?;
        Some(Guard::Modulus { modulus: divisor, remainder, axis: modulus.axis, expect })
    }

    /// Packs the guard into one word: kind, expected value, operands.
    pub fn pack(self) -> u64 {
        let word = |kind: u64, expect: bool, rest: u64| kind | u64::from(expect) << 3 | rest;
        let numbers = |a: u16, b: u16, c: u16| u64::from(a) << 16 | u64::from(b) << 32 | u64::from(c) << 48;
        match self {
            Guard::Modulus { modulus, remainder, axis, expect } => {
                let numbers = u64::from(modulus) << 12 | u64::from(remainder) << (12 + MODULUS_BITS);
                word(0, expect, u64::from(axis) << 4 | numbers)
            }
            Guard::Part { position, limit, part, expect } => word(1, expect, numbers(position, limit, part)),
            Guard::Rule { rule, expect } => word(2, expect, numbers(rule, 0, 0)),
            Guard::Lock { lock, expect } => word(3, expect, numbers(lock, 0, 0)),
            Guard::Memory { position, expect } => word(4, expect, numbers(position, 0, 0)),
            Guard::Launch { position, expect } => word(5, expect, numbers(position, 0, 0)),
            Guard::Table { digest } => word(6, true, digest << 16),
        }
    }

    /// The inverse of [`Guard::pack`].
    #[inline]
    pub fn unpack(word: u64) -> Guard {
        let expect = word >> 3 & 1 != 0;
        let number = |position: u32| (word >> (16 * position)) as u16;
        match word & 0b111 {
            0 => Guard::Modulus {
                modulus: (word >> 12) as u32 & ((1 << MODULUS_BITS) - 1),
                remainder: (word >> (12 + MODULUS_BITS)) as u32,
                axis: (word >> 4) as u8,
                expect,
            },
            1 => Guard::Part { position: number(1), limit: number(2), part: number(3), expect },
            2 => Guard::Rule { rule: number(1), expect },
            3 => Guard::Lock { lock: number(1), expect },
            4 => Guard::Memory { position: number(1), expect },
            5 => Guard::Launch { position: number(1), expect },
            _ => Guard::Table { digest: word >> 16 },
        }
    }

    fn expect(self) -> bool {
        match self {
            Guard::Modulus { expect, .. }
            | Guard::Part { expect, .. }
            | Guard::Rule { expect, .. }
            | Guard::Lock { expect, .. }
            | Guard::Memory { expect, .. }
            | Guard::Launch { expect, .. } => expect,
            Guard::Table { .. } => true,
        }
    }
}

/// Whether every guard has its expected value.
#[inline]
pub(crate) fn all_hold(
    mut guards: impl Iterator<Item = Guard>,
    snapshot: &Snapshot,
    table: &OperationTable,
    context: &Context,
    mode: Mode,
) -> bool {
    guards.all(|guard| holds(guard, snapshot, table, context, mode))
}

fn holds(guard: Guard, snapshot: &Snapshot, table: &OperationTable, context: &Context, mode: Mode) -> bool {
    let kernel = |position: u16| {
        let candidate = table.candidates.get(usize::from(position))?;
        snapshot.registry.compiled(candidate.kernel)
    };
    let device = || snapshot.devices.of_call(table.device_field, context);
    // Only conditions of policy read the device and the mode.
    let fields = Values::of_fields(&table.info.fields, context);
    let with_device = || Values::of_call(&table.info.fields, context, device(), mode);
    let now = match guard {
        Guard::Modulus { modulus, remainder, axis, .. } => {
            let size = context.raw(Store::Axis(axis)) as i64;
            Some(size.rem_euclid(i64::from(modulus.max(1))) == i64::from(remainder))
        }
        Guard::Part { position, limit, part, .. } => kernel(position)
            .and_then(|kernel| kernel.limits.get(usize::from(limit)))
            .and_then(|limit| limit.parts.get(usize::from(part)))
            .map(|part| part.holds(&fields)),
        Guard::Rule { rule, .. } => {
            table.rules.get(usize::from(rule)).map(|rule| rule.condition.holds(&with_device()))
        }
        Guard::Lock { lock, .. } => {
            table.locks.get(usize::from(lock)).map(|lock| lock.applies(context, &with_device()))
        }
        Guard::Memory { position, .. } => kernel(position).map(|kernel| {
            let bytes = filter::workspace(kernel, &fields);
            bytes.is_some_and(|bytes| snapshot.memory_limit(device()).is_none_or(|limit| bytes <= limit))
        }),
        Guard::Launch { position, .. } => kernel(position)
            .zip(device())
            .map(|(kernel, device)| filter::launch_fits(kernel, &fields, device)),
        Guard::Table { digest } => {
            Some(snapshot.solved.digest(table, &snapshot.registry, context, device()) == digest)
        }
    };
    now == Some(guard.expect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_round_trip_through_packing() {
        let most = (1 << MODULUS_BITS) - 1;
        for expect in [false, true] {
            let all = [
                Guard::Modulus { modulus: most, remainder: most - 1, axis: 15, expect },
                Guard::Modulus { modulus: 1, remainder: 0, axis: 0, expect },
                Guard::Part { position: u16::MAX, limit: 1, part: u16::MAX, expect },
                Guard::Rule { rule: 40_000, expect },
                Guard::Lock { lock: 7, expect },
                Guard::Memory { position: u16::MAX, expect },
                Guard::Launch { position: 3, expect },
                Guard::Table { digest: (1 << 48) - 1 },
            ];
            for guard in all {
                assert_eq!(Guard::unpack(guard.pack()), guard);
            }
        }
    }

    #[test]
    fn large_moduli_have_no_packed_form() {
        let modulus = |modulus, remainder| Guard::modulus(Modulus { axis: 0, modulus, remainder }, true);
        assert!(modulus(8, 0).is_some());
        assert!(modulus(1 << MODULUS_BITS, 0).is_none() && modulus(8, -1).is_none());
        assert!(modulus(0, 0).is_none() && modulus(1 << 40, 1).is_none());
    }
}
