//! The protobuf wire format, read field by field from a borrowed buffer.
//!
//! Independent of ONNX messages. Never allocates by a length found in the data, and never recurses: a nested
//! message is returned as a [`Chunk`]. Every error has the offset from the start of the file.

use super::problem::{Malformed, Problem};

/// A part of the file, with its offset.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The offset of the first byte in the file.
    pub offset: usize,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The field's number in the message.
    pub number: u32,
    /// Offset of the field in the file.
    pub offset: usize,
    /// The value.
    pub value: Value<'a>,
}

/// The four wire encodings of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: bytes, text, a nested message or packed numbers.
    Bytes(Chunk<'a>),
    /// Wire type 5.
    Fixed32(u32),
}

/// A cursor over the fields of one message.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

fn malformed<T>(offset: usize, problem: Problem) -> Result<T, Malformed> {
    Err(Malformed { offset, problem })
}

impl<'a> Chunk<'a> {
    /// A whole file.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// A reader of this chunk as a message.
    pub fn fields(self) -> Reader<'a> {
        Reader { rest: self.bytes, offset: self.offset }
    }

    /// The chunk as text.
    pub fn text(self, field: &'static str) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes).map_err(|error| Malformed {
            offset: self.offset + error.valid_up_to(),
            problem: Problem::Utf8 { field },
        })
    }
}

impl<'a> Reader<'a> {
    /// The next field, or `None` at the end of the message.
    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let offset = self.offset;
        let key = self.varint()?;
        let number = match u32::try_from(key >> 3) {
            Ok(number) if (1..1 << 29).contains(&number) => number,
            _ => return malformed(offset, Problem::FieldNumber { number: key >> 3 }),
        };
        let value = match (key & 7) as u8 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.fixed("a 64-bit number")?)),
            2 => Value::Bytes(self.chunk()?),
            5 => Value::Fixed32(u32::from_le_bytes(self.fixed("a 32-bit number")?)),
            wire_type => return malformed(offset, Problem::WireType { wire_type }),
        };
        Ok(Some(Field { number, offset, value }))
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return malformed(self.offset, Problem::Truncated { what });
        };
        self.rest = rest;
        self.offset += count;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N, what)?);
        Ok(number)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let start = self.offset;
        let mut number = 0u64;
        for shift in (0..).step_by(7) {
            let [byte] = self.fixed("a varint")?;
            // The tenth byte has only one valid bit.
            if shift > 63 || (shift == 63 && byte > 1) {
                return malformed(start, Problem::VarintTooLong);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(number)
    }

    fn chunk(&mut self) -> Result<Chunk<'a>, Malformed> {
        let start = self.offset;
        let length = self.varint()?;
        let Ok(length) = usize::try_from(length) else {
            return malformed(start, Problem::Truncated { what: "a length-delimited field" });
        };
        let offset = self.offset;
        Ok(Chunk { bytes: self.take(length, "a length-delimited field")?, offset })
    }
}

impl<'a> Field<'a> {
    fn wrong_type<T>(&self, field: &'static str, expected: &'static str) -> Result<T, Malformed> {
        malformed(self.offset, Problem::FieldType { field, expected })
    }

    /// A signed integer of any declared width.
    pub fn integer(&self, field: &'static str) -> Result<i64, Malformed> {
        match self.value {
            Value::Varint(number) => Ok(number as i64),
            _ => self.wrong_type(field, "an integer"),
        }
    }

    /// A 32-bit float.
    pub fn float(&self, field: &'static str) -> Result<f32, Malformed> {
        match self.value {
            Value::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => self.wrong_type(field, "a 32-bit float"),
        }
    }

    /// Bytes, a nested message, or packed numbers.
    pub fn chunk(&self, field: &'static str) -> Result<Chunk<'a>, Malformed> {
        match self.value {
            Value::Bytes(chunk) => Ok(chunk),
            _ => self.wrong_type(field, "length-delimited"),
        }
    }

    /// Text.
    pub fn text(&self, field: &'static str) -> Result<String, Malformed> {
        self.chunk(field)?.text(field).map(str::to_owned)
    }

    /// Appends to a repeated integer: a single value or a packed run, both of which are valid.
    pub fn integers_into(&self, field: &'static str, into: &mut Vec<i64>) -> Result<(), Malformed> {
        match self.value {
            Value::Varint(number) => into.push(number as i64),
            Value::Bytes(chunk) => {
                let mut reader = chunk.fields();
                while !reader.rest.is_empty() {
                    into.push(reader.varint()? as i64);
                }
            }
            _ => return self.wrong_type(field, "a repeated integer"),
        }
        Ok(())
    }

    /// Appends to a repeated 32-bit float: a single value or a packed run.
    pub fn floats_into(&self, field: &'static str, into: &mut Vec<f32>) -> Result<(), Malformed> {
        match self.value {
            Value::Fixed32(bits) => into.push(f32::from_bits(bits)),
            Value::Bytes(chunk) => {
                let mut reader = chunk.fields();
                while !reader.rest.is_empty() {
                    into.push(f32::from_le_bytes(reader.fixed("a packed 32-bit float")?));
                }
            }
            _ => return self.wrong_type(field, "a repeated 32-bit float"),
        }
        Ok(())
    }

    /// Appends to a repeated 64-bit float: a single value or a packed run.
    pub fn doubles_into(&self, field: &'static str, into: &mut Vec<f64>) -> Result<(), Malformed> {
        match self.value {
            Value::Fixed64(bits) => into.push(f64::from_bits(bits)),
            Value::Bytes(chunk) => {
                let mut reader = chunk.fields();
                while !reader.rest.is_empty() {
                    into.push(f64::from_le_bytes(reader.fixed("a packed 64-bit float")?));
                }
            }
            _ => return self.wrong_type(field, "a repeated 64-bit float"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: &str) {
        let mut reader = Chunk::whole(bytes).fields();
        let mut shown = Vec::new();
        let end = loop {
            match reader.next_field() {
                Ok(Some(field)) => shown.push(format!("{}@{}", field.number, field.offset)),
                Ok(None) => break "end".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        shown.push(end);
        assert_eq!(shown.join(", "), expected);
    }

    #[test]
    fn reads_fields_of_every_wire_type() {
        check(&[], "end");
        check(
            &[0x08, 0x96, 0x01, 0x12, 1, 7, 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8],
            "1@0, 2@3, 3@6, 4@11, end",
        );
    }

    #[test]
    fn truncated_data_is_an_error_with_its_offset() {
        check(&[0x08], "at byte 1: the data ends inside a varint");
        check(&[0x08, 0x80], "at byte 2: the data ends inside a varint");
        check(&[0x08, 0, 0x1d, 1, 2], "1@0, at byte 3: the data ends inside a 32-bit number");
        check(&[0x21, 1], "at byte 1: the data ends inside a 64-bit number");
        check(&[0x12, 5, 1], "at byte 2: the data ends inside a length-delimited field");
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0];
        check(&huge, "at byte 11: the data ends inside a length-delimited field");
    }

    #[test]
    fn invalid_protobuf_is_an_error() {
        check(&[0x00, 0], "at byte 0: 0 is not a field number");
        check(&[0x0b], "at byte 0: wire type 3 is not supported");
        check(&[0x0f], "at byte 0: wire type 7 is not supported");
        let eleven = [0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        check(&eleven, "at byte 1: a varint does not fit 64 bits");
        let too_many_bits = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        check(&too_many_bits, "at byte 1: a varint does not fit 64 bits");
    }

    #[test]
    fn negative_integers_take_ten_bytes() {
        let bytes = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let field = Chunk::whole(&bytes).fields().next_field().unwrap().unwrap();
        assert_eq!(field.integer("i"), Ok(-1));
        assert!(field.float("f").is_err() && field.chunk("s").is_err());
    }
}
