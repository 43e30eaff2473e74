//! Roles broken on purpose: each must be caught by a law. It is the test of the tests.

use crate::devices::Devices;
use crate::linear::all_claims;
use crate::split::law;
use crate::subject::{Arrival, Built, Subject, build, subjects};
use meshwright_ops::{Emit, ExpandWhen, F64Tensor, Graph, Id, Kind, Linear, Op, OpError, Role, Roles, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, DimNames, Expr, Monoid, Window};
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

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.op.fmt(f)
    }
}

impl Op for Broken {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn infer(&self, x: &[&Type], names: &DimNames) -> Result<Type, OpError> {
        self.op.infer(x, names)
    }

    fn roles(&self, x: &[&Type], y: &Type) -> Roles {
        let mut roles = self.op.roles(x, y);
        (self.lie)(&mut roles);
        roles
    }

    fn kind(&self) -> Kind {
        self.kind.clone().unwrap_or_else(|| self.op.kind())
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        self.op.vjp(g, x, y, dy, need)
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], types: &[&Type], y: &Type) -> Option<Reg> {
        self.op.scalar(e, x, types, y)
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Never
    }

    fn lower(&self, e: &mut dyn Emit) {
        self.op.lower(e);
    }

    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64) -> u64 {
        self.op.flops(x, y, size)
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type) -> F64Tensor {
        self.op.oracle(x, y)
    }
}

/// A wrong claim: of which op, in the samples of which family.
struct Mutant {
    what: &'static str,
    family: &'static str,
    op: &'static str,
    lie: Lie,
    /// What it says of its kind, if that is the lie.
    kind: Option<fn(&Graph, Id) -> Kind>,
    /// Whether a run must catch it; false for a claim that costs only bytes, which the tests of claims alone can catch.
    shows: bool,
}

fn mutant(what: &'static str, family: &'static str, op: &'static str, lie: Lie) -> Mutant {
    Mutant { what, family, op, lie, kind: None, shows: true }
}

fn only(roles: &mut Roles, slots: &[usize]) {
    roles.linear = Linear::Only(slots.iter().copied().collect());
}

fn becomes(roles: &mut Roles, from: fn(Role) -> bool, to: Role) {
    for l in roles.loops.iter_mut().filter(|l| from(l.role)) {
        l.role = to;
    }
}

fn windows(roles: &mut Roles, to: fn(Window) -> Option<Window>) {
    for w in roles.loops.iter_mut().flat_map(|l| &mut l.windows) {
        *w = w.and_then(to);
    }
}

fn is_reduce(r: Role) -> bool {
    matches!(r, Role::Reduce(_))
}

fn is_whole(r: Role) -> bool {
    r == Role::Whole
}

fn mutants() -> Vec<Mutant> {
    let mut out = vec![
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
        mutant("greatest folds by sum", "max", "max", |r| becomes(r, is_reduce, Role::Reduce(Monoid::Sum))),
        mutant("least folds by greatest", "min", "min", |r| becomes(r, is_reduce, Role::Reduce(Monoid::Max))),
        mutant("a sum folds by greatest", "sum", "sum", |r| becomes(r, is_reduce, Role::Reduce(Monoid::Max))),
        mutant("argmax folds by argmin", "argmax", "argmax", |r| {
            becomes(r, is_reduce, Role::Reduce(Monoid::ArgMin))
        }),
        mutant("argmax folds by sum", "argmax", "argmax", |r| {
            becomes(r, is_reduce, Role::Reduce(Monoid::Sum))
        }),
        mutant("the summed dim of a product passes", "*", "contract", |r| becomes(r, is_reduce, Role::Pass)),
        mutant("softmax passes its dim", "softmax", "softmax", |r| becomes(r, is_whole, Role::Pass)),
        mutant("log_softmax passes its dim", "log_softmax", "log_softmax", |r| {
            becomes(r, is_whole, Role::Pass);
        }),
        mutant("logsumexp folds by sum", "logsumexp", "logsumexp", |r| {
            becomes(r, is_whole, Role::Reduce(Monoid::Sum));
        }),
        mutant("cross-entropy folds by sum", "cross_entropy", "cross_entropy", |r| {
            becomes(r, is_whole, Role::Reduce(Monoid::Sum));
        }),
        mutant(
            "the gradient of cross-entropy passes its dim",
            "cross_entropy_grad",
            "cross_entropy_grad",
            |r| {
                becomes(r, is_whole, Role::Pass);
            },
        ),
        mutant("the dim of a lookup passes", "lookup", "lookup", |r| becomes(r, is_reduce, Role::Pass)),
        mutant("what is scattered passes", "scatter_add", "scatter_add", |r| {
            becomes(r, is_reduce, Role::Pass)
        }),
        mutant("a convolution forgets its halo", "conv", "conv", |r| windows(r, |_| None)),
        mutant("a convolution's halo is one short behind", "conv", "conv", |r| {
            windows(r, |w| Some(Window { after: w.after - 1, ..w }))
        }),
        mutant("a transposed convolution's halo is one short before", "conv_transpose", "conv_input", |r| {
            windows(r, |w| Some(Window { before: w.before + w.div, ..w }))
        }),
        mutant("the kernel's gradient passes positions", "convolve", "conv_kernel", |r| {
            becomes(r, is_reduce, Role::Pass)
        }),
        mutant("the kernel's gradient forgets its halo", "convolve", "conv_kernel", |r| windows(r, |_| None)),
        mutant("the taps of a convolution pass", "conv", "conv", |r| becomes(r, is_whole, Role::Pass)),
        mutant("a convolution is linear in both", "conv", "conv", |r| r.linear = Linear::Jointly),
        mutant("a pool forgets its halo", "max_pool", "max_pool", |r| windows(r, |_| None)),
        mutant("the greatest under a window is linear", "max_pool", "max_pool", |r| only(r, &[0])),
        mutant("a tap of a pool forgets its halo", "pool_tap", "pool_tap", |r| windows(r, |_| None)),
        mutant("the way back of a pool forgets its halo", "pool_spread", "pool_spread", |r| {
            windows(r, |_| None)
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
    ];
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
        kind: Some(|_, _| Kind::Generator),
        ..mutant("a function of a value can be made anywhere", "tanh", "tanh", |_| {})
    });
    for (what, family, op) in [
        ("a sum of values denies unfinished sums", "+", "add"),
        ("a product denies unfinished sums", "*", "contract"),
        ("a mask denies unfinished sums", "mask", "mask"),
        ("a convolution denies unfinished sums", "conv", "conv"),
    ] {
        out.push(Mutant { shows: false, ..mutant(what, family, op, |r| r.linear = Linear::No) });
    }
    out
}

impl Mutant {
    /// Puts the lie into the values that a sample built.
    fn put(&self, b: &mut Built) {
        for k in b.first.0 as usize..b.graph.nodes.len() {
            if b.graph.nodes[k].op.name() == self.op {
                let kind = self.kind.map(|f| f(&b.graph, Id(k as u32)));
                let op = b.graph.nodes[k].op.clone();
                b.graph.nodes[k].op = Arc::new(Broken { op, lie: self.lie, kind });
            }
        }
    }

    /// What the tests of claims say, and what the runs say.
    fn findings(&self, subjects: &[Subject], devices: &mut Devices) -> (Option<String>, Option<String>) {
        let prefix = format!("{}, ", self.family);
        let (mut claim, mut run) = (None, None);
        for s in subjects.iter().filter(|s| s.name.starts_with(&prefix)) {
            let arrivals = vec![Arrival::Input; s.inputs.len()];
            claim = claim.or_else(|| {
                let mut b = build(s, &arrivals, 7).ok()?;
                self.put(&mut b);
                all_claims(&b.graph, &b.bound, 11).err()
            });
            run = run.or_else(|| law(s, devices, &|b| self.put(b)).err());
        }
        (claim, run)
    }
}

#[test]
fn every_broken_role_is_caught() {
    let subjects = subjects();
    let mut devices = Devices::default();
    let mut missed = Vec::new();
    for m in mutants() {
        let (claim, run) = m.findings(&subjects, &mut devices);
        let text = |found: &Option<String>| {
            found.as_ref().map_or("-".into(), |f| f.chars().take(150).collect::<String>())
        };
        crate::report(&format!("{}\n    claims: {}\n    runs:   {}", m.what, text(&claim), text(&run)));
        let caught =
            if m.shows { claim.is_some() || run.is_some() } else { claim.is_some() && run.is_none() };
        if !caught {
            missed.push(m.what);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
