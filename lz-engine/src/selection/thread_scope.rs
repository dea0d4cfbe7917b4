//! What a thread changes for a while: the mode of its calls, what is laid over the policies of engines.
//!
//! Everything is per thread and ends with its guard, in whatever order guards end. What a call reads on its way to a
//! remembered decision is one word; all else is looked at only when a decision has to be looked up or made.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use crate::policy::layer::Layer;
use crate::selection::thread;
use lz_core::mode::ModeChange;

/// One change; frames lie over each other, later over earlier.
#[derive(Default)]
struct Frame {
    id: u64,
    mode: ModeChange,
    layer: Option<(u64, Layer)>,
    /// The same with what became the mode, for people.
    shown: Option<(u64, Layer)>,
}

/// What the frames of a thread lay over policies, by engine. Equal contents have equal numbers, and no number is used twice.
#[derive(Debug)]
pub(crate) struct Laid {
    number: u32,
    layers: Vec<(u64, Layer)>,
}

impl Laid {
    /// What is laid over the policy of an engine.
    pub fn over(&self, engine: u64) -> Option<&Layer> {
        self.layers.iter().find(|(known, _)| *known == engine).map(|(_, layer)| layer)
    }
}

thread_local! {
    static FRAMES: RefCell<Frames> = const { RefCell::new(Frames { next: 0, frames: Vec::new(), laid: None }) };
}

struct Frames {
    next: u64,
    frames: Vec<Frame>,
    laid: Option<Arc<Laid>>,
}

/// What this thread changes now.
#[inline]
pub(crate) fn of_thread() -> ModeChange {
    thread::with(|thread| thread.change.get())
}

/// What this thread lays over policies now.
pub(crate) fn laid_of_thread() -> Option<Arc<Laid>> {
    FRAMES.try_with(|frames| frames.borrow().laid.clone()).ok().flatten()
}

/// What this thread says about an engine now, modes included, for people.
pub(crate) fn shown_over(engine: u64) -> Layer {
    let mut all = Layer::new();
    let _ = FRAMES.try_with(|frames| {
        for (known, layer) in frames.borrow().frames.iter().filter_map(|frame| frame.shown.as_ref()) {
            if *known == engine {
                all.lay(layer);
            }
        }
    });
    all
}

/// Contents that have a number already. Bounded: what falls out gets a new number when it comes back.
#[derive(Default)]
struct Numbers {
    last: u32,
    known: Vec<Arc<Laid>>,
}

const MOST_KNOWN: usize = 256;

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { last: 0, known: Vec::new() });

/// All numbers have been used: four thousand million different overlays in one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumbersExhausted;

fn number(layers: Vec<(u64, Layer)>) -> Result<Arc<Laid>, NumbersExhausted> {
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = numbers.known.iter().position(|laid| laid.layers == layers) {
        let laid = numbers.known.remove(at);
        numbers.known.insert(0, Arc::clone(&laid));
        return Ok(laid);
    }
    numbers.last = numbers.last.checked_add(1).ok_or(NumbersExhausted)?;
    let laid = Arc::new(Laid { number: numbers.last, layers });
    numbers.known.insert(0, Arc::clone(&laid));
    numbers.known.truncate(MOST_KNOWN);
    Ok(laid)
}

impl Frames {
    /// Works out what the frames make together.
    fn settle(&mut self) -> Result<(), NumbersExhausted> {
        let mut change = ModeChange::NONE;
        let mut layers: Vec<(u64, Layer)> = Vec::new();
        for frame in &self.frames {
            change = change.then(frame.mode);
            let Some((engine, layer)) = &frame.layer else { continue };
            match layers.iter_mut().find(|(known, _)| known == engine) {
                Some((_, below)) => below.lay(layer),
                None => layers.push((*engine, layer.clone())),
            }
        }
        layers.sort_by_key(|(engine, _)| *engine);
        // Frames without a layer change nothing here, so that they cannot fail.
        if self.laid.as_ref().map_or(&[][..], |laid| &laid.layers) != layers.as_slice() {
            self.laid = if layers.is_empty() { None } else { Some(number(layers)?) };
        }
        if let Some(laid) = &self.laid {
            change = change.laying(laid.number);
        }
        thread::with(|thread| thread.change.set(change));
        Ok(())
    }
}

fn push(frame: Frame) -> Result<Frameholder, NumbersExhausted> {
    FRAMES.with(|frames| {
        let mut frames = frames.borrow_mut();
        frames.next += 1;
        let id = frames.next;
        frames.frames.push(Frame { id, ..frame });
        if let Err(error) = frames.settle() {
            frames.frames.pop();
            return Err(error);
        }
        Ok(Frameholder { id, this_thread: PhantomData })
    })
}

/// Takes its frame away when dropped.
#[derive(Debug)]
struct Frameholder {
    id: u64,
    this_thread: PhantomData<*const ()>,
}

impl Drop for Frameholder {
    fn drop(&mut self) {
        // A thread that is ending has nothing left to put back.
        let _ = FRAMES.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            frames.frames.retain(|frame| frame.id != self.id);
            if frames.settle().is_err() {
                // Nothing can be numbered any more: without frames nothing has to be.
                frames.frames.clear();
                let _ = frames.settle();
            }
        });
    }
}

/// Ends a change of mode when dropped; it belongs to its thread.
#[derive(Debug)]
#[must_use = "the mode goes back as soon as this is dropped"]
pub struct ModeScope {
    _frame: Option<Frameholder>,
}

/// Changes the mode of this thread's calls until the guard is dropped. Guards nest.
pub fn scope(change: ModeChange) -> ModeScope {
    ModeScope { _frame: push(Frame { mode: change, ..Frame::default() }).ok() }
}

/// Ends what was laid over a policy when dropped; it belongs to its thread.
#[derive(Debug)]
#[must_use = "what was laid over the policy goes away as soon as this is dropped"]
pub struct PolicyScope {
    _frame: Frameholder,
}

/// Lays a layer over the policy of an engine, and changes the mode, until the guard is dropped.
pub(crate) fn lay(
    engine: u64,
    mode: ModeChange,
    layer: Layer,
    shown: Layer,
) -> Result<PolicyScope, NumbersExhausted> {
    let layer = (!layer.is_empty()).then_some((engine, layer));
    let frame = Frame { mode, layer, shown: Some((engine, shown)), ..Frame::default() };
    push(frame).map(|frame| PolicyScope { _frame: frame })
}

#[cfg(test)]
mod tests {
    use lz_core::run::{on_stream, stream_of_thread};

    use super::*;
    use lz_core::mode::{Ask, Mode};

    fn layer(kernel: &str) -> Layer {
        let mut layer = Layer::new();
        layer.lock("a.b", kernel, "test");
        layer
    }

    fn lay(engine: u64, mode: ModeChange, layer: Layer) -> Result<PolicyScope, NumbersExhausted> {
        super::lay(engine, mode, layer.clone(), layer)
    }

    fn laid_now() -> u32 {
        of_thread().apply(Mode::PLAIN).laid()
    }

    #[test]
    fn equal_contents_have_equal_numbers_and_others_have_not() {
        let first = lay(7, ModeChange::NONE, layer("x")).unwrap();
        let number = laid_now();
        assert_ne!(number, 0);
        let second = lay(7, ModeChange::NONE, layer("y")).unwrap();
        assert_ne!(laid_now(), number);
        drop(second);
        assert_eq!(laid_now(), number);
        drop(first);
        assert_eq!(laid_now(), 0);
        let _again = lay(7, ModeChange::NONE, layer("x")).unwrap();
        assert_eq!(laid_now(), number);
        let _other_engine = lay(8, ModeChange::NONE, layer("x")).unwrap();
        assert_ne!(laid_now(), number);
    }

    #[test]
    fn guards_may_end_in_any_order() {
        let deterministic = |on| ModeChange::NONE.set(Ask::Deterministic, on);
        let outer = scope(deterministic(true));
        let middle = on_stream(77);
        let inner = lay(1, deterministic(false), layer("x")).unwrap();
        drop(outer);
        assert!(!of_thread().apply(Mode::PLAIN.set(Ask::Deterministic, true)).has(Ask::Deterministic));
        assert_eq!(stream_of_thread(), 77);
        drop(middle);
        assert_eq!((stream_of_thread(), laid_now() != 0), (0, true));
        drop(inner);
        assert_eq!(of_thread(), ModeChange::NONE);
    }

    #[test]
    fn other_threads_see_nothing() {
        let _scope = lay(1, ModeChange::NONE.set(Ask::Disabled, true), layer("x")).unwrap();
        let _stream = on_stream(5);
        let seen = std::thread::spawn(|| (of_thread(), stream_of_thread(), laid_of_thread().is_none()));
        assert_eq!(seen.join().unwrap(), (ModeChange::NONE, 0, true));
    }
}
