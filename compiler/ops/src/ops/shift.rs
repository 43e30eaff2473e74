//! A dim read from another place: slices `x[seq = 0..64 -> head]`, `shift` and `pad` are all `y[i] = x[i + start]`.

use crate::family::{float, no_spelling, truth};
use crate::op::eq_by;
use crate::signature::{Arrow, BECOMES, Choice, DIM, DimGroup, Unset, Values};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpCall, OpError, Roles, Sample, Setting, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Prim, Window};
use std::sync::Arc;

/// `y[to = i] = x[from = i + start]`, and `fill` where `x` has no such element.
#[derive(Clone, Debug)]
pub struct Shift {
    /// The dim of the operand.
    pub from: Dim,
    /// The dim of the result, of any size.
    pub to: Dim,
    /// Offset into the operand.
    pub start: i64,
    /// What stands outside.
    pub fill: f64,
}

eq_by!(Shift, |s| (s.from, s.to, s.start, s.fill.to_bits()));

/// Greatest distance and padding: beyond it lies a mistake, and below it nothing overflows.
const LIMIT: f64 = 1e15;
const BY: Choice = Choice {
    default: Unset::Needed,
    ..Choice::whole("by", (-LIMIT, LIMIT), 0.0, "places further along the dim; may be negative")
};
const WRAP: Choice = Choice::flag("wrap", "what leaves at one end comes in again at the other");
const LOW: Choice = Choice::whole(
    "low",
    (0.0, LIMIT),
    0.0,
    "elements before the first; a slice `x[d = low..high -> e]` takes some away",
);
const HIGH: Choice = Choice::whole(
    "high",
    (0.0, LIMIT),
    0.0,
    "elements behind the last; a slice `x[d = low..high -> e]` takes some away",
);
const VALUE: Choice = Choice {
    name: "value",
    words: &[],
    values: Values::Number,
    default: Unset::Is(Setting::Number(0.0)),
    doc: "what the new elements are",
};

/// How they are written; a slice is brackets behind a value.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "shift",
        signature: Signature { options: &[BY, WRAP], ..Signature::over(&[DIM]) },
        doc: "`shift[d, by = 1](x)`: every element `by` places further along `d`, zeros behind; with `wrap = true` the last ones come in again at the front. `by` may be negative.",
        build: build_shift,
        samples: || {
            let (a, b) = (("a", 7), ("b", 3));
            let one: &[&[crate::family::PieceNames]] = &[&[(&["a"], &[], None)]];
            vec![
                Sample::bracket(
                    "inner",
                    "shift",
                    &[&[(&["b"], &[], None)]],
                    &[("by", Setting::Number(1.0))],
                    &[],
                    vec![float(&[a, b])],
                ),
                Sample::bracket(
                    "outer, back",
                    "shift",
                    one,
                    &[("by", Setting::Number(-2.0))],
                    &[],
                    vec![float(&[a, b])],
                ),
                Sample::bracket(
                    "out of sight",
                    "shift",
                    one,
                    &[("by", Setting::Number(9.0))],
                    &[],
                    vec![float(&[a])],
                ),
                Sample::bracket(
                    "around",
                    "shift",
                    one,
                    &[("by", Setting::Number(3.0)), ("wrap", Setting::Bool(true))],
                    &[],
                    vec![float(&[b, a])],
                ),
                Sample::bracket(
                    "truth values",
                    "shift",
                    one,
                    &[("by", Setting::Number(2.0))],
                    &[],
                    vec![truth(&[a])],
                )
                .flat(),
            ]
        },
    },
    Family {
        name: "pad",
        signature: Signature {
            options: &[LOW, HIGH, VALUE],
            ..Signature::over(&[DimGroup { arrow: Arrow::May, ..BECOMES }])
        },
        doc: "`pad[d -> e, low = 1, high = 1](x)`: zeros, or `value = …`, before and behind `d`; `e` has the size of both and `d`.",
        build: build_pad,
        samples: || {
            let (a, b) = (("a", 7), ("b", 3));
            vec![
                Sample::bracket(
                    "both ends",
                    "pad",
                    &[&[(&["a"], &["e"], None)]],
                    &[("low", Setting::Number(1.0)), ("high", Setting::Number(3.0))],
                    &[("e", 11)],
                    vec![float(&[a, b])],
                ),
                Sample::bracket(
                    "with ones",
                    "pad",
                    &[&[(&["b"], &["e"], None)]],
                    &[("high", Setting::Number(2.0)), ("value", Setting::Number(1.0))],
                    &[("e", 5)],
                    vec![float(&[a, b])],
                ),
            ]
        },
    },
    Family {
        name: "slice",
        signature: Signature::SYNTAX,
        doc: "`x[d = 2..5 -> e]`: the elements 2, 3 and 4 along `d`, as a dim `e` of size 3.",
        build: no_spelling,
        samples: || {
            vec![Sample::new("slice", vec![float(&[("a", 7), ("b", 3)]), float(&[("c", 4)])], |g, x| {
                let (from, to) = (g.ty(x[0]).dims[0], g.ty(x[1]).dims[0]);
                let s = g.op(Shift { from, to, start: 2, fill: 0.0 }, &[x[0]]);
                Ok(g.product(&[s, x[1]]))
            })]
        },
    },
];

fn build_shift(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    let (d, by) = (c.dim(), c.number("by").unwrap_or_default() as i64);
    let (x, size) = (c.tensor(g, 0), g.dims.size(d) as i64);
    if c.flag("wrap") {
        g.captured.insert(d);
    }
    let mut moved = |start: i64| g.add_op(Arc::new(Shift { from: d, to: d, start, fill: 0.0 }), &[x]);
    if !c.flag("wrap") {
        return moved(-by);
    }
    let by = by.rem_euclid(size);
    if by == 0 {
        return moved(0);
    }
    let (rest, front) = (moved(-by)?, moved(size - by)?);
    Ok(match g.ty(x).dtype {
        DType::Bool => g.binary("or", rest, front),
        // Bytes have no sums; of every two, one is 0.
        DType::U8 => {
            let parts = [rest, front].map(|p| g.cast(p, DType::I32));
            let sum = g.sum_of(&parts);
            g.cast(sum, DType::U8)
        }
        // Of every two, one is 0: the sum is a position where both are.
        _ => match (g.sum_of(&[rest, front]), g.ty(x).range) {
            (sum, Some(dim)) => g.op(super::InRange { dim }, &[sum]),
            (sum, None) => sum,
        },
    })
}

fn build_pad(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    let p = c.piece();
    let [low, high] = ["low", "high"].map(|end| c.number(end).unwrap_or_default() as i64);
    let from = p.dims[0];
    let name = g.dims.name(from).to_string();
    let size = g.dims.size(from) as i64 + low + high;
    let [to] = p.to[..] else {
        return Err(OpError::new(
            codes::E0203,
            format!("`pad` changes the size of `{name}` to {size}: the result needs a dim of its own"),
        )
        .help(format!("declare `dim padded = {size}` and write `pad[{name} -> padded, …]`")));
    };
    if g.dims.size(to) as i64 != size {
        let to_name = g.dims.name(to);
        return Err(OpError::new(
            codes::E0204,
            format!(
                "`{name}` = {} with {low} before and {high} behind has {size}, but `{to_name}` = {}",
                g.dims.size(from),
                g.dims.size(to)
            ),
        )
        .help(format!("declare `dim {to_name} = {size}`")));
    }
    let fill = c.number("value").unwrap_or_default();
    let x = c.tensor(g, 0);
    g.captured.extend([Some(from), Some(to), g.ty(x).range].into_iter().flatten());
    let t = g.ty(x);
    let fits = match t.dtype {
        DType::Bool => fill == 0.0 || fill == 1.0,
        DType::U8 => fill.fract() == 0.0 && (0.0..256.0).contains(&fill),
        DType::I32 => {
            let high = t.range.map_or(f64::from(i32::MAX), |r| g.dims.size(r) as f64 - 1.0);
            let low = t.range.map_or(f64::from(i32::MIN), |_| 0.0);
            fill.fract() == 0.0 && (low..=high).contains(&fill)
        }
        _ => true,
    };
    if !fits {
        let range = t.range.map_or(String::new(), |r| format!(" in {}", g.dims.name(r)));
        return Err(
            OpError::new(codes::E0202, format!("`value = {fill}` is no {}{range}", t.dtype)).operand(0)
        );
    }
    g.add_op(Arc::new(Shift { from, to, start: -low, fill }), &[x])
}

impl Op for Shift {
    fn name(&self) -> &'static str {
        "shift"
    }

    fn spelled(&self, table: &Dims) -> &'static str {
        match self.from == self.to {
            true => "shift",
            false if table.size(self.to) > table.size(self.from) => "pad",
            false => "slice",
        }
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let (from, to) = (table.name(self.from), table.name(self.to));
        let has = table.list(&x[0].dims);
        if !x[0].has(self.from) {
            return Err(OpError::new(
                codes::E0203,
                format!("a value without the dim `{from}`: it has {has}"),
            )
            .operand(0));
        }
        if self.to != self.from && x[0].has(self.to) {
            return Err(OpError::new(
                codes::E0203,
                format!("`{from} -> {to}` of a value that already has a dim `{to}`: it has {has}"),
            )
            .operand(0)
            .help("declare another name of the same size for it"));
        }
        let dims = x[0].dims.iter().map(|d| if *d == self.from { self.to } else { *d }).collect();
        Ok(Type { dtype: x[0].dtype, dims, range: x[0].range })
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let linear = if self.fill == 0.0 { Linear::Only([0].into()) } else { Linear::No };
        Roles::elementwise(x, y, linear).window(
            self.to,
            0,
            self.from,
            Window::shifted(table.size(self.to), self.start),
        )
    }

    fn vjp(&self, g: &mut Graph, _: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        vec![Some(g.op(Shift { from: self.to, to: self.from, start: -self.start, fill: 0.0 }, &[dy]))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        let from = e.input(0);
        let order: Vec<Dim> = from.dims.iter().map(|d| if *d == self.from { self.to } else { *d }).collect();
        let out = e.output(&order);
        let prim = Prim::Shift { dim: self.from, to: self.to, start: self.start, fill: self.fill };
        e.push(prim, vec![from], out);
    }

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let back: Vec<Dim> = y.dims.iter().map(|d| if *d == self.to { self.from } else { *d }).collect();
        let k = y.dims.iter().position(|d| *d == self.to).unwrap_or(0);
        F64Tensor::build(table, &y.dims, |at| {
            let i = at[k] as i64 + self.start;
            if i < 0 || i >= table.size(self.from) as i64 {
                return self.fill;
            }
            let mut at = at.to_vec();
            at[k] = i as usize;
            x[0].at(&back, &at)
        })
    }
}
