//! Constants in the layouts of the kernels that read them: rearranged once, shared by the plans of a session and between sessions.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use lz_core::fork::Mutex;
use lz_core::kernel::{Prepare, PreparedInput};
use lz_core::tensor::Layout;
use lz_core::{KernelError, TensorView};

use crate::graph::{Constant, ConstantData};

/// What a prepared constant depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    address: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    dtype: lz_core::DType,
    /// The name of the kernel's layout.
    layout: &'static str,
}

/// A prepared constant. It keeps the constant alive, so that no other one gets its address.
#[derive(Debug)]
struct Shared {
    prepared: PreparedInput,
    checksum: Option<[u64; 16]>,
    _constant: ConstantData,
}

/// The prepared constants of all sessions that are alive.
static ALL: Mutex<Option<HashMap<Key, Weak<Shared>>>> = Mutex::new(None);

/// The prepared constants of one session.
#[derive(Debug, Default)]
pub struct PreparedConstants {
    by_key: Mutex<HashMap<Key, Arc<Shared>>>,
}

impl PreparedConstants {
    /// The constant, or a part of it, in the layout of a kernel: one that was prepared before, or a new one.
    pub(crate) fn get(
        &self,
        constant: &Constant,
        view: &TensorView<'_>,
        prepare: &dyn Prepare,
    ) -> Result<PreparedInput, KernelError> {
        let key = key(view, prepare.layout());
        let mut own = self.by_key.lock();
        if let Some(shared) = own.get(&key) {
            return Ok(shared.prepared.clone());
        }
        // Constants of a session never change, but another session may have seen other elements at this address.
        let checksum = checksum(view);
        let mut all = ALL.lock();
        let all = all.get_or_insert_default();
        let found = all.get(&key).and_then(Weak::upgrade);
        let found = found.filter(|shared| checksum.is_some() && shared.checksum == checksum);
        let shared = match found {
            Some(shared) => shared,
            None => {
                let prepared = prepare.prepare(view)?;
                let shared = Arc::new(Shared { prepared, checksum, _constant: constant.data.clone() });
                all.retain(|_, shared| shared.strong_count() > 0);
                all.insert(key.clone(), Arc::downgrade(&shared));
                shared
            }
        };
        // Kernels read the original again only to recompute results that are not finite.
        constant.discard();
        own.insert(key, shared.clone());
        Ok(shared.prepared.clone())
    }

    /// The number of prepared constants.
    pub fn count(&self) -> usize {
        self.by_key.lock().len()
    }
}

fn key(view: &TensorView<'_>, layout: &'static str) -> Key {
    let Layout { shape, strides, dtype, .. } = view.layout();
    Key { address: view.address(), shape: shape.to_vec(), strides: strides.to_vec(), dtype: *dtype, layout }
}

/// Sums of the elements' bits, plain and weighted by position, at the speed of memory; `None` for a layout that is not shared between
/// sessions.
fn checksum(view: &TensorView<'_>) -> Option<[u64; 16]> {
    let elements: &[f32] = view.as_slice()?;
    let (mut plain, mut weighted) = ([0u64; 8], [0u64; 8]);
    for chunk in elements.chunks(8) {
        for (lane, value) in chunk.iter().enumerate() {
            plain[lane] = plain[lane].wrapping_add(u64::from(value.to_bits()));
            weighted[lane] = weighted[lane].wrapping_add(plain[lane]);
        }
    }
    let mut sums = [0; 16];
    sums[..8].copy_from_slice(&plain);
    sums[8..].copy_from_slice(&weighted);
    Some(sums)
}

#[cfg(test)]
mod tests {
    use lz_core::{Arg, Tensor};

    use super::*;

    /// Doubles the first element.
    struct Doubles;

    impl Prepare for Doubles {
        fn layout(&self) -> &'static str {
            "doubled"
        }

        fn inputs(&self, _args: &[Arg<'_>]) -> &'static [usize] {
            &[0]
        }

        fn prepare(&self, input: &TensorView<'_>) -> Result<PreparedInput, KernelError> {
            Ok(Arc::new(2.0 * input.at(&[0])))
        }
    }

    fn constant(value: f32) -> Constant {
        let tensor = Tensor::from_slice(&[value, 0.0], &[2]).unwrap();
        Constant { name: String::new(), data: ConstantData::Owned(Arc::new(tensor)) }
    }

    #[test]
    fn sessions_share_a_constant_until_the_last_one_is_dropped() {
        let constant = constant(1.5);
        let (first, second) = (PreparedConstants::default(), PreparedConstants::default());
        let one = first.get(&constant, &constant.view(), &Doubles).unwrap();
        let two = second.get(&constant, &constant.view(), &Doubles).unwrap();
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(one.downcast_ref(), Some(&3.0f64));
        drop((first, second));
        let third = PreparedConstants::default();
        let three = third.get(&constant, &constant.view(), &Doubles).unwrap();
        assert!(!Arc::ptr_eq(&one, &three));
    }

    #[test]
    fn a_session_does_not_see_elements_of_an_earlier_one() {
        let mut data = [1.0f32, 0.0];
        let holder = constant(0.0);
        let (first, second) = (PreparedConstants::default(), PreparedConstants::default());
        let one = first.get(&holder, &TensorView::from_slice(&data, &[2]).unwrap(), &Doubles).unwrap();
        data[0] = 4.0;
        let two = second.get(&holder, &TensorView::from_slice(&data, &[2]).unwrap(), &Doubles).unwrap();
        assert_eq!((one.downcast_ref(), two.downcast_ref()), (Some(&2.0f64), Some(&8.0f64)));
    }
}
