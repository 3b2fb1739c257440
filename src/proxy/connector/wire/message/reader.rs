//! Reading objects. Every offset and size comes from outside: nothing is indexed before it is checked.

use super::{Message, WORD, WireError};

/// A struct. Fields beyond its end read as zero and empty, as the format wants for messages of older peers.
#[derive(Clone, Copy, Debug)]
pub struct StructReader<'a> {
    message: &'a Message,
    segment: u32,
    data: &'a [u8],
    /// Word offset of the first pointer.
    pointers: usize,
    pointer_count: usize,
    /// Levels of pointers that may still be followed.
    depth: u16,
}

/// A list of structs, or of pointers to text.
#[derive(Clone, Copy, Debug)]
pub struct ListReader<'a> {
    message: &'a Message,
    segment: u32,
    /// Byte offset of the first element.
    start: usize,
    len: usize,
    /// Bytes from one element to the next.
    step: usize,
    data_bytes: usize,
    pointer_count: usize,
    depth: u16,
}

/// A pointer with all far hops resolved: `content` says where the object is, and `word` what it is.
#[derive(Clone, Copy)]
struct Resolved {
    segment: u32,
    /// Word offset of the object's first word.
    content: usize,
    word: u64,
}

const OUT: WireError = WireError::Malformed("an object that ends outside of its segment");

impl<'a> StructReader<'a> {
    pub(super) fn root(message: &'a Message) -> Result<Self, WireError> {
        let holder = Self { message, segment: 0, data: &[], pointers: 0, pointer_count: 1, depth: message.depth };
        if message.segment(0)?.len() < WORD {
            return Err(WireError::Malformed("no root"));
        }
        holder.pointer_to_struct(0)
    }

    fn empty(message: &'a Message) -> Self {
        Self { message, segment: 0, data: &[], pointers: 0, pointer_count: 0, depth: 0 }
    }

    /// The byte at `at`.
    pub fn u8(&self, at: usize) -> u8 {
        self.data.get(at).copied().unwrap_or(0)
    }

    /// The 16 bit number at byte `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.field(at))
    }

    /// The 32 bit number at byte `at`.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.field(at))
    }

    /// The 64 bit number at byte `at`.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.field(at))
    }

    /// The flag at bit `bit`, counted from the start of the data.
    pub fn bit(&self, bit: usize) -> bool {
        self.u8(bit / 8) >> (bit % 8) & 1 == 1
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.data.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    /// The struct in pointer slot `slot`; an empty one when the slot is.
    ///
    /// # Errors
    /// When the pointer is malformed or leads to something else.
    pub fn pointer_to_struct(&self, slot: usize) -> Result<Self, WireError> {
        let Some(at) = self.resolve(slot)? else { return Ok(Self::empty(self.message)) };
        if at.word & 3 != 0 {
            return Err(WireError::Malformed("a pointer to something other than a struct"));
        }
        let (data, pointers) = ((at.word >> 32 & 0xffff) as usize, (at.word >> 48) as usize);
        self.message.charge(data + pointers)?;
        let segment = self.message.segment(at.segment)?;
        let end = at.content + data + pointers;
        if end * WORD > segment.len() {
            return Err(OUT);
        }
        Ok(Self {
            message: self.message,
            segment: at.segment,
            data: &segment[at.content * WORD..(at.content + data) * WORD],
            pointers: at.content + data,
            pointer_count: pointers,
            depth: self.depth.checked_sub(1).ok_or(WireError::Amplified)?,
        })
    }

    /// The list in pointer slot `slot`; an empty one when the slot is.
    ///
    /// # Errors
    /// As [`Self::pointer_to_struct`].
    pub fn list(&self, slot: usize) -> Result<ListReader<'a>, WireError> {
        let none = ListReader {
            message: self.message,
            segment: 0,
            start: 0,
            len: 0,
            step: 0,
            data_bytes: 0,
            pointer_count: 0,
            depth: 0,
        };
        let Some(at) = self.resolve(slot)? else { return Ok(none) };
        let depth = self.depth.checked_sub(1).ok_or(WireError::Amplified)?;
        let (size, len) = list_word(at.word)?;
        let segment = self.message.segment(at.segment)?;
        let (start, count, data_bytes, pointer_count, step) = match size {
            0 => (at.content, len, 0, 0, 0),
            2..=5 => (at.content, len, 1 << (size - 2), 0, 1 << (size - 2)),
            6 => (at.content, len, 0, 1, WORD),
            7 => {
                // `len` counts words here; a tag word in front of the elements has their number and layout.
                let tag = word_at(segment, at.content)?;
                if (at.content + 1 + len) * WORD > segment.len() {
                    return Err(OUT);
                }
                let (data, pointers) = ((tag >> 32 & 0xffff) as usize, (tag >> 48) as usize);
                let count = (tag as u32 >> 2) as usize;
                if tag & 3 != 0 || count.checked_mul(data + pointers).is_none_or(|words| words > len) {
                    return Err(WireError::Malformed("a list whose elements exceed its size"));
                }
                (at.content + 1, count, data * WORD, pointers, (data + pointers) * WORD)
            }
            _ => return Err(WireError::Malformed("a list of bits where a list of structs belongs")),
        };
        let end = count.checked_mul(step).and_then(|b| b.checked_add(start * WORD)).ok_or(OUT)?;
        if end > segment.len() {
            return Err(OUT);
        }
        // Elements without content cost a word each, or a few bytes could announce half a billion of them.
        self.message.charge((count * step.max(1)).div_ceil(WORD).max(if step == 0 { count } else { 0 }))?;
        let start = start * WORD;
        Ok(ListReader { message: self.message, segment: at.segment, start, len: count, step, data_bytes, pointer_count, depth })
    }

    /// The bytes in pointer slot `slot`; none when the slot is empty.
    ///
    /// # Errors
    /// As [`Self::pointer_to_struct`].
    pub fn data(&self, slot: usize) -> Result<&'a [u8], WireError> {
        let Some(at) = self.resolve(slot)? else { return Ok(&[]) };
        let (size, len) = list_word(at.word)?;
        if size != 2 {
            return Err(WireError::Malformed("a list of something other than bytes where bytes belong"));
        }
        self.message.charge(len.div_ceil(WORD))?;
        let start = at.content * WORD;
        self.message.segment(at.segment)?.get(start..start + len).ok_or(OUT)
    }

    /// The bytes of the text in pointer slot `slot`, without the NUL at its end; none when the slot is empty.
    ///
    /// # Errors
    /// As [`Self::data`], and when the NUL is missing.
    pub fn text_bytes(&self, slot: usize) -> Result<&'a [u8], WireError> {
        match self.data(slot)? {
            [] => Ok(&[]),
            [text @ .., 0] => Ok(text),
            _ => Err(WireError::Malformed("a text without its NUL")),
        }
    }

    /// The text in pointer slot `slot`, called `name` in the error.
    ///
    /// # Errors
    /// As [`Self::text_bytes`], and when it is not UTF-8.
    pub fn text(&self, slot: usize, name: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.text_bytes(slot)?).map_err(|_| WireError::NotText(name))
    }

    /// The index into the capability table in pointer slot `slot`, if the slot holds a capability.
    ///
    /// # Errors
    /// As [`Self::pointer_to_struct`].
    pub fn capability(&self, slot: usize) -> Result<Option<u32>, WireError> {
        let Some(at) = self.resolve(slot)? else { return Ok(None) };
        if at.word & 0xffff_ffff == 3 { Ok(Some((at.word >> 32) as u32)) } else { Ok(None) }
    }

    /// Whether pointer slot `slot` is empty.
    pub fn is_null(&self, slot: usize) -> bool {
        slot >= self.pointer_count
            || self.message.segment(self.segment).and_then(|s| word_at(s, self.pointers + slot)).is_ok_and(|w| w == 0)
    }

    /// Data bytes and number of pointers, for a copy.
    pub(super) fn layout(&self) -> (&'a [u8], usize) {
        (self.data, self.pointer_count)
    }

    /// Follows far pointers until the object itself; `None` for an empty slot.
    fn resolve(&self, slot: usize) -> Result<Option<Resolved>, WireError> {
        if slot >= self.pointer_count {
            return Ok(None);
        }
        let here = self.pointers + slot;
        let word = word_at(self.message.segment(self.segment)?, here)?;
        if word == 0 {
            return Ok(None);
        }
        if word & 3 != 2 {
            return near(self.segment, here, word).map(Some);
        }
        // A far pointer: bit 2 says whether one or two words of landing pad, then the pad's offset and segment.
        let (pad_segment, pad) = ((word >> 32) as u32, (word as u32 >> 3) as usize);
        let segment = self.message.segment(pad_segment)?;
        let landing = word_at(segment, pad)?;
        self.message.charge(1)?;
        if word & 4 == 0 {
            // The pad is an ordinary pointer; another hop here would be a loop.
            return if landing & 3 == 2 {
                Err(WireError::Malformed("a far pointer to a far pointer"))
            } else if landing == 0 {
                Ok(None)
            } else {
                near(pad_segment, pad, landing).map(Some)
            };
        }
        if landing & 7 != 2 {
            return Err(WireError::Malformed("a landing pad that is no far pointer"));
        }
        let word = word_at(segment, pad + 1)?;
        if word & 3 > 1 || word as u32 >> 2 != 0 {
            return Err(WireError::Malformed("a landing pad without a plain tag"));
        }
        Ok(Some(Resolved { segment: (landing >> 32) as u32, content: (landing as u32 >> 3) as usize, word }))
    }
}

impl<'a> ListReader<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `index` as a struct; an empty one beyond the end.
    pub fn get(&self, index: usize) -> StructReader<'a> {
        let element = || {
            let start = self.start + index * self.step;
            let data = self.message.segment(self.segment).ok()?.get(start..start + self.data_bytes)?;
            Some(StructReader {
                message: self.message,
                segment: self.segment,
                data,
                pointers: (start + self.data_bytes) / WORD,
                pointer_count: self.pointer_count,
                depth: self.depth,
            })
        };
        if index < self.len { element() } else { None }.unwrap_or_else(|| StructReader::empty(self.message))
    }

    /// All elements.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = StructReader<'a>> + use<'a> {
        let list = *self;
        (0..self.len).map(move |i| list.get(i))
    }

    /// Element layout and bytes, for a copy: data bytes, pointers, bytes from one to the next.
    pub(super) fn layout(&self) -> (usize, usize, usize) {
        (self.data_bytes, self.pointer_count, self.step)
    }
}

/// What a slot holds, for a copy.
pub(super) enum Slot<'a> {
    Null,
    Struct(StructReader<'a>),
    Bytes(&'a [u8]),
    Structs(ListReader<'a>),
    Capability(u32),
}

impl<'a> StructReader<'a> {
    /// What is in `slot`, whatever it is. Lists of structs and of pointers are told from bytes; other lists are not copied.
    pub(super) fn slot(&self, slot: usize) -> Result<Slot<'a>, WireError> {
        let Some(at) = self.resolve(slot)? else { return Ok(Slot::Null) };
        Ok(match at.word & 3 {
            0 => Slot::Struct(self.pointer_to_struct(slot)?),
            1 if at.word >> 32 & 7 == 2 => Slot::Bytes(self.data(slot)?),
            1 => Slot::Structs(self.list(slot)?),
            _ => Slot::Capability((at.word >> 32) as u32),
        })
    }
}

fn word_at(segment: &[u8], word: usize) -> Result<u64, WireError> {
    let start = word * WORD;
    let bytes = segment.get(start..start + WORD).and_then(|b| b.first_chunk::<WORD>()).ok_or(OUT)?;
    Ok(u64::from_le_bytes(*bytes))
}

fn near(segment: u32, at: usize, word: u64) -> Result<Resolved, WireError> {
    if word & 3 == 3 {
        if word as u32 != 3 {
            return Err(WireError::Malformed("a pointer of an unknown kind"));
        }
        return Ok(Resolved { segment, content: at, word });
    }
    let offset = (word as u32 as i32 >> 2) as isize;
    let content = (at + 1).checked_add_signed(offset).ok_or(OUT)?;
    Ok(Resolved { segment, content, word })
}

fn list_word(word: u64) -> Result<(u8, usize), WireError> {
    if word & 3 != 1 {
        return Err(WireError::Malformed("a pointer to something other than a list"));
    }
    Ok(((word >> 32 & 7) as u8, (word >> 35) as usize))
}
