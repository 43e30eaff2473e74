//! The way from a step graph to a Plan as one pipeline of passes, with a verifier after each. A pass has the type of the
//! stage that it takes and of the one that it gives, so that no wrong order compiles.

mod shared;

use crate::layout::{Layout, Rulebook, assign, check_conflicts};
use crate::lowering::{self, LineOf, LossParts};
use crate::partition::{Spmd, partition};
use crate::passes::joined_shifts;
use crate::passes::linear::linearized;
use crate::passes::microbatches::{self, Batch};
use crate::passes::normalize;
use crate::passes::order::{self, Ordered};
use crate::passes::ordered_norms::squares_in_order;
use crate::passes::scales;
use crate::passes::stages::{self, Stages, given_to_all};
use crate::print;
use crate::step::precision;
use crate::step::step_graph::StepGraph;
use crate::verify::{verify, verify_graph};
use meshwright_diag::{Diagnostic, Outcome, codes, has_errors};
use meshwright_ops::{Graph, Id};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{Dim, Monoid, Plan, Prim};
use std::borrow::Cow;
use std::sync::LazyLock;

pub use shared::SharedStep;

/// A program on its way, as observers see it.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// The global graph.
    Graph(&'a StepGraph),
    /// Partitioned.
    Spmd(&'a Spmd),
    /// Scheduled.
    Plan(&'a Plan),
}

/// A pass as `--emit after:NAME` and `--time-passes` show it.
#[derive(Clone, Copy, Debug)]
pub struct PassInfo {
    /// Its name.
    pub name: &'static str,
    /// Its effect, in a line.
    pub doc: &'static str,
}

/// A pass from one stage to the same or the next one; `None` where it reports errors.
struct Pass<A, B> {
    info: PassInfo,
    /// Whether it may find anything to do.
    needed: fn(&A, &Context<'_>) -> bool,
    run: fn(A, &Context<'_>, &mut Vec<Diagnostic>) -> Option<B>,
}

impl<A, B> Pass<A, B> {
    const fn new(
        name: &'static str,
        doc: &'static str,
        run: fn(A, &Context<'_>, &mut Vec<Diagnostic>) -> Option<B>,
    ) -> Self {
        Pass { info: PassInfo { name, doc }, needed: |_, _| true, run }
    }

    const fn only_if(self, needed: fn(&A, &Context<'_>) -> bool) -> Self {
        Pass { needed, ..self }
    }
}

struct Context<'a> {
    layout: &'a Layout,
    /// The dims whose positions are in another order.
    orders: &'a [Ordered],
    /// The parts in which a step takes its batch.
    batch: Option<Batch>,
    /// The stages over which it splits a loop.
    stages: Option<Stages>,
    line_of: &'a LineOf<'a>,
    options: CompileOptions,
}

/// The caller's options, which change numbers by rounding at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Collectives run while later steps compute.
    pub overlap: bool,
    /// Whether every value has a buffer of its own, so that it can be looked at when it is made: slower.
    pub examined: bool,
    /// When losses are computed for a part of the rows at a time: sums over rows are then rounded in another order.
    pub parts: LossParts,
    /// The program is verified after each pass. A search over layouts verifies only its final choice.
    pub verified: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { overlap: true, examined: false, parts: LossParts::default(), verified: true }
    }
}

/// A program, and the Plan that it was lowered to.
struct Lowered(Spmd, Plan);

/// A Plan with the end of every buffer: no pass may change it any more.
struct Finished(Plan);

/// Every pass in order.
struct Pipeline {
    graph: [Pass<StepGraph, StepGraph>; 13],
    partition: Pass<StepGraph, Spmd>,
    lower: Pass<Spmd, Lowered>,
    plan: [Pass<Plan, Plan>; 5],
    rings: Pass<Lowered, Lowered>,
    overlap: [Pass<Plan, Plan>; 2],
    lifetimes: Pass<Plan, Finished>,
}

static PIPELINE: Pipeline = Pipeline {
    graph: [
        Pass::new("precision", "in a program of `bf16` or `f16` every value gets its dtype, in one of `tf32` or `fp8` factors are rounded", |g, _, _| {
            Some(precision::assign(g))
        }),
        Pass::new(
            "order",
            "positions are in the order that `order` asks for; what is bound is looked up there",
            |g, c, found| order::ordered(&g, c.orders, found),
        )
        .only_if(|_, c| !c.orders.is_empty()),
        Pass::new("expand", "composite ops become primitives where a dim they need whole is split", expand),
        Pass::new("constants", "what is known is computed", |g, _, _| Some(normalize::constants(&g))),
        Pass::new(
            "microbatches",
            "a step takes its batch in the parts that `microbatches` asks for",
            |g, c, found| match &c.batch {
                Some(batch) => microbatches::in_parts(&g, batch, found),
                None => Some(g),
            },
        )
        .only_if(|_, c| c.batch.is_some()),
        Pass::new(
            "stages",
            "norms over stages are added in the order of the layers; what a loop over stages gives outside of microbatches goes to all of them",
            |g, c, _| {
                Some(match &c.stages {
                    Some(stages) => given_to_all(&squares_in_order(&g, stages), stages),
                    None => g,
                })
            },
        )
        .only_if(|_, c| c.stages.is_some()),
        Pass::new("scales", "what is rounded to 8 bits is scaled by its greatest magnitude", |g, _, _| {
            Some(scales::spelled_out(&g))
        })
        .only_if(|g, _| scales::has_any(g)),
        Pass::new("cse", "equal computations become one", |g, c, _| {
            let merged = normalize::common_subexpressions(&g, c.layout.has_paths());
            Some(normalize::dead_code(&merged))
        }),
        Pass::new("adds", "chains of additions become one, dead code goes", |g, _, _| {
            Some(normalize::merge_adds(&g))
        }),
        Pass::new("joins", "sums of values that make up a dim are these, one after the other", |g, _, _| {
            Some(if joined_shifts::has_any(&g) { joined_shifts::joined(&g) } else { g })
        }),
        Pass::new(
            "recompute",
            "what `recompute` names, and what is cheap, is computed again for the backward pass",
            |g, c, _| Some(crate::passes::recompute::recompute(g, c.layout)),
        ),
        Pass::new(
            "weights",
            "gradients of weights are apart from the backward pass where a schedule fills its waits with them",
            |g, c, _| {
                Some(match &c.stages {
                    Some(stages) => crate::passes::weights::apart(g, stages),
                    None => g,
                })
            },
        )
        .only_if(|_, c| c.layout.order.schedule() == PipelineSchedule::ZbH1 && c.batch.is_some()),
        Pass::new("working_copies", "parameters that `keep` names are rounded before loops", |g, c, _| {
            Some(crate::passes::working_copies::rounded_before_loops(g, c.layout))
        })
        .only_if(|_, c| !c.layout.keep.is_empty()),
    ],
    partition: Pass::new("partition", "rules and roles give placements and collectives", |g, c, found| {
        let (spmd, more) = partition(&g, c.layout);
        found.extend(more);
        spmd
    }),
    lower: Pass::new("lower", "ops become primitive steps on buffers", |s, c, _| {
        let plan = lowering::lower(&s, c.line_of);
        // If every buffer is examined, none may hold earlier contents.
        let plan = if c.options.examined { lowering::zeroed(plan) } else { plan };
        Some(Lowered(s, plan))
    }),
    plan: [
        Pass::new(
            "in_place",
            "caches that a loop updates, and sums that it adds to, are carried through it and written where they lie",
            |p, c, _| Some(if c.options.examined { p } else { lowering::in_place(p) }),
        )
        .only_if(|p, _| has(p, |prim| matches!(prim, Prim::Repeat { .. }))),
        Pass::new(
            "parts",
            "losses over large products are computed for a part of the rows at a time",
            |p, c, _| Some(if c.options.examined { p } else { lowering::in_parts(p, c.options.parts) }),
        )
        .only_if(|p, _| has(p, |prim| matches!(prim, Prim::CrossEntropy { .. }))),
        Pass::new("bucket", "collectives of one kind over equal axes share buckets", |p, c, _| {
            Some(if c.options.examined { p } else { lowering::bucket(p) })
        })
        .only_if(communicates),
        Pass::new("fuse", "chains of element-wise steps become one", |p, c, _| {
            Some(if c.options.examined { p } else { lowering::fuse(p) })
        }),
        Pass::new(
            "row_maxima",
            "a maximum over all elements is first that of each row, which the kernel of the rows computes",
            |p, c, _| Some(if c.options.examined { p } else { lowering::row_maxima(p) }),
        )
        .only_if(|p, _| has(p, |prim| matches!(prim, Prim::Reduce { monoid: Monoid::Max }))),
    ],
    rings: Pass::new(
        "rings",
        "attention takes keys that go around the devices shard by shard",
        |Lowered(spmd, plan), c, found| {
            let (plan, errors) = lowering::rings(plan, &spmd, c.layout);
            let sound = errors.is_empty();
            found.extend(errors);
            sound.then_some(Lowered(spmd, plan))
        },
    )
    .only_if(|l, c| !c.layout.rings.is_empty() && !c.options.examined && communicates(&l.1, c)),
    overlap: [
        Pass::new(
            "stagger",
            "loops gather for the next iteration and reduce for the one before while they compute",
            |p, c, _| Some(if c.options.overlap && !c.options.examined { lowering::stagger(p) } else { p }),
        )
        .only_if(communicates),
        Pass::new(
            "overlap",
            "collectives start early and are waited for where their results are read",
            |p, c, _| Some(if c.options.overlap && !c.options.examined { lowering::overlap(p) } else { p }),
        )
        .only_if(communicates),
    ],
    lifetimes: Pass::new(
        "lifetimes",
        "buffers end at their last use and hand on their storage",
        |p, _, _| Some(Finished(lowering::lifetimes(p))),
    ),
};

/// Every pass in order.
pub static PASSES: LazyLock<Vec<PassInfo>> = LazyLock::new(|| {
    let p = &PIPELINE;
    let graph = p.graph.iter().map(|p| p.info).chain([p.partition.info, p.lower.info]);
    let plan = p.plan.iter().map(|p| p.info).chain([p.rings.info]).chain(p.overlap.iter().map(|p| p.info));
    graph.chain(plan).chain([p.lifetimes.info]).collect()
});

/// A compiled step.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The SPMD program, for `explain`.
    pub spmd: Spmd,
    /// The Plan.
    pub plan: Plan,
}

/// Called after each pass with its position in [`PASSES`] and its result.
pub type Observer<'a> = dyn FnMut(usize, Stage<'_>) + 'a;

/// Compiles a step for a layout.
pub fn compile(
    step: &StepGraph,
    layout: &Layout,
    line_of: &LineOf,
    observe: &mut Observer<'_>,
) -> Outcome<Compiled> {
    compile_with(step, layout, line_of, CompileOptions::default(), observe)
}

/// [`compile`] with options.
pub fn compile_with(
    step: &StepGraph,
    layout: &Layout,
    line_of: &LineOf,
    options: CompileOptions,
    observe: &mut Observer<'_>,
) -> Outcome<Compiled> {
    run(step, layout, (line_of, options), observe, |run, start| run.pipeline(start))
}

/// Diagnostics of a step under a layout. Of the passes on Plans only that of rings has any, so without rings they do not run.
pub fn diagnose(step: &StepGraph, layout: &Layout) -> Vec<Diagnostic> {
    let (line_of, options): (&LineOf, _) = (&|_| 0, CompileOptions::default());
    let rings = !layout.rings.is_empty();
    run(step, layout, (line_of, options), &mut |_, _| {}, |run, start| match rings {
        true => run.lowered(start).map(|_| ()),
        false => run.partitioned(start).map(|_| ()),
    })
    .1
}

/// Whether an evaluation goes through the stages of a layout in the microbatches that it asks for, so that stages work at once.
pub fn evaluates_in_microbatches(step: &StepGraph, layout: &Layout) -> bool {
    let options = CompileOptions { verified: false, ..CompileOptions::default() };
    let (line_of, options): (&LineOf, _) = (&|_| 0, options);
    let taken = run(step, layout, (line_of, options), &mut |_, _| {}, |run, start| run.taken_in_parts(start));
    taken.0.is_some_and(|step| step.graph.microbatches.is_some())
}

/// Runs passes on a step that is checked.
fn run<T>(
    step: &StepGraph,
    layout: &Layout,
    (line_of, options): (&LineOf, CompileOptions),
    observe: &mut Observer<'_>,
    passes: impl FnOnce(&mut Run<'_, '_>, StepGraph) -> Option<T>,
) -> Outcome<T> {
    let mut start = match ready(step) {
        Ok(start) => start,
        Err(d) => return (None, vec![*d]),
    };
    let mut found = check_conflicts(layout, &start.graph, &|_| true);
    let staged = stages::planned(&mut start, layout);
    found.extend(stages::uncut(&start.graph, layout));
    let (stages, layout) = match &staged {
        Some((stages, layout)) => (Some(*stages), layout),
        None => (None, layout),
    };
    let ordered = order::planned(&mut start, layout, &mut found);
    let (orders, layout) = match &ordered {
        Some((orders, layout)) => (&orders[..], layout),
        None => (&[][..], layout),
    };
    let Some((batch, layout)) = in_parts(&mut start, layout, stages, &mut found) else {
        return (None, found);
    };
    let layout = &*layout;
    let mut run =
        Run { context: Context { layout, orders, batch, stages, line_of, options }, found, observe, done: 0 };
    (passes(&mut run, start), run.found)
}

/// The batch of a step in the parts that a layout asks for, if it does, with the layout of a part. None where an error was found,
/// now or before.
fn in_parts<'l>(
    step: &mut StepGraph,
    layout: &'l Layout,
    stages: Option<Stages>,
    found: &mut Vec<Diagnostic>,
) -> Option<(Option<Batch>, Cow<'l, Layout>)> {
    let planned = microbatches::planned(step, layout, stages).map_err(|d| found.push(*d)).ok().flatten();
    let of_part = |(batch, layout)| (Some(batch), Cow::Owned(layout));
    (!has_errors(found)).then(|| planned.map_or((None, Cow::Borrowed(layout)), of_part))
}

/// A step without dead code, each loop in one piece.
fn ready(step: &StepGraph) -> Result<StepGraph, Box<Diagnostic>> {
    let start = normalize::dead_code(step);
    match too_large(&start) {
        Some(d) => Err(Box::new(d)),
        None => Ok(linearized(start)),
    }
}

/// Most values of a step, gradients and updates included: more would keep the compiler busy for longer than a second or two. A
/// GPT of some 60 blocks that are written out one by one, with AdamW, is as large; those that ship are far below.
const MAX_VALUES: usize = 50_000;

/// The error of a step that is too large.
fn too_large(step: &StepGraph) -> Option<Diagnostic> {
    let values = step.graph.nodes.len();
    (values > MAX_VALUES).then(|| {
        let text = format!(
            "the program `{}` of `{}` has {values} values, more than {MAX_VALUES}: it is too large to compile",
            step.program, step.model
        );
        Diagnostic::error(codes::E0219, text)
            .note("each parameter counts with its gradient and its update")
            .help("`repeat` computes layers that are alike in one body, and its parameters are one for all of them")
    })
}

/// A compilation.
struct Run<'a, 'o> {
    context: Context<'a>,
    found: Vec<Diagnostic>,
    observe: &'a mut Observer<'o>,
    /// Passes that have run.
    done: usize,
}

impl Run<'_, '_> {
    fn partitioned(&mut self, start: StepGraph) -> Option<Spmd> {
        let p = &PIPELINE;
        let graph = p.graph.iter().try_fold(start, |g, pass| self.pass_if_needed(pass, g))?;
        self.pass(&p.partition, graph)
    }

    /// The passes before that of stages.
    fn taken_in_parts(&mut self, start: StepGraph) -> Option<StepGraph> {
        let mut passes = PIPELINE.graph.iter().take_while(|p| p.info.name != "stages");
        passes.try_fold(start, |g, pass| self.pass_if_needed(pass, g))
    }

    /// A partitioned program on shards, with its rings.
    fn lowered(&mut self, start: StepGraph) -> Option<Lowered> {
        let spmd = self.partitioned(start)?;
        self.lowered_of(spmd)
    }

    fn lowered_of(&mut self, spmd: Spmd) -> Option<Lowered> {
        let p = &PIPELINE;
        let Lowered(spmd, plan) = self.pass(&p.lower, spmd)?;
        let plan = p.plan.iter().try_fold(plan, |plan, pass| self.pass_if_needed(pass, plan))?;
        self.pass_if_needed(&p.rings, Lowered(spmd, plan))
    }

    fn pipeline(&mut self, start: StepGraph) -> Option<Compiled> {
        let lowered = self.lowered(start)?;
        self.finished(lowered)
    }

    fn finished(&mut self, Lowered(spmd, plan): Lowered) -> Option<Compiled> {
        let p = &PIPELINE;
        let plan = p.overlap.iter().try_fold(plan, |plan, pass| self.pass_if_needed(pass, plan))?;
        let Finished(plan) = self.pass(&p.lifetimes, plan)?;
        Some(Compiled { spmd, plan })
    }

    /// An unchanged result need not be verified again.
    fn pass_if_needed<A: Verified>(&mut self, pass: &Pass<A, A>, from: A) -> Option<A> {
        if (pass.needed)(&from, &self.context) {
            return self.pass(pass, from);
        }
        (self.observe)(self.done, from.stage());
        self.done += 1;
        Some(from)
    }

    fn pass<A, B: Verified>(&mut self, pass: &Pass<A, B>, from: A) -> Option<B> {
        let to = (pass.run)(from, &self.context, &mut self.found)?;
        let faults = if self.context.options.verified { to.faults() } else { Vec::new() };
        assert!(faults.is_empty(), "internal error: after `{}`:\n  {}", pass.info.name, faults.join("\n  "));
        (self.observe)(self.done, to.stage());
        self.done += 1;
        Some(to)
    }
}

/// The result of a pass.
trait Verified {
    /// Its faults.
    fn faults(&self) -> Vec<String>;

    /// As observers see it.
    fn stage(&self) -> Stage<'_>;
}

impl Verified for StepGraph {
    fn faults(&self) -> Vec<String> {
        verify_graph(self)
    }

    fn stage(&self) -> Stage<'_> {
        Stage::Graph(self)
    }
}

impl Verified for Spmd {
    fn faults(&self) -> Vec<String> {
        verify(self)
    }

    fn stage(&self) -> Stage<'_> {
        Stage::Spmd(self)
    }
}

impl Verified for Plan {
    fn faults(&self) -> Vec<String> {
        lowering::verify_order(self)
    }

    fn stage(&self) -> Stage<'_> {
        Stage::Plan(self)
    }
}

impl Verified for Lowered {
    fn faults(&self) -> Vec<String> {
        self.1.faults()
    }

    fn stage(&self) -> Stage<'_> {
        Stage::Plan(&self.1)
    }
}

impl Verified for Finished {
    fn faults(&self) -> Vec<String> {
        lowering::verify_plan(&self.0)
    }

    fn stage(&self) -> Stage<'_> {
        Stage::Plan(&self.0)
    }
}

impl Stage<'_> {
    /// The stage as text.
    pub fn print(self) -> String {
        match self {
            Stage::Graph(g) => print::graph(g),
            Stage::Spmd(s) => print::spmd(s),
            Stage::Plan(p) => print::plan(p),
        }
    }
}

/// Whether a Plan has a step of some kind.
fn has(plan: &Plan, kind: fn(&Prim) -> bool) -> bool {
    plan.steps.iter().any(|s| kind(&s.prim))
}

fn communicates(plan: &Plan, _: &Context<'_>) -> bool {
    has(plan, |prim| matches!(prim, Prim::Collective(_)))
}

fn expand(step: StepGraph, c: &Context<'_>, _: &mut Vec<Diagnostic>) -> Option<StepGraph> {
    Some(expanded(&step, c.layout, &|_| {}))
}

/// Composite ops as primitives where a layout splits a dim that they need whole; `tell` is told of each in order whether it does.
fn expanded(step: &StepGraph, layout: &Layout, tell: &dyn Fn(bool)) -> StepGraph {
    let layout = layout.effective();
    let rules = Rulebook::new(&layout);
    let split = |g: &Graph, id: Id, dims: &[Dim]| {
        let n = g.node(id);
        let all = meshwright_ops::union(g.input_types(id).into_iter().chain([&n.ty]));
        let got = assign(&rules, n.origin.class, &n.origin.path, &all, &g.dims);
        let is = dims.iter().any(|d| got.splits.contains_key(d));
        tell(is);
        is
    };
    normalize::expand(step, &split)
}
