//! Functions that are infinite at a point, or whose derivative is: which of them made a value that is not finite of finite ones, and
//! what to write in its place.

use crate::project::Project;
use meshwright_exec::Finiteness;
use meshwright_ops::{Graph, Id};
use meshwright_plan::{DType, Phase};

/// A function with a point, 0, at which it or its derivative is infinite.
#[derive(Debug, PartialEq, Eq)]
struct PoleFunction {
    /// Its op, forward.
    op: &'static str,
    /// As models write it.
    name: &'static str,
    /// With a number that keeps it from that point in place of `{}`.
    away: &'static str,
}

const FUNCTIONS: [PoleFunction; 6] = [
    PoleFunction { op: "sqrt", name: "sqrt", away: "sqrt(… + {})" },
    PoleFunction { op: "rsqrt", name: "rsqrt", away: "rsqrt(… + {})" },
    PoleFunction { op: "log", name: "log", away: "log(… + {})" },
    PoleFunction { op: "recip", name: "/", away: "… / (… + {})" },
    PoleFunction { op: "/", name: "/", away: "… / (… + {})" },
    PoleFunction { op: "pow", name: "**", away: "(… + {}) ** …" },
];

/// What made a value that is not finite of finite ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pole {
    function: &'static PoleFunction,
    /// Whether it was its derivative.
    of_derivative: bool,
    is: Finiteness,
}

impl Pole {
    /// That of the op which has made the value `id`, whose operands are finite; `None` where it is another op.
    pub(crate) fn of(graph: &Graph, id: Id, is: Finiteness) -> Option<Pole> {
        let node = graph.node(id);
        let function = |op: &str| FUNCTIONS.iter().find(|f| f.op == op);
        let own = function(node.op.name())?;
        match node.origin.phase {
            Phase::Forward => Some(Pole { function: own, of_derivative: false, is }),
            Phase::Backward => {
                // A derivative is made of what the function takes or gives.
                let reads = |x: &Id| node.inputs.contains(x);
                let forward = graph.ids().filter(|x| graph.node(*x).origin.phase == Phase::Forward);
                let mut related = forward.filter(|x| reads(x) || graph.node(*x).inputs.iter().any(reads));
                let of = related.find_map(|x| {
                    let other = graph.node(x);
                    function(other.op.name()).filter(|_| other.origin.span == node.origin.span)
                })?;
                Some(Pole { function: of, of_derivative: true, is })
            }
            _ => None,
        }
    }

    /// What it is, and what to write.
    pub(crate) fn help(&self, float: DType) -> String {
        let PoleFunction { name, away, .. } = self.function;
        // What a half type can tell from 0, and whose inverse it has.
        let number = match (float, *name) {
            (DType::F16, _) => "1e-4",
            (_, "sqrt" | "rsqrt") => "1e-12",
            _ => "1e-6",
        };
        let away = away.replace("{}", number);
        let what = match (self.of_derivative, self.is, *name) {
            (true, _, "/") => "the derivative of `/` is infinite where it divides by 0".to_string(),
            (true, _, _) => format!("the derivative of `{name}` at 0 is infinite"),
            (false, Finiteness::NotANumber, "/") => "`/` has divided 0 by 0".into(),
            (false, Finiteness::NotANumber, _) => format!("`{name}` of a negative number is not a number"),
            (false, _, "/") => "`/` has divided by 0, or by less than the type of numbers can invert".into(),
            (false, _, _) => format!("`{name}` at 0 is infinite"),
        };
        match (self.of_derivative, self.is, *name) {
            (false, Finiteness::NotANumber, "/") | (true, ..) | (false, Finiteness::Infinite, _) => {
                format!("{what}: keep away from 0 by a small number, `{away}`")
            }
            _ => format!("{what}: keep what it takes above 0"),
        }
    }

    /// Whether smaller steps are of no help: the values themselves may be as good as they come.
    pub(crate) fn is_in_the_model(&self) -> bool {
        self.of_derivative
    }
}

/// What helps against steps that are too large, and is not in the model yet.
pub(crate) fn smaller_steps(project: &Project) -> &'static str {
    let clips = project.program.train.as_ref().is_some_and(|t| t.clip.is_some());
    if clips {
        "try a smaller learning rate"
    } else {
        "try a smaller learning rate, or `clip global_norm = 1.0` in the `train` block"
    }
}
