//! Hand-written baselines: an if chain, a map under a mutex, a dictionary keyed by strings, a list of
//! closures.

use std::collections::HashMap;
use std::sync::Mutex;

use lz_core::DType;
use lz_ops::NormRms;

/// Selects a kernel by an if chain over the arguments of a norm.
#[inline(never)]
pub fn if_chain(args: &NormRms<'_>) -> &'static str {
    let shape = args.x.shape();
    let (rows, hidden) = match shape {
        [rows, hidden] => (*rows, *hidden),
        _ => return "reference",
    };
    if args.x.dtype() != DType::F32 || args.weight.is_some_and(|weight| weight.dtype() != DType::F32) {
        return "reference";
    }
    if hidden % 8 != 0 || args.x.strides().last() != Some(&1) {
        return "scalar";
    }
    if rows <= 16 {
        "small"
    } else if rows <= 4096 && hidden <= 8192 {
        "tiled"
    } else {
        "large"
    }
}

/// Key of the baseline map: sizes, dtype and flags.
pub type Key = (i64, i64, u8, bool, bool);

/// Key of a call.
pub fn key(args: &NormRms<'_>) -> Key {
    let shape = args.x.shape();
    let size = |at: usize| shape.get(at).copied().unwrap_or_default();
    let dense = args.x.strides().last() == Some(&1);
    (size(0), size(1), args.x.dtype() as u8, args.weight.is_some(), dense)
}

/// Decisions by key, under a mutex.
#[derive(Debug, Default)]
pub struct MutexMap(Mutex<HashMap<Key, &'static str>>);

impl MutexMap {
    /// The decision for a call; a miss runs the if chain.
    #[inline(never)]
    pub fn decide(&self, args: &NormRms<'_>) -> &'static str {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.entry(key(args)).or_insert_with(|| if_chain(args))
    }

    /// Clears all entries, as after a policy change.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }
}

/// Decisions keyed by a string that describes the call, as a script would store them.
#[derive(Debug, Default)]
pub struct Dictionary(HashMap<String, String>);

impl Dictionary {
    /// The decision for a call description.
    #[inline(never)]
    pub fn decide(&mut self, description: String) -> &str {
        self.0.entry(description).or_insert_with(|| "flash".to_owned())
    }
}

/// Hand-written capability check of a kernel; returns its score.
pub type Check = Box<dyn Fn(&NormRms<'_>) -> Result<f64, String>>;

/// Index of the best kernel; each check returns its first error.
#[inline(never)]
pub fn best(checks: &[(String, Check)], args: &NormRms<'_>) -> Option<usize> {
    let scored = checks.iter().enumerate().filter_map(|(at, (_, check))| Some((at, check(args).ok()?)));
    scored.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// `count` such checks.
pub fn checks(count: i64) -> Vec<(String, Check)> {
    (0..count)
        .map(|number| {
            let check: Check = Box::new(move |args| {
                let (rows, hidden, dtype, _, dense) = key(args);
                if dtype != DType::F32 as u8 {
                    return Err(format!("kernel {number} needs f32"));
                }
                if !dense || hidden % (1 + number % 8) != 0 || rows > 1 << (number % 20) {
                    return Err(format!("kernel {number} cannot run {rows} rows of {hidden}"));
                }
                Ok(number as f64)
            });
            (format!("kernel{number}"), check)
        })
        .collect()
}
