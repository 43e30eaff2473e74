//! Decoding: the same model for a few new positions of a sequence, with what it needs of the earlier ones kept from run to run.
//!
//! Before: a program whose ops work on each position along `seq` by itself, but for renames `seq -> key`, by which positions
//! see each other. After: a step that computes `count` positions from `start` on, which is an input for each sequence. What
//! is renamed is kept in a state of the size of `key` (a key-value cache), which the step updates at these positions and then
//! reads in full. Positions that no step has written yet are never seen, because models that predict what comes next mask what
//! is behind a position.

mod branch;
mod causal;
mod outputs;
mod rebuild;

use crate::passes::linear::linearized;
use crate::passes::normalize::dead_code;
use crate::program::{LossDecl, Program};
use crate::step::evaluation::averaged;
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
pub use branch::{Branching, branch};
use meshwright_diag::{Diagnostic, Outcome, Span, codes};
use meshwright_ops::{Graph, Id, InputOp, InputOpKind, Type};
use meshwright_plan::{DType, Dim, InputDecl};
use meshwright_sorted::SortedSet;
pub use outputs::DecodedOutput;
use rebuild::{Rebuild, Refusal, Sequence, free};

/// A step that computes new positions of sequences.
#[derive(Clone, Debug)]
pub struct Decoding {
    /// The step. Its first outputs are what [`DecodedOutput`] says, of one position for each sequence.
    pub step: StepGraph,
    /// The input that says where the new positions begin, for each sequence.
    pub start: String,
    /// The input that says which of the new positions the output is of, for each sequence.
    pub last: String,
    /// The states that hold what is known of earlier positions. They begin as zeros, but may hold anything.
    pub caches: Vec<String>,
    /// The dim that counts sequences, where there is one.
    pub row: Option<Dim>,
    /// Dims of new positions: these may be gathered though no rule says so, because each device takes of them what belongs to its
    /// part of a cache.
    pub gathered: SortedSet<Dim>,
    /// Positions of the cache.
    pub context: usize,
    /// Positions that the step computes.
    pub count: usize,
}

/// Options of a step of [`decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPositions {
    /// Positions of each sequence.
    pub count: usize,
    /// The output at the last of them.
    pub output: DecodedOutput,
    /// Prefix of its states: `PATH/NAME.DIM`. Steps with a common cache have the same.
    pub kept_as: &'static str,
}

/// Builds the step that computes some positions along `seq` of a value, such as the logits of the next token. Steps of the same
/// program and value share their states by name, however many positions they compute.
///
/// The errors are E0527, where positions along `seq` need each other in a way that cannot be kept.
pub fn decode(program: &Program, value: &LossDecl, seq: Dim, of: NewPositions) -> Outcome<Decoding> {
    let chosen = Program { outputs: vec![value.clone()], ..program.clone() };
    let program = averaged(crate::specialized(&chosen, false));
    let wanted = &program.outputs[0];
    let step = dead_code(&StepGraph {
        model: program.model.clone(),
        program: "decode",
        float: program.float,
        scale_history: None,
        graph: program.graph.clone(),
        inputs: program.inputs.iter().map(|i| i.0.clone()).collect(),
        outputs: vec![StepOutput { name: wanted.name.clone(), id: wanted.id, kind: OutputKind::Output }],
    });
    match decoded(&step, seq, of) {
        Ok(d) => (Some(d), Vec::new()),
        Err((place, why)) => (None, vec![told(&step, value, seq, place, why)]),
    }
}

fn told(step: &StepGraph, value: &LossDecl, seq: Dim, place: Option<Id>, why: String) -> Diagnostic {
    let g = &step.graph;
    let (name, seq) = (&value.name, g.dims.name(seq));
    let message = format!("`{name}` cannot be computed position by position along `{seq}`");
    let d = Diagnostic::error(codes::E0527, message);
    let d = match place {
        Some(id) if g.node(id).origin.span != Span::default() => {
            d.at(g.node(id).origin.span, why).and(value.span, "asked for here")
        }
        _ => d.at(value.span, why),
    };
    d.help(format!("a model whose positions along `{seq}` see only those before them can be decoded: mask scores by `index(key) <= index({seq})`"))
}

fn decoded(step: &StepGraph, seq: Dim, of: NewPositions) -> Result<Decoding, Refusal> {
    let NewPositions { count, output, kept_as } = of;
    let old = &step.graph;
    let wanted = step.outputs[0].id;
    if !old.ty(wanted).has(seq) || !old.ty(wanted).dtype.is_float() {
        let name = old.dims.name(seq);
        return Err((None, format!("it is {} and not a float with the dim `{name}`", old.describe(wanted))));
    }
    rebuild::each_position_by_itself(old, seq)?;
    causal::only_the_past(old, seq)?;
    let context = old.dims.size(seq);
    let mut dims = old.dims.clone();
    dims.resize(seq, count);
    let whole = dims.make(&format!("{}*whole", old.dims.name(seq)), context, Some(seq));
    let fresh = dims.make(&format!("{}*new", old.dims.name(seq)), count, Some(seq));
    let mut inputs = step.inputs.clone();
    let read = step.inputs_read();
    let of_positions = inputs.iter().find(|i| read.contains(i.name.as_str()) && i.dims.contains(&seq));
    // Sequences are counted as examples are.
    let example = inputs.first().and_then(|i| i.dims.first().copied()).filter(|d| *d != seq);
    let rows: Vec<Dim> =
        example.filter(|d| of_positions.is_some_and(|i| i.dims.contains(d))).into_iter().collect();
    let taken: SortedSet<String> = inputs.iter().map(|i| i.name.clone()).collect();
    let start = free(|n| taken.contains(n), "start".into());
    let last = free(|n| taken.contains(n), "last".into());
    for input in &mut inputs {
        input.range = input.range.map(|d| if d == seq { whole } else { d });
    }
    let given =
        |name: &String, range| InputDecl { name: name.clone(), dims: rows.clone(), dtype: DType::I32, range };
    inputs.extend([given(&start, Some(whole)), given(&last, Some(seq))]);
    let mut new = Graph::new(dims);
    let [start_at, last_at] = [(&start, whole), (&last, seq)].map(|(name, range)| {
        let ty = Type { dtype: DType::I32, dims: rows.clone(), range: Some(range) };
        new.op(InputOp { input: InputOpKind::Input { name: name.clone() }, ty }, &[])
    });
    let row = rows.first().copied();
    let mut r = Rebuild::new(old, new, Sequence { seq, whole, fresh }, rows, start_at);
    r.kept_as = kept_as;
    r.all()?;
    r.new.cursor = old.node(wanted).origin.clone();
    r.new.scope = None;
    let value = r.now(wanted);
    let id = r.at_last(value, last_at).map_err(|e| (Some(wanted), e.to_string()))?;
    let given_out = outputs::outputs(&mut r.new, &step.outputs[0], id, (row, output));
    let caches = r.next.iter().map(|n| n.name.clone()).collect();
    let mut outputs = given_out;
    outputs.append(&mut r.next);
    let mut out = StepGraph { inputs, outputs, ..step.with_graph(r.new) };
    out = dead_code(&linearized(out));
    crate::passes::match_patterns::in_step(&mut out);
    Ok(Decoding { step: out, start, last, caches, row, gathered: [fresh].into(), context, count })
}

#[cfg(test)]
mod tests;
