//! Loops: random programs with loops, in each other and with recurrences, under random layouts equal the same programs with
//! every iteration written out.
//!
//! 120 seeds in a normal run, 10,000 with `LONG=1`; `SEED=n` runs one and prints it, `SEED=n..m` runs those between. As many
//! again collect what no iteration changes and what only some do, in `scan` as in `repeat`; `loop_gradients` differentiates them.

use crate::devices::{Refused, plan};
use crate::fuzz::{Random, count_trials, layouts};
use crate::oracle::Bound;
use crate::report;
use crate::rng::{Rng, chosen, seeds};
use meshwright_core::layout::Layout;
use meshwright_core::program::{ClipSpec, LossDecl, ParamDecl, Program, TrainSpec};
use meshwright_core::step::optimizers::{self, Accepts, Choices, Chosen};
use meshwright_core::{Optimizer, StackPart, training_step};
use meshwright_diag::Span;
use meshwright_ops::*;
use meshwright_plan::{DType, Dim, Dims, Init, InputDecl, Monoid, Phase};
use meshwright_sorted::SortedMap;

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
    /// Of these, those that give each iteration no parameters of its own.
    scans: Vec<RepeatId>,
    /// Whether there are values that no iteration changes, or only some, and loops that are scans.
    collects: bool,
    /// Whether what is behind a loop around all others reads nothing but its last values and leaves.
    layered: bool,
    float: DType,
}

/// The most elements of a value.
const ELEMENTS: usize = 300;

/// The program of a seed.
fn random(seed: u64) -> Random {
    program(seed, false, DType::F64)
}

/// The same with values that no iteration changes, values that only some do, and scans.
fn collecting(seed: u64) -> Random {
    program(seed, true, DType::F64)
}

/// The same where the first iterations of parameters of loops are frozen, and most other parameters: gradients of loops then end
/// behind these iterations.
fn frozen(seed: u64) -> Random {
    let mut r = program(seed, seed % 2 == 1, DType::F64);
    let mut rng = Rng::new(seed ^ 0xF20);
    let g = &r.program.graph;
    let loops: Vec<Dim> = g.repeats.iter().map(|of| of.dim).collect();
    for p in &mut r.program.params {
        match g.ty(p.id).dims.iter().find(|d| loops.contains(d)) {
            Some(dim) => match rng.below(g.dims.size(*dim)) {
                0 => {}
                end => p.frozen_at.push(StackPart(vec![(*dim, 0..end)])),
            },
            None => p.frozen = !rng.one_in(4),
        }
    }
    if let Some(p) = r.program.params.last_mut().filter(|p| p.frozen) {
        p.frozen = false;
    }
    r
}

/// The first program from a seed on with a loop whose iterations are stages under the seed's layout. In most programs a loss
/// reads what is in front of a loop beside what is behind it, which one stage would need of another.
fn staged(seed: u64) -> Random {
    let programs = (0..).map(|more| program(seed + 1_000_003 * more, seed % 4 == 3, DType::F64));
    let staged = |r: &Random| {
        let step = training_step(&r.program).filter(|_| layouts::stages_of(&r.program.graph).is_some());
        step.is_some_and(|step| {
            !matches!(plan(&step, &layouts::staged(seed, r).layout, true), Err(Refused::Layout(_)))
        })
    };
    let found = programs.take(5_000).find(staged);
    found.unwrap_or_else(|| panic!("no program of seed {seed} has a loop whose iterations could be stages"))
}

/// The first program from a seed on with the shape of a model whose layers are stages, and with a batch that could be taken in
/// parts: what is behind a loop around all others reads, of what comes before, leaves and what the loop ends with. What the
/// compiler says of stages has no part in it.
fn layered(seed: u64) -> Random {
    let programs = (0..).map(|more| program_of(seed + 1_000_003 * more, [false, true], DType::F64));
    let apart = |r: &Random| {
        let (step, batch) = (training_step(&r.program), r.program.inputs[0].0.dims[0]);
        let n = r.program.graph.dims.size(batch);
        let layout = Layout { microbatches: Some((n, Span::default())), ..Layout::default() };
        n > 1
            && layouts::stages_of(&r.program.graph).is_some()
            && step.is_some_and(|step| plan(&step, &layout, true).is_ok())
    };
    let found = programs.take(5_000).find(apart);
    found.unwrap_or_else(|| panic!("no program of seed {seed} has a batch that could be taken in parts"))
}

/// The program of a seed, with leaves of the dtype.
pub(crate) fn program(seed: u64, collects: bool, float: DType) -> Random {
    program_of(seed, [collects, false], float)
}

/// The same; `layered` ones have nothing behind a loop around all others but what it ends with, and leaves.
fn program_of(seed: u64, [collects, layered]: [bool; 2], float: DType) -> Random {
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
        scans: Vec::new(),
        collects,
        layered,
        float,
    };
    let (batch, d) = (m.dims[0], m.dims[1]);
    m.at("", "x");
    let decl = InputDecl { name: "x".into(), dims: vec![batch, d], dtype: float, range: None };
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
        let id = self.g.op(InputOp { input: leaf, ty: Type::new(self.float, dims) }, &[]);
        self.g.scope = scope;
        self.bound.insert(id, value);
        id
    }

    /// A parameter, with the dims of the loops that are open, but for scans; in a body its slice.
    fn param(&mut self) -> Id {
        let path = format!("l{}.w", self.params.len());
        self.at(&path, &path);
        self.g.cursor.class = Class::Param;
        let own = self.open.iter().filter(|of| !self.scans.contains(of));
        let mut dims: Vec<Dim> = own.map(|of| self.g.repeats[*of].dim).collect();
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

    /// In a body, a function of values around its loop.
    fn unchanged(&mut self) -> Id {
        let body = self.g.scope;
        let around = self.pool.clone();
        self.pool.retain(|x| self.g.node(*x).scope != body);
        // What has the dim of the loop is another value in each iteration.
        let dim = self.open.last().map(|of| self.g.repeats[*of].dim);
        self.pool.retain(|x| dim.is_none_or(|d| !self.g.ty(*x).has(d)));
        let y = self.value();
        self.pool = around;
        y
    }

    /// Of two values of the same dims, the first in the first iterations of the innermost loop, then the second.
    fn first_then(&mut self, first: Id, then: Id) -> Id {
        let Some(of) = self.open.last().copied() else { return then };
        let dim = self.g.repeats[of].dim;
        let body = std::mem::replace(&mut self.g.scope, self.g.repeats[of].parent);
        let positions = self.g.index(dim);
        self.g.scope = body;
        let here = self.g.cross(of, Crossing::Slice, positions);
        let border = 1 + self.rng.below(2);
        let border = self.g.constant(border as f64, DType::I32);
        let early = self.g.binary("<", here, border);
        self.g.choose(early, first, then)
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
            if self.collects && !self.open.is_empty() && self.rng.one_in(3) {
                let y = self.unchanged();
                self.pool.push(y);
                continue;
            }
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
        let around_all = self.layered && self.open.is_empty();
        if around_all {
            let examples = |x: &Id| self.g.ty(*x).has(self.dims[0]) && !self.g.ty(*x).has(dim);
            starts.extend(self.pool.iter().copied().rev().find(examples));
        }
        let reverse = !around_all && self.rng.one_in(4);
        let of = self.g.repeat(dim, reverse);
        if self.collects && self.rng.one_in(2) {
            self.scans.push(of);
        }
        let carries: Vec<Id> = starts.iter().map(|x| self.g.carry(of, *x)).collect();
        let around = (self.g.scope.replace(of), self.pool.len());
        self.open.push(of);
        self.pool.extend(&carries);
        let p = self.param();
        self.pool.push(p);
        if self.scans.contains(&of) {
            // Its parameters are around it: so that it has a value of its own.
            let y = self.value();
            self.pool.push(y);
        }
        self.statements(depth - 1);
        self.at("l1", "next");
        let mut nexts = Vec::new();
        for c in &carries {
            nexts.push(self.next(*c, &carries));
        }
        let inner: Vec<Id> = self.pool.split_off(around.1);
        let inner: Vec<Id> = inner.into_iter().filter(|v| self.g.node(*v).scope == Some(of)).collect();
        let collected = if self.collects { inner.clone() } else { Vec::new() };
        self.open.pop();
        self.g.scope = around.0;
        if around_all {
            self.pool.retain(|v| matches!(self.g.node(*v).op.kind(), Kind::Input(_)));
        }
        for (c, next) in carries.iter().zip(nexts) {
            self.g.carry_on(of, *c, next);
            let last = self.g.cross(of, Crossing::Final, next);
            self.pool.push(last);
        }
        if around_all {
            return;
        }
        for v in collected {
            if self.rng.one_in(2) {
                self.collect(of, v);
            }
        }
        if self.rng.one_in(2) {
            let v = self.rng.pick(&inner);
            self.collect(of, v);
        }
        if self.rng.one_in(2) {
            let v = self.rng.pick(&inner);
            let out = self.g.cross(of, Crossing::Accumulate, v);
            let out = self.g.unary(&TANH, out);
            self.pool.push(out);
        }
    }

    /// What a carry is next, with its dims, whatever it is made of.
    fn next(&mut self, carry: Id, carries: &[Id]) -> Id {
        let dims = self.dims_of(carry);
        let y = self.value();
        let kept: Vec<Dim> = self.dims_of(y).into_iter().filter(|d| dims.contains(d)).collect();
        let y = self.g.contract_to(&[y], &kept);
        let y = self.g.unary(&TANH, y);
        let kind = if self.collects { self.rng.below(7) } else { self.rng.below(4) };
        match kind {
            0 => self.g.expanded(y, &dims),
            1 => {
                let alike: Vec<Id> = carries.iter().copied().filter(|o| self.same_dims(*o, carry)).collect();
                self.rng.pick(&alike)
            }
            4 => self.unchanged_like(carry),
            5 | 6 => {
                let y = self.g.expanded(y, &dims);
                let other = if kind == 5 { carry } else { self.unchanged_like(carry) };
                self.first_then(y, other)
            }
            _ => {
                let sum = self.g.sum_of(&[carry, y]);
                self.g.scaled(sum, 0.7)
            }
        }
    }

    /// A value around the loops, or made around the innermost one, with the dims of a carry.
    fn unchanged_like(&mut self, carry: Id) -> Id {
        let dims = self.dims_of(carry);
        let y = self.unchanged();
        let kept: Vec<Dim> = self.dims_of(y).into_iter().filter(|d| dims.contains(d)).collect();
        let y = self.g.contract_to(&[y], &kept);
        let y = self.g.unary(&TANH, y);
        self.g.expanded(y, &dims)
    }

    /// Brings a value of all iterations of a loop out of it.
    fn collect(&mut self, of: RepeatId, v: Id) {
        let out = self.g.cross(of, Crossing::Stack, v);
        if self.g.dims.elements(&self.dims_of(out)) <= ELEMENTS {
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
            float: self.float.into(),
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
                    Chosen::Scalar(self.g.constant(v, self.float), Some(v))
                }
            };
            chosen.choose(s.name, value, true);
        }
        Optimizer { def, chosen }
    }
}

/// Seeds that found a fault: residuals ended in the first of several runs of a loop that reads them.
const FOUND: [u64; 4] = [1_553, 2_409, 3_337, 3_660];

/// Seeds whose backward pass was refused: gradients of sums over devices.
const REFUSED: [u64; 2] = [877, 1_911];

/// The same: a gradient that a rule for a path splits is next for one that each device has whole.
const REFUSED_NEXT: u64 = 1_954;

/// What one pass reads of the end of a loop over stages was summed behind another pass.
const LATE_SUM: u64 = 873;

/// How many seeds there are in a normal run, and in a long one.
const COUNT: (u64, u64) = (120, 10_000);

#[test]
fn loops_equal_their_iterations_written_out() {
    let found: Vec<u64> = FOUND.into_iter().chain([REFUSED_NEXT]).collect();
    count_trials("programs with loops", seeds(COUNT.0, COUNT.1), &found, (random, layouts::random));
}

#[test]
fn loops_that_collect_equal_their_iterations_written_out() {
    count_trials(
        "programs with loops that collect",
        seeds(COUNT.0, COUNT.1),
        &REFUSED,
        (collecting, layouts::random),
    );
}

#[test]
fn loops_that_are_frozen_in_part_equal_their_iterations_written_out() {
    let seeds = seeds(COUNT.0, COUNT.1);
    count_trials(
        "programs with loops that are frozen in part",
        seeds.clone(),
        &[REFUSED_NEXT],
        (frozen, layouts::random),
    );
    let ends_early = |seed: &u64| {
        training_step(&frozen(*seed).program)
            .is_some_and(|step| step.graph.repeats.iter().any(|of| of.from > 0))
    };
    let (count, some) = (seeds.end - seeds.start, seeds.filter(ends_early).count() as u64);
    assert!(chosen() || some * 10 >= count, "{some} of {count} programs leave iterations out");
}

/// Iterations as stages of a pipeline, in every order of microbatches and of any lengths, none too.
#[test]
fn loops_as_stages_equal_their_iterations_written_out() {
    count_trials(
        "programs with loops as stages",
        seeds(COUNT.0, COUNT.1),
        &[LATE_SUM],
        (staged, layouts::staged),
    );
}

/// Of programs with the shape of layers few are refused, and those with the codes of loops and batches that cannot be apart; the
/// others equal one device.
#[test]
fn layers_are_seldom_refused_as_stages() {
    let (mut all, mut refused, mut wrong) = (0usize, SortedMap::<String, Vec<u64>>::new(), vec![]);
    for seed in seeds(COUNT.0, COUNT.1) {
        all += 1;
        let r = layered(seed);
        let Some(step) = training_step(&r.program) else { continue };
        match plan(&step, &layouts::staged(seed, &r).layout, true) {
            Ok(_) => {}
            Err(Refused::Layout(codes)) => {
                if codes.iter().any(|c| !["E0313", "E0315"].contains(&c.as_str())) {
                    wrong.push(format!("SEED={seed}: {codes:?}"));
                }
                codes.into_iter().for_each(|c| refused.entry(c).or_default().push(seed));
            }
            Err(Refused::Bug(why)) => wrong.push(format!("SEED={seed}: {why}")),
        }
    }
    let count: usize = refused.values().map(Vec::len).sum();
    report(&format!("programs of layers: {all}, of which are refused {refused:?}"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(chosen() || count * 10 < all, "{count} of {all} are refused: {refused:?}");
    count_trials("layers as stages", seeds(COUNT.0 / 3, COUNT.1 / 3), &[], (layered, layouts::staged));
}
