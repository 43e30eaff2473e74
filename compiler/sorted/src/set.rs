//! Sets.

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::iter::Map;
use std::ops::{BitOr, RangeBounds};

/// A set in the order of its items.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedSet<T> {
    /// Each with 0: a map of this type is compiled for the keys of maps in any case.
    items: BTreeMap<T, u32>,
}

/// Items of a set that lie in a range.
pub type ItemRange<'a, T> = Map<btree_map::Range<'a, T, u32>, fn((&'a T, &'a u32)) -> &'a T>;

impl<T> SortedSet<T> {
    /// A set without items.
    pub const fn new() -> Self {
        Self { items: BTreeMap::new() }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// The items.
    pub fn iter(&self) -> btree_map::Keys<'_, T, u32> {
        self.items.keys()
    }

    /// The least item.
    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    /// The greatest item.
    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }
}

impl<T: Ord> SortedSet<T> {
    /// Whether an item is in the set.
    pub fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.items.contains_key(item)
    }

    /// The item of the set that equals another.
    pub fn get<Q: Ord + ?Sized>(&self, item: &Q) -> Option<&T>
    where
        T: Borrow<Q>,
    {
        self.items.get_key_value(item).map(|(item, _)| item)
    }

    /// Adds an item. False if it was there.
    pub fn insert(&mut self, item: T) -> bool {
        match self.items.entry(item) {
            btree_map::Entry::Occupied(_) => false,
            btree_map::Entry::Vacant(place) => {
                place.insert(0);
                true
            }
        }
    }

    /// Removes an item. False if it was not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.items.remove(item).is_some()
    }

    /// Removes an item and returns it.
    pub fn take<Q: Ord + ?Sized>(&mut self, item: &Q) -> Option<T>
    where
        T: Borrow<Q>,
    {
        self.items.remove_entry(item).map(|(item, _)| item)
    }

    /// Removes the least item.
    pub fn pop_first(&mut self) -> Option<T> {
        self.items.pop_first().map(|(item, _)| item)
    }

    /// Removes the greatest item.
    pub fn pop_last(&mut self) -> Option<T> {
        self.items.pop_last().map(|(item, _)| item)
    }

    /// Keeps the items for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for item in std::mem::take(self) {
            if keep(&item) {
                self.insert(item);
            }
        }
    }

    /// Moves all items of another set to this one.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }

    /// The items that lie in a range.
    pub fn range<Q: Ord + ?Sized, R: RangeBounds<Q>>(&self, items: R) -> ItemRange<'_, T>
    where
        T: Borrow<Q>,
    {
        self.items.range(items).map(|(item, _)| item)
    }

    /// The items that are not in another set.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.iter().filter(|item| !other.contains(*item))
    }

    /// The items that are in another set too.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.iter().filter(|item| other.contains(*item))
    }

    /// The items of both sets.
    pub fn union<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.iter().chain(other.iter()).collect::<SortedSet<&T>>().into_iter()
    }

    /// Whether all items are in another set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|item| other.contains(item))
    }

    /// Whether no item is in another set.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        !self.iter().any(|item| other.contains(item))
    }
}

impl<T: Ord + Clone> BitOr for &SortedSet<T> {
    type Output = SortedSet<T>;

    fn bitor(self, other: Self) -> SortedSet<T> {
        let mut both = self.clone();
        both.extend(other.iter().cloned());
        both
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for SortedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = Self::new();
        set.extend(items);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<'a, T: Ord + Copy> Extend<&'a T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, items: I) {
        self.extend(items.into_iter().copied());
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = btree_map::IntoKeys<T, u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_keys()
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = btree_map::Keys<'a, T, u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Serialize> Serialize for SortedSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de> + Ord> Deserialize<'de> for SortedSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
