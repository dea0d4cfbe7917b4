//! Signatures of files that machines exchange, by the keys that also sign plugins: ed25519 over the whole file, 64 bytes next to it in
//! `<file>.sig`.
//!
//! A private key is a file with 64 hexadecimal digits that only its owner can read. Public keys are hexadecimal texts, as in
//! `plugins.keys`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use lz_files::RegularFile;

use crate::loader::trust::{Trust, hexadecimal};

/// Maximum bytes of a key file.
const MAX_KEY_BYTES: u64 = 4096;

/// Mode bits of a private key that others can read or write.
const ACCESSIBLE_BY_OTHERS: u32 = 0o077;

/// Why a file was not signed or is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SigningError {
    /// A private key cannot be used or written.
    PrivateKey {
        /// Its file.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// A public key is not valid.
    PublicKey(String),
    /// No keys are trusted, so nothing can be.
    NoTrustedKeys,
    /// The signature is not one, or is by none of the trusted keys.
    Untrusted {
        /// The number of trusted keys.
        keys: usize,
    },
}

impl fmt::Display for SigningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrivateKey { path, message } => write!(f, "private key {}: {message}", path.display()),
            Self::PublicKey(message) => f.write_str(message),
            Self::NoTrustedKeys => f.write_str(
                "no trusted key: give the public key of the publisher, or set `plugins.keys`; unsigned files are not used",
            ),
            Self::Untrusted { keys } => write!(
                f,
                "the signature is not valid for this file by any of the {keys} trusted keys: it was changed, or signed by another key"
            ),
        }
    }
}

impl std::error::Error for SigningError {}

/// Creates a private key in a new file that only this user can read. Returns the public key.
///
/// # Errors
///
/// If the file exists or cannot be written.
pub fn create_key(path: &Path) -> Result<String, SigningError> {
    let failed = |error: std::io::Error| SigningError::PrivateKey {
        path: path.to_owned(),
        message: error.to_string(),
    };
    let mut seed = [0u8; 32];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut seed)).map_err(failed)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    writeln!(file, "{}", hexadecimal(&seed)).map_err(failed)?;
    Ok(public(&SigningKey::from_bytes(&seed)))
}

/// The public key of a private key.
///
/// # Errors
///
/// If the private key cannot be read.
pub fn public_key(path: &Path) -> Result<String, SigningError> {
    read_private(path).map(|key| public(&key))
}

/// Signs bytes with the private key in a file.
///
/// # Errors
///
/// If the private key cannot be read.
pub fn sign(bytes: &[u8], key: &Path) -> Result<Vec<u8>, SigningError> {
    Ok(read_private(key)?.sign(bytes).to_bytes().to_vec())
}

/// Checks that one of these public keys signed the bytes.
///
/// # Errors
///
/// If there are no keys, a key is not valid, or none of them signed the bytes.
pub fn verify(bytes: &[u8], signature: &[u8], keys: &[String]) -> Result<(), SigningError> {
    let keys = keys.iter().map(|key| Trust::read_key(key).map_err(SigningError::PublicKey));
    let keys: Vec<VerifyingKey> = keys.collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(SigningError::NoTrustedKeys);
    }
    let untrusted = SigningError::Untrusted { keys: keys.len() };
    let Ok(signature) = Signature::from_slice(signature) else { return Err(untrusted) };
    let is_signed = keys.iter().any(|key| key.verify_strict(bytes, &signature).is_ok());
    if is_signed { Ok(()) } else { Err(untrusted) }
}

fn public(key: &SigningKey) -> String {
    hexadecimal(key.verifying_key().as_bytes())
}

fn read_private(path: &Path) -> Result<SigningKey, SigningError> {
    let failed = |message: String| SigningError::PrivateKey { path: path.to_owned(), message };
    let mode = fs::metadata(path).map_err(|error| failed(error.to_string()))?.mode();
    if mode & ACCESSIBLE_BY_OTHERS != 0 {
        return Err(failed(format!("others can read or write it: chmod 600 {}", path.display())));
    }
    let text = RegularFile::open(path).and_then(|mut file| file.text(MAX_KEY_BYTES));
    let text = text.map_err(|error| failed(error.to_string()))?;
    let digits = text.trim();
    let byte = |at: usize| digits.get(2 * at..2 * at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let seed: Option<Vec<u8>> = (0..32).map(byte).collect();
    match seed.and_then(|seed| <[u8; 32]>::try_from(seed).ok()) {
        Some(seed) if digits.len() == 64 => Ok(SigningKey::from_bytes(&seed)),
        _ => Err(failed("expected 64 hexadecimal digits; `lz perfdb keygen FILE` creates a key".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use lz_test_support::Folder;

    use super::*;

    #[test]
    fn only_the_signed_bytes_are_trusted_and_only_with_the_right_key() {
        let folder = Folder::new();
        let (ours, other) = (folder.file("ours"), folder.file("other"));
        let key = create_key(&ours).unwrap();
        let unrelated = create_key(&other).unwrap();
        assert_eq!(public_key(&ours).unwrap(), key);
        let signature = sign(b"measurements", &ours).unwrap();
        assert_eq!(verify(b"measurements", &signature, &[unrelated.clone(), key.clone()]), Ok(()));
        let untrusted = Err(SigningError::Untrusted { keys: 1 });
        assert_eq!(verify(b"measurementz", &signature, std::slice::from_ref(&key)), untrusted);
        assert_eq!(verify(b"measurements", &signature, &[unrelated]), untrusted);
        assert_eq!(verify(b"measurements", &signature[1..], std::slice::from_ref(&key)), untrusted);
        assert_eq!(verify(b"measurements", &signature, &[]), Err(SigningError::NoTrustedKeys));
        assert!(matches!(verify(b"", b"", &["key".to_owned()]), Err(SigningError::PublicKey(_))));
    }

    #[test]
    fn private_keys_are_protected() {
        let folder = Folder::new();
        let file = folder.file("key");
        create_key(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(create_key(&file).is_err(), "an existing key is never overwritten");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let error = sign(b"x", &file).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::write(&file, "zz").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let error = sign(b"x", &file).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
}
