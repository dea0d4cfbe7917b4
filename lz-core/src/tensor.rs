//! Tensors as this crate sees them: borrowed views of memory that somebody else owns, and one owned host buffer.
//!
//! A view carries metadata of any quality. Nothing here trusts it: [`Layout::problem`] says what is wrong with it, and
//! elements are reached only through views whose layout was found sound against the memory behind them
//! (safe constructors check; `from_raw` makes its caller vouch).

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use lz_schema::DType;

use crate::device::Platform;
use crate::element::Element;
use crate::reason::{Reason, ReasonCode};

/// The largest number of dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// Alignment of owned buffers: a cache line, which is also the widest vector register.
pub const BUFFER_ALIGNMENT: usize = 64;

/// Up to [`MAX_RANK`] sizes or strides, held in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    values: [i64; MAX_RANK],
    len: u8,
}

impl Dims {
    /// No dimensions.
    pub const EMPTY: Dims = Dims { values: [0; MAX_RANK], len: 0 };

    /// Copies `values`; `None` if there are more than [`MAX_RANK`].
    #[inline]
    pub fn new(values: &[i64]) -> Option<Dims> {
        if values.len() > MAX_RANK {
            return None;
        }
        let mut dims = Dims { values: [0; MAX_RANK], len: values.len() as u8 };
        dims.values[..values.len()].copy_from_slice(values);
        Some(dims)
    }

    /// Appends one dimension; `false` when it is full.
    #[inline]
    #[must_use]
    pub fn push(&mut self, value: i64) -> bool {
        let Some(place) = self.values.get_mut(usize::from(self.len)) else { return false };
        *place = value;
        self.len += 1;
        true
    }

    /// Product of all sizes (1 for none); `None` on overflow or a negative size.
    #[inline]
    pub fn product(&self) -> Option<i64> {
        self.iter().try_fold(1i64, |product, &size| if size < 0 { None } else { product.checked_mul(size) })
    }

    /// Dense row-major strides, in elements, of a tensor with these sizes. Sizes of 0 count as 1, so strides stay positive.
    pub fn contiguous_strides(&self) -> Dims {
        let mut strides = *self;
        let mut next = 1i64;
        for position in (0..self.len()).rev() {
            strides.values[position] = next;
            next = next.saturating_mul(self.values[position].max(1));
        }
        strides
    }
}

impl Deref for Dims {
    type Target = [i64];
    #[inline]
    fn deref(&self) -> &[i64] {
        &self.values[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Where memory lives: a platform and the number of the device on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which kind of device.
    pub platform: Platform,
    /// Which one of them.
    pub index: u16,
}

impl Place {
    /// Host memory.
    pub const HOST: Place = Place { platform: Platform::Cpu, index: 0 };

    /// Whether the host may read it directly.
    #[inline]
    pub fn is_host(self) -> bool {
        self.platform == Platform::Cpu
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.platform, self.index)
    }
}

/// Everything about a tensor but its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Sizes.
    pub shape: Dims,
    /// Distance between neighbours along each dimension, in elements; may be negative or zero.
    pub strides: Dims,
    /// Element type.
    pub dtype: DType,
    /// Where the memory is.
    pub place: Place,
}

impl Layout {
    /// A dense row-major host layout; an error names what is wrong with the sizes.
    pub fn contiguous(shape: &[i64], dtype: DType) -> Result<Layout, Reason> {
        let Some(dims) = Dims::new(shape) else {
            return Err(Reason::new(ReasonCode::RankMismatch)
                .required(format!("at most {MAX_RANK} dimensions"))
                .found(format!("{} dimensions", shape.len())));
        };
        let layout = Layout { shape: dims, strides: dims.contiguous_strides(), dtype, place: Place::HOST };
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

    /// Lowest and highest element offset that an index can reach; `(0, -1)` when there is no element, `None` on overflow.
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

    /// Whether the metadata makes sense by itself: ranks agree, no size is negative, nothing overflows the address space.
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

    /// What is wrong with the metadata, in words; `None` if it [is sound](Self::is_sound).
    pub fn problem(&self) -> Option<Reason> {
        if self.is_sound() {
            return None;
        }
        if self.shape.len() != self.strides.len() {
            return Some(
                Reason::new(ReasonCode::StrideInvalid)
                    .required(format!("{} strides, one a dimension", self.shape.len()))
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

    /// The last dimension has stride 1, or no neighbours.
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

    /// The same layout over integers that are as wide as the elements and that `int_at` and `set_int` carry without loss.
    fn as_bits(self) -> Layout {
        let dtype = match self.dtype.size() {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::I64,
        };
        Layout { dtype, ..self }
    }

    /// Whether two indices of this layout may name the same memory (stride 0, or strides that cross).
    pub fn overlaps_itself(&self) -> bool {
        if self.shape.contains(&0) {
            return false;
        }
        let mut dims: [(i64, i64); MAX_RANK] = [(0, 1); MAX_RANK];
        for (place, (&size, &stride)) in dims.iter_mut().zip(self.shape.iter().zip(self.strides.iter())) {
            *place = (stride.saturating_abs(), size);
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

macro_rules! shared_by_views {
    () => {
        /// Everything but the memory.
        #[inline]
        pub fn layout(&self) -> &Layout {
            &self.layout
        }
        /// Sizes.
        #[inline]
        pub fn shape(&self) -> &[i64] {
            &self.layout.shape
        }
        /// Strides in elements.
        #[inline]
        pub fn strides(&self) -> &[i64] {
            &self.layout.strides
        }
        /// Element type.
        #[inline]
        pub fn dtype(&self) -> DType {
            self.layout.dtype
        }
        /// Where the memory is.
        #[inline]
        pub fn place(&self) -> Place {
            self.layout.place
        }
        /// Number of dimensions.
        #[inline]
        pub fn rank(&self) -> usize {
            self.layout.shape.len()
        }
        /// Number of elements of a sound layout (0 for an unsound one).
        #[inline]
        pub fn elements(&self) -> i64 {
            self.layout.elements().unwrap_or(0)
        }
        /// Address of the element at index 0.
        #[inline]
        pub fn address(&self) -> usize {
            self.data as usize
        }
        /// Whether metadata and address together can be used: sound, aligned, and not null unless empty.
        #[inline]
        pub fn is_sound(&self) -> bool {
            self.layout.is_sound()
                && self.address().is_multiple_of(self.layout.dtype.size())
                && (!self.data.is_null() || self.layout.shape.contains(&0))
        }
        /// Bytes that indices can reach, as addresses `start..end`; `None` when empty or unsound.
        pub fn address_range(&self) -> Option<(u128, u128)> {
            let (lowest, highest) = self.layout.reach()?;
            if highest < lowest {
                return None;
            }
            let size = self.layout.dtype.size() as i128;
            let base = self.address() as i128;
            let start = base + i128::from(lowest) * size;
            let end = base + (i128::from(highest) + 1) * size;
            Some((u128::try_from(start).ok()?, u128::try_from(end).ok()?))
        }
    };
}

/// A borrowed, read-only tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    data: *const u8,
    layout: Layout,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of plain bytes; several threads may read them at once.
unsafe impl Send for TensorView<'_> {}
// SAFETY: as above; a view has no interior mutability.
unsafe impl Sync for TensorView<'_> {}

impl<'a> TensorView<'a> {
    shared_by_views!();

    /// A dense row-major view of a slice.
    pub fn from_slice<T: Element>(data: &'a [T], shape: &[i64]) -> Result<TensorView<'a>, Reason> {
        let layout = Layout::contiguous(shape, T::DTYPE)?;
        Self::from_slice_with(data, 0, layout)
    }

    /// A view of a slice that starts at element `start` and has any strides; every index must fall inside the slice.
    pub fn from_slice_with<T: Element>(
        data: &'a [T],
        start: usize,
        layout: Layout,
    ) -> Result<TensorView<'a>, Reason> {
        check_slice(data.len(), start, T::DTYPE, &layout)?;
        Ok(TensorView { data: data.as_ptr().wrapping_add(start).cast(), layout, memory: PhantomData })
    }

    /// A view of memory that somebody else describes.
    ///
    /// # Safety
    /// If the layout [is sound](Layout::is_sound) and the place is the host, every element it can reach from `data` must
    /// stay readable, and not be written by others, for `'a`. Unsound metadata is allowed: validation refuses it.
    #[inline]
    pub unsafe fn from_raw(data: *const u8, layout: Layout) -> TensorView<'a> {
        TensorView { data, layout, memory: PhantomData }
    }

    /// A tensor without memory, to ask what would be chosen for it. Validation for a run refuses it.
    pub fn described(layout: Layout) -> TensorView<'static> {
        TensorView { data: std::ptr::null(), layout, memory: PhantomData }
    }

    /// The elements as a slice, if the view is dense, on the host, aligned and of this type.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        if self.layout.dtype != T::DTYPE
            || !self.layout.place.is_host()
            || !self.layout.is_contiguous()
            || !self.is_sound()
        {
            return None;
        }
        let elements = self.elements() as usize;
        if elements == 0 {
            return Some(&[]);
        }
        // SAFETY: dense, sound and aligned, so `elements` values of T start at `data`; whoever made the view vouched for the memory.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), elements) })
    }

    /// The element at an index, widened to f64 (integers beyond 2^53 round); NaN if the index is out of range or the memory is not the host's.
    #[inline]
    pub fn at(&self, index: &[i64]) -> f64 {
        match self.element(index) {
            // SAFETY: `element` returns only addresses of elements inside the view.
            Some(address) => unsafe { crate::element::load_f64(self.layout.dtype, address) },
            None => f64::NAN,
        }
    }

    /// The element at an index as an integer (floats truncate); 0 if the index is out of range or the memory is not the host's.
    #[inline]
    pub fn int_at(&self, index: &[i64]) -> i64 {
        match self.element(index) {
            // SAFETY: `element` returns only addresses of elements inside the view.
            Some(address) => unsafe { crate::element::load_i64(self.layout.dtype, address) },
            None => 0,
        }
    }

    #[inline]
    fn element(&self, index: &[i64]) -> Option<*const u8> {
        let offset = self.layout.offset(index)?;
        if !self.layout.place.is_host() || self.data.is_null() {
            return None;
        }
        Some(self.data.wrapping_offset(offset.wrapping_mul(self.layout.dtype.size() as isize)))
    }

    /// The same memory as integers of the same width, for copies that must keep every bit (payloads of NaN, packed nibbles).
    #[inline]
    pub fn bits(&self) -> TensorView<'a> {
        TensorView { layout: self.layout.as_bits(), ..*self }
    }

    /// One row as a slice: the last dimension at a leading index, if it is dense, on the host, aligned, of this type and in range.
    #[inline]
    pub fn row<T: Element>(&self, leading: &[i64]) -> Option<&'a [T]> {
        let (start, width) = self.row_place::<T>(leading)?;
        // SAFETY: `row_place` found the row inside the view, dense, aligned and of type T; whoever made the view vouched for the memory.
        Some(unsafe { std::slice::from_raw_parts(start.cast(), width) })
    }

    fn row_place<T: Element>(&self, leading: &[i64]) -> Option<(*const u8, usize)> {
        let (&width, _) = self.layout.shape.split_last()?;
        let usable = self.layout.dtype == T::DTYPE
            && self.layout.place.is_host()
            && self.layout.last_is_dense()
            && self.is_sound();
        if !usable || width == 0 {
            return (usable && width == 0)
                .then_some((NonNull::<T>::dangling().as_ptr().cast_const().cast(), 0));
        }
        let mut index = Dims::new(leading)?;
        if !index.push(0) {
            return None;
        }
        Some((self.element(&index)?, width as usize))
    }

    /// The address of the first element, for kernels.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }
}

/// A borrowed tensor that may be written.
#[derive(Debug)]
pub struct TensorMut<'a> {
    data: *mut u8,
    layout: Layout,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an exclusive borrow of plain bytes may move to another thread.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: a shared reference to it only reads.
unsafe impl Sync for TensorMut<'_> {}

impl<'a> TensorMut<'a> {
    shared_by_views!();

    /// A dense row-major view of a slice.
    pub fn from_slice<T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<TensorMut<'a>, Reason> {
        let layout = Layout::contiguous(shape, T::DTYPE)?;
        Self::from_slice_with(data, 0, layout)
    }

    /// A view of a slice that starts at element `start` and has any strides; every index must fall inside the slice.
    pub fn from_slice_with<T: Element>(
        data: &'a mut [T],
        start: usize,
        layout: Layout,
    ) -> Result<TensorMut<'a>, Reason> {
        check_slice(data.len(), start, T::DTYPE, &layout)?;
        Ok(TensorMut { data: data.as_mut_ptr().wrapping_add(start).cast(), layout, memory: PhantomData })
    }

    /// A view of memory that somebody else describes.
    ///
    /// # Safety
    /// If the layout [is sound](Layout::is_sound) and the place is the host, every element it can reach from `data` must
    /// stay readable and writable, and be used by nobody else, for `'a`. Unsound metadata is allowed: validation refuses it.
    #[inline]
    pub unsafe fn from_raw(data: *mut u8, layout: Layout) -> TensorMut<'a> {
        TensorMut { data, layout, memory: PhantomData }
    }

    /// A shorter exclusive borrow of the same memory.
    #[inline]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { data: self.data, layout: self.layout, memory: PhantomData }
    }

    /// A second view of the same memory. Generated dispatch lends a tensor that is changed in place to the kernel that runs.
    ///
    /// # Safety
    /// Nobody may look through `self` while the copy is written.
    #[inline]
    pub unsafe fn lend(&self) -> TensorMut<'a> {
        TensorMut { data: self.data, layout: self.layout, memory: PhantomData }
    }

    /// Read-only view for as long as nothing writes.
    #[inline]
    pub fn as_view(&self) -> TensorView<'_> {
        TensorView { data: self.data, layout: self.layout, memory: PhantomData }
    }

    /// The elements as a slice, if the view is dense, on the host, aligned and of this type.
    #[inline]
    pub fn as_slice_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        let elements = self.as_view().as_slice::<T>()?.len();
        if elements == 0 {
            return Some(&mut []);
        }
        // SAFETY: `as_slice` found the view dense, sound, aligned and of type T; the borrow is exclusive.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), elements) })
    }

    /// Writes one element, rounded to the element type (nearest even, saturating for integers and for 8- and 4-bit floats); out of range writes nothing.
    #[inline]
    pub fn set(&mut self, index: &[i64], value: f64) {
        if let Some(address) = self.element(index) {
            // SAFETY: `element` returns only addresses of elements inside the view, which is borrowed exclusively.
            unsafe { crate::element::store_f64(self.layout.dtype, address, value) }
        }
    }

    /// Writes one integer element, saturating; out of range writes nothing.
    #[inline]
    pub fn set_int(&mut self, index: &[i64], value: i64) {
        if let Some(address) = self.element(index) {
            // SAFETY: as in `set`.
            unsafe { crate::element::store_i64(self.layout.dtype, address, value) }
        }
    }

    #[inline]
    fn element(&self, index: &[i64]) -> Option<*mut u8> {
        let offset = self.layout.offset(index)?;
        if !self.layout.place.is_host() || self.data.is_null() {
            return None;
        }
        Some(self.data.wrapping_offset(offset.wrapping_mul(self.layout.dtype.size() as isize)))
    }

    /// The same memory as integers of the same width, for copies that must keep every bit (payloads of NaN, packed nibbles).
    #[inline]
    pub fn bits_mut(&mut self) -> TensorMut<'_> {
        TensorMut { data: self.data, layout: self.layout.as_bits(), memory: PhantomData }
    }

    /// One row as a slice, to write; as [`TensorView::row`].
    #[inline]
    pub fn row_mut<T: Element>(&mut self, leading: &[i64]) -> Option<&mut [T]> {
        let (start, width) = self.as_view().row_place::<T>(leading)?;
        // SAFETY: `row_place` found the row inside the view, dense, aligned and of type T; the borrow is exclusive.
        Some(unsafe { std::slice::from_raw_parts_mut(start.cast_mut().cast(), width) })
    }

    /// The address of the first element, for kernels.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data
    }
}

fn check_slice(len: usize, start: usize, dtype: DType, layout: &Layout) -> Result<(), Reason> {
    if layout.dtype != dtype {
        return Err(Reason::new(ReasonCode::DtypeMismatch)
            .required(layout.dtype.long_name().to_owned())
            .found(format!("a slice of {}", dtype.long_name())));
    }
    if let Some(reason) = layout.problem() {
        return Err(reason);
    }
    let Some((lowest, highest)) = layout.reach() else {
        return Err(Reason::new(ReasonCode::SizeOverflow).found(format!("shape {:?}", layout.shape)));
    };
    if highest < lowest {
        return Ok(());
    }
    let first = start as i128 + i128::from(lowest);
    let last = start as i128 + i128::from(highest);
    if first < 0 || last >= len as i128 {
        return Err(Reason::new(ReasonCode::ShapeMismatch)
            .required(format!("elements {first}..={last}"))
            .found(format!("a slice of {len} elements")));
    }
    Ok(())
}

/// An owned, dense, zero-initialised host tensor.
#[derive(Debug)]
pub struct Tensor {
    data: NonNull<u8>,
    allocation: Option<AllocLayout>,
    layout: Layout,
}

// SAFETY: the buffer is owned and plain bytes.
unsafe impl Send for Tensor {}
// SAFETY: shared references only read.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Allocates zeros.
    pub fn zeros(shape: &[i64], dtype: DType) -> Result<Tensor, Reason> {
        let layout = Layout::contiguous(shape, dtype)?;
        let bytes = layout.elements().unwrap_or(0) as usize * dtype.size();
        if bytes == 0 {
            let data = NonNull::new(std::ptr::without_provenance_mut(BUFFER_ALIGNMENT))
                .unwrap_or(NonNull::dangling());
            return Ok(Tensor { data, allocation: None, layout });
        }
        let Ok(allocation) = AllocLayout::from_size_align(bytes, BUFFER_ALIGNMENT) else {
            return Err(Reason::new(ReasonCode::SizeOverflow).found(format!("{bytes} bytes")));
        };
        // SAFETY: the size is not zero.
        let Some(data) = NonNull::new(unsafe { alloc_zeroed(allocation) }) else {
            handle_alloc_error(allocation)
        };
        Ok(Tensor { data, allocation: Some(allocation), layout })
    }

    /// Copies a slice.
    pub fn from_slice<T: Element>(data: &[T], shape: &[i64]) -> Result<Tensor, Reason> {
        TensorView::from_slice(data, shape)?;
        let mut tensor = Tensor::zeros(shape, T::DTYPE)?;
        if let Some(target) = tensor.view_mut().as_slice_mut::<T>() {
            target.copy_from_slice(&data[..target.len()]);
        }
        Ok(tensor)
    }

    /// Borrows it.
    #[inline]
    pub fn view(&self) -> TensorView<'_> {
        TensorView { data: self.data.as_ptr(), layout: self.layout, memory: PhantomData }
    }

    /// Borrows it for writing.
    #[inline]
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        TensorMut { data: self.data.as_ptr(), layout: self.layout, memory: PhantomData }
    }

    /// Sizes.
    pub fn shape(&self) -> &[i64] {
        &self.layout.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let length = self.allocation.map_or(0, |allocation| allocation.size());
        // SAFETY: the allocation has that many initialised bytes (none when there is no allocation).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), length) }
    }

    /// Its bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.allocation.map_or(0, |allocation| allocation.size());
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), length) }
    }
}

impl Clone for Tensor {
    fn clone(&self) -> Tensor {
        // The same sizes were allocated once, so they are sound; an allocation failure aborts as everywhere in Rust.
        match Tensor::zeros(&self.layout.shape, self.layout.dtype) {
            Ok(mut copy) => {
                copy.bytes_mut().copy_from_slice(self.bytes());
                copy
            }
            Err(reason) => unreachable!("an allocated tensor has a sound layout: {reason}"),
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation {
            // SAFETY: allocated with this very layout in `zeros`, freed once.
            unsafe { dealloc(self.data.as_ptr(), allocation) }
        }
    }
}

/// Whether a write through one tensor may change what another shows.
///
/// Exact for tensors whose reaches are apart, and for interleaved tensors that share their largest stride (columns of one
/// matrix); otherwise an intersection of reaches counts as overlap.
pub fn may_overlap(a: &TensorView<'_>, b: &TensorView<'_>) -> bool {
    if a.place() != b.place() {
        return false;
    }
    let (Some((a_start, a_end)), Some((b_start, b_end))) = (a.address_range(), b.address_range()) else {
        return false;
    };
    if a_end <= b_start || b_end <= a_start {
        return false;
    }
    let (Some((pitch_a, width_a)), Some((pitch_b, width_b))) = (pitch(a), pitch(b)) else { return true };
    if pitch_a != pitch_b || width_a > pitch_a || width_b > pitch_b {
        return true;
    }
    // Both are bands of the same pitch: compare where the bands lie modulo the pitch.
    let distance = (b_start as i128 - a_start as i128).rem_euclid(pitch_a as i128) as u128;
    !(distance >= width_a && distance + width_b <= pitch_a)
}

/// Largest stride in bytes and the bytes that the other dimensions reach, for layouts with positive strides.
fn pitch(view: &TensorView<'_>) -> Option<(u128, u128)> {
    let size = view.dtype().size() as u128;
    let dims = || view.shape().iter().zip(view.strides()).filter(|(size, _)| **size > 1);
    let largest = dims().map(|(_, stride)| *stride).max()?;
    if dims().any(|(_, stride)| *stride <= 0) {
        return None;
    }
    let mut width = size;
    let mut seen = false;
    for (&count, &stride) in dims() {
        if stride == largest && !seen {
            seen = true;
            continue;
        }
        width = width.checked_add((count as u128 - 1).checked_mul(stride as u128)?.checked_mul(size)?)?;
    }
    Some((largest as u128 * size, width))
}

/// All indices of a shape in row-major order; yields the empty index once for rank 0 and nothing if a size is 0 or less.
#[derive(Debug)]
pub struct Indices {
    shape: Dims,
    next: Option<Dims>,
}

impl Indices {
    /// Over a shape of at most [`MAX_RANK`] dimensions (more yields nothing).
    pub fn new(shape: &[i64]) -> Indices {
        let next = match Dims::new(shape) {
            Some(dims) if dims.iter().all(|&size| size > 0) => {
                Some(Dims { values: [0; MAX_RANK], len: dims.len })
            }
            _ => None,
        };
        Indices { shape: Dims::new(shape).unwrap_or(Dims::EMPTY), next }
    }
}

impl Iterator for Indices {
    type Item = Dims;

    fn next(&mut self) -> Option<Dims> {
        let current = self.next?;
        let mut following = current;
        self.next = None;
        for position in (0..self.shape.len()).rev() {
            following.values[position] += 1;
            if following.values[position] < self.shape[position] {
                self.next = Some(following);
                break;
            }
            following.values[position] = 0;
        }
        Some(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[i64], strides: &[i64], dtype: DType) -> Layout {
        Layout {
            shape: Dims::new(shape).unwrap(),
            strides: Dims::new(strides).unwrap(),
            dtype,
            place: Place::HOST,
        }
    }

    #[test]
    fn a_slice_too_short_is_refused() {
        let data = [0f32; 5];
        let reason = TensorView::from_slice(&data, &[2, 3]).unwrap_err();
        assert_eq!(reason.code, ReasonCode::ShapeMismatch);
        assert!(TensorView::from_slice_with(&data, 4, layout(&[5], &[-1], DType::F32)).is_ok());
        assert!(TensorView::from_slice_with(&data, 3, layout(&[5], &[-1], DType::F32)).is_err());
    }

    #[test]
    fn unsound_metadata_is_named() {
        let cases = [
            (layout(&[-1], &[1], DType::F32), ReasonCode::NegativeSize),
            (layout(&[i64::MAX, 3], &[1, 1], DType::F32), ReasonCode::SizeOverflow),
            (layout(&[4], &[i64::MAX], DType::F32), ReasonCode::StrideInvalid),
            (layout(&[4], &[1, 1], DType::F32), ReasonCode::StrideInvalid),
        ];
        for (layout, code) in cases {
            assert_eq!(layout.problem().map(|reason| reason.code), Some(code), "{layout:?}");
        }
    }

    #[test]
    fn contiguity() {
        assert!(layout(&[2, 3], &[3, 1], DType::F32).is_contiguous());
        assert!(layout(&[2, 1, 3], &[3, 99, 1], DType::F32).is_contiguous());
        assert!(!layout(&[2, 3], &[1, 2], DType::F32).is_contiguous());
        assert!(layout(&[0, 3], &[7, 5], DType::F32).is_contiguous());
        assert!(layout(&[], &[], DType::F32).is_contiguous());
    }

    #[test]
    fn overlap_of_columns_and_of_rows() {
        let data = [0f32; 24];
        let left = TensorView::from_slice_with(&data, 0, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        let right = TensorView::from_slice_with(&data, 3, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        let middle = TensorView::from_slice_with(&data, 2, layout(&[4, 3], &[6, 1], DType::F32)).unwrap();
        assert!(!may_overlap(&left, &right));
        assert!(may_overlap(&left, &middle));
        assert!(may_overlap(&middle, &right));
        assert!(may_overlap(&left, &left));
        assert!(layout(&[4, 3], &[0, 1], DType::F32).overlaps_itself());
        assert!(layout(&[4, 3], &[2, 1], DType::F32).overlaps_itself());
        assert!(!layout(&[4, 3], &[1, 4], DType::F32).overlaps_itself());
    }

    #[test]
    fn bits_survive_a_copy_that_numbers_would_not() {
        let signalling = [f32::from_bits(0x7f80_0001), f32::from_bits(0xffc1_2345), -0.0];
        let mut copy = [0f32; 3];
        let view = TensorView::from_slice(&signalling, &[3]).unwrap().bits();
        let mut target = TensorMut::from_slice(&mut copy, &[3]).unwrap();
        for index in 0..3 {
            target.bits_mut().set_int(&[index], view.int_at(&[index]));
        }
        assert_eq!(copy.map(f32::to_bits), signalling.map(f32::to_bits));
    }

    #[test]
    fn indices_visit_each_place_once() {
        assert_eq!(Indices::new(&[]).count(), 1);
        assert_eq!(Indices::new(&[2, 0]).count(), 0);
        let seen: Vec<Vec<i64>> = Indices::new(&[2, 2]).map(|index| index.to_vec()).collect();
        assert_eq!(seen, [[0, 0], [0, 1], [1, 0], [1, 1]]);
    }
}
