//! `x[seq -> key]` and `t[vocab = token]`.

use super::Resolver;
use super::call::not_yet;
use super::expr::Operand;
use super::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Const, Id, Lookup, Rename, Value};
use meshwright_plan::Dim;
use meshwright_syntax::ast::{At, DimItem, Expr};
use std::sync::Arc;

/// One piece of a bracket, read.
enum Item<'a> {
    Rename { from: Dim, to: Dim, span: Span },
    Lookup { dim: Dim, index: Operand<'a>, span: Span },
}

impl<'a> Resolver<'a> {
    /// The pieces of one bracket all speak of the dims of `base`: renames come first, then the lookups.
    pub(super) fn brackets(&mut self, base: &'a Expr, items: &'a [DimItem], span: Span) -> Val {
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
        self.lookups(x, whole, &read)
    }

    fn item(&mut self, item: &'a DimItem) -> Option<Item<'a>> {
        let what = match (&item.at, item.dims.len(), item.to.len()) {
            _ if item.window.is_some() => Some("a window (`by`)"),
            (Some(At::Range(..)), _, _) => Some("a slice (`low..high`)"),
            (_, 2.., _) => Some("merging dims"),
            (_, _, 2..) => Some("splitting a dim"),
            (Some(At::Value(_)), _, 1) => Some("a slice to another dim"),
            _ => None,
        };
        if let Some(what) = what {
            let help = "rename dims `[d -> e]` and index them `[d = i]` until then";
            self.error(not_yet(what, item.span).help(help));
            return None;
        }
        let name = item.dims.first()?;
        let dims = self.dims_of(&item.dims)?;
        let from = self.one_of(&dims, &name.text, name.span)?;
        match (&item.at, item.to.as_slice()) {
            (None, [to]) => {
                let dims = self.dims_of(&item.to)?;
                let to = self.one_of(&dims, &to.text, to.span)?;
                if from.size != to.size {
                    self.sizes_differ(from, to, item.span);
                    return None;
                }
                Some(Item::Rename { from, to, span: item.span })
            }
            (Some(At::Value(e)), _) => {
                let index = self.operand(e)?;
                let index = self.position(from, index)?;
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

    fn sizes_differ(&mut self, from: Dim, to: Dim, at: Span) {
        let names = [from, to].map(|d| self.graph.dims.name(d).to_string());
        let text = format!(
            "`{}` = {} is renamed to `{}` = {}: the sizes differ",
            names[0], from.size, names[1], to.size
        );
        let mut d = Diagnostic::error(codes::E0204, text).at(at, "needs two dims of one size");
        for (name, dim) in names.iter().zip([from, to]) {
            if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
                d = d.and(*span, format!("`{name}` has size {}", dim.size));
            }
        }
        self.error(d.help(format!("declare `dim {} = {}`, or rename to a dim that is", names[1], names[0])));
    }

    fn one_of(&mut self, dims: &[Dim], name: &str, at: Span) -> Option<Dim> {
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
    fn position(&mut self, dim: Dim, index: Operand<'a>) -> Option<Operand<'a>> {
        let v = match index.value {
            Value::Tensor(_) => return Some(index),
            Value::Number(v) => v,
            Value::Bool(_) => f64::NAN,
        };
        if !(v.fract() == 0.0 && v >= 0.0 && v < dim.size as f64) {
            let name = self.graph.dims.name(dim).to_string();
            let mut d = Diagnostic::error(
                codes::E0205,
                format!("position {v} along `{name}`, which has {}", dim.size),
            )
            .at(index.span, format!("must be an integer in 0..{}", dim.size));
            if let Some((span, _)) = self.globals.dims.get(name.as_str()) {
                d = d.and(*span, "declared here");
            }
            self.error(d);
            return None;
        }
        match self.make(&[], index.span, |g| Ok(g.op(Const::position(v as usize, dim), &[]))) {
            Val::Tensor(id) => Some(Operand { value: Value::Tensor(id), ..index }),
            _ => None,
        }
    }

    /// Pieces of one bracket must not speak of one dim twice, in the operand or through an index.
    fn consistent(&mut self, items: &[Item<'a>]) -> bool {
        let dim = |i: &Item<'a>| match i {
            Item::Rename { from, span, .. } => (*from, *span),
            Item::Lookup { dim, span, .. } => (*dim, *span),
        };
        for (k, item) in items.iter().enumerate() {
            let (d, span) = dim(item);
            if let Some((_, first)) = items[..k].iter().map(dim).find(|f| f.0 == d) {
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
            match self.make(&[base, *index], *span, |g| g.add_op(Arc::new(Lookup { dim }), &[x, i])) {
                Val::Tensor(id) => x = id,
                _ => return Val::Poison,
            }
        }
        Val::Tensor(x)
    }
}
