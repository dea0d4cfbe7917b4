//! Hot reload: a policy file is watched, and a change of it is read whole, checked whole and only then laid into the stack.
//!
//! A file that is wrong, unreadable or gone changes nothing and says why. Nothing here knows what a policy means.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use crate::policy::file::{PolicyText, Vocabulary};
use crate::policy::stack::PolicyStack;

/// What became of a change.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The new policy is in force.
    Applied,
    /// The file says what it said before.
    Unchanged,
    /// The file is wrong; the policy before stays in force. The text is the whole diagnostic.
    Refused(String),
    /// The file cannot be read; the policy before stays in force.
    Unreadable(String),
}

/// Why a file cannot be watched.
#[derive(Debug, Clone)]
pub struct WatchError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub message: String,
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be watched: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for WatchError {}

/// How long a file must be left alone before it is read, when nobody says otherwise.
pub const DEBOUNCE: Duration = Duration::from_millis(100);

enum Message {
    Touched,
    Stop,
}

/// Watches until dropped.
#[derive(Debug)]
#[must_use = "watching ends as soon as this is dropped"]
pub struct Reload {
    // Dropped first, so that no event arrives after the thread has gone.
    watcher: Option<RecommendedWatcher>,
    messages: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    /// The process that watches.
    process: u32,
}

/// Watches a policy file and keeps the stack's file layer equal to it. `told` learns of every change and what became of it.
///
/// The file is read once before this returns to its caller's thread of events, so that a change between an earlier load and
/// the start of watching is not lost; `told` hears of that reading too.
pub fn watch(
    path: &Path,
    debounce: Duration,
    stack: PolicyStack,
    vocabulary: Vocabulary,
    mut told: impl FnMut(Outcome) + Send + 'static,
) -> Result<Reload, WatchError> {
    let refuse = |message: String| WatchError { path: path.to_owned(), message };
    let whole = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
    let (messages, inbox) = mpsc::channel();
    let touched = messages.clone();
    let name = whole.file_name().map(ToOwned::to_owned);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Editors replace files by renaming, so the folder is watched and other files' events are passed over. An error of the
        // watcher may have swallowed an event of ours.
        let ours = match &event {
            Ok(event) => {
                !event.kind.is_access() && event.paths.iter().any(|path| path.file_name() == name.as_deref())
            }
            Err(_) => true,
        };
        if ours {
            // The receiver is gone only while everything is being dropped.
            let _ = touched.send(Message::Touched);
        }
    })
    .map_err(|error| refuse(error.to_string()))?;
    let folder = whole.parent().unwrap_or(Path::new("/"));
    watcher.watch(folder, RecursiveMode::NonRecursive).map_err(|error| refuse(error.to_string()))?;
    let shown = path.to_string_lossy().into_owned();
    let thread = std::thread::Builder::new()
        .name("lz-reload".to_owned())
        .spawn(move || {
            let mut seen: Option<String> = None;
            loop {
                told(read(&whole, &shown, &mut seen, &stack, &vocabulary));
                if !wait(&inbox, debounce) {
                    return;
                }
            }
        })
        .map_err(|error| refuse(error.to_string()))?;
    Ok(Reload { watcher: Some(watcher), messages, thread: Some(thread), process: std::process::id() })
}

/// Waits for an event and then for quiet; false when watching ends.
fn wait(inbox: &Receiver<Message>, debounce: Duration) -> bool {
    match inbox.recv() {
        Ok(Message::Touched) => {}
        Ok(Message::Stop) | Err(_) => return false,
    }
    // Somebody who writes without end must not keep the change from being seen.
    let patience = Instant::now() + debounce * 10;
    while Instant::now() < patience {
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
            tracing::warn!(path = shown, %error, "the policy cannot be read; the one before stays in force");
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
            tracing::info!(path = shown, "a new policy is in force");
            Outcome::Applied
        }
        Err(error) => {
            tracing::warn!(path = shown, "the policy is wrong; the one before stays in force\n{error}");
            Outcome::Refused(error.to_string())
        }
    }
}

impl Drop for Reload {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has neither of the threads: waiting for them would never end.
            std::mem::forget((self.watcher.take(), self.thread.take()));
            return;
        }
        drop(self.watcher.take());
        let _ = self.messages.send(Message::Stop);
        // The callback may itself drop this value; a thread cannot wait for itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
