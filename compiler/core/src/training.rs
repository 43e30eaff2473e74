//! The training step: forward, backward, clipping and the update of the optimizer, all ordinary ops of one graph.

use crate::autodiff::gradients;
use crate::optimizers::{Optimizer, Trained, Update};
use crate::program::{ClipSpec, LossDecl, ParamDecl, Program};
use crate::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Class, Graph, Id, InputOpKind, Kind, Origin, SQRT};
use meshwright_plan::{DType, Phase};
use std::collections::{BTreeMap, BTreeSet};

/// Builds the training step of a program; `None` where it has no `train` block.
pub fn training_step(program: &Program) -> Option<StepGraph> {
    program.train.as_ref()?;
    let program = &crate::specialized(program, true);
    let train = program.train.as_ref()?;
    let mut g = program.graph.clone();
    let params: Vec<&ParamDecl> = program.params.iter().filter(|p| !p.frozen).collect();
    let mut grads = gradients(&mut g, train.minimize.id, &params);
    let mut norm = None;
    if train.clip.is_some() || program.declarations.settings.reports.gradient_norm {
        norm = global_norm(&mut g, &grads);
    }
    if let (Some(ClipSpec::GlobalNorm(limit)), Some(norm)) = (train.clip, norm) {
        grads = clipped(&mut g, &grads, norm, limit);
    }
    let mut outputs = reported(program, norm);
    let trained: Vec<Trained<'_>> =
        params.iter().zip(grads).map(|(decl, grad)| Trained { decl, grad }).collect();
    let Optimizer { def, chosen } = &train.optimizer;
    // Each dtype for itself: settings are cast to the parameters', not parameters to the program's.
    for dtype in [DType::F32, DType::F64] {
        let of: Vec<Trained<'_>> =
            trained.iter().filter(|p| g.ty(p.decl.id).dtype == dtype).copied().collect();
        if !of.is_empty() {
            let chosen = chosen.cast(&mut g, dtype);
            (def.update)(&chosen, &mut Update::new(&mut g, &mut outputs, program.float.wide(), dtype), &of);
        }
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

/// Name of the output with the joint 2-norm of all gradients, before they are clipped.
pub const GRADIENT_NORM: &str = "gradient_norm";

/// What a step tells: the loss that is minimized, the other losses, the metrics that are asked for, and the norm of the
/// gradients.
fn reported(program: &Program, norm: Option<Id>) -> Vec<StepOutput> {
    let minimized = program.train.iter().map(|t| &t.minimize);
    let known = |n: &str| program.train.as_ref().is_some_and(|t| t.minimize.name == n);
    let others = program.losses.iter().filter(|l| !known(&l.name));
    let asked =
        program.metrics.iter().filter(|m| program.declarations.settings.reports.metrics.contains(&m.name));
    let scalar = |l: &&LossDecl| program.graph.ty(l.id).dims.is_empty();
    let of = |l: &LossDecl| StepOutput { name: l.name.clone(), id: l.id, kind: OutputKind::Scalar };
    let norm = norm.map(|id| StepOutput { name: GRADIENT_NORM.into(), id, kind: OutputKind::Scalar });
    minimized.chain(others.chain(asked).filter(scalar)).map(of).chain(norm).collect()
}

/// All gradients scaled so that their joint 2-norm, `norm`, is at most `limit`.
fn clipped(g: &mut Graph, grads: &[Id], norm: Id, limit: f64) -> Vec<Id> {
    let max = g.constant(limit, g.ty(norm).dtype);
    // limit / max(norm, limit): exactly 1 below the limit.
    let larger = g.binary("max", norm, max);
    let factor = g.binary("/", max, larger);
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
    Some(g.unary(&SQRT, total))
}

/// The learning rate of a step, counted from 1, as the `train` block says: a number, or a schedule. It is computed in `f64`, in
/// which a step of `f32` may differ in the last digits. `None` where nothing is trained.
pub fn learning_rate(program: &Program, step: u64) -> Option<f64> {
    let rate = program.train.as_ref()?.optimizer.chosen.scalar("lr");
    let g = &program.graph;
    let mut needed = BTreeSet::new();
    let mut todo = vec![rate];
    while let Some(id) = todo.pop() {
        if needed.insert(id) {
            todo.extend(&g.node(id).inputs);
        }
    }
    // Operands come before their users.
    let mut values: BTreeMap<Id, f64> = BTreeMap::new();
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
