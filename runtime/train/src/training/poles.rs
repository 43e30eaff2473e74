//! Functions that are infinite at a point, or whose derivative is: which one turned finite values into one that is not,
//! and a remedy.

use crate::project::Project;
use crate::training::guards::Guard;
use meshwright_diag::Sources;
use meshwright_exec::Finiteness;
use meshwright_ops::{Boundary, Crossing, Graph, Id, InputOpKind, Kind, Origin, Source, Unary};
use meshwright_plan::{Arithmetic, Phase};
use meshwright_sorted::SortedSet;

/// A function with a point at which it or its derivative is infinite.
#[derive(Debug, PartialEq, Eq)]
struct PoleFunction {
    /// Its op, forward.
    op: &'static str,
    /// As models write it.
    name: &'static str,
    /// That point.
    at: &'static str,
    /// With a number that keeps it from that point in place of `{}`.
    away: &'static str,
}

const FUNCTIONS: [PoleFunction; 7] = [
    PoleFunction { op: "sqrt", name: "sqrt", at: "0", away: "sqrt(… + {})" },
    PoleFunction { op: "rsqrt", name: "rsqrt", at: "0", away: "rsqrt(… + {})" },
    PoleFunction { op: "log", name: "log", at: "0", away: "log(… + {})" },
    PoleFunction { op: "log1p", name: "log1p", at: "-1", away: "log1p(… + {})" },
    PoleFunction { op: "recip", name: "/", at: "0", away: "… / (… + {})" },
    PoleFunction { op: "/", name: "/", at: "0", away: "… / (… + {})" },
    PoleFunction { op: "pow", name: "**", at: "0", away: "(… + {}) ** …" },
];

/// Operands of a value that was computed again are compared with those of the first computation this far.
const DEPTH: usize = 4;

/// A function that turned finite values into one that is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pole {
    function: &'static PoleFunction,
    /// Whether it was its derivative.
    of_derivative: bool,
    is: Finiteness,
    guard: Option<Guard>,
}

impl Pole {
    /// That of the op which has made the value `id`, whose operands are finite; `None` where it is another op.
    pub(crate) fn of(graph: &Graph, id: Id, is: Finiteness) -> Option<Pole> {
        let node = graph.node(id);
        let function = |op: &str| FUNCTIONS.iter().find(|f| f.op == op);
        let own = function(node.op.name())?;
        match node.origin.phase {
            Phase::Forward => {
                Some(Pole { function: own, of_derivative: false, is, guard: Guard::of(graph, id) })
            }
            Phase::Backward => {
                let (of, function) = forward_of(graph, id).find_map(|x| {
                    let of = function(graph.node(x).op.name())?;
                    is_derivative(graph, id, x).then_some((x, of))
                })?;
                Some(Pole { function, of_derivative: true, is, guard: Guard::of(graph, of) })
            }
            _ => None,
        }
    }

    /// The function and a remedy behind it; the loss may have `shown` its value.
    pub(crate) fn help_behind(&self, sources: &Sources, shown: bool) -> Option<String> {
        let guard = self.guard.filter(|guard| guard.holds(shown && !self.of_derivative));
        guard.map(|guard| guard.help(sources, self.function.name))
    }

    /// The function and a remedy.
    pub(crate) fn help(&self, float: Arithmetic) -> String {
        let PoleFunction { name, at, away, .. } = self.function;
        // The smallest number that a half type distinguishes from 0, and whose inverse it has.
        let number = match (float, *name) {
            // Numbers near -1 are farther apart.
            (Arithmetic::F16, "log1p") => "1e-3",
            (Arithmetic::BF16 | Arithmetic::FP8, "log1p") => "1e-2",
            (Arithmetic::F16, _) => "1e-4",
            (_, "sqrt" | "rsqrt") => "1e-12",
            _ => "1e-6",
        };
        let away = away.replace("{}", number);
        let what = match (self.of_derivative, self.is, *name) {
            (true, _, "/") => "the derivative of `/` is infinite where it divides by 0".to_string(),
            (true, _, _) => format!("the derivative of `{name}` at {at} is infinite"),
            (false, Finiteness::NotANumber, "/") => "`/` has divided 0 by 0".into(),
            (false, Finiteness::NotANumber, "log1p") => "`log1p` below -1 is not a number".into(),
            (false, Finiteness::NotANumber, _) => format!("`{name}` of a negative number is not a number"),
            (false, _, "/") => "`/` has divided by 0, or by less than the type of numbers can invert".into(),
            (false, _, _) => format!("`{name}` at {at} is infinite"),
        };
        match (self.of_derivative, self.is, *name) {
            (false, Finiteness::NotANumber, "/") | (true, ..) | (false, Finiteness::Infinite, _) => {
                format!("{what}: keep away from {at} by a small number, `{away}`")
            }
            _ => format!("{what}: keep what it takes above {at}"),
        }
    }

    /// Whether smaller steps are of no help: the values themselves may be as good as they come.
    pub(crate) fn is_in_the_model(&self) -> bool {
        self.of_derivative
    }
}

/// Name and guard of the function that has made the value `id`, or the same value in the forward pass, too large.
pub(crate) fn guarded_growth(graph: &Graph, id: Id) -> Option<(&'static str, Guard)> {
    let op = &graph.node(id).op;
    let mut same = forward_of(graph, id).filter(|x| graph.node(*x).op.name() == op.name());
    let first = same.next().filter(|_| op.as_any().is::<Unary>())?;
    Some((op.name(), Guard::of(graph, first)?))
}

/// The values of the forward pass that a value's expression computes, or the value itself.
fn forward_of(graph: &Graph, id: Id) -> impl Iterator<Item = Id> {
    let at = |x: &Id| (graph.node(*x).origin.phase, graph.node(*x).origin.span);
    let span = graph.node(id).origin.span;
    graph.ids().filter(move |x| at(x) == (Phase::Forward, span))
}

/// True where the value `id` of the backward pass is made of operands or the result of the function `of`.
fn is_derivative(graph: &Graph, id: Id, of: Id) -> bool {
    let origin = &graph.node(id).origin;
    let mut reads = graph.node(id).inputs.clone();
    // `1 + x`, for example, is a part of the derivative too.
    let parts: Vec<Id> = reads.iter().copied().filter(|x| graph.node(*x).origin == *origin).collect();
    reads.extend(parts.iter().flat_map(|x| &graph.node(*x).inputs));
    let mut forward = graph.node(of).inputs.clone();
    // Sums of sums are one.
    let sums: Vec<Id> = forward.iter().copied().filter(|x| graph.node(*x).op.kind() == Kind::Add).collect();
    forward.extend(sums.iter().flat_map(|x| &graph.node(*x).inputs));
    forward.push(of);
    // Numbers are operands of too many.
    forward.retain(|f| !matches!(graph.node(*f).op.kind(), Kind::Rematerializable(_)));
    forward.iter().any(|f| reads.iter().any(|x| same(graph, *x, *f, DEPTH)))
}

/// True where a value is another one, or the same computed again for the backward pass.
fn same(graph: &Graph, again: Id, first: Id, depth: usize) -> bool {
    let again = outside_of_stacks(graph, again);
    if again == first || depth == 0 {
        return true;
    }
    let (a, b) = (graph.node(again), graph.node(first));
    let of_one_place = Origin { phase: b.origin.phase, ..a.origin.clone() } == b.origin;
    let alike = of_one_place && a.ty == b.ty && format!("{:?}", a.op) == format!("{:?}", b.op);
    let mut operands = a.inputs.iter().zip(&b.inputs);
    alike && a.inputs.len() == b.inputs.len() && operands.all(|(x, y)| same(graph, *x, *y, depth - 1))
}

/// The value of the forward pass that a loop kept for the backward pass, where `id` is such a one; or else `id`.
fn outside_of_stacks(graph: &Graph, mut id: Id) -> Id {
    while let Kind::Boundary(Boundary { how: Crossing::Slice | Crossing::Stack, .. }) =
        graph.node(id).op.kind()
    {
        id = graph.node(id).inputs[0];
    }
    id
}

/// Whether a value is a setting of the `train` block, such as the learning rate: it is made of numbers and the number of the step
/// alone.
pub(crate) fn is_setting(graph: &Graph, id: Id) -> bool {
    let mut todo = vec![id];
    let mut reached = SortedSet::new();
    while let Some(id) = todo.pop().filter(|id| reached.insert(*id)) {
        let node = graph.node(id);
        match node.op.kind() {
            Kind::Input(InputOpKind::StepNumber) | Kind::Rematerializable(Source::Constant) => {}
            Kind::Input(_) | Kind::Rematerializable(_) => return false,
            _ => todo.extend(&node.inputs),
        }
    }
    graph.node(id).origin.phase == Phase::Update
}

/// A remedy against large steps that the model does not have yet.
pub(crate) fn smaller_steps(project: &Project) -> &'static str {
    let clips = project.program.train.as_ref().is_some_and(|t| t.clip.is_some());
    if clips {
        "try a smaller learning rate"
    } else {
        "try a smaller learning rate, or `clip global_norm = 1.0` in the `train` block"
    }
}
