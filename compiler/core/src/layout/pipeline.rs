//! Pipelines: a rule for the dim of a loop splits its iterations over stages, and `schedule` orders the microbatches.

use crate::program::Program;
use meshwright_diag::{Diagnostic, Span, codes, nearest};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Axis, Dim, Mesh};
use meshwright_syntax::ast::{Name, Rule};

/// A loop that is split over stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineRule {
    /// Its dim.
    pub dim: Dim,
    /// The axes of the stages, major first, without those of size 1.
    pub axes: Vec<Axis>,
    /// The rule that splits it.
    pub span: Span,
}

/// Reads `schedule NAME`.
pub(super) fn schedule(
    name: &Name,
    span: Span,
    known: &mut Option<(PipelineSchedule, Span)>,
    out: &mut Vec<Diagnostic>,
) {
    let Some(schedule) = PipelineSchedule::named(&name.text) else {
        let all =
            [PipelineSchedule::Gpipe, PipelineSchedule::OneForwardOneBackward].map(PipelineSchedule::name);
        let d = Diagnostic::error(codes::E0316, format!("no schedule is called `{}`", name.text))
            .at(name.span, "no such schedule")
            .note(format!("schedules are `{}`", all.join("`, `")));
        out.push(match nearest(&name.text, all) {
            Some(c) => d.fix(format!("did you mean `{c}`?"), name.span, c, c.sure),
            None => d.help("write `schedule 1f1b`, which is the default"),
        });
        return;
    };
    if schedule == PipelineSchedule::ZbH1 {
        let d = Diagnostic::error(codes::E0190, "`schedule zb_h1` is not implemented yet");
        out.push(d.at(name.span, "parsed, but not implemented yet").help("write `schedule 1f1b`"));
        return;
    }
    if let Some((_, first)) = *known {
        let d = Diagnostic::error(codes::E0316, "a layout says twice in which order a pipeline runs");
        out.push(d.at(span, "the second time").and(first, "the first time").help("leave one out"));
    }
    *known = Some((schedule, span));
}

/// A rule that splits the loop over `dim`. Gives whether it makes stages of it.
pub(super) fn splits(
    dim: Dim,
    (rule, span): (&Rule, Span),
    axes: &[Axis],
    program: &Program,
    (mesh, known): (&Mesh, &mut Option<PipelineRule>),
    out: &mut Vec<Diagnostic>,
) -> bool {
    let g = &program.graph;
    let name = g.dims.name(dim);
    let refused = |why: String, help: String| {
        let d =
            Diagnostic::error(codes::E0315, format!("the loop over `{name}` cannot be a pipeline: {why}"));
        d.at(span, "its iterations would be stages").help(help)
    };
    let loops: Vec<_> = g.repeats.iter().filter(|r| r.dim == dim).collect();
    let found = if rule.scope.kind.is_some() || rule.scope.path.is_some() {
        let all = axes.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(", ");
        Some(refused(
            "the rule is for some values alone".into(),
            format!("write `{name} -> {all}`, without a scope"),
        ))
    } else if rule.when_free.is_some() {
        Some(refused("stages do not yield".into(), "leave `when free` out".into()))
    } else if loops.iter().any(|r| r.parent.is_some()) {
        Some(refused("it is in the body of another loop".into(), "split the loop around it".into()))
    } else if loops.len() != 1 {
        let why = format!("the model has {} loops over it", loops.len());
        Some(refused(why, "give one of them a dim of its own".into()))
    } else if let Some(other) = known.as_ref().filter(|p| p.dim != dim) {
        let why = format!("`{}` is one already", g.dims.name(other.dim));
        Some(refused(why, "split one loop alone".into()).and(other.span, "this one is first"))
    } else {
        None
    };
    if let Some(d) = found {
        out.push(d);
        return false;
    }
    let axes: Vec<Axis> = axes.iter().copied().filter(|a| mesh.size(*a) > 1).collect();
    if !axes.is_empty() {
        *known = Some(PipelineRule { dim, axes, span });
    }
    true
}

/// A note where `schedule` is for no pipeline.
pub(super) fn without_effect(
    schedule: Option<(PipelineSchedule, Span)>,
    pipeline: Option<&PipelineRule>,
    out: &mut Vec<Diagnostic>,
) {
    if let (Some((_, span)), None) = (schedule, pipeline) {
        let d = Diagnostic::note_message(codes::E0316, "`schedule` changes nothing here: no loop is split");
        out.push(
            d.at(span, "no effect").help("split a loop over an axis of several devices: `layers -> pipe`"),
        );
    }
}
