//! What a cached decision hangs on beyond its cell: conditions that cannot be cut, looked at on every hit.

use super::table::OperationTable;
use super::world::World;
use crate::compiled::Modulus;
use crate::context::Context;
use crate::device::DeviceSpec;
use crate::filter;
use crate::mode::Mode;
use crate::scope::Values;

/// One condition and the truth that it must keep.
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
}

impl Guard {
    /// The short form of a remainder; `None` when its numbers are too large for it.
    pub fn modulus(modulus: Modulus, expect: bool) -> Option<Guard> {
        let divisor = u32::try_from(modulus.modulus).ok().filter(|divisor| *divisor > 0)?;
        let remainder = u32::try_from(modulus.remainder).ok()?;
        Some(Guard::Modulus { modulus: divisor, remainder, axis: modulus.axis, expect })
    }
}

impl Guard {
    /// Whether a guard that needs nothing but the context stands; any other kind does not.
    #[inline]
    pub fn stands_alone(&self, context: &Context) -> bool {
        match *self {
            Guard::Modulus { modulus, remainder, axis, expect } => {
                let size = context.axes.get(usize::from(axis)).copied().unwrap_or_default();
                (size.rem_euclid(i64::from(modulus)) == i64::from(remainder)) == expect
            }
            _ => false,
        }
    }
}

/// Whether every guard still stands as it did when the decision was made.
pub(crate) fn all_stand(
    guards: &[Guard],
    world: &World,
    table: &OperationTable,
    context: &Context,
    mode: Mode,
) -> bool {
    let mut device: Option<Option<&DeviceSpec>> = None;
    let mut values: Option<Values> = None;
    for guard in guards {
        let stands = match *guard {
            Guard::Modulus { .. } => guard.stands_alone(context),
            _ => {
                let device = *device.get_or_insert_with(|| world.devices.of_call(table.place, context));
                let values = values.get_or_insert_with(|| {
                    Values::of_fields(&table.info.fields, context).with_device(device, mode)
                });
                stands(*guard, world, table, context, device, values)
            }
        };
        if !stands {
            return false;
        }
    }
    true
}

fn stands(
    guard: Guard,
    world: &World,
    table: &OperationTable,
    context: &Context,
    device: Option<&DeviceSpec>,
    values: &Values,
) -> bool {
    let kernel = |position: u16| {
        let candidate = table.candidates.get(usize::from(position))?;
        world.registry.compiled(candidate.kernel)
    };
    let now = match guard {
        Guard::Part { position, limit, part, .. } => kernel(position)
            .and_then(|kernel| kernel.limits.get(usize::from(limit)))
            .and_then(|limit| limit.parts.get(usize::from(part)))
            .map(|part| part.holds(values.as_slice())),
        Guard::Rule { rule, .. } => {
            table.rules.get(usize::from(rule)).map(|rule| rule.condition.holds(values))
        }
        Guard::Lock { lock, .. } => table.locks.get(usize::from(lock)).map(|lock| lock.acts(context, values)),
        Guard::Memory { position, .. } => kernel(position).map(|kernel| {
            let bytes = filter::workspace(kernel, values.as_slice());
            bytes.is_some_and(|bytes| world.memory_limit(device).is_none_or(|limit| bytes <= limit))
        }),
        Guard::Launch { position, .. } => kernel(position)
            .zip(device)
            .map(|(kernel, device)| filter::launch_fits(kernel, values.as_slice(), device)),
        Guard::Modulus { .. } => None,
    };
    let expect = match guard {
        Guard::Modulus { expect, .. }
        | Guard::Part { expect, .. }
        | Guard::Rule { expect, .. }
        | Guard::Lock { expect, .. }
        | Guard::Memory { expect, .. }
        | Guard::Launch { expect, .. } => expect,
    };
    now == Some(expect)
}
