//! The stack of another thread of this process, for reports about threads that hang.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Frames of a stack; deeper ones are left out.
const MAX_FRAMES: usize = 64;
/// How long a thread may take to handle the signal: one that blocks it never does.
const TIMEOUT: Duration = Duration::from_millis(200);

/// A thread of this process.
#[derive(Debug, Clone, Copy)]
pub struct ThreadHandle(libc::pthread_t);

static FRAMES: [AtomicPtr<c_void>; MAX_FRAMES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_FRAMES];
/// Number of frames plus one, once the handler has stored them; 0 before.
static STORED: AtomicUsize = AtomicUsize::new(0);

impl ThreadHandle {
    /// The calling thread.
    pub fn current() -> ThreadHandle {
        // SAFETY: has no preconditions.
        ThreadHandle(unsafe { libc::pthread_self() })
    }

    /// The stack of the thread, innermost function first, as `library!function+offset`; empty if it does not answer. It is interrupted by
    /// a real-time signal.
    ///
    /// # Safety
    /// The thread must exist until this returns.
    pub unsafe fn stack(self) -> Vec<String> {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        prepare();
        STORED.store(0, Ordering::SeqCst);
        // SAFETY: the caller guarantees that the thread exists; the signal has a handler.
        if unsafe { libc::pthread_kill(self.0, signal()) } != 0 {
            return Vec::new();
        }
        let sent = Instant::now();
        while STORED.load(Ordering::SeqCst) == 0 {
            if sent.elapsed() > TIMEOUT {
                return Vec::new();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let count = STORED.load(Ordering::SeqCst) - 1;
        // The handler and the frame of the signal come first.
        let frames = FRAMES.iter().take(count).skip(2).map(|frame| frame.load(Ordering::SeqCst));
        frames.map(describe).collect()
    }
}

/// A signal that programs rarely use.
fn signal() -> c_int {
    libc::SIGRTMAX() - 3
}

fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut frames = [std::ptr::null_mut(); 1];
        // SAFETY: an all-zero `sigaction` is valid; the first call of `backtrace` loads a library, which a handler must not do.
        unsafe {
            libc::backtrace(frames.as_mut_ptr(), 1);
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int) = store_stack;
            action.sa_sigaction = handler as usize;
            // On the thread's own stack: alternate stacks are barely larger than the registers that the kernel stores there, which are
            // 11 KB with AMX.
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut());
        }
    });
}

/// The handler: stores the frames of its thread.
extern "C" fn store_stack(_: c_int) {
    let mut frames = [std::ptr::null_mut(); MAX_FRAMES];
    // SAFETY: a buffer of that size; prepared by a first call outside of a handler.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), MAX_FRAMES as c_int) };
    for (slot, frame) in FRAMES.iter().zip(frames) {
        slot.store(frame, Ordering::SeqCst);
    }
    STORED.store(usize::try_from(count).unwrap_or(0) + 1, Ordering::SeqCst);
}

fn describe(frame: *mut c_void) -> String {
    // SAFETY: an all-zero `Dl_info` is valid; the call fills it in.
    let (found, info) = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(frame, &raw mut info) != 0, info)
    };
    let text = |name: *const libc::c_char| {
        // SAFETY: the names of a successful `dladdr` are null-terminated and live as long as the library.
        (found && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    let library = text(info.dli_fname).unwrap_or_default();
    let library = library.rsplit('/').next().unwrap_or_default();
    let (name, base) = match text(info.dli_sname) {
        Some(name) => (name, info.dli_saddr),
        None => (String::new(), info.dli_fbase),
    };
    format!("{library}!{name}+{:#x}", (frame as usize).wrapping_sub(base as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_stack_of_a_waiting_thread_is_reported() {
        report_of_a_thread_that_runs(|wait| wait());
    }

    #[test]
    fn a_small_alternate_stack_is_not_used() {
        report_of_a_thread_that_runs(|wait| {
            // SAFETY: has no preconditions.
            let needed = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
            let mut memory = vec![0u8; needed.max(libc::MINSIGSTKSZ)];
            let small =
                libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
            let mut before = small;
            // SAFETY: the memory is not used otherwise while it is the alternate stack.
            assert_eq!(unsafe { libc::sigaltstack(&raw const small, &raw mut before) }, 0);
            wait();
            // SAFETY: as above, and the stack of before still exists.
            assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
        });
    }

    fn report_of_a_thread_that_runs(run: impl FnOnce(&dyn Fn()) + Send + 'static) {
        let (started, waiting) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            run(&|| {
                started.send(ThreadHandle::current()).unwrap();
                let _ = ended.recv();
            });
        });
        let handle = waiting.recv().unwrap();
        // SAFETY: the thread waits for `end`.
        let stack = unsafe { handle.stack() };
        assert!(stack.len() > 2 && stack.iter().all(|frame| frame.contains('!')), "{stack:#?}");
        drop(end);
        thread.join().unwrap();
    }
}
