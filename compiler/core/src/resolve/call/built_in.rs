//! Calls of built-ins, `name(x)` and `name[dims](x, option = …)`: all are bound by the signature of their family.

use super::args::{Callee, Slot, Written, written};
use super::operand::{Operand, Places};
use crate::resolve::Resolver;
use crate::resolve::declarations::reserved_words::SPECIAL;
use crate::resolve::number::{self, Konst, Num};
use crate::resolve::report::nearest;
use crate::resolve::scope::{ScopeKind, Val};
use meshwright_diag::foreign::{WordPlace, advised};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::signature::{Arrow, Choice, Form};
use meshwright_ops::{Family, OpCall, Piece, Setting, Value, families, family};
use meshwright_syntax::ast::{Arg, At, DimItem, Expr, ExprKind, Name};

/// A call of a family as it is written.
#[derive(Clone, Copy)]
pub(in crate::resolve) struct Site<'a> {
    pub(in crate::resolve) name: &'a Name,
    pub(in crate::resolve) groups: &'a [Vec<DimItem>],
    pub(in crate::resolve) args: &'a [Arg],
    pub(in crate::resolve) span: Span,
}

impl<'a> Resolver<'a> {
    /// A call of a family that is written by its name.
    pub(in crate::resolve) fn built_in(&mut self, f: &'static Family, site: Site<'a>) -> Val {
        // An option may stand in the brackets too: `shift[d, by = 1](x)`.
        let options = f.signature.options;
        let (set, groups) = self.brackets_of(site, !options.is_empty());
        let mut given: Vec<Written<'a>> = written(site.args);
        given.sort_by_key(|a| a.0.is_some());
        let operands = given.iter().filter(|a| a.0.is_none()).count();
        given.extend(set);
        let slots = Slot::of(&f.signature, operands);
        let Some(bound) = self.bound_to(f, site, &slots, &given) else {
            // Mistakes in the operands are independent of their number; words such as `same` stand behind names.
            given.iter().filter(|a| a.0.is_none()).for_each(|a| drop(self.eval(a.1)));
            return Val::Poison;
        };
        let (operands, chosen) = bound.split_at(slots.len() - options.len());
        let operands: Vec<&'a Expr> = operands.iter().flatten().copied().collect();
        if f.name == "sum" {
            return self.sum(f, operands[0], groups, site);
        }
        let values: Vec<Val> = match f.name {
            "where" => match self.branch(&operands) {
                Ok(value) => return value,
                Err(condition) => {
                    let others = operands[1..].iter().map(|e| self.eval(e));
                    std::iter::once(condition).chain(others).collect()
                }
            },
            _ => operands.iter().map(|e| self.eval(e)).collect(),
        };
        let mut places = Vec::new();
        let mut settings = Some(Vec::new());
        for (choice, e) in options.iter().zip(chosen) {
            let Some(e) = e else { continue };
            places.push((choice.name, e.span));
            match (self.setting(f.name, choice, e), &mut settings) {
                (Some(s), Some(all)) => all.push((choice.name, s)),
                _ => settings = None,
            }
        }
        if let Some(value) = folded(f, &values) {
            return self.folded(value.map(Konst::Num), site.span);
        }
        let mut x = Vec::new();
        for (v, e) in values.iter().zip(&operands) {
            let value = match v {
                Val::Tensor(id) => Value::Tensor(*id),
                Val::Konst(k) => k.value(),
                _ => return Val::Poison,
            };
            x.push(Operand::of(value, e));
        }
        let (Some(groups), Some(options)) = (groups, settings) else { return Val::Poison };
        if let ([one], true) = (x.as_slice(), folds_nothing(f, &groups)) {
            return as_value(one.value);
        }
        let indexed = match f.name {
            "cross_entropy" => Some(1),
            "one_hot" => Some(0),
            _ => None,
        };
        let along = groups.first().and_then(|g| g.first()).and_then(|p| p.dims.first().copied());
        if let (Some(k), Some(dim)) = (indexed.filter(|k| *k < x.len()), along) {
            match self.index_in(dim, x[k]) {
                Some(o) => x[k] = o,
                None => return Val::Poison,
            }
        }
        let args = x.iter().map(|o| o.value).collect();
        let call = OpCall { groups, options, ..OpCall::of(args, self.float) };
        self.call_family(f, call, &Places { operands: &x, groups: site.groups, options: &places }, site.span)
    }

    /// What a `where` is whose condition is known at compile time: one of its values, of which the other is not looked at, so
    /// that its layers make no parameters. An error is the condition, where it is a tensor.
    fn branch(&mut self, operands: &[&'a Expr]) -> Result<Val, Val> {
        match (self.eval(operands[0]), operands) {
            (Val::Konst(Konst::Bool(first)), [_, a, b]) => Ok(self.eval(if first { a } else { b })),
            (condition, _) => Err(condition),
        }
    }

    /// The value that a family makes of a call.
    pub(in crate::resolve) fn call_family(
        &mut self,
        f: &'static Family,
        call: OpCall,
        places: &Places<'_, '_>,
        span: Span,
    ) -> Val {
        if !self.numbers_fit(f.name, places.operands) {
            return Val::Poison;
        }
        self.make_at(places, span, |g| f.call(g, call))
    }

    /// The expressions given for operands and options; with what may have been meant instead.
    fn bound_to(
        &mut self,
        f: &'static Family,
        site: Site<'a>,
        slots: &[Slot<'_>],
        given: &[Written<'a>],
    ) -> Option<Vec<Option<&'a Expr>>> {
        let brackets = !f.signature.groups.is_empty();
        let name = if brackets { format!("{}[…]", f.name) } else { f.name.to_string() };
        let callee = Callee { name: &name, form: Some(f.text()), at: site.span, declared: None };
        let mut errors = Vec::new();
        let bound = super::args::bind(&callee, slots, given, &mut errors);
        // The same name may have another form.
        let operands = given.iter().filter(|a| a.0.is_none()).count();
        let other =
            meshwright_ops::family::written(f.name, !brackets).filter(|o| o.signature.takes(operands));
        for d in errors {
            self.error(match other {
                Some(o) if brackets => d.help(format!("element by element it is written `{}`", o.text())),
                Some(o) => d.help(format!("`{}` along dims is written `{}`", o.name, o.text())),
                None => d,
            });
        }
        bound
    }

    /// The pieces of the brackets, and what is set in them; `None` for the pieces where one is in error.
    pub(super) fn brackets_of(
        &mut self,
        site: Site<'a>,
        options: bool,
    ) -> (Vec<Written<'a>>, Option<Vec<Vec<Piece>>>) {
        let (mut set, mut groups) = (Vec::new(), Some(Vec::new()));
        for items in site.groups {
            let mut pieces = Some(Vec::new());
            for item in items {
                if let Some(option) = set_to(item).filter(|_| options) {
                    set.push(option);
                    continue;
                }
                match (self.piece(&site.name.text, item), &mut pieces) {
                    (Some(p), Some(all)) => all.push(p),
                    (None, _) => pieces = None,
                    _ => {}
                }
            }
            match (pieces, &mut groups) {
                (Some(p), Some(all)) => all.push(p),
                (None, _) => groups = None,
                _ => {}
            }
        }
        (set, groups)
    }

    fn piece(&mut self, name: &str, item: &'a DimItem) -> Option<Piece> {
        if item.at.is_some() {
            self.error(
                Diagnostic::error(codes::E0203, format!("`=` in the brackets of `{name}`"))
                    .at(item.span, "indexes a dim")
                    .help("index the operand instead: `x[d = i]`"),
            );
            return None;
        }
        let (dims, to) = (self.dims_of(&item.dims), self.dims_of(&item.to));
        let by = match &item.window {
            None => None,
            Some(w) => {
                let dims = self.dims_named(&w.text, w.span)?;
                Some(self.one_of(&dims, &w.text, w.span)?)
            }
        };
        Some(Piece { dims: dims?, to: to?, by })
    }

    /// What an option is set to: a word that it knows, else a number or a truth value.
    fn setting(&mut self, name: &str, choice: &'static Choice, value: &'a Expr) -> Option<Setting> {
        if let ExprKind::Name(word) = &value.kind
            && let Some(w) = choice.words.iter().find(|w| *w == word)
        {
            return Some(Setting::Word(w));
        }
        if !matches!(&value.kind, ExprKind::Name(n) if self.is_unknown(n)) {
            match self.operand(value)?.value {
                Value::Number(v) => return Some(Setting::Number(v)),
                Value::Bool(b) => return Some(Setting::Bool(b)),
                Value::Tensor(_) => {}
            }
        }
        let text = format!("`{}` of `{name}` is {choice}", choice.name);
        self.error(
            Diagnostic::error(codes::E0212, text).at(value.span, "something else").help(choice.help()),
        );
        None
    }

    /// Whether a name stands for nothing: then it was meant as a word.
    fn is_unknown(&mut self, name: &str) -> bool {
        let known = self.scope().locals.contains_key(name);
        !known && !self.globals.dims.contains_key(name) && !self.globals.consts.contains_key(name)
    }

    /// A call of what there is not, or not in this form. `brackets` says in which form it was called.
    pub(super) fn unknown_call(&mut self, site: Site<'a>, brackets: bool) -> Val {
        let name = site.name.text.as_str();
        // Mistakes in the arguments are independent of the name; dims may stand in those of a layer, and words behind names.
        for a in site.args {
            let value = &a.value;
            if a.name.is_none()
                && (brackets || !matches!(&value.kind, ExprKind::DimList(_) | ExprKind::Name(_)))
            {
                self.eval(value);
            }
        }
        let layer = self.globals.layers.by_name.contains_key(name);
        let other = meshwright_ops::family::written(name, !brackets);
        if let Some(f) = other.filter(|_| !brackets) {
            self.error(
                Diagnostic::error(codes::E0212, format!("`{name}` works along dims"))
                    .at(site.name.span, "without dims")
                    .help(format!("`{name}` along dims is written `{}`", f.text()))
                    .note(f.doc),
            );
            return Val::Poison;
        }
        if brackets && (layer || other.is_some() || SPECIAL.contains(&name)) {
            self.error(
                Diagnostic::error(codes::E0212, format!("`{name}` is not an op over dims"))
                    .at(site.span, "with dims")
                    .help(format!("it is written `{name}(x)`, without brackets")),
            );
            return Val::Poison;
        }
        let d = |text: String| Diagnostic::error(codes::E0201, text).at(site.name.span, "not known");
        if !brackets && crate::resolve::train::learning_rate::is_learning_rate(name) {
            let d = d(format!("`{name}` is a learning-rate schedule"));
            self.error(d.help("use it in the `train` block"));
            return Val::Poison;
        }
        let d = d(match brackets {
            true => format!("there is no op `{name}` over dims"),
            false => format!("no layer or function is called `{name}`"),
        });
        let n = site.args.len();
        let arrows = site.groups.iter().flatten().all(|item| !item.to.is_empty());
        let fits = |f: &str| {
            let needs_arrows = |f: &Family| f.signature.groups.iter().any(|g| g.arrow == Arrow::Must);
            let family = meshwright_ops::family::written(f, brackets);
            family.is_some_and(|f| f.signature.takes(n) && (arrows || !needs_arrows(f)))
        };
        let form = |f: &str| family(f, !brackets).map_or_else(|| f.to_string(), Family::text);
        let in_train = self.scopes.last().is_some_and(|s| s.kind == ScopeKind::Train);
        let place = if in_train { WordPlace::LearningRate } else { WordPlace::Call };
        let (d, known) = advised(d, place, name, site.name.span, fits, form);
        if known {
            self.error(d);
            return Val::Poison;
        }
        let called =
            |f: &&Family| f.signature.form == Form::Named && f.signature.groups.is_empty() != brackets;
        let layers = self.globals.layers.by_name.keys().copied().filter(|_| !brackets);
        let special = SPECIAL.into_iter().filter(|s| !brackets || s.starts_with("random"));
        let near = nearest(name, layers.chain(families().filter(called).map(|f| f.name)).chain(special));
        let d = match near {
            Some(near) => d.fix(format!("write `{near}`"), site.name.span, near, near.sure),
            None if brackets => d,
            None => {
                d.help(format!("declare it: `layer {name}({}) {{ … }}`", if n == 2 { "x, y" } else { "x" }))
            }
        };
        self.error(d);
        Val::Poison
    }
}

/// The number that a function of numbers is.
fn folded(f: &Family, values: &[Val]) -> Option<Result<Num, String>> {
    let number = |v: &Val| if let Val::Konst(k) = v { Some(*k) } else { None };
    let x: Vec<Konst> = values.iter().map(number).collect::<Option<_>>()?;
    if f.signature.groups.is_empty() { number::function(f.name, &x) } else { None }
}

/// Whether a fold names lists of dims that are all empty: then it is its operand.
pub(super) fn folds_nothing(f: &Family, groups: &[Vec<Piece>]) -> bool {
    let none = |p: &Piece| p.dims.is_empty() && p.to.is_empty() && p.by.is_none();
    let mut pieces = groups.iter().flatten().peekable();
    f.signature.folds() && pieces.peek().is_some() && pieces.all(none)
}

pub(super) fn as_value(v: Value) -> Val {
    match v {
        Value::Tensor(id) => Val::Tensor(id),
        Value::Number(v) => Val::Konst(Konst::Num(Num::real(v))),
        Value::Bool(b) => Val::Konst(Konst::Bool(b)),
    }
}

/// The name and value of an item such as `by = 1`.
fn set_to(item: &DimItem) -> Option<Written<'_>> {
    match (item.dims.as_slice(), &item.at) {
        ([name], Some(At::Value(e))) if item.to.is_empty() && item.window.is_none() => Some((Some(name), e)),
        _ => None,
    }
}
