//! What the brackets and options of convolution and pooling say: how a kernel slides along each dim.

use crate::signature::{Arrow, Choice, DIM, DimGroup, Unset};
use crate::tensor::each_position;
use crate::{Graph, OpCall, OpError, Setting, Type, Value};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, SlidingWindow};

/// Windows along one to three dims.
pub(super) const WINDOWS: DimGroup =
    DimGroup { text: "rows -> r2 by kh, cols by kw", most: 3, arrow: Arrow::May, window: true, ..DIM };

/// Greatest stride, dilation, padding and window: beyond it lies a mistake, and below it nothing overflows.
const LIMIT: f64 = 1_048_576.0;

pub(super) const PADDING: Choice = Choice {
    words: &["same", "valid"],
    default: Unset::Is(Setting::Word("valid")),
    ..Choice::whole(
        "padding",
        (0.0, LIMIT),
        0.0,
        "elements beyond both ends: none for `valid`, enough to keep the size at stride 1 for `same`",
    )
};
pub(super) const STRIDE: Choice =
    Choice::whole("stride", (1.0, LIMIT), 1.0, "how far the window moves from one position to the next");
pub(super) const DILATION: Choice = Choice::whole(
    "dilation",
    (1.0, LIMIT),
    1.0,
    "how far apart the elements under a window are; 1 for neighbors",
);

/// All dims of windows.
pub(super) fn dims(slides: &[SlidingWindow]) -> Vec<Dim> {
    slides.iter().flat_map(|s| [s.wide, s.narrow, s.tap]).collect()
}

/// What stands beyond the ends of a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    /// So much that there is a position for every `stride` elements.
    Same,
    /// Nothing.
    Valid,
    /// That many elements on both sides.
    By(usize),
}

/// Which of the two dims of a slide the operand has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    /// The elements; the result has the positions.
    Wide,
    /// The positions; the result has the elements.
    Narrow,
}

/// The options of a call.
struct Options {
    padding: Padding,
    /// The size of the window where it is not given.
    stride: Option<usize>,
    dilation: usize,
}

/// One piece without its options: the operand's dim, the result's if it is named, and the taps.
struct Step {
    from: Dim,
    to: Option<Dim>,
    tap: Dim,
}

/// The slides of a call whose first operand is of type `x`. Where `by_window`, the stride is the size of the window
/// unless it is given.
///
/// # Errors
/// Where the brackets are not windows, an option is no such number, or a dim of the result is missing or of another size.
pub(super) fn slides(
    g: &mut Graph,
    c: &OpCall,
    x: &Type,
    has: Has,
    by_window: bool,
) -> Result<Vec<SlidingWindow>, OpError> {
    let whole = |name: &str| c.number(name).map(|v| v as usize);
    let padding = match (c.option("padding"), whole("padding")) {
        (Some(Setting::Word("same")), _) => Padding::Same,
        (_, Some(n)) => Padding::By(n),
        _ => Padding::Valid,
    };
    let options = Options { padding, stride: whole("stride"), dilation: whole("dilation").unwrap_or(1) };
    let mut out = Vec::new();
    let mut seen: Vec<Dim> = Vec::new();
    for p in &c.groups[0] {
        // The signature says that a piece is one dim by a window.
        let (Some(from), Some(tap)) = (p.dims.first().copied(), p.by) else { continue };
        let s = Step { from, to: p.to.first().copied(), tap };
        // Of a pool the taps are a size and no more: two windows may share them.
        let again = by_window && out.iter().any(|o: &SlidingWindow| o.tap == s.tap);
        for d in [Some(s.from), Some(s.tap), s.to.filter(|t| *t != s.from)].into_iter().flatten() {
            if seen.contains(&d) && !(again && d == s.tap) {
                let text = format!("`{}[…]` names `{}` twice", c.name, g.dims.name(d));
                return Err(OpError::new(codes::E0203, text));
            }
            seen.push(d);
        }
        let s = slide(g, c, x, &s, &options, has)?;
        g.captured.extend([s.wide, s.narrow, s.tap]);
        out.push(s);
    }
    Ok(out)
}

/// Refuses whole numbers.
///
/// # Errors
/// Where an operand is neither of floats nor of truth values.
pub(super) fn floats(g: &Graph, c: &OpCall) -> Result<(), OpError> {
    for (i, v) in c.args.iter().enumerate() {
        if let Value::Tensor(id) = v
            && !(g.ty(*id).dtype.is_float() || g.ty(*id).dtype == DType::Bool)
        {
            let text = format!("`{}` takes floats or truth values, not {}", c.name, g.ty(*id).dtype);
            return Err(OpError::new(codes::E0202, text).operand(i).help("convert it: `cast(…, float)`"));
        }
    }
    Ok(())
}

/// Refuses windows that are empty or beyond all use.
fn taps(g: &Graph, c: &OpCall, s: &Step) -> Result<(), OpError> {
    let (from, tap, size) = (g.dims.name(s.from), g.dims.name(s.tap), g.dims.size(s.tap));
    if size == 0 {
        return Err(OpError::new(codes::E0204, format!("`{}[{from} by {tap}]`: `{tap}` has size 0", c.name)));
    }
    if size as f64 > LIMIT {
        let text = format!("a window of {size} elements: at most {LIMIT} are taken");
        let help = format!("a smaller `{tap}`: `{from}` has {}", g.dims.size(s.from));
        return Err(OpError::new(codes::E0204, text).operand(0).help(help));
    }
    Ok(())
}

fn slide(g: &Graph, c: &OpCall, x: &Type, s: &Step, o: &Options, has: Has) -> Result<SlidingWindow, OpError> {
    let table = &g.dims;
    let (from, tap) = (table.name(s.from), table.name(s.tap));
    if x.has(s.tap) {
        let text = format!("`{tap}` is a window of `{}` and a dim of what it slides over", c.name);
        return Err(OpError::new(codes::E0203, text).operand(0).help("give the window a dim of its own"));
    }
    taps(g, c, s)?;
    let shape = Shape {
        reach: (table.size(s.tap) - 1) * o.dilation,
        stride: o.stride.unwrap_or(table.size(s.tap)),
        padding: o.padding,
    };
    let keeps = o.padding == Padding::Same && shape.stride == 1;
    let (fits, least) = match has {
        Has::Wide => match shape.positions(table.size(s.from)) {
            Some(n) => (n..=n, n),
            None => {
                let text = format!(
                    "a window over {} elements does not fit `{from}`, which has {}",
                    shape.reach + 1,
                    table.size(s.from)
                );
                return Err(OpError::new(codes::E0204, text)
                    .operand(0)
                    .help(format!("`padding = same`, or a smaller `{tap}`")));
            }
        },
        Has::Narrow => {
            let fits = shape.elements(table.size(s.from));
            let least = if o.padding == Padding::Same { *fits.end() } else { *fits.start() };
            (fits, least)
        }
    };
    let to = match s.to {
        None if keeps => s.from,
        None => {
            let text = format!(
                "`{}[{from} by {tap}]` gives {least} for {} of `{from}`: the result needs a dim of its own",
                c.name,
                table.size(s.from)
            );
            let (with, new) = (format!("{from} -> {from}2 by {tap}"), format!("dim {from}2 = {least}"));
            return Err(OpError::new(codes::E0204, text)
                .help(format!("write `{}[{with}]` and declare `{new}`", c.name)));
        }
        Some(to) if fits.contains(&table.size(to)) && (keeps || to != s.from) => to,
        Some(to) => {
            let (name, must) = (
                table.name(to),
                if fits.start() == fits.end() {
                    fits.start().to_string()
                } else {
                    format!("{} to {}", fits.start(), fits.end())
                },
            );
            let error = OpError::new(
                codes::E0204,
                format!(
                    "`{}[{from} -> {name} by {tap}]`: `{name}` has size {}, but {} of `{from}` give {must}",
                    c.name,
                    table.size(to),
                    table.size(s.from)
                ),
            );
            return Err(if to == s.from {
                error.help(format!(
                    "name another dim: `{from} -> {from}2 by {tap}` with `dim {from}2 = {least}`"
                ))
            } else {
                error.help(format!("declare `dim {name} = {least}`"))
            });
        }
    };
    let (wide, narrow) = if has == Has::Wide { (s.from, to) } else { (to, s.from) };
    let low = shape.low(table.size(wide));
    Ok(SlidingWindow { wide, narrow, tap: s.tap, stride: shape.stride, dilation: o.dilation, low })
}

/// Sizes along one dim.
struct Shape {
    reach: usize,
    stride: usize,
    padding: Padding,
}

impl Shape {
    /// Positions over `n` elements; `None` where the window is larger than what there is.
    fn positions(&self, n: usize) -> Option<usize> {
        let padded = match self.padding {
            Padding::Same => return Some(n.div_ceil(self.stride)),
            Padding::Valid => n,
            Padding::By(p) => n + 2 * p,
        };
        Some(padded.checked_sub(self.reach + 1)? / self.stride + 1)
    }

    /// How many elements may have `n` positions.
    fn elements(&self, n: usize) -> std::ops::RangeInclusive<usize> {
        let (last, end) = (n.saturating_sub(1) * self.stride, n * self.stride);
        let added = match self.padding {
            Padding::Same => return (last + 1).min(end)..=end,
            Padding::Valid => 0,
            Padding::By(p) => 2 * p,
        };
        (last + self.reach + 1).saturating_sub(added).max(1)..=(end + self.reach).saturating_sub(added)
    }

    /// Elements of padding before the first.
    fn low(&self, wide: usize) -> usize {
        match self.padding {
            Padding::Valid => 0,
            Padding::By(p) => p,
            Padding::Same => {
                let last = wide.div_ceil(self.stride).saturating_sub(1) * self.stride;
                (last + self.reach + 1).saturating_sub(wide) / 2
            }
        }
    }
}

/// The dims of a value in which each slide's dim is replaced: elements by positions, or the other way round.
pub(super) fn replaced(dims: &[Dim], slides: &[SlidingWindow], has: Has) -> Vec<Dim> {
    let other = |d: &Dim| {
        let pair = |s: &SlidingWindow| if has == Has::Wide { (s.wide, s.narrow) } else { (s.narrow, s.wide) };
        slides.iter().map(pair).find(|p| p.0 == *d).map_or(*d, |p| p.1)
    };
    dims.iter().map(other).collect()
}

/// Calls `f` with every position along `dims`, the number of every tap that meets an element there, and the dims and
/// position of that element.
pub(super) fn each_covered(
    table: &Dims,
    dims: &[Dim],
    slides: &[SlidingWindow],
    mut f: impl FnMut(&[usize], usize, &[Dim], &[usize]),
) {
    let elements = replaced(dims, slides, Has::Narrow);
    let taps: Vec<Dim> = slides.iter().map(|s| s.tap).collect();
    each_position(&table.shape(dims), |at| {
        let mut number = 0;
        each_position(&table.shape(&taps), |tap| {
            let mut place = at.to_vec();
            let mut inside = true;
            for (s, t) in slides.iter().zip(tap) {
                let k = dims.iter().position(|d| *d == s.narrow).unwrap_or(0);
                match s.element(at[k], *t, table) {
                    Some(i) => place[k] = i,
                    None => inside = false,
                }
            }
            if inside {
                f(at, number, &elements, &place);
            }
            number += 1;
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_tensorflow() {
        // (elements, taps, stride, dilation, padding) -> (positions, low)
        for (n, k, stride, dilation, padding, positions, low) in [
            (28, 9, 1, 1, Padding::Same, 28, 4),
            (28, 4, 1, 1, Padding::Same, 28, 1),
            (28, 3, 2, 1, Padding::Same, 14, 0),
            (7, 3, 2, 1, Padding::Same, 4, 1),
            (5, 1, 3, 1, Padding::Same, 2, 0),
            (28, 3, 1, 2, Padding::Same, 28, 2),
            (28, 2, 2, 1, Padding::Valid, 14, 0),
            (9, 3, 2, 2, Padding::Valid, 3, 0),
            (5, 3, 1, 1, Padding::By(2), 7, 2),
        ] {
            let s = Shape { reach: (k - 1) * dilation, stride, padding };
            assert_eq!((s.positions(n), s.low(n)), (Some(positions), low), "{n} {k} {stride} {dilation}");
            assert!(s.elements(positions).contains(&n));
            let fits: Vec<usize> = (1..100).filter(|m| s.positions(*m) == Some(positions)).collect();
            assert_eq!(
                (fits[0], fits[fits.len() - 1]),
                (*s.elements(positions).start(), *s.elements(positions).end())
            );
        }
        let larger = Shape { reach: 8, stride: 1, padding: Padding::Valid };
        assert_eq!(larger.positions(8), None);
    }
}
