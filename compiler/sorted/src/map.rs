//! Maps.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Index, RangeBounds};

/// A map in the order of its keys.
#[derive(Clone)]
pub struct SortedMap<K, V> {
    /// Where the value of each key lies.
    places: BTreeMap<K, u32>,
    values: Vec<Option<V>>,
    /// Places whose values were removed.
    free: Vec<u32>,
}

impl<K, V> SortedMap<K, V> {
    /// A map without entries.
    pub const fn new() -> Self {
        Self { places: BTreeMap::new(), values: Vec::new(), free: Vec::new() }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Keys with their values.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { places: self.places.iter(), values: &self.values }
    }

    /// Keys with their values, which may be changed.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        let values = self.values.iter_mut().map(Option::as_mut).collect();
        IterMut { places: self.places.iter(), values }
    }

    /// Keys.
    pub fn keys(&self) -> btree_map::Keys<'_, K, u32> {
        self.places.keys()
    }

    /// Values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Values, which may be changed, in the order of their keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The keys of a map that is not needed any more.
    pub fn into_keys(self) -> btree_map::IntoKeys<K, u32> {
        self.places.into_keys()
    }

    /// The values of a map that is not needed any more.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.into_iter().map(|(_, value)| value)
    }

    /// The entry of the least key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entry of the greatest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.iter().next_back()
    }

    fn vacate(&mut self, at: u32) -> Option<V> {
        self.free.push(at);
        self.values[at as usize].take()
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.values[*self.places.get(key)? as usize].as_ref()
    }

    /// The value of a key, with the key that is stored.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (key, at) = self.places.get_key_value(key)?;
        Some((key, self.values[*at as usize].as_ref()?))
    }

    /// The value of a key, which may be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.values[*self.places.get(key)? as usize].as_mut()
    }

    /// Whether a key has a value.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.places.contains_key(key)
    }

    /// Gives a key a value. The value that it had is returned.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.entry(key) {
            MapEntry::Occupied(mut entry) => Some(std::mem::replace(entry.get_mut(), value)),
            MapEntry::Vacant(entry) => {
                entry.insert(value);
                None
            }
        }
    }

    /// Removes a key. Its value is returned.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.places.remove(key)?;
        self.vacate(at)
    }

    /// Removes the entry of the least key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let (key, at) = self.places.pop_first()?;
        Some((key, self.vacate(at)?))
    }

    /// Removes the entry of the greatest key.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        let (key, at) = self.places.pop_last()?;
        Some((key, self.vacate(at)?))
    }

    /// The entry of a key, to be read, changed or filled.
    pub fn entry(&mut self, key: K) -> MapEntry<'_, K, V> {
        let Self { places, values, free } = self;
        match places.entry(key) {
            btree_map::Entry::Occupied(at) => {
                MapEntry::Occupied(OccupiedEntry { value: &mut values[*at.get() as usize] })
            }
            btree_map::Entry::Vacant(place) => MapEntry::Vacant(VacantEntry { place, values, free }),
        }
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        for (key, mut value) in std::mem::take(self) {
            if keep(&key, &mut value) {
                self.insert(key, value);
            }
        }
    }

    /// Moves all entries of another map to this one.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The entries whose keys lie in a range.
    pub fn range<Q: Ord + ?Sized, R: RangeBounds<Q>>(
        &self,
        keys: R,
    ) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone
    where
        K: Borrow<Q>,
    {
        self.places.range(keys).filter_map(|(key, at)| Some((key, self.values[*at as usize].as_ref()?)))
    }
}

/// Entries of a borrowed map.
pub struct Iter<'a, K, V> {
    places: btree_map::Iter<'a, K, u32>,
    values: &'a [Option<V>],
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { places: self.places.clone(), values: self.values }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, at) = self.places.next()?;
        Some((key, self.values[*at as usize].as_ref()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (key, at) = self.places.next_back()?;
        Some((key, self.values[*at as usize].as_ref()?))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

/// Entries of a map whose values may be changed.
pub struct IterMut<'a, K, V> {
    places: btree_map::Iter<'a, K, u32>,
    values: Vec<Option<&'a mut V>>,
}

impl<'a, K, V> Iterator for IterMut<'a, K, V> {
    type Item = (&'a K, &'a mut V);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, at) = self.places.next()?;
        Some((key, self.values[*at as usize].take()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

/// Entries of a map that is not needed any more.
pub struct IntoIter<K, V> {
    places: btree_map::IntoIter<K, u32>,
    values: Vec<Option<V>>,
}

impl<K, V> Iterator for IntoIter<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        let (key, at) = self.places.next()?;
        Some((key, self.values[at as usize].take()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.places.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for IntoIter<K, V> {
    fn next_back(&mut self) -> Option<(K, V)> {
        let (key, at) = self.places.next_back()?;
        Some((key, self.values[at as usize].take()?))
    }
}

impl<K, V> ExactSizeIterator for IntoIter<K, V> {}

/// The entry of a key.
pub enum MapEntry<'a, K, V> {
    /// The key has a value.
    Occupied(OccupiedEntry<'a, V>),
    /// The key has no value.
    Vacant(VacantEntry<'a, K, V>),
}

/// The entry of a key that has a value.
pub struct OccupiedEntry<'a, V> {
    value: &'a mut Option<V>,
}

/// The entry of a key that has no value.
pub struct VacantEntry<'a, K, V> {
    place: btree_map::VacantEntry<'a, K, u32>,
    values: &'a mut Vec<Option<V>>,
    free: &'a mut Vec<u32>,
}

/// A place that a key has holds a value.
const HELD: &str = "each key has a value";

impl<'a, V> OccupiedEntry<'a, V> {
    /// The value.
    pub fn get(&self) -> &V {
        self.value.as_ref().expect(HELD)
    }

    /// The value, to be changed.
    pub fn get_mut(&mut self) -> &mut V {
        self.value.as_mut().expect(HELD)
    }

    /// The value for as long as the map is borrowed.
    pub fn into_mut(self) -> &'a mut V {
        self.value.as_mut().expect(HELD)
    }
}

impl<'a, K: Ord, V> VacantEntry<'a, K, V> {
    /// Gives the key a value.
    ///
    /// # Panics
    /// If the map has four billion values.
    pub fn insert(self, value: V) -> &'a mut V {
        let at = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            u32::try_from(self.values.len() - 1).expect("a map has less than four billion values")
        });
        self.place.insert(at);
        self.values[at as usize].insert(value)
    }
}

impl<'a, K: Ord, V> MapEntry<'a, K, V> {
    /// The value of the key, or else a new one.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// The value of the key, or else the one that `value` makes.
    pub fn or_insert_with(self, value: impl FnOnce() -> V) -> &'a mut V {
        match self {
            Self::Occupied(entry) => entry.into_mut(),
            Self::Vacant(entry) => entry.insert(value()),
        }
    }

    /// The value of the key, or else the one that `value` makes of the key.
    pub fn or_insert_with_key(self, value: impl FnOnce(&K) -> V) -> &'a mut V {
        match self {
            Self::Occupied(entry) => entry.into_mut(),
            Self::Vacant(entry) => {
                let value = value(entry.place.key());
                entry.insert(value)
            }
        }
    }

    /// The value of the key, or else the default.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value of the key, if there is one.
    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Self {
        if let Self::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SortedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for SortedMap<K, V> {}

impl<K: Ord, V: Ord> PartialOrd for SortedMap<K, V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, V: Ord> Ord for SortedMap<K, V> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl<K: Hash, V: Hash> Hash for SortedMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SortedMap<K, V> {
    type Output = V;

    #[track_caller]
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the map has the key")
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<'a, K: Ord + Copy, V: Copy> Extend<(&'a K, &'a V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (&'a K, &'a V)>>(&mut self, entries: I) {
        self.extend(entries.into_iter().map(|(k, v)| (*k, *v)));
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        IntoIter { places: self.places.into_iter(), values: self.values }
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = SortedMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = SortedMap::new();
                while let Some((key, value)) = map.next_entry()? {
                    entries.insert(key, value);
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
