//! Which part of a parameter a rule is for: `word[0..11] = …`, `layers[0..2].* = …`.

use super::target::Target;
use super::view::DimPart;
use meshwright_core::StackPart;
use meshwright_plan::Dim;
use std::ops::Range;

/// A part of a parameter, as a rule has it; all of it where nothing is said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RegionOf {
    /// Along dims by their names: iterations of loops.
    loops: Vec<(String, DimPart)>,
    /// Along dims by their order, the first first.
    parts: Vec<DimPart>,
}

impl RegionOf {
    /// Takes the positions out of a name before `=`. An error says what is wrong.
    pub(super) fn read(text: &str) -> Result<(String, RegionOf), String> {
        let (mut name, mut region, mut rest) = (String::new(), RegionOf::default(), text);
        while let Some((before, inner)) = rest.split_once('[') {
            let (inner, after) = inner.split_once(']').ok_or("its `[` has no `]`")?;
            let parts: Vec<DimPart> =
                inner.split(',').map(|p| DimPart::read(p.trim())).collect::<Result<_, _>>()?;
            name.push_str(before);
            match (after.is_empty(), parts.as_slice()) {
                (true, _) => region.parts = parts,
                (false, [one]) => {
                    let dim = before.rsplit('.').next().unwrap_or(before);
                    region.loops.push((dim.to_string(), one.clone()));
                }
                (false, _) => {
                    return Err(format!("`{before}[…]` within a name has the iterations of one loop"));
                }
            }
            rest = after;
        }
        name.push_str(rest);
        Ok((name, region))
    }

    /// Whether it is all of a parameter.
    pub(crate) fn is_whole(&self) -> bool {
        self.loops.is_empty() && self.parts.is_empty()
    }

    /// The positions along each dim of a parameter. An error says what it has not.
    pub(super) fn of(&self, t: &Target) -> Result<Vec<Range<usize>>, String> {
        if self.parts.len() > t.shape.len() {
            return Err(format!("it is {}, and not of {} dims or more", t.dims, self.parts.len()));
        }
        let mut out: Vec<Range<usize>> = t.shape.iter().map(|n| 0..*n).collect();
        let mut narrow = |at: usize, part: &DimPart| {
            let within = part.within(t.shape[at]).map_err(|why| format!("it is {}, {why}", t.dims))?;
            out[at] = within;
            Ok::<(), String>(())
        };
        for (at, part) in self.parts.iter().enumerate() {
            narrow(at, part)?;
        }
        for (name, part) in &self.loops {
            let at = t.names.iter().position(|n| n == name);
            narrow(at.ok_or(format!("it is {}, without a dim `{name}`", t.dims))?, part)?;
        }
        Ok(out)
    }
}

/// Whether some parts of a tensor of `shape` are all of it.
pub(super) fn cover(parts: &[Vec<Range<usize>>], shape: &[usize]) -> bool {
    // A dim is known by its place.
    let part = |ranges: &[Range<usize>]| {
        StackPart(ranges.iter().enumerate().map(|(at, r)| (Dim(at as u32), r.clone())).collect())
    };
    let whole: Vec<Range<usize>> = shape.iter().map(|n| 0..*n).collect();
    StackPart::cover(&parts.iter().map(|p| part(p)).collect::<Vec<_>>(), part(&whole))
}

/// `[0..11, ..]`: where of a tensor of `shape` a part is; without the dims at its end that are whole.
pub(super) fn shown(part: &[Range<usize>], shape: &[usize]) -> String {
    let whole = |at: usize| part[at] == (0..shape[at]);
    let last = (0..part.len()).rfind(|at| !whole(*at));
    let dims = (0..last.map_or(0, |at| at + 1)).map(|at| match whole(at) {
        true => "..".to_string(),
        false => format!("{}..{}", part[at].start, part[at].end),
    });
    let dims: Vec<String> = dims.collect();
    if dims.is_empty() { String::new() } else { format!("[{}]", dims.join(", ")) }
}
