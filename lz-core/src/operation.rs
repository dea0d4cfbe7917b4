//! Operations as the engine sees them: name, schema and context fields.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lz_schema::model::Operation;

use crate::context::Field;

/// An operation. Generated code has one `static` per operation; run-time operations are leaked, because an operation is kept until
/// the process ends.
#[derive(Debug)]
pub struct OperationInfo {
    /// Dotted name.
    pub name: Cow<'static, str>,
    /// Contract version.
    pub version: u32,
    /// SHA-256 of the schema's text (and, of a specialization, of the general operation).
    pub digest: Cow<'static, str>,
    /// The schema's path, for messages.
    pub path: Cow<'static, str>,
    /// The schema's text.
    pub yaml: Cow<'static, str>,
    /// Fields of its contexts; the first ones are the expression slots in order.
    pub fields: Cow<'static, [Field]>,
    /// The operation of which this one is a special case.
    pub general: Option<&'static OperationInfo>,
    slot: AtomicU32,
    schema: OnceLock<Operation>,
}

static NEXT_SLOT: AtomicU32 = AtomicU32::new(1);

impl OperationInfo {
    /// For generated statics.
    pub const fn new(
        name: &'static str,
        version: u32,
        digest: &'static str,
        path: &'static str,
        yaml: &'static str,
        fields: &'static [Field],
    ) -> OperationInfo {
        OperationInfo {
            name: Cow::Borrowed(name),
            version,
            digest: Cow::Borrowed(digest),
            path: Cow::Borrowed(path),
            yaml: Cow::Borrowed(yaml),
            fields: Cow::Borrowed(fields),
            general: None,
            slot: AtomicU32::new(0),
            schema: OnceLock::new(),
        }
    }

    /// Sets the operation of which this one is a special case.
    #[must_use]
    pub const fn specializing(mut self, general: &'static OperationInfo) -> OperationInfo {
        self.general = Some(general);
        self
    }

    /// For an operation that was read at run time.
    pub fn from_schema(
        schema: Operation,
        general: Option<&'static OperationInfo>,
        path: &str,
        yaml: &str,
        fields: Vec<Field>,
    ) -> &'static OperationInfo {
        let info = OperationInfo {
            name: Cow::Owned(schema.name.clone()),
            version: schema.version,
            digest: Cow::Owned(schema.digest.clone()),
            path: Cow::Owned(path.to_owned()),
            yaml: Cow::Owned(yaml.to_owned()),
            fields: Cow::Owned(fields),
            general,
            slot: AtomicU32::new(0),
            schema: OnceLock::from(schema),
        };
        Box::leak(Box::new(info))
    }

    /// A process-wide index for tables.
    #[inline]
    pub fn slot(&self) -> u32 {
        match self.slot.load(Ordering::Relaxed) {
            0 => self.take_slot(),
            slot => slot - 1,
        }
    }

    #[cold]
    fn take_slot(&self) -> u32 {
        let slot = NEXT_SLOT.fetch_add(1, Ordering::Relaxed);
        // If two threads race, the loser's number stays unused.
        match self.slot.compare_exchange(0, slot, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => slot - 1,
            Err(winner) => winner - 1,
        }
    }

    /// The checked schema, read on first use: only invalid calls, explanations and run-time tools need it.
    pub fn schema(&self) -> &Operation {
        self.schema.get_or_init(|| {
            let general = |_: &str| self.general.map(|general| (&*general.path, &*general.yaml));
            match lz_schema::load_one_of(&self.path, &self.yaml, crate::reason::catalog(), general) {
                Ok(operation) => operation,
                // The generator checked this text, and tests compare its digest.
                Err(report) => {
                    unreachable!("the schema of {} was checked when it was generated:\n{report}", self.name)
                }
            }
        })
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}
