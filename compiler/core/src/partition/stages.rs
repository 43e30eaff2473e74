//! What stages of a pipeline may not do: meet in a collective within a microbatch.

use super::spmd::{Instr, PlacedLoop, Spmd};
use crate::layout::Layout;
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::Pipeline;

/// The pipeline of a step, if it has a loop over stages.
pub(super) fn pipeline_of(layout: &Layout, loops: &[PlacedLoop]) -> Option<Pipeline> {
    let rule = layout.pipeline.as_ref().filter(|_| loops.iter().any(|l| l.stages))?;
    let schedule = layout.schedule.map_or_else(Default::default, |(schedule, _)| schedule);
    Some(Pipeline { dim: rule.dim, axes: rule.axes.clone(), schedule })
}

/// The error of a collective between stages in the body of a loop that they do not run in step; the first one.
pub(super) fn between_stages(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let pipeline = layout.pipeline.as_ref()?;
    let g = &spmd.step.graph;
    let over = g.microbatches.map(|m| m.over);
    let staged = |l: &&PlacedLoop| !l.axes.is_empty() || Some(g.repeats[l.of].dim) == over;
    let bodies: Vec<_> = spmd.loops.iter().filter(staged).map(|l| l.body.clone()).collect();
    let inside = bodies.into_iter().flat_map(|body| spmd.instrs[body].iter());
    let (kind, out, cause) = inside.into_iter().find_map(|instr| match instr {
        Instr::Reshard { kind, out, cause, .. } => {
            let between = kind.collective()?.axes().iter().any(|a| pipeline.axes.contains(a));
            between.then_some((kind.collective()?, *out, cause))
        }
        _ => None,
    })?;
    let value = spmd.copy(out).value;
    let name = g.dims.name(pipeline.dim);
    let text = format!("the loop over `{name}` cannot be a pipeline: stages would meet within a microbatch");
    let why = format!("`{}` needs an {} over the stages: {}", g.path(value), kind.name(), cause.because);
    let d = Diagnostic::error(codes::E0315, text)
        .at(g.node(cause.user.unwrap_or(value)).origin.span, why)
        .and(pipeline.span, "its iterations are stages");
    Some(match cause.rule.filter(|rule| *rule != pipeline.span) {
        Some(rule) => d.and(rule, "this rule asks for it").help("split this dim over another axis"),
        None => d.help("make it a carry of the loop, which is sent from stage to stage"),
    })
}
