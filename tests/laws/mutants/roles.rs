//! Faults in roles: an op that computes the right thing and says something wrong of itself. Each must be caught by a law.
//!
//! A fault is a line in [`mutants`]: what it says, the family in whose samples it is seeded, the op, and the lie.

use super::{By, Row, communication, judge};
use crate::devices::{Devices, layout, plan};
use crate::linear::all_claims;
use crate::split::{law, ways_of_params};
use crate::subject::{Arrival, Built, Subject, build, step, subjects};
use meshwright_ops::{
    Emit, ExpandWhen, F64Tensor, Graph, Id, Kind, Linear, Op, OpError, Role, Roles, Source, Type,
};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr, Monoid, Window};
use std::sync::Arc;

type Lie = fn(&mut Roles);

/// An op that computes the right thing but says something wrong of its roles. It is not expanded, so that what it says is
/// what counts.
#[derive(Clone)]
struct Broken {
    op: Arc<dyn Op>,
    lie: Lie,
    kind: Option<Kind>,
}

// Two of one op are one computation, as without the lie.
impl PartialEq for Broken {
    fn eq(&self, other: &Self) -> bool {
        *self.op == *other.op
    }
}

impl Eq for Broken {}

impl std::hash::Hash for Broken {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.op.hash(state);
    }
}

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.op.fmt(f)
    }
}

impl Op for Broken {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        self.op.infer(x, table)
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let mut roles = self.op.roles(x, y, table);
        (self.lie)(&mut roles);
        roles
    }

    fn kind(&self) -> Kind {
        self.kind.clone().unwrap_or_else(|| self.op.kind())
    }

    fn residuals(&self, g: &mut Graph, x: &[Id]) -> Vec<Id> {
        self.op.residuals(g, x)
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        self.op.vjp(g, x, y, dy, need)
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], types: &[&Type], y: &Type, table: &Dims) -> Option<Reg> {
        self.op.scalar(e, x, types, y, table)
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Never
    }

    fn lower(&self, e: &mut dyn Emit) {
        self.op.lower(e);
    }

    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        self.op.flops(x, y, size, table)
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        self.op.oracle(x, y, table)
    }
}

/// A wrong claim: of which op, in the samples of which family.
pub(super) struct Mutant {
    what: &'static str,
    family: &'static str,
    op: &'static str,
    lie: Lie,
    /// What it says of its kind, if that is the lie.
    kind: Option<fn(&Graph, Id) -> Kind>,
    /// Who must catch it: runs or the tests of claims, and for a claim that costs only bytes the latter alone, or what is
    /// communicated.
    by: &'static [By],
}

/// Caught by a claim, by whoever comes first on the way to a result, or both.
const WRONG: &[By] = &[By::Claims, By::Verifier, By::PlanVerifier, By::Preparation, By::Run, By::Result];

/// Right, but dearer: no run shows it.
const CAREFUL: &[By] = &[By::Claims];
const DEAR: &[By] = &[By::Bytes];

fn mutant(what: &'static str, family: &'static str, op: &'static str, lie: Lie) -> Mutant {
    Mutant { what, family, op, lie, kind: None, by: WRONG }
}

fn only(roles: &mut Roles, slots: &[usize]) {
    roles.linear = Linear::Only(slots.iter().copied().collect());
}

fn becomes(roles: &mut Roles, from: fn(Role) -> bool, to: Role) {
    for l in roles.loops.iter_mut().filter(|l| from(l.role)) {
        l.role = to;
    }
}

fn is_reduce(r: Role) -> bool {
    matches!(r, Role::Reduction(_))
}

fn is_whole(r: Role) -> bool {
    r == Role::NeedReplication
}

/// Every window becomes another, or none.
fn windows(roles: &mut Roles, f: fn(Window) -> Option<Window>) {
    for w in roles.loops.iter_mut().flat_map(|l| &mut l.windows) {
        *w = w.and_then(f);
    }
}

/// Faults of the ops under which a window slides.
fn sliding() -> Vec<Mutant> {
    vec![
        mutant("a convolution forgets its halo", "conv", "conv", |r| windows(r, |_| None)),
        mutant("a convolution's halo is one short behind", "conv", "conv", |r| {
            windows(r, |w| Some(Window { after: w.after - 1, ..w }))
        }),
        mutant("a transposed convolution's halo is one short before", "conv_transpose", "conv_input", |r| {
            windows(r, |w| Some(Window { before: w.before + w.div, ..w }))
        }),
        mutant("the kernel's gradient passes positions", "convolve", "conv_kernel", |r| {
            becomes(r, is_reduce, Role::Parallel)
        }),
        mutant("the kernel's gradient forgets its halo", "convolve", "conv_kernel", |r| windows(r, |_| None)),
        mutant("the taps of a convolution pass", "conv", "conv", |r| becomes(r, is_whole, Role::Parallel)),
        mutant("a convolution is linear in both", "conv", "conv", |r| r.linear = Linear::Jointly),
        mutant("a convolution denies unfinished sums", "conv", "conv", |r| r.linear = Linear::No).by(CAREFUL),
        mutant("a pool forgets its halo", "max_pool", "max_pool", |r| windows(r, |_| None)),
        mutant("the greatest under a window is linear", "max_pool", "max_pool", |r| only(r, &[0])),
        mutant("a tap of a pool forgets its halo", "argmax_pool", "argmax_pool", |r| windows(r, |_| None)),
        mutant("the way back of a pool forgets its halo", "unpool", "unpool", |r| windows(r, |_| None)),
    ]
}

/// Faults of the ops that read a dim from another place.
fn moving() -> Vec<Mutant> {
    vec![
        mutant("a shift needs one less before", "shift", "shift", |r| {
            windows(r, |w| Some(Window { before: w.before + 1, ..w }))
        }),
        mutant("a shift needs one less behind", "shift", "shift", |r| {
            windows(r, |w| Some(Window { after: w.after - 1, ..w }))
        }),
        mutant("a shift needs one less on both sides", "shift", "shift", |r| {
            windows(r, |w| Some(Window { before: w.before + 1, after: w.after - 1, ..w }))
        }),
        mutant("a shift needs what lies on the other side", "shift", "shift", |r| {
            windows(r, |w| Some(Window { before: -w.before, after: -w.after, ..w }))
        }),
        mutant("a shift needs its own block alone", "shift", "shift", |r| windows(r, |_| None)),
        mutant("a shift takes the blocks of a longer loop", "shift", "shift", |r| {
            windows(r, |w| Some(Window { of: w.of + 2, ..w }))
        }),
        mutant("a shift is linear in nothing", "shift", "shift", |r| r.linear = Linear::No).by(CAREFUL),
        mutant("a shift needs two more on both sides", "shift", "shift", |r| {
            windows(r, |w| Some(Window { before: w.before - 2, after: w.after + 2, ..w }))
        })
        .by(DEAR),
        mutant("padding begins where its operand does", "pad", "shift", |r| {
            windows(r, |w| Some(Window { before: 0, after: 0, ..w }))
        }),
        mutant("padding needs its own block alone", "pad", "shift", |r| windows(r, |_| None)),
        mutant("padding takes the blocks of its operand", "pad", "shift", |r| {
            windows(r, |w| Some(Window { of: w.of - 2, ..w }))
        }),
        mutant("padding with ones is linear", "pad", "shift", |r| only(r, &[0])),
        mutant("a slice begins at the first element", "slice", "shift", |r| {
            windows(r, |w| Some(Window { before: 0, after: 0, ..w }))
        }),
        mutant("a slice begins one behind", "slice", "shift", |r| {
            windows(r, |w| Some(Window { before: w.before + 1, after: w.after + 1, ..w }))
        }),
        mutant("a slice needs its own block alone", "slice", "shift", |r| windows(r, |_| None)),
    ]
}

/// Faults of the ops that read a dim from its end, join dims or cut them.
fn turning() -> Vec<Mutant> {
    vec![
        mutant("a reversal needs its own block alone", "reverse", "reverse", |r| windows(r, |_| None)),
        mutant("a reversal needs the block in its place", "reverse", "reverse", |r| {
            windows(r, |w| Some(Window { mul: 1, before: 0, after: 0, ..w }))
        }),
        mutant("a reversal needs one less at the end", "reverse", "reverse", |r| {
            windows(r, |w| Some(Window { after: w.after - 1, ..w }))
        }),
        mutant("a reversal is linear in nothing", "reverse", "reverse", |r| r.linear = Linear::No)
            .by(CAREFUL),
        mutant("all joined values begin at 0", "concat", "concat", |r| {
            windows(r, |w| Some(Window { before: 0, after: 0, ..w }))
        }),
        mutant("joined values begin one behind", "concat", "concat", |r| {
            windows(r, |w| Some(Window { before: w.before + 1, after: w.after + 1, ..w }))
        }),
        mutant("joined values need their own blocks alone", "concat", "concat", |r| windows(r, |_| None)),
        mutant("a joined value is linear in each alone", "concat", "concat", |r| {
            r.linear = Linear::EachAlone
        }),
        mutant("the first of joined values is read for the second", "concat", "concat", |r| {
            for l in &mut r.loops {
                if let [Some(a), Some(b), ..] = l.windows[..] {
                    (l.windows[0], l.windows[1]) = (Some(b), Some(a));
                }
            }
        }),
        mutant("a cut steps by one", "cut", "cut", |r| windows(r, |w| Some(Window { mul: 1, ..w }))),
        mutant("a cut needs the first of each row", "cut", "cut", |r| {
            windows(r, |w| Some(Window { after: 0, ..w }))
        }),
        mutant("a cut needs all but the first of each row", "cut", "cut", |r| {
            windows(r, |w| Some(Window { before: 1, ..w }))
        }),
        mutant("a cut counts whole rows of its operand", "cut", "cut", |r| {
            windows(r, |w| Some(Window { of: w.of * w.mul as usize, ..w }))
        }),
        mutant("a cut needs its own block alone", "cut", "cut", |r| windows(r, |_| None)),
        mutant("a join steps by one", "join", "join", |r| windows(r, |w| Some(Window { div: 1, ..w }))),
        mutant("a join needs no row that begins before", "join", "join", |r| {
            windows(r, |w| Some(Window { before: 0, ..w }))
        }),
        mutant("a join needs no row that ends behind", "join", "join", |r| {
            windows(r, |w| Some(Window { after: w.after - w.div + 1, ..w }))
        }),
        mutant("a join counts rows", "join", "join", |r| {
            windows(r, |w| Some(Window { of: w.of / w.div as usize, ..w }))
        }),
        mutant("a join needs its own block alone", "join", "join", |r| windows(r, |_| None)),
        mutant("the inner of joined dims pass", "join", "join", |r| becomes(r, is_whole, Role::Parallel)),
    ]
}

fn folding() -> Vec<Mutant> {
    vec![
        mutant("a pass of an attention folds by product", "attention", "attention_pass", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Prod))
        }),
        mutant("the width of an attention passes", "attention", "attention_pass", |r| {
            becomes(r, is_whole, Role::Parallel)
        }),
        mutant("the width of a gradient of attention passes", "attention", "attention_grad", |r| {
            becomes(r, is_whole, Role::Parallel)
        }),
        mutant("a gradient of attention is linear in the keys", "attention", "attention_grad", |r| {
            only(r, &[1])
        }),
        mutant("a running sum passes its dim", "cumsum", "cumsum", |r| becomes(r, is_whole, Role::Parallel)),
        mutant("a running sum is linear in nothing", "cumsum", "cumsum", |r| r.linear = Linear::No)
            .by(CAREFUL),
        mutant("the positions of the greatest pass", "top_k", "top_k", |r| {
            becomes(r, is_whole, Role::Parallel)
        }),
        mutant("the positions of the greatest are linear", "top_k", "top_k", |r| only(r, &[0])),
        mutant("a product folds by sum", "prod", "prod", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Sum))
        }),
        mutant("a product folds by greatest", "prod", "prod", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Max));
        }),
        mutant("a product passes its dim", "prod", "prod", |r| becomes(r, is_reduce, Role::Parallel)),
        mutant("a product over a dim is linear", "prod", "prod", |r| only(r, &[0])),
        mutant("all folds by any", "all", "all", |r| becomes(r, is_reduce, Role::Reduction(Monoid::Or))),
        mutant("any folds by all", "any", "any", |r| becomes(r, is_reduce, Role::Reduction(Monoid::And))),
        mutant("any passes its dim", "any", "any", |r| becomes(r, is_reduce, Role::Parallel)),
        mutant("argmin folds by argmax", "argmin", "argmin", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::ArgMax));
        }),
        mutant("argmin passes its dim", "argmin", "argmin", |r| becomes(r, is_reduce, Role::Parallel)),
        mutant("a sum over a dim is linear in nothing", "sum", "sum", |r| r.linear = Linear::No).by(CAREFUL),
        mutant("a sum needs its dims whole", "sum", "sum", |r| becomes(r, is_reduce, Role::NeedReplication))
            .by(DEAR),
        mutant("a product needs its summed dims whole", "*", "contract", |r| {
            becomes(r, is_reduce, Role::NeedReplication)
        })
        .by(DEAR),
        mutant("a shift needs its dim whole", "shift", "shift", |r| {
            for l in r.loops.iter_mut().filter(|l| l.windows.iter().any(Option::is_some)) {
                l.role = Role::NeedReplication;
            }
        })
        .by(DEAR),
    ]
}

fn linear() -> Vec<Mutant> {
    vec![
        mutant("exp is linear", "exp", "exp", |r| only(r, &[0])),
        mutant("relu is linear", "relu", "relu", |r| only(r, &[0])),
        mutant("abs is linear", "abs", "abs", |r| only(r, &[0])),
        mutant("a cast to integers is linear", "cast", "cast", |r| only(r, &[0])),
        mutant("a sum is linear in each operand alone", "+", "add", |r| r.linear = Linear::EachAlone),
        mutant("a product is linear in all jointly", "*", "contract", |r| r.linear = Linear::Jointly),
        mutant("a quotient is linear in both", "/", "/", |r| r.linear = Linear::EachAlone),
        mutant("a power is linear in its base", "pow", "pow", |r| only(r, &[0])),
        mutant("the greater of two is linear jointly", "max", "max", |r| r.linear = Linear::Jointly),
        mutant("a choice is linear in its branches", "where", "where", |r| only(r, &[1, 2])),
        mutant(
            "the gradient of cross-entropy is linear in the logits",
            "cross_entropy_grad",
            "cross_entropy_grad",
            |r| {
                only(r, &[0, 2]);
            },
        ),
        mutant("the greatest along a dim is linear", "max", "max", |r| only(r, &[0])),
        mutant("softmax is linear", "softmax", "softmax", |r| only(r, &[0])),
        mutant("a lookup is linear in table and index jointly", "lookup", "lookup", |r| {
            r.linear = Linear::Jointly
        }),
    ]
}

fn basic() -> Vec<Mutant> {
    vec![
        mutant("greatest folds by sum", "max", "max", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Sum))
        }),
        mutant("least folds by greatest", "min", "min", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Max))
        }),
        mutant("a sum folds by greatest", "sum", "sum", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Max))
        }),
        mutant("argmax folds by argmin", "argmax", "argmax", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::ArgMin))
        }),
        mutant("argmax folds by sum", "argmax", "argmax", |r| {
            becomes(r, is_reduce, Role::Reduction(Monoid::Sum))
        }),
        mutant("the summed dim of a product passes", "*", "contract", |r| {
            becomes(r, is_reduce, Role::Parallel)
        }),
        mutant("softmax passes its dim", "softmax", "softmax", |r| becomes(r, is_whole, Role::Parallel)),
        mutant("log_softmax passes its dim", "log_softmax", "log_softmax", |r| {
            becomes(r, is_whole, Role::Parallel);
        }),
        mutant("logsumexp folds by sum", "logsumexp", "logsumexp", |r| {
            becomes(r, is_whole, Role::Reduction(Monoid::Sum));
        }),
        mutant("cross-entropy folds by sum", "cross_entropy", "cross_entropy", |r| {
            becomes(r, is_whole, Role::Reduction(Monoid::Sum));
        }),
        mutant(
            "the gradient of cross-entropy passes its dim",
            "cross_entropy_grad",
            "cross_entropy_grad",
            |r| {
                becomes(r, is_whole, Role::Parallel);
            },
        ),
        mutant("the dim of a lookup passes", "lookup", "lookup", |r| becomes(r, is_reduce, Role::Parallel)),
        mutant("positions along a dim are summed", "in_range", "in_range", |r| {
            becomes(r, |role| role == Role::Parallel, Role::Reduction(Monoid::Sum))
        }),
        mutant("positions take those of another dim", "in_range", "in_range", |r| {
            for l in &mut r.loops {
                l.on[0] = None;
            }
        }),
        mutant("new positions pass", "dynamic_update_slice", "dynamic_update_slice", |r| {
            becomes(r, is_whole, Role::Parallel);
        }),
        mutant("what is scattered passes", "scatter_add", "scatter_add", |r| {
            becomes(r, is_reduce, Role::Parallel)
        }),
        mutant("a product forgets a dim of its second operand", "*", "contract", |r| {
            for l in r.loops.iter_mut().filter(|l| l.on.len() > 1) {
                l.on[1] = None;
            }
        }),
        mutant("a repeated value has the repeated dim", "expand", "expand", |r| {
            for l in &mut r.loops {
                l.on[0] = Some(l.dim);
            }
        }),
    ]
}

pub(super) fn mutants() -> Vec<Mutant> {
    let mut out = linear();
    out.extend(basic());
    out.push(Mutant {
        kind: Some(|g, id| match g.node(id).op.kind() {
            Kind::Rename { from, to } => {
                let other = g.ty(id).dims.iter().copied().find(|d| *d != to);
                Kind::Rename { from: other.unwrap_or(from), to }
            }
            kind => kind,
        }),
        ..mutant("a rename takes another dim", "rename", "rename", |_| {})
    });
    out.push(Mutant {
        kind: Some(|_, _| Kind::Rematerializable(Source::Position)),
        ..mutant("a function of a value can be made anywhere", "tanh", "tanh", |_| {})
    });
    for (what, family, op) in [
        ("a sum of values denies unfinished sums", "+", "add"),
        ("a product denies unfinished sums", "*", "contract"),
        ("a mask denies unfinished sums", "mask", "mask"),
    ] {
        out.push(mutant(what, family, op, |r| r.linear = Linear::No).by(CAREFUL));
    }
    out.extend(moving());
    out.extend(turning());
    out.extend(folding());
    out.extend(sliding());
    out
}

impl Mutant {
    /// Puts the lie into the values that a sample built.
    fn put(&self, b: &mut Built) {
        for id in b.graph.ids().filter(|id| *id >= b.first) {
            if b.graph.node(id).op.name() == self.op {
                let kind = self.kind.map(|f| f(&b.graph, id));
                let op = b.graph.node(id).op.clone();
                b.graph.nodes[id].op = Arc::new(Broken { op, lie: self.lie, kind });
            }
        }
    }

    fn by(self, by: &'static [By]) -> Self {
        Mutant { by, ..self }
    }

    /// What the tests of claims say, what the runs say, and how communication differs if it must.
    fn findings(&self, subjects: &[Subject], devices: &mut Devices) -> Vec<(By, String)> {
        let prefix = format!("{}, ", self.family);
        let mut found: Vec<(By, String)> = Vec::new();
        for s in subjects.iter().filter(|s| s.name.starts_with(&prefix)) {
            let mut note = |by: By, what: &mut dyn FnMut() -> Option<String>| {
                if found.iter().all(|f| f.0 != by) {
                    found.extend(what().map(|what| (by, what)));
                }
            };
            note(By::Claims, &mut || {
                let mut b = build(s, &vec![Arrival::Input; s.inputs.len()], 7).ok()?;
                self.put(&mut b);
                all_claims(&b.graph, &b.bound, 11).err()
            });
            note(By::Result, &mut || law(s, devices, &|b| self.put(b)).err());
            if self.by == DEAR {
                note(By::Bytes, &mut || self.dearer(s));
            }
        }
        for f in found.iter_mut().filter(|f| f.0 == By::Result) {
            f.0 = who(&f.1);
        }
        found
    }

    /// The first way to store parameters in which something else is communicated than for the op as it is.
    fn dearer(&self, s: &Subject) -> Option<String> {
        let arrivals = vec![Arrival::Param; s.inputs.len()];
        let (right, mut wrong) = (build(s, &arrivals, 7).ok()?, build(s, &arrivals, 7).ok()?);
        self.put(&mut wrong);
        ways_of_params(&right.dims).into_iter().find_map(|w| {
            let collectives = |b: &Built| {
                let step = step(&b.graph, &[("y", b.value)]);
                plan(&step, &layout(&w.mesh, w.rules.clone()), true).ok().map(|p| communication(&p.plan))
            };
            let (now, before) = (collectives(&wrong)?, collectives(&right)?);
            (now != before).then(|| format!("{now:?} instead of {before:?}"))
        })
    }
}

/// Who ended a run, from what the law says of it.
fn who(says: &str) -> By {
    match says {
        s if s.contains("internal error: after `partition`") => By::Verifier,
        s if s.contains("internal error") => By::PlanVerifier,
        s if s.contains("invalid plan") => By::Preparation,
        s if s.contains("(plan step") => By::Run,
        _ => By::Result,
    }
}

#[test]
fn every_broken_role_is_caught() {
    let subjects = subjects();
    let mut devices = Devices::default();
    let mut rows = Vec::new();
    for m in mutants() {
        let found = m.findings(&subjects, &mut devices);
        let found = if found.is_empty() { vec![None] } else { found.into_iter().map(Some).collect() };
        rows.push(Row { what: m.what, expected: m.by, found });
    }
    judge("roles", &rows);
}
