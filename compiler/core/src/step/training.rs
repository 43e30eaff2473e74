//! The training step: forward, backward, clipping and the update of the optimizer, all ordinary ops of one graph.

use crate::passes::squares::Squares;
use crate::program::{ClipSpec, LossDecl, ParamDecl, Program, TrainSpec};
use crate::step::autodiff::scaled_gradients;
use crate::step::loss_scaling::{Scaler, SkippedUpdates};
use crate::step::optimizers::{AVERAGE, Choices, Optimizer, OptimizerDef, Trained, Update, origin_of};
use crate::step::stack_part::StackPart;
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Class, Graph, Id, InputOpKind, Kind, Origin, SQRT};
use meshwright_plan::{Arithmetic, DType, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// Builds the training step of a program; `None` where it has no `train` block.
pub fn training_step(program: &Program) -> Option<StepGraph> {
    step(program, true)
}

/// The same with every equation as the program says it, for where each value is looked at.
pub fn examined_step(program: &Program) -> Option<StepGraph> {
    step(program, false)
}

fn step(program: &Program, patterns: bool) -> Option<StepGraph> {
    program.train.as_ref()?;
    let program = &crate::specialized(program, true);
    let train = program.train.as_ref()?;
    let mut g = program.graph.clone();
    let mut outputs = reported(program, train);
    if patterns {
        let read = outputs.iter().map(|o| o.id).chain(program.states.iter().filter_map(|s| s.next));
        crate::passes::match_patterns::in_program(&mut g, program, &read.collect::<Vec<_>>());
    }
    // The range of `f16` is too small for gradients as they come.
    let turns = train.objectives.iter().map(|o| o.turn.is_some());
    let (mut scaler, mut skips) = (None, None);
    if program.float == Arithmetic::F16 {
        let (scales, counts) = Scaler::new(&mut g, train.scaling, turns);
        (scaler, skips) = (Some(scales), Some(counts));
    } else if program.declarations.settings.skips {
        skips = Some(SkippedUpdates::new(&mut g, turns));
    }
    for k in 0..train.objectives.len() {
        descend(&mut g, (program, train), k, (scaler.as_mut(), skips.as_mut()), &mut outputs);
    }
    let mut kept = SortedMap::new();
    if let Some(decay) = train.ema {
        kept = averages(&mut g, program, (decay, skips.as_ref().map(|s| s.before(None))), &mut outputs);
    }
    // What is not trained is kept all the same: an evaluation may read it where the loss does not.
    for p in program.params.iter().filter(|p| p.frozen) {
        outputs.push(StepOutput { name: p.path.clone(), id: p.id, kind: OutputKind::Next(p.id) });
    }
    for s in &program.states {
        outputs.push(StepOutput {
            name: s.path.clone(),
            id: s.next.unwrap_or(s.id),
            kind: OutputKind::Next(s.id),
        });
    }
    match (scaler, skips) {
        (Some(scaler), Some(skips)) => scaler.finish(&mut g, skips, &kept, &mut outputs),
        (_, Some(skips)) => skips.finish(&mut g, None, &mut outputs),
        _ => {}
    }
    Some(StepGraph {
        model: program.model.clone(),
        program: "train",
        float: program.float,
        scale_history: train.scale_history,
        graph: g,
        inputs: program.inputs.iter().map(|i| i.0.clone()).collect(),
        outputs,
    })
}

/// Name of the output with the joint 2-norm of all gradients of an objective, before they are clipped. Of several objectives the
/// name of the loss follows.
pub const GRADIENT_NORM: &str = "gradient_norm";

/// What a step tells: the losses that are minimized, the other losses, and the metrics that are asked for.
fn reported(program: &Program, train: &TrainSpec) -> Vec<StepOutput> {
    let asked = &program.declarations.settings.reports.metrics;
    let metrics = program.metrics.iter().filter(|m| asked.contains(&m.name));
    let scalar = |l: &&LossDecl| program.graph.ty(l.id).dims.is_empty();
    let told = program.losses.iter().chain(metrics).filter(scalar);
    let mut out: Vec<StepOutput> = Vec::new();
    for LossDecl { name, id, .. } in train.objectives.iter().map(|o| &o.loss).chain(told) {
        // Two lines may minimize one loss, each in its own turn.
        if !out.iter().any(|known| known.id == *id) {
            out.push(StepOutput { name: name.clone(), id: *id, kind: OutputKind::Scalar });
        }
    }
    out
}

/// The updates of the parameters of one objective.
fn descend(
    g: &mut Graph,
    (program, train): (&Program, &TrainSpec),
    k: usize,
    (scaler, mut skips): (Option<&mut Scaler>, Option<&mut SkippedUpdates>),
    outputs: &mut Vec<StepOutput>,
) {
    let objective = &train.objectives[k];
    let params: Vec<&ParamDecl> = program.params.iter().filter(|p| !p.frozen && p.objective == k).collect();
    let loss = objective.loss.id;
    let seed = scaler.as_ref().map(|s| s.seed(g, g.ty(loss).dtype));
    let mut grads = scaled_gradients(g, loss, &params, seed);
    grads.iter_mut().zip(&params).for_each(|(grad, p)| *grad = of_trained_part(g, p, *grad));
    let wanted = train.clip.is_some() || program.declarations.settings.reports.gradient_norm;
    let mut norm = if wanted || scaler.is_some() { global_norm(g, &grads) } else { None };
    let mut factors: Vec<Id> = Vec::new();
    if let (Some(scaler), Some(scaled)) = (scaler, norm) {
        scaler.watches(scaled);
        let inverse = scaler.inverse(g, g.ty(scaled).dtype);
        norm = Some(g.product(&[scaled, inverse]));
        factors.push(inverse);
    }
    if let Some(id) = norm.filter(|_| wanted) {
        let name = match train.objectives.len() {
            1 => GRADIENT_NORM.to_string(),
            _ => format!("{GRADIENT_NORM}_{}", objective.loss.name),
        };
        outputs.push(StepOutput { name, id, kind: OutputKind::Scalar });
    }
    if let (Some(ClipSpec::GlobalNorm(limit)), Some(norm)) = (train.clip, norm) {
        let root = clip_root(g, norm, limit);
        let first = factors.pop().map_or(root, |inverse| g.product(&[inverse, root]));
        factors.extend([first, root]);
    }
    for factor in factors {
        grads = multiplied(g, &grads, factor);
    }
    let skipped = skips.as_ref().map(|s| s.before(Some(k)));
    let trained: Vec<Trained<'_>> =
        params.iter().zip(grads).map(|(decl, grad)| Trained { decl, grad }).collect();
    for (chosen, def, of) in update_groups(g, train, &trained) {
        let dtype = g.ty(of[0].decl.id).dtype;
        let update = Update::new(g, outputs, program.float.wide(), dtype).skipping(skipped);
        let mut update = update.in_turn(objective.turn, &of[0]);
        if let Some(skips) = skips.as_deref_mut() {
            skips.in_turn(k, update.is_due());
        }
        (def.update)(&chosen, &mut update, &of);
    }
    for p in params.iter().filter(|p| !p.frozen_at.is_empty()) {
        g.cursor = origin_of(p);
        let (next, holds) = (OutputKind::Next(p.id), StackPart::holds(&p.frozen_at, g));
        if let (Some(out), Some(holds)) = (outputs.iter_mut().find(|o| o.kind == next), holds) {
            out.id = g.choose(holds, p.id, out.id);
        }
    }
}

/// Parameters that are updated alike: with the same optimizer and settings, and of one dtype.
type UpdateGroup<'a> = (Choices, &'static OptimizerDef, Vec<Trained<'a>>);

fn update_groups<'a>(g: &mut Graph, train: &TrainSpec, trained: &[Trained<'a>]) -> Vec<UpdateGroup<'a>> {
    let mut out: Vec<UpdateGroup<'a>> = Vec::new();
    let parts = |p: &ParamDecl| !p.optimizer_at.is_empty() || !p.no_decay_at.is_empty();
    for (i, Optimizer { def, chosen }) in train.optimizers.iter().enumerate() {
        // Each dtype for itself: settings are cast to the parameters', not parameters to the program's.
        for dtype in [DType::F32, DType::F64] {
            let mine = |p: &&Trained<'_>| p.decl.optimizer == i && g.ty(p.decl.id).dtype == dtype;
            let of: Vec<Trained<'_>> = trained.iter().filter(mine).copied().collect();
            if of.is_empty() {
                continue;
            }
            let chosen = chosen.cast(g, dtype);
            let (some, all): (Vec<_>, Vec<_>) = of.into_iter().partition(|p| parts(p.decl));
            for p in some {
                out.push((in_parts(g, train, (p.decl, dtype), &chosen), def, vec![p]));
            }
            if !all.is_empty() {
                out.push((chosen, def, all));
            }
        }
    }
    out
}

/// The settings of a parameter of loops of which parts have settings of their own: numbers that differ along the loops.
fn in_parts(g: &mut Graph, train: &TrainSpec, (p, dtype): (&ParamDecl, DType), chosen: &Choices) -> Choices {
    let mut out = chosen.clone();
    for (part, k) in &p.optimizer_at {
        let other = train.optimizers[*k].chosen.cast(g, dtype);
        g.cursor = origin_of(p);
        if let Some(holds) = StackPart::holds(std::slice::from_ref(part), g) {
            out = out.chosen_where(holds, &other, g);
        }
    }
    g.cursor = origin_of(p);
    match StackPart::holds(&p.no_decay_at, g) {
        Some(holds) => out.set_where(holds, "weight_decay", 0.0, g),
        None => out,
    }
}

/// The gradient of what is trained of a parameter: where it is frozen, it is 0.
fn of_trained_part(g: &mut Graph, p: &ParamDecl, grad: Id) -> Id {
    g.cursor = Origin { phase: Phase::Update, ..g.node(grad).origin.clone() };
    match StackPart::holds(&p.frozen_at, g) {
        Some(holds) => {
            let zero = g.constant(0.0, g.ty(grad).dtype);
            g.choose(holds, zero, grad)
        }
        None => grad,
    }
}

/// The moving averages `PATH/ema` of parameters: `decay * old + (1 - decay) * new`, and after the first step the new values
/// themselves, so that they never hold what a run did not start from. Returns for each average, by its leaf, what a skipped step
/// leaves in it: before the first update that is the parameter, whose values may be a checkpoint's while the leaf's are drawn.
fn averages(
    g: &mut Graph,
    program: &Program,
    (decay, skips): (Id, Option<Id>),
    outputs: &mut Vec<StepOutput>,
) -> SortedMap<Id, Id> {
    let mut kept = SortedMap::new();
    for p in program.params.iter().filter(|p| p.averaged) {
        let now = outputs.iter().find(|o| o.kind == OutputKind::Next(p.id)).map_or(p.id, |o| o.id);
        let dtype = g.ty(p.id).dtype;
        let mut u = Update::new(g, outputs, program.float.wide(), dtype).skipping(skips);
        let decl = Trained { decl: p, grad: p.id };
        u.of(&decl);
        let decay = u.graph().cast(decay, dtype);
        let old = u.average(&decl);
        let mixed = u.mixed(decay, old, &[now]);
        let step = u.step_number();
        let one = u.number(1.0, step);
        let g = u.graph();
        let first = g.binary("==", step, one);
        let next = g.choose(first, now, mixed);
        if program.float == Arithmetic::F16 {
            kept.insert(old, g.choose(first, p.id, old));
        }
        u.next_moment(&decl, AVERAGE, old, next);
    }
    kept
}

/// The root of the factor by which the joint 2-norm of all gradients, `norm`, becomes at most `limit`. Of a large norm the factor
/// itself may be too small for the dtype.
fn clip_root(g: &mut Graph, norm: Id, limit: f64) -> Id {
    let max = g.constant(limit, g.ty(norm).dtype);
    // Of limit / max(norm, limit): exactly 1 below the limit.
    let larger = g.binary("max", norm, max);
    let (above, below) = (g.unary(&SQRT, max), g.unary(&SQRT, larger));
    g.binary("/", above, below)
}

/// All gradients times a number.
fn multiplied(g: &mut Graph, grads: &[Id], factor: Id) -> Vec<Id> {
    let scaled = grads.iter().map(|grad| {
        g.cursor = Origin { phase: Phase::Update, ..g.node(*grad).origin.clone() };
        let factor = g.cast(factor, g.ty(*grad).dtype);
        g.product(&[*grad, factor])
    });
    scaled.collect()
}

/// The joint 2-norm of all gradients: an ordinary reduction, so it is right under every layout. `None` where there is no
/// gradient.
fn global_norm(g: &mut Graph, grads: &[Id]) -> Option<Id> {
    let first = grads.first()?;
    // The norm is of the widest dtype among them.
    let wide = grads.iter().any(|x| g.ty(*x).dtype == DType::F64);
    let dtype = if wide { DType::F64 } else { g.ty(*first).dtype };
    let base = g.node(*first).origin.clone();
    let mut squares = Vec::new();
    for grad in grads {
        g.cursor =
            Origin { phase: Phase::Update, name: "gradient norm".into(), ..g.node(*grad).origin.clone() };
        let grad = g.cast(*grad, dtype);
        squares.push(Squares::of(g, grad, &[]));
    }
    g.cursor = Origin {
        class: Class::Value,
        phase: Phase::Update,
        name: "gradient norm".into(),
        path: "".into(),
        span: base.span,
        full: false,
        layer: false,
    };
    Some(Squares::joint(g, &squares).root(g, 1.0))
}

/// The learning rate of a step, counted from 1, as the `train` block says: a number, or a learning-rate schedule. It is computed
/// in `f64`; the step itself computes it in `f32`, which may differ in the last digits. Of several optimizers it is that of the
/// first. `None` where nothing is trained.
pub fn learning_rate(program: &Program, step: u64) -> Option<f64> {
    let rate = program.train.as_ref()?.optimizers.first()?.chosen.scalar("lr");
    let g = &program.graph;
    let mut needed = SortedSet::new();
    let mut todo = vec![rate];
    while let Some(id) = todo.pop() {
        if needed.insert(id) {
            todo.extend(&g.node(id).inputs);
        }
    }
    // Operands come before their users.
    let mut values: SortedMap<Id, f64> = SortedMap::new();
    for id in needed {
        let node = g.node(id);
        let inputs: Option<Vec<f64>> = node.inputs.iter().map(|i| values.get(i).copied()).collect();
        let value = match node.op.kind() {
            Kind::Input(InputOpKind::StepNumber) => step as f64,
            _ => node.folded(&inputs?)?,
        };
        values.insert(id, value);
    }
    values.get(&rate).copied()
}
