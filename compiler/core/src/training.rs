//! The training step: forward, backward, clipping and the update of the optimizer, all ordinary ops of one graph.

use crate::autodiff::gradients;
use crate::optimizers::{Optimizer, Trained, Update};
use crate::program::{ClipSpec, ParamDecl, Program};
use crate::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{Class, Graph, Id, Origin, SQRT};
use meshwright_plan::{DType, Phase};

/// Builds the training step of a program; `None` where it has no `train` block.
pub fn training_step(program: &Program) -> Option<StepGraph> {
    program.train.as_ref()?;
    let program = &crate::specialized(program, true);
    let train = program.train.as_ref()?;
    let mut g = program.graph.clone();
    let params: Vec<&ParamDecl> = program.params.iter().filter(|p| !p.frozen).collect();
    let mut grads = gradients(&mut g, train.minimize.id, &params);
    if let Some(ClipSpec::GlobalNorm(limit)) = train.clip {
        grads = clipped(&mut g, &grads, limit);
    }
    let mut outputs = vec![StepOutput {
        name: train.minimize.name.clone(),
        id: train.minimize.id,
        kind: OutputKind::Scalar,
    }];
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
