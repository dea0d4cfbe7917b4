//! Reproducers: one safetensors file with a call, the wrong result of a kernel and the expected one. The tensors are named
//! `input.NAME`, `found.NAME` and `expected.NAME`; everything else is JSON in the metadata.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lz_files::MappedFile;
use lz_schema::expr::Value;
use lz_schema::model::{Operation, ParamType};
use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::telemetry::Sample;
use lz_core::operation::OperationInfo;
use lz_core::recorded::{RecordedArg, RecordedCall, RecordedResult, RecordedTensor};
use lz_core::spec::KernelSpec;
use lz_core::tensor::{Device, Tensor};
use lz_core::{DType, dynamic};

use crate::registry::Registry;

/// The format that this release writes and reads.
const FORMAT: u32 = 1;
/// The key of the JSON in the metadata.
const KEY: &str = "layerzero.reproducer";
/// Alignment of the first tensor in the file.
const ALIGNMENT: usize = 64;

/// A kernel, as it was when the reproducer was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelIdentity {
    /// Its id.
    pub id: String,
    /// Its version.
    pub version: String,
    /// Its backend.
    pub backend: String,
}

impl KernelIdentity {
    fn of(spec: &KernelSpec) -> KernelIdentity {
        KernelIdentity { id: spec.id.clone(), version: spec.version.clone(), backend: spec.backend.clone() }
    }
}

/// The JSON part of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    format: u32,
    operation: String,
    version: u32,
    digest: String,
    schema_path: String,
    schema: String,
    kernel: KernelIdentity,
    judge: KernelIdentity,
    difference: String,
    device: String,
    bucket: Vec<u64>,
    layerzero: String,
    platform: String,
    /// Seconds since 1970.
    created: u64,
    args: Vec<(String, ArgRecord)>,
    results: Vec<(String, ResultPair)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ArgRecord {
    Absent,
    Tensor {
        dtype: DType,
        strides: Vec<i64>,
        device: String,
        read_write: bool,
    },
    Text(Vec<String>),
    Int(i64),
    /// As text: JSON has no infinities.
    Float(String),
    Bool(bool),
    Case {
        name: String,
        number: u32,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResultRecord {
    Absent,
    Tensor { dtype: DType },
    Text(Vec<String>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ResultPair {
    found: ResultRecord,
    expected: ResultRecord,
}

/// A call with the wrong result of a kernel and the expected one.
#[derive(Debug)]
pub struct Reproducer {
    record: Record,
    /// The arguments and the results of the kernel.
    pub call: RecordedCall,
    /// The results of the judge.
    pub expected: Vec<RecordedResult>,
}

/// Why a file is not a usable reproducer.
#[derive(Debug)]
pub struct ReproducerError {
    path: PathBuf,
    message: String,
}

impl std::fmt::Display for ReproducerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for ReproducerError {}

impl Reproducer {
    /// The wrong result of a kernel.
    pub(super) fn of_sample(
        sample: &Sample,
        judge: &KernelSpec,
        difference: &str,
        expected: Vec<RecordedResult>,
        created: u64,
    ) -> Reproducer {
        let operation = sample.operation;
        let schema = operation.schema();
        let args = argument_names(schema).zip(&sample.call.args).enumerate();
        let args = args.map(|(position, (name, arg))| (name, arg_record(schema, position, arg))).collect();
        let results = result_names(schema).zip(sample.call.results.iter().zip(&expected));
        let results = results.map(|(name, (found, expected))| {
            (name, ResultPair { found: ResultRecord::of(found), expected: ResultRecord::of(expected) })
        });
        let record = Record {
            format: FORMAT,
            operation: operation.name.to_string(),
            version: operation.version,
            digest: operation.digest.to_string(),
            schema_path: operation.path.to_string(),
            schema: operation.yaml.to_string(),
            kernel: KernelIdentity::of(&sample.entry.spec),
            judge: KernelIdentity::of(judge),
            difference: difference.to_owned(),
            device: sample.device.clone(),
            bucket: sample.bucket.clone(),
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            created,
            args,
            results: results.collect(),
        };
        Reproducer { record, call: sample.call.clone(), expected }
    }

    /// The name of the operation.
    pub fn operation(&self) -> &str {
        &self.record.operation
    }

    /// The kernel that returned the wrong result.
    pub fn kernel(&self) -> &KernelIdentity {
        &self.record.kernel
    }

    /// The kernel that returned the expected result.
    pub fn judge(&self) -> &KernelIdentity {
        &self.record.judge
    }

    /// The first difference when it was recorded.
    pub fn difference(&self) -> &str {
        &self.record.difference
    }

    /// The names of the arguments (inputs, then params), as in the file.
    pub fn argument_names(&self) -> impl Iterator<Item = &str> {
        self.record.args.iter().map(|(name, _)| name.as_str())
    }

    /// The operation: the registered one if it has the same name, otherwise that of the file.
    pub fn find_operation(&self, registry: &Registry) -> Result<&'static OperationInfo, lz_core::Error> {
        match registry.operation(&self.record.operation) {
            Some(operation) => Ok(operation),
            None => dynamic::read_operation(&self.record.schema_path, &self.record.schema),
        }
    }

    /// Whether an operation has the contract that the call was made under.
    pub fn is_same_contract(&self, operation: &OperationInfo) -> bool {
        self.record.digest == operation.digest
    }

    /// Writes a new file into a folder, readable by this user only: it contains data of the program.
    pub fn save_in(&self, folder: &Path) -> io::Result<PathBuf> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(folder)?;
        let record = &self.record;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let kernel: String = record
            .kernel
            .id
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' })
            .collect();
        let process = std::process::id();
        let name = format!("{}-{kernel}-{}-{process}-{number}.safetensors", record.operation, record.created);
        let path = folder.join(name);
        self.save(&path)?;
        Ok(path)
    }

    /// Writes the file. It appears only when it is complete.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let metadata = serde_json::to_string(&self.record)?;
        let temporary = path.with_extension("tmp");
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let written = create()
            .and_then(|file| {
                write(file, BTreeMap::from([(KEY, metadata)]), &self.tensors(), &BTreeMap::new())
            })
            .and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            fs::remove_file(&temporary).ok();
        }
        written
    }

    /// Writes the input tensors under their names in the schema, with these shapes, as safetensors.
    pub fn save_inputs(&self, path: &Path, shapes: &BTreeMap<String, Vec<i64>>) -> io::Result<()> {
        let args = self.record.args.iter().zip(&self.call.args);
        let tensors: Vec<(String, &Tensor)> = args
            .filter_map(|((name, _), arg)| match arg {
                RecordedArg::Tensor(tensor) => Some((name.clone(), &tensor.data)),
                _ => None,
            })
            .collect();
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        write(file, BTreeMap::from([("format", "pt".to_owned())]), &tensors, shapes)
    }

    /// All tensors by their names in the file.
    fn tensors(&self) -> Vec<(String, &Tensor)> {
        let args = self.record.args.iter().zip(&self.call.args).filter_map(|((name, _), arg)| match arg {
            RecordedArg::Tensor(tensor) => Some((format!("input.{name}"), &tensor.data)),
            _ => None,
        });
        let named = |prefix: &'static str| self.record.results.iter().map(move |(name, _)| (prefix, name));
        let found = named("found").zip(&self.call.results);
        let results = found.chain(named("expected").zip(&self.expected));
        let results = results.filter_map(|((prefix, name), result)| match result {
            RecordedResult::Tensor(tensor) => Some((format!("{prefix}.{name}"), tensor)),
            _ => None,
        });
        args.chain(results).collect()
    }

    /// Reads a file. Nothing in it is trusted.
    pub fn load(path: &Path) -> Result<Reproducer, ReproducerError> {
        let error = |message: String| ReproducerError { path: path.to_owned(), message };
        let file = MappedFile::open(path).map_err(|problem| error(format!("cannot be read: {problem}")))?;
        read(file.bytes()).map_err(error)
    }
}

fn argument_names(schema: &Operation) -> impl Iterator<Item = String> {
    let inputs = schema.inputs.iter().map(|input| input.name.clone());
    inputs.chain(schema.params.iter().map(|param| param.name.clone()))
}

fn result_names(schema: &Operation) -> impl Iterator<Item = String> {
    let changed = schema.inputs.iter().filter(|input| input.read_write);
    schema.outputs.iter().map(|output| output.name.clone()).chain(changed.map(|input| input.name.clone()))
}

fn arg_record(schema: &Operation, position: usize, arg: &RecordedArg) -> ArgRecord {
    match arg {
        RecordedArg::Absent => ArgRecord::Absent,
        RecordedArg::Tensor(tensor) => ArgRecord::Tensor {
            dtype: tensor.data.dtype(),
            strides: tensor.strides.clone(),
            device: tensor.device.to_string(),
            read_write: tensor.read_write,
        },
        RecordedArg::Text(texts) => ArgRecord::Text(texts.clone()),
        RecordedArg::Value(value) => {
            let param = position.checked_sub(schema.inputs.len()).and_then(|param| schema.params.get(param));
            match (*value, param.map(|param| &param.ty)) {
                (Value::Enum(number), Some(ParamType::Enum(cases))) => {
                    let name = cases.get(number as usize).cloned().unwrap_or_default();
                    ArgRecord::Case { name, number }
                }
                (Value::Enum(number), _) => ArgRecord::Case { name: String::new(), number },
                (Value::Int(value), _) => ArgRecord::Int(value),
                (Value::Float(value), _) => ArgRecord::Float(format!("{value:?}")),
                (Value::Bool(value), _) => ArgRecord::Bool(value),
            }
        }
    }
}

impl ResultRecord {
    fn of(result: &RecordedResult) -> ResultRecord {
        match result {
            RecordedResult::Absent => ResultRecord::Absent,
            RecordedResult::Tensor(tensor) => ResultRecord::Tensor { dtype: tensor.dtype() },
            RecordedResult::Text(texts) => ResultRecord::Text(texts.clone()),
        }
    }
}

/// Writes tensors as safetensors; `shapes` replaces some of their shapes.
fn write(
    file: File,
    metadata: BTreeMap<&str, String>,
    tensors: &[(String, &Tensor)],
    shapes: &BTreeMap<String, Vec<i64>>,
) -> io::Result<()> {
    let mut header = BTreeMap::from([("__metadata__".to_owned(), json!(metadata))]);
    let mut offset = 0;
    for (name, tensor) in tensors {
        let end = offset + tensor.bytes().len();
        let dtype = safetensors_dtype(tensor.dtype());
        let shape = shapes.get(name).map_or(tensor.shape(), Vec::as_slice);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    // Trailing spaces are part of the format; they align the first tensor.
    header.resize((header.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    tensors.iter().try_for_each(|(_, tensor)| file.write_all(tensor.bytes()))?;
    file.into_inner()?.sync_all()
}

/// The name of a dtype in the file. One that safetensors does not have is stored as bytes.
fn safetensors_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E8M0 => "F8_E8M0",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 | DType::F4E2M1x2 => "U8",
        DType::Bool => "BOOL",
    }
}

fn read(bytes: &[u8]) -> Result<Reproducer, String> {
    let damaged = |what: &dyn std::fmt::Display| format!("the reproducer is damaged ({what}): copy it again");
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(&error))?;
    let entries = header.metadata().as_ref();
    let text = entries
        .and_then(|entries| entries.get(KEY))
        .ok_or("the file is no reproducer; use a file that `verify` wrote")?;
    let record: Record = serde_json::from_str(text).map_err(|error| damaged(&error))?;
    if record.format != FORMAT {
        return Err(format!("the file has format {}, this release reads format {FORMAT}", record.format));
    }
    let tensor = |name: String, dtype: DType| -> Result<Tensor, String> {
        let info = header.info(&name).ok_or_else(|| damaged(&format!("`{name}` is missing")))?;
        let expected = safetensors_dtype(dtype);
        if format!("{:?}", info.dtype) != expected {
            return Err(damaged(&format!("`{name}` is {:?}, expected {expected}", info.dtype)));
        }
        let shape: Result<Vec<i64>, _> = info.shape.iter().map(|size| i64::try_from(*size)).collect();
        let shape = shape.map_err(|error| damaged(&error))?;
        let mut tensor = Tensor::zeros(&shape, dtype).map_err(|reason| damaged(&reason))?;
        let (start, end) = info.data_offsets;
        let data = bytes.get(8 + length + start..8 + length + end).unwrap_or_default();
        if data.len() != tensor.bytes().len() {
            return Err(damaged(&format!("`{name}` has {} bytes", data.len())));
        }
        tensor.bytes_mut().copy_from_slice(data);
        Ok(tensor)
    };
    let mut call = RecordedCall::default();
    for (name, arg) in &record.args {
        call.args.push(match arg {
            ArgRecord::Absent => RecordedArg::Absent,
            ArgRecord::Tensor { dtype, strides, device, read_write } => {
                let data = tensor(format!("input.{name}"), *dtype)?;
                let (strides, read_write) = (strides.clone(), *read_write);
                let device =
                    parse_device(device).ok_or_else(|| damaged(&format!("`{name}` is on {device}")))?;
                RecordedArg::Tensor(RecordedTensor { data, strides, device, read_write })
            }
            ArgRecord::Text(texts) => RecordedArg::Text(texts.clone()),
            ArgRecord::Int(value) => RecordedArg::Value(Value::Int(*value)),
            ArgRecord::Float(text) => {
                let value = text.parse().map_err(|_| damaged(&format!("`{name}` is {text}")))?;
                RecordedArg::Value(Value::Float(value))
            }
            ArgRecord::Bool(value) => RecordedArg::Value(Value::Bool(*value)),
            ArgRecord::Case { number, .. } => RecordedArg::Value(Value::Enum(*number)),
        });
    }
    let result = |prefix: &str, name: &str, result: &ResultRecord| -> Result<RecordedResult, String> {
        Ok(match result {
            ResultRecord::Absent => RecordedResult::Absent,
            ResultRecord::Tensor { dtype } => {
                RecordedResult::Tensor(tensor(format!("{prefix}.{name}"), *dtype)?)
            }
            ResultRecord::Text(texts) => RecordedResult::Text(texts.clone()),
        })
    };
    let mut expected = Vec::with_capacity(record.results.len());
    for (name, pair) in &record.results {
        call.results.push(result("found", name, &pair.found)?);
        expected.push(result("expected", name, &pair.expected)?);
    }
    Ok(Reproducer { record, call, expected })
}

/// A device by its name, as in `cuda:0`.
fn parse_device(text: &str) -> Option<Device> {
    let (platform, index) = text.split_once(':')?;
    Some(Device { platform: platform.parse().ok()?, index: index.parse().ok()? })
}
