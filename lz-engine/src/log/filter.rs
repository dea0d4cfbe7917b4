//! Log levels by area, and their text form: `info,select=debug`.

use std::fmt;
use std::str::FromStr;

use lz_schema::diagnostics::{listed, nearest};

/// The areas of log records. A logger of Python is named `layerzero.<area>`, a target of `tracing` `lz::<area>`.
pub const AREAS: [&str; 12] = [
    "audit", "config", "device", "fallback", "health", "jit", "log", "perfdb", "select", "tune", "verify",
    "worker",
];

/// The level of a record, from the least to the most verbose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Severity {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Severity {
    /// All of them, in order.
    pub const ALL: [Severity; 6] =
        [Severity::Off, Severity::Error, Severity::Warn, Severity::Info, Severity::Debug, Severity::Trace];

    /// The name in `LAYERZERO_LOG`.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Off => "off",
            Severity::Error => "error",
            Severity::Warn => "warn",
            Severity::Info => "info",
            Severity::Debug => "debug",
            Severity::Trace => "trace",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most verbose enabled level of each area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels([Severity; AREAS.len()]);

impl Levels {
    /// Nothing.
    pub const OFF: Levels = Levels([Severity::Off; AREAS.len()]);
    /// Warnings and errors.
    pub const DEFAULT: Levels = Levels([Severity::Warn; AREAS.len()]);

    /// One level for all areas.
    pub const fn all(severity: Severity) -> Levels {
        Levels([severity; AREAS.len()])
    }

    /// Changes one area. An unknown area is ignored.
    #[must_use]
    pub fn with(mut self, area: &str, severity: Severity) -> Levels {
        for (slot, name) in self.0.iter_mut().zip(AREAS) {
            if name == area {
                *slot = severity;
            }
        }
        self
    }

    /// In the order of [`AREAS`].
    pub fn by_area(&self) -> &[Severity; AREAS.len()] {
        &self.0
    }

    /// The more verbose one of both, by area.
    #[must_use]
    pub fn max(mut self, other: Levels) -> Levels {
        for (slot, other) in self.0.iter_mut().zip(other.0) {
            *slot = (*slot).max(other);
        }
        self
    }
}

impl FromStr for Levels {
    type Err = String;

    /// A level for all areas, and levels of areas, separated by commas; the order does not matter.
    fn from_str(text: &str) -> Result<Levels, String> {
        let level = |name: &str| {
            let lower = name.trim().to_ascii_lowercase();
            Severity::ALL.into_iter().find(|known| known.name() == lower).ok_or_else(|| {
                let names = listed(Severity::ALL.iter().map(|known| known.name()));
                format!("unknown level `{}`; expected one of {names}", name.trim())
            })
        };
        let (mut levels, mut areas) = (Levels::DEFAULT, Vec::new());
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('=') {
                None => levels = Levels::all(level(part)?),
                Some((area, name)) => {
                    let area = area.trim().trim_start_matches("layerzero.");
                    let Some(known) = AREAS.iter().find(|known| **known == area) else {
                        let near = nearest(area, AREAS).map(|near| format!("; did you mean `{near}`?"));
                        let hint = near.unwrap_or_else(|| format!("; expected one of {}", listed(AREAS)));
                        return Err(format!("unknown log area `{area}`{hint}"));
                    };
                    areas.push((*known, level(name)?));
                }
            }
        }
        Ok(areas.into_iter().fold(levels, |levels, (area, severity)| levels.with(area, severity)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_areas_override_the_general_level_in_any_order() {
        let levels: Levels = "select=debug, info,layerzero.jit=off".parse().unwrap();
        assert_eq!(
            levels,
            Levels::all(Severity::Info).with("select", Severity::Debug).with("jit", Severity::Off)
        );
        assert_eq!("select=trace".parse(), Ok(Levels::DEFAULT.with("select", Severity::Trace)));
    }

    #[test]
    fn an_unknown_area_or_level_is_an_error_with_a_suggestion() {
        assert_eq!(
            "selects=info".parse::<Levels>(),
            Err("unknown log area `selects`; did you mean `select`?".to_owned())
        );
        let error = "loud".parse::<Levels>().unwrap_err();
        assert!(error.starts_with("unknown level `loud`; expected one of"), "{error}");
    }
}
