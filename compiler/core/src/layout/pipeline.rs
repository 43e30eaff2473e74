//! Pipelines: a rule for the dim of a loop splits its iterations over stages, and `schedule` orders the microbatches.

use crate::program::Program;
use meshwright_diag::{Diagnostic, Span, codes, nearest};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Axis, Dim, Dims, Mesh, piece};
use meshwright_syntax::ast::{LayoutKind, Name, Rule};

/// A loop that is split over stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineRule {
    /// Its dim.
    pub dim: Dim,
    /// The axes of the stages, major first, without those of size 1.
    pub axes: Vec<Axis>,
    /// The rule that splits it.
    pub span: Span,
    /// Positions of each stage in order, where they are not balanced or a device has several stages.
    pub lengths: Option<Vec<usize>>,
}

/// Lines that say how microbatches pass the stages, each with its place.
#[derive(Clone, Debug, Default)]
pub struct PipelineOrder {
    /// The order of passes.
    pub schedule: Option<(PipelineSchedule, Span)>,
    /// Stages of each device.
    pub chunks: Option<(usize, Span)>,
    /// Positions of each stage.
    pub stages: Option<(Vec<usize>, Span)>,
}

impl PipelineOrder {
    /// Reads one of these lines.
    pub(super) fn read(&mut self, kind: &LayoutKind, span: Span, out: &mut Vec<Diagnostic>) {
        let number = |n: &u64| usize::try_from(*n).unwrap_or(usize::MAX);
        let first = match kind {
            LayoutKind::Schedule(name) => {
                let Some(schedule) = schedule(name, out) else { return };
                self.schedule.replace((schedule, span)).map(|known| known.1)
            }
            LayoutKind::Chunks { count, .. } => {
                self.chunks.replace((number(count), span)).map(|known| known.1)
            }
            LayoutKind::Stages(counts) => {
                let counts = counts.iter().map(|(n, _)| number(n)).collect();
                self.stages.replace((counts, span)).map(|known| known.1)
            }
            _ => None,
        };
        if let Some(first) = first {
            let d = Diagnostic::error(codes::E0316, "a layout says twice how a pipeline runs");
            out.push(d.at(span, "the second time").and(first, "the first time").help("leave one out"));
        }
    }

    /// The order of passes.
    pub fn schedule(&self) -> PipelineSchedule {
        self.schedule.map_or_else(Default::default, |s| s.0)
    }

    /// Stages of each device.
    pub fn chunks(&self) -> usize {
        self.chunks.map_or(1, |c| c.0)
    }
}

/// The schedule of a name.
fn schedule(name: &Name, out: &mut Vec<Diagnostic>) -> Option<PipelineSchedule> {
    let schedule = PipelineSchedule::named(&name.text);
    if schedule.is_none() {
        let all = PipelineSchedule::ALL.map(PipelineSchedule::name);
        let d = Diagnostic::error(codes::E0316, format!("no schedule is called `{}`", name.text))
            .at(name.span, "no such schedule")
            .note(format!("schedules are `{}`", all.join("`, `")));
        out.push(match nearest(&name.text, all) {
            Some(c) => d.fix(format!("did you mean `{c}`?"), name.span, c, c.sure),
            None => d.help("write `schedule 1f1b`, which is the default"),
        });
    }
    schedule
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
    } else if loops.iter().any(|r| r.reverse) {
        Some(refused(
            "it runs from the last position to the first".into(),
            "write the model so that it runs from the first one on".into(),
        ))
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
        *known = Some(PipelineRule { dim, axes, span, lengths: None });
    }
    true
}

/// Notes the lines that have no effect without a pipeline.
fn without_effect(order: &PipelineOrder, out: &mut Vec<Diagnostic>) {
    let lines = [
        ("schedule", order.schedule.map(|s| s.1)),
        ("chunks", order.chunks.map(|c| c.1)),
        ("stages", order.stages.as_ref().map(|s| s.1)),
    ];
    for (word, span) in lines.into_iter().filter_map(|(word, span)| Some((word, span?))) {
        let text = format!("`{word}` changes nothing here: no loop is split");
        let d = Diagnostic::note_message(codes::E0316, text).at(span, "no effect");
        out.push(d.help("split a loop over an axis of several devices: `layers -> pipe`"));
    }
}

/// Gives the stages of a pipeline their lengths, if they are not balanced ones. Without a pipeline, notes what has no effect.
pub(super) fn settle(
    (order, rule): (&PipelineOrder, Option<&mut PipelineRule>),
    (mesh, dims): (&Mesh, &Dims),
    out: &mut Vec<Diagnostic>,
) {
    let Some(rule) = rule else { return without_effect(order, out) };
    let (size, name) = (dims.size(rule.dim), dims.name(rule.dim));
    let devices: usize = rule.axes.iter().map(|a| mesh.size(*a)).product();
    let refused = |span: Span, text: String, label: String| {
        Diagnostic::error(codes::E0316, text).at(span, label).and(rule.span, "its iterations are stages")
    };
    if let Some((chunks, span)) = order.chunks {
        if chunks == 0 {
            let text = "a device of a pipeline has at least one stage".to_string();
            out.push(refused(span, text, "no stage".into()).help("write `chunks 1`, which is the default"));
            return;
        }
        let gpipe = order.schedule.filter(|s| s.0 == PipelineSchedule::Gpipe);
        if let (Some((_, first)), 2..) = (gpipe, chunks) {
            let text = "`gpipe` has one stage on each device".to_string();
            let d = refused(span, text, format!("{chunks} stages on each device"));
            out.push(d.and(first, "this order").help("write `schedule 1f1b`, or leave `chunks` out"));
            return;
        }
        // Lengths that are given may be none.
        let balanced = order.stages.is_none();
        if balanced && chunks.saturating_mul(devices) > size {
            let text =
                format!("{chunks} stages on each of {devices} devices need a position of `{name}` each");
            let most = size / devices;
            let d = refused(span, text, format!("`{name}` has {}", counted(size, "position")));
            out.push(match most {
                0 | 1 => d.help("leave `chunks` out"),
                n => d.help(format!(
                    "at most `chunks {n}`; or `stages` with the length of each, which may be 0"
                )),
            });
            return;
        }
    }
    let stages = devices * order.chunks();
    rule.lengths = match &order.stages {
        None if order.chunks() == 1 => None,
        None => Some((0..stages).map(|at| piece(size, stages, at).len()).collect()),
        Some((lengths, span)) => {
            let sum = lengths.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
            let balanced: Vec<String> =
                (0..stages).map(|at| piece(size, stages, at).len().to_string()).collect();
            let help = format!("write `stages {}`, which is the default", balanced.join(", "));
            let found = if lengths.len() != stages {
                let each = if order.chunks() > 1 {
                    format!(" with {} stages each", order.chunks())
                } else {
                    String::new()
                };
                let text = format!(
                    "`stages` has {}, and {} has {stages}",
                    counted(lengths.len(), "length"),
                    format_args!("a pipeline of {devices} devices{each}")
                );
                Some((text, "one length for each stage".to_string()))
            } else if sum != size {
                Some((
                    format!("the stages have {sum} positions of `{name}`, which has {size}"),
                    format!("together {sum}"),
                ))
            } else {
                None
            };
            if let Some((text, label)) = found {
                out.push(refused(*span, text, label).help(help));
                return;
            }
            Some(lengths.clone())
        }
    };
}

/// `3 positions`.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
