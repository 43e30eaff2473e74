//! What stands between a function and the loss so that some of its values do not count: a `where`, or a product with a mask.
//! Neither keeps what is infinite out of the gradient, in which it is multiplied by 0.

use meshwright_diag::{Sources, Span};
use meshwright_ops::{Computes, Graph, Id, Kind};
use meshwright_plan::{DType, Phase};
use meshwright_sorted::SortedMap;

/// As many values may lie between a function and what it stands behind.
const DEPTH: usize = 6;
/// The longest condition that is written out.
const LONGEST: usize = 40;

/// A `where` or a product with a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Its place in the model.
    span: Span,
    kind: GuardKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuardKind {
    /// A `where` that chooses the function where its condition holds, or where not.
    Where { if_true: bool },
    /// A product with a truth value, whose place this is.
    Mask(Span),
}

impl Guard {
    /// What the value `of` of the forward pass stands behind: the first there is.
    pub(crate) fn of(graph: &Graph, of: Id) -> Option<Guard> {
        let mut reached: SortedMap<Id, usize> = [(of, 0)].into();
        for id in graph.ids().filter(|id| graph.node(*id).origin.phase == Phase::Forward) {
            let node = graph.node(id);
            let from = |x: &Id| reached.get(x).copied();
            let Some(depth) = node.inputs.iter().filter_map(from).min().filter(|d| *d < DEPTH) else {
                continue;
            };
            let span = node.origin.span;
            if node.op.kind() == Kind::Compute(Computes::Select) {
                match node.inputs.iter().position(|x| from(x).is_some()) {
                    // A condition.
                    Some(0) | None => continue,
                    Some(at) => return Some(Guard { span, kind: GuardKind::Where { if_true: at == 1 } }),
                }
            }
            if node.op.kind() == Kind::Compute(Computes::Contraction) {
                if let Some(mask) = node.inputs.iter().find_map(|x| truth(graph, *x)) {
                    return Some(Guard { span, kind: GuardKind::Mask(mask) });
                }
                if !is_of_elements(graph, &node.inputs) {
                    continue;
                }
            }
            reached.insert(id, depth + 1);
        }
        None
    }

    /// Whether it may be behind what came of the function: a `where` chose the function where its value is `shown` by the loss.
    pub(crate) fn holds(&self, shown: bool) -> bool {
        !shown || matches!(self.kind, GuardKind::Mask(_))
    }

    /// What is wrong, and the function `name` with an operand that is safe.
    pub(crate) fn help(&self, sources: &Sources, name: &str) -> String {
        let safe = match self.kind {
            GuardKind::Where { if_true } => {
                let condition = condition(sources.slice(self.span)).unwrap_or("…");
                if if_true {
                    format!("where({condition}, …, 1)")
                } else {
                    format!("where({condition}, 1, …)")
                }
            }
            GuardKind::Mask(span) => {
                format!("where({}, …, 1)", short(sources.slice(span)).unwrap_or("mask"))
            }
        };
        let safe = match name {
            "/" => format!("… / {safe}"),
            "**" => format!("{safe} ** …"),
            _ => format!("{name}({safe})"),
        };
        let (what, line) = match self.kind {
            GuardKind::Where { .. } => ("a `where` that does not choose it", sources.line(self.span)),
            GuardKind::Mask(_) => ("a mask", sources.line(self.span)),
        };
        format!(
            "{what} (line {line}) does not keep it out of the gradient, where 0 times infinity is not a number: choose the operand, `{safe}`"
        )
    }
}

/// The place of the truth value that a factor is.
fn truth(graph: &Graph, factor: Id) -> Option<Span> {
    let node = graph.node(factor);
    let of = *node.inputs.first().filter(|_| node.op.name() == "cast")?;
    (graph.ty(of).dtype == DType::Bool).then(|| graph.node(of).origin.span)
}

/// True of a product of which one factor has all dims: no product of matrices.
fn is_of_elements(graph: &Graph, factors: &[Id]) -> bool {
    let dims = |x: &Id| graph.ty(*x).dims.clone();
    factors.iter().any(|all| factors.iter().all(|x| dims(x).iter().all(|d| graph.ty(*all).has(*d))))
}

/// The first argument of a `where`, as it is written.
fn condition(call: &str) -> Option<&str> {
    let arguments = call.strip_prefix("where")?.trim_start().strip_prefix('(')?;
    let mut open = 0_usize;
    for (at, c) in arguments.char_indices() {
        match c {
            '(' | '[' => open += 1,
            ')' | ']' => open = open.checked_sub(1)?,
            ',' if open == 0 => return short(arguments[..at].trim()),
            _ => {}
        }
    }
    None
}

/// A text that fits in a line.
fn short(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    let text = inner.filter(|t| !t.contains(['(', ')'])).unwrap_or(text);
    let fits = !text.is_empty() && !text.contains('\n') && text.chars().count() <= LONGEST;
    fits.then_some(text)
}
