//! Confines a worker after it has loaded its backend: no new privileges, no network or no system calls that reach outside of the
//! process, and resource limits. A system without seccomp leaves the worker unconfined, which the handshake reports.
//!
//! The policy may name backends. Untrusted code chooses its own name, so an entry for a name can only tighten the default.

use std::io;

use lz_engine::Engine;
use lz_schema::policy::SettingValue;
use serde_json::{Map, Value, json};

use crate::seccomp;

/// The environment variable with the policy, as JSON.
pub const SANDBOX_VARIABLE: &str = "LAYERZERO_WORKER_SANDBOX";

/// The levels, from the loosest to the strictest.
const LEVELS: [&str; 3] = ["off", "network", "strict"];
/// The policy keys of resource limits: the resource, and the bytes or units of one.
const LIMITS: [(&str, Resource, u64); 3] = [
    ("worker.open_files", libc::RLIMIT_NOFILE, 1),
    ("worker.cpu_seconds", libc::RLIMIT_CPU, 1),
    ("worker.data_mb", libc::RLIMIT_DATA, 1 << 20),
];

type Resource = libc::__rlimit_resource_t;

/// The confinement of workers, for all backends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sandbox(Map<String, Value>);

impl Sandbox {
    /// According to the policy.
    pub fn of(engine: &Engine) -> Sandbox {
        let mut policy = Map::new();
        if let Some(SettingValue::WordByName(word, named)) =
            engine.setting("worker.sandbox").map(|set| set.value)
        {
            let named = named.into_iter().map(|(name, word)| (name, json!(word)));
            let all: Map<String, Value> = named.chain([("default".to_owned(), json!(word))]).collect();
            policy.insert("worker.sandbox".to_owned(), json!(all));
        }
        for (key, ..) in LIMITS {
            if let Some(SettingValue::Numbers(numbers)) = engine.setting(key).map(|set| set.value) {
                let numbers = numbers.into_iter().map(|(name, number)| (name, json!(number)));
                policy.insert(key.to_owned(), json!(numbers.collect::<Map<_, _>>()));
            }
        }
        Sandbox(policy)
    }

    /// One level for all backends, without limits.
    pub fn level(level: &str) -> Sandbox {
        Sandbox(Map::from_iter([("worker.sandbox".to_owned(), json!({ "default": level }))]))
    }

    /// As text, for the environment of a worker.
    pub fn text(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }

    /// The policy that the host passed to this process.
    pub(crate) fn from_environment() -> io::Result<Sandbox> {
        let Ok(text) = std::env::var(SANDBOX_VARIABLE) else { return Ok(Sandbox::default()) };
        let policy = serde_json::from_str(&text)
            .map_err(|error| io::Error::other(format!("{SANDBOX_VARIABLE} is not valid: {error}")))?;
        Ok(Sandbox(policy))
    }

    /// The level of a backend.
    fn level_of(&self, backend: &str) -> usize {
        let level = |name: &str| {
            let word = self.0.get("worker.sandbox")?.get(name)?.as_str()?;
            // An unknown word counts as the strictest.
            Some(LEVELS.iter().position(|known| *known == word).unwrap_or(LEVELS.len() - 1))
        };
        level("default").max(level(backend)).unwrap_or(0)
    }

    /// The limit of a resource for a backend.
    fn limit_of(&self, key: &str, backend: &str) -> Option<u64> {
        let limit = |name: &str| self.0.get(key)?.get(name)?.as_u64().filter(|limit| *limit > 0);
        [limit("default"), limit(backend)].into_iter().flatten().min()
    }

    /// Confines this process with all of its threads, for good. Returns the level that the system allowed.
    pub(crate) fn enter(&self, backend: &str) -> io::Result<&'static str> {
        for (key, resource, unit) in LIMITS {
            if let Some(limit) = self.limit_of(key, backend) {
                limit_resource(resource, limit.saturating_mul(unit))?;
            }
        }
        let level = self.level_of(backend);
        let word = LEVELS.get(level).copied().unwrap_or("strict");
        if level == 0 {
            return Ok(word);
        }
        // A core dump would contain the tensors of the host.
        limit_resource(libc::RLIMIT_CORE, 0)?;
        // SAFETY: takes integers only.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Ok("off");
        }
        match seccomp::install(level >= 2) {
            Ok(()) => Ok(word),
            Err(error) => {
                eprintln!(
                    "lz-worker: seccomp is not available ({error}); `worker.sandbox: {word}` has no effect"
                );
                Ok("off")
            }
        }
    }
}

/// Lowers a limit; one that is lower already stays.
fn limit_resource(resource: Resource, limit: u64) -> io::Result<()> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure to fill in.
    if unsafe { libc::getrlimit(resource, &raw mut limits) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limits = libc::rlimit { rlim_cur: limits.rlim_cur.min(limit), rlim_max: limits.rlim_max.min(limit) };
    // SAFETY: a valid structure.
    if unsafe { libc::setrlimit(resource, &raw const limits) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_only_tighten_the_default() {
        let policy = |text: &str| Sandbox(serde_json::from_str(text).unwrap());
        let levels = policy(r#"{"worker.sandbox": {"default": "network", "a": "strict", "b": "off"}}"#);
        assert_eq!(["a", "b", "c"].map(|name| levels.level_of(name)), [2, 1, 1]);
        let limits = policy(r#"{"worker.open_files": {"default": 100, "a": 10, "b": 1000}}"#);
        let of = |name| limits.limit_of("worker.open_files", name);
        assert_eq!(["a", "b", "c"].map(of), [Some(10), Some(100), Some(100)]);
        assert_eq!(limits.limit_of("worker.cpu_seconds", "a"), None);
        assert_eq!(Sandbox::default().level_of("a"), 0);
    }
}
