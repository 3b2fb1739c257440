//! Bodies that both ends know from the number of the request: what arrives is compared byte for byte, and a piece of another
//! request's body cannot pass for a piece of this one.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::chance::{Chance, mix};

/// Bytes that all bodies are cut from.
const SIZE: usize = 16 << 20;
/// Longest body.
pub(crate) const LONGEST: usize = 8 << 20;

/// Which way a body goes; the two of one request differ.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Up,
    Down,
}

/// The body of request `id`.
pub(crate) fn body(id: u64, way: Way, len: usize) -> Bytes {
    static PATTERN: OnceLock<Bytes> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut chance = Chance::new(1);
        (0..SIZE / 8).flat_map(|_| chance.draw().to_le_bytes()).collect::<Vec<_>>().into()
    });
    let start = mix(2 * id + u64::from(matches!(way, Way::Up))) % (SIZE - LONGEST) as u64;
    let start = usize::try_from(start).unwrap_or(0);
    pattern.slice(start..start + len.min(LONGEST))
}

/// Compares a body with what it has to be, piece by piece.
#[derive(Debug)]
pub(crate) struct Check {
    expected: Bytes,
    at: usize,
}

impl Check {
    pub(crate) fn new(id: u64, way: Way, len: usize) -> Self {
        Self { expected: body(id, way, len), at: 0 }
    }

    /// Takes the next piece.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        let end = self.at + piece.len();
        let Some(expected) = self.expected.get(self.at..end) else {
            return Err(format!("{end} bytes and more, where there should be {}", self.expected.len()));
        };
        if expected != piece {
            let first = expected.iter().zip(piece).take_while(|(a, b)| a == b).count();
            return Err(format!("wrong byte at {} of {}", self.at + first, self.expected.len()));
        }
        self.at = end;
        Ok(())
    }

    /// Judges the end.
    pub(crate) fn end(&self) -> Result<(), String> {
        if self.at == self.expected.len() {
            Ok(())
        } else {
            Err(format!("{} bytes of {}, and an end that looks like one", self.at, self.expected.len()))
        }
    }
}
