//! Rows of ids as a rectangular batch: truncation with overlapping windows, pairs of texts, special tokens, padding and masks, as
//! Hugging Face's library defines them.

use std::fmt;
use std::ops::Range;

use lz_ops::tokenizer::Tokenizer;

use crate::template::{Part, added_tokens};
use crate::verification::template_of;

/// Ids of several texts, one after the other, without special tokens.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The ids.
    pub ids: &'a [i32],
    /// Start and end byte offset of each id, or empty.
    pub offsets: &'a [i64],
    /// The start of each text's ids, and their number at the end.
    pub indptr: &'a [i64],
}

impl<'a> Rows<'a> {
    fn len(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// The position of the ids of a text.
    fn range(&self, index: usize) -> Range<usize> {
        let bound = |index: usize| {
            self.indptr
                .get(index)
                .and_then(|bound| usize::try_from(*bound).ok())
                .unwrap_or(0)
                .min(self.ids.len())
        };
        bound(index)..bound(index + 1).max(bound(index))
    }
}

/// A side of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The start.
    Left,
    /// The end.
    Right,
}

/// Which text of a pair is truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// The longer one.
    LongestFirst,
    /// The first one.
    OnlyFirst,
    /// The second one.
    OnlySecond,
}

/// The length of padded rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// That of the longest row.
    Longest,
    /// [`BatchOptions::max_length`], which must be given.
    MaxLength,
    /// A given one.
    Fixed(usize),
}

/// Options of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchOptions {
    /// Whether the post-processor adds special tokens.
    pub special: bool,
    /// Maximum number of tokens of a row, with special tokens.
    pub max_length: Option<usize>,
    /// Tokens that consecutive windows of a truncated text share.
    pub stride: usize,
    /// Which text of a pair is truncated.
    pub truncation: Truncation,
    /// The side that is cut off.
    pub truncation_side: Side,
    /// Whether the windows after the first one become rows too.
    pub overflow: bool,
    /// The length of rows.
    pub padding: Padding,
    /// The length is rounded up to a multiple of this.
    pub multiple_of: usize,
    /// The side that is padded.
    pub padding_side: Side,
    /// The id of the padding token, needed if rows differ in length.
    pub pad_id: Option<u32>,
    /// Whether the batch has offsets.
    pub offsets: bool,
}

/// The id of the padding token with this text.
pub fn pad_id(tokenizer: &Tokenizer, token: &str) -> Result<u32, BatchError> {
    let unknown = || BatchError::new("pad_id", format!("`pad_id`: the tokenizer has no token '{token}'"));
    tokenizer.id_of(token).ok_or_else(unknown)
}

/// A batch: matrices of `rows` × `length` numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Number of rows.
    pub rows: usize,
    /// Number of tokens of each row.
    pub length: usize,
    /// Token ids.
    pub ids: Vec<i64>,
    /// 0 for padding, 1 for tokens.
    pub attention_mask: Vec<i64>,
    /// Type ids of the template; 0 for padding.
    pub type_ids: Vec<i64>,
    /// 1 for special tokens and padding, 0 for tokens of a text.
    pub special_mask: Vec<i64>,
    /// Start and end byte offset of each token, if they were requested; (0, 0) for special tokens and padding.
    pub offsets: Vec<i64>,
    /// The text that each row comes from.
    pub samples: Vec<i64>,
}

/// Why a batch cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchError {
    argument: &'static str,
    message: String,
}

impl BatchError {
    fn new(argument: &'static str, message: String) -> BatchError {
        BatchError { argument, message }
    }

    fn too_large(rows: usize, length: usize) -> BatchError {
        let message = format!(
            "a batch of {rows} rows of {length} tokens does not fit into memory; use fewer texts or shorter rows"
        );
        BatchError::new("padding", message)
    }

    /// The argument that is wrong: `pairs`, `tokenizer`, or the name of an option.
    pub fn argument(&self) -> &'static str {
        self.argument
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BatchError {}

/// One row: its text, and the positions of the ids of both texts.
struct Row {
    sample: usize,
    first: Range<usize>,
    second: Option<Range<usize>>,
}

/// Combines the ids of texts, or of pairs of texts, to a batch.
pub fn batch(
    tokenizer: &Tokenizer,
    first: Rows<'_>,
    second: Option<Rows<'_>>,
    options: &BatchOptions,
) -> Result<Batch, BatchError> {
    if second.is_some_and(|second| second.len() != first.len()) {
        let counts = (first.len(), second.map_or(0, |second| second.len()));
        let message = format!(
            "{} texts and {} second texts; expected pairs, one second text per text",
            counts.0, counts.1
        );
        return Err(BatchError::new("pairs", message));
    }
    let template = template_of(tokenizer).map_err(|message| BatchError::new("tokenizer", message))?;
    let mut parts = if second.is_some() { template.pair } else { template.single };
    if !options.special {
        parts.retain(|part| matches!(part, Part::Text { .. }));
    }
    let added = added_tokens(&parts);
    let mut rows = Vec::with_capacity(first.len());
    for sample in 0..first.len() {
        let ranges = (first.range(sample), second.map(|second| second.range(sample)));
        windows(sample, ranges, added, options, &mut rows)?;
    }
    let lengths: Vec<usize> =
        rows.iter().map(|row| added + row.first.len() + row.second.as_ref().map_or(0, Range::len)).collect();
    let length = padded_length(&lengths, options)?;
    let has_offsets = options.offsets;
    let mut batch = Batch::with_capacity(rows.len(), length, has_offsets)?;
    for (row, own_length) in rows.iter().zip(lengths) {
        let padding = length - own_length;
        if options.padding_side == Side::Left {
            batch.pad(padding, options, has_offsets);
        }
        for part in &parts {
            match part {
                Part::Special { ids, type_id } => {
                    ids.iter().for_each(|id| {
                        batch.push(i64::from(*id), *type_id, true, has_offsets.then_some((0, 0)))
                    });
                }
                Part::Text { second: false, type_id } => {
                    batch.text(&first, row.first.clone(), *type_id, has_offsets)
                }
                Part::Text { second: true, type_id } => {
                    if let (Some(second), Some(range)) = (&second, &row.second) {
                        batch.text(second, range.clone(), *type_id, has_offsets);
                    }
                }
            }
        }
        if options.padding_side == Side::Right {
            batch.pad(padding, options, has_offsets);
        }
        batch.samples.push(row.sample as i64);
    }
    Ok(batch)
}

impl Batch {
    /// An empty batch with memory for its matrices.
    fn with_capacity(rows: usize, length: usize, has_offsets: bool) -> Result<Batch, BatchError> {
        let too_large = || BatchError::too_large(rows, length);
        let tokens = rows.checked_mul(length).ok_or_else(too_large)?;
        let offsets = if has_offsets { tokens.checked_mul(2).ok_or_else(too_large)? } else { 0 };
        let matrix = |count: usize| {
            let mut matrix = Vec::new();
            matrix.try_reserve_exact(count).map(|()| matrix).map_err(|_| too_large())
        };
        Ok(Batch {
            rows,
            length,
            ids: matrix(tokens)?,
            attention_mask: matrix(tokens)?,
            type_ids: matrix(tokens)?,
            special_mask: matrix(tokens)?,
            offsets: matrix(offsets)?,
            samples: matrix(rows)?,
        })
    }

    fn push(&mut self, id: i64, type_id: u32, special: bool, offsets: Option<(i64, i64)>) {
        self.ids.push(id);
        self.attention_mask.push(1);
        self.type_ids.push(i64::from(type_id));
        self.special_mask.push(i64::from(special));
        self.offsets.extend(offsets.into_iter().flat_map(|(start, end)| [start, end]));
    }

    fn text(&mut self, rows: &Rows<'_>, range: Range<usize>, type_id: u32, has_offsets: bool) {
        for position in range {
            let offset = |index: usize| rows.offsets.get(index).copied().unwrap_or(0);
            let offsets = has_offsets.then(|| (offset(2 * position), offset(2 * position + 1)));
            self.push(i64::from(rows.ids[position]), type_id, false, offsets);
        }
    }

    fn pad(&mut self, count: usize, options: &BatchOptions, has_offsets: bool) {
        let id = options.pad_id.map_or(0, i64::from);
        self.ids.extend(std::iter::repeat_n(id, count));
        self.attention_mask.extend(std::iter::repeat_n(0, count));
        self.type_ids.extend(std::iter::repeat_n(0, count));
        self.special_mask.extend(std::iter::repeat_n(1, count));
        self.offsets.extend(std::iter::repeat_n(0, if has_offsets { 2 * count } else { 0 }));
    }
}

fn padded_length(lengths: &[usize], options: &BatchOptions) -> Result<usize, BatchError> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let positive = |name| {
        let message = format!("`{name}` must be an integer of at least 1, not 0");
        BatchError::new(name, message)
    };
    let length = match options.padding {
        Padding::Longest => longest,
        Padding::MaxLength => options.max_length.ok_or_else(|| {
            let message = "`padding` is 'max_length', but `max_length` is not given".to_owned();
            BatchError::new("padding", message)
        })?,
        Padding::Fixed(0) => return Err(positive("padding")),
        Padding::Fixed(length) => length,
    };
    if options.multiple_of == 0 {
        return Err(positive("pad_to_multiple_of"));
    }
    let rounded = length.checked_next_multiple_of(options.multiple_of);
    let length = rounded.ok_or_else(|| BatchError::too_large(lengths.len(), length))?;
    if longest > length {
        let message = format!(
            "a row has {longest} tokens, but rows are padded to {length}; set `max_length` to truncate"
        );
        return Err(BatchError::new("padding", message));
    }
    if options.pad_id.is_none()
        && let Some(shorter) = lengths.iter().find(|found| **found < length)
    {
        let message = format!("a row of {shorter} tokens must be padded to {length}; set `pad_id`");
        return Err(BatchError::new("pad_id", message));
    }
    Ok(length)
}

/// Appends the rows of a text or pair, truncated if it has too many tokens.
fn windows(
    sample: usize,
    (first, second): (Range<usize>, Option<Range<usize>>),
    added: usize,
    options: &BatchOptions,
    rows: &mut Vec<Row>,
) -> Result<(), BatchError> {
    let (n1, n2) = (first.len(), second.as_ref().map_or(0, Range::len));
    let limit = match options.max_length {
        None => usize::MAX,
        Some(max_length) if max_length <= added => {
            let message = format!(
                "`max_length` {max_length} leaves no room for text: {added} special tokens are added; set it to at least {}",
                added + 1
            );
            return Err(BatchError::new("max_length", message));
        }
        Some(max_length) => max_length - added,
    };
    if n1 + n2 <= limit {
        rows.push(Row { sample, first, second });
        return Ok(());
    }
    let (kept1, kept2) = kept_lengths(n1, n2, second.is_some(), limit, options.truncation)?;
    let firsts = parts(first, kept1, options)?;
    let seconds = second.map(|second| parts(second, kept2, options)).transpose()?;
    let row = |first: &Range<usize>, second: Option<&Range<usize>>| Row {
        sample,
        first: first.clone(),
        second: second.cloned(),
    };
    let main = seconds.as_ref().map(|seconds| &seconds[0]);
    rows.push(row(&firsts[0], main));
    if !options.overflow {
        return Ok(());
    }
    let further = firsts.len().saturating_mul(seconds.as_ref().map_or(1, Vec::len));
    rows.try_reserve(further)
        .map_err(|_| BatchError::too_large(rows.len().saturating_add(further), added + kept1 + kept2))?;
    // All further windows of the first text with all of the second, then the first window with the further ones of the second.
    for first in &firsts[1..] {
        rows.push(row(first, main));
        rows.extend(seconds.iter().flat_map(|seconds| &seconds[1..]).map(|second| row(first, Some(second))));
    }
    rows.extend(seconds.iter().flat_map(|seconds| &seconds[1..]).map(|second| row(&firsts[0], Some(second))));
    Ok(())
}

/// How many tokens of both texts are kept, if they have more than `limit`.
fn kept_lengths(
    n1: usize,
    n2: usize,
    is_pair: bool,
    limit: usize,
    truncation: Truncation,
) -> Result<(usize, usize), BatchError> {
    let removed = n1 + n2 - limit;
    let too_short = |which: &str| {
        let message = format!(
            "the {which} text is too short to be truncated by {removed} tokens; truncate the longest text instead"
        );
        BatchError::new("truncation", message)
    };
    match truncation {
        Truncation::LongestFirst if is_pair => {
            let (shorter, longer_first) = (n1.min(n2), n1 > n2);
            // Both are truncated to half of the limit if the shorter one has more.
            let (short, long) = if 2 * shorter > limit {
                (limit / 2, limit / 2 + limit % 2)
            } else {
                (shorter, limit - shorter)
            };
            Ok(if longer_first { (long, short) } else { (short, long) })
        }
        Truncation::LongestFirst | Truncation::OnlyFirst => {
            if n1 > removed || !is_pair {
                Ok((n1 - removed, n2))
            } else {
                Err(too_short("first"))
            }
        }
        Truncation::OnlySecond if !is_pair => Err(BatchError::new(
            "truncation",
            "there is no second text to truncate; truncate the longest text instead".to_owned(),
        )),
        Truncation::OnlySecond => {
            if n2 > removed {
                Ok((n1, n2 - removed))
            } else {
                Err(too_short("second"))
            }
        }
    }
}

/// The windows of at most `length` tokens of a text; each shares `stride` tokens with the one before.
fn parts(
    range: Range<usize>,
    length: usize,
    options: &BatchOptions,
) -> Result<Vec<Range<usize>>, BatchError> {
    if length >= range.len() {
        return Ok(vec![range]);
    }
    if length == 0 {
        // As in the library: nothing of it fits, so its only overflow is all of it.
        return Ok(vec![range.start..range.start, range]);
    }
    if options.stride >= length {
        let message = format!(
            "`stride` {} must be less than the {length} tokens that `max_length` leaves for this text",
            options.stride
        );
        return Err(BatchError::new("stride", message));
    }
    let step = length - options.stride;
    let mut parts = Vec::new();
    match options.truncation_side {
        Side::Right => {
            let mut start = range.start;
            loop {
                let end = (start + length).min(range.end);
                parts.push(start..end);
                if end == range.end {
                    return Ok(parts);
                }
                start += step;
            }
        }
        Side::Left => {
            let mut end = range.end;
            loop {
                let start = end.saturating_sub(length).max(range.start);
                parts.push(start..end);
                if start == range.start {
                    return Ok(parts);
                }
                end -= step;
            }
        }
    }
}
