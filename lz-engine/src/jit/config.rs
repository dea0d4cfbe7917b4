//! The settings of background compilation (`jit.*` of the policy).

use std::path::PathBuf;
use std::time::Duration;

use lz_schema::policy::SettingValue;

use crate::policy::WithSource;

/// Configuration of background compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JitConfig {
    /// Whether shapes that were requested while cold are compiled in the background.
    pub background: bool,
    /// Maximum number of queued shapes; the oldest is dropped.
    pub queue: usize,
    /// Number of compiler threads.
    pub workers: usize,
    /// Where the requested shapes are stored; `None` keeps them in memory only.
    pub manifest: Option<PathBuf>,
    /// Age after which a manifest is ignored.
    pub manifest_stale: Duration,
    /// Backoff of a shape after its first failure; doubles with each further one.
    pub backoff: Duration,
    /// Maximum backoff.
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
    /// From the policy: `settings` looks up a key, like `engine.settings().value(key)`.
    pub fn of(settings: impl Fn(&str) -> Option<WithSource<SettingValue>>) -> JitConfig {
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

    /// The backoff after this many failures.
    pub(super) fn backoff_after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.backoff.checked_mul(1 << doublings).unwrap_or(self.max_backoff).min(self.max_backoff)
    }
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(24 * 60 * 60))
}

/// Expands a leading `~/` to the home directory; `None` for an empty path or without a home directory.
fn expand(path: &str) -> Option<PathBuf> {
    match path.strip_prefix("~/") {
        None if path.is_empty() => None,
        None => Some(PathBuf::from(path)),
        Some(backoff_after) => std::env::home_dir().map(|home| home.join(backoff_after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let config = JitConfig {
            backoff: Duration::from_secs(2),
            max_backoff: Duration::from_secs(10),
            ..JitConfig::default()
        };
        let rests: Vec<u64> = (1..5).map(|failures| config.backoff_after(failures).as_secs()).collect();
        assert_eq!(rests, [2, 4, 8, 10]);
        assert_eq!(config.backoff_after(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn tilde_expands_to_the_home_directory() {
        assert_eq!(expand("/var/x.json"), Some(PathBuf::from("/var/x.json")));
        assert_eq!(expand(""), None);
        let home = expand("~/x.json").expect("tests have a home");
        assert!(home.is_absolute() && home.ends_with("x.json"), "{home:?}");
    }
}
