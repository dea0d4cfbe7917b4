//! Log records for C++: a callback, or stderr.

use std::ffi::c_void;

use lz_core::{Error, Reason, ReasonCode};
use lz_engine::log::{self, Levels, Record, Sink};

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::Owner;

type Callback = unsafe extern "C" fn(*mut c_void, *const data::LogRecord);

struct CallbackSink {
    callback: Callback,
    owner: Owner,
}

impl Sink for CallbackSink {
    fn record(&self, record: Record) {
        let pair = |(name, value): (&str, String)| [name.to_owned(), value];
        let record = data::LogRecord {
            area: record.area.to_owned(),
            level: record.severity as u8,
            message: record.message,
            fields: record.fields.into_iter().flat_map(pair).collect(),
        };
        // SAFETY: by the contract of `set_log_callback`.
        unsafe { (self.callback)(self.owner.data, &raw const record) };
    }
}

/// Sends log records to a callback; the address 0 restores stderr.
///
/// # Safety
/// `callback` is 0 or the address of a C function that takes `owner` and a record, on any thread, and does not throw.
/// `release` is as for [`Owner::new`].
pub unsafe fn set_log_callback(callback: usize, owner: usize, release: usize) {
    #[expect(clippy::disallowed_methods, reason = "converts an address to a function pointer")]
    // SAFETY: the caller guarantees the function; 0 is `None`.
    let callback = unsafe { std::mem::transmute::<usize, Option<Callback>>(callback) };
    // SAFETY: passed on.
    let owner = unsafe { Owner::new(owner, release) };
    log::install();
    log::set_sink(callback.map(|callback| Box::new(CallbackSink { callback, owner }) as Box<dyn Sink>));
}

/// Sets the levels, as `LAYERZERO_LOG` does; an empty text restores those of the environment.
pub fn set_log_levels(levels: &str) -> *mut Failure {
    guarded(|| {
        let parsed = (!levels.trim().is_empty()).then(|| levels.parse::<Levels>()).transpose();
        let parsed = parsed.map_err(|message| Error::Configuration {
            subject: "log levels".to_owned(),
            message: message.clone(),
            reasons: vec![Reason::new(ReasonCode::PolicyInvalid).message(message)],
        })?;
        log::install();
        log::set_levels(parsed);
        Ok(())
    })
}
