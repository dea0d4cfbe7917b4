//! Scopes of a thread: mode overrides and policy overlays.
//!
//! Everything is thread-local and ends with its guard; guards may be dropped in any order. The hit path reads one word of this;
//! the rest is only read on the slow path.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::policy::layer::Layer;
use crate::selection::thread;
use lz_core::fork::Mutex;
use lz_core::mode::ModeOverride;
use lz_core::scope_stack::ScopeStack;

/// One scope; later frames override earlier ones.
#[derive(Default)]
struct Frame {
    mode: ModeOverride,
    layer: Option<(u64, Layer)>,
    /// The layer including the part that became the mode, for display.
    shown: Option<(u64, Layer)>,
}

/// Interned policy overlay: the layers of a thread by engine. Equal contents have equal ids, and ids are not reused.
#[derive(Debug)]
pub(crate) struct InternedOverlay {
    number: u32,
    layers: Vec<(u64, Layer)>,
}

impl InternedOverlay {
    /// The layer over the policy of an engine.
    pub fn over(&self, engine: u64) -> Option<&Layer> {
        self.layers.iter().find(|(interned, _)| *interned == engine).map(|(_, layer)| layer)
    }
}

thread_local! {
    static FRAMES: RefCell<Frames> = const { RefCell::new(Frames { stack: ScopeStack::new(), overlay: None }) };
}

struct Frames {
    stack: ScopeStack<Frame>,
    overlay: Option<Arc<InternedOverlay>>,
}

/// The mode override of this thread.
#[inline]
pub(crate) fn of_thread() -> ModeOverride {
    thread::with(|thread| thread.change.get())
}

/// The policy overlay of this thread.
pub(crate) fn thread_overlay() -> Option<Arc<InternedOverlay>> {
    FRAMES.try_with(|frames| frames.borrow().overlay.clone()).ok().flatten()
}

/// The layers of this thread over an engine, including modes, for display.
pub(crate) fn shown_over(engine: u64) -> Layer {
    let mut all = Layer::new();
    let _ = FRAMES.try_with(|frames| {
        for (interned, layer) in frames.borrow().stack.iter().filter_map(|frame| frame.shown.as_ref()) {
            if *interned == engine {
                all.merge(layer);
            }
        }
    });
    all
}

/// The intern table, least recently used last. An evicted overlay gets a new id when it is used again.
#[derive(Default)]
struct InternTable {
    last: u32,
    interned: Vec<Arc<InternedOverlay>>,
}

const MAX_INTERNED: usize = 256;

static INTERN_TABLE: Mutex<InternTable> = Mutex::new(InternTable { last: 0, interned: Vec::new() });

/// All 2^32 overlay ids of this process are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverlayIdsExhausted;

fn number(layers: Vec<(u64, Layer)>) -> Result<Arc<InternedOverlay>, OverlayIdsExhausted> {
    let mut numbers = INTERN_TABLE.lock();
    if let Some(at) = numbers.interned.iter().position(|overlay| overlay.layers == layers) {
        let overlay = numbers.interned.remove(at);
        numbers.interned.insert(0, Arc::clone(&overlay));
        return Ok(overlay);
    }
    numbers.last = numbers.last.checked_add(1).ok_or(OverlayIdsExhausted)?;
    let overlay = Arc::new(InternedOverlay { number: numbers.last, layers });
    numbers.interned.insert(0, Arc::clone(&overlay));
    numbers.interned.truncate(MAX_INTERNED);
    Ok(overlay)
}

impl Frames {
    /// Recomputes the combined override and overlay.
    fn recompute(&mut self) -> Result<(), OverlayIdsExhausted> {
        let mut change = ModeOverride::NONE;
        let mut layers: Vec<(u64, Layer)> = Vec::new();
        for frame in self.stack.iter() {
            change = change.then(frame.mode);
            let Some((engine, layer)) = &frame.layer else { continue };
            match layers.iter_mut().find(|(interned, _)| interned == engine) {
                Some((_, below)) => below.merge(layer),
                None => layers.push((*engine, layer.clone())),
            }
        }
        layers.sort_by_key(|(engine, _)| *engine);
        // Frames without a layer cannot fail: they do not intern.
        if self.overlay.as_ref().map_or(&[][..], |overlay| &overlay.layers) != layers.as_slice() {
            self.overlay = if layers.is_empty() { None } else { Some(number(layers)?) };
        }
        if let Some(overlay) = &self.overlay {
            change = change.with_overlay(overlay.number);
        }
        thread::with(|thread| thread.change.set(change));
        Ok(())
    }
}

fn push(frame: Frame) -> Result<FrameGuard, OverlayIdsExhausted> {
    FRAMES.with(|frames| {
        let mut frames = frames.borrow_mut();
        let id = frames.stack.push(frame);
        if let Err(error) = frames.recompute() {
            frames.stack.remove(id);
            return Err(error);
        }
        Ok(FrameGuard { id, this_thread: PhantomData })
    })
}

/// Removes its frame when dropped.
#[derive(Debug)]
struct FrameGuard {
    id: u64,
    this_thread: PhantomData<*const ()>,
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        // A thread that is ending has no frames.
        let _ = FRAMES.try_with(|frames| {
            let mut frames = frames.borrow_mut();
            frames.stack.remove(self.id);
            if frames.recompute().is_err() {
                // No ids left: drop all frames, which needs none.
                frames.stack.clear();
                let _ = frames.recompute();
            }
        });
    }
}

/// Ends a mode override when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the mode override ends when this is dropped"]
pub struct ModeScope {
    _frame: Option<FrameGuard>,
}

/// Overrides the mode of this thread's calls until the guard is dropped. Guards nest.
pub fn scope(change: ModeOverride) -> ModeScope {
    ModeScope { _frame: push(Frame { mode: change, ..Frame::default() }).ok() }
}

/// Ends a policy overlay when dropped. Bound to its thread.
#[derive(Debug)]
#[must_use = "the policy overlay ends when this is dropped"]
pub struct PolicyScope {
    _frame: FrameGuard,
}

/// Overlays the policy of an engine, and overrides the mode, until the guard is dropped.
pub(crate) fn push_overlay(
    engine: u64,
    mode: ModeOverride,
    layer: Layer,
    shown: Layer,
) -> Result<PolicyScope, OverlayIdsExhausted> {
    let layer = (!layer.is_empty()).then_some((engine, layer));
    let frame = Frame { mode, layer, shown: Some((engine, shown)) };
    push(frame).map(|frame| PolicyScope { _frame: frame })
}

#[cfg(test)]
mod tests {
    use lz_core::run::{on_stream, stream_of_thread};

    use super::*;
    use lz_core::mode::{Mode, ModeFlag};

    fn layer(kernel: &str) -> Layer {
        let mut layer = Layer::new();
        layer.lock("a.b", kernel, "test");
        layer
    }

    fn push_overlay(
        engine: u64,
        mode: ModeOverride,
        layer: Layer,
    ) -> Result<PolicyScope, OverlayIdsExhausted> {
        super::push_overlay(engine, mode, layer.clone(), layer)
    }

    fn overlay_id_now() -> u32 {
        of_thread().apply(Mode::PLAIN).overlay_id()
    }

    #[test]
    fn equal_overlays_have_equal_ids() {
        let first = push_overlay(7, ModeOverride::NONE, layer("x")).unwrap();
        let number = overlay_id_now();
        assert_ne!(number, 0);
        let second = push_overlay(7, ModeOverride::NONE, layer("y")).unwrap();
        assert_ne!(overlay_id_now(), number);
        drop(second);
        assert_eq!(overlay_id_now(), number);
        drop(first);
        assert_eq!(overlay_id_now(), 0);
        let _again = push_overlay(7, ModeOverride::NONE, layer("x")).unwrap();
        assert_eq!(overlay_id_now(), number);
        let _other_engine = push_overlay(8, ModeOverride::NONE, layer("x")).unwrap();
        assert_ne!(overlay_id_now(), number);
    }

    #[test]
    fn guards_may_be_dropped_in_any_order() {
        let deterministic = |on| ModeOverride::NONE.set(ModeFlag::Deterministic, on);
        let outer = scope(deterministic(true));
        let middle = on_stream(77);
        let inner = push_overlay(1, deterministic(false), layer("x")).unwrap();
        drop(outer);
        assert!(
            !of_thread().apply(Mode::PLAIN.set(ModeFlag::Deterministic, true)).has(ModeFlag::Deterministic)
        );
        assert_eq!(stream_of_thread(), 77);
        drop(middle);
        assert_eq!((stream_of_thread(), overlay_id_now() != 0), (0, true));
        drop(inner);
        assert_eq!(of_thread(), ModeOverride::NONE);
    }

    #[test]
    fn scopes_are_thread_local() {
        let _scope = push_overlay(1, ModeOverride::NONE.set(ModeFlag::Disabled, true), layer("x")).unwrap();
        let _stream = on_stream(5);
        let seen = std::thread::spawn(|| (of_thread(), stream_of_thread(), thread_overlay().is_none()));
        assert_eq!(seen.join().unwrap(), (ModeOverride::NONE, 0, true));
    }
}
