//! Loops: random programs with loops, in each other and with recurrences, under random layouts equal the same programs with
//! every iteration written out.
//!
//! 120 seeds in a normal run, 4,000 with `LONG=1`; `SEED=n` runs one and prints it.

use crate::fuzz::{Random, count_trials};
use crate::rng::Rng;
use crate::walk::Bound;
use meshwright_core::Optimizer;
use meshwright_core::optimizers::{self, Accepts, Choices, Chosen};
use meshwright_core::program::{ClipSpec, LossDecl, ParamDecl, Program, TrainSpec};
use meshwright_diag::Span;
use meshwright_ops::*;
use meshwright_plan::{DType, Dim, Dims, Init, InputDecl, Monoid, Phase};

struct Maker {
    g: Graph,
    rng: Rng,
    bound: Bound,
    /// Dims of the data, and of loops.
    dims: Vec<Dim>,
    loops: Vec<Dim>,
    params: Vec<ParamDecl>,
    /// Values that may be read, with all scopes around.
    pool: Vec<Id>,
    /// The loops that are open.
    open: Vec<RepeatId>,
}

/// The most elements of a value.
const ELEMENTS: usize = 300;

/// The program of a seed.
fn random(seed: u64) -> Random {
    let mut rng = Rng::new(seed ^ 0x10_0B5);
    let mut names = Dims::default();
    let dims: Vec<Dim> = ["batch", "d", "e", "f"].iter().map(|n| names.add(*n, 1 + rng.below(6))).collect();
    let loops: Vec<Dim> = ["l", "m", "n"].iter().map(|n| names.add(*n, 1 + rng.below(4))).collect();
    let mut m = Maker {
        g: Graph::new(names),
        rng,
        bound: Bound::new(),
        dims,
        loops,
        params: Vec::new(),
        pool: Vec::new(),
        open: Vec::new(),
    };
    let (batch, d) = (m.dims[0], m.dims[1]);
    m.at("", "x");
    let decl = InputDecl { name: "x".into(), dims: vec![batch, d], dtype: DType::F64, range: None };
    let leaf = InputOpKind::Input { name: "x".into() };
    let x = m.leaf(leaf, vec![batch, d]);
    m.pool.push(x);
    for _ in 0..1 + m.rng.below(2) {
        let p = m.param();
        m.pool.push(p);
    }
    m.statements(3);
    let first = m.rng.pick(&m.pool.clone());
    let watched = if m.g.node(first).scope.is_none() { first } else { x };
    m.finish(seed, (decl, x, Span::default()), watched)
}

impl Maker {
    fn at(&mut self, path: &str, name: &str) {
        self.g.cursor = Origin { path: path.into(), name: name.into(), ..Origin::default() };
    }

    fn leaf(&mut self, leaf: InputOpKind, dims: Vec<Dim>) -> Id {
        let value = F64Tensor::build(&self.g.dims, &dims, |_| self.rng.float(-1.2, 1.2));
        let scope = self.g.scope.take();
        let id = self.g.op(Leaf { leaf, ty: Type::new(DType::F64, dims) }, &[]);
        self.g.scope = scope;
        self.bound.insert(id, value);
        id
    }

    /// A parameter, with the dims of the loops that are open; in a body its slice.
    fn param(&mut self) -> Id {
        let path = format!("l{}.w", self.params.len());
        self.at(&path, &path);
        self.g.cursor.class = Class::Param;
        let mut dims: Vec<Dim> = self.open.iter().map(|of| self.g.repeats[*of].dim).collect();
        let stack = dims.len();
        let mut own = self.rng.some(&self.dims[1..]);
        own.truncate(2);
        dims.extend(own);
        let id = self.leaf(InputOpKind::Param { path: path.clone(), init: Init::Constant(0.0) }, dims);
        self.params.push(ParamDecl { stack, ..ParamDecl::new(path, id, Span::default()) });
        self.sliced(id)
    }

    fn sliced(&mut self, mut id: Id) -> Id {
        for of in self.open.clone() {
            if self.g.ty(id).has(self.g.repeats[of].dim) {
                id = self.g.cross(of, Crossing::Slice, id);
            }
        }
        id
    }

    fn any(&mut self) -> Id {
        let x = self.rng.pick(&self.pool.clone());
        self.sliced(x)
    }

    fn dims_of(&self, x: Id) -> Vec<Dim> {
        self.g.ty(x).dims.clone()
    }

    /// A function of some values, squeezed.
    fn value(&mut self) -> Id {
        let (a, b) = (self.any(), self.any());
        let all = union([self.g.ty(a), self.g.ty(b)]);
        let mut y = match self.rng.below(5) {
            0 | 1 => {
                let keep: Vec<Dim> = all.iter().copied().filter(|_| !self.rng.one_in(3)).collect();
                if self.g.dims.elements(&keep) > ELEMENTS {
                    a
                } else {
                    self.g.op(Contract { out: keep }, &[a, b])
                }
            }
            2 if self.g.dims.elements(&all) <= ELEMENTS => self.g.sum_of(&[a, b]),
            3 => {
                let dims = self.dims_of(a);
                match dims.first().copied() {
                    Some(d) if self.rng.one_in(2) => {
                        self.g.op(Reduce { monoid: Monoid::Sum, dims: vec![d] }, &[a])
                    }
                    Some(d) => self.g.op(Mean { dims: vec![d] }, &[a]),
                    None => a,
                }
            }
            _ => {
                let dims = self.dims_of(a);
                let Some(d) = dims.first().copied() else { return self.g.unary(&TANH, a) };
                let (index, two) = (self.g.index(d), self.g.constant(2.0, DType::I32));
                let low = self.g.binary("<", index, two);
                self.g.masked(low, a)
            }
        };
        if self.rng.one_in(4) {
            y = self.g.scaled(y, 0.5);
        }
        self.g.unary(&TANH, y)
    }

    fn statements(&mut self, depth: usize) {
        let count = 1 + self.rng.below(4);
        for i in 0..count {
            let path = format!("l{}", self.rng.below(4));
            self.at(&path, &format!("v{i}"));
            match self.rng.below(6) {
                0 if !self.open.is_empty() => {
                    let p = self.param();
                    self.pool.push(p);
                }
                1..=3 if depth > 0 && self.open.len() < 2 => self.repeat(depth),
                _ => {
                    let y = self.value();
                    self.pool.push(y);
                }
            }
        }
        if self.open.is_empty() && self.g.repeats.is_empty() {
            self.repeat(depth);
        }
    }

    fn repeat(&mut self, depth: usize) {
        let busy: Vec<Dim> = self.open.iter().map(|of| self.g.repeats[*of].dim).collect();
        let free: Vec<Dim> = self.loops.iter().copied().filter(|d| !busy.contains(d)).collect();
        let dim = self.rng.pick(&free);
        let mut starts = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let x = self.any();
            if !self.g.ty(x).has(dim) {
                starts.push(x);
            }
        }
        let reverse = self.rng.one_in(4);
        let of = self.g.repeat(dim, reverse);
        let carries: Vec<Id> = starts.iter().map(|x| self.g.carry(of, *x)).collect();
        let around = (self.g.scope.replace(of), self.pool.len());
        self.open.push(of);
        self.pool.extend(&carries);
        let p = self.param();
        self.pool.push(p);
        self.statements(depth - 1);
        self.at("l1", "next");
        let mut nexts = Vec::new();
        for c in &carries {
            // With the dims of the carry, whatever it is made of.
            let dims = self.dims_of(*c);
            let y = self.value();
            let kept: Vec<Dim> = self.dims_of(y).into_iter().filter(|d| dims.contains(d)).collect();
            let y = self.g.contract_to(&[y], &kept);
            let y = self.g.unary(&TANH, y);
            let next = match self.rng.below(4) {
                0 => self.g.expanded(y, &dims),
                1 => self
                    .rng
                    .pick(&carries.iter().copied().filter(|o| self.same_dims(*o, *c)).collect::<Vec<_>>()),
                _ => {
                    let sum = self.g.sum_of(&[*c, y]);
                    self.g.scaled(sum, 0.7)
                }
            };
            nexts.push(next);
        }
        let inner: Vec<Id> = self.pool.split_off(around.1);
        let inner: Vec<Id> = inner.into_iter().filter(|v| self.g.node(*v).scope == Some(of)).collect();
        self.open.pop();
        self.g.scope = around.0;
        for (c, next) in carries.iter().zip(nexts) {
            self.g.carry_on(of, *c, next);
            let last = self.g.cross(of, Crossing::Final, next);
            self.pool.push(last);
        }
        if self.rng.one_in(2) {
            let v = self.rng.pick(&inner);
            let out = self.g.cross(of, Crossing::Stack, v);
            if self.g.dims.elements(&self.dims_of(out)) <= ELEMENTS {
                self.pool.push(out);
            }
        }
        if self.rng.one_in(2) {
            let v = self.rng.pick(&inner);
            let out = self.g.cross(of, Crossing::Accumulate, v);
            let out = self.g.unary(&TANH, out);
            self.pool.push(out);
        }
    }

    fn same_dims(&self, a: Id, b: Id) -> bool {
        let (a, b) = (self.dims_of(a), self.dims_of(b));
        a.len() == b.len() && a.iter().all(|d| b.contains(d))
    }

    fn finish(mut self, seed: u64, input: (InputDecl, Id, Span), watched: Id) -> Random {
        self.at("", "loss");
        let mut terms = Vec::new();
        for x in self.pool.clone() {
            let squared = if self.rng.one_in(2) { self.g.product(&[x, x]) } else { x };
            let dims = self.dims_of(squared);
            terms.push(if dims.is_empty() { squared } else { self.g.op(Mean { dims }, &[squared]) });
        }
        let loss = self.g.sum_of(&terms);
        self.g.cursor = Origin { phase: Phase::Update, ..Origin::default() };
        let name = ["sgd", "adam", "adafactor", "lamb"][self.rng.below(4)];
        let optimizer = self.optimizer(name);
        let clip = self.rng.one_in(2).then(|| ClipSpec::GlobalNorm(self.rng.float(0.05, 2.0)));
        let minimize = LossDecl { name: "loss".into(), id: loss, span: Span::default(), better: None };
        let program = Program {
            named: Default::default(),
            model: format!("loops {seed}"),
            graph: self.g,
            float: DType::F64,
            model_consts: Default::default(),
            consts: Default::default(),
            declarations: Default::default(),
            dim_spans: Default::default(),
            inputs: vec![input],
            params: self.params,
            states: Vec::new(),
            losses: vec![minimize.clone()],
            metrics: Vec::new(),
            outputs: Vec::new(),
            train: Some(TrainSpec { clip, ..TrainSpec::new(minimize, optimizer) }),
        };
        Random { program, bound: self.bound, watched }
    }

    fn optimizer(&mut self, name: &str) -> Optimizer {
        let def = optimizers::find(name).expect("an optimizer of the list");
        let mut chosen = Choices::default();
        for s in def.settings {
            let value = match s.name {
                "lr" => Some(0.05),
                "eps" | "eps1" => Some(1e-2),
                "weight_decay" if name == "lamb" => Some(0.01),
                _ => None,
            };
            let value = match (s.accepts, value) {
                (Accepts::Flag(default), _) => Chosen::Flag(default),
                (Accepts::Count(_), _) => Chosen::Count(self.rng.below(4)),
                (Accepts::ScalarOrOff(..), None) => Chosen::Off,
                (Accepts::Scalar(_, default) | Accepts::ScalarOrOff(_, default), v) => {
                    let v = v.or(default).expect("a default");
                    Chosen::Scalar(self.g.constant(v, DType::F64), Some(v))
                }
            };
            chosen.choose(s.name, value, true);
        }
        Optimizer { def, chosen }
    }
}

/// Seeds that found a fault: residuals ended in the first of several runs of a loop that reads them.
const FOUND: [u64; 4] = [1_553, 2_409, 3_337, 3_660];

#[test]
fn loops_equal_their_iterations_written_out() {
    let count = if std::env::var_os("LONG").is_some() { 4_000 } else { 120 };
    count_trials("programs with loops", (0..count).chain(FOUND), random);
}
