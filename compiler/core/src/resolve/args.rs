//! Which argument goes to which parameter of a call.

use super::report::{counted, listed, nearest};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_syntax::ast::{Arg, Expr};

/// A parameter of something that can be called.
pub(super) struct Slot<'a> {
    pub(super) name: &'a str,
    pub(super) required: bool,
    /// Where it is declared, if in a file.
    pub(super) span: Option<Span>,
}

impl<'a> Slot<'a> {
    /// A parameter of a built-in.
    pub(super) fn built_in(name: &'a str, required: bool) -> Slot<'a> {
        Slot { name, required, span: None }
    }
}

/// For each parameter the expression given for it. All mistakes go to `errors`; `None` where there is one.
pub(super) fn bind<'e>(
    what: &str,
    at: Span,
    declared: Option<Span>,
    slots: &[Slot<'_>],
    args: &'e [Arg],
    errors: &mut Vec<Diagnostic>,
) -> Option<Vec<Option<&'e Expr>>> {
    let mut out: Vec<Option<&Expr>> = vec![None; slots.len()];
    let before = errors.len();
    let names = || listed(slots.iter().map(|s| s.name));
    let place = |d: Diagnostic| match declared {
        Some(span) => d.and(span, format!("`{what}` takes {}", names())),
        None => d.note(format!("`{what}` takes {}", names())),
    };
    let mut named_before: Option<Span> = None;
    for (i, arg) in args.iter().enumerate() {
        let Some(name) = &arg.name else {
            if let Some(first) = named_before {
                errors.push(
                    Diagnostic::error(
                        codes::E0212,
                        format!("an argument of `{what}` without a name follows one with a name"),
                    )
                    .at(arg.value.span, "which parameter this is for, is not clear")
                    .and(first, "named here")
                    .help("put the arguments without names first, or name this one too"),
                );
            } else if i < slots.len() {
                out[i] = Some(&arg.value);
            } else if i == slots.len() {
                let given = args.iter().filter(|a| a.name.is_none()).count();
                let text =
                    format!("`{what}` takes {}, but {given} are given", counted(slots.len(), "argument"));
                errors.push(place(
                    Diagnostic::error(codes::E0212, text).at(arg.value.span, "this one is too many"),
                ));
            }
            continue;
        };
        named_before = named_before.or(Some(name.span));
        match slots.iter().position(|s| s.name == name.text) {
            Some(k) if out[k].is_some() => {
                let first = out[k].map_or(at, |e| e.span);
                errors.push(
                    Diagnostic::error(codes::E0212, format!("`{what}` is given `{}` twice", name.text))
                        .at(name.span, "again here")
                        .and(first, "given here")
                        .help("leave one of them out"),
                );
            }
            Some(k) => out[k] = Some(&arg.value),
            None => {
                let mut d =
                    Diagnostic::error(codes::E0212, format!("`{what}` has no parameter `{}`", name.text))
                        .at(name.span, "no such parameter");
                if let Some(near) = nearest(&name.text, slots.iter().map(|s| s.name)) {
                    d = d.fix(format!("write `{near}`"), name.span, near, near.sure);
                }
                errors.push(place(d));
            }
        }
    }
    let missing: Vec<&Slot<'_>> =
        slots.iter().zip(&out).filter(|(s, e)| s.required && e.is_none()).map(|(s, _)| s).collect();
    // A misspelled name would be reported a second time as a missing one.
    if !missing.is_empty() && errors.len() == before {
        let names = listed(missing.iter().map(|s| s.name));
        let text = format!("`{what}` is called without {names}");
        let mut d = Diagnostic::error(codes::E0212, text).at(at, format!("{names} missing"));
        for s in missing.iter().take(4) {
            if let Some(span) = s.span {
                d = d.and(span, "declared here, without a default");
            }
        }
        let form: Vec<&str> = slots.iter().filter(|s| s.required).map(|s| s.name).collect();
        errors.push(d.help(format!("write `{what}({})`", form.join(", "))));
    }
    (errors.len() == before).then_some(out)
}
