//! Steps along rows, which devices with compiled kernels fuse: norms with what is before and after them, forward and backward, softmax, and
//! cross-entropy with its gradient; of rows that a plane has, a cube, or no cube can keep.

use crate::devices::{Devices, to};
use crate::rng::Rng;
use crate::split::{Way, Within, same_step, way};
use crate::subject::{step, tensors};
use crate::walk::{Bound, walk};
use meshwright_core::StepGraph;
use meshwright_exec::{CpuBackend, DeviceKind, HostData};
use meshwright_ops::{
    Contract, CrossEntropy, CrossEntropyGrad, F64Tensor, Graph, Id, InputOpKind, Leaf, LogSumExp, NEG, RSQRT,
    Random, Softmax, Type,
};
use meshwright_plan::random::Distribution;
use meshwright_plan::{DType, Dim, Dims, Monoid};

/// A graph with inputs that a half type holds.
struct Equations {
    g: Graph,
    bound: Bound,
    rng: Rng,
    half: Option<DType>,
    one: Id,
    outputs: Vec<(&'static str, Id)>,
}

impl Equations {
    fn new(half: Option<DType>) -> Equations {
        let mut g = Graph::new(Dims::default());
        let one = g.dims.add("one", 1);
        let leaf = InputOpKind::Input { name: "one".into() };
        let factor = g.op(Leaf { leaf, ty: Type::new(DType::F32, vec![one]) }, &[]);
        let bound = Bound::from([(factor, F64Tensor::new(&g.dims, [one], vec![1.0]))]);
        Equations { g, bound, rng: Rng::new(7), half, one: factor, outputs: vec![] }
    }

    fn input(&mut self, name: &str, dims: &[Dim]) -> Id {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = self.g.op(Leaf { leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        let numbers = F64Tensor::build(&self.g.dims, dims, |_| f64::from(self.rng.float(-2.0, 2.0) as f32));
        let data = match self.half {
            Some(half) => HostData::from_f64(half, numbers.data.clone()).to_f64(),
            None => numbers.data.clone(),
        };
        self.bound.insert(id, F64Tensor { data, ..numbers });
        // Of a product, so that it is an activation, which a program of a half type stores so.
        self.g.op(Contract { out: dims.to_vec() }, &[id, self.one])
    }

    fn label(&mut self, rows: Dim, classes: Dim) -> Id {
        let leaf = InputOpKind::Input { name: "label".into() };
        let ty = Type { range: Some(classes), ..Type::new(DType::I32, [rows]) };
        let id = self.g.op(Leaf { leaf, ty }, &[]);
        let many = self.g.dims.size(classes);
        self.bound.insert(id, F64Tensor::build(&self.g.dims, &[rows], |at| (at[0] * 3 % many) as f64));
        id
    }

    fn mean(&mut self, x: Id, over: &[Dim]) -> Id {
        let many: usize = over.iter().map(|d| self.g.dims.size(*d)).product();
        let sum = self.g.reduce(Monoid::Sum, x, over);
        self.g.scaled(sum, 1.0 / many as f64)
    }

    /// What a norm makes of `x`, what is left of it by its mean, and the reciprocal of its deviation.
    fn norm(&mut self, x: Id, [scale, shift]: [Id; 2], over: &[Dim]) -> [Id; 3] {
        let mean = self.mean(x, over);
        let below = self.g.unary(&NEG, mean);
        let center = self.g.sum_of(&[x, below]);
        let square = self.g.product(&[center, center]);
        let variance = self.mean(square, over);
        let least = self.g.constant(1e-5, DType::F32);
        let variance = self.g.sum_of(&[variance, least]);
        let inverse = self.g.unary(&RSQRT, variance);
        let scaled = self.g.product(&[center, inverse]);
        let scaled = self.g.product(&[scaled, scale]);
        [self.g.sum_of(&[scaled, shift]), center, inverse]
    }

    /// The gradient of a norm by `x`, of the gradient of its result.
    fn norm_grad(&mut self, d: Id, [center, inverse, scale]: [Id; 3], over: &[Dim]) -> Id {
        let d = self.g.product(&[d, scale]);
        let along = self.g.product(&[d, center]);
        let along = self.mean(along, over);
        let level = self.mean(d, over);
        let away = self.g.product(&[center, along]);
        let away = self.g.product(&[away, inverse]);
        let away = self.g.product(&[away, inverse]);
        let (away, level) = (self.g.unary(&NEG, away), self.g.unary(&NEG, level));
        let sum = self.g.sum_of(&[d, away, level]);
        self.g.product(&[sum, inverse])
    }

    fn dropped(&mut self, x: Id, dims: &[Dim]) -> Id {
        let distribution = Distribution::Bernoulli { rate: 0.1 };
        let kept = Random { stream: "kept".into(), distribution, dims: dims.to_vec(), dtype: DType::Bool };
        let kept = self.g.op(kept, &[]);
        let x = self.g.masked(kept, x);
        self.g.scaled(x, 1.0 / 0.9)
    }

    /// In the model's dims `[batch, seq]` and `[along]`, of which there may be two.
    fn norms(&mut self, rows: &[Dim], along: &[Dim]) {
        let all = [rows, along].concat();
        let (x, y, d) = (self.input("x", &all), self.input("y", &all), self.input("d", &all));
        let (scale, shift) = (self.input("scale", along), self.input("shift", along));
        let dropped = self.dropped(x, &all);
        let sum = self.g.sum_of(&[dropped, y]);
        let [normed, center, inverse] = self.norm(sum, [scale, shift], along);
        let grad = self.norm_grad(d, [center, inverse, scale], along);
        let below = self.dropped(grad, &all);
        let greatest = self.g.reduce(Monoid::Max, normed, along);
        self.outputs.extend([
            ("sum", sum),
            ("normed", normed),
            ("center", center),
            ("inverse", inverse),
            ("grad", grad),
            ("below", below),
            ("greatest", greatest),
            ("shift_grad", self.g.reduce(Monoid::Sum, d, rows)),
        ]);
    }

    fn classes(&mut self, row: Dim, class: Dim) {
        let (x, w) = (self.input("logits", &[row, class]), self.input("weight", &[row]));
        let label = self.label(row, class);
        let bias = self.input("bias", &[class]);
        let logits = self.g.sum_of(&[x, bias]);
        let each = self.g.op(CrossEntropy { dim: class }, &[logits, label]);
        let weighed = self.g.product(&[each, w]);
        let grad = self.g.op(CrossEntropyGrad { dim: class }, &[logits, label, w]);
        let soft = self.g.op(Softmax { dim: class, log: false }, &[logits]);
        let log = self.g.op(Softmax { dim: class, log: true }, &[x]);
        self.outputs.extend([
            ("each", each),
            ("loss", self.g.reduce(Monoid::Sum, weighed, &[row])),
            ("class_grad", self.g.scaled(grad, 0.5)),
            ("soft", soft),
            ("log", log),
            ("logsumexp", self.g.op(LogSumExp { dim: class }, &[x])),
        ]);
    }

    fn are_the_same(mut self, name: &str, ways: &[Way], devices: &mut Devices) -> usize {
        // What is compared is stored in `f32`: a product of what was computed.
        if self.half.is_some() {
            for (_, id) in &mut self.outputs {
                let out = self.g.ty(*id).dims.clone();
                *id = self.g.op(Contract { out }, &[*id, self.one]);
            }
        }
        let values = walk(&self.g, &self.bound);
        let wanted: Vec<_> =
            self.outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
        let step = step(&self.g, &self.outputs);
        let (step, within) = match self.half {
            Some(float) => (StepGraph { float, ..step }, Within { least: 2.0, narrow: 0.03, exact: true }),
            None => (step, Within { least: 1.0, narrow: 3e-5, exact: true }),
        };
        same_step(name, &step, &tensors(&self.g, &self.bound), &wanted, within, ways, devices)
            .unwrap_or_else(|e| panic!("{e}"))
    }
}

/// One device, and where `split` several that share the rows, the elements of a row, or both.
fn are_the_same(mut devices: Devices, what: &str, split: bool) {
    let mut cases = 0;
    let ways = |row: Dim, along: Dim| {
        let mut all = vec![way(&[], vec![])];
        if split {
            all.push(way(&[3], vec![to(row, &[0])]));
            all.push(way(&[2], vec![to(along, &[0])]));
        }
        all
    };
    for half in [None, Some(DType::BF16)] {
        for [batch, seq, width, other] in [
            [1, 1, 1, 1],
            [3, 5, 7, 1],
            [2, 9, 96, 1],
            [4, 3, 33, 4],
            [2, 4, 768, 1],
            [1, 3, 1000, 5],
            [1, 2, 9001, 1],
        ] {
            let mut e = Equations::new(half);
            let dims = [("b", batch), ("s", seq), ("m", width), ("o", other)];
            let [b, s, m, o] = dims.map(|(name, size)| e.g.dims.add(name, size));
            e.norms(&[b, s], &[m, o][..if other > 1 { 2 } else { 1 }]);
            let name = format!("norms of {batch} x {seq} rows of {width} x {other}, {half:?}");
            cases += e.are_the_same(&name, &ways(b, m), &mut devices);
        }
        for [rows, many] in [[1, 1], [5, 10], [70, 2], [3, 1003], [2, 50_257], [4, 8192], [3, 30_522]] {
            let mut e = Equations::new(half);
            let [r, c] = [("r", rows), ("c", many)].map(|(name, size)| e.g.dims.add(name, size));
            e.classes(r, c);
            cases += e.are_the_same(
                &format!("{rows} rows of {many} classes, {half:?}"),
                &ways(r, c),
                &mut devices,
            );
        }
    }
    crate::report(&format!("{what}: {cases} cases"));
}

#[test]
fn steps_along_rows_are_the_same_on_the_host() {
    are_the_same(Devices::default(), "along rows, native", true);
    are_the_same(Devices::of(DeviceKind::Cpu(CpuBackend::Burn)), "along rows, plain operations", false);
}

#[cfg(feature = "cuda")]
#[test]
fn steps_along_rows_are_the_same_on_a_gpu() {
    use meshwright_exec::KernelWatch;
    if !crate::engines::gpu() {
        return;
    }
    let watch = KernelWatch::start();
    are_the_same(Devices::of(DeviceKind::Cuda(0)), "along rows, GPU", crate::engines::has_gpu(2).is_ok());
    let launches: u64 =
        watch.end().into_iter().filter(|k| k.name.starts_with("AlongRows")).map(|k| k.launches).sum();
    // Of each case the norm, its gradient, or cross-entropy with its gradient, and softmaxes.
    assert!(launches >= 2 * 28, "{launches}");
}
