//! The mode of calls, and how a thread changes it for a while.

pub use lz_core::mode::*;

pub use crate::selection::thread_scope::{ModeScope, scope};

/// Whether a scope of this thread changes the mode or the policy of its calls. Calls on other threads are outside of it.
pub fn is_scoped() -> bool {
    crate::selection::thread_scope::of_thread() != ModeOverride::NONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::thread_scope::of_thread;

    #[test]
    fn scopes_nest_and_end() {
        let base = Mode::PLAIN.set(ModeFlag::Strict, true);
        let outer = scope(ModeOverride::NONE.set(ModeFlag::Deterministic, true).kv(KvStrategy::Paged));
        assert!(of_thread().apply(base).has(ModeFlag::Deterministic) && is_scoped());
        {
            let _inner = scope(
                ModeOverride::NONE
                    .set(ModeFlag::Deterministic, false)
                    .set(ModeFlag::Strict, false)
                    .kv(KvStrategy::Virtual)
                    .tp(8),
            );
            let mode = of_thread().apply(base);
            assert_eq!((mode.tp_size(), mode.to_string().as_str()), (8, "virtual, 8 ranks"));
            assert!(!mode.has(ModeFlag::Deterministic) && !mode.has(ModeFlag::Strict));
            assert_eq!(mode.kv_strategy(), Some(KvStrategy::Virtual));
        }
        let mode = of_thread().apply(base);
        assert_eq!((mode.tp_size(), mode.to_string().as_str()), (1, "deterministic, strict, paged"));
        drop(outer);
        assert_eq!((of_thread().apply(base), is_scoped()), (base, false));
    }
}
