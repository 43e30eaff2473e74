//! The way from a step graph to a Plan as one table of passes, with a verifier after each.

use crate::layout::{Layout, assign, check_conflicts};
use crate::normalize;
use crate::partition::{Spmd, partition};
use crate::precision;
use crate::print;
use crate::schedule::{self, LineOf};
use crate::step_graph::StepGraph;
use crate::verify::{verify, verify_graph};
use meshwright_diag::{Diagnostic, Outcome, has_errors};
use meshwright_ops::{Graph, Id};
use meshwright_plan::{Dim, Plan};

/// A program on its way.
#[derive(Clone, Debug)]
pub enum Stage {
    /// The global graph.
    Graph(StepGraph),
    /// Partitioned.
    Spmd(Box<Spmd>),
    /// Scheduled.
    Plan(Box<Plan>),
}

/// A pass: its name, what it does, and the function. It is given its own stage and returns it or the next.
pub struct Pass {
    /// Its name, as `--emit after:NAME` and `--time-passes` show it.
    pub name: &'static str,
    /// What it does, in a line.
    pub doc: &'static str,
    run: fn(Stage, &Context, &mut Vec<Diagnostic>) -> Option<Stage>,
}

struct Context<'a> {
    layout: &'a Layout,
    line_of: &'a LineOf<'a>,
    options: CompileOptions,
}

/// What is up to whoever compiles, and changes no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Whether collectives go on while later steps run.
    pub overlap: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { overlap: true }
    }
}

/// Every pass in order.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "precision",
        doc: "in a program of `bf16` every value gets its dtype",
        run: |s, _, _| graph_pass(s, precision::assign),
    },
    Pass {
        name: "expand",
        doc: "composite ops become primitives where a dim they need whole is split",
        run: expand,
    },
    Pass {
        name: "constants",
        doc: "what is known is computed",
        run: |s, _, _| graph_pass(s, normalize::constants),
    },
    Pass { name: "cse", doc: "equal computations become one", run: cse },
    Pass {
        name: "adds",
        doc: "chains of additions become one, dead code goes",
        run: |s, _, _| graph_pass(s, normalize::merge_adds),
    },
    Pass { name: "partition", doc: "rules and roles give placements and collectives", run: partition_pass },
    Pass { name: "lower", doc: "ops become primitive steps on buffers", run: lower },
    Pass {
        name: "bucket",
        doc: "all-reduces of equal axes share a bucket",
        run: |s, _, _| plan_pass(s, schedule::bucket),
    },
    Pass {
        name: "fuse",
        doc: "chains of element-wise steps become one",
        run: |s, _, _| plan_pass(s, schedule::fuse),
    },
    Pass {
        name: "overlap",
        doc: "collectives start early and are waited for where their results are read",
        run: |s, c, _| if c.options.overlap { plan_pass(s, schedule::overlap) } else { Some(s) },
    },
    Pass {
        name: "lifetimes",
        doc: "buffers end at their last use and hand on their storage",
        run: |s, _, _| plan_pass(s, schedule::lifetimes),
    },
];

/// A compiled step.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The SPMD program, for `explain`.
    pub spmd: Spmd,
    /// The Plan.
    pub plan: Plan,
}

/// Compiles a step for a layout. `observe` is called after each pass with its position in [`PASSES`] and its result.
pub fn compile(
    step: &StepGraph,
    layout: &Layout,
    line_of: &LineOf,
    observe: &mut dyn FnMut(usize, &Stage),
) -> Outcome<Compiled> {
    compile_with(step, layout, line_of, CompileOptions::default(), observe)
}

/// [`compile`] with options.
pub fn compile_with(
    step: &StepGraph,
    layout: &Layout,
    line_of: &LineOf,
    options: CompileOptions,
    observe: &mut dyn FnMut(usize, &Stage),
) -> Outcome<Compiled> {
    let start = normalize::dead_code(step);
    let mut out = check_conflicts(layout, &start.graph, &|_| true);
    if has_errors(&out) {
        return (None, out);
    }
    let context = Context { layout, line_of, options };
    let mut stage = Stage::Graph(start);
    let mut spmd = None;
    for (i, pass) in PASSES.iter().enumerate() {
        stage = match (pass.run)(stage, &context, &mut out) {
            Some(s) => s,
            None => return (None, out),
        };
        let found = match &stage {
            Stage::Graph(g) => verify_graph(g),
            Stage::Spmd(s) => verify(s),
            Stage::Plan(p) if pass.name == "lifetimes" => schedule::verify_plan(p),
            Stage::Plan(p) => schedule::verify_plan(&schedule::lifetimes((**p).clone())),
        };
        assert!(found.is_empty(), "internal error: after `{}`:\n  {}", pass.name, found.join("\n  "));
        if let Stage::Spmd(s) = &stage {
            spmd = Some((**s).clone());
        }
        observe(i, &stage);
    }
    match (spmd, stage) {
        (Some(spmd), Stage::Plan(plan)) => (Some(Compiled { spmd, plan: *plan }), out),
        _ => (None, out),
    }
}

impl Stage {
    /// The stage as text.
    pub fn print(&self) -> String {
        match self {
            Stage::Graph(g) => print::graph(g),
            Stage::Spmd(s) => print::spmd(s),
            Stage::Plan(p) => print::plan(p),
        }
    }
}

fn graph_pass(stage: Stage, f: fn(&StepGraph) -> StepGraph) -> Option<Stage> {
    match stage {
        Stage::Graph(g) => Some(Stage::Graph(f(&g))),
        other => Some(other),
    }
}

fn plan_pass(stage: Stage, f: fn(Plan) -> Plan) -> Option<Stage> {
    match stage {
        Stage::Plan(p) => Some(Stage::Plan(Box::new(f(*p)))),
        other => Some(other),
    }
}

fn expand(stage: Stage, c: &Context, _: &mut Vec<Diagnostic>) -> Option<Stage> {
    let Stage::Graph(step) = stage else { return Some(stage) };
    let layout = c.layout.effective();
    let split = |g: &Graph, id: Id, dims: &[Dim]| {
        let n = g.node(id);
        let all = meshwright_ops::union(g.input_types(id).into_iter().chain([&n.ty]));
        let got = assign(&layout, n.origin.class, &n.origin.path, &all, &g.dims);
        dims.iter().any(|d| got.splits.contains_key(d))
    };
    Some(Stage::Graph(normalize::expand(&step, &split)))
}

fn cse(stage: Stage, c: &Context, _: &mut Vec<Diagnostic>) -> Option<Stage> {
    let Stage::Graph(step) = stage else { return Some(stage) };
    let merged = normalize::common_subexpressions(&step, c.layout.has_paths());
    Some(Stage::Graph(normalize::dead_code(&merged)))
}

fn partition_pass(stage: Stage, c: &Context, out: &mut Vec<Diagnostic>) -> Option<Stage> {
    let Stage::Graph(step) = stage else { return Some(stage) };
    let (spmd, found) = partition(&step, c.layout);
    out.extend(found);
    spmd.map(|s| Stage::Spmd(Box::new(s)))
}

fn lower(stage: Stage, c: &Context, _: &mut Vec<Diagnostic>) -> Option<Stage> {
    let Stage::Spmd(spmd) = stage else { return Some(stage) };
    Some(Stage::Plan(Box::new(schedule::lower(&spmd, c.line_of))))
}
