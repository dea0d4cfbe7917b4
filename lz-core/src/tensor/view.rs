//! Borrowed tensors. Elements are only accessed if the layout is sound for the memory behind it.

use std::marker::PhantomData;
use std::ptr::NonNull;

use lz_schema::DType;

use super::dims::Dims;
use super::layout::{Device, Facts, Layout};
use crate::element::Element;
use crate::reason::{Reason, ReasonCode};

macro_rules! shared_by_views {
    ($self:ident, $view:expr) => {
        /// The metadata.
        #[inline]
        pub fn layout(&$self) -> &Layout {
            &$view.layout
        }
        /// Sizes.
        #[inline]
        pub fn shape(&$self) -> &[i64] {
            &$view.layout.shape
        }
        /// Strides in elements.
        #[inline]
        pub fn strides(&$self) -> &[i64] {
            &$view.layout.strides
        }
        /// Element type.
        #[inline]
        pub fn dtype(&$self) -> DType {
            $view.layout.dtype
        }
        /// The device of the memory.
        #[inline]
        pub fn device(&$self) -> Device {
            $view.layout.device
        }
        /// Number of dimensions.
        #[inline]
        pub fn rank(&$self) -> usize {
            $view.layout.shape.len()
        }
        /// Number of elements of a sound layout (0 for an unsound one).
        #[inline]
        pub fn elements(&$self) -> i64 {
            match $view.facts.dense_bytes() {
                0 => $view.layout.elements().unwrap_or(0),
                bytes => (bytes >> $view.layout.dtype.size().trailing_zeros()) as i64,
            }
        }
        /// Address of the element at index 0.
        #[inline]
        pub fn address(&$self) -> usize {
            $view.data as usize
        }
        /// Whether metadata and address are usable: sound, aligned, and not null unless empty.
        #[inline]
        pub fn is_sound(&$self) -> bool {
            $view.facts.is_usable()
        }
        /// Dense row-major (dimensions of size 1 may have any stride).
        #[inline]
        pub fn is_contiguous(&$self) -> bool {
            $view.facts.is_contiguous()
        }
        /// The last dimension has stride 1, or at most one element.
        #[inline]
        pub fn last_is_dense(&$self) -> bool {
            $view.facts.last_is_dense()
        }
        /// The stride class for selection, see [`stride_class`](crate::context::stride_class).
        #[inline]
        pub fn stride_class(&$self) -> u64 {
            $view.facts.stride_class()
        }
        /// Reachable addresses `start..end`; `None` if empty or unsound.
        pub fn address_range(&$self) -> Option<(u128, u128)> {
            let (lowest, highest) = if $self.is_contiguous() && $self.is_sound() {
                (0, $self.elements() - 1)
            } else {
                $view.layout.reach()?
            };
            if highest < lowest {
                return None;
            }
            let size = $view.layout.dtype.size() as i128;
            let base = $self.address() as i128;
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
    facts: Facts,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is a shared borrow of plain bytes; several threads may read them at once.
unsafe impl Send for TensorView<'_> {}
// SAFETY: as above; a view has no interior mutability.
unsafe impl Sync for TensorView<'_> {}

impl<'a> TensorView<'a> {
    shared_by_views!(self, self);

    /// An empty view, which validation rejects. A function and not a constant, which would be copied as a whole.
    #[inline(always)]
    pub const fn empty() -> TensorView<'a> {
        TensorView {
            data: std::ptr::null(),
            layout: Layout::empty(),
            facts: Facts::UNUSABLE,
            memory: PhantomData,
        }
    }

    /// Redirects the view to other memory, in place: a view is too large to be passed by value in every call. `dimension` returns the
    /// size and the stride, in elements, of each dimension; a rank above [`MAX_RANK`](super::MAX_RANK) results in an empty view.
    ///
    /// # Safety
    /// As for [`TensorView::from_raw`].
    #[inline(always)]
    pub unsafe fn describe(
        &mut self,
        data: *const u8,
        rank: usize,
        (dtype, device): (DType, Device),
        dimension: impl Fn(usize) -> (i64, i64),
    ) {
        (self.layout.dtype, self.layout.device) = (dtype, device);
        (self.data, self.facts) = (data, self.layout.describe(data as usize, rank, dimension));
    }

    /// A copy, as [`Dims::copied`].
    #[inline(always)]
    fn copied(&self) -> TensorView<'a> {
        TensorView { data: self.data, layout: self.layout.copied(), facts: self.facts, memory: PhantomData }
    }

    /// Reinterprets bytes as pairs of 4-bit floats; other dtypes stay unchanged.
    #[inline]
    pub fn take_bytes_for_nibbles(&mut self) {
        if self.layout.dtype == DType::U8 {
            self.layout.dtype = DType::F4E2M1x2;
        }
    }

    /// The address range of a dense, non-empty tensor; an empty range for all others.
    #[inline(always)]
    pub(crate) fn dense_range(&self) -> (usize, usize) {
        let start = self.data as usize;
        (start, start.wrapping_add(self.facts.dense_bytes()))
    }

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
        Ok(TensorView::of(data.as_ptr().wrapping_add(start).cast(), layout))
    }

    /// A view of foreign memory.
    ///
    /// # Safety
    /// If the layout [is sound](Layout::is_sound) and the memory is on the host, every element it can reach from `data` must
    /// stay readable, and not be written by others, for `'a`. Unsound metadata is allowed: validation rejects it.
    #[inline]
    pub unsafe fn from_raw(data: *const u8, layout: Layout) -> TensorView<'a> {
        TensorView::of(data, layout)
    }

    #[inline]
    fn of(data: *const u8, layout: Layout) -> TensorView<'a> {
        TensorView { facts: Facts::of(&layout, data as usize), data, layout, memory: PhantomData }
    }

    /// A view without memory, to explain selections. Validation of a run rejects it.
    pub fn described(layout: Layout) -> TensorView<'static> {
        TensorView::of(std::ptr::null(), layout)
    }

    /// The elements as a slice, if the view is dense, on the host, aligned and of this type.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        if self.layout.dtype != T::DTYPE
            || !self.layout.device.is_host()
            || !self.is_contiguous()
            || !self.is_sound()
        {
            return None;
        }
        let elements = self.elements() as usize;
        if elements == 0 {
            return Some(&[]);
        }
        // SAFETY: dense, sound and aligned, so `elements` values of T start at `data`; the view's creator guarantees the memory.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), elements) })
    }

    /// The element at an index as f64 (integers beyond 2^53 round); NaN if the index is out of range or the memory is not on the host.
    #[inline]
    pub fn at(&self, index: &[i64]) -> f64 {
        match self.element(index) {
            // SAFETY: `element` returns only addresses of elements inside the view.
            Some(address) => unsafe { crate::element::load_f64(self.layout.dtype, address) },
            None => f64::NAN,
        }
    }

    /// The element at an index as an integer (floats truncate); 0 if the index is out of range or the memory is not on the host.
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
        if !self.layout.device.is_host() || self.data.is_null() {
            return None;
        }
        Some(self.data.wrapping_offset(offset.wrapping_mul(self.layout.dtype.size() as isize)))
    }

    /// The same memory as integers of the same width, for bitwise copies (NaN payloads, packed nibbles).
    #[inline]
    pub fn bits(&self) -> TensorView<'a> {
        TensorView::of(self.data, self.layout.as_bits())
    }

    /// A slice of the first dimension from `start` on; `None` if out of range.
    pub fn leading(&self, start: i64, count: i64) -> Option<TensorView<'a>> {
        let (layout, offset) = self.layout.leading(start, count)?;
        Some(TensorView::of(self.data.wrapping_offset(offset), layout))
    }

    /// One row as a slice: the last dimension at a leading index, if it is dense, on the host, aligned, of this type and in range.
    #[inline]
    pub fn row<T: Element>(&self, leading: &[i64]) -> Option<&'a [T]> {
        let (start, width) = self.row_location::<T>(leading)?;
        // SAFETY: `row_location` found the row inside the view, dense, aligned and of type T; the view's creator guarantees the memory.
        Some(unsafe { std::slice::from_raw_parts(start.cast(), width) })
    }

    fn row_location<T: Element>(&self, leading: &[i64]) -> Option<(*const u8, usize)> {
        let (&width, _) = self.layout.shape.split_last()?;
        let usable = self.layout.dtype == T::DTYPE
            && self.layout.device.is_host()
            && self.last_is_dense()
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
    /// Created from a writable address; only borrowed while nothing writes.
    view: TensorView<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an exclusive borrow of plain bytes may move to another thread.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: a shared reference to it only reads.
unsafe impl Sync for TensorMut<'_> {}

impl<'a> TensorMut<'a> {
    shared_by_views!(self, self.view);

    /// An empty view, which validation rejects.
    #[inline(always)]
    pub const fn empty() -> TensorMut<'a> {
        TensorMut { view: TensorView::empty(), memory: PhantomData }
    }

    /// The description of the memory, to be [redirected](TensorView::describe) in place.
    ///
    /// # Safety
    /// It must describe memory as [`TensorMut::from_raw`] requires, and must not be read from while
    /// `self` is written through.
    #[inline(always)]
    pub unsafe fn description(&mut self) -> &mut TensorView<'a> {
        &mut self.view
    }

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
        Ok(TensorMut::of(data.as_mut_ptr().wrapping_add(start).cast(), layout))
    }

    /// A view of foreign memory.
    ///
    /// # Safety
    /// If the layout [is sound](Layout::is_sound) and the memory is on the host, every element it can reach from `data` must
    /// stay readable and writable, and not be accessed otherwise, for `'a`. Unsound metadata is allowed: validation rejects it.
    #[inline]
    pub unsafe fn from_raw(data: *mut u8, layout: Layout) -> TensorMut<'a> {
        TensorMut::of(data, layout)
    }

    #[inline]
    fn of(data: *mut u8, layout: Layout) -> TensorMut<'a> {
        TensorMut { view: TensorView::of(data, layout), memory: PhantomData }
    }

    /// Reborrows the same memory exclusively.
    #[inline(always)]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { view: self.view.copied(), memory: PhantomData }
    }

    /// A second view of the same memory. Generated dispatch passes a tensor that is mutated in place to the running kernel.
    ///
    /// # Safety
    /// `self` must not be read through while the copy is written.
    #[inline(always)]
    pub unsafe fn duplicate(&self) -> TensorMut<'a> {
        TensorMut { view: self.view.copied(), memory: PhantomData }
    }

    /// A read-only view.
    #[inline]
    pub fn as_view(&self) -> TensorView<'_> {
        self.view.copied()
    }

    /// A read-only view by reference.
    #[inline(always)]
    pub fn view(&self) -> &TensorView<'_> {
        &self.view
    }

    /// The elements as a slice, if the view is dense, on the host, aligned and of this type.
    #[inline]
    pub fn as_slice_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        let elements = self.view.as_slice::<T>()?.len();
        if elements == 0 {
            return Some(&mut []);
        }
        // SAFETY: `as_slice` found the view dense, sound, aligned and of type T; the borrow is exclusive.
        Some(unsafe { std::slice::from_raw_parts_mut(self.view.data.cast_mut().cast(), elements) })
    }

    /// Writes one element, rounded to the element type (nearest even, saturating for integers and for 8- and 4-bit floats); ignored if out of range.
    #[inline]
    pub fn set(&mut self, index: &[i64], value: f64) {
        if let Some(address) = self.element(index) {
            // SAFETY: `element` returns only addresses of elements inside the view, which is borrowed exclusively.
            unsafe { crate::element::store_f64(self.view.layout.dtype, address, value) }
        }
    }

    /// Writes one integer element, saturating; ignored if out of range.
    #[inline]
    pub fn set_int(&mut self, index: &[i64], value: i64) {
        if let Some(address) = self.element(index) {
            // SAFETY: as in `set`.
            unsafe { crate::element::store_i64(self.view.layout.dtype, address, value) }
        }
    }

    #[inline]
    fn element(&self, index: &[i64]) -> Option<*mut u8> {
        self.view.element(index).map(<*const u8>::cast_mut)
    }

    /// The same memory as integers of the same width, for bitwise copies (NaN payloads, packed nibbles).
    #[inline]
    pub fn bits_mut(&mut self) -> TensorMut<'_> {
        TensorMut::of(self.as_mut_ptr(), self.view.layout.as_bits())
    }

    /// A writable slice of the first dimension; see [`TensorView::leading`].
    pub fn leading_mut(&mut self, start: i64, count: i64) -> Option<TensorMut<'_>> {
        let (layout, offset) = self.view.layout.leading(start, count)?;
        Some(TensorMut::of(self.as_mut_ptr().wrapping_offset(offset), layout))
    }

    /// One row as a writable slice; see [`TensorView::row`].
    #[inline]
    pub fn row_mut<T: Element>(&mut self, leading: &[i64]) -> Option<&mut [T]> {
        let (start, width) = self.view.row_location::<T>(leading)?;
        // SAFETY: `row_location` found the row inside the view, dense, aligned and of type T; the borrow is exclusive.
        Some(unsafe { std::slice::from_raw_parts_mut(start.cast_mut().cast(), width) })
    }

    /// The address of the first element, for kernels.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.data.cast_mut()
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
