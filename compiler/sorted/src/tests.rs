//! Maps and sets against those of the standard library.

use crate::{MapEntry, SortedMap, SortedSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Numbers without order, each time the same (Lehmer's generator).
fn numbers() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(20_261_129u64), |n| Some(n * 48_271 % 0x7fff_ffff))
}

fn entries<K: Copy, V: Copy>(map: &SortedMap<K, V>) -> Vec<(K, V)> {
    map.iter().map(|(k, v)| (*k, *v)).collect()
}

#[test]
fn a_map_does_what_a_tree_does() {
    let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
    let mut next = numbers();
    let mut draw = move |below: u64| next.next().unwrap() % below;
    for at in 0..5_000 {
        let key = draw(64);
        match draw(8) {
            0..3 => assert_eq!(map.insert(key, at), tree.insert(key, at)),
            3 => assert_eq!(map.remove(&key), tree.remove(&key)),
            4 => {
                let value = *map.entry(key).and_modify(|v| *v += 1).or_insert(7);
                assert_eq!(value, *tree.entry(key).and_modify(|v| *v += 1).or_insert(7));
            }
            5 => {
                map.retain(|k, _| k % 9 != key % 9);
                tree.retain(|k, _| k % 9 != key % 9);
            }
            6 => assert_eq!(map.pop_first(), tree.pop_first()),
            _ => {
                let more: Vec<(u64, u64)> = (0..draw(40)).map(|_| (draw(64), at)).collect();
                map.extend(more.clone());
                tree.extend(more);
            }
        }
        assert!(map.iter().eq(&tree));
        let asked = draw(64);
        assert_eq!(
            (map.get(&asked), map.contains_key(&asked)),
            (tree.get(&asked), tree.contains_key(&asked))
        );
        let (low, high) = (draw(32), 32 + draw(32));
        assert!(map.range(low..high).eq(tree.range(low..high)));
        assert!(map.range(low..=high).eq(tree.range(low..=high)));
        let above = (Bound::Excluded(low), Bound::Unbounded);
        assert!(map.range(above).eq(tree.range(above)));
        assert_eq!(
            (map.first_key_value(), map.last_key_value()),
            (tree.first_key_value(), tree.last_key_value())
        );
    }
}

#[test]
fn of_equal_keys_the_last_stays() {
    let map: SortedMap<u8, char> = [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')].into_iter().collect();
    assert_eq!(entries(&map), [(1, 'd'), (2, 'c')]);
    let mut map = SortedMap::from([(3, 'a')]);
    map.extend([(3, 'b'), (0, 'c')]);
    assert_eq!(entries(&map), [(0, 'c'), (3, 'b')]);
}

#[test]
fn an_entry_is_read_or_filled() {
    let mut map = SortedMap::from([("a", 1)]);
    assert!(matches!(map.entry("a"), MapEntry::Occupied(entry) if *entry.get() == 1));
    match map.entry("b") {
        MapEntry::Vacant(free) => *free.insert(2) += 1,
        MapEntry::Occupied(_) => panic!("nothing is there"),
    }
    assert_eq!(entries(&map), [("a", 1), ("b", 3)]);
}

#[test]
fn a_set_does_what_a_tree_does() {
    let mut next = numbers();
    let mut draw = move |below: u64| next.next().unwrap() % below;
    let (mut set, mut tree) = (SortedSet::new(), BTreeSet::new());
    for _ in 0..2_000 {
        let item = draw(40);
        match draw(4) {
            0..2 => assert_eq!(set.insert(item), tree.insert(item)),
            2 => assert_eq!(set.remove(&item), tree.remove(&item)),
            _ => assert_eq!(set.pop_first(), tree.pop_first()),
        }
        assert!(set.iter().eq(&tree));
        let other: Vec<u64> = (0..4).map(|_| draw(40)).collect();
        let (a, b) =
            (other.iter().copied().collect::<SortedSet<_>>(), other.into_iter().collect::<BTreeSet<_>>());
        assert!((&set | &a).iter().eq(&(&tree | &b)));
        assert!(set.difference(&a).eq(tree.difference(&b)) && set.intersection(&a).eq(tree.intersection(&b)));
        assert_eq!((a.is_subset(&set), a.is_disjoint(&set)), (b.is_subset(&tree), b.is_disjoint(&tree)));
        assert!(set.range(item..).eq(tree.range(item..)));
    }
}
