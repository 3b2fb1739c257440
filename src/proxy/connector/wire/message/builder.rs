//! Writing objects, all into one segment.

use super::reader::Slot;
use super::{StructReader, WORD, WireError};

/// Most bytes of a message we write. Far below what a pointer can span, so offsets need no further checks.
const MAX: usize = 16 << 20;

/// A message under construction. Objects come one after the other, each named by where it is.
#[derive(Debug)]
pub struct Builder {
    bytes: Vec<u8>,
    /// The message has outgrown [`MAX`]; writes have no effect any more and [`Self::finish`] says so.
    overflow: u64,
}

/// Where a struct of the message is.
#[derive(Clone, Copy, Debug)]
pub struct StructAt {
    /// Word offset of its data.
    at: usize,
    data: usize,
    pointers: usize,
}

/// Where a list of structs or of pointers is.
#[derive(Clone, Copy, Debug)]
pub struct ListAt {
    at: usize,
    data: usize,
    pointers: usize,
}

/// Bytes of the segment table of a message with one segment.
const TABLE: usize = 8;

impl Builder {
    /// A message with a root of `data` words and `pointers` pointers.
    pub fn new(data: usize, pointers: usize) -> (Self, StructAt) {
        let mut builder = Self { bytes: vec![0; TABLE + WORD], overflow: 0 };
        let root = builder.place_struct(0, data, pointers);
        (builder, root)
    }

    /// Sets the byte at `at`.
    pub fn set_u8(&mut self, s: StructAt, at: usize, value: u8) {
        self.set(s, at, [value]);
    }

    /// Sets the 16 bit number at byte `at`.
    pub fn set_u16(&mut self, s: StructAt, at: usize, value: u16) {
        self.set(s, at, value.to_le_bytes());
    }

    /// Sets the 32 bit number at byte `at`.
    pub fn set_u32(&mut self, s: StructAt, at: usize, value: u32) {
        self.set(s, at, value.to_le_bytes());
    }

    /// Sets the 64 bit number at byte `at`.
    pub fn set_u64(&mut self, s: StructAt, at: usize, value: u64) {
        self.set(s, at, value.to_le_bytes());
    }

    /// Sets the flag at bit `bit`.
    pub fn set_bit(&mut self, s: StructAt, bit: usize, value: bool) {
        let at = TABLE + s.at * WORD + bit / 8;
        if let Some(byte) = self.bytes.get_mut(at).filter(|_| bit / 8 < s.data * WORD) {
            *byte = *byte & !(1 << (bit % 8)) | u8::from(value) << (bit % 8);
        }
    }

    /// Puts a new struct into pointer slot `slot`.
    pub fn init_struct(&mut self, s: StructAt, slot: usize, data: usize, pointers: usize) -> StructAt {
        self.place_struct(pointer(s, slot), data, pointers)
    }

    /// Puts a new list of `len` structs into pointer slot `slot`.
    pub fn init_structs(&mut self, s: StructAt, slot: usize, len: usize, data: usize, pointers: usize) -> ListAt {
        let words = len.saturating_mul(data + pointers);
        let Some(at) = self.allocate(words.saturating_add(1)) else { return ListAt { at: 0, data: 0, pointers: 0 } };
        self.put(pointer(s, slot), 1 | offset(pointer(s, slot), at) | 7 << 32 | (words as u64) << 35);
        self.put(at, (len as u64) << 2 | (data as u64) << 32 | (pointers as u64) << 48);
        ListAt { at: at + 1, data, pointers }
    }

    /// Element `index` of a list.
    pub fn element(&self, list: ListAt, index: usize) -> StructAt {
        StructAt { at: list.at + index * (list.data + list.pointers), data: list.data, pointers: list.pointers }
    }

    /// Puts bytes into pointer slot `slot`. An empty slice is written as a list of none, which is not the same as no list.
    pub fn set_data(&mut self, s: StructAt, slot: usize, value: &[u8]) {
        self.bytes_at(pointer(s, slot), value, false);
    }

    /// Puts a text into pointer slot `slot`, with the NUL that the format wants. The bytes need not be UTF-8: header values
    /// travel as texts.
    pub fn set_text(&mut self, s: StructAt, slot: usize, value: &[u8]) {
        self.bytes_at(pointer(s, slot), value, true);
    }

    /// Puts a list of texts into pointer slot `slot`.
    pub fn set_texts<'t>(&mut self, s: StructAt, slot: usize, texts: impl ExactSizeIterator<Item = &'t str>) {
        let len = texts.len();
        let Some(at) = self.allocate(len) else { return };
        self.put(pointer(s, slot), 1 | offset(pointer(s, slot), at) | 6 << 32 | (len as u64) << 35);
        for (i, text) in texts.enumerate() {
            self.bytes_at(at + i, text.as_bytes(), true);
        }
    }

    /// Puts a capability into pointer slot `slot`, by its index in the capability table.
    pub fn set_capability(&mut self, s: StructAt, slot: usize, index: u32) {
        self.put(pointer(s, slot), 3 | u64::from(index) << 32);
    }

    /// Puts a copy of what `from` has in `from_slot` into pointer slot `slot`.
    ///
    /// # Errors
    /// When the source is malformed.
    pub fn copy(&mut self, s: StructAt, slot: usize, from: &StructReader<'_>, from_slot: usize) -> Result<(), WireError> {
        match from.slot(from_slot)? {
            Slot::Null => {}
            Slot::Bytes(bytes) => self.set_data(s, slot, bytes),
            Slot::Capability(index) => self.set_capability(s, slot, index),
            Slot::Struct(source) => {
                let (data, pointers) = source.layout();
                let target = self.init_struct(s, slot, data.len() / WORD, pointers);
                self.copy_struct(target, &source)?;
            }
            Slot::Structs(source) => {
                let (data, pointers, _) = source.layout();
                let target = self.init_structs(s, slot, source.len(), data.div_ceil(WORD), pointers);
                for (i, element) in source.iter().enumerate() {
                    self.copy_struct(self.element(target, i), &element)?;
                }
            }
        }
        Ok(())
    }

    fn copy_struct(&mut self, target: StructAt, source: &StructReader<'_>) -> Result<(), WireError> {
        let (data, pointers) = source.layout();
        let start = TABLE + target.at * WORD;
        if self.overflow == 0
            && let Some(bytes) = self.bytes.get_mut(start..start + data.len())
        {
            bytes.copy_from_slice(data);
        }
        (0..pointers).try_for_each(|slot| self.copy(target, slot, source, slot))
    }

    /// The framed message.
    ///
    /// # Errors
    /// When it has outgrown what anyone takes.
    pub fn finish(mut self) -> Result<Vec<u8>, WireError> {
        if self.overflow > 0 {
            return Err(WireError::TooLarge { bytes: self.overflow, limit: MAX as u64 });
        }
        let words = ((self.bytes.len() - TABLE) / WORD) as u32;
        self.bytes[4..TABLE].copy_from_slice(&words.to_le_bytes());
        Ok(self.bytes)
    }

    fn place_struct(&mut self, pointer: usize, data: usize, pointers: usize) -> StructAt {
        let Some(at) = self.allocate(data + pointers) else { return StructAt { at: 0, data: 0, pointers: 0 } };
        // A struct without a word would look like an empty slot; offset -1 tells them apart.
        let offset = if data + pointers == 0 { 0xffff_fffc } else { offset(pointer, at) };
        self.put(pointer, offset | (data as u64) << 32 | (pointers as u64) << 48);
        StructAt { at, data, pointers }
    }

    fn bytes_at(&mut self, pointer: usize, value: &[u8], nul: bool) {
        let len = value.len() + usize::from(nul);
        let Some(at) = self.allocate(len.div_ceil(WORD)) else { return };
        self.put(pointer, 1 | offset(pointer, at) | 2 << 32 | (len as u64) << 35);
        let start = TABLE + at * WORD;
        self.bytes[start..start + value.len()].copy_from_slice(value);
    }

    /// Room for `words` more words, as a word offset; `None` when the message has outgrown its limit.
    fn allocate(&mut self, words: usize) -> Option<usize> {
        let at = (self.bytes.len() - TABLE) / WORD;
        let total = words.saturating_mul(WORD).saturating_add(self.bytes.len());
        if self.overflow > 0 || total > MAX {
            self.overflow = total as u64;
            return None;
        }
        self.bytes.resize(total, 0);
        Some(at)
    }

    fn put(&mut self, at: usize, word: u64) {
        let start = TABLE + at * WORD;
        if self.overflow == 0
            && let Some(bytes) = self.bytes.get_mut(start..start + WORD)
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn set<const N: usize>(&mut self, s: StructAt, at: usize, value: [u8; N]) {
        let start = TABLE + s.at * WORD + at;
        if let Some(bytes) = self.bytes.get_mut(start..start + N).filter(|_| at + N <= s.data * WORD) {
            bytes.copy_from_slice(&value);
        }
    }
}

fn pointer(s: StructAt, slot: usize) -> usize {
    debug_assert!(slot < s.pointers || s.at == 0, "slot {slot} of a struct with {} pointers", s.pointers);
    s.at + s.data + slot
}

/// The offset field of a pointer at word `from` to an object at word `to`: words between them, in the upper 30 bits of 32.
fn offset(from: usize, to: usize) -> u64 {
    u64::from(((to as i64 - from as i64 - 1) as u32) << 2)
}
