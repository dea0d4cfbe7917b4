//! Renders an explanation as a table for a terminal.

use std::fmt;

use lz_core::plan::TransformKind;

use super::{CacheState, Candidate, Explanation};
use crate::evidence::Measured;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.heading(f)?;
        self.status_line(f)?;
        if let Some(why) = &self.withheld {
            let chosen = self.chosen().unwrap_or("nothing");
            return write!(f, "\n\n  {chosen} is selected; details are disabled: {why}");
        }
        if self.candidates.is_empty() {
            return write!(f, "\n\n  no kernel is registered for this operation");
        }
        self.table(f)
    }
}

impl Explanation {
    /// The operation, its sizes, dtypes and non-default params, and the device.
    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  ", self.operation)?;
        for one in self.call.iter().filter(|one| one.kind == "axis") {
            write!(f, " {}={}", one.name, one.value)?;
        }
        let mut dtypes: Vec<&str> = Vec::new();
        for one in self.call.iter().filter(|one| one.kind == "dtype" && one.value != "none") {
            if !dtypes.contains(&one.value.as_str()) {
                dtypes.push(&one.value);
            }
        }
        write!(f, "  {}", dtypes.join(" "))?;
        let params = self.call.iter().filter(|one| match one.kind {
            "statistic" => one.value != "-1",
            kind => kind == "param" || kind == "given",
        });
        let params_text: Vec<String> =
            params
                .filter(|one| one.value != "false")
                .map(|one| {
                    if one.value == "true" { one.name.clone() } else { format!("{}={}", one.name, one.value) }
                })
                .collect();
        if !params_text.is_empty() {
            write!(f, "  {}", params_text.join(" "))?;
        }
        match &self.device {
            None => write!(f, "  on an unknown device"),
            Some(device) => {
                write!(f, "  {} {}", device.place, device.name)?;
                if !device.architecture.is_empty() {
                    write!(f, " ({})", device.architecture)?;
                }
                if device.imagined { write!(f, ", simulated") } else { Ok(()) }
            }
        }
    }

    fn status_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = match self.cache {
            CacheState::Cached => "cached",
            CacheState::NotCached => "not cached yet",
            CacheState::Uncacheable => "never cached",
        };
        let decided = duration(self.decided_in_ns as f64);
        write!(f, "\ndecided in {decided}, {cache} (generation {})", self.generation)?;
        if !self.mode.is_empty() {
            write!(f, "; {}", self.mode)?;
        }
        for line in &self.policy {
            write!(f, "; policy {} `{}`", line.source, line.what)?;
        }
        if let Some(split) = self.plan.as_ref().and_then(|plan| plan.split.as_ref()) {
            write!(f, "; {split}")?;
        }
        if let Some(line) = &self.table {
            write!(f, "; table {} of {} {}", line.source, line.model_id, line.what)?;
        }
        for line in &self.versions {
            write!(f, "; version {} gets {} % of the calls of {}", line.kernel, line.percent, line.stable)?;
            if line.state != "share" {
                write!(f, " ({}: {})", line.state.replace('_', " "), line.detail)?;
            }
        }
        if let Some(reason) = &self.perfdb {
            write!(f, "; {}: {}", reason.code, reason.sentence)?;
        }
        Ok(())
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show_health = self.candidates.iter().any(|one| one.score.reliability != 0.0);
        let mut head = vec!["kernel", "score", "prio", "policy", "perf", "jit", "transform"];
        if show_health {
            head.push("health");
        }
        let mut rows: Vec<Vec<String>> = vec![head.iter().map(|text| (*text).to_owned()).collect()];
        for one in &self.candidates {
            rows.push(if one.reasons.is_empty() {
                score_cells(one, show_health)
            } else {
                vec![one.kernel.clone(), "✗".to_owned()]
            });
        }
        let columns = head.len();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |f: &mut fmt::Formatter<'_>, mark: &str, row: &[String], why: &str| {
            let mut text = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let gap = " ".repeat(width - cell.chars().count().min(*width));
                let (before, after) = if column == 0 { ("", gap.as_str()) } else { (gap.as_str(), "") };
                text.push_str(&format!("{before}{cell}{after}  "));
            }
            write!(f, "\n{mark} {}", format!("{text} {why}").trim_end())
        };
        writeln!(f)?;
        line(f, " ", &rows[0], "why")?;
        for (one, row) in self.candidates.iter().zip(rows.iter().skip(1)) {
            let mut notes = notes(one).into_iter();
            line(f, if one.chosen { "▸" } else { " " }, row, &notes.next().unwrap_or_default())?;
            for why in notes {
                line(f, " ", &[], &why)?;
            }
        }
        Ok(())
    }
}

fn score_cells(one: &Candidate, show_health: bool) -> Vec<String> {
    let score = &one.score;
    let mut row = vec![
        one.kernel.clone(),
        format!("{:.1}", one.total),
        format!("{}", score.priority),
        signed(score.policy),
        score.perf.map_or_else(|| "–".to_owned(), signed),
        signed(score.jit),
        signed(score.transform),
    ];
    if show_health {
        row.push(signed(score.reliability));
    }
    row
}

fn signed(points: f64) -> String {
    let rounded = (points * 10.0).round() / 10.0;
    if rounded == 0.0 { "0".to_owned() } else { format!("{rounded:+}") }
}

fn notes(one: &Candidate) -> Vec<String> {
    if !one.reasons.is_empty() {
        let reasons = one.reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.sentence));
        return reasons.chain(one.runs_in.clone().map(|location| format!("runs in {location}"))).collect();
    }
    let mut parts = Vec::new();
    if let Some(location) = &one.runs_in {
        parts.push(format!("runs in {location}"));
    }
    if let Some(measured) = &one.evidence {
        parts.push(evidence(measured));
    }
    if !one.transforms.is_empty() {
        let copies = one.transforms.contains(TransformKind::Contiguous);
        let how = if copies { ": strided tensors are copied first" } else { "" };
        parts.push(format!("converts {}{how}", one.transforms));
    }
    if let Some(bytes) = one.workspace_bytes.filter(|bytes| *bytes > 0) {
        parts.push(format!("{bytes} bytes of scratch memory"));
    }
    if parts.is_empty() && one.reference {
        parts.push("always valid".to_owned());
    }
    let mut lines = vec![parts.join(", ")];
    lines.extend(one.last_failure.iter().map(|why| format!("last failure: {why}")));
    lines.retain(|line| !line.is_empty());
    lines
}

fn evidence(measured: &Measured) -> String {
    let samples = if measured.samples == 1 { "sample" } else { "samples" };
    let age = match measured.age_seconds {
        0..60 => "just measured".to_owned(),
        60..3600 => format!("{} min old", measured.age_seconds / 60),
        3600..86_400 => format!("{} h old", measured.age_seconds / 3600),
        seconds if seconds < 2 * 86_400 => "1 day old".to_owned(),
        seconds => format!("{} days old", seconds / 86_400),
    };
    format!("{} median, {} {samples}, {age}", duration(measured.median_ns), measured.samples)
}

/// A duration with two or three digits and its unit.
fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}
