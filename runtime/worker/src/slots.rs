//! Which slots of a worker are in use, and by which calls: bookkeeping that the worker cannot reach.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::patience::{Patience, Stop};
use crate::protocol::SLOTS;

/// A request that the worker has, or had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub slot: usize,
    /// Even, and different from that of every request of the last two billion.
    pub token: u32,
    /// The place in the order in which the worker takes requests.
    pub ticket: u32,
    /// Requests that were submitted before and not answered yet.
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
    /// In the order of submission.
    under_way: VecDeque<Submitted>,
}

impl Slots {
    pub fn new() -> Slots {
        let table = Table { free: (0..SLOTS).rev().collect(), ticket: 0, under_way: VecDeque::new() };
        Slots { table: Mutex::new(table), freed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot, once one is free; `None` if `over` says that there is nothing more to wait for.
    pub fn claim(&self, mut patience: Patience, over: impl Fn() -> bool) -> Result<Option<usize>, Stop> {
        let mut table = self.table();
        loop {
            if let Some(slot) = table.free.pop() {
                return Ok(Some(slot));
            }
            drop(table);
            // Without the lock: asking for interrupts may run code of the caller.
            let slice = patience.slice()?;
            if over() {
                return Ok(None);
            }
            table = self.table();
            if table.free.is_empty() {
                table = self.freed.wait_timeout(table, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Gives a slot back.
    pub fn release(&self, slot: usize) {
        self.table().free.push(slot);
        self.freed.notify_one();
    }

    /// Counts a request in and hands it on, while nobody else can submit: the worker takes tickets in order.
    pub fn submit(&self, slot: usize, hand_on: impl FnOnce(&Submitted)) -> Submitted {
        let mut table = self.table();
        let ticket = table.ticket;
        table.ticket = ticket.wrapping_add(1);
        // 0 is what the state of a slot is before its first request.
        let token = (ticket.wrapping_mul(2) | 0x8000_0000) & !1;
        let submitted = Submitted { slot, token, ticket, ahead: table.under_way.len() as u32 };
        hand_on(&submitted);
        table.under_way.push_back(submitted);
        submitted
    }

    /// Counts a request out, because it was answered. Those of a worker that is lost stay, so that it can be told which of
    /// them it was working on.
    pub fn answered(&self, submitted: &Submitted) {
        self.table().under_way.retain(|one| one.ticket != submitted.ticket);
    }

    /// Whether the worker was working on this request when it was lost: every older one had an answer, by `has_answer`.
    pub fn was_running(&self, submitted: &Submitted, has_answer: impl Fn(&Submitted) -> bool) -> bool {
        let table = self.table();
        table.under_way.iter().take_while(|one| one.ticket != submitted.ticket).all(has_answer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_request_that_was_running_is_the_oldest_without_an_answer() {
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
    fn a_wait_for_a_slot_ends() {
        let slots = Slots::new();
        let patience = || Patience::new(Duration::from_millis(1));
        let all: Vec<usize> =
            (0..SLOTS).map(|_| slots.claim(patience(), || false).unwrap().unwrap()).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..SLOTS).collect::<Vec<_>>(), "each once");
        assert_eq!(slots.claim(patience(), || false), Err(Stop::Expired));
        assert_eq!(slots.claim(Patience::new(Duration::from_secs(60)), || true), Ok(None));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| slots.claim(Patience::new(Duration::from_secs(60)), || false));
            slots.release(all[5]);
            assert_eq!(waiting.join().unwrap(), Ok(Some(all[5])));
        });
    }
}
