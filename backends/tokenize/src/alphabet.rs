//! The alphabet of byte-level models: each byte has a visible character that stands for it in vocabularies.

use std::sync::OnceLock;

/// The byte that a character stands for; characters behind the last that stands for any are left out.
fn table() -> &'static [Option<u8>; 324] {
    static TABLE: OnceLock<[Option<u8>; 324]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = [None; 324];
        let mut next = 256;
        for byte in 0..=255u8 {
            // Bytes that are visible in Latin-1 stand for themselves, the others follow after 255 in order.
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

/// The byte that a character stands for.
pub fn byte_of(character: char) -> Option<u8> {
    table().get(character as usize).copied().flatten()
}

/// The bytes that a token stands for; `None` if one of its characters stands for no byte.
pub fn bytes_of(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

/// The token that stands for some bytes.
pub fn token_of(bytes: &[u8]) -> String {
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
    bytes.iter().map(|byte| characters[usize::from(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        let all: Vec<u8> = (0..=255).collect();
        let token = token_of(&all);
        assert_eq!(token.chars().count(), 256);
        assert_eq!(bytes_of(&token), Some(all));
        assert_eq!(token_of(b" \n"), "ĠĊ");
        assert_eq!(bytes_of("a b"), None);
    }
}
