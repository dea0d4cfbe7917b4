//! Plain tensors, read from torch's own records. The exchange functions cost as much as everything else in a call, so what
//! nearly every tensor is, dense or strided elements of the host or of a GPU and nothing more, is read without them.
//!
//! Where things stand in a record is not promised by torch. So it is not assumed: it is learned from tensors of the running
//! torch, compared with what the exchange functions say of others, and where anything is not exactly as it must be, nothing
//! is read here. A tensor that is anything but plain (on another device, sparse, still to be negated or copied, of a mode or a
//! subclass that computes differently) has other dispatch keys or a storage that is marked, and is left to those functions.
//! What tensors of a GPU look like is learned when the first one comes.

use lz_core::DType;
use lz_core::TensorView;
use lz_core::device::Platform;
use lz_core::tensor::Place;
use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use super::super::capsule;
use super::super::layout::{Borrow, DLTensor};
use super::peek::{Peek, WORDS, record};
use super::stable::Stable;

/// Dimensions that a record has room for; of more it holds a pointer.
const ROOM: usize = 5;
/// Words of a storage's record that are looked at; it has not been smaller in any torch 2.
const STORAGE_WORDS: usize = 9;
/// torch's number of the device type, in its records and everywhere else.
const CUDA: u8 = 1;
/// torch's dtypes have smaller numbers.
const DTYPES: usize = 64;

/// What torch's numbers of dtypes mean.
type Meanings = [Option<DType>; DTYPES];
/// A word, and by how many bits something is shifted there.
type Shifted = (usize, u32);

/// The dispatch keys of plain tensors, and of those that were made in inference mode.
type Keys = [u64; 2];

/// Where a plain tensor says what it is.
pub struct Plain {
    words: usize,
    autograd: usize,
    keys: usize,
    plain: Keys,
    /// Word of the rank; the sizes follow, then the strides, then the offset into the storage.
    rank: usize,
    storage: usize,
    /// Word and shift of the dtype's number.
    dtype: Shifted,
    dtypes: Meanings,
    /// Word of the storage's record with the address of its memory.
    data: usize,
    /// Word and shift of 16 bits that say where it is: the device's type, and its index.
    device: Option<Shifted>,
    /// The same as `plain` for tensors of a GPU, once one came; nothing where what was found is not what must be there.
    cuda: PyOnceLock<Option<Keys>>,
    /// Word and bits of the storage's record that are 0 unless touching its memory means more than that.
    marks: (usize, u64),
}

impl Plain {
    /// Learns from tensors where to look.
    pub fn learn(torch: &Bound<'_, PyAny>, stable: &Stable, peek: &Peek, borrow: Borrow) -> Option<Plain> {
        let samples = Samples { torch, words: peek.words };
        let (sizes, strides, offset) = ([3, 4, 6, 2, 7], [1009, 251, 41, 19, 2], 17);
        let strided = samples.strided(&sizes, &strides, offset).ok()?;
        let (words, storage) = (samples.record(&strided)?, samples.storage(&strided)?);
        let mut expected = vec![ROOM as u64];
        expected.extend(sizes.iter().chain(&strides).map(|&number| number as u64));
        expected.push(offset as u64);
        let rank = only((0..WORDS).filter(|&at| words[at..].starts_with(&expected)))?;
        let storage_word = only((0..WORDS).filter(|&at| words[at] == storage.address))?;
        let (data, marks) = samples.memory()?;
        let (dtype, dtypes) = samples.dtypes(stable)?;
        let keys = |tensor: &Bound<'_, PyAny>| samples.record(tensor).map(|words| words[peek.keys]);
        let plain = [keys(&samples.empty("float32").ok()?)?, keys(&samples.of_inference().ok()?)?];
        let device = samples.device();
        let learned = Plain {
            words: peek.words,
            device,
            cuda: PyOnceLock::new(),
            autograd: peek.autograd,
            keys: peek.keys,
            plain,
            rank,
            storage: storage_word,
            dtype,
            dtypes,
            data,
            marks,
        };
        samples.all().ok()?.iter().all(|tensor| learned.agrees(tensor, borrow, None)).then_some(learned)
    }

    /// Describes a tensor, if it is plain, and says whether it can want a gradient.
    ///
    /// # Safety
    /// The object is a tensor of the torch that was learned from.
    #[inline(always)]
    pub unsafe fn describe(
        &self,
        tensor: Borrowed<'_, '_, PyAny>,
        view: &mut TensorView<'_>,
    ) -> Option<bool> {
        // SAFETY: promised by the caller.
        unsafe { self.describe_with(tensor, view, || self.cuda.get(tensor.py()).copied().flatten()) }
    }

    /// The same with these dispatch keys of a GPU's tensors.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn describe_with(
        &self,
        tensor: Borrowed<'_, '_, PyAny>,
        view: &mut TensorView<'_>,
        cuda: impl FnOnce() -> Option<Keys>,
    ) -> Option<bool> {
        // SAFETY: every tensor object has this form, and every record these words; it was checked on many.
        unsafe {
            let record = *tensor.as_ptr().byte_add(size_of::<ffi::PyObject>()).cast::<*const u64>();
            let keys = *record.add(self.keys);
            let rank = *record.add(self.rank) as usize;
            let storage = *record.add(self.storage).cast::<*const u64>();
            let number = *record.add(self.dtype.0) >> self.dtype.1 & 0xffff;
            let dtype = self.dtypes.get(number as usize).copied().flatten();
            let place = if self.plain.contains(&keys) {
                Place::HOST
            } else {
                let (word, shift) =
                    self.device.filter(|_| cuda().is_some_and(|cuda| cuda.contains(&keys)))?;
                let [device, index] = ((*record.add(word) >> shift) as u16).to_le_bytes();
                let place = Place { platform: Platform::Cuda, index: u16::from(index) };
                (device == CUDA).then_some(place)?
            };
            let is_plain = rank <= ROOM && !storage.is_null();
            let (true, Some(dtype)) = (is_plain, dtype) else { return None };
            if *storage.add(self.marks.0) & self.marks.1 != 0 {
                return None;
            }
            let sizes = record.add(self.rank + 1).cast::<i64>();
            let offset = *sizes.add(2 * ROOM) as usize;
            let memory = *storage.add(self.data).cast::<*const u8>();
            let data = memory.wrapping_add(offset << dtype.size().trailing_zeros());
            view.describe(data, rank, (dtype, place), |at| (*sizes.add(at), *sizes.add(ROOM + at)));
            Some(*record.add(self.autograd) != 0)
        }
    }

    /// Looks at tensors like the first one of a GPU, so that the following ones are read here.
    #[inline]
    pub fn learn_cuda(&self, py: Python<'_>, index: i32, borrow: Borrow) {
        if self.cuda.get(py).is_none() {
            let keys = py.import("torch").ok().and_then(|torch| self.cuda_keys(&torch, index, borrow));
            // Another thread may have been first; what it found is the same.
            self.cuda.set(py, keys).ok();
        }
    }

    #[cold]
    fn cuda_keys(&self, torch: &Bound<'_, PyAny>, index: i32, borrow: Borrow) -> Option<Keys> {
        let samples = Samples { torch, words: self.words };
        let make = || samples.on(&format!("cuda:{index}"));
        let (usual, inferred) = (make().ok()?, samples.in_inference(make).ok()?);
        let keys = |tensor: &Bound<'_, PyAny>| samples.record(tensor).map(|words| words[self.keys]);
        let found = [keys(&usual)?, keys(&inferred)?];
        let turned = usual.call_method1("transpose", (0, 1)).ok()?;
        [&usual, &inferred, &turned].iter().all(|one| self.agrees(one, borrow, Some(found))).then_some(found)
    }

    /// Whether it sees in a tensor what the exchange function does.
    fn agrees(&self, tensor: &Bound<'_, PyAny>, borrow: Borrow, cuda: Option<Keys>) -> bool {
        let (mut ours, mut theirs, mut lent) = (TensorView::empty(), TensorView::empty(), DLTensor::EMPTY);
        // SAFETY: tensors of this torch, which are alive; the function fills the structure or sets an exception.
        let (seen, filled) = unsafe {
            (
                self.describe_with(tensor.as_borrowed(), &mut ours, || cuda),
                borrow(tensor.as_ptr().cast(), &raw mut lent) == 0
                    && capsule::describe(&lent, &mut theirs).is_ok(),
            )
        };
        drop(PyErr::take(tensor.py()));
        // The stride of a dimension without neighbours means nothing, and the function says 1 there.
        let steps = ours.shape().iter().zip(ours.strides().iter().zip(theirs.strides()));
        seen.is_some()
            && filled
            && (ours.shape(), ours.dtype(), ours.place()) == (theirs.shape(), theirs.dtype(), theirs.place())
            && steps.filter(|(size, _)| **size > 1).all(|(_, (our, their))| our == their)
            && (ours.elements() == 0 || ours.as_ptr() == theirs.as_ptr())
    }
}

/// The one that there is, if there is exactly one.
fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// A storage's record.
struct StorageRecord {
    address: u64,
    words: [u64; STORAGE_WORDS],
}

/// Makes the tensors that are learned from.
struct Samples<'t, 'py> {
    torch: &'t Bound<'py, PyAny>,
    /// How many words a tensor's record has.
    words: usize,
}

impl<'py> Samples<'_, 'py> {
    fn record(&self, tensor: &Bound<'_, PyAny>) -> Option<[u64; WORDS]> {
        record(tensor, self.words)
    }

    fn empty(&self, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(self.torch.py());
        keywords.set_item("dtype", self.torch.getattr(dtype)?)?;
        self.torch.call_method("empty", ((4, 5),), Some(&keywords))
    }

    fn of_inference(&self) -> PyResult<Bound<'py, PyAny>> {
        self.in_inference(|| self.empty("float32"))
    }

    fn in_inference(
        &self,
        make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mode = self.torch.call_method0("inference_mode")?;
        mode.call_method0("__enter__")?;
        let made = make();
        let none = self.torch.py().None();
        mode.call_method1("__exit__", (&none, &none, &none))?;
        made
    }

    fn on(&self, device: &str) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(self.torch.py());
        keywords.set_item("device", device)?;
        self.torch.call_method("empty", ((4, 5),), Some(&keywords))
    }

    /// Where a record says on which device a tensor is: 0 is the host and 14 no device at all, and neither has an index.
    fn device(&self) -> Option<Shifted> {
        let (host, meta) = (self.record(&self.on("cpu").ok()?)?, self.record(&self.on("meta").ok()?)?);
        let found = (0..WORDS).flat_map(|word| (0..=48).step_by(8).map(move |shift| (word, shift)));
        only(found.filter(|&(word, shift)| {
            (host[word] >> shift & 0xffff, meta[word] >> shift & 0xffff) == (0xff00, 0xff0e)
        }))
    }

    fn strided(&self, sizes: &[i64], strides: &[i64], offset: i64) -> PyResult<Bound<'py, PyAny>> {
        let base = self.torch.call_method1("empty", (8192,))?;
        base.call_method1("as_strided", (sizes.to_vec(), strides.to_vec(), offset))
    }

    fn storage(&self, tensor: &Bound<'py, PyAny>) -> Option<StorageRecord> {
        let storage = tensor.call_method0("untyped_storage").ok()?;
        let address: usize = storage.getattr("_cdata").ok()?.extract().ok()?;
        // SAFETY: torch itself says where the record is; it has at least this many words.
        let words = unsafe { *std::ptr::with_exposed_provenance::<[u64; STORAGE_WORDS]>(address) };
        Some(StorageRecord { address: address as u64, words })
    }

    /// Where a storage has the address of its memory, and what marks one that is copied when it is written.
    fn memory(&self) -> Option<(usize, (usize, u64))> {
        let mut data: Vec<usize> = (0..STORAGE_WORDS).collect();
        let mut marks: Vec<usize> = (0..STORAGE_WORDS * 8).collect();
        let byte = |words: &[u64; STORAGE_WORDS], at: usize| words[at / 8] >> (at % 8 * 8) & 0xff;
        for dtype in ["float32", "float64", "int8", "float16"] {
            let plain = self.empty(dtype).ok()?;
            let before = self.storage(&plain)?;
            let address: u64 = plain.call_method0("data_ptr").ok()?.extract().ok()?;
            // From now on both share the memory until one of them is written.
            let copied = self.torch.call_method1("_lazy_clone", (&plain,)).ok()?;
            let (shared, copy) = (self.storage(&plain)?, self.storage(&copied)?);
            let holds = |words: &[u64; STORAGE_WORDS], at: usize| words[at] == address;
            data.retain(|&at| holds(&before.words, at) && holds(&shared.words, at) && holds(&copy.words, at));
            marks.retain(|&at| {
                byte(&before.words, at) == 0 && byte(&shared.words, at) == 1 && byte(&copy.words, at) == 1
            });
        }
        let word = marks.first()? / 8;
        let bits =
            marks.iter().filter(|at| *at / 8 == word).fold(0u64, |bits, at| bits | 0xff << (at % 8 * 8));
        Some((only(data.into_iter())?, (word, bits)))
    }

    /// Where a record has the number of its dtype, and what the numbers mean.
    fn dtypes(&self, stable: &Stable) -> Option<(Shifted, Meanings)> {
        let mut meanings = [None; DTYPES];
        let mut places: Vec<Shifted> =
            (0..WORDS).flat_map(|word| [0, 16, 32, 48].map(|shift| (word, shift))).collect();
        for dtype in DType::ALL {
            let (Some(number), Ok(tensor)) = (stable.number(dtype), self.empty(dtype.long_name())) else {
                continue;
            };
            let words = self.record(&tensor)?;
            places.retain(|&(word, shift)| words[word] >> shift & 0xffff == u64::from(number));
            *meanings.get_mut(usize::from(number))? = Some(dtype);
        }
        Some((only(places.into_iter())?, meanings))
    }

    /// Tensors of every rank that a record has room for, dense and not, with and without elements.
    fn all(&self) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut all =
            vec![self.of_inference()?, self.strided(&[2, 3], &[1, 2], 5)?, self.strided(&[], &[], 3)?];
        for sizes in [&[][..], &[7], &[2, 3], &[1, 4, 2], &[2, 0, 3], &[2, 1, 3, 2], &[1, 2, 3, 4, 5]] {
            let base = self.torch.call_method1("empty", (sizes.to_vec(),))?;
            if sizes.len() > 1 {
                all.push(base.call_method1("transpose", (0, 1))?);
                all.push(base.call_method1("narrow", (0, 1, sizes[0] - 1))?);
            }
            all.push(base);
        }
        for dtype in ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"] {
            all.push(self.empty(dtype)?);
        }
        Ok(all)
    }
}
