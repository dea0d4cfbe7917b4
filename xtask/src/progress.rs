//! Build progress for logs: cargo's progress bar, printed as a line every few seconds.
//!
//! The bar is the only stable output of cargo that contains the number of crates to build. Cargo writes it to a pipe when
//! [`ENVIRONMENT`] is set, ended by a carriage return instead of a line feed.

use std::io::{self, Read, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Makes cargo write its progress bar to a pipe.
pub const ENVIRONMENT: [(&str, &str); 2] =
    [("CARGO_TERM_PROGRESS_WHEN", "always"), ("CARGO_TERM_PROGRESS_WIDTH", "200")];

/// Time between two progress lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// Status messages that the progress lines replace: one for every crate.
const DROPPED_STATUS: [&str; 5] = ["Compiling", "Checking", "Documenting", "Downloaded", "Downloading"];

/// Copies cargo's stderr until it ends, with the progress bar replaced by progress lines.
pub fn forward(mut stderr: impl Read + Send, output: impl Write) -> io::Result<()> {
    let mut filter = Filter::new(output, Instant::now());
    let (sender, chunks) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match stderr.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) if sender.send(Ok(buffer[..length].to_vec())).is_ok() => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(_) => break,
                    Err(error) => {
                        // A closed channel means that the receiver already failed with an error of its own.
                        let _ = sender.send(Err(error));
                        break;
                    }
                }
            }
        });
        loop {
            match chunks.recv_timeout(Duration::from_secs(1)) {
                Ok(chunk) => filter.write(&chunk?)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return filter.finish(),
            }
            filter.print_progress(Instant::now())?;
        }
    })
}

/// Separates the progress bar from all other output.
struct Filter<W> {
    output: W,
    /// Bytes after the last carriage return or line feed.
    pending: Vec<u8>,
    progress: Option<Progress>,
    start: Instant,
    last_printed: Instant,
}

impl<W: Write> Filter<W> {
    fn new(output: W, start: Instant) -> Filter<W> {
        Filter { output, pending: Vec::new(), progress: None, start, last_printed: start }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for &byte in bytes {
            self.pending.push(byte);
            if byte == b'\r' || byte == b'\n' {
                self.end_line()?;
            }
        }
        self.output.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = String::from_utf8_lossy(&self.pending);
        if let Some(progress) = Progress::parse(&line) {
            self.progress = Some(progress);
        } else {
            if is_status(&line, "Finished") {
                self.progress = None;
            }
            if !DROPPED_STATUS.iter().any(|verb| is_status(&line, verb)) {
                self.output.write_all(&self.pending)?;
            }
        }
        self.pending.clear();
        Ok(())
    }

    /// Prints the latest state of the progress bar unless a line was printed within [`INTERVAL`].
    fn print_progress(&mut self, now: Instant) -> io::Result<()> {
        let Some(progress) = &self.progress else { return Ok(()) };
        if now.duration_since(self.last_printed) < INTERVAL {
            return Ok(());
        }
        self.last_printed = now;
        let Progress { done, total, crates } = progress;
        let seconds = now.duration_since(self.start).as_secs();
        writeln!(self.output, "compiling: {done} of {total} crates, {crates}, {seconds} s")?;
        self.output.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.end_line()?;
        self.output.flush()
    }
}

/// Whether a line is one of cargo's status messages, which start with a right-aligned verb.
fn is_status(line: &str, verb: &str) -> bool {
    line.starts_with(&format!("{verb:>12} "))
}

/// One state of cargo's progress bar.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    done: usize,
    total: usize,
    /// The crates that are being compiled, as cargo lists them.
    crates: String,
}

impl Progress {
    /// Parses `    Building [====>   ] 120/310: lz-cpu, lz-ops(test)`.
    fn parse(line: &str) -> Option<Progress> {
        let (_bar, state) = line.trim_start().strip_prefix("Building [")?.split_once("] ")?;
        let (counts, crates) = state.split_once(": ")?;
        let (done, total) = counts.split_once('/')?;
        Some(Progress {
            done: done.parse().ok()?,
            total: total.parse().ok()?,
            crates: crates.trim().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR: &str = "    Building [=====>      ] 120/310: lz-cpu, lz-ops(test)            \r";

    #[test]
    fn progress_bar_is_parsed() {
        let expected = Progress { done: 120, total: 310, crates: "lz-cpu, lz-ops(test)".to_owned() };
        assert_eq!(Progress::parse(BAR), Some(expected));
        for other in ["", "warning: 1/2: x", "    Building [unrelated", "    Building [=>] many: x"] {
            assert_eq!(Progress::parse(other), None, "{other}");
        }
    }

    #[test]
    fn bar_and_crate_status_are_dropped_and_other_output_is_kept() {
        let start = Instant::now();
        let mut output = Vec::new();
        let mut filter = Filter::new(&mut output, start);
        let text =
            format!("   Compiling lz-cpu v0.1.0\n{BAR}warning: unused\n  --> a.rs\r\n{BAR}error: last");
        // Chunks end anywhere, also inside the bar.
        for chunk in text.as_bytes().chunks(7) {
            filter.write(chunk).unwrap();
            filter.print_progress(start).unwrap();
        }
        filter.finish().unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "warning: unused\n  --> a.rs\r\nerror: last");
    }

    #[test]
    fn progress_line_is_printed_once_per_interval_until_the_build_finishes() {
        let start = Instant::now();
        let mut output = Vec::new();
        let mut filter = Filter::new(&mut output, start);
        filter.write(BAR.as_bytes()).unwrap();
        for seconds in [1, 9, 10, 11, 19, 25] {
            filter.print_progress(start + Duration::from_secs(seconds)).unwrap();
        }
        filter.write(b"    Finished `dev` profile\n").unwrap();
        filter.print_progress(start + Duration::from_secs(60)).unwrap();
        let expected = "compiling: 120 of 310 crates, lz-cpu, lz-ops(test), 10 s\n\
                        compiling: 120 of 310 crates, lz-cpu, lz-ops(test), 25 s\n    Finished `dev` profile\n";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }

    #[test]
    fn stderr_is_forwarded_until_it_ends() {
        let mut output = Vec::new();
        forward(&b"first\nsecond"[..], &mut output).unwrap();
        assert_eq!(output, b"first\nsecond");
    }
}
