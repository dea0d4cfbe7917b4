//! Converts panics of external libraries to errors. Some libraries assert on definitions, which are untrusted input.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` and returns the panic message if it panics. The panic hook prints nothing: the caller reports the error. The caller must
/// not reuse state that the panic may have left inconsistent.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CATCHING.get() {
                previous(panic);
            }
        }));
    });
    let outer = CATCHING.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(outer);
    outcome.map_err(|panic| text(&*panic).to_owned())
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_flag_is_reset() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        let fail = |number: u32| -> u32 { panic!("at {number}") };
        assert_eq!(catch_panic(|| fail(3)), Err("at 3".to_owned()));
        assert_eq!(catch_panic(|| catch_panic(|| fail(4))), Ok(Err("at 4".to_owned())));
        assert!(!CATCHING.get());
    }
}
