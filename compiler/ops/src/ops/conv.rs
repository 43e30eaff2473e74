//! `conv[rows by kh, cols by kw; in](x, w)` and its transpose.

use super::Convolve;
use super::slides::{DILATION, Has, PADDING, STRIDE, WINDOWS, replaced, slides};
use crate::family::float;
use crate::signature::{Argument, DIM, DimGroup, Of};
use crate::{Family, Graph, Id, OpCall, OpError, Sample, Setting, Signature};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Part, SlidingWindow};

/// Windows, and behind a `;` the dims that are summed.
const SIGNATURE: Signature = Signature {
    operands: &[Argument::once("x"), Argument::once("w")],
    groups: &[WINDOWS, DimGroup { text: "in", least: 0, most: usize::MAX, of: Of::Other, ..DIM }],
    options: &[PADDING, STRIDE, DILATION],
    ..Signature::UNARY
};

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "conv",
        signature: SIGNATURE,
        doc: "`conv[rows by kh, cols by kw; in](x, w, padding = same, stride = 1, dilation = 1)`: the taps `kh`, `kw` of \
              `w` slide along one to three dims of `x`; the product is summed over the taps and the dims behind `;`. A dim \
              that both have and that is not summed is a group. `rows -> r2 by kh` names the dim of the result; with \
              `padding = same` and stride 1 it stays. Padding is `valid` (none) unless it is given.",
        build: |g, c| build(g, c, Part::Result),
        samples: conv_samples,
    },
    Family {
        name: "conv_transpose",
        signature: SIGNATURE,
        doc: "`conv_transpose[rows -> r2 by kh; in](x, w, stride = 2)`: the transpose of the `conv` that gives `rows` \
              from `r2`: every element of `x` adds `w` to the elements of the result that the window covers.",
        build: |g, c| build(g, c, Part::Input),
        samples: transpose_samples,
    },
];

const SAME: (&str, Setting) = ("padding", Setting::Word("same"));
const STRIDE2: (&str, Setting) = ("stride", Setting::Number(2.0));

fn conv_samples() -> Vec<Sample> {
    [conv_same_samples(), conv_spaced_samples()].concat()
}

fn conv_same_samples() -> Vec<Sample> {
    let (b, i, o) = (("b", 2), ("c", 3), ("o", 2));
    let (r7, r5, r9, s5) = (("r", 7), ("r", 5), ("r", 9), ("s", 5));
    let (k3, l2) = (("k", 3), ("l", 2));
    vec![
        Sample::bracket(
            "same",
            "conv",
            &[&[(&["r"], &[], Some("k"))], &[(&["c"], &[], None)]],
            &[SAME],
            &[],
            vec![float(&[b, r7, i]), float(&[k3, i, o])],
        ),
        Sample::bracket(
            "kernel larger than the dim",
            "conv",
            &[&[(&["r"], &[], Some("k"))]],
            &[SAME],
            &[],
            vec![float(&[b, r5]), float(&[("k", 9)])],
        ),
        Sample::bracket(
            "two dims",
            "conv",
            &[&[(&["r"], &[], Some("k")), (&["s"], &[], Some("l"))], &[(&["c"], &[], None)]],
            &[SAME],
            &[],
            vec![float(&[r7, s5, i]), float(&[k3, l2, i])],
        ),
        Sample::bracket(
            "same, stride 2",
            "conv",
            &[&[(&["r"], &["n"], Some("k"))], &[(&["c"], &[], None)]],
            &[SAME, STRIDE2],
            &[("n", 5)],
            vec![float(&[b, r9, i]), float(&[k3, i])],
        ),
    ]
}

fn conv_spaced_samples() -> Vec<Sample> {
    let (b, i, o, g) = (("b", 2), ("c", 3), ("o", 2), ("g", 2));
    let (r7, r5, r9, s5) = (("r", 7), ("r", 5), ("r", 9), ("s", 5));
    let (k3, k2, l3, l2) = (("k", 3), ("k", 2), ("l", 3), ("l", 2));
    vec![
        Sample::bracket(
            "valid, dilation 2",
            "conv",
            &[&[(&["r"], &["n"], Some("k"))]],
            &[("dilation", Setting::Number(2.0))],
            &[("n", 5)],
            vec![float(&[r9, b]), float(&[k3, o])],
        ),
        Sample::bracket(
            "padding 2, stride 3",
            "conv",
            &[&[(&["r"], &["n"], Some("k"))]],
            &[("padding", Setting::Number(2.0)), ("stride", Setting::Number(3.0))],
            &[("n", 4)],
            vec![float(&[b, r7]), float(&[k2, o])],
        ),
        Sample::bracket(
            "groups",
            "conv",
            &[&[(&["r"], &[], Some("k"))], &[(&["c"], &[], None)]],
            &[SAME],
            &[],
            vec![float(&[r5, g, i]), float(&[g, k3, i, o])],
        ),
        Sample::bracket(
            "depthwise, kernel dims first",
            "conv",
            &[&[(&["r"], &["n"], Some("k")), (&["s"], &["m"], Some("l"))]],
            &[STRIDE2],
            &[("n", 3), ("m", 2)],
            vec![float(&[g, r7, s5]), float(&[g, k3, l3])],
        ),
        Sample::bracket(
            "three dims",
            "conv",
            &[&[(&["r"], &[], Some("k")), (&["s"], &[], Some("l")), (&["t"], &[], Some("m"))]],
            &[SAME],
            &[],
            vec![float(&[r5, ("s", 2), ("t", 3)]), float(&[k3, l2, ("m", 2)])],
        ),
        // The positions meet another value, so that a rule splits them on their own.
        Sample::new(
            "positions have a rule",
            vec![float(&[b, r7]), float(&[k3]), float(&[("n", 4)])],
            |g, x| {
                let find = |d: &str| {
                    g.dims.find(d).ok_or_else(|| OpError::new(codes::E0201, format!("no dim `{d}`")))
                };
                let slide = SlidingWindow {
                    wide: find("r")?,
                    narrow: find("n")?,
                    tap: find("k")?,
                    stride: 2,
                    dilation: 1,
                    low: 1,
                };
                let out = vec![find("b")?, find("n")?];
                let y = g.op(Convolve { slides: vec![slide], gives: Part::Result, out }, &x[..2]);
                Ok(g.product(&[y, x[2]]))
            },
        ),
    ]
}

fn transpose_samples() -> Vec<Sample> {
    let (b, i, o) = (("b", 2), ("c", 3), ("o", 2));
    vec![
        Sample::bracket(
            "same, stride 2",
            "conv_transpose",
            &[&[(&["r"], &["n"], Some("k"))], &[(&["c"], &[], None)]],
            &[SAME, STRIDE2],
            &[("n", 9)],
            vec![float(&[b, ("r", 5), i]), float(&[("k", 3), o, i])],
        ),
        Sample::bracket(
            "two dims, stride 3",
            "conv_transpose",
            &[&[(&["r"], &["n"], Some("k")), (&["s"], &["m"], Some("l"))]],
            &[("stride", Setting::Number(3.0))],
            &[("n", 8), ("m", 10)],
            vec![float(&[("r", 3), ("s", 3)]), float(&[("k", 2), ("l", 4)])],
        ),
    ]
}

/// `gives` is the result for `conv`, and the input of the transposed one, whose operand is then the result.
fn build(g: &mut Graph, c: &OpCall, gives: Part) -> Result<Id, OpError> {
    super::slides::floats(g, c)?;
    let x = c.unified(g, true)?;
    let (tx, tw) = (g.ty(x[0]).clone(), g.ty(x[1]).clone());
    let has = if gives == Part::Result { Has::Wide } else { Has::Narrow };
    let slides = slides(g, c, &tx, has, false)?;
    for s in &slides {
        if !tw.has(s.tap) {
            let (tap, list) = (g.dims.name(s.tap), g.dims.list(&tw.dims));
            let text = format!("`{tap}` slides in `{}`, but the kernel lacks it: it has {list}", c.name);
            return Err(OpError::new(codes::E0203, text)
                .operand(1)
                .help(format!("give the kernel the dim `{tap}`")));
        }
        if let Some(d) = [s.wide, s.narrow].into_iter().find(|d| tw.has(*d)) {
            let name = g.dims.name(d);
            let text = format!("the kernel of `{}` slides along `{name}`, but has it as a dim", c.name);
            return Err(OpError::new(codes::E0203, text).operand(1).help("rename it in the kernel"));
        }
    }
    let summed = summed(g, c, &slides, [&tx.dims, &tw.dims])?;
    let kept = |d: &Dim| !summed.contains(d) && !slides.iter().any(|s| s.tap == *d);
    let mut out: Vec<Dim> = replaced(&tx.dims, &slides, has).into_iter().filter(kept).collect();
    out.extend(tw.dims.iter().copied().filter(|d| kept(d) && !tx.has(*d)));
    let x = if gives == Part::Result { [x[0], x[1]] } else { [x[1], x[0]] };
    g.add_op(std::sync::Arc::new(Convolve { slides, gives, out }), &x)
}

/// The dims behind `;`: both operands have them.
fn summed(g: &Graph, c: &OpCall, slides: &[SlidingWindow], has: [&[Dim]; 2]) -> Result<Vec<Dim>, OpError> {
    let mut out = Vec::new();
    for p in c.groups.get(1).into_iter().flatten() {
        for d in &p.dims {
            let name = g.dims.name(*d);
            if out.contains(d) || slides.iter().any(|s| [s.wide, s.narrow, s.tap].contains(d)) {
                let text = format!("`{}[…]` names `{name}` twice", c.name);
                return Err(
                    OpError::new(codes::E0203, text).help("taps are summed without being named behind `;`")
                );
            }
            for (slot, dims) in has.iter().enumerate() {
                if !dims.contains(d) {
                    let what = ["what it slides over", "the kernel"][slot];
                    let text = format!(
                        "`{}` sums `{name}`, which {what} lacks: it has {}",
                        c.name,
                        g.dims.list(dims)
                    );
                    return Err(OpError::new(codes::E0203, text)
                        .operand(slot)
                        .help(format!("leave `{name}` out, or give both operands the dim")));
                }
            }
            out.push(*d);
        }
    }
    Ok(out)
}
