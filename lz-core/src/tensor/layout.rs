//! Tensor metadata and its validation.

use lz_schema::DType;

use super::dims::{Dims, MAX_RANK};
use crate::device::Platform;
use crate::reason::{Reason, ReasonCode};

/// The device of a memory: a platform and a device index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// The platform.
    pub platform: Platform,
    /// The device index.
    pub index: u16,
}

impl Device {
    /// Host memory.
    pub const HOST: Device = Device { platform: Platform::Cpu, index: 0 };

    /// Whether the host can access it directly.
    #[inline]
    pub fn is_host(self) -> bool {
        self.platform == Platform::Cpu
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.platform, self.index)
    }
}

/// Everything about a tensor except its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Sizes.
    pub shape: Dims,
    /// Distance between neighbors along each dimension, in elements; may be negative or zero.
    pub strides: Dims,
    /// Element type.
    pub dtype: DType,
    /// The device of the memory.
    pub device: Device,
}

impl Layout {
    /// An empty layout.
    #[inline(always)]
    pub(super) const fn empty() -> Layout {
        Layout { shape: Dims::empty(), strides: Dims::empty(), dtype: DType::U8, device: Device::HOST }
    }

    /// Replaces sizes and strides, and computes their facts in the same pass.
    #[inline(always)]
    pub(super) fn describe(
        &mut self,
        address: usize,
        rank: usize,
        dimension: impl Fn(usize) -> (i64, i64),
    ) -> Facts {
        let size = self.dtype.size();
        let mut facts = Dense::new(size, address);
        if rank > MAX_RANK {
            *self = Layout::empty();
            return Facts::UNUSABLE;
        }
        // SAFETY: the loop writes `rank` values of each.
        let (sizes, strides) = unsafe { (self.shape.set_length(rank), self.strides.set_length(rank)) };
        for position in (0..rank).rev() {
            let (extent, stride) = dimension(position);
            sizes[position].write(extent);
            strides[position].write(stride);
            facts.add_dimension(extent, stride);
        }
        facts.finish(address, size).unwrap_or_else(|| Facts::of_any(self, address))
    }

    /// A copy, as [`Dims::copied`].
    #[inline(always)]
    pub(super) fn copied(&self) -> Layout {
        Layout {
            shape: self.shape.copied(),
            strides: self.strides.copied(),
            dtype: self.dtype,
            device: self.device,
        }
    }

    /// A dense row-major host layout; the error names what is invalid.
    pub fn contiguous(shape: &[i64], dtype: DType) -> Result<Layout, Reason> {
        let Some(dims) = Dims::new(shape) else {
            return Err(Reason::new(ReasonCode::RankMismatch)
                .required(format!("at most {MAX_RANK} dimensions"))
                .found(format!("{} dimensions", shape.len())));
        };
        let layout = Layout { shape: dims, strides: dims.contiguous_strides(), dtype, device: Device::HOST };
        match layout.problem() {
            Some(reason) => Err(reason),
            None => Ok(layout),
        }
    }

    /// Number of elements; `None` if a size is negative or the product overflows.
    #[inline]
    pub fn elements(&self) -> Option<i64> {
        self.shape.product()
    }

    /// Lowest and highest reachable element offset; `(0, -1)` without elements, `None` on overflow.
    #[inline]
    pub fn reach(&self) -> Option<(i64, i64)> {
        let (mut lowest, mut highest, mut empty) = (0i64, 0i64, false);
        for (&size, &stride) in self.shape.iter().zip(self.strides.iter()) {
            if size < 0 {
                return None;
            }
            if size == 0 {
                empty = true;
                continue;
            }
            let span = (size - 1).checked_mul(stride)?;
            if span < 0 {
                lowest = lowest.checked_add(span)?;
            } else {
                highest = highest.checked_add(span)?;
            }
        }
        if empty { Some((0, -1)) } else { Some((lowest, highest)) }
    }

    /// Whether the metadata is valid: ranks agree, no size is negative, nothing overflows the address space.
    #[inline]
    pub fn is_sound(&self) -> bool {
        if self.shape.len() != self.strides.len() {
            return false;
        }
        let size = self.dtype.size() as i64;
        let Some(elements) = self.elements() else { return false };
        if elements.checked_mul(size).is_none() {
            return false;
        }
        match self.reach() {
            Some((lowest, highest)) => {
                lowest.checked_mul(size).is_some()
                    && highest.checked_mul(size).is_some_and(|bytes| bytes < i64::MAX - size)
            }
            None => false,
        }
    }

    /// What is wrong with the metadata; `None` if it [is sound](Self::is_sound).
    pub fn problem(&self) -> Option<Reason> {
        if self.is_sound() {
            return None;
        }
        if self.shape.len() != self.strides.len() {
            return Some(
                Reason::new(ReasonCode::StrideInvalid)
                    .required(format!("{} strides, one per dimension", self.shape.len()))
                    .found(format!("{} strides", self.strides.len())),
            );
        }
        if let Some(dimension) = self.shape.iter().position(|&size| size < 0) {
            return Some(
                Reason::new(ReasonCode::NegativeSize)
                    .required("a size of 0 or more".to_owned())
                    .found(format!("shape[{dimension}] = {}", self.shape[dimension])),
            );
        }
        if self.elements().and_then(|elements| elements.checked_mul(self.dtype.size() as i64)).is_none() {
            return Some(
                Reason::new(ReasonCode::SizeOverflow)
                    .required("fewer than 2^63 bytes".to_owned())
                    .found(format!("shape {:?} of {}", self.shape, self.dtype.long_name())),
            );
        }
        Some(
            Reason::new(ReasonCode::StrideInvalid)
                .required("strides whose reach fits the address space".to_owned())
                .found(format!("shape {:?}, strides {:?}", self.shape, self.strides)),
        )
    }

    /// Dense row-major (dimensions of size 1 may have any stride).
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1i64;
        for (&size, &stride) in self.shape.iter().zip(self.strides.iter()).rev() {
            if size != 1 && stride != expected {
                return size == 0 || self.shape.contains(&0);
            }
            expected = expected.wrapping_mul(size.max(1));
        }
        true
    }

    /// The last dimension has stride 1, or at most one element.
    #[inline]
    pub fn last_is_dense(&self) -> bool {
        match (self.shape.last(), self.strides.last()) {
            (Some(&size), Some(&stride)) => stride == 1 || size <= 1,
            _ => true,
        }
    }

    /// Element offset of an index; `None` if the index is out of range.
    #[inline]
    pub fn offset(&self, index: &[i64]) -> Option<isize> {
        if index.len() != self.shape.len() {
            return None;
        }
        let mut offset = 0i64;
        for ((&position, &size), &stride) in index.iter().zip(self.shape.iter()).zip(self.strides.iter()) {
            if position < 0 || position >= size {
                return None;
            }
            offset = offset.wrapping_add(position.wrapping_mul(stride));
        }
        Some(offset as isize)
    }

    /// The same layout over integers of the same width that `int_at` and `set_int` preserve exactly.
    pub(super) fn as_bits(self) -> Layout {
        let dtype = match self.dtype.size() {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::I64,
        };
        Layout { dtype, ..self }
    }

    /// A slice of the first dimension, and its byte offset; `None` if out of range.
    pub(super) fn leading(&self, start: i64, count: i64) -> Option<(Layout, isize)> {
        let (size, stride) = (*self.shape.first()?, *self.strides.first()?);
        let end = start.checked_add(count)?;
        if start < 0 || count < 0 || end > size {
            return None;
        }
        let bytes = i64::try_from(self.dtype.size()).ok()?;
        let offset = isize::try_from(start.checked_mul(stride)?.checked_mul(bytes)?).ok()?;
        let mut sizes = [0; MAX_RANK];
        let sizes = sizes.get_mut(..self.shape.len())?;
        sizes.copy_from_slice(&self.shape);
        *sizes.first_mut()? = count;
        Some((Layout { shape: Dims::new(sizes)?, ..*self }, offset))
    }

    /// Whether two indices of this layout may refer to the same memory (stride 0, or crossing strides).
    pub fn overlaps_itself(&self) -> bool {
        if self.is_contiguous() || self.shape.contains(&0) {
            return false;
        }
        let mut dims: [(i64, i64); MAX_RANK] = [(0, 1); MAX_RANK];
        for (dim, (&size, &stride)) in dims.iter_mut().zip(self.shape.iter().zip(self.strides.iter())) {
            *dim = (stride.saturating_abs(), size);
        }
        let dims = &mut dims[..self.shape.len()];
        dims.sort_unstable();
        let mut reach = 0i64;
        for &(stride, size) in dims.iter().filter(|(_, size)| *size > 1) {
            if stride <= reach {
                return true;
            }
            reach = reach.saturating_add(stride.saturating_mul(size - 1));
        }
        false
    }
}

/// Properties of a tensor's metadata and address, computed once when a view is created.
///
/// Bits 0 to 5 are the [stride class](crate::context::stride_class); bit 6 is set if the tensor is usable: sound metadata, an aligned
/// address, not null unless empty. The bits above are the size in bytes of a dense, usable, non-empty tensor, and 0 for all
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts(u64);

const CONTIGUOUS: u64 = 1 << 1;
const LAST_DENSE: u64 = 1 << 2;
const USABLE: u64 = 1 << 6;
const BYTES: u32 = 7;

/// The fast path for dense, non-empty tensors, which nearly all are: computes density and soundness in one pass. Dimensions are
/// visited from last to first.
struct Dense {
    elements: i64,
    plain: bool,
}

impl Dense {
    #[inline(always)]
    fn new(size: usize, address: usize) -> Dense {
        Dense { elements: 1, plain: address & (size - 1) == 0 && address != 0 }
    }

    #[inline(always)]
    fn add_dimension(&mut self, extent: i64, stride: i64) {
        self.plain &= extent == 1 || (stride == self.elements && extent > 1);
        let (product, overflows) = self.elements.overflowing_mul(extent);
        self.plain &= !overflows;
        self.elements = product;
    }

    /// The facts, if the tensor is dense and not empty.
    #[inline(always)]
    fn finish(self, address: usize, size: usize) -> Option<Facts> {
        (self.plain && self.elements <= MAX_DENSE_ELEMENTS).then(|| {
            let bytes = (self.elements as u64) << size.trailing_zeros();
            Facts(1 | CONTIGUOUS | LAST_DENSE | USABLE | alignment(address) | bytes << BYTES)
        })
    }
}

#[inline(always)]
fn alignment(address: usize) -> u64 {
    u64::from(address.trailing_zeros().min(6)) << 3
}

impl Facts {
    /// An empty view.
    pub const UNUSABLE: Facts = Facts(1 | CONTIGUOUS | LAST_DENSE | 6 << 3);

    /// Computes the facts of a layout and an address.
    #[inline]
    pub fn of(layout: &Layout, address: usize) -> Facts {
        let size = layout.dtype.size();
        let mut facts = Dense::new(size, address);
        facts.plain &= layout.shape.len() == layout.strides.len();
        for (&extent, &stride) in layout.shape.iter().zip(layout.strides.iter()).rev() {
            facts.add_dimension(extent, stride);
        }
        facts.finish(address, size).unwrap_or_else(|| Facts::of_any(layout, address))
    }

    /// The general case.
    #[inline(never)]
    fn of_any(layout: &Layout, address: usize) -> Facts {
        let aligned = address & (layout.dtype.size() - 1) == 0;
        let usable = aligned && layout.is_sound() && (address != 0 || layout.shape.contains(&0));
        Facts(
            1 | (u64::from(layout.is_contiguous()) * CONTIGUOUS)
                | (u64::from(layout.last_is_dense()) * LAST_DENSE)
                | (u64::from(usable) * USABLE)
                | alignment(address),
        )
    }

    #[inline]
    pub fn is_contiguous(self) -> bool {
        self.0 & CONTIGUOUS != 0
    }

    #[inline]
    pub fn last_is_dense(self) -> bool {
        self.0 & LAST_DENSE != 0
    }

    #[inline]
    pub fn is_usable(self) -> bool {
        self.0 & USABLE != 0
    }

    #[inline]
    pub fn stride_class(self) -> u64 {
        self.0 & 0b11_1111
    }

    /// Size in bytes of a dense, usable, non-empty tensor; 0 for all others.
    #[inline(always)]
    pub fn dense_bytes(self) -> usize {
        (self.0 >> BYTES) as usize
    }
}

/// Up to this many elements of any dtype do not overflow the address space, and their size in bytes fits into the bits above the
/// flags.
const MAX_DENSE_ELEMENTS: i64 = i64::MAX >> 11;
