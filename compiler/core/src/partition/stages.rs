//! What stages of a pipeline may not do: meet in a collective within a microbatch.

use super::spmd::{CopyId, Instr, PlacedLoop, Spmd};
use crate::layout::{Layout, PipelineRule, Rule, RuleDim};
use meshwright_diag::{Diagnostic, codes};
use meshwright_ops::{Computes, Crossing, Graph, Id, InputOpKind, Kind, Role};
use meshwright_plan::{Axis, Dim, Pipeline, Placement};
use meshwright_sorted::SortedSet;
use meshwright_syntax::ast::ReduceWhen;

/// The pipeline of a step, if it has a loop over stages.
pub(super) fn pipeline_of(layout: &Layout, loops: &[PlacedLoop]) -> Option<Pipeline> {
    let rule = layout.pipeline.as_ref().filter(|_| loops.iter().any(|l| l.stages))?;
    let (schedule, chunks) = (layout.order.schedule(), layout.order.chunks());
    Some(Pipeline { dim: rule.dim, axes: rule.axes.clone(), schedule, chunks })
}

/// The first thing that stages cannot do.
pub(super) fn refused_stages(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let all = [
        split_twice,
        split_within,
        between_stages,
        joined_stack,
        ordered_stack,
        stack_of_one,
        added_by_each,
        waits_for_all,
    ];
    all.into_iter().find_map(|refused| refused(spmd, layout))
}

/// The error of a value that one stage has, or each a part of, and that a rule splits over the axis of the stages as well.
fn split_twice(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    let (copy, axis, dim) = spmd.copies.iter().find_map(|copy| {
        let placement = &copy.placement;
        let split = placement.splits.iter().filter(|(dim, _)| **dim != pipeline.dim);
        let of_stages =
            |a: &Axis| placement.partial.contains_key(a) || placement.axes(pipeline.dim).contains(a);
        let twice =
            |axes: &Vec<Axis>| axes.iter().find(|a| pipeline.axes.contains(a) && of_stages(a)).copied();
        split.clone().find_map(|(dim, axes)| Some((copy, twice(axes)?, *dim)))
    })?;
    Some(split_by_stages(g, (layout, pipeline), (copy.value, dim, axis)))
}

/// The same of what a stage computes in its iterations, where no other stage computes the other parts. A sum of these would meet
/// what crosses the boundary of the loop.
fn split_within(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    let split = |of: &PlacedLoop, instr: &Instr| {
        let copy = spmd.copy(instr.out());
        let loops = match instr {
            Instr::Op { loops, .. } => Some(loops),
            Instr::Input { .. } | Instr::Reshard { .. } => None,
        };
        let mut splits = copy.placement.splits.iter().chain(loops.into_iter().flatten());
        let of_stages = |axes: &Vec<Axis>| axes.iter().find(|a| of.axes.contains(a)).copied();
        splits.find_map(|(dim, axes)| Some((copy.value, *dim, of_stages(axes)?)))
    };
    let found = spmd.loops.iter().filter(|l| !l.axes.is_empty());
    let found =
        { found }.find_map(|of| spmd.instrs[of.body.clone()].iter().find_map(|instr| split(of, instr)))?;
    Some(split_by_stages(g, (layout, pipeline), found))
}

/// The same of a value that has no path between two of these placements.
pub(super) fn split_twice_by<'p>(
    g: &Graph,
    layout: &Layout,
    value: Id,
    placements: impl Iterator<Item = &'p Placement>,
) -> Option<Diagnostic> {
    let pipeline = layout.pipeline.as_ref()?;
    let splits = placements.flat_map(|p| &p.splits).filter(|(dim, _)| **dim != pipeline.dim);
    let of_stages = |axes: &Vec<Axis>| axes.iter().find(|a| pipeline.axes.contains(a)).copied();
    let (dim, axis) = { splits }.find_map(|(dim, axes)| Some((*dim, of_stages(axes)?)))?;
    Some(split_by_stages(g, (layout, pipeline), (value, dim, axis)))
}

fn split_by_stages(
    g: &Graph,
    (layout, pipeline): (&Layout, &PipelineRule),
    (value, dim, axis): (Id, Dim, Axis),
) -> Diagnostic {
    let dim = g.dims.declared(dim).unwrap_or(dim);
    let (name, of) = (g.dims.name(pipeline.dim), g.dims.name(dim));
    let axis_name = layout.mesh.name(axis);
    let text = format!(
        "the loop over `{name}` cannot be a pipeline: its stages are along `{axis_name}`, which also splits `{of}`"
    );
    let why = format!("`{}` is of one stage, and of one part of `{of}`", g.path(value));
    let d = Diagnostic::error(codes::E0315, text)
        .at(g.node(value).origin.span, why)
        .and(pipeline.span, "its iterations are stages");
    let splits = |r: &&Rule| r.axes.contains(&axis) && r.span != pipeline.span;
    let named = RuleDim::Dim(layout.first_name(dim));
    // A rule of the dim, then one of any dim.
    let of_values = |r: &&Rule| r.scope.kind.is_none() && [named, RuleDim::Any].contains(&r.dim);
    let rules = || layout.rules.iter().filter(splits);
    let of_dim = rules().filter(of_values).min_by_key(|r| r.dim != named);
    if let (None, Some(stored)) = (of_dim, stored_over_stages(layout)) {
        return reduced_once(d, stored);
    }
    let rule = of_dim.or_else(|| rules().next());
    let d = rule.into_iter().fold(d, |d, r| d.and(r.span, "this rule splits it"));
    d.help(format!("split `{of}` over another axis of the mesh, or leave `{axis_name}` out of its rule"))
}

/// The rule by which gradients, parameters or states are split over the stages, where each part of the batch reduces its
/// gradients.
fn stored_over_stages(layout: &Layout) -> Option<&Rule> {
    let pipeline = layout.pipeline.as_ref()?;
    let once = layout.reduce_when.is_some_and(|(when, _)| when == ReduceWhen::Once);
    let over = |r: &&Rule| r.scope.kind.is_some() && r.axes.iter().any(|a| pipeline.axes.contains(a));
    layout.rules.iter().find(over).filter(|_| !once)
}

/// The way out where such a rule has stages meet within a microbatch.
fn reduced_once(d: Diagnostic, rule: &Rule) -> Diagnostic {
    d.and(rule.span, "this rule splits gradients over the stages, by part of the batch")
        .help("add `reduce grads once`: then the stages meet when all microbatches have passed")
}

/// The error of a collective that joins the parts of a stack over the stages, or divides it, where stages store it in another
/// order.
fn joined_stack(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    g.dims.cuts(pipeline.dim).filter(|cuts| cuts.reorders())?;
    let axes = |copy| spmd.copy(copy).placement.axes(pipeline.dim).to_vec();
    let (out, cause) = spmd.instrs.iter().find_map(|instr| match instr {
        Instr::Reshard { from, out, cause, .. } if axes(*from) != axes(*out) => Some((*out, cause)),
        _ => None,
    })?;
    let (value, name) = (spmd.copy(out).value, g.dims.name(pipeline.dim));
    let text =
        format!("the stages of `{name}` cannot be in chunks: all of a stack over it are needed in order");
    let why = format!("`{}` is needed with all of `{name}`: {}", g.path(value), cause.because);
    let d = Diagnostic::error(codes::E0315, text).at(g.node(cause.user.unwrap_or(value)).origin.span, why);
    Some(d.and(pipeline.span, "its iterations are stages").help("leave `chunks` out"))
}

/// The error of a value that is made in the order of the stages, where they store their positions in another one.
fn ordered_stack(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    g.dims.cuts(pipeline.dim).filter(|cuts| cuts.reorders())?;
    let ordered = |instr: &&Instr| {
        let value = spmd.copy(instr.out()).value;
        let (node, ty) = (g.node(value), g.ty(value));
        let operands: Vec<_> = node.inputs.iter().map(|x| g.ty(*x)).collect();
        let around = ty.has(pipeline.dim) || operands.iter().any(|x| x.has(pipeline.dim));
        match (node.op.kind(), instr) {
            _ if !around => false,
            (Kind::Input(InputOpKind::Input { .. }), _) => true,
            (Kind::Compute(_), Instr::Op { .. }) => {
                let roles = node.op.roles(&operands, ty, &g.dims);
                let of = roles.loops.into_iter().find(|l| l.dim == pipeline.dim);
                let folds = ["sum", "max", "min", "mean", "scaled_squares"];
                of.is_some_and(|of| match of.role {
                    _ if of.windows.iter().any(Option::is_some) => true,
                    Role::Parallel => false,
                    Role::Reduction(_) => {
                        node.op.kind() != Kind::Compute(Computes::Contraction)
                            && !folds.contains(&node.op.name())
                    }
                    Role::NeedReplication => true,
                })
            }
            _ => false,
        }
    };
    let value = spmd.copy(spmd.instrs.iter().find(ordered)?.out()).value;
    let name = g.dims.name(pipeline.dim);
    let text = format!("the stages of `{name}` cannot be in chunks: their order counts");
    let why = format!("`{}` depends on the order of `{name}`", g.path(value));
    let d = Diagnostic::error(codes::E0315, text).at(g.node(value).origin.span, why);
    Some(d.and(pipeline.span, "its iterations are stages").help("leave `chunks` out"))
}

/// The error of a value that is made of what all layers of a stage leave of a microbatch, where a device has several stages: it
/// has run those of one of them.
fn stack_of_one(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    g.dims.cuts(pipeline.dim).filter(|cuts| cuts.reorders())?;
    let over = g.microbatches?.over;
    let within = |at: &usize, of: &dyn Fn(&PlacedLoop) -> bool| {
        spmd.loops.iter().any(|l| of(l) && l.body.contains(at))
    };
    let made = |at: &usize| {
        let value = spmd.copy(spmd.instrs[*at].out()).value;
        let around = g.node(value).inputs.iter().chain([&value]).any(|x| g.ty(*x).has(pipeline.dim));
        around && g.boundary(value).is_none()
    };
    let beside =
        |at: &usize| within(at, &|l| g.repeats[l.of].dim == over) && !within(at, &|l| !l.axes.is_empty());
    let at = (0..spmd.instrs.len()).find(|at| beside(at) && made(at))?;
    let (value, name) = (spmd.copy(spmd.instrs[at].out()).value, g.dims.name(pipeline.dim));
    let text =
        format!("the stages of `{name}` cannot be in chunks: all of `{name}` are needed of a microbatch");
    let why = format!("`{}` needs what all positions of `{name}` leave", g.path(value));
    let d = Diagnostic::error(codes::E0315, text).at(g.node(value).origin.span, why);
    Some(d.and(pipeline.span, "its iterations are stages").help("leave `chunks` out"))
}

/// The error of a sum over microbatches of what all stages have alike, where a device has several: each of them would add it. So
/// it is with what is put together of all microbatches.
fn added_by_each(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    let over = g.microbatches?.over;
    (layout.order.chunks() > 1).then_some(())?;
    let staged = |l: &&PlacedLoop| {
        let within =
            |o: &PlacedLoop| o.of != l.of && l.body.start <= o.body.start && o.body.end <= l.body.end;
        g.repeats[l.of].dim == over && spmd.loops.iter().any(|o| within(o) && !o.axes.is_empty())
    };
    let passes: Vec<&PlacedLoop> = spmd.loops.iter().filter(staged).collect();
    let shared = |copy: CopyId| {
        let placement = &spmd.copy(copy).placement;
        let of = |a: &Axis| placement.partial.contains_key(a) || placement.axes(pipeline.dim).contains(a);
        !pipeline.axes.iter().all(of)
    };
    let of = |how: Crossing| {
        let outs = passes.iter().flat_map(|p| &p.outs);
        outs.filter(move |(_, out)| g.boundary(spmd.copy(*out).value).is_some_and(|b| b.how == how))
    };
    let carried = passes.iter().flat_map(|p| &p.carries).filter(|c| c.next != c.current).map(|c| c.next);
    let sums = carried.chain(of(Crossing::Accumulate).map(|o| o.0));
    let inside = |at: &usize| passes.iter().any(|p| p.body.contains(at));
    let stacks: SortedSet<CopyId> = of(Crossing::Stack).map(|o| o.1).collect();
    let read = (0..spmd.instrs.len()).filter(|at| !inside(at)).flat_map(|at| spmd.instrs[at].reads());
    let found = sums.filter(|next| shared(*next)).chain(read.filter(|x| stacks.contains(x))).next()?;
    let (value, name) = (spmd.copy(found).value, g.dims.name(pipeline.dim));
    let text =
        format!("the stages of `{name}` cannot be in chunks: each of a device's stages would add the same");
    let why = format!("`{}` is the same on all stages", g.path(value));
    let d = Diagnostic::error(codes::E0315, text).at(g.node(value).origin.span, why);
    Some(d.and(pipeline.span, "its iterations are stages").help("leave `chunks` out"))
}

/// The error of a pass that reads what only all microbatches of an earlier pass give, and not that of its own: all stages would
/// wait.
fn waits_for_all(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
    let (pipeline, g) = (layout.pipeline.as_ref()?, &spmd.step.graph);
    let over = g.microbatches?.over;
    let staged = |l: &&PlacedLoop| {
        let within =
            |o: &PlacedLoop| o.of != l.of && l.body.start <= o.body.start && o.body.end <= l.body.end;
        g.repeats[l.of].dim == over && spmd.loops.iter().any(|o| within(o) && !o.axes.is_empty())
    };
    let passes: Vec<&PlacedLoop> = spmd.loops.iter().filter(staged).collect();
    let mut given: SortedSet<CopyId> = SortedSet::new();
    let stacks: SortedSet<CopyId> = passes.iter().flat_map(|p| p.outs.iter().map(|o| o.1)).collect();
    for (pass, next) in passes.iter().zip(passes.iter().skip(1)) {
        given.extend(pass.outs.iter().map(|o| o.1));
        for instr in &spmd.instrs[pass.body.end..next.body.start] {
            if instr.reads().iter().any(|x| given.contains(x)) {
                given.insert(instr.out());
            }
        }
        let reads =
            |instr: &Instr| instr.reads().into_iter().filter(|x| given.contains(x)).collect::<Vec<_>>();
        // Its own part of what was stacked.
        let own = |instr: &Instr| {
            let b = g.boundary(spmd.copy(instr.out()).value);
            b.is_some_and(|b| b.how == Crossing::Slice && b.dim == over)
                && reads(instr).iter().all(|x| stacks.contains(x))
        };
        let waits = |instr: &&Instr| !reads(instr).is_empty() && !own(instr);
        let found = spmd.instrs[next.body.clone()].iter().find(waits).map(Instr::out);
        let found = found.or_else(|| next.carries.iter().map(|c| c.start).find(|x| given.contains(x)));
        if let Some(out) = found {
            let (value, name) = (spmd.copy(out).value, g.dims.name(pipeline.dim));
            let why = format!(
                "`{}` of one microbatch needs something of all of them, or of all stages",
                g.path(value)
            );
            let text = format!("the loop over `{name}` cannot be a pipeline");
            let d = Diagnostic::error(codes::E0315, text).at(g.node(value).origin.span, why);
            let d = d.and(pipeline.span, "its iterations would be stages");
            return Some(d.help(
                "make it a carry of the loop, which is sent from stage to stage, or leave the rule out",
            ));
        }
    }
    None
}

/// The error of a collective between stages in the body of a loop that they do not run in step; the first one.
fn between_stages(spmd: &Spmd, layout: &Layout) -> Option<Diagnostic> {
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
    Some(match (stored_over_stages(layout), cause.rule.filter(|rule| *rule != pipeline.span)) {
        (Some(rule), _) => reduced_once(d, rule),
        (None, Some(rule)) => d.and(rule, "this rule asks for it").help("split this dim over another axis"),
        (None, None) => d.help("make it a carry of the loop, which is sent from stage to stage"),
    })
}
