//! A digest of a policy, independent of its sources.

use sha2::{Digest, Sha256};

use crate::policy::{ListEntry, Policy};
use crate::table::hex;

/// SHA-256 over everything in a policy that a decision can depend on, without files and lines.
pub(super) fn policy(policy: &Policy) -> String {
    let mut text = format!(
        "mode {}\nfallback {}\nmemory {:?}\njit {:?}\npoints {} {}\n",
        policy.mode(),
        policy.fallback_enabled.value,
        policy.memory_headroom.value,
        policy.jit.value,
        policy.prefer_points,
        policy.avoid_points,
    );
    for lock in &policy.locks {
        text.push_str(&format!("lock {} {} {:?}\n", lock.operation, lock.kernel, lock.condition));
    }
    let lists = [
        ("allow", &policy.allow),
        ("deny", &policy.deny),
        ("prefer", &policy.prefer),
        ("avoid", &policy.avoid),
    ];
    for (name, entries) in lists {
        for ListEntry { kernels, operations, .. } in entries {
            text.push_str(&format!("{name} {kernels} {operations}\n"));
        }
    }
    for rule in &policy.rules {
        text.push_str(&format!("rule {} {:?} {:?}\n", rule.operations, rule.condition, rule.actions));
    }
    hex(&Sha256::digest(text.as_bytes()))
}
