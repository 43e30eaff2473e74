//! The training step: forward, backward, clipping and the update of the optimizer, all ordinary ops of one graph.

use crate::autodiff::gradients;
use crate::optimizers::{AVERAGE, Optimizer, Trained, Update};
use crate::program::{ClipSpec, LossDecl, ParamDecl, Program, TrainSpec};
use crate::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Class, Graph, Id, Origin, SQRT};
use meshwright_plan::{DType, Phase};

/// Builds the training step of a program; `None` where it has no `train` block.
pub fn training_step(program: &Program) -> Option<StepGraph> {
    program.train.as_ref()?;
    let program = &crate::specialized(program, true);
    let train = program.train.as_ref()?;
    let mut g = program.graph.clone();
    let mut outputs: Vec<StepOutput> = Vec::new();
    for o in &train.objectives {
        // Two lines may minimize one loss, each in its own turn.
        if !outputs.iter().any(|known| known.id == o.loss.id) {
            let LossDecl { name, id, .. } = &o.loss;
            outputs.push(StepOutput { name: name.clone(), id: *id, kind: OutputKind::Scalar });
        }
    }
    for k in 0..train.objectives.len() {
        descend(&mut g, program, train, k, &mut outputs);
    }
    if let Some(decay) = train.ema {
        averages(&mut g, program, decay, &mut outputs);
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
    Some(StepGraph {
        model: program.model.clone(),
        program: "train",
        float: program.float,
        graph: g,
        inputs: program.inputs.iter().map(|i| i.0.clone()).collect(),
        outputs,
    })
}

/// The updates of the parameters of one objective.
fn descend(g: &mut Graph, program: &Program, train: &TrainSpec, k: usize, outputs: &mut Vec<StepOutput>) {
    let objective = &train.objectives[k];
    let params: Vec<&ParamDecl> = program.params.iter().filter(|p| !p.frozen && p.objective == k).collect();
    let mut grads = gradients(g, objective.loss.id, &params);
    if let Some(ClipSpec::GlobalNorm(limit)) = train.clip {
        grads = clipped(g, &grads, limit);
    }
    let trained: Vec<Trained<'_>> =
        params.iter().zip(grads).map(|(decl, grad)| Trained { decl, grad }).collect();
    for (i, Optimizer { def, chosen }) in train.optimizers.iter().enumerate() {
        // Each dtype for itself: settings are cast to the parameters', not parameters to the program's.
        for dtype in [DType::F32, DType::F64] {
            let mine = |p: &&Trained<'_>| p.decl.optimizer == i && g.ty(p.decl.id).dtype == dtype;
            let of: Vec<Trained<'_>> = trained.iter().filter(mine).copied().collect();
            if !of.is_empty() {
                let chosen = chosen.cast(g, dtype);
                let update = Update::new(g, outputs, program.float.wide(), dtype);
                (def.update)(&chosen, &mut update.in_turn(objective.turn, &of[0]), &of);
            }
        }
    }
}

/// The moving averages `PATH/ema` of parameters: `decay * old + (1 - decay) * new`, and after the first step the new values
/// themselves, so that they never hold what a run did not start from.
fn averages(g: &mut Graph, program: &Program, decay: Id, outputs: &mut Vec<StepOutput>) {
    for p in program.params.iter().filter(|p| p.averaged) {
        let now = outputs.iter().find(|o| o.kind == OutputKind::Next(p.id)).map_or(p.id, |o| o.id);
        let dtype = g.ty(p.id).dtype;
        let mut u = Update::new(g, outputs, program.float.wide(), dtype);
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
        u.next_moment(&decl, AVERAGE, old, next);
    }
}

/// All gradients scaled so that their joint 2-norm is at most `limit`. The norm is an ordinary reduction, so it is right
/// under every layout.
fn clipped(g: &mut Graph, grads: &[Id], limit: f64) -> Vec<Id> {
    let Some(first) = grads.first() else { return Vec::new() };
    // The norm is of the widest dtype among them.
    let wide = grads.iter().any(|x| g.ty(*x).dtype == DType::F64);
    let dtype = if wide { DType::F64 } else { g.ty(*first).dtype };
    let base = g.node(*first).origin.clone();
    let mut squares = Vec::new();
    for grad in grads {
        g.cursor =
            Origin { phase: Phase::Update, name: "gradient norm".into(), ..g.node(*grad).origin.clone() };
        let square = g.contract_to(&[*grad, *grad], &[]);
        squares.push(g.cast(square, dtype));
    }
    g.cursor = Origin {
        class: Class::Value,
        phase: Phase::Update,
        name: "gradient norm".into(),
        path: "".into(),
        span: base.span,
        full: false,
    };
    let total = g.sum_of(&squares);
    let norm = g.unary(&SQRT, total);
    let max = g.constant(limit, dtype);
    // limit / max(norm, limit): exactly 1 below the limit.
    let larger = g.binary("max", norm, max);
    let factor = g.binary("/", max, larger);
    grads
        .iter()
        .map(|grad| {
            g.cursor = Origin { phase: Phase::Update, ..g.node(*grad).origin.clone() };
            let factor = g.cast(factor, g.ty(*grad).dtype);
            g.product(&[*grad, factor])
        })
        .collect()
}
