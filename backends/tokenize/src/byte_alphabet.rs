//! The byte-level alphabet of GPT-2: vocabularies represent each byte by a printable character.

use std::sync::OnceLock;

/// Maps a character of the alphabet to its byte. Characters above U+0143 are not in the alphabet.
fn table() -> &'static [Option<u8>; 324] {
    static TABLE: OnceLock<[Option<u8>; 324]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = [None; 324];
        let mut next = 256;
        for byte in 0..=255u8 {
            // Bytes that are printable in Latin-1 map to themselves, the others to U+0100 and up, in order.
            let visible = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let character = if visible {
                usize::from(byte)
            } else {
                next += 1;
                next - 1
            };
            table[character] = Some(byte);
        }
        table
    })
}

/// Returns the byte that a character represents.
pub fn byte_of(character: char) -> Option<u8> {
    table().get(character as usize).copied().flatten()
}

/// Returns the bytes of a token; `None` if one of its characters is not in the alphabet.
pub fn bytes_of(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// Returns the character of a byte.
pub fn character_of(byte: u8) -> char {
    static CHARACTERS: OnceLock<[char; 256]> = OnceLock::new();
    let characters = CHARACTERS.get_or_init(|| {
        let mut characters = ['\0'; 256];
        for (character, byte) in ('\0'..).zip(table()) {
            if let Some(byte) = byte {
                characters[usize::from(*byte)] = character;
            }
        }
        characters
    });
    characters[usize::from(byte)]
}

/// Returns bytes as a token in the byte alphabet.
pub fn token_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| character_of(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips_through_its_character() {
        let all: Vec<u8> = (0..=255).collect();
        let token = token_of(&all);
        assert_eq!(token.chars().count(), 256);
        assert_eq!(bytes_of(&token), Some(all));
        assert_eq!(token_of(b" \n"), "ĠĊ");
        assert_eq!(bytes_of("a b"), None);
    }
}
