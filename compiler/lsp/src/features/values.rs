//! What stands at a place, in words: types with their sizes, numbers, dims.

use crate::project::Analysis;
use meshwright_core::resolve::Meaning;
use meshwright_diag::Span;
use meshwright_ops::Id;
use meshwright_plan::Dim;

impl Analysis {
    /// What stands at a place; in a layer for each call of it.
    pub(super) fn meanings(&self, at: Span) -> impl Iterator<Item = &Meaning> {
        self.inspection.facts.iter().filter(move |f| f.0 == at).map(|f| &f.1)
    }

    /// What an expression gives that begins at a place and is longer than its first word: a call.
    pub(super) fn results(&self, word: Span) -> Vec<&Meaning> {
        let calls = || {
            let begins = |s: &Span| s.file == word.file && s.start == word.start && s.end > word.end;
            self.inspection.facts.iter().filter(move |f| begins(&f.0))
        };
        let Some(shortest) = calls().map(|f| f.0.end).min() else { return Vec::new() };
        calls().filter(|f| f.0.end == shortest).map(|f| &f.1).collect()
    }

    /// `f32 [batch hidden1]`.
    pub(super) fn type_of(&self, id: Id) -> String {
        let g = &self.inspection.graph;
        let ty = g.ty(id);
        let range = ty.range.map_or(String::new(), |r| format!(" in {}", g.dims.name(r)));
        format!("{}{range} {}", ty.dtype, g.dims.list(&ty.dims))
    }

    /// `batch = 100, hidden1 = 1024`.
    pub(super) fn sizes(&self, dims: &[Dim]) -> String {
        let g = &self.inspection.graph;
        let all = dims.iter().map(|d| format!("{} = {}", g.dims.name(*d), thousands(g.dims.size(*d) as u64)));
        all.collect::<Vec<_>>().join(", ")
    }

    /// A meaning in a line of code.
    pub(super) fn signature(&self, meaning: &Meaning) -> String {
        match meaning {
            Meaning::Value(id) => self.type_of(*id),
            Meaning::Known(text) => text.clone(),
            Meaning::Dims(dims) => self.inspection.graph.dims.list(dims),
            Meaning::Several(all) => all.iter().map(|m| self.signature(m)).collect::<Vec<_>>().join(", "),
        }
    }

    /// The sizes of a meaning, below its line.
    pub(super) fn extent(&self, meaning: &Meaning) -> Option<String> {
        match meaning {
            Meaning::Value(id) => {
                let g = &self.inspection.graph;
                let ty = g.ty(*id);
                let elements = ty.elements(&g.dims) as u64;
                let bytes = bytes(elements.saturating_mul(ty.dtype.bytes() as u64));
                match ty.dims.as_slice() {
                    [] => Some(format!("a scalar, {bytes}")),
                    dims => Some(format!("{}: {} elements, {bytes}", self.sizes(dims), thousands(elements))),
                }
            }
            Meaning::Dims(dims) => Some(self.sizes(dims)).filter(|s| !s.is_empty()),
            Meaning::Known(_) | Meaning::Several(_) => None,
        }
    }
}

/// `1,234,567`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1.5 MiB`.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut x, mut unit) = (n as f64 / 1024.0, 0);
    while x >= 999.5 && unit + 1 < UNITS.len() {
        x /= 1024.0;
        unit += 1;
    }
    let digits = if x >= 99.95 { 0 } else { usize::from(x >= 9.995) };
    let digits = if x < 9.995 { 2 } else { digits };
    format!("{x:.digits$} {}", UNITS[unit])
}

/// `12.3 ms`.
pub(super) fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 1234567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        let sizes = [1023, 1024, 15_667, 204_800, 1 << 20, u64::MAX].map(bytes);
        assert_eq!(sizes, ["1023 B", "1.00 KiB", "15.3 KiB", "200 KiB", "1.00 MiB", "16384 PiB"]);
        assert_eq!([5e-6, 0.0123, 2.0].map(seconds), ["5.0 µs", "12.3 ms", "2.00 s"]);
    }
}
