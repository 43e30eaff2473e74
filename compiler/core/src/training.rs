//! The training step: forward, backward, clipping and the update of the optimiser, all ordinary ops of one graph.

use crate::autodiff::gradients;
use crate::program::{ClipSpec, Optimizer, ParamDecl, Program, TrainSpec};
use crate::step_graph::{Goal, GoalKind, StepGraph};
use meshwright_ops::{Class, Graph, Id, LeafOp, Origin, RECIP, SQRT, Type};
use meshwright_plan::{DType, Init, Phase};

/// Builds the training step of a program; `None` where it has no `train` block.
pub fn training_step(program: &Program) -> Option<StepGraph> {
    program.train.as_ref()?;
    let program = &crate::specialised(program, true);
    let train = program.train.as_ref()?;
    let mut g = program.graph.clone();
    let params: Vec<&ParamDecl> = program.params.iter().filter(|p| !p.frozen).collect();
    let mut grads = gradients(&mut g, train.minimize.id, &params);
    if let Some(ClipSpec::GlobalNorm(limit)) = train.clip {
        grads = clipped(&mut g, &grads, limit);
    }
    let mut goals =
        vec![Goal { name: train.minimize.name.clone(), id: train.minimize.id, kind: GoalKind::Scalar }];
    let mut update = Update { step: None, float: program.float, train };
    for (p, grad) in params.iter().zip(grads) {
        g.cursor = Origin {
            class: Class::Moment,
            phase: Phase::Update,
            path: p.path.as_str().into(),
            name: format!("update of {}", p.path).into(),
            span: p.span,
        };
        update.parameter(&mut g, p, grad, &mut goals);
    }
    // What is not trained is kept all the same: an evaluation may read it where the loss does not.
    for p in program.params.iter().filter(|p| p.frozen) {
        goals.push(Goal { name: p.path.clone(), id: p.id, kind: GoalKind::Next(p.id) });
    }
    for s in &program.states {
        goals.push(Goal { name: s.path.clone(), id: s.next.unwrap_or(s.id), kind: GoalKind::Next(s.id) });
    }
    Some(StepGraph {
        model: program.model.clone(),
        program: "train",
        float: program.float,
        graph: g,
        inputs: program.inputs.iter().map(|i| i.0.clone()).collect(),
        goals,
    })
}

/// All gradients scaled so that their joint 2-norm is at most `limit`. The norm is an ordinary reduction, so it is right
/// under every layout.
fn clipped(g: &mut Graph, grads: &[Id], limit: f64) -> Vec<Id> {
    let Some(first) = grads.first() else { return Vec::new() };
    let dtype = g.ty(*first).dtype;
    let base = g.node(*first).origin.clone();
    let mut squares = Vec::new();
    for grad in grads {
        g.cursor =
            Origin { phase: Phase::Update, name: "gradient norm".into(), ..g.node(*grad).origin.clone() };
        squares.push(g.contract_to(&[*grad, *grad], &[]));
    }
    g.cursor = Origin {
        class: Class::Value,
        phase: Phase::Update,
        name: "gradient norm".into(),
        path: "".into(),
        span: base.span,
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
            g.product(&[*grad, factor])
        })
        .collect()
}

struct Update<'a> {
    step: Option<Id>,
    float: DType,
    train: &'a TrainSpec,
}

impl Update<'_> {
    fn parameter(&mut self, g: &mut Graph, p: &ParamDecl, grad: Id, goals: &mut Vec<Goal>) {
        let next = match &self.train.optimizer {
            Optimizer::Sgd { lr, momentum, nesterov, weight_decay } => {
                let grad = decayed(g, grad, p, *weight_decay);
                let step = match momentum {
                    None => grad,
                    Some(mu) => {
                        let m = self.moment(g, p, "m");
                        let old = g.product(&[*mu, m]);
                        let new = g.sum_of(&[old, grad]);
                        goals.push(next_goal(p, "m", m, new));
                        if *nesterov {
                            let ahead = g.product(&[*mu, new]);
                            g.sum_of(&[grad, ahead])
                        } else {
                            new
                        }
                    }
                };
                minus(g, p.id, &[*lr, step])
            }
            Optimizer::Adam { lr, beta1, beta2, eps, weight_decay, decoupled } => {
                let coupled = if *decoupled { None } else { *weight_decay };
                let grad = decayed(g, grad, p, coupled);
                let (m, v) = (self.moment(g, p, "m"), self.moment(g, p, "v"));
                let new_m = mixed(g, *beta1, m, &[grad]);
                let new_v = mixed(g, *beta2, v, &[grad, grad]);
                goals.push(next_goal(p, "m", m, new_m));
                goals.push(next_goal(p, "v", v, new_v));
                // Bias correction (Kingma & Ba 2015, section 3): m / (1 - beta1^t), v / (1 - beta2^t).
                let t = self.step_number(g);
                let scale_m = correction(g, *beta1, t);
                let scale_v = correction(g, *beta2, t);
                let hat_v = g.product(&[new_v, scale_v]);
                let root = g.unary(&SQRT, hat_v);
                let below = g.sum_of(&[root, *eps]);
                let over = g.unary(&RECIP, below);
                let mut step = g.product(&[new_m, scale_m, over]);
                if let (true, Some(decay), false) = (*decoupled, weight_decay, p.no_decay) {
                    let pull = g.product(&[*decay, p.id]);
                    step = g.sum_of(&[step, pull]);
                }
                minus(g, p.id, &[*lr, step])
            }
        };
        goals.push(Goal { name: p.path.clone(), id: next, kind: GoalKind::Next(p.id) });
    }

    /// The leaf of a moment, which starts at 0.
    fn moment(&self, g: &mut Graph, p: &ParamDecl, which: &str) -> Id {
        let ty = Type::new(g.ty(p.id).dtype, g.ty(p.id).dims.clone());
        let path = format!("{}/{which}", p.path);
        let keep = g.cursor.clone();
        g.cursor.name = path.as_str().into();
        let leaf = LeafOp::Moment { path, init: Init::Constant(0.0) };
        let id = g.op(meshwright_ops::Leaf { leaf, ty }, &[]);
        g.cursor = keep;
        id
    }

    fn step_number(&mut self, g: &mut Graph) -> Id {
        let existing = g.ids().find(|i| g.node(*i).op.name() == "step");
        let float = self.float;
        *self.step.get_or_insert_with(|| {
            existing.unwrap_or_else(|| {
                let leaf = LeafOp::StepNumber;
                let keep = std::mem::replace(&mut g.cursor.name, "step".into());
                let id = g.op(meshwright_ops::Leaf { leaf, ty: Type::new(float, []) }, &[]);
                g.cursor.name = keep;
                id
            })
        })
    }
}

fn next_goal(p: &ParamDecl, which: &str, leaf: Id, id: Id) -> Goal {
    Goal { name: format!("{}/{which}", p.path), id, kind: GoalKind::Next(leaf) }
}

/// `grad + decay * p`.
fn decayed(g: &mut Graph, grad: Id, p: &ParamDecl, decay: Option<Id>) -> Id {
    match decay {
        Some(decay) if !p.no_decay => {
            let pull = g.product(&[decay, p.id]);
            g.sum_of(&[grad, pull])
        }
        _ => grad,
    }
}

/// `p - product(step)`.
fn minus(g: &mut Graph, p: Id, step: &[Id]) -> Id {
    let s = g.product(step);
    let n = g.unary(&meshwright_ops::NEG, s);
    g.sum_of(&[p, n])
}

/// `beta * old + (1 - beta) * product(new)`.
fn mixed(g: &mut Graph, beta: Id, old: Id, new: &[Id]) -> Id {
    let rest = complement(g, beta);
    let kept = g.product(&[beta, old]);
    let factors = [&[rest], new].concat();
    let added = g.product(&factors);
    g.sum_of(&[kept, added])
}

/// `1 - x`.
fn complement(g: &mut Graph, x: Id) -> Id {
    let one = g.constant(1.0, g.ty(x).dtype);
    let n = g.unary(&meshwright_ops::NEG, x);
    g.sum_of(&[one, n])
}

/// `1 / (1 - beta^t)`.
fn correction(g: &mut Graph, beta: Id, t: Id) -> Id {
    let power = g.binary("pow", beta, t);
    let rest = complement(g, power);
    g.unary(&RECIP, rest)
}
