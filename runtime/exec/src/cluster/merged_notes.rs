//! Notes of several devices, merged.

/// The notes of devices, in ascending rank from `first`: each once, with the ranks that say it where not all do.
pub(super) fn merged(first: usize, all: Vec<Vec<String>>) -> Vec<String> {
    let devices = all.len();
    let mut found: Vec<(String, Vec<usize>)> = vec![];
    for (local, notes) in all.into_iter().enumerate() {
        for note in notes {
            match found.iter_mut().find(|(known, _)| *known == note) {
                Some((_, ranks)) => ranks.push(first + local),
                None => found.push((note, vec![first + local])),
            }
        }
    }
    let said = |(note, ranks): (String, Vec<usize>)| match &ranks[..] {
        all if all.len() == devices => note,
        [one] => format!("rank {one}: {note}"),
        several => {
            let several: Vec<String> = several.iter().map(usize::to_string).collect();
            format!("ranks {}: {note}", several.join(", "))
        }
    };
    found.into_iter().map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn notes_are_told_once_with_who_says_them() {
        let of = |all: &[&[&str]]| {
            merged(4, all.iter().map(|notes| notes.iter().map(|n| (*n).to_string()).collect()).collect())
        };
        assert!(of(&[]).is_empty() && of(&[&[], &[]]).is_empty());
        assert_eq!(of(&[&["a", "b"], &["a", "b"]]), ["a", "b"]);
        assert_eq!(of(&[&["a"], &["b", "a"], &["b"]]), ["ranks 4, 5: a", "ranks 5, 6: b"]);
        assert_eq!(of(&[&[], &["a"]]), ["rank 5: a"]);
        assert_eq!(of(&[&["a"]]), ["a"]);
    }
}
