//! The chunked coding of a response (RFC 9112 §7.1), as strict as the grammar: two readers of one body must not see two bodies.

use bytes::{Buf as _, Bytes};
use http::HeaderMap;

use super::head::{MAX_FIELDS, header_map};

/// Most digits of a chunk's size: those of the largest number there is.
const MAX_DIGITS: u8 = 16;
/// Most bytes of all chunk extensions of a body, and most of its trailers.
const MAX_EXTRAS: usize = 16 * 1024;

/// Why a body is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Not a number, or too large a one.
    #[error("a chunk without a size")]
    Size,
    /// A line or a chunk that ends otherwise than with CR LF.
    #[error("a chunk that does not end where it should")]
    End,
    /// Too much beside the data.
    #[error("more than {MAX_EXTRAS} bytes of chunk extensions or trailers")]
    TooLarge,
    /// Trailers that are no fields.
    #[error("malformed trailers")]
    Trailers,
}

/// A piece of a body.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Where a decoder stands: what the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
}

/// A body that is being decoded.
#[derive(Debug)]
pub(super) struct Chunked {
    place: Place,
    /// Of the size that is being read.
    digits: u8,
    /// The size, then what is left of the chunk.
    left: u64,
    extensions: usize,
    trailers: Vec<u8>,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self { place: Place::Size, digits: 0, left: 0, extensions: 0, trailers: Vec::new() }
    }

    /// The next piece. Takes all of `input` when it has none.
    pub(super) fn decode(&mut self, input: &mut Bytes) -> Result<Option<Piece>, ChunkError> {
        while !input.is_empty() {
            if self.place == Place::Data {
                let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
                self.left -= n as u64;
                if self.left == 0 {
                    self.place = Place::DataCr;
                }
                return Ok(Some(Piece::Data(input.split_to(n))));
            }
            let byte = input.get_u8();
            if self.place == Place::Trailers {
                self.trailers.push(byte);
                if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
                    return self.trailers().map(|trailers| Some(Piece::End(trailers)));
                }
                if self.trailers.len() > MAX_EXTRAS {
                    return Err(ChunkError::TooLarge);
                }
            } else {
                self.frame(byte)?;
            }
        }
        Ok(None)
    }

    /// Whether `input` ends the body, and nothing else is in it: most bodies end so, and there is no need to come again for it.
    pub(super) fn ends_with(&self, input: &[u8]) -> bool {
        self.place == Place::DataCr && input == b"\r\n0\r\n\r\n"
    }

    /// A byte between chunks.
    fn frame(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.place = match (self.place, byte) {
            (Place::Size, b'\r') if self.digits > 0 => Place::SizeLf,
            (Place::Size, b';' | b' ' | b'\t') if self.digits > 0 => Place::Extension,
            (Place::Size, _) => {
                let digit = (byte as char).to_digit(16).ok_or(ChunkError::Size)?;
                if self.digits == MAX_DIGITS {
                    return Err(ChunkError::Size);
                }
                self.digits += 1;
                self.left = self.left << 4 | u64::from(digit);
                Place::Size
            }
            (Place::Extension, b'\r') => Place::SizeLf,
            (Place::Extension, b'\n') => return Err(ChunkError::End),
            (Place::Extension, _) => {
                self.extensions += 1;
                if self.extensions > MAX_EXTRAS {
                    return Err(ChunkError::TooLarge);
                }
                Place::Extension
            }
            (Place::SizeLf, b'\n') => {
                self.digits = 0;
                if self.left == 0 { Place::Trailers } else { Place::Data }
            }
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::Size,
            _ => return Err(ChunkError::End),
        };
        Ok(())
    }

    fn trailers(&mut self) -> Result<Option<HeaderMap>, ChunkError> {
        if self.trailers.len() == 2 {
            return Ok(None);
        }
        let bytes = Bytes::from(std::mem::take(&mut self.trailers));
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(&bytes, &mut fields) else {
            return Err(ChunkError::Trailers);
        };
        header_map(&bytes, fields).map(Some).map_err(|_| ChunkError::Trailers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Whole = Result<(Vec<u8>, Option<HeaderMap>, usize), ChunkError>;

    /// The body, its trailers and how many bytes were left; `None` when it has not ended.
    fn decode(text: &[u8], step: usize) -> Option<Whole> {
        let (mut chunked, mut body) = (Chunked::new(), Vec::new());
        let mut left = Bytes::copy_from_slice(text);
        while !left.is_empty() {
            let mut piece = left.split_to(step.min(left.len()));
            loop {
                match chunked.decode(&mut piece) {
                    Ok(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                    Ok(Some(Piece::End(trailers))) => return Some(Ok((body, trailers, piece.len() + left.len()))),
                    Ok(None) => break,
                    Err(e) => return Some(Err(e)),
                }
            }
        }
        None
    }

    fn body(text: &str) -> Option<Result<String, ChunkError>> {
        decode(text.as_bytes(), 7).map(|r| r.map(|(body, _, _)| String::from_utf8(body).expect("text")))
    }

    #[test]
    fn bodies() {
        for (text, want) in [
            ("0\r\n\r\n", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello"),
            ("2\r\nhe\r\n00003\r\nllo\r\n000\r\n\r\n", "hello"),
            ("5;a=b\r\nhello\r\n0;c\r\n\r\n", "hello"),
            ("5 \r\nhello\r\n0\r\n\r\n", "hello"),
            ("A\r\n0123456789\r\n0\r\nx: y\r\n\r\n", "0123456789"),
        ] {
            assert_eq!(body(text), Some(Ok(want.into())), "{text:?}");
        }
        assert_eq!(body("5\r\nhel"), None);
        assert_eq!(body("5\r\nhello\r\n0\r\nx: y\r\n"), None);
        let (_, trailers, left) = decode(b"0\r\nx: y\r\n\r\nnext", 3).expect("an end").expect("sound");
        assert_eq!((trailers.expect("some")["x"].as_bytes(), left), (&b"y"[..], 4));
    }

    #[test]
    fn what_another_reader_could_read_otherwise_is_refused() {
        for (text, want) in [
            ("\r\n", ChunkError::Size),
            ("x\r\n", ChunkError::Size),
            ("+5\r\nhello\r\n", ChunkError::Size),
            ("0x5\r\nhello\r\n", ChunkError::Size),
            ("-1\r\n", ChunkError::Size),
            (";a\r\n", ChunkError::Size),
            ("00000000000000005\r\nhello\r\n", ChunkError::Size),
            ("5\nhello\r\n", ChunkError::Size),
            ("5\r\rhello", ChunkError::End),
            ("5;a\nhello", ChunkError::End),
            ("5\r\nhello0\r\n\r\n", ChunkError::End),
            ("5\r\nhello\n0\r\n\r\n", ChunkError::End),
            ("0\r\nno field\r\n\r\n", ChunkError::Trailers),
            ("0\r\nx : y\r\n\r\n", ChunkError::Trailers),
        ] {
            assert_eq!(body(text), Some(Err(want)), "{text:?}");
        }
        let large = |start: &str| decode(format!("{start}{}", "x".repeat(MAX_EXTRAS + 1)).as_bytes(), 1000);
        assert_eq!(large("5;"), Some(Err(ChunkError::TooLarge)));
        assert_eq!(large("0\r\n"), Some(Err(ChunkError::TooLarge)));
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(text in "([0-9a-f;x \r\n]|\r\n|0\r\n\r\n|1\r\na\r\n){0,30}", step in 1usize..9) {
            prop_assert_eq!(decode(text.as_bytes(), step), decode(text.as_bytes(), text.len().max(1)));
        }

        #[test]
        fn what_is_written_is_read(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..9), step in 1usize..50) {
            let mut text = Vec::new();
            for part in &parts {
                text.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                text.extend_from_slice(part);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\nrest");
            let (body, trailers, left) = decode(&text, step).expect("an end").expect("sound");
            prop_assert_eq!((body, trailers, left), (parts.concat(), None, 4));
        }
    }
}
