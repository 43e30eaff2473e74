//! Random training programs: layers of typed ops over named dims, a scalar loss, an optimizer.

use super::SEED;
use crate::oracle::Bound;
use crate::rng::Rng;
use meshwright_core::Optimizer;
use meshwright_core::program::{ClipSpec, LossDecl, ParamDecl, Program, StateDecl, TrainSpec};
use meshwright_core::step::optimizers::{self, Accepts, Choices, Chosen};
use meshwright_diag::Span;
use meshwright_ops::*;
use meshwright_plan::random::{Distribution, Key, draw};
use meshwright_plan::{Arithmetic, DType, Dim, Dims, Init, InputDecl, Monoid, Part, Phase, SlidingWindow};
use meshwright_sorted::SortedSet;

/// A program with values for its inputs and parameters.
pub(crate) struct Random {
    pub(crate) program: Program,
    pub(crate) bound: Bound,
    /// Some value of it.
    pub(crate) watched: Id,
}

/// The most elements of a value, and of the loop nest of a product.
const ELEMENTS: usize = 400;
const NEST: usize = 2_500;
/// Values beyond this are squeezed, so that no program blows up rounding.
const LARGE: f64 = 6.0;

/// Elements nearer to each other than this may be equal but for rounding.
pub(super) const APART: f64 = 1e-9;

struct Maker {
    g: Graph,
    rng: Rng,
    bound: Bound,
    /// The value of each node, for the parameters' first values.
    values: Vec<F64Tensor>,
    dims: Vec<Dim>,
    /// Two names for dims of one size.
    twins: Vec<(Dim, Dim)>,
    class: Dim,
    batch: Dim,
    pool: Vec<Id>,
    indices: Vec<Id>,
    params: Vec<ParamDecl>,
    states: Vec<StateDecl>,
    inputs: Vec<(InputDecl, Id, Span)>,
}

/// The program of a seed.
pub(crate) fn random(seed: u64) -> Random {
    let mut rng = Rng::new(seed);
    let mut names = Dims::default();
    let batch = names.add("batch", 1 + rng.below(7));
    let class = names.add("class", 2 + rng.below(6));
    let mut dims = vec![batch, class];
    for name in ["d", "e", "f"] {
        dims.push(names.add(name, 1 + rng.below(7)));
    }
    let mut twin = |of: Dim, name: &str| (of, names.add(name, names.size(of)));
    let twins = vec![twin(dims[2], "d2"), twin(batch, "batch2")];
    let mut m = Maker {
        g: Graph::new(names),
        rng,
        bound: Bound::new(),
        values: Vec::new(),
        dims,
        twins,
        class,
        batch,
        pool: Vec::new(),
        indices: Vec::new(),
        params: Vec::new(),
        states: Vec::new(),
        inputs: Vec::new(),
    };
    m.leaves();
    let ops = 5 + m.rng.below(12);
    for i in 0..ops {
        m.at(&format!("l{}", i / 3), &format!("v{i}"));
        if let Some(y) = m.op() {
            let y = m.tamed(y);
            m.pool.push(y);
        }
    }
    m.finish(seed)
}

impl Maker {
    fn at(&mut self, path: &str, name: &str) {
        self.g.cursor = Origin { path: path.into(), name: name.into(), ..Origin::default() };
    }

    fn leaf(&mut self, leaf: InputOpKind, ty: Type) -> Id {
        let (low, high) = ty.range.map_or((-1.5, 1.5), |d| (0.0, self.g.dims.size(d) as f64));
        let value = F64Tensor::build(&self.g.dims, &ty.dims, |_| {
            let v = self.rng.float(low, high);
            if ty.dtype.is_float() { v } else { v.floor() }
        });
        let id = self.g.op(InputOp { input: leaf, ty }, &[]);
        self.bound.insert(id, value);
        id
    }

    fn input(&mut self, name: &str, dtype: DType, dims: Vec<Dim>, range: Option<Dim>) -> Id {
        self.at("", name);
        let decl = InputDecl { name: name.into(), dims: dims.clone(), dtype, range };
        let id = self.leaf(InputOpKind::Input { name: name.into() }, Type { dtype, dims, range });
        self.inputs.push((decl, id, Span::default()));
        id
    }

    fn param(&mut self, dims: Vec<Dim>) -> Id {
        let path = format!("l{}.w", self.params.len());
        self.at(&path, &path);
        self.g.cursor.class = Class::Param;
        let leaf = InputOpKind::Param { path: path.clone(), init: Init::Constant(0.0) };
        let id = self.leaf(leaf, Type::new(DType::F64, dims));
        let (frozen, no_decay) = (self.rng.one_in(10), self.rng.one_in(4));
        self.params.push(ParamDecl { frozen, no_decay, ..ParamDecl::new(path, id, Span::default()) });
        id
    }

    /// A state, whose next value is chosen at the end.
    fn state(&mut self, dims: Vec<Dim>) -> Id {
        let path = format!("l{}.s", self.states.len());
        self.at(&path, &path);
        self.g.cursor.class = Class::Param;
        let leaf = InputOpKind::State { path: path.clone(), init: Init::Constant(0.7) };
        let id = self.g.op(InputOp { input: leaf, ty: Type::new(DType::F64, dims.clone()) }, &[]);
        self.bound.insert(id, F64Tensor::build(&self.g.dims, &dims, |_| 0.7));
        self.states.push(StateDecl { path, id, span: Span::default(), next: None });
        id
    }

    /// For most states the mean of some value that has its dims, or else a part of itself.
    fn next_states(&mut self) {
        for i in 0..self.states.len() {
            if self.rng.one_in(6) {
                continue;
            }
            let (id, path) = (self.states[i].id, self.states[i].path.clone());
            self.at(&path, "next");
            let dims = self.dims_of(id);
            let fits = |x: &Id| dims.iter().all(|d| self.g.ty(*x).has(*d));
            let fit: Vec<Id> = self.pool.iter().copied().filter(fits).collect();
            let x = self.rng.pick(&fit);
            let rest: Vec<Dim> = self.dims_of(x).into_iter().filter(|d| !dims.contains(d)).collect();
            let next = match (x == id, rest.is_empty()) {
                (true, _) => self.g.scaled(x, 0.5),
                (false, true) => x,
                (false, false) => self.g.op(Mean { dims: rest }, &[x]),
            };
            self.states[i].next = Some(next);
        }
    }

    fn leaves(&mut self) {
        let (batch, class) = (self.batch, self.class);
        let [d, e] = [self.dims[2], self.dims[3]];
        let x = self.input("x", DType::F64, vec![batch, d], None);
        let label = self.input("label", DType::I32, vec![batch], Some(class));
        let tokens = self.input("tokens", DType::I32, vec![batch, e], Some(class));
        self.indices = vec![label, tokens];
        let table = self.param(vec![class, d]);
        self.pool = vec![x, table];
        for _ in 0..1 + self.rng.below(4) {
            let mut dims = self.rng.some(&self.dims[1..]);
            dims.truncate(3);
            let dims = self.rng.shuffled(&dims);
            let p = self.param(dims);
            self.pool.push(p);
        }
        // Layers begin with a product, so that most values depend on data and parameters.
        self.at("l0", "h");
        let p = self.rng.pick(&self.pool[1..]);
        let mut keep = self.g.ty(p).dims.clone();
        keep.push(batch);
        let h = self.g.contract_to(&[x, p], &keep);
        let h = self.tamed(h);
        self.pool.push(h);
        for _ in 0..self.rng.below(3) {
            let mut dims = self.rng.some(&self.dims);
            dims.truncate(2);
            let dims = self.rng.shuffled(&dims);
            let s = self.state(dims);
            self.pool.push(s);
        }
    }

    /// A value; recent ones are likelier.
    fn any(&mut self) -> Id {
        let n = self.pool.len();
        let from = if self.rng.one_in(2) { n.saturating_sub(4) } else { 0 };
        self.pool[from + self.rng.below(n - from)]
    }

    fn dims_of(&self, id: Id) -> Vec<Dim> {
        self.g.ty(id).dims.clone()
    }

    fn size(&self, dims: &[Dim]) -> usize {
        self.g.dims.elements(dims)
    }

    /// Several values whose joint dims are few enough.
    fn several(&mut self, most: usize, limit: usize) -> Option<(Vec<Id>, Vec<Dim>)> {
        let n = 2 + self.rng.below(most - 1);
        let x: Vec<Id> = (0..n).map(|_| self.any()).collect();
        let all = union(x.iter().map(|i| self.g.ty(*i)));
        (self.size(&all) <= limit).then_some((x, all))
    }

    /// A value with a dim.
    fn with(&mut self, dim: Dim) -> Option<Id> {
        let have: Vec<Id> = self.pool.iter().copied().filter(|i| self.g.ty(*i).has(dim)).collect();
        (!have.is_empty()).then(|| self.rng.pick(&have))
    }

    /// A value that has dims, and one of them.
    fn along(&mut self) -> Option<(Id, Dim)> {
        let x = self.any();
        let dims = self.dims_of(x);
        (!dims.is_empty()).then(|| (x, self.rng.pick(&dims)))
    }

    fn op(&mut self) -> Option<Id> {
        match self.rng.below(23) {
            0..5 => self.product(),
            5 | 6 => {
                let (x, _) = self.several(3, ELEMENTS)?;
                Some(self.g.op(Add, &x))
            }
            7 => Some(self.function()),
            8 => self.fold(),
            9 => {
                let (x, dim) = self.along()?;
                Some(match self.rng.below(4) {
                    0 => self.g.op(LogSumExp { dim }, &[x]),
                    3 => self.running_sum(x, dim),
                    k => self.g.op(Softmax { dim, log: k == 1 }, &[x]),
                })
            }
            10 => self.cross_entropy(),
            11 => self.lookup(),
            12 => self.choice(),
            13 | 14 => self.renamed(),
            15 => self.argmax(),
            16 => self.binary(),
            17 | 18 => Some(self.random()),
            19 => {
                let x = self.any();
                Some(self.g.op(StopGradient, &[x]))
            }
            _ => self.windowed(),
        }
    }

    /// One value read through one window by two users, whose positions have a dim each: rules may split the two over
    /// different axes, and so ask for the same elements on other devices.
    fn windowed(&mut self) -> Option<Id> {
        let (x, wide) = self.along()?;
        let count = self.g.nodes.len();
        let size = 1 + self.rng.below(self.g.dims.size(wide) + 1);
        let tap = self.g.dims.add(format!("tap{count}"), 1 + self.rng.below(3));
        let (start, stride, low) =
            (self.rng.below(4) as i64 - 1, 1 + self.rng.below(2), self.rng.below(self.g.dims.size(tap)));
        let kind = self.rng.below(3);
        let kernel = (kind == 2).then(|| self.param(vec![tap]));
        self.at(&format!("l{}", count % 4), &format!("window{count}"));
        let all: Vec<Dim> = self.dims_of(x);
        for k in 0..2 {
            let narrow = self.g.dims.add(format!("w{count}_{k}"), size);
            let slides = vec![SlidingWindow { wide, narrow, tap, stride, dilation: 1, low }];
            let out = all.iter().map(|d| if *d == wide { narrow } else { *d }).collect();
            let y = match kernel {
                None if kind == 0 => self.g.op(Shift { from: wide, to: narrow, start, fill: 0.0 }, &[x]),
                None => self.g.op(Pool { monoid: Monoid::Sum, slides, spread: false }, &[x]),
                Some(w) => self.g.op(Convolve { slides, gives: Part::Result, out }, &[x, w]),
            };
            let y = self.tamed(y);
            self.pool.push(y);
        }
        self.pool.pop()
    }

    fn running_sum(&mut self, x: Id, dim: Dim) -> Id {
        let (reverse, exclusive) = (self.rng.one_in(2), self.rng.one_in(2));
        let y = self.g.op(CumSum { dim, reverse, exclusive }, &[x]);
        self.g.scaled(y, 1.0 / (self.g.dims.size(dim) as f64).sqrt())
    }

    /// Dropout with a mask that may be shared, or random numbers times a value; in a choice of what only training does.
    fn random(&mut self) -> Id {
        let x = self.any();
        let dims: Vec<Dim> = self.dims_of(x).into_iter().filter(|_| !self.rng.one_in(4)).collect();
        let dims = self.rng.shuffled(&dims);
        let stream = format!("random {}", self.g.nodes.len());
        let (dtype, distribution) = match self.rng.below(4) {
            0 => (DType::F64, Distribution::Uniform { low: -1.0, high: 2.0 }),
            1 => (DType::F64, Distribution::Normal { mean: 0.5, std: 1.0 }),
            _ => (DType::Bool, Distribution::Bernoulli { rate: 0.3 }),
        };
        let key = Key::of_step(SEED, &stream, 1);
        let op = meshwright_ops::Random { stream, distribution, dims: dims.clone(), dtype };
        let r = self.g.op(op, &[]);
        let values = (0..self.size(&dims)).map(|i| draw(&distribution, key, i as u64)).collect();
        self.bound.insert(r, F64Tensor::new(&self.g.dims, dims, values));
        let random = if dtype == DType::Bool { self.g.masked(r, x) } else { self.g.product(&[r, x]) };
        let scaled = self.g.scaled(random, 1.0 / 0.7);
        if self.rng.one_in(2) {
            return scaled;
        }
        let training = self.g.op(Training, &[]);
        self.bound.insert(training, F64Tensor::scalar(1.0));
        self.g.choose(training, scaled, x)
    }

    fn product(&mut self) -> Option<Id> {
        let (x, all) = self.several(3, NEST)?;
        let keep: Vec<Dim> = all.iter().copied().filter(|_| !self.rng.one_in(3)).collect();
        let keep = self.rng.shuffled(&keep);
        if self.size(&keep) > ELEMENTS {
            return None;
        }
        let y = self.g.op(Contract { out: keep.clone() }, &x);
        let summed = self.size(&all) / self.size(&keep);
        Some(if summed > 1 { self.g.scaled(y, 1.0 / (summed as f64).sqrt()) } else { y })
    }

    fn function(&mut self) -> Id {
        let x = self.any();
        let plain = [&TANH, &SIGMOID, &GELU, &SILU, &RELU, &ABS, &NEG, &ERF, &SIN, &SOFTPLUS];
        let positive = [&LOG, &SQRT, &RSQRT, &RECIP];
        match self.rng.below(12) {
            0 => {
                let t = self.g.unary(&TANH, x);
                self.g.unary(&EXP, t)
            }
            1..4 => {
                let p = self.positive(x);
                let f = self.rng.pick(&positive);
                self.g.unary(f, p)
            }
            _ => {
                let f = self.rng.pick(&plain);
                let kink = f.name == "relu" || f.name == "abs";
                let near = kink && self.value(x).data.iter().any(|v| v.abs() < APART);
                self.g.unary(if near { &TANH } else { f }, x)
            }
        }
    }

    /// `1 + x * x`.
    fn positive(&mut self, x: Id) -> Id {
        let square = self.g.product(&[x, x]);
        let one = self.g.constant(1.0, DType::F64);
        self.g.sum_of(&[square, one])
    }

    fn fold(&mut self) -> Option<Id> {
        let (x, dim) = self.along()?;
        let mut dims = self.dims_of(x);
        dims.retain(|d| *d == dim || self.rng.one_in(2));
        let kinds = if self.tied(x, dim) { 2 } else { 4 };
        Some(match self.rng.below(kinds) {
            0 => self.g.op(Mean { dims }, &[x]),
            1 => self.g.op(Reduce { monoid: Monoid::Sum, dims }, &[x]),
            2 => self.g.op(Reduce { monoid: Monoid::Max, dims: vec![dim] }, &[x]),
            _ => self.g.op(Reduce { monoid: Monoid::Min, dims: vec![dim] }, &[x]),
        })
    }

    /// An index of which all dims are among `dims`, or which is free to add its own.
    fn index_within(&mut self, dims: &[Dim]) -> Option<Id> {
        let fit: Vec<Id> = self
            .indices
            .iter()
            .copied()
            .filter(|i| self.g.ty(*i).dims.iter().all(|d| dims.contains(d)))
            .collect();
        (!fit.is_empty()).then(|| self.rng.pick(&fit))
    }

    fn cross_entropy(&mut self) -> Option<Id> {
        let mut logits = self.with(self.class)?;
        let mut dims = self.dims_of(logits);
        if self.index_within(&dims).is_none() {
            let other = self.with(self.batch)?;
            logits = self.g.sum_of(&[logits, other]);
            dims = self.dims_of(logits);
        }
        let label = self.index_within(&dims)?;
        (self.size(&dims) <= ELEMENTS).then(|| self.g.op(CrossEntropy { dim: self.class }, &[logits, label]))
    }

    fn lookup(&mut self) -> Option<Id> {
        let table = self.with(self.class)?;
        let index = self.rng.pick(&self.indices);
        if self.g.ty(index).has(self.class) {
            return None;
        }
        let all = union([self.g.ty(table), self.g.ty(index)]);
        (self.size(&all) <= NEST).then(|| self.g.op(Lookup { dims: vec![self.class] }, &[table, index]))
    }

    fn choice(&mut self) -> Option<Id> {
        let (x, _) = self.several(3, ELEMENTS)?;
        let condition = match self.rng.below(3) {
            0 => {
                let (d, twin) = self.rng.pick(&self.twins);
                let (here, there) = (self.g.index(d), self.g.index(twin));
                self.g.binary("<=", here, there)
            }
            1 => {
                let d = self.dims_of(x[0]).first().copied()?;
                let (here, middle) = (self.g.index(d), self.g.constant(2.0, DType::I32));
                self.g.binary(if self.rng.one_in(2) { "<" } else { "!=" }, here, middle)
            }
            _ if self.touch(x[0], x[1]) => return None,
            _ => self.g.binary(">", x[0], x[1]),
        };
        let all = union([self.g.ty(condition), self.g.ty(x[0]), self.g.ty(x[1])]);
        if self.size(&all) > ELEMENTS {
            return None;
        }
        Some(match self.rng.below(2) {
            0 => self.g.masked(condition, x[0]),
            _ => self.g.choose(condition, x[0], x[1]),
        })
    }

    fn renamed(&mut self) -> Option<Id> {
        let (d, twin) = self.rng.pick(&self.twins);
        let (from, to) = if self.rng.one_in(3) { (twin, d) } else { (d, twin) };
        let x = self.with(from)?;
        (!self.g.ty(x).has(to)).then(|| self.g.op(Rename { from, to }, &[x]))
    }

    fn argmax(&mut self) -> Option<Id> {
        let x = self.with(self.class)?;
        if self.tied(x, self.class) {
            return None;
        }
        let best = arg_extreme(&mut self.g, Monoid::ArgMax, x, self.class);
        if self.rng.one_in(2) {
            self.indices.push(best);
        }
        let position = self.g.cast(best, DType::F64);
        let small = self.g.scaled(position, 0.25);
        Some(self.g.sum_of(&[x, small]))
    }

    fn binary(&mut self) -> Option<Id> {
        let (x, _) = self.several(2, ELEMENTS)?;
        let kinds = if self.touch(x[0], x[1]) { 2..4 } else { 0..4 };
        Some(match kinds.start + self.rng.below(kinds.len()) {
            0 => self.g.binary("max", x[0], x[1]),
            1 => self.g.binary("min", x[0], x[1]),
            2 => {
                let below = self.positive(x[1]);
                self.g.binary("/", x[0], below)
            }
            _ => {
                let base = self.positive(x[0]);
                let exponent = self.g.unary(&TANH, x[1]);
                self.g.binary("pow", base, exponent)
            }
        })
    }

    /// Whether two elements along a dim are equal but for rounding: which is the greatest is then not for a layout to keep.
    fn tied(&mut self, x: Id, dim: Dim) -> bool {
        let value = self.value(x).clone();
        let mut dims: Vec<Dim> = value.dims.iter().copied().filter(|d| *d != dim).collect();
        dims.push(dim);
        let value = value.ordered(&dims);
        value.data.chunks(self.g.dims.size(dim)).any(|row| {
            let mut row = row.to_vec();
            row.sort_by(f64::total_cmp);
            row.windows(2).any(|w| w[1] - w[0] < APART)
        })
    }

    /// Whether two values are equal somewhere, but for rounding.
    fn touch(&mut self, a: Id, b: Id) -> bool {
        let (a, b) = (self.value(a).clone(), self.value(b).clone());
        let mut dims = a.dims.clone();
        dims.extend(b.dims.iter().filter(|d| !a.dims.contains(d)));
        F64Tensor::build(&self.g.dims, &dims, |at| a.at(&dims, at) - b.at(&dims, at))
            .data
            .iter()
            .any(|v| v.abs() < APART)
    }

    /// The value of a node, and of all before it.
    fn value(&mut self, id: Id) -> &F64Tensor {
        while self.values.len() <= id.0 as usize {
            let next = Id(self.values.len() as u32);
            let node = self.g.node(next);
            let x: Vec<&F64Tensor> = node.inputs.iter().map(|i| &self.values[i.0 as usize]).collect();
            let bound = self.bound.get(&next).cloned();
            self.values.push(bound.unwrap_or_else(|| node.op.oracle(&x, &node.ty, &self.g.dims)));
        }
        &self.values[id.0 as usize]
    }

    /// The value, or a bounded function of it where it is large; always where it is one of a few at random.
    fn tamed(&mut self, x: Id) -> Id {
        let largest = self.value(x).data.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        if largest > LARGE {
            let small = self.g.scaled(x, 2.0 / largest);
            self.g.unary(&TANH, small)
        } else if self.rng.one_in(5) {
            self.g.unary(&TANH, x)
        } else {
            x
        }
    }

    fn finish(mut self, seed: u64) -> Random {
        self.next_states();
        self.at("", "loss");
        let mut terms = Vec::new();
        // What nothing else uses is in the loss, so that hardly anything is dead code.
        let used: SortedSet<Id> = self.g.nodes.iter().flat_map(|n| n.inputs.iter().copied()).collect();
        let mut ends: Vec<Id> = self.pool[2..].iter().copied().filter(|x| !used.contains(x)).collect();
        ends.push(self.any());
        for x in ends {
            let squared = if self.rng.one_in(2) { self.g.product(&[x, x]) } else { x };
            let dims = self.dims_of(squared);
            terms.push(if dims.is_empty() { squared } else { self.g.op(Mean { dims }, &[squared]) });
        }
        let loss = self.g.sum_of(&terms);
        let watched = self.any();
        let optimizer = self.optimizer();
        let clip = self.rng.one_in(2).then(|| ClipSpec::GlobalNorm(self.rng.float(0.05, 2.0)));
        let minimize = LossDecl { name: "loss".into(), id: loss, span: Span::default(), better: None };
        let program = Program {
            named: Default::default(),
            model: format!("random {seed}"),
            graph: self.g,
            float: Arithmetic::F64,
            model_consts: Default::default(),
            consts: Default::default(),
            declarations: Default::default(),
            dim_spans: Default::default(),
            inputs: self.inputs,
            params: self.params,
            states: self.states,
            losses: vec![minimize.clone()],
            metrics: Vec::new(),
            outputs: Vec::new(),
            train: Some(TrainSpec { clip, ..TrainSpec::new(minimize, optimizer) }),
        };
        Random { program, bound: self.bound, watched }
    }

    /// Not Lion: the sign of a gradient that is nothing but rounding is a step of full length.
    fn optimizer(&mut self) -> Optimizer {
        self.g.cursor = Origin { phase: Phase::Update, ..Origin::default() };
        let name = ["sgd", "adam", "adamw", "adafactor", "lamb"][self.rng.below(5)];
        let def = optimizers::find(name).expect("an optimizer of the list");
        let mut chosen = Choices::default();
        for s in def.settings {
            // Large epsilons, for the same reason. The norm of a step that is nothing but rounding must not become 1
            // either: with LAMB there is always decay.
            let value = match s.name {
                "lr" => Some(0.05),
                "momentum" if self.rng.one_in(2) => Some(0.9),
                "beta1" if name == "adafactor" && self.rng.one_in(2) => Some(0.9),
                "beta2" => Some(0.99),
                "eps" | "eps1" => Some(1e-2),
                "clip" if self.rng.one_in(2) => Some(0.5),
                "weight_decay" if name == "lamb" || self.rng.one_in(2) => Some(0.01),
                "weight_decay" => Some(0.0),
                _ => None,
            };
            let value = match (s.accepts, value) {
                (Accepts::Flag(default), _) => Chosen::Flag(default != self.rng.one_in(4)),
                (Accepts::Count(_), _) => Chosen::Count(self.rng.below(4)),
                (Accepts::ScalarOrOff(..), None) if self.rng.one_in(2) => Chosen::Off,
                (Accepts::Scalar(_, default) | Accepts::ScalarOrOff(_, default), v) => {
                    let v = v.or(default).expect("a default");
                    let number = self.g.constant(v, DType::F64);
                    if s.name == "lr" && self.rng.one_in(3) {
                        let leaf = InputOp { input: InputOpKind::StepNumber, ty: Type::new(DType::F64, []) };
                        let step = self.g.op(leaf, &[]);
                        let rate = self.g.unary(&RECIP, step);
                        Chosen::Scalar(self.g.product(&[number, rate]), None)
                    } else {
                        Chosen::Scalar(number, Some(v))
                    }
                }
            };
            chosen.choose(s.name, value, true);
        }
        Optimizer { def, chosen }
    }
}
