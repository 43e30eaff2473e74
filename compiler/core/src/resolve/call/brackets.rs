//! `x[seq -> key]` and `t[vocab = token]`.

use super::operand::Operand;
use crate::resolve::Resolver;
use crate::resolve::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Const, Id, MergeDims, Op, Rename, Shift, SplitDim, Value};
use meshwright_plan::Dim;
use meshwright_syntax::ast::{At, DimItem, Expr};
use std::sync::Arc;

/// One piece of a bracket, read.
enum Item<'a> {
    Rename { from: Dim, to: Dim, span: Span },
    Lookup { dim: Dim, index: Operand<'a>, span: Span },
    Slice { from: Dim, to: Dim, start: i64, span: Span },
    SplitDim { dim: Dim, to: Vec<Dim>, span: Span },
    MergeDims { dims: Vec<Dim>, to: Dim, span: Span },
}

impl Item<'_> {
    /// The dims of the operand that it speaks of, and where.
    fn of(&self) -> (Vec<Dim>, Span) {
        match self {
            Item::Rename { from, span, .. } | Item::Slice { from, span, .. } => (vec![*from], *span),
            Item::Lookup { dim, span, .. } | Item::SplitDim { dim, span, .. } => (vec![*dim], *span),
            Item::MergeDims { dims, span, .. } => (dims.clone(), *span),
        }
    }
}

impl<'a> Resolver<'a> {
    /// The pieces of one bracket all speak of the dims of `base`: renames come first, then the lookups.
    pub(in crate::resolve) fn brackets(&mut self, base: &'a Expr, items: &'a [DimItem], span: Span) -> Val {
        let base_val = self.eval(base);
        let read: Vec<Option<Item<'a>>> = items.iter().map(|i| self.item(i)).collect();
        let id = match base_val {
            Val::Tensor(id) => id,
            Val::Konst(k) => {
                self.error(
                    Diagnostic::error(codes::E0213, format!("the number {k} has no dims"))
                        .at(base.span, "a number")
                        .and(items.first().map_or(span, |i| i.span), "speaks of a dim")
                        .help("leave the brackets out"),
                );
                return Val::Poison;
            }
            _ => return Val::Poison,
        };
        let Some(read) = read.into_iter().collect::<Option<Vec<_>>>() else { return Val::Poison };
        if !self.consistent(&read) {
            return Val::Poison;
        }
        let whole = Operand::of(Value::Tensor(id), base);
        let Some(x) = self.renames(id, whole, &read) else { return Val::Poison };
        let Some(x) = self.moves(x, whole, &read) else { return Val::Poison };
        self.lookups(x, whole, &read)
    }

    fn item(&mut self, item: &'a DimItem) -> Option<Item<'a>> {
        let name = item.dims.first()?;
        if let Some(by) = &item.window {
            self.error(
                Diagnostic::error(codes::E0212, format!("a window `by {}` behind a value", by.text))
                    .at(item.span, "slides a kernel")
                    .help("windows stand in the brackets of an op: `conv[rows by kh; in](x, w)`, `max_pool[rows -> r2 by kh](x)`"),
            );
            return None;
        }
        let dims = self.dims_of(&item.dims)?;
        if item.dims.len() > 1 || dims.len() > 1 && item.at.is_none() && item.to.len() == 1 {
            return self.joined(dims, item);
        }
        let from = self.one_of(&dims, &name.text, name.span)?;
        if let Some(At::Range(low, high)) = &item.at {
            return self.sliced(from, (low, high), item);
        }
        if item.to.len() > 1 {
            let to = self.dims_of(&item.to)?;
            return Some(Item::SplitDim { dim: from, to, span: item.span });
        }
        match (&item.at, item.to.as_slice()) {
            (Some(At::Value(_)), [to]) => {
                let text = format!("`{}` is indexed and becomes `{}`", name.text, to.text);
                self.error(
                    Diagnostic::error(codes::E0212, text)
                        .at(item.span, "an index takes the dim away")
                        .help(format!("a slice keeps it: `[{} = low..high -> {}]`", name.text, to.text)),
                );
                None
            }
            (None, [to]) => {
                let dims = self.dims_of(&item.to)?;
                let to = self.one_of(&dims, &to.text, to.span)?;
                if self.graph.dims.size(from) != self.graph.dims.size(to) {
                    self.sizes_differ(from, to, item.span);
                    return None;
                }
                Some(Item::Rename { from, to, span: item.span })
            }
            (Some(At::Value(e)), _) => {
                let index = self.operand(e)?;
                let index = self.position(from, index)?;
                let index = self.index_in(from, index)?;
                Some(Item::Lookup { dim: from, index, span: item.span })
            }
            _ => {
                self.error(
                    Diagnostic::error(
                        codes::E0212,
                        format!("`[{}]` says nothing about the dim `{0}`", name.text),
                    )
                    .at(item.span, "a dim alone")
                    .help(format!("rename it `[{0} -> other]`, or index it `[{0} = i]`", name.text)),
                );
                None
            }
        }
    }

    /// `[a * b -> c]`.
    fn joined(&mut self, dims: Vec<Dim>, item: &'a DimItem) -> Option<Item<'a>> {
        let to = self.dims_of(&item.to)?;
        match (to.as_slice(), &item.at) {
            ([to], None) => Some(Item::MergeDims { dims, to: *to, span: item.span }),
            _ => {
                let list: Vec<&str> = item.dims.iter().map(|d| d.text.as_str()).collect();
                let joined = list.join(" * ");
                self.error(
                    Diagnostic::error(codes::E0212, format!("`{joined}` does not become one dim"))
                        .at(item.span, "several dims")
                        .help(format!("join them to one, `[{joined} -> d]`; cut and join in two brackets")),
                );
                None
            }
        }
    }

    /// `[d = low..high -> e]`.
    fn sliced(
        &mut self,
        from: Dim,
        (low, high): (&'a Expr, &'a Expr),
        item: &'a DimItem,
    ) -> Option<Item<'a>> {
        let ends = [low, high].map(|e| self.konst(e, "the end of a slice").map(|k| k.num().f64()));
        let [Some(start), Some(end)] = ends else { return None };
        let name = self.graph.dims.name(from).to_string();
        let whole = start.fract() == 0.0 && end.fract() == 0.0;
        if !whole || start < 0.0 || start >= end || end > self.graph.dims.size(from) as f64 {
            let text = format!(
                "`{name} = {start}..{end}` is no part of `{name}`, which has {}",
                self.graph.dims.size(from)
            );
            let mut d =
                Diagnostic::error(codes::E0205, text).at(item.span, "low..high, the high end not included");
            if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
                d = d.and(*span, "declared here");
            }
            self.error(d.help(format!("0 <= low < high <= {}", self.graph.dims.size(from))));
            return None;
        }
        let size = (end - start) as usize;
        let to = match item.to.as_slice() {
            [] if size == self.graph.dims.size(from) => from,
            [to] => {
                let dims = self.dims_of(&item.to)?;
                self.one_of(&dims, &to.text, to.span)?
            }
            _ => {
                self.error(
                    Diagnostic::error(
                        codes::E0204,
                        format!(
                            "a slice of `{name}` has {size} elements, not {}",
                            self.graph.dims.size(from)
                        ),
                    )
                    .at(item.span, "needs a dim of its own")
                    .help(format!(
                        "declare `dim part = {size}` and write `[{name} = {start}..{end} -> part]`"
                    )),
                );
                return None;
            }
        };
        if self.graph.dims.size(to) != size {
            let to_name = self.graph.dims.name(to).to_string();
            let text = format!(
                "`{name} = {start}..{end}` has {size} elements, but `{to_name}` = {}",
                self.graph.dims.size(to)
            );
            let mut d = Diagnostic::error(codes::E0204, text).at(item.span, "the sizes differ");
            if let Some((span, _)) = self.globals.dims.get(to_name.as_str()) {
                d = d.and(*span, format!("`{to_name}` has size {}", self.graph.dims.size(to)));
            }
            self.error(d.help(format!("declare `dim {to_name} = {size}`")));
            return None;
        }
        self.graph.captured.extend([from, to]);
        Some(Item::Slice { from, to, start: start as i64, span: item.span })
    }

    /// Slices, cuts and joins, one after the other.
    fn moves(&mut self, x: Id, base: Operand<'a>, items: &[Item<'a>]) -> Option<Id> {
        let mut x = x;
        for item in items {
            let (op, span): (Arc<dyn Op>, Span) = match item {
                Item::Slice { from, to, start, span } => {
                    (Arc::new(Shift { from: *from, to: *to, start: *start, fill: 0.0 }), *span)
                }
                Item::SplitDim { dim, to, span } => (Arc::new(SplitDim { dim: *dim, to: to.clone() }), *span),
                Item::MergeDims { dims, to, span } => {
                    (Arc::new(MergeDims { dims: dims.clone(), to: *to }), *span)
                }
                Item::Rename { .. } | Item::Lookup { .. } => continue,
            };
            match self.make(&[base], span, |g| g.add_op(op, &[x])) {
                Val::Tensor(id) => x = id,
                _ => return None,
            }
        }
        Some(x)
    }

    fn sizes_differ(&mut self, from: Dim, to: Dim, at: Span) {
        let names = [from, to].map(|d| self.graph.dims.name(d).to_string());
        let text = format!(
            "`{}` = {} is renamed to `{}` = {}: the sizes differ",
            names[0],
            self.graph.dims.size(from),
            names[1],
            self.graph.dims.size(to)
        );
        let mut d = Diagnostic::error(codes::E0204, text).at(at, "needs two dims of one size");
        for (name, dim) in names.iter().zip([from, to]) {
            if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
                d = d.and(*span, format!("`{name}` has size {}", self.graph.dims.size(dim)));
            }
        }
        self.error(d.help(format!("declare `dim {} = {}`, or rename to a dim that is", names[1], names[0])));
    }

    pub(in crate::resolve) fn one_of(&mut self, dims: &[Dim], name: &str, at: Span) -> Option<Dim> {
        if let [dim] = dims {
            return Some(*dim);
        }
        let text = format!("`{name}` stands for {} dims, where one is needed", dims.len());
        self.error(
            Diagnostic::error(codes::E0203, text).at(at, format!("the dims {}", self.graph.dims.list(dims))),
        );
        None
    }

    /// A number as a position along a dim.
    pub(in crate::resolve) fn position(&mut self, dim: Dim, index: Operand<'a>) -> Option<Operand<'a>> {
        let v = match index.value {
            Value::Tensor(_) => return Some(index),
            Value::Number(v) => v,
            Value::Bool(_) => f64::NAN,
        };
        if !(v.fract() == 0.0 && v >= 0.0 && v < self.graph.dims.size(dim) as f64) {
            let name = self.graph.dims.name(dim).to_string();
            let mut d = Diagnostic::error(
                codes::E0205,
                format!("position {v} along `{name}`, which has {}", self.graph.dims.size(dim)),
            )
            .at(index.span, format!("must be an integer in 0..{}", self.graph.dims.size(dim)));
            if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
                d = d.and(*span, "declared here");
            }
            self.error(d);
            return None;
        }
        self.graph.captured.insert(dim);
        match self.make(&[], index.span, |g| Ok(g.op(Const::position(v as usize, dim), &[]))) {
            Val::Tensor(id) => Some(Operand { value: Value::Tensor(id), ..index }),
            _ => None,
        }
    }

    /// Pieces of one bracket must not speak of one dim twice, in the operand or through an index.
    fn consistent(&mut self, items: &[Item<'a>]) -> bool {
        for (k, item) in items.iter().enumerate() {
            let (mine, span) = item.of();
            let before = items[..k].iter().map(Item::of);
            let twice = before.flat_map(|(dims, at)| dims.into_iter().map(move |d| (d, at)));
            if let Some((d, first)) = twice.into_iter().find(|f| mine.contains(&f.0)) {
                let name = self.graph.dims.name(d);
                self.error(
                    Diagnostic::error(codes::E0203, format!("one bracket speaks of the dim `{name}` twice"))
                        .at(span, "again here")
                        .and(first, "first here")
                        .help("write two brackets, one behind the other"),
                );
                return false;
            }
            let Item::Lookup { index, .. } = item else { continue };
            let Value::Tensor(id) = index.value else { continue };
            let other = items.iter().enumerate().find_map(|(j, o)| match o {
                Item::Lookup { dim, span, .. } if j != k && self.graph.ty(id).has(*dim) => {
                    Some((*dim, *span))
                }
                _ => None,
            });
            if let Some((d, other)) = other {
                let name = self.graph.dims.name(d);
                self.error(
                    Diagnostic::error(
                        codes::E0203,
                        format!("this index has the dim `{name}`, which the same bracket indexes"),
                    )
                    .at(index.span, self.shape(id))
                    .and(other, format!("indexes `{name}`"))
                    .help("write two brackets, one behind the other"),
                );
                return false;
            }
        }
        true
    }

    /// All renames at once: each is done when its target is free.
    fn renames(&mut self, id: Id, base: Operand<'a>, items: &[Item<'a>]) -> Option<Id> {
        let mut todo: Vec<(Dim, Dim, Span)> = items
            .iter()
            .filter_map(|i| {
                if let Item::Rename { from, to, span } = i { Some((*from, *to, *span)) } else { None }
            })
            .filter(|(from, to, _)| from != to || !self.graph.ty(id).has(*from))
            .collect();
        let mut x = id;
        while !todo.is_empty() {
            let has = self.graph.ty(x).dims.clone();
            let blocked = |t: &(Dim, Dim, Span)| has.contains(&t.1) && todo.iter().any(|o| o.0 == t.1);
            let Some(k) = todo.iter().position(|t| !blocked(t)) else {
                let (a, b, at) = todo[0];
                let (a, b) = (self.graph.dims.name(a), self.graph.dims.name(b));
                self.error(
                    Diagnostic::error(codes::E0203, format!("`{a}` and `{b}` change places in one bracket"))
                        .at(at, "each takes the place of another")
                        .and(base.span, format!("has the dims {}", self.graph.dims.list(&has)))
                        .help(format!("declare a third name, `dim other = {a}`, and go in steps: `[{a} -> other][{b} -> {a}][other -> {b}]`")),
                );
                return None;
            };
            let (from, to, at) = todo.remove(k);
            match self.make(&[base], at, |g| g.add_op(Arc::new(Rename { from, to }), &[x])) {
                Val::Tensor(id) => x = id,
                _ => return None,
            }
        }
        Some(x)
    }

    fn lookups(&mut self, x: Id, base: Operand<'a>, items: &[Item<'a>]) -> Val {
        let mut x = x;
        for item in items {
            let Item::Lookup { dim, index, span } = item else { continue };
            let Value::Tensor(i) = index.value else { continue };
            let dim = *dim;
            let made = self.make(&[base, *index], *span, |g| g.at(x, dim, i));
            match made {
                Val::Tensor(id) => x = id,
                _ => return Val::Poison,
            }
        }
        Val::Tensor(x)
    }
}
