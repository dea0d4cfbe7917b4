//! The settings of background compilation (`jit.*` of the policy).

use std::path::PathBuf;
use std::time::Duration;

use lz_schema::policy::SettingValue;

use crate::policy::Sourced;

/// How compilation in the background behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JitConfig {
    /// Whether shapes that were met cold are compiled in the background.
    pub background: bool,
    /// The most shapes that wait; the oldest is dropped.
    pub queue: usize,
    /// Threads that compile.
    pub workers: usize,
    /// Where the shapes of production are kept; `None` keeps them in memory only.
    pub manifest: Option<PathBuf>,
    /// After how long a manifest is not trusted.
    pub manifest_stale: Duration,
    /// How long a shape rests after its first failure; twice as long after each further one.
    pub backoff: Duration,
    /// The longest that it rests.
    pub max_backoff: Duration,
}

impl Default for JitConfig {
    fn default() -> Self {
        JitConfig {
            background: true,
            queue: 1000,
            workers: 1,
            manifest: None,
            manifest_stale: days(7),
            backoff: Duration::from_secs(30),
            max_backoff: Duration::from_secs(30 * 60),
        }
    }
}

impl JitConfig {
    /// What the policy says: `settings` looks a key up, as `engine.settings().value(key)` does.
    pub fn of(settings: impl Fn(&str) -> Option<Sourced<SettingValue>>) -> JitConfig {
        let mut config = JitConfig::default();
        let value = |key: &str| settings(key).map(|sourced| sourced.value);
        if let Some(SettingValue::Bool(background)) = value("jit.enable_background_compile") {
            config.background = background;
        }
        if let Some(SettingValue::Int(most)) = value("jit.compile_queue_max_size") {
            config.queue = usize::try_from(most).unwrap_or(config.queue);
        }
        if let Some(SettingValue::Text(path)) = value("jit.manifest_path") {
            config.manifest = expand(&path);
        }
        if let Some(SettingValue::Int(count)) = value("jit.manifest_stale_days") {
            config.manifest_stale = days(u64::try_from(count).unwrap_or(0));
        }
        config
    }

    /// How long a shape rests after so many failures.
    pub(super) fn rest(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.backoff.checked_mul(1 << doublings).unwrap_or(self.max_backoff).min(self.max_backoff)
    }
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(24 * 60 * 60))
}

/// The path with `~` as the home directory; `None` where there is none, or nothing was said.
fn expand(path: &str) -> Option<PathBuf> {
    match path.strip_prefix("~/") {
        None if path.is_empty() => None,
        None => Some(PathBuf::from(path)),
        Some(rest) => std::env::home_dir().map(|home| home.join(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_up_to_the_longest() {
        let config = JitConfig {
            backoff: Duration::from_secs(2),
            max_backoff: Duration::from_secs(10),
            ..JitConfig::default()
        };
        let rests: Vec<u64> = (1..5).map(|failures| config.rest(failures).as_secs()).collect();
        assert_eq!(rests, [2, 4, 8, 10]);
        assert_eq!(config.rest(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn the_home_directory_is_meant_by_a_tilde() {
        assert_eq!(expand("/var/x.json"), Some(PathBuf::from("/var/x.json")));
        assert_eq!(expand(""), None);
        let home = expand("~/x.json").expect("tests have a home");
        assert!(home.is_absolute() && home.ends_with("x.json"), "{home:?}");
    }
}
