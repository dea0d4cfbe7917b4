//! Hot reload: watches a policy file; a changed file is read and checked as a whole before it is applied.
//!
//! An invalid, unreadable or missing file changes nothing and is reported. Nothing here interprets the policy.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use crate::policy::file::{PolicyText, Vocabulary};
use crate::policy::stack::PolicyStack;

/// The result of a file change.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The new policy is in force.
    Applied,
    /// The content has not changed.
    Unchanged,
    /// The file is invalid; the previous policy stays in force. The text is the whole diagnostic.
    Refused(String),
    /// The file cannot be read; the previous policy stays in force.
    Unreadable(String),
}

/// Why a file cannot be watched.
#[derive(Debug, Clone)]
pub struct WatchError {
    /// The file.
    pub path: PathBuf,
    /// The system error.
    pub message: String,
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be watched: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for WatchError {}

/// Default quiet time after an event before the file is read.
pub const DEBOUNCE: Duration = Duration::from_millis(100);

enum Message {
    Touched,
    Stop,
}

/// Watches the file until dropped.
#[derive(Debug)]
#[must_use = "watching ends when this is dropped"]
pub struct Reload {
    // Dropped first, so that no event arrives after the thread has ended.
    watcher: Option<RecommendedWatcher>,
    messages: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    /// The process that watches: a forked child must not join the threads.
    process: u32,
}

/// Watches a policy file and applies its changes to the stack's file layer. `on_outcome` receives the outcome of every read.
///
/// The file is read once at the start, so that a change between an earlier load and the start of watching is not lost.
pub fn watch(
    path: &Path,
    debounce: Duration,
    stack: PolicyStack,
    vocabulary: Vocabulary,
    mut on_outcome: impl FnMut(Outcome) + Send + 'static,
) -> Result<Reload, WatchError> {
    let refuse = |message: String| WatchError { path: path.to_owned(), message };
    let absolute = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
    let (messages, inbox) = mpsc::channel();
    let touched = messages.clone();
    let name = absolute.file_name().map(ToOwned::to_owned);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Editors replace files by renaming, so the directory is watched and events of other files are ignored. A watcher error
        // may have dropped an event of this file.
        let ours = match &event {
            Ok(event) => {
                !event.kind.is_access() && event.paths.iter().any(|path| path.file_name() == name.as_deref())
            }
            Err(_) => true,
        };
        if ours {
            // Fails only while the watch is being dropped.
            let _ = touched.send(Message::Touched);
        }
    })
    .map_err(|error| refuse(error.to_string()))?;
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    watcher.watch(folder, RecursiveMode::NonRecursive).map_err(|error| refuse(error.to_string()))?;
    let shown = path.to_string_lossy().into_owned();
    let thread = std::thread::Builder::new()
        .name("lz-reload".to_owned())
        .spawn(move || {
            let mut seen: Option<String> = None;
            loop {
                on_outcome(read(&absolute, &shown, &mut seen, &stack, &vocabulary));
                if !wait(&inbox, debounce) {
                    return;
                }
            }
        })
        .map_err(|error| refuse(error.to_string()))?;
    Ok(Reload { watcher: Some(watcher), messages, thread: Some(thread), process: std::process::id() })
}

/// Waits for an event, then for the debounce time without events; false when watching ends.
fn wait(inbox: &Receiver<Message>, debounce: Duration) -> bool {
    match inbox.recv() {
        Ok(Message::Touched) => {}
        Ok(Message::Stop) | Err(_) => return false,
    }
    // Bounds the wait for a file that is written continuously.
    let deadline = Instant::now() + debounce * 10;
    while Instant::now() < deadline {
        match inbox.recv_timeout(debounce) {
            Ok(Message::Touched) => {}
            Err(RecvTimeoutError::Timeout) => break,
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
    true
}

fn read(
    path: &Path,
    shown: &str,
    seen: &mut Option<String>,
    stack: &PolicyStack,
    vocabulary: &Vocabulary,
) -> Outcome {
    let mut policy = match PolicyText::read(path) {
        Ok(policy) => policy,
        Err(error) => {
            tracing::warn!(target: "lz::config", path = shown, %error, "policy file cannot be read; the previous policy stays in force");
            return Outcome::Unreadable(error.to_string());
        }
    };
    if seen.as_deref() == Some(policy.text.as_str()) {
        return Outcome::Unchanged;
    }
    shown.clone_into(&mut policy.path);
    match policy.document(vocabulary) {
        Ok(document) => {
            stack.load(document);
            *seen = Some(policy.text);
            tracing::info!(target: "lz::config", path = shown, "policy reloaded");
            Outcome::Applied
        }
        Err(error) => {
            tracing::warn!(
                target: "lz::config", path = shown,
                "policy file is invalid; the previous policy stays in force\n{error}"
            );
            Outcome::Refused(error.to_string())
        }
    }
}

impl Drop for Reload {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has neither thread: joining would block forever.
            std::mem::forget((self.watcher.take(), self.thread.take()));
            return;
        }
        drop(self.watcher.take());
        let _ = self.messages.send(Message::Stop);
        // The callback may drop this value; a thread cannot join itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
