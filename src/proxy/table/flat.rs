//! A map from short texts to small values, built once and looked up by every request. What a text or a value means is not known
//! here.
//!
//! A lookup among many entries costs what it touches of memory, so that it touches two cache lines: a slot of four bytes that
//! names the entry, and the entry with its text and value. The slots of 100,000 entries fit into a second-level cache.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU32;

use foldhash::fast::FixedState;

/// Texts are kept apart by scope: the same text may stand for something else in each.
pub(super) struct FlatMap<V> {
    /// Chosen at random for each map: who writes routes must not be able to write them so that all lead to one slot.
    hasher: FixedState,
    /// Open addressing, at most half full, a power of two. Zero is free; otherwise the number of an entry in the bits that number
    /// slots, and above them those bits of its hash.
    slots: Box<[u32]>,
    entries: Vec<Entry<V>>,
    /// Texts that do not fit into their entry.
    long: String,
}

/// One cache line, for values of up to 16 bytes.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry<V> {
    scope: u32,
    hash: u32,
    value: V,
    /// Bytes of the text.
    length: u32,
    /// The text, or where it begins in `long`.
    text: [u8; INLINE],
}

/// Longest text that an entry holds itself.
const INLINE: usize = 36;

/// Names an entry, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(NonZeroU32);

impl Number {
    /// For use as a scope; never zero.
    pub(super) const fn scope(self) -> u32 {
        self.0.get()
    }

    const fn at(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<V> Default for FlatMap<V> {
    fn default() -> Self {
        let hasher = FixedState::with_seed(RandomState::new().build_hasher().finish());
        Self { hasher, slots: Box::default(), entries: Vec::new(), long: String::new() }
    }
}

impl<V> FlatMap<V> {
    const ONE_LINE: () = assert!(size_of::<Entry<V>>() == 64, "an entry is one cache line");

    /// The entry of a text.
    pub(super) fn get(&self, scope: u32, text: &str) -> Option<Number> {
        // Nothing to hash for.
        if self.entries.is_empty() {
            return None;
        }
        self.find(self.hash(scope, text), scope, text)
    }

    fn find(&self, hash: u32, scope: u32, text: &str) -> Option<Number> {
        let mask = self.slots.len().checked_sub(1)?;
        let above = hash & !low(mask);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            let number = Number(NonZeroU32::new(slot & low(mask))?);
            if slot & !low(mask) == above && self.entries[number.at()].is(scope, text, &self.long) {
                return Some(number);
            }
            at = (at + 1) & mask;
        }
    }

    /// The value of a text.
    pub(super) fn value_of(&self, text: &str) -> Option<&V> {
        self.get(0, text).map(|number| self.value(number))
    }

    /// The value of an entry.
    pub(super) fn value(&self, number: Number) -> &V {
        &self.entries[number.at()].value
    }

    /// The value of an entry.
    pub(super) fn value_mut(&mut self, number: Number) -> &mut V {
        &mut self.entries[number.at()].value
    }

    /// The entry of a text; a new one gets the value.
    pub(super) fn get_or_insert(&mut self, scope: u32, text: &str, value: V) -> Number {
        let () = Self::ONE_LINE;
        let hash = self.hash(scope, text);
        if let Some(number) = self.find(hash, scope, text) {
            return number;
        }
        let number = number(self.entries.len());
        if self.slots.len() < number.at() * 2 + 2 {
            self.grow(number.at() * 2 + 2);
        }
        self.occupy(number, hash);
        let mut room = [0; INLINE];
        if let Some(room) = room.get_mut(..text.len()) {
            room.copy_from_slice(text.as_bytes());
        } else {
            room[..4].copy_from_slice(&small(self.long.len()).to_ne_bytes());
            self.long.push_str(text);
        }
        self.entries.push(Entry { scope, hash, value, length: small(text.len()), text: room });
        number
    }

    /// Room for so many entries in all.
    pub(super) fn reserve(&mut self, entries: usize) {
        self.entries.reserve_exact(entries.saturating_sub(self.entries.len()));
        if self.slots.len() < entries * 2 {
            self.grow(entries * 2);
        }
    }

    /// Gives back what growing took too much.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.long.shrink_to_fit();
    }

    fn grow(&mut self, slots: usize) {
        self.slots = vec![0; slots.max(4).next_power_of_two()].into();
        for at in 0..self.entries.len() {
            self.occupy(number(at), self.entries[at].hash);
        }
    }

    fn occupy(&mut self, number: Number, hash: u32) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = (hash & !low(mask)) | number.0.get();
    }

    fn hash(&self, scope: u32, text: &str) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(scope);
        hasher.write(text.as_bytes());
        // The lower half is as good as the upper one.
        hasher.finish() as u32
    }
}

impl<V> Entry<V> {
    fn is(&self, scope: u32, text: &str, long: &str) -> bool {
        if self.scope != scope || self.length as usize != text.len() {
            return false;
        }
        match self.text.get(..text.len()) {
            Some(own) => own == text.as_bytes(),
            None => self.begin().and_then(|begin| long.get(begin..begin + text.len())) == Some(text),
        }
    }

    fn begin(&self) -> Option<usize> {
        self.text.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize)
    }
}

impl<V> fmt::Debug for FlatMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatMap").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

/// The bits that number slots; there are never as many slots as a `u32` counts.
const fn low(mask: usize) -> u32 {
    mask as u32
}

fn number(at: usize) -> Number {
    Number(NonZeroU32::MIN.saturating_add(small(at)))
}

fn small(size: usize) -> u32 {
    u32::try_from(size).expect("a document of 2^31 texts or 2^32 bytes of them does not fit into memory")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_hash_map_holds(
            texts in proptest::collection::vec((0..3_u32, "[ab.]{0,4}|[a-c]{30,80}|ä{10,20}"), 0..300),
            absent in proptest::collection::vec((0..4_u32, "[ab.]{0,5}|[a-c]{35,38}"), 50),
        ) {
            let (mut flat, mut model) = (FlatMap::<u32>::default(), HashMap::new());
            for (at, (scope, text)) in texts.iter().enumerate() {
                let number = flat.get_or_insert(*scope, text, at as u32);
                prop_assert_eq!(*flat.value(number), *model.entry((*scope, text.clone())).or_insert(at as u32));
            }
            flat.shrink();
            for (scope, text) in texts.iter().chain(&absent) {
                let found = flat.get(*scope, text).map(|number| *flat.value(number));
                prop_assert_eq!(found, model.get(&(*scope, text.clone())).copied(), "{} {}", scope, text);
            }
        }
    }

    #[test]
    fn what_fills_it_in_one_go_and_one_by_one_is_the_same() {
        let texts: Vec<String> = (0..5_000).map(|i| format!("app-{i}.{}example.com", "x".repeat(i % 40))).collect();
        let (mut grown, mut reserved) = (FlatMap::<u32>::default(), FlatMap::<u32>::default());
        reserved.reserve(texts.len());
        for (at, text) in texts.iter().enumerate() {
            grown.get_or_insert(0, text, at as u32);
            reserved.get_or_insert(0, text, at as u32);
        }
        for (at, text) in texts.iter().enumerate() {
            assert_eq!((grown.value_of(text), reserved.value_of(text)), (Some(&(at as u32)), Some(&(at as u32))));
            assert_eq!(grown.get(1, text), None);
        }
        assert_eq!(FlatMap::<u32>::default().value_of("a"), None);
    }
}
