//! A step that is compiled for many layouts, as a search does: what does not depend on them is done once, and what few of their
//! lines decide once for each of these.

use super::{
    CompileOptions, Compiled, Context, PIPELINE, Run, StepGraph, compile_with, expanded, in_parts, ready,
};
use crate::layout::{Layout, check_conflicts};
use crate::lowering::LineOf;
use crate::partition::partition;
use crate::step::precision;
use meshwright_diag::{Diagnostic, Outcome};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Most graphs that are kept. Of more, the oldest goes.
const MOST: usize = 32;

/// A step that is compiled for many layouts.
#[derive(Debug)]
pub struct SharedStep {
    step: StepGraph,
    /// What layouts are checked on, and the same after the first pass; the error of a step that is too large.
    ready: Result<[StepGraph; 2], Box<Diagnostic>>,
    graphs: Mutex<VecDeque<(GraphLines, Arc<StepGraph>)>>,
}

/// All that passes on graphs read of a layout without stages and orders.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GraphLines {
    /// Of each composite op whether a dim that it needs whole is split.
    split: Vec<bool>,
    /// Whether rules tell equal values apart.
    paths: bool,
    parts: Option<usize>,
    recompute: Vec<Arc<str>>,
    keep: Vec<Option<Arc<str>>>,
}

impl SharedStep {
    /// Of a step.
    pub fn new(step: StepGraph) -> SharedStep {
        let ready = ready(&step).map(|start| {
            let first = precision::assign(start.clone());
            [start, first]
        });
        SharedStep { step, ready, graphs: Mutex::default() }
    }

    /// The step.
    pub fn step(&self) -> &StepGraph {
        &self.step
    }

    /// The same as [`compile_with`], without lines of the model.
    pub fn compiled(&self, layout: &Layout, options: CompileOptions) -> Outcome<Compiled> {
        let line_of: &LineOf = &|_| 0;
        let [start, first] = match &self.ready {
            Ok(ready) => ready,
            Err(d) => return (None, vec![(**d).clone()]),
        };
        // Stages and orders change what all passes begin with.
        if layout.pipeline.is_some() || !layout.orders.is_empty() || options.verified {
            return compile_with(&self.step, layout, line_of, options, &mut |_, _| {});
        }
        let mut found = check_conflicts(layout, &start.graph, &|_| true);
        let mut first = first.clone();
        let Some((batch, layout)) = in_parts(&mut first, layout, None, &mut found) else {
            return (None, found);
        };
        let layout = &*layout;
        let context = Context { layout, orders: &[], batch, stages: None, line_of, options };
        let mut run = Run { context, found, observe: &mut |_, _| {}, done: 0 };
        let compiled = self.graph(&mut run, &first).and_then(|graph| {
            let (spmd, more) = partition(&graph, layout);
            run.found.extend(more);
            let lowered = run.lowered_of(spmd?)?;
            run.finished(lowered)
        });
        (compiled, run.found)
    }

    /// The graph as it is partitioned.
    fn graph(&self, run: &mut Run<'_, '_>, first: &StepGraph) -> Option<Arc<StepGraph>> {
        let split = RefCell::new(Vec::new());
        let graph = expanded(first, run.context.layout, &|is| split.borrow_mut().push(is));
        let layout = run.context.layout;
        let lines = GraphLines {
            split: split.into_inner(),
            paths: layout.has_paths(),
            parts: run.context.batch.and(layout.microbatches).map(|m| m.0),
            recompute: layout.recompute.clone(),
            keep: layout.keep.iter().map(|(path, _)| path.clone()).collect(),
        };
        let known = || self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |all: &VecDeque<(GraphLines, Arc<StepGraph>)>| {
            all.iter().find(|(of, _)| *of == lines).map(|(_, graph)| graph.clone())
        };
        let there = same(&known());
        if there.is_some() {
            return there;
        }
        let mut later = PIPELINE.graph.iter().skip_while(|p| p.info.name != "expand").skip(1);
        let graph = Arc::new(later.try_fold(graph, |g, pass| run.pass_if_needed(pass, g))?);
        let mut known = known();
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back((lines, graph.clone()));
        Some(graph)
    }
}
