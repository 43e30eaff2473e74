//! Elements of paths such as `layers.attention.*`: which declarations they may mean.

use super::collector::Collector;
use super::symbols::{PathElement, SymbolKind};
use meshwright_diag::Span;

impl Collector<'_> {
    /// Adds the elements of the path at a place.
    pub(super) fn path(&mut self, path: Span) {
        let words = words(self.sources.slice(path));
        let count = words.len();
        for (i, (start, word)) in words.into_iter().enumerate() {
            let start = path.start + start as u32;
            let at = Span { start, end: start + word.len() as u32, ..path };
            let mut symbols: Vec<usize> = (0..self.names.symbols.len())
                .filter(|k| {
                    let s = &self.names.symbols[*k];
                    s.kind.in_paths() && s.name == word
                })
                .collect();
            // A call bears the name of its layer only where no label names it; the model's own declarations come first.
            symbols.sort_by_key(|k| {
                let s = &self.names.symbols[*k];
                (s.kind == SymbolKind::Layer, Some(s.at.file) != self.main)
            });
            if !symbols.is_empty() {
                self.names.paths.push(PathElement { at, path, last: i + 1 == count, symbols });
            }
        }
    }
}

/// The words of a path with their places in it; positions of loops, as in `layers[0..2]`, are left out.
fn words(path: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (i, c) in path.char_indices().chain([(path.len(), '.')]) {
        let ends = matches!(c, '.' | '[' | ']' | '*');
        if ends && !inside && start < i {
            out.push((start, &path[start..i]));
        }
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        if ends {
            start = i + c.len_utf8();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_of_paths_have_their_places() {
        assert_eq!(words("layers.attention.*"), [(0, "layers"), (7, "attention")]);
        assert_eq!(words("layers[0..2].norm1"), [(0, "layers"), (13, "norm1")]);
        assert_eq!(words("*.b"), [(2, "b")]);
        assert_eq!(words("*"), []);
    }
}
