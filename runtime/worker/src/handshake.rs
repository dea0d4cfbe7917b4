//! The handshake of a worker: the JSON that it sends once it accepts calls.

use serde_json::{Value, json};

/// What a worker offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// The JSON of the capability descriptor; empty if the host already has the specs of the kernels.
    pub descriptor: String,
    /// The id and the operation of each kernel. Calls name a kernel by its index.
    pub kernels: Vec<(String, String)>,
    /// The confinement that the worker reports.
    pub sandbox: String,
}

impl Handshake {
    /// Serializes it.
    pub fn write(&self) -> String {
        let kernels: Vec<[&str; 2]> =
            self.kernels.iter().map(|(id, operation)| [id.as_str(), operation.as_str()]).collect();
        json!({ "descriptor": self.descriptor, "kernels": kernels, "sandbox": self.sandbox }).to_string()
    }

    /// Parses a handshake; `None` if the bytes are invalid.
    pub fn read(bytes: &[u8]) -> Option<Handshake> {
        let json: Value = serde_json::from_slice(bytes).ok()?;
        let kernels = json.get("kernels")?.as_array()?.iter().map(|kernel| {
            let text = |at: usize| Some(kernel.get(at)?.as_str()?.to_owned());
            Some((text(0)?, text(1)?))
        });
        let descriptor = json.get("descriptor")?.as_str()?.to_owned();
        let sandbox = json.get("sandbox").and_then(Value::as_str).unwrap_or("off").to_owned();
        Some(Handshake { descriptor, kernels: kernels.collect::<Option<_>>()?, sandbox })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_round_trip_and_incomplete_ones_are_invalid() {
        let handshake = Handshake {
            descriptor: "{}".to_owned(),
            kernels: vec![("far.norm.rms".to_owned(), "norm.rms".to_owned())],
            sandbox: "seccomp".to_owned(),
        };
        let text = handshake.write();
        assert_eq!(Handshake::read(text.as_bytes()), Some(handshake));
        for end in 0..text.len() {
            assert_eq!(Handshake::read(&text.as_bytes()[..end]), None);
        }
        assert_eq!(Handshake::read(br#"{"descriptor": "", "kernels": [["id"]]}"#), None);
    }
}
