//! Slot allocation and requests in flight, in private memory that the worker cannot access.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::SLOTS;
use crate::wait::{WaitDeadline, WaitError};

/// A submitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub slot: usize,
    /// Even, and unique among the last two billion requests.
    pub token: u32,
    /// The position in the order in which the worker takes requests.
    pub ticket: u32,
    /// Number of earlier requests without an answer at the time of submission.
    pub ahead: u32,
}

/// The slots of one worker process.
#[derive(Debug)]
pub(crate) struct Slots {
    table: Mutex<Table>,
    freed: Condvar,
}

#[derive(Debug)]
struct Table {
    free: Vec<usize>,
    ticket: u32,
    /// Requests without an answer, in submission order.
    in_flight: VecDeque<Submitted>,
}

impl Slots {
    pub fn new() -> Slots {
        let table = Table { free: (0..SLOTS).rev().collect(), ticket: 0, in_flight: VecDeque::new() };
        Slots { table: Mutex::new(table), freed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a slot, waiting for a free one; `None` if `canceled` returns true.
    pub fn claim(
        &self,
        mut wait: WaitDeadline,
        canceled: impl Fn() -> bool,
    ) -> Result<Option<usize>, WaitError> {
        let mut table = self.table();
        loop {
            if let Some(slot) = table.free.pop() {
                return Ok(Some(slot));
            }
            drop(table);
            // Without the lock: the interrupt check may run code of the caller.
            let slice = wait.slice()?;
            if canceled() {
                return Ok(None);
            }
            table = self.table();
            if table.free.is_empty() {
                table = self.freed.wait_timeout(table, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Releases a slot.
    pub fn release(&self, slot: usize) {
        self.table().free.push(slot);
        self.freed.notify_one();
    }

    /// Registers a request and enqueues it under the lock, because the worker takes tickets in order.
    pub fn submit(&self, slot: usize, enqueue: impl FnOnce(&Submitted)) -> Submitted {
        let mut table = self.table();
        let ticket = table.ticket;
        table.ticket = ticket.wrapping_add(1);
        // Never 0, which is the initial state of a slot.
        let token = (ticket.wrapping_mul(2) | 0x8000_0000) & !1;
        let submitted = Submitted { slot, token, ticket, ahead: table.in_flight.len() as u32 };
        enqueue(&submitted);
        table.in_flight.push_back(submitted);
        submitted
    }

    /// Removes an answered request. Requests of a lost worker stay, so that [`Slots::was_running`] can identify the running one.
    pub fn answered(&self, submitted: &Submitted) {
        self.table().in_flight.retain(|one| one.ticket != submitted.ticket);
    }

    /// Whether the worker was running this request when it was lost: every earlier one has an answer according to `has_answer`.
    pub fn was_running(&self, submitted: &Submitted, has_answer: impl Fn(&Submitted) -> bool) -> bool {
        let table = self.table();
        table.in_flight.iter().take_while(|one| one.ticket != submitted.ticket).all(has_answer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_running_request_is_the_oldest_without_an_answer() {
        let slots = Slots::new();
        let all: Vec<Submitted> = (0..3).map(|slot| slots.submit(slot, |_| {})).collect();
        assert_eq!(all.iter().map(|one| one.ahead).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(all.iter().all(|one| one.token != 0 && one.token.is_multiple_of(2)));
        assert!(slots.was_running(&all[0], |_| false));
        assert!(!slots.was_running(&all[1], |_| false));
        assert!(slots.was_running(&all[1], |one| one.slot == 0));
        slots.answered(&all[0]);
        assert!(slots.was_running(&all[1], |_| false));
        assert!(!slots.was_running(&all[2], |_| false));
    }

    #[test]
    fn waiting_for_a_slot_ends_at_the_deadline_or_on_release() {
        let slots = Slots::new();
        let wait = || WaitDeadline::new(Duration::from_millis(1));
        let all: Vec<usize> = (0..SLOTS).map(|_| slots.claim(wait(), || false).unwrap().unwrap()).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..SLOTS).collect::<Vec<_>>(), "each once");
        assert_eq!(slots.claim(wait(), || false), Err(WaitError::Expired));
        assert_eq!(slots.claim(WaitDeadline::new(Duration::from_secs(60)), || true), Ok(None));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.claim(WaitDeadline::new(Duration::from_secs(60)), || false));
            slots.release(all[5]);
            assert_eq!(waiting.join().unwrap(), Ok(Some(all[5])));
        });
    }
}
