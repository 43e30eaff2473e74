//! Integers as positions along a dim: `cast(i, i32 in d)`, and index arithmetic whose bounds prove that it stays in a dim.

use super::args::Slot;
use super::operand::Operand;
use crate::resolve::Resolver;
use crate::resolve::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Graph, Id, InRange, Kind, Op, Shift, Source, Value};
use meshwright_plan::{DType, Dim};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::{Call, ExprKind, Name};

/// The least and the greatest that elements may be.
type Bounds = (i64, i64);

const I32: Bounds = (i32::MIN as i64, i32::MAX as i64);

impl<'a> Resolver<'a> {
    /// `cast(i, i32 in d)`, or with `clamp = true`.
    pub(super) fn cast_to_positions(&mut self, call: &'a Call, within: &'a Name, span: Span) -> Val {
        let slots =
            [Slot::built_in("x", true), Slot::built_in("dtype", true), Slot::built_in("clamp", false)];
        let Some(args) = self.bound("cast", span, None, &slots, &call.args) else { return Val::Poison };
        let (Some(x), Some(to)) = (args[0], args[1]) else { return Val::Poison };
        let clamp = match args[2] {
            Some(e) => match self.konst(e, "`clamp`") {
                Some(k) => k.num().f64() != 0.0,
                None => return Val::Poison,
            },
            None => false,
        };
        let dims = self.dims_named(&within.text, within.span);
        let Some(dim) = dims.and_then(|d| self.one_of(&d, &within.text, within.span)) else {
            return Val::Poison;
        };
        if !matches!(&to.kind, ExprKind::Name(n) if n == "i32") {
            let text = format!("positions along `{}` are `i32`", within.text);
            self.error(Diagnostic::error(codes::E0202, text).at(to.span, "another dtype").fix(
                "write `i32`",
                to.span,
                "i32",
                true,
            ));
            return Val::Poison;
        }
        let Some(o) = self.operand(x) else { return Val::Poison };
        let id = match o.value {
            Value::Tensor(id) => id,
            // A number is clamped like any other value.
            value => match self
                .position(dim, Operand { value: self.nearest(dim, value, clamp), ..o })
                .map(|o| o.value)
            {
                Some(Value::Tensor(id)) => return Val::Tensor(id),
                _ => return Val::Poison,
            },
        };
        let Val::Tensor(mut id) = self.make(&[o], span, |g| Ok(g.cast(id, DType::I32))) else {
            return Val::Poison;
        };
        if clamp {
            let last = self.graph.dims.size(dim) as f64 - 1.0;
            self.graph.captured.insert(dim);
            for (name, end) in [("min", last), ("max", 0.0)] {
                let operands = [Value::Tensor(id), Value::Number(end)].map(|v| Operand::made(v, span));
                match self.build(name, &operands, span) {
                    Val::Tensor(clamped) => id = clamped,
                    _ => return Val::Poison,
                }
            }
        }
        match self.proved(dim, id, span) {
            Some(id) => Val::Tensor(id),
            None => {
                self.out_of_range(dim, id, x.span);
                Val::Poison
            }
        }
    }

    /// A number as the nearest position along a dim, where it is clamped.
    fn nearest(&self, dim: Dim, value: Value, clamp: bool) -> Value {
        match value {
            Value::Number(v) if clamp => Value::Number(v.clamp(0.0, self.graph.dims.size(dim) as f64 - 1.0)),
            other => other,
        }
    }

    /// An index as positions along a dim, where its arithmetic shows that it is; otherwise as it is.
    pub(super) fn index_in(&mut self, dim: Dim, index: Operand<'a>) -> Option<Operand<'a>> {
        let Value::Tensor(id) = index.value else { return Some(index) };
        let ty = self.graph.ty(id);
        // What declares its range, and what is read as it is, is judged by its type.
        if ty.dtype != DType::I32
            || ty.range.is_some()
            || matches!(self.graph.node(id).op.kind(), Kind::Input(_))
        {
            return Some(index);
        }
        match self.proved(dim, id, index.span) {
            Some(id) => Some(Operand { value: Value::Tensor(id), ..index }),
            None => {
                self.out_of_range(dim, id, index.span);
                None
            }
        }
    }

    fn out_of_range(&mut self, dim: Dim, id: Id, at: Span) {
        let (low, high) = self.bounds(id);
        let (name, size) = (self.graph.dims.name(dim).to_string(), self.graph.dims.size(dim));
        let may =
            if (low, high) == I32 { "any integer".to_string() } else { format!("from {low} to {high}") };
        let mut d = Diagnostic::error(
            codes::E0205,
            format!("these may be no positions along `{name}`, which has {size}"),
        )
        .at(at, format!("may be {may}"));
        if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
            d = d.and(*span, "declared here");
        }
        self.error(d.help(format!(
            "keep them in: `cast(i, i32 in {name}, clamp = true)` for the nearest position, `i % size({name})` to go around"
        )));
    }

    /// The value as positions along a dim, if its bounds show that it is.
    fn proved(&mut self, dim: Dim, id: Id, at: Span) -> Option<Id> {
        if self.graph.ty(id).range == Some(dim) {
            return Some(id);
        }
        let (low, high) = self.bounds(id);
        if low < 0 || high >= self.graph.dims.size(dim) as i64 {
            return None;
        }
        // With other sizes there must be another proof.
        self.capture_sizes(id);
        self.graph.captured.insert(dim);
        match self.make(&[], at, |g| g.add_op(std::sync::Arc::new(InRange { dim }), &[id])) {
            Val::Tensor(id) => Some(id),
            _ => None,
        }
    }

    /// Notes all dims whose sizes bound a value.
    fn capture_sizes(&mut self, id: Id) {
        let (mut todo, mut seen) = (vec![id], SortedSet::new());
        while let Some(id) = todo.pop() {
            let n = self.graph.node(id);
            if n.ty.dtype.is_float() || !seen.insert(id) {
                continue;
            }
            let range = n.ty.range;
            if range.is_none() {
                todo.extend(&n.inputs);
            }
            self.graph.captured.extend(range);
        }
    }

    fn bounds(&mut self, id: Id) -> Bounds {
        // Operands come before their users, so one walk in order knows them all.
        for i in self.bounds.len()..=id.0 as usize {
            let found = bounds_of(&self.graph, Id(i as u32), &self.bounds);
            self.bounds.push(found);
        }
        self.bounds[id.0 as usize]
    }
}

/// The bounds of a value whose operands' are known; of floats anything.
fn bounds_of(g: &Graph, id: Id, known: &[Bounds]) -> Bounds {
    let n = g.node(id);
    let all = match n.ty.dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, 255),
        _ => I32,
    };
    if let Some(d) = n.ty.range {
        return (0, g.dims.size(d) as i64 - 1);
    }
    if n.ty.dtype.is_float() {
        return all;
    }
    let x: Vec<Bounds> =
        n.inputs.iter().map(|i| if g.ty(*i).dtype.is_float() { I32 } else { known[i.0 as usize] }).collect();
    let found = match n.op.name() {
        _ if n.op.kind() == Kind::Rematerializable(Source::Constant) => {
            g.constant_value(id).map(|v| (v as i64, v as i64))
        }
        "add" => Some((x.iter().map(|b| b.0).sum(), x.iter().map(|b| b.1).sum())),
        "neg" => Some((-x[0].1, -x[0].0)),
        "contract"
            if g.is_elementwise(id)
                || n.inputs.iter().all(|i| g.ty(*i).dims.iter().all(|d| n.ty.has(*d))) =>
        {
            x.iter().copied().reduce(times)
        }
        // Of one operand it is one of its elements, along a dim.
        "min" => x.iter().copied().reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))),
        "max" => x.iter().copied().reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))),
        "%" if x[1].0 > 0 => {
            // A number below the least divisor is its own rest.
            let below = x[0].0 >= 0;
            Some((0, if below { x[0].1.min(x[1].1 - 1) } else { x[1].1 - 1 }))
        }
        "//" if x[1].0 > 0 => {
            let ends = [x[1].0, x[1].1].map(|d| (x[0].0.div_euclid(d), x[0].1.div_euclid(d)));
            Some((ends[0].0.min(ends[1].0), ends[0].1.max(ends[1].1)))
        }
        "where" => Some(union(&x[1..])),
        "lookup" => Some(x[0]),
        "shift" => {
            let fill = moved(&*n.op).map_or(0, |s| s.fill as i64);
            Some((x[0].0.min(fill), x[0].1.max(fill)))
        }
        "cast" | "rename" | "expand" | "concat" | "cut" | "join" | "in_range" | "reverse" => Some(union(&x)),
        _ => None,
    };
    // Beyond 32 bits integers go around.
    found.filter(|f| f.0 >= all.0 && f.1 <= all.1).unwrap_or(all)
}

fn moved(op: &dyn Op) -> Option<&Shift> {
    op.as_any().downcast_ref()
}

fn union(x: &[Bounds]) -> Bounds {
    x.iter().copied().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or(I32)
}

fn times(a: Bounds, b: Bounds) -> Bounds {
    // Of many factors they leave 64 bits too: then nothing is known, as of 32.
    let ends = [(a.0, b.0), (a.0, b.1), (a.1, b.0), (a.1, b.1)].map(|(a, b)| a.saturating_mul(b));
    (ends.into_iter().fold(i64::MAX, i64::min), ends.into_iter().fold(i64::MIN, i64::max))
}
