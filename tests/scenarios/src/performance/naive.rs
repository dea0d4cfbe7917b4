//! What one would write by hand: a ladder of ifs, a map under a mutex, a dictionary of strings, a list of closures.

use std::collections::HashMap;
use std::sync::Mutex;

use lz_core::DType;
use lz_ops::NormRms;

/// A ladder of ifs over what a norm's arguments say.
#[inline(never)]
pub fn ladder(args: &NormRms<'_>) -> &'static str {
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

/// The key of a map: what a careful colleague would put into it.
pub type Key = (i64, i64, u8, bool, bool);

/// The key of a call.
pub fn key(args: &NormRms<'_>) -> Key {
    let shape = args.x.shape();
    let size = |at: usize| shape.get(at).copied().unwrap_or_default();
    let dense = args.x.strides().last() == Some(&1);
    (size(0), size(1), args.x.dtype() as u8, args.weight.is_some(), dense)
}

/// Decisions by key, under a mutex.
#[derive(Debug, Default)]
pub struct Locked(Mutex<HashMap<Key, &'static str>>);

impl Locked {
    /// The decision of a call, made by the ladder when it is new.
    #[inline(never)]
    pub fn decide(&self, args: &NormRms<'_>) -> &'static str {
        let mut map = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.entry(key(args)).or_insert_with(|| ladder(args))
    }

    /// Forgets everything, as after a change of policy.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    }
}

/// Decisions by a text of everything, as a dictionary in a script would have them.
#[derive(Debug, Default)]
pub struct Dictionary(HashMap<String, String>);

impl Dictionary {
    /// The decision of a call by the text that describes it.
    #[inline(never)]
    pub fn decide(&mut self, description: String) -> &str {
        self.0.entry(description).or_insert_with(|| "flash".to_owned())
    }
}

/// One hand-written check of a kernel.
pub type Check = Box<dyn Fn(&NormRms<'_>) -> Result<f64, String>>;

/// The best of kernels whose checks are closures that say the first thing that is wrong.
#[inline(never)]
pub fn best(checks: &[(String, Check)], args: &NormRms<'_>) -> Option<usize> {
    let scored = checks.iter().enumerate().filter_map(|(at, (_, check))| Some((at, check(args).ok()?)));
    scored.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// So many such checks.
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
