//! Output as text or JSON.

use serde_json::json;

use crate::cases::Case;

/// Output format.
pub struct Report {
    /// One JSON object per line.
    pub json: bool,
}

impl Report {
    /// A note; omitted from JSON.
    pub fn note(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    /// One limit of the machine.
    pub fn limit(&self, what: &str, unit: &str, value: f64) {
        if self.json {
            let row = json!({
                "bench": "cpu", "case": what, "unit": unit, "ours": value, "peer": null, "theirs": null,
                "speedup": null, "limit": null,
            });
            println!("{row}");
        } else {
            println!("{what:<58} {value:>10.1} {unit}");
        }
    }

    /// One case compared with one peer, which may not support it.
    pub fn row(
        &self,
        case: &Case,
        threads: usize,
        ours: f64,
        (peer, theirs): (&str, Option<f64>),
        limit: Option<f64>,
    ) {
        let name = format!("{} {} {}t", case.operation, case.workload, threads);
        let speedup = theirs.map(|theirs| theirs / ours);
        if self.json {
            let row = json!({
                "bench": "cpu", "case": name, "unit": "ns", "ours": ours, "peer": theirs.map(|_| peer),
                "theirs": theirs, "speedup": speedup, "limit": limit, "kernel": case.kernel.spec.id,
            });
            println!("{row}");
            return;
        }
        let theirs = theirs.map_or_else(|| "-".to_owned(), |theirs| format!("{:.1}", theirs / 1e3));
        let speedup = speedup.map_or_else(|| "-".to_owned(), |speedup| format!("{speedup:.2}x"));
        let limit = limit.map_or_else(|| "-".to_owned(), |limit| format!("{:.0} %", limit * 100.0));
        println!(
            "{name:<58} {:>10.1} us  {peer:<5} {theirs:>10} us  {speedup:>8}  of the limit {limit:>6}",
            ours / 1e3
        );
    }
}
