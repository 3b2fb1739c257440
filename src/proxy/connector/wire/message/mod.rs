//! Cap'n Proto messages in the unpacked stream framing: cutting them out of a byte stream, reading and writing their objects.
//! Knows no schema; the layouts live with the values that use them.

mod builder;
mod reader;

use std::cell::Cell;

use bytes::{Buf as _, Bytes, BytesMut};

pub use builder::{Builder, ListAt, StructAt};
pub use reader::{ListReader, StructReader};

use super::WireError;

/// Bytes in a word, the unit of every size and offset.
pub(crate) const WORD: usize = 8;

/// What a message from outside may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of all segments of one message together.
    pub bytes: usize,
    /// Most segments of one message.
    pub segments: usize,
    /// Deepest chain of pointers.
    pub depth: u16,
}

impl Limits {
    /// What a connection uses unless told otherwise: 1 MiB, 512 segments, 64 levels.
    pub const DEFAULT: Self = Self { bytes: 1 << 20, segments: 512, depth: 64 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One whole message. Its objects are checked as they are read.
#[derive(Debug)]
pub struct Message {
    /// All segments, one after the other.
    bytes: Bytes,
    /// Where each segment ends in `bytes`.
    ends: Vec<usize>,
    depth: u16,
    /// Words that may still be read. Each object costs its size each time it is reached, so pointers that share or loop end in
    /// [`WireError::Amplified`] after work in proportion to the message's own size.
    budget: Cell<usize>,
}

/// Most bytes that are set aside for a message on its own word.
const RESERVE: usize = 16 * 1024;

/// Times that every word of a message may be read: our decoders read each object once, copying and peeking once more.
const READS: usize = 4;

impl Message {
    /// Cuts one message off the front of `buffer`; `None` when it is not all there yet, and then `buffer` is untouched. What
    /// follows the message stays in `buffer`.
    ///
    /// # Errors
    /// When the announced sizes exceed the limits.
    pub fn take(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Self>, WireError> {
        let Some(count) = buffer.first_chunk::<4>() else { return Ok(None) };
        let count = u64::from(u32::from_le_bytes(*count)) + 1;
        let segments = usize::try_from(count).ok().filter(|c| *c <= limits.segments).ok_or(WireError::TooManySegments(count))?;
        // The count and the sizes are padded together to a whole word.
        let table = (4 + 4 * segments).next_multiple_of(WORD);
        if buffer.len() < table {
            return Ok(None);
        }
        let mut ends = Vec::with_capacity(segments);
        let mut total = 0_u64;
        for size in buffer[4..4 + 4 * segments].as_chunks::<4>().0 {
            total += u64::from(u32::from_le_bytes(*size)) * WORD as u64;
            if total > limits.bytes as u64 {
                return Err(WireError::TooLarge { bytes: total, limit: limits.bytes as u64 });
            }
            ends.push(total as usize);
        }
        let total = total as usize;
        if buffer.len() - table < total {
            // Announced is not sent: memory comes with the bytes.
            buffer.reserve((table + total - buffer.len()).min(RESERVE));
            return Ok(None);
        }
        buffer.advance(table);
        let bytes = buffer.split_to(total).freeze();
        let budget = Cell::new((total / WORD + 1) * READS);
        Ok(Some(Self { bytes, ends, depth: limits.depth, budget }))
    }

    /// The root object.
    ///
    /// # Errors
    /// When the root is no struct.
    pub fn root(&self) -> Result<StructReader<'_>, WireError> {
        StructReader::root(self)
    }

    /// The bytes of a slice that a reader of this message returned, without a copy.
    pub fn share(&self, slice: &[u8]) -> Bytes {
        if slice.is_empty() { Bytes::new() } else { self.bytes.slice_ref(slice) }
    }

    fn segment(&self, index: u32) -> Result<&[u8], WireError> {
        let index = index as usize;
        let end = *self.ends.get(index).ok_or(WireError::Malformed("a pointer to a segment that is not there"))?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Ok(&self.bytes[start..end])
    }

    fn charge(&self, words: usize) -> Result<(), WireError> {
        // Reaching an object costs a word even when it has none.
        let left = self.budget.get().checked_sub(words.max(1)).ok_or(WireError::Amplified)?;
        self.budget.set(left);
        Ok(())
    }
}

/// Cuts messages out of a byte stream that comes in pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    limits: Limits,
}

impl Decoder {
    /// A decoder with other limits than [`Limits::DEFAULT`].
    pub fn new(limits: Limits) -> Self {
        Self { buffer: BytesMut::new(), limits }
    }

    /// Adds bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if there is one.
    ///
    /// # Errors
    /// As [`Message::take`]; the stream has no way to go on after that.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        Message::take(&mut self.buffer, &self.limits)
    }

    /// Bytes that are waiting for the rest of their message.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests;
