//! Arguments are bound to the parameters of a call: of layers, built-ins, initializers, learning-rate schedules and optimizers
//! alike.

use crate::resolve::report::{counted, listed, nearest};
use meshwright_diag::foreign::{WordPlace, advised};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_ops::signature::Unset;
use meshwright_ops::signature::{Given, Signature};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{Arg, Expr, Name};

/// Assignment of an argument to a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By its place or its name.
    Either,
    /// By its place: the name is only for messages.
    Place,
    /// By its name.
    Name,
}

/// A parameter of something that can be called.
pub(in crate::resolve) struct Slot<'a> {
    pub(in crate::resolve) name: &'a str,
    required: bool,
    by: By,
    /// Its declaration, if in a file.
    span: Option<Span>,
}

impl<'a> Slot<'a> {
    /// A parameter of a built-in.
    pub(in crate::resolve) fn built_in(name: &'a str, required: bool) -> Slot<'a> {
        Slot { name, required, by: By::Either, span: None }
    }

    /// A parameter of a layer.
    pub(in crate::resolve) fn declared(name: &'a Name, required: bool) -> Slot<'a> {
        Slot { span: Some(name.span), ..Slot::built_in(&name.text, required) }
    }

    /// The parameters of a signature: its operands, for this number of given ones, then its options.
    pub(in crate::resolve) fn of(signature: &'static Signature, operands: usize) -> Vec<Slot<'static>> {
        let mut out: Vec<Slot<'static>> = Vec::new();
        for a in signature.operands {
            let more = operands.saturating_sub(out.len()).max(1);
            let times = if a.given == Given::Repeated { more } else { 1 };
            let slot = || Slot { by: By::Place, ..Slot::built_in(a.name, a.given != Given::Optional) };
            out.extend((0..times).map(|_| slot()));
        }
        let option = |o: &'static meshwright_ops::signature::Choice| Slot {
            by: By::Name,
            ..Slot::built_in(o.name, o.default == Unset::Needed)
        };
        out.extend(signature.options.iter().map(option));
        out
    }
}

/// The called op or layer.
pub(super) struct Callee<'a> {
    /// As messages call it.
    pub(in crate::resolve) name: &'a str,
    /// Its syntax, if not by its name and its required parameters.
    pub(in crate::resolve) form: Option<String>,
    /// The place of the call.
    pub(in crate::resolve) at: Span,
    /// Its declaration, if in a file.
    pub(in crate::resolve) declared: Option<Span>,
}

/// An argument as it is written.
pub(in crate::resolve) type Written<'e> = (Option<&'e Name>, &'e Expr);

/// The dtype of a `cast`, which alone may name the dim whose positions are its values.
pub(super) fn cast_dtype(args: &[Arg]) -> Option<&Arg> {
    let by_name = args.iter().find(|a| a.name.as_ref().is_some_and(|n| n.text == "dtype"));
    by_name.or_else(|| args.iter().filter(|a| a.name.is_none()).nth(1))
}

/// A dim behind an argument of anything but the dtype of a `cast`.
pub(in crate::resolve) fn misplaced_dim(name: &str, args: &[Arg]) -> Option<Diagnostic> {
    let may = cast_dtype(args).filter(|_| name == "cast");
    let other = |a: &&Arg| a.within.is_some() && may.is_none_or(|m| !std::ptr::eq(m, *a));
    let within = args.iter().find(other)?.within.as_ref()?;
    Some(
        Diagnostic::error(codes::E0212, format!("`in {}` stands in a call of `{name}`", within.text))
            .at(within.span, "says nothing here")
            .help(format!("only a cast names the dim of positions: `cast(i, i32 in {})`", within.text)),
    )
}

/// The arguments of a call as they are written.
pub(in crate::resolve) fn written(args: &[Arg]) -> Vec<Written<'_>> {
    args.iter().map(|a| (a.name.as_ref(), &a.value)).collect()
}

/// For each parameter the expression given for it. All mistakes go to `errors`; `None` where there is one.
pub(super) fn bind<'e>(
    callee: &Callee<'_>,
    slots: &[Slot<'_>],
    args: &[Written<'e>],
    errors: &mut Vec<Diagnostic>,
) -> Option<Vec<Option<&'e Expr>>> {
    // Names can be said of these; of two of one name the first is meant.
    let can = slots.iter().enumerate().filter(|(_, s)| s.by != By::Place);
    let by_name: SortedMap<&str, usize> = can.rev().map(|(k, s)| (s.name, k)).collect();
    let places = slots.iter().filter(|s| s.by != By::Name).count();
    let mut b = Binder { callee, slots, by_name, places, out: vec![None; slots.len()], errors: Vec::new() };
    let mut named: Option<Span> = None;
    for (i, &(name, value)) in args.iter().enumerate() {
        if b.errors.len() >= MAX_REPORTED {
            break;
        }
        match name {
            Some(name) => {
                named = named.or(Some(name.span));
                b.named(name, value);
            }
            None => b.placed(i, value, args, named),
        }
    }
    // A misspelled name would be reported a second time as a missing one.
    if b.errors.is_empty() {
        b.missing();
    }
    let fine = b.errors.is_empty();
    errors.append(&mut b.errors);
    fine.then_some(b.out)
}

struct Binder<'b, 'e> {
    callee: &'b Callee<'b>,
    slots: &'b [Slot<'b>],
    /// Parameters that can be named.
    by_name: SortedMap<&'b str, usize>,
    /// Number of parameters that can be given by position.
    places: usize,
    out: Vec<Option<&'e Expr>>,
    errors: Vec<Diagnostic>,
}

impl<'e> Binder<'_, 'e> {
    fn error(&self, text: String) -> Diagnostic {
        Diagnostic::error(codes::E0212, text)
    }

    /// Its parameters, as a note or at its declaration.
    fn takes(&self, d: Diagnostic) -> Diagnostic {
        let text = match &self.callee.form {
            Some(form) => format!("it is written `{form}`"),
            None => format!("`{}` takes {}", self.callee.name, listed(self.slots.iter().map(|s| s.name))),
        };
        match self.callee.declared {
            Some(span) => d.and(span, text),
            None => d.note(text),
        }
    }

    /// An argument without a name.
    fn placed(&mut self, i: usize, value: &'e Expr, args: &[Written<'e>], named: Option<Span>) {
        let (what, places) = (self.callee.name, self.places);
        if let Some(first) = named {
            let d = self.error(format!("an argument of `{what}` without a name follows one with a name"));
            self.errors.push(
                d.at(value.span, "which parameter this is for, is not clear")
                    .and(first, "named here")
                    .help("put the arguments without names first, or name this one too"),
            );
        } else if i < places {
            self.out[i] = Some(value);
        } else if i == places {
            let given = args.iter().filter(|a| a.0.is_none()).count();
            let are = if given == 1 { "is" } else { "are" };
            let d = self
                .error(format!("`{what}` takes {}, but {given} {are} given", counted(places, "argument")));
            self.errors.push(self.takes(d.at(value.span, "this one is too many")));
        }
    }

    /// An argument with a name.
    fn named(&mut self, name: &'e Name, value: &'e Expr) {
        let what = self.callee.name;
        match self.by_name.get(name.text.as_str()).copied() {
            Some(k) => match self.out[k] {
                None => self.out[k] = Some(value),
                Some(first) => {
                    let d = self.error(format!("`{what}` is given `{}` twice", name.text));
                    self.errors.push(
                        d.at(name.span, "again here")
                            .and(first.span, "given here")
                            .help("leave one of them out"),
                    );
                }
            },
            None => {
                let d = self.error(format!("`{what}` has no parameter `{}`", name.text));
                let d = d.at(name.span, "no such parameter");
                let free = |here: &str| self.by_name.get(here).is_some_and(|k| self.out[*k].is_none());
                let (d, known) = advised(d, WordPlace::Argument, &name.text, name.span, free, |here| {
                    format!("{here} = …")
                });
                let d = match nearest(&name.text, self.by_name.keys().copied()).filter(|_| !known) {
                    _ if known => d,
                    Some(near) => d.fix(format!("write `{near}`"), name.span, near, near.sure),
                    None if self.by_name.is_empty() => d.help("its arguments have no names"),
                    None => d,
                };
                self.errors.push(self.takes(d));
            }
        }
    }

    /// Parameters without an argument.
    fn missing(&mut self) {
        let open = self.slots.iter().zip(&self.out).filter(|(s, e)| s.required && e.is_none());
        let missing: Vec<&Slot<'_>> = open.map(|(s, _)| s).collect();
        if missing.is_empty() {
            return;
        }
        let what = self.callee.name;
        let names = listed(missing.iter().map(|s| s.name));
        let mut d = self
            .error(format!("`{what}` is called without {names}"))
            .at(self.callee.at, format!("{names} missing"));
        for span in missing.iter().take(4).filter_map(|s| s.span) {
            d = d.and(span, "declared here, without a default");
        }
        let named: Vec<String> =
            missing.iter().take(MAX_REPORTED).map(|s| format!("{} = …", s.name)).collect();
        let help = match &self.callee.form {
            Some(form) => format!("write `{form}`"),
            None if self.by_name.is_empty() => {
                let all: Vec<&str> = self.slots.iter().filter(|s| s.required).map(|s| s.name).collect();
                format!("write `{what}({})`", all.join(", "))
            }
            None if self.out.iter().all(Option::is_none) => format!("write `{what}({})`", named.join(", ")),
            None => format!("add `{}`", named.join(", ")),
        };
        self.errors.push(d.help(help));
    }
}
