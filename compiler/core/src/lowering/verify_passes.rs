//! Passes of a pipeline: stages run them apart from each other, in an order that ends.

use meshwright_plan::actions::verify;
use meshwright_plan::{Plan, Prim};

/// Collectives in which stages would meet within a microbatch: in a pass, and in a loop whose iterations are shared out among
/// them.
pub(super) fn meetings(plan: &Plan, v: &mut Vec<String>) {
    let Some(pipeline) = &plan.pipeline else { return };
    let passes = plan.pipeline_passes().map(|p| p.loops).unwrap_or_default();
    let mut inside = passes.into_iter().map(|(_, l)| l.begin..l.end).collect::<Vec<_>>();
    let split = |at: usize| matches!(&plan.steps[at].prim, Prim::Repeat { axes, .. } if !axes.is_empty());
    inside.extend(plan.loops().into_iter().filter(|l| split(l.begin)).map(|l| l.begin..l.end));
    for (i, step) in plan.steps.iter().enumerate() {
        let over = |a: &meshwright_plan::Axis| pipeline.axes.contains(a);
        let between = step.collective().is_some_and(|c| c.axes().iter().any(over));
        if between && inside.iter().any(|body| body.contains(&i)) {
            v.push(format!("step {i} ({}): stages meet within a microbatch", step.name()));
        }
    }
}

/// The order of the passes and messages of all stages.
pub(super) fn order(plan: &Plan, v: &mut Vec<String>) {
    let Some(passes) = plan.pipeline_passes() else { return };
    let lists: Vec<_> = (0..passes.stages).map(|stage| passes.actions(stage)).collect();
    if let Err(why) = verify(&lists, passes.pipeline.chunks, passes.microbatches) {
        v.push(format!("the passes of the pipeline: {why}"));
    }
}
