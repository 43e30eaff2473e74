//! `name[rows by kh; in](x, w, padding = same)`: built-in ops whose brackets say more than dims, and which take options.

use super::Resolver;
use super::expr::Operand;
use super::report::{counted, listed, nearest};
use super::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Call, Choice, Family, Form, Piece, Setting, Value};
use meshwright_syntax::ast::{Arg, At, DimItem, DimOp, Expr, ExprKind, Name};

impl<'a> Resolver<'a> {
    /// A call of a family whose form is [`Form::Bracket`].
    pub(super) fn over_pieces(&mut self, f: &Family, op: &'a DimOp, span: Span) -> Val {
        let Form::Bracket { args, more, options } = f.form else { return Val::Poison };
        let name = f.name;
        let (named, plain): (Vec<&'a Arg>, Vec<&'a Arg>) = op.args.iter().partition(|a| a.name.is_some());
        let operands: Vec<Option<Operand<'a>>> = plain.iter().map(|a| self.operand(&a.value)).collect();
        // An option may stand in the brackets too: `shift[d, by = 1](x)`.
        let mut given: Vec<(&'a Name, &'a Expr)> =
            named.iter().filter_map(|a| Some((a.name.as_ref()?, &a.value))).collect();
        let mut groups = Some(Vec::new());
        for items in &op.groups {
            let (set, moved): (Vec<&'a DimItem>, Vec<&'a DimItem>) =
                items.iter().partition(|i| set_to(i).is_some());
            given.extend(set.into_iter().filter_map(set_to));
            match (self.pieces(name, &moved), &mut groups) {
                (Some(p), Some(all)) => all.push(p),
                (None, _) => groups = None,
                _ => {}
            }
        }
        let settings = self.settings(name, options, &given);
        if plain.len() < args || plain.len() > args && !more {
            let least = if more { "at least " } else { "" };
            let text = format!("`{name}[…]` takes {least}{}, not {}", counted(args, "argument"), plain.len());
            self.error(
                Diagnostic::error(codes::E0212, text)
                    .at(span, format!("{} here", counted(plain.len(), "argument")))
                    .note(f.doc),
            );
            return Val::Poison;
        }
        let operands: Option<Vec<Operand<'a>>> = operands.into_iter().collect();
        let (Some(operands), Some(settings), Some(groups)) = (operands, settings, groups) else {
            return Val::Poison;
        };
        let values: Vec<Value> = operands.iter().map(|o| o.value).collect();
        let float = self.float;
        self.make(&operands, span, |g| {
            let call = Call { name, args: &values, dims: &[], groups: &groups, named: &settings, float };
            (f.build)(g, &call)
        })
    }

    fn pieces(&mut self, name: &str, items: &[&'a DimItem]) -> Option<Vec<Piece>> {
        let mut out = Some(Vec::new());
        for item in items {
            match (self.piece(name, item), &mut out) {
                (Some(p), Some(all)) => all.push(p),
                (None, _) => out = None,
                _ => {}
            }
        }
        out
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
            Some(w) => match self.dims_named(&w.text, w.span)?.as_slice() {
                [d] => Some(*d),
                many => {
                    let list = self.graph.dims.list(many);
                    self.error(
                        Diagnostic::error(codes::E0203, format!("`by {}` needs one dim", w.text))
                            .at(w.span, format!("the dims {list}")),
                    );
                    return None;
                }
            },
        };
        Some(Piece { dims: dims?, to: to?, by })
    }

    fn settings(
        &mut self,
        name: &str,
        options: &'static [Choice],
        given: &[(&'a Name, &'a Expr)],
    ) -> Option<Vec<(&'static str, Setting)>> {
        let mut out: Vec<(&'static str, Setting)> = Vec::new();
        let mut fine = true;
        for (key, value) in given {
            let Some(choice) = options.iter().find(|o| o.name == key.text) else {
                fine = false;
                self.no_option(name, options, key);
                continue;
            };
            if out.iter().any(|o| o.0 == choice.name) {
                fine = false;
                self.error(
                    Diagnostic::error(codes::E0212, format!("`{}` of `{name}` is given twice", choice.name))
                        .at(key.span, "again here"),
                );
                continue;
            }
            match self.setting(name, choice, value) {
                Some(s) => out.push((choice.name, s)),
                None => fine = false,
            }
        }
        fine.then_some(out)
    }

    fn setting(&mut self, name: &str, choice: &'static Choice, value: &'a Expr) -> Option<Setting> {
        if let ExprKind::Name(word) = &value.kind
            && let Some(w) = choice.words.iter().find(|w| *w == word)
        {
            return Some(Setting::Word(w));
        }
        let mut can: Vec<String> = choice.words.iter().map(|w| format!("`{w}`")).collect();
        if choice.values {
            can.push("a number".into());
            if !matches!(&value.kind, ExprKind::Name(n) if self.is_unknown(n)) {
                match self.operand(value)?.value {
                    Value::Number(v) => return Some(Setting::Number(v)),
                    Value::Bool(b) => return Some(Setting::Bool(b)),
                    Value::Tensor(_) => {}
                }
            }
        }
        let text = format!("`{}` of `{name}` is {}", choice.name, can.join(" or "));
        self.error(Diagnostic::error(codes::E0212, text).at(value.span, "something else"));
        None
    }

    fn no_option(&mut self, name: &str, options: &[Choice], key: &Name) {
        let text = format!("`{name}` has no option `{}`", key.text);
        let d = Diagnostic::error(codes::E0212, text).at(key.span, "no such option");
        let d = match nearest(&key.text, options.iter().map(|o| o.name)) {
            Some(near) => d.fix(format!("write `{near}`"), key.span, near, near.sure),
            None if options.is_empty() => d.help("leave it out: it takes no options"),
            None => d.help(format!("it has {}", listed(options.iter().map(|o| o.name)))),
        };
        self.error(d);
    }

    /// Whether a name stands for nothing: then it was meant as a word.
    fn is_unknown(&mut self, name: &str) -> bool {
        let known = self.scope().locals.contains_key(name);
        !known && !self.globals.dims.contains_key(name) && !self.globals.consts.contains_key(name)
    }
}

/// The name and value of an item such as `by = 1`.
fn set_to(item: &DimItem) -> Option<(&Name, &Expr)> {
    match (item.dims.as_slice(), &item.at) {
        ([name], Some(At::Value(e))) if item.to.is_empty() && item.window.is_none() => Some((name, e)),
        _ => None,
    }
}
