//! Memory of kernels whose size comes from the call. If it is exhausted, the call fails with `OUT_OF_MEMORY`; an infallible allocation
//! would end the process.

use std::sync::{Mutex, PoisonError};

use lz_core::{KernelError, Reason, ReasonCode};

/// An empty vector with capacity for `count` elements.
pub(crate) fn with_capacity<T>(count: usize) -> Result<Vec<T>, KernelError> {
    let mut memory = Vec::new();
    reserve(&mut memory, count)?;
    Ok(memory)
}

/// The first `count` values.
pub(crate) fn collect<T>(count: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>, KernelError> {
    let mut memory = with_capacity(count)?;
    memory.extend(values.take(count));
    Ok(memory)
}

/// Enlarges a vector to at least `count` elements. Its elements are kept.
#[inline]
pub(crate) fn grow(memory: &mut Vec<f32>, count: usize) -> Result<(), KernelError> {
    if memory.len() < count {
        let missing = count - memory.len();
        reserve(memory, missing)?;
        memory.resize(count, 0.0);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn reserve<T>(memory: &mut Vec<T>, additional: usize) -> Result<(), KernelError> {
    memory.try_reserve_exact(additional).map_err(|_| {
        let bytes = (memory.len() + additional).saturating_mul(size_of::<T>());
        let detail = format!("{bytes} bytes of temporary memory");
        KernelError::because(Reason::new(ReasonCode::OutOfMemory).message(detail))
    })
}

/// The first error of tasks that run at the same time. A task that fails does not stop the others.
#[derive(Debug, Default)]
pub(crate) struct FirstError(Mutex<Option<KernelError>>);

impl FirstError {
    /// Keeps the error of a task.
    #[inline]
    pub(crate) fn keep(&self, result: Result<(), KernelError>) {
        if let Err(error) = result {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// The error, after all tasks finished.
    pub(crate) fn into_result(self) -> Result<(), KernelError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
