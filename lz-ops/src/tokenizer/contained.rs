//! Panics of other libraries as errors. They check definitions by asserting, and definitions come from outside.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs something of another library; the message if it panics. Nothing is printed: the panic is reported as an error by the caller,
/// who must not use again what it could leave half done.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CONTAINED.get() {
                previous(panic);
            }
        }));
    });
    let outer = CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outer);
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
    fn a_panic_is_an_error_and_the_next_one_is_not_contained() {
        assert_eq!(contained(|| 7), Ok(7));
        let fail = |number: u32| -> u32 { panic!("at {number}") };
        assert_eq!(contained(|| fail(3)), Err("at 3".to_owned()));
        assert_eq!(contained(|| contained(|| fail(4))), Ok(Err("at 4".to_owned())));
        assert!(!CONTAINED.get());
    }
}
