//! Offsets of buffers in one arena: buffers that are alive at the same time do not overlap.

use std::fmt;

/// Offsets and sizes are multiples of this, so every buffer is aligned for every kernel.
pub const ALIGNMENT: usize = lz_core::tensor::BUFFER_ALIGNMENT;

/// A buffer: its size and the steps, or waves of steps, that need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// Size in bytes.
    pub bytes: usize,
    /// The step that writes it first.
    pub first: usize,
    /// The last step that uses it.
    pub last: usize,
}

impl Lifetime {
    fn size(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where every buffer lies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// One offset per buffer.
    pub offsets: Vec<usize>,
    /// The size of the arena.
    pub bytes: usize,
}

/// Places the buffers in several orders and keeps the smallest arena.
pub fn place(lifetimes: &[Lifetime]) -> Placement {
    let mut orders: Vec<Vec<usize>> = vec![(0..lifetimes.len()).collect(); 3];
    if let [_, by_size, by_area] = orders.as_mut_slice() {
        by_size.sort_by_key(|&one| std::cmp::Reverse(lifetimes[one].bytes));
        by_area.sort_by_key(|&one| {
            let span = lifetimes[one].last - lifetimes[one].first + 1;
            std::cmp::Reverse(lifetimes[one].bytes.saturating_mul(span))
        });
    }
    let lower_bound = live_bytes(lifetimes);
    let mut best: Option<Placement> = None;
    for order in orders {
        let placement = place_in(&order, lifetimes);
        if best.as_ref().is_none_or(|best| placement.bytes < best.bytes) {
            best = Some(placement);
        }
        if best.as_ref().is_some_and(|best| best.bytes == lower_bound) {
            break;
        }
    }
    best.unwrap_or_default()
}

/// The most bytes that are alive at one step: no arena is smaller.
pub fn live_bytes(lifetimes: &[Lifetime]) -> usize {
    let steps = lifetimes.iter().map(|one| one.last + 1).max().unwrap_or(0);
    let mut change = vec![0i128; steps + 1];
    for one in lifetimes {
        change[one.first] += one.size() as i128;
        change[one.last + 1] -= one.size() as i128;
    }
    let mut live = 0i128;
    let peak = change.iter().map(|change| {
        live += change;
        live
    });
    peak.max().unwrap_or(0) as usize
}

/// Best fit: each buffer into the smallest gap between the buffers that it meets.
fn place_in(order: &[usize], lifetimes: &[Lifetime]) -> Placement {
    let mut offsets = vec![0; lifetimes.len()];
    // Placed buffers, sorted by offset.
    let mut placed: Vec<(usize, usize)> = Vec::with_capacity(order.len());
    let mut total = 0;
    for &one in order {
        let lifetime = &lifetimes[one];
        let size = lifetime.size();
        let mut end = 0;
        let mut best: Option<(usize, usize)> = None;
        for &(offset, other) in &placed {
            if !lifetime.meets(&lifetimes[other]) {
                continue;
            }
            if offset >= end + size && best.is_none_or(|(gap, _)| offset - end < gap) {
                best = Some((offset - end, end));
            }
            end = end.max(offset + lifetimes[other].size());
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        offsets[one] = offset;
        total = total.max(offset + size);
        let position = placed.partition_point(|&(other, _)| other <= offset);
        placed.insert(position, (offset, one));
    }
    Placement { offsets, bytes: total }
}

/// Two buffers that share memory while both are alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// One buffer.
    pub a: usize,
    /// The other one.
    pub b: usize,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffers {} and {} overlap while both are in use", self.a, self.b)
    }
}

/// Checks a placement step by step, independently of how it was made.
pub fn check(lifetimes: &[Lifetime], placement: &Placement) -> Result<(), Overlap> {
    let steps = lifetimes.iter().map(|one| one.last + 1).max().unwrap_or(0);
    for step in 0..steps {
        let mut ranges: Vec<(usize, usize, usize)> = lifetimes
            .iter()
            .enumerate()
            .filter(|(_, one)| one.first <= step && step <= one.last && one.bytes > 0)
            .map(|(index, one)| (placement.offsets[index], placement.offsets[index] + one.bytes, index))
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if pair[0].1 > pair[1].0 {
                return Err(Overlap { a: pair[0].2, b: pair[1].2 });
            }
        }
        if ranges.iter().any(|range| range.1 > placement.bytes) {
            return Err(Overlap { a: 0, b: 0 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lifetimes() -> impl Strategy<Value = Vec<Lifetime>> {
        proptest::collection::vec((0usize..5000, 0usize..30, 0usize..10), 0..60).prop_map(|all| {
            all.into_iter()
                .map(|(bytes, first, span)| Lifetime { bytes, first, last: first + span })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap(lifetimes in lifetimes()) {
            let placement = place(&lifetimes);
            prop_assert_eq!(check(&lifetimes, &placement), Ok(()));
            prop_assert!(placement.bytes >= live_bytes(&lifetimes));
            prop_assert!(placement.offsets.iter().all(|offset| offset % ALIGNMENT == 0));
        }
    }

    #[test]
    fn checker_finds_an_overlap() {
        let alive = |first, last| Lifetime { bytes: 64, first, last };
        let lifetimes = [alive(0, 2), alive(1, 3), alive(3, 4)];
        let shared = Placement { offsets: vec![0, 0, 64], bytes: 128 };
        assert_eq!(check(&lifetimes, &shared), Err(Overlap { a: 0, b: 1 }));
    }

    #[test]
    fn chain_needs_two_buffers() {
        let lifetimes: Vec<Lifetime> =
            (0..10).map(|step| Lifetime { bytes: 100, first: step, last: step + 1 }).collect();
        assert_eq!(place(&lifetimes).bytes, 256);
    }
}
