//! Evaluation over a whole data set: an outermost `sum` or `mean` over the example dim is accumulated over all batches
//! before the rest of the expression is taken, so that the result does not depend on the batch size. What mixes examples in
//! another way is evaluated for each batch by itself, with a warning.

use crate::program::{LossDecl, Program};
use crate::step::optimizers::AVERAGE;
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_diag::{Diagnostic, Outcome, Severity, codes, has_errors};
use meshwright_ops::tensor::better;
use meshwright_ops::{Class, Computes, F64Tensor, Fold, Graph, Id, InputOp, InputOpKind, Kind, Role, Source};
use meshwright_plan::{Dim, IdVec, Monoid};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Combination of batches in an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// Adds them.
    Sum,
    /// Means, weighted by the number of examples.
    Mean,
    /// Takes the greatest.
    Max,
    /// Takes the least.
    Min,
    /// They are all the same: it depends on no input.
    Same,
}

/// The program that computes the accumulators of one batch, and the rest of each expression.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The step; its first outputs are the accumulators, in order, and nothing else follows in an evaluation.
    pub step: StepGraph,
    /// Combination of batches in each accumulator.
    pub accumulate: Vec<Accumulate>,
    graph: Graph,
    cuts: Vec<Id>,
    results: Vec<(String, Id)>,
}

/// Builds the evaluation of the losses and metrics of a program.
///
/// Random values of an example depend on its number in the set, under [`meshwright_plan::random::FIXED_SEED`]; random
/// values without the example dim are the same in every batch.
pub fn evaluation(program: &Program) -> Outcome<Evaluation> {
    let program = &averaged(crate::specialized(program, false));
    let (mut e, out) = accumulated(program, |p| p.losses.iter().chain(&p.metrics).cloned().collect());
    if let Some(e) = &mut e {
        crate::passes::match_patterns::in_step(&mut e.step);
    }
    (e, out)
}

/// Builds the program that computes the outputs of those names. An output without the example dim is a result of all
/// batches, put together like a metric; the outputs of the others follow the accumulators, by their names.
pub fn prediction(program: &Program, names: &[String]) -> Outcome<Evaluation> {
    let program = &averaged(crate::specialized(program, false));
    let named = |o: &LossDecl| names.contains(&o.name);
    let (e, mut out) = accumulated(program, |p| outputs(p, false).filter(|o| named(o)).cloned().collect());
    out.extend(mixed_rows(program, names));
    let e = e.map(|mut e| {
        e.step.program = "predict";
        let goal = |o: LossDecl| StepOutput { name: o.name, id: o.id, kind: OutputKind::Output };
        e.step.outputs.extend(outputs(program, true).filter(|o| named(o)).cloned().map(goal));
        // What is asked for of the body of a loop stands behind all else.
        e.step = crate::passes::linear::linearized(e.step);
        crate::passes::match_patterns::in_step(&mut e.step);
        e
    });
    (e, out)
}

/// A warning for each output that [`prediction`] refuses: an integer of each batch, of which there is no mean. A training does
/// not read it, so that the refusal would come after it.
pub fn refused_outputs(program: &Program) -> Vec<Diagnostic> {
    if outputs(program, false).all(|o| program.graph.ty(o.id).dtype.is_float()) {
        return Vec::new();
    }
    let program = &averaged(crate::specialized(program, false));
    let (_, found) = accumulated(program, |p| outputs(p, false).cloned().collect());
    let warning = |d: Diagnostic| {
        let text = format!("{}: `predict` refuses it", d.message);
        Diagnostic { severity: Severity::Warning, message: text, ..d }
    };
    found.into_iter().filter(Diagnostic::is_error).map(warning).collect()
}

/// A warning for each named output whose rows depend on the other examples of the batch.
fn mixed_rows(program: &Program, names: &[String]) -> Vec<Diagnostic> {
    let (g, example) = (&program.graph, example_dim(program));
    let on_input = Dependence::of(g, example).on_input;
    let found = outputs(program, true).filter(|o| names.contains(&o.name)).filter_map(|o| {
        let op = mixes(g, vec![o.id], example, &on_input)?;
        let at = g.node(op).origin.span;
        let text = format!("`{}` is evaluated for each batch by itself", o.name);
        let warning = Diagnostic::warning(codes::E0206, text)
            .at(at, mixing_label(g, example, op))
            .and(o.span, "a row depends on the other examples of its batch")
            .note(BY_BATCH)
            .help(format!("`--dim {}=N` sets the size of the batches", example_name(g, example)));
        Some(warning)
    });
    found.collect()
}

/// The outputs with a value for each example, or the others.
fn outputs(program: &Program, rows: bool) -> impl Iterator<Item = &LossDecl> {
    let example = example_dim(program);
    let has = move |o: &LossDecl| example.is_some_and(|d| program.graph.ty(o.id).has(d));
    program.outputs.iter().filter(move |o| has(o) == rows)
}

/// The program with the moving averages of parameters, where training keeps them, in place of the parameters. They are placed
/// as in the training step.
pub(crate) fn averaged(mut program: Program) -> Program {
    if program.train.as_ref().is_none_or(|t| t.ema.is_none()) {
        return program;
    }
    for p in program.params.iter().filter(|p| p.averaged) {
        let node = &mut program.graph.nodes[p.id];
        let Kind::Input(InputOpKind::Param { path, init }) = node.op.kind() else { continue };
        let path = format!("{path}/{AVERAGE}");
        node.origin.name = path.as_str().into();
        node.origin.class = Class::OptimizerState;
        node.op = Arc::new(InputOp { input: InputOpKind::Param { path, init }, ty: node.ty.clone() });
    }
    program
}

fn example_dim(program: &Program) -> Option<Dim> {
    program.inputs.first().and_then(|i| i.0.dims.first().copied())
}

/// Dependence of each value of a program on its batch and on its device.
struct Dependence {
    /// Values that differ between batches: they read data, or have the example dim without a parameter that has it.
    on_input: IdVec<Id, bool>,
    /// Values that a device computes: they read a leaf or a loop. [`Evaluation::finish`] computes the others, which are
    /// constants without loops.
    on_device: IdVec<Id, bool>,
}

impl Dependence {
    fn of(g: &Graph, example: Option<Dim>) -> Dependence {
        let mut on_input = g.nodes.table(false);
        let mut on_device = g.nodes.table(false);
        loop {
            let mut changed = false;
            for id in g.ids() {
                let n = g.node(id);
                let (leaf, reads) = (n.op.kind(), g.depends_on(id));
                let bound = matches!(leaf, Kind::Input(_));
                // `index(batch)`, random values and constants along `batch` have as many elements as the batch.
                let first = example.is_some_and(|d| n.ty.has(d) && !n.inputs.iter().any(|x| g.ty(*x).has(d)));
                let input = matches!(leaf, Kind::Input(InputOpKind::Input { .. }))
                    || (first && !bound)
                    || reads.iter().any(|x| on_input[*x]);
                changed |= input != std::mem::replace(&mut on_input[id], input);
                let device = input
                    || bound
                    || matches!(leaf, Kind::Rematerializable(Source::Random) | Kind::Boundary(_))
                    || reads.iter().any(|x| on_device[*x]);
                changed |= device != std::mem::replace(&mut on_device[id], device);
            }
            // A carry depends on what comes after it.
            if !changed || g.repeats.is_empty() {
                return Dependence { on_input, on_device };
            }
        }
    }
}

fn accumulated(program: &Program, decls: impl Fn(&Program) -> Vec<LossDecl>) -> Outcome<Evaluation> {
    let g = &program.graph;
    let example = example_dim(program);
    let Dependence { on_input, on_device } = Dependence::of(g, example);
    let mut e = Evaluation {
        step: StepGraph {
            model: program.model.clone(),
            program: "eval",
            float: program.float,
            scale_history: None,
            graph: g.clone(),
            inputs: program.inputs.iter().map(|i| i.0.clone()).collect(),
            outputs: Vec::new(),
        },
        accumulate: Vec::new(),
        graph: g.clone(),
        cuts: Vec::new(),
        results: Vec::new(),
    };
    let mut out = Vec::new();
    for decl in &decls(program) {
        let before = e.cuts.len();
        let mut todo = vec![decl.id];
        let mut mixing = None;
        while let Some(id) = todo.pop() {
            if !on_device[id] || e.cuts.contains(&id) {
                continue;
            }
            let mine = |x: &Id| on_input[*x] && example.is_some_and(|d| g.ty(*x).has(d));
            let how = if on_input[id] { how(g, id, example) } else { Some(Accumulate::Same) };
            mixing = match how {
                Some(Accumulate::Same) => None,
                Some(_) => mixes(g, g.depends_on(id), example, &on_input),
                None => {
                    // A fold in the body of a loop is a fold in each iteration.
                    let from_loop = on_input[id] && g.boundary(id).is_some();
                    (from_loop || mine(&id) || g.node(id).inputs.iter().any(mine)).then_some(id)
                }
            };
            match how {
                _ if mixing.is_some() => break,
                Some(how) => e.cut(id, how),
                None => todo.extend(g.node(id).inputs.iter().copied().rev()),
            }
        }
        if let Some(op) = mixing {
            out.push(of_each_batch(g, decl, example, op));
            if !g.ty(decl.id).dtype.is_float() {
                continue;
            }
            e.drop_cuts(before);
            e.cut(decl.id, Accumulate::Mean);
        }
        e.results.push((decl.name.clone(), decl.id));
    }
    let fine = !has_errors(&out);
    (fine.then_some(e), out)
}

const BY_BATCH: &str = "it depends on the size of the batches, and on which examples meet in one";

fn example_name(g: &Graph, example: Option<Dim>) -> &str {
    example.map_or("?", |d| g.dims.name(d))
}

fn mixing_label(g: &Graph, example: Option<Dim>, op: Id) -> String {
    let name = example_name(g, example);
    // Models do not name the ops at the ends of a loop.
    match g.boundary(op) {
        Some(_) => format!("mixes the examples of a batch: a loop over `{name}`"),
        None => format!("mixes the examples of a batch: `{}` along `{name}`", g.spelled(op)),
    }
}

/// The op that mixes the examples of a batch, so that a value belongs to each batch and not to the whole set.
fn of_each_batch(g: &Graph, decl: &LossDecl, example: Option<Dim>, op: Id) -> Diagnostic {
    let name = example_name(g, example);
    let at = g.node(op).origin.span;
    let mixes = mixing_label(g, example, op);
    let help = format!("for a value of the whole set, fold `{name}` first, by `sum`, `mean`, `max` or `min`");
    if !g.ty(decl.id).dtype.is_float() {
        let text = format!("`{}` is {} of each batch, and has no mean", decl.name, g.ty(decl.id).dtype);
        return Diagnostic::error(codes::E0206, text)
            .at(at, mixes)
            .and(decl.span, "declared here")
            .help(help);
    }
    let text = format!("`{}` is evaluated for each batch by itself", decl.name);
    Diagnostic::warning(codes::E0206, text)
        .at(at, mixes)
        .and(decl.span, "the mean over the batches is reported, weighted by their examples")
        .note(BY_BATCH)
        .help(help)
}

/// The first op found, among values and their operands, that mixes examples: a batch then says nothing of the whole.
fn mixes(g: &Graph, values: Vec<Id>, example: Option<Dim>, on_input: &IdVec<Id, bool>) -> Option<Id> {
    let example = example?;
    let mut seen = g.nodes.table(false);
    let mut todo = values;
    while let Some(id) = todo.pop() {
        if std::mem::replace(&mut seen[id], true) || !on_input[id] {
            continue;
        }
        let n = g.node(id);
        let roles = n.op.roles(&g.input_types(id), &n.ty, &g.dims);
        // Under another name, or as a part of another dim, examples meet as well.
        let leaves = !n.ty.has(example) && n.inputs.iter().any(|x| g.ty(*x).has(example));
        if leaves || roles.get(example).is_some_and(|l| l.role != Role::Parallel) {
            return Some(id);
        }
        todo.extend(g.depends_on(id));
    }
    None
}

/// Combination of batches for a value that folds the example dim.
fn how(g: &Graph, id: Id, example: Option<Dim>) -> Option<Accumulate> {
    let n = g.node(id);
    let example = example?;
    let roles = n.op.roles(&g.input_types(id), &n.ty, &g.dims);
    if !matches!(roles.get(example)?.role, Role::Reduction(_)) {
        return None;
    }
    // Other ops that add along the dim do not add all of it: `x[batch = 0]` picks from each batch.
    match n.op.kind() {
        Kind::Compute(Computes::Reduction(Fold::Mean)) => Some(Accumulate::Mean),
        Kind::Compute(Computes::Reduction(Fold::By(Monoid::Sum)) | Computes::Contraction) => {
            Some(Accumulate::Sum)
        }
        Kind::Compute(Computes::Reduction(Fold::By(Monoid::Max))) => Some(Accumulate::Max),
        Kind::Compute(Computes::Reduction(Fold::By(Monoid::Min))) => Some(Accumulate::Min),
        _ => None,
    }
}

impl Evaluation {
    /// The dims of an accumulator, in the order of its value.
    pub fn dims(&self, accumulator: usize) -> &[Dim] {
        &self.graph.ty(self.cuts[accumulator]).dims
    }

    fn cut(&mut self, id: Id, how: Accumulate) {
        let name = format!("accumulator {}", self.cuts.len());
        self.step.outputs.push(StepOutput { name, id, kind: OutputKind::Scalar });
        self.accumulate.push(how);
        self.cuts.push(id);
    }

    /// Leaves out all cuts but the first `keep`.
    fn drop_cuts(&mut self, keep: usize) {
        self.step.outputs.truncate(keep);
        self.accumulate.truncate(keep);
        self.cuts.truncate(keep);
    }

    /// Combines the accumulators of a batch of `examples` into `total`, which starts empty. `before` is the number of
    /// examples already in it.
    pub fn add(&self, total: &mut Vec<Vec<f64>>, before: usize, batch: &[Vec<f64>], examples: usize) {
        if total.is_empty() {
            *total = batch.to_vec();
            return;
        }
        let (old, new) = (before as f64, examples as f64);
        for ((t, b), how) in total.iter_mut().zip(batch).zip(&self.accumulate) {
            for (t, b) in t.iter_mut().zip(b) {
                *t = match how {
                    Accumulate::Sum => *t + b,
                    Accumulate::Mean => (*t * old + b * new) / (old + new),
                    Accumulate::Max if better(true, *b, *t) => *b,
                    Accumulate::Min if better(false, *b, *t) => *b,
                    Accumulate::Max | Accumulate::Min => *t,
                    Accumulate::Same => *b,
                };
            }
        }
    }

    /// The results by name, from accumulators over all batches, each row-major over [`Evaluation::dims`].
    pub fn finish(&self, total: Vec<Vec<f64>>) -> Vec<(String, F64Tensor)> {
        let of = |(k, data): (usize, Vec<f64>)| {
            (self.cuts[k], F64Tensor::new(&self.graph.dims, self.dims(k), data))
        };
        let mut known: SortedMap<Id, F64Tensor> = total.into_iter().enumerate().map(of).collect();
        self.results.iter().map(|(name, id)| (name.clone(), self.value(*id, &mut known))).collect()
    }

    fn value(&self, id: Id, known: &mut SortedMap<Id, F64Tensor>) -> F64Tensor {
        // Operands come before their users; without recursion, since chains may be long.
        let mut needed = SortedSet::new();
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            if !known.contains_key(&id) && needed.insert(id) {
                todo.extend(&self.graph.node(id).inputs);
            }
        }
        for id in needed {
            let n = self.graph.node(id);
            let inputs: Vec<&F64Tensor> = n.inputs.iter().filter_map(|i| known.get(i)).collect();
            let v = n.op.oracle(&inputs, &n.ty, &self.graph.dims);
            known.insert(id, v);
        }
        known.get(&id).cloned().unwrap_or_else(|| panic!("internal error: a result that is not computed"))
    }
}
