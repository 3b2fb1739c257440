//! A map that is asked and never walked: its order differs from run to run, so that no output may depend on it.

use std::borrow::Borrow;
use std::hash::Hash;

use foldhash::{HashMap, HashMapExt as _};

/// Values by what names them.
pub(super) struct Lookup<K, V>(HashMap<K, V>);

impl<K: Eq + Hash, V> Lookup<K, V> {
    /// An empty one with room for so many.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(HashMap::with_capacity(capacity))
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.0.insert(key, value);
    }

    pub(super) fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &V {
        self.0.entry(key).or_insert_with(value)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<K, V> Default for Lookup<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash, V> FromIterator<(K, V)> for Lookup<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}
