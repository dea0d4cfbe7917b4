//! Trust checks of plugin files: path, owner, permissions, hash, signature, format. No code of a plugin runs here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ed25519_dalek::{Signature, VerifyingKey};
use lz_core::{Reason, ReasonCode};
use lz_files as files;
use lz_files::{RegularFile, Untrusted};
use sha2::{Digest, Sha256};

use super::elf;

/// Maximum bytes of a plugin; the whole file is hashed.
const MAX_PLUGIN_BYTES: u64 = 2 << 30;

/// Maximum bytes of a signature file; a signature has 64.
const MAX_SIGNATURE_BYTES: u64 = 4096;

/// The requirements for a plugin file.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Plugins must be in one of these folders or below; an empty list permits no plugins.
    pub directories: Vec<PathBuf>,
    /// SHA-256 in lowercase hexadecimal by file name. With a manifest, a file that is not in it is rejected.
    pub manifest: Option<BTreeMap<String, String>>,
    /// Keys of which one must have signed the file; the 64-byte signature is next to it in `<file>.sig`.
    pub keys: Vec<VerifyingKey>,
}

/// A file that passed the checks, kept open so that the checked file is the one that is loaded.
#[derive(Debug)]
pub struct CheckedFile {
    file: File,
}

impl CheckedFile {
    /// Device and inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.file.metadata().map_or((0, 0), |metadata| (metadata.dev(), metadata.ino()))
    }

    /// A path to the checked file, even if its name has changed since. Every call returns a different spelling: the dynamic loader
    /// considers a library loaded if it has seen the same path before, and file descriptor numbers are reused.
    pub fn path(&self) -> PathBuf {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let bits = u64::BITS - count.leading_zeros();
        // `./` and repeated `/` do not change the target.
        let spelled: String = (0..bits).map(|bit| if count >> bit & 1 == 1 { "./" } else { "/" }).collect();
        PathBuf::from(format!("/proc/self/fd/{spelled}{}", self.file.as_raw_fd()))
    }
}

/// Bytes in lowercase hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Trust {
    /// Trusts plugins in these folders, without manifest and keys.
    pub fn directories(directories: impl IntoIterator<Item = PathBuf>) -> Trust {
        Trust { directories: directories.into_iter().collect(), ..Trust::default() }
    }

    /// Parses a manifest in the format of `sha256sum`: a hash, whitespace and a file name per line.
    pub fn read_manifest(text: &str) -> BTreeMap<String, String> {
        text.lines()
            .filter_map(|line| {
                let (hash, name) = line.trim().split_once(char::is_whitespace)?;
                Some((name.trim().trim_start_matches('*').to_owned(), hash.to_lowercase()))
            })
            .collect()
    }

    /// Reads a manifest from a file that only this user or root can write.
    pub fn read_manifest_file(path: &Path) -> Result<BTreeMap<String, String>, Reason> {
        let mut file = RegularFile::open(path).map_err(|error| unreadable(path, &error))?;
        file.check_trust().map_err(untrusted)?;
        let text = file.text(files::MAX_TEXT_BYTES).map_err(|error| unreadable(path, &error))?;
        Ok(Trust::read_manifest(&text))
    }

    /// Parses a key: 32 bytes in hexadecimal.
    pub fn read_key(text: &str) -> Result<VerifyingKey, String> {
        let text = text.trim();
        let wrong = || format!("`{text}` is not an ed25519 public key; expected 64 hexadecimal digits");
        let mut bytes = [0u8; 32];
        if text.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        VerifyingKey::from_bytes(&bytes).map_err(|_| wrong())
    }

    /// Checks a file. `sha256` receives its hash even if it is rejected afterwards.
    pub fn check(&self, path: &Path, sha256: &mut String) -> Result<CheckedFile, Reason> {
        let real = fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
        let allowed = self
            .directories
            .iter()
            .filter_map(|folder| fs::canonicalize(folder).ok())
            .any(|folder| real.starts_with(folder));
        if !allowed {
            let folders: Vec<String> =
                self.directories.iter().map(|folder| folder.display().to_string()).collect();
            let folders = if folders.is_empty() { "none".to_owned() } else { folders.join(", ") };
            return Err(Reason::new(ReasonCode::PluginPathNotAllowed).message(format!(
                "{} is outside of the folders from which plugins may be loaded (`plugins.directories`: {folders})",
                real.display()
            )));
        }
        let mut file = RegularFile::open(&real).map_err(|error| unreadable(&real, &error))?;
        file.check_trust().map_err(untrusted)?;
        if let Some(folder) = real.parent() {
            // Write access to the folder suffices to add a plugin, even if existing ones cannot be replaced.
            let metadata = fs::metadata(folder).map_err(|error| unreadable(folder, &error))?;
            files::check(folder, &metadata).map_err(untrusted)?;
        }
        let bytes = file.bytes(MAX_PLUGIN_BYTES).map_err(|error| unreadable(&real, &error))?;
        *sha256 = hexadecimal(&Sha256::digest(&bytes));
        self.check_manifest(&real, sha256)?;
        self.check_signature(&real, &bytes)?;
        elf::check(&bytes)?;
        Ok(CheckedFile { file: file.into_file() })
    }

    fn check_manifest(&self, real: &Path, sha256: &str) -> Result<(), Reason> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match manifest.get(&name) {
            Some(pinned) if pinned == sha256 => Ok(()),
            Some(pinned) => {
                Err(Reason::new(ReasonCode::PluginHashMismatch).required(pinned.clone()).found(sha256))
            }
            None => Err(Reason::new(ReasonCode::PluginHashMismatch)
                .message(format!("{name} is not in the manifest (`plugins.manifest`)"))),
        }
    }

    fn check_signature(&self, real: &Path, bytes: &[u8]) -> Result<(), Reason> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let mut signature_path = real.as_os_str().to_owned();
        signature_path.push(".sig");
        let invalid = |message: String| Reason::new(ReasonCode::PluginSignatureInvalid).message(message);
        let signature = RegularFile::open(Path::new(&signature_path))
            .and_then(|mut file| file.bytes(MAX_SIGNATURE_BYTES))
            .map_err(|error| {
                invalid(format!(
                    "cannot read the signature {}: {error}",
                    Path::new(&signature_path).display()
                ))
            })?;
        let signature = Signature::from_slice(&signature).map_err(|error| {
            invalid(format!("{} is not an ed25519 signature: {error}", Path::new(&signature_path).display()))
        })?;
        if self.keys.iter().any(|key| key.verify_strict(bytes, &signature).is_ok()) {
            return Ok(());
        }
        Err(invalid(format!(
            "{} is not signed by any of the {} trusted keys (`plugins.keys`)",
            real.display(),
            self.keys.len()
        )))
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Reason {
    Reason::new(ReasonCode::PluginPermission).message(format!("cannot read {}: {error}", path.display()))
}

fn untrusted(why: Untrusted) -> Reason {
    Reason::new(ReasonCode::PluginPermission).message(why.to_string())
}
