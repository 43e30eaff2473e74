//! Vectors that are indexed by an id of their own type, so that an id of one thing never indexes another.

use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A position in an [`IdVec`].
pub trait ArenaId: Copy {
    /// The id of a position.
    fn at(position: usize) -> Self;

    /// Its position.
    fn position(self) -> usize;
}

/// One `T` for each id from the first on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    #[serde(skip)]
    id: PhantomData<fn(I)>,
}

impl<I: ArenaId, T> IdVec<I, T> {
    /// None.
    pub const fn new() -> Self {
        IdVec { items: Vec::new(), id: PhantomData }
    }

    /// A table of the same ids, with one value for all of them.
    pub fn table<U: Clone>(&self, value: U) -> IdVec<I, U> {
        IdVec { items: vec![value; self.items.len()], id: PhantomData }
    }

    /// One more; gives its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::at(self.items.len() - 1)
    }

    /// Makes room for items that will be added.
    pub fn reserve(&mut self, more: usize) {
        self.items.reserve(more);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::at)
    }

    /// All in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<I: ArenaId, T> Default for IdVec<I, T> {
    fn default() -> Self {
        IdVec::new()
    }
}

impl<I: ArenaId, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<S: IntoIterator<Item = T>>(items: S) -> Self {
        IdVec { items: items.into_iter().collect(), id: PhantomData }
    }
}

impl<I: ArenaId, T> Index<I> for IdVec<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.position()]
    }
}

impl<I: ArenaId, T> IndexMut<I> for IdVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.position()]
    }
}

impl<'v, I: ArenaId, T> IntoIterator for &'v IdVec<I, T> {
    type Item = &'v T;
    type IntoIter = std::slice::Iter<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
