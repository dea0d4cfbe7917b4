//! `moe.route`: the best experts of each row by insertion into a short sorted list. Scores that decide the choice
//! are computed in f64, like the reference, so that both choose the same experts.

use std::marker::PhantomData;

use lz_core::{KernelError, Run};
use lz_ops::{MoeRouteCall, MoeRouteGroupScore, MoeRouteKernel, MoeRouteOut, MoeRouteScoring};

use crate::isa::require;
use crate::rows::{Rows, RowsMut};
use crate::sampling::{SLOTS, for_each_slot};
use crate::simd::{Float, FullVector, Simd, with_float};

/// Dense rows of logits, any float type.
#[derive(Debug)]
pub(crate) struct Route<S>(pub PhantomData<S>);

#[lz_macros::kernel(
    id = "cpu.moe.route",
    operation = "moe.route",
    backend = "cpu",
    priority = 60,
    dtypes(T = [f32, f16, bf16]),
    strides = last_dense,
    deterministic,
    tp_invariant = true,
    batch_invariant = true,
    workspace = "min(rows, 16) * (experts * 40)"
)]
impl<S: Simd> MoeRouteKernel for Route<S> {
    fn run(
        &self,
        call: &MoeRouteCall<'_>,
        mut out: MoeRouteOut<'_>,
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let s = require::<S>()?;
        let (rows, experts) = (call.axes.rows as usize, call.axes.experts as usize);
        let scratch = Scratch(run.workspace((rows.min(SLOTS) * experts * 40) as u64)?.as_mut_ptr());
        let bias = call.bias.as_ref().map(Rows::<f32>::new).transpose()?;
        let weights = RowsMut::<f32>::new(&mut out.weights)?;
        let indices = RowsMut::<i32>::new(&mut out.indices)?;
        with_float!(call.dtype_t, T => {
            let logits = Rows::<T>::new(&call.logits)?;
            // Deciding costs more than reading: about eight times the bytes of the logits.
            for_each_slot(rows, experts * 32, |slot, rows| {
                // SAFETY: the workspace has space for every slot, and each belongs to one task.
                let mut router = unsafe { Router::new(call, bias.map(|bias| bias.row(0)), &scratch, slot) };
                for row in rows {
                    router.choose(s, logits.row(row));
                    // SAFETY: every row belongs to one task.
                    let (weights, indices) = unsafe { (weights.row(row), indices.row(row)) };
                    router.write(logits.row(row), weights, indices);
                }
            });
            Ok(())
        })
    }
}

/// Start address of the scratch memory of a call.
struct Scratch(*mut u8);

// SAFETY: every slot is used by one task at a time.
unsafe impl Sync for Scratch {}

/// A score as an integer that sorts in descending order, NaN last.
#[inline(always)]
fn descending(score: f64) -> u64 {
    if score.is_nan() {
        return u64::MAX;
    }
    // +0 and -0 are equal.
    let bits = (score + 0.0).to_bits();
    !(if bits >> 63 == 1 { !bits } else { bits | 1 << 63 })
}

/// The best candidates so far, sorted. Earlier candidates come first among equals.
struct Best<'m> {
    keys: &'m mut [u64],
    ids: &'m mut [u32],
    count: usize,
}

impl Best<'_> {
    fn is_full(&self) -> bool {
        self.count == self.keys.len()
    }

    #[inline(always)]
    fn offer(&mut self, key: u64, id: usize) {
        if self.is_full() {
            match self.keys.last() {
                Some(&last) if key < last => {}
                _ => return,
            }
        } else {
            self.count += 1;
        }
        let mut at = self.count - 1;
        while at > 0 && self.keys[at - 1] > key {
            (self.keys[at], self.ids[at]) = (self.keys[at - 1], self.ids[at - 1]);
            at -= 1;
        }
        (self.keys[at], self.ids[at]) = (key, id as u32);
    }
}

/// Chooses the experts of one row after the other.
struct Router<'m, 'c> {
    call: &'c MoeRouteCall<'c>,
    bias: Option<&'c [f32]>,
    /// Scores without their common denominator; only computed where needed.
    numerators: &'m mut [f64],
    /// What experts are compared by, if not by their logits.
    choice: &'m mut [f64],
    group_keys: &'m mut [u64],
    group_ids: &'m mut [u32],
    best: Best<'m>,
    largest: f64,
    total: f64,
}

impl<'m, 'c> Router<'m, 'c> {
    /// # Safety
    /// The scratch memory has 40 bytes per expert for each slot up to this one, aligned for u64, and no other
    /// reference to this slot exists.
    unsafe fn new(
        call: &'c MoeRouteCall<'c>,
        bias: Option<&'c [f32]>,
        scratch: &Scratch,
        slot: usize,
    ) -> Router<'m, 'c> {
        let experts = call.axes.experts as usize;
        let (top_groups, top_k) = (call.top_groups as usize, call.top_k as usize);
        // SAFETY: the caller guarantees the bytes; any bits are valid values of these types, and neither groups
        // nor choices are more than experts (validated).
        unsafe {
            let start = scratch.0.add(slot * experts * 40);
            let part = |index: usize| start.add(index * experts * 8);
            Router {
                call,
                bias,
                numerators: std::slice::from_raw_parts_mut(part(0).cast(), experts),
                choice: std::slice::from_raw_parts_mut(part(1).cast(), experts),
                group_keys: std::slice::from_raw_parts_mut(part(2).cast(), top_groups),
                group_ids: std::slice::from_raw_parts_mut(part(4).cast(), top_groups),
                best: Best {
                    keys: std::slice::from_raw_parts_mut(part(3).cast(), top_k),
                    ids: std::slice::from_raw_parts_mut(part(4).cast::<u32>().add(experts), top_k),
                    count: 0,
                },
                largest: 0.0,
                total: 1.0,
            }
        }
    }

    /// Fills the list of the best experts.
    fn choose<S: Simd, T: Float>(&mut self, s: S, logits: &[T]) {
        self.best.count = 0;
        let softmax = self.call.scoring == MoeRouteScoring::Softmax;
        if softmax {
            let largest = logits.iter().map(|logit| logit.to_f32()).fold(f32::NEG_INFINITY, f32::max);
            self.largest = f64::from(largest);
        }
        if self.bias.is_some() || (softmax && !self.call.renormalize) {
            for (index, logit) in logits.iter().enumerate() {
                self.numerators[index] = self.numerator(logit.to_f32());
            }
            self.total = if softmax { self.numerators.iter().sum() } else { 1.0 };
        }
        match self.bias {
            None if self.call.groups == 1 => return self.by_logit(s, logits),
            None => {
                for (choice, logit) in self.choice.iter_mut().zip(logits) {
                    *choice = f64::from(logit.to_f32());
                }
            }
            Some(bias) => {
                for ((choice, numerator), bias) in self.choice.iter_mut().zip(&*self.numerators).zip(bias) {
                    *choice = numerator / self.total + f64::from(*bias);
                }
            }
        }
        self.by_choice();
    }

    fn numerator(&self, logit: f32) -> f64 {
        let logit = f64::from(logit);
        match self.call.scoring {
            MoeRouteScoring::Softmax => (logit - self.largest).exp(),
            MoeRouteScoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        }
    }

    /// Compares experts by their logits. A vector without a better one is skipped.
    #[inline(never)]
    fn by_logit<S: Simd, T: Float>(&mut self, s: S, logits: &[T]) {
        s.vectorize(|| {
            let mut first = 0;
            while first < logits.len() {
                let end = logits.len().min(first + S::LANES);
                let worst = self.best.ids.last().filter(|_| self.best.is_full());
                let worst = worst.map_or(f32::NAN, |&id| logits[id as usize].to_f32());
                // A comparison with NaN is false: then every candidate is offered.
                let skip = end - first == S::LANES && {
                    // SAFETY: a full vector is readable here.
                    s.largest(unsafe { T::load(s, logits.as_ptr(), FullVector(first)) }) <= worst
                };
                if !skip {
                    for (offset, logit) in logits[first..end].iter().enumerate() {
                        self.best.offer(descending(f64::from(logit.to_f32())), first + offset);
                    }
                }
                first = end;
            }
        });
    }

    /// Compares the experts of the best groups by their scores.
    fn by_choice(&mut self) {
        let groups = self.call.groups as usize;
        let size = (self.choice.len() / groups).max(1);
        let mut allowed = Best { keys: self.group_keys, ids: self.group_ids, count: 0 };
        for (group, choice) in self.choice.chunks(size).enumerate() {
            allowed.offer(descending(group_score(choice, self.call.group_score)), group);
        }
        // In index order, so that equal scores stay in index order.
        let allowed = &mut allowed.ids[..allowed.count];
        allowed.sort_unstable();
        for &group in &*allowed {
            let first = group as usize * size;
            for (offset, &choice) in self.choice[first..first + size].iter().enumerate() {
                self.best.offer(descending(choice), first + offset);
            }
        }
    }

    /// Writes the chosen experts and their weights.
    fn write<T: Float>(&self, logits: &[T], weights: &mut [f32], indices: &mut [i32]) {
        let chosen = &self.best.ids[..self.best.count];
        let numerator = |id: u32| self.numerator(logits[id as usize].to_f32());
        let denominator =
            if self.call.renormalize { chosen.iter().map(|&id| numerator(id)).sum() } else { self.total };
        for ((&id, weight), index) in chosen.iter().zip(weights).zip(indices) {
            let share = if denominator == 0.0 { 0.0 } else { numerator(id) / denominator };
            *weight = (f64::from(self.call.scale) * share) as f32;
            *index = id as i32;
        }
    }
}

/// The score of a group: its largest, or the sum of its two largest; NaN counts as less than any number.
fn group_score(group: &[f64], score: MoeRouteGroupScore) -> f64 {
    let (mut first, mut second) = (f64::NAN, f64::NAN);
    for &value in group {
        if descending(value) < descending(first) {
            (first, second) = (value, first);
        } else if descending(value) < descending(second) {
            second = value;
        }
    }
    if score == MoeRouteGroupScore::Top1 || group.len() == 1 { first } else { first + second }
}
