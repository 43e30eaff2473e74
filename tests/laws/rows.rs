//! Steps along rows, which devices with compiled kernels fuse: norms with what is before and after them, forward and backward,
//! softmax, and cross-entropy with its gradient; of rows that a plane has, a cube, or no cube can keep.

use crate::devices::{Devices, to};
use crate::equations::Equations;
use crate::split::way;
use meshwright_ops::{
    CrossEntropy, CrossEntropyGrad, F64Tensor, Id, InputOp, InputOpKind, LogSumExp, NEG, RSQRT, Random,
    Softmax, Type,
};
use meshwright_plan::random::Distribution;
use meshwright_plan::{DType, Dim, Monoid};

impl Equations {
    fn label(&mut self, rows: Dim, classes: Dim) -> Id {
        let leaf = InputOpKind::Input { name: "label".into() };
        let ty = Type { range: Some(classes), ..Type::new(DType::I32, [rows]) };
        let id = self.g.op(InputOp { input: leaf, ty }, &[]);
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
        let scaled = self.g.product(&[center, inverse]);
        let scaled = self.g.product(&[d, scaled]);
        self.outputs.extend([
            ("sum", sum),
            ("normed", normed),
            ("center", center),
            ("inverse", inverse),
            ("grad", grad),
            ("below", below),
            ("greatest", greatest),
            ("shift_grad", self.g.reduce(Monoid::Sum, d, rows)),
            ("scale_grad", self.g.reduce(Monoid::Sum, scaled, rows)),
            ("bias_grad", self.g.reduce(Monoid::Sum, below, rows)),
        ]);
    }

    /// Cross-entropy and its gradient alone, which read the logits once.
    fn entropy(&mut self, row: Dim, class: Dim) {
        let logits = self.input("logits", &[row, class]);
        let [each, grad] = self.entropy_of(logits, row, class);
        self.outputs.extend([("each", each), ("class_grad", grad)]);
    }

    /// Cross-entropy, and half of its gradient.
    fn entropy_of(&mut self, logits: Id, row: Dim, class: Dim) -> [Id; 2] {
        let w = self.input("weight", &[row]);
        let label = self.label(row, class);
        let each = self.g.op(CrossEntropy { dim: class }, &[logits, label]);
        let grad = self.g.op(CrossEntropyGrad { dim: class }, &[logits, label, w]);
        [each, self.g.scaled(grad, 0.5)]
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
        // A cube has all of a row, but for the last.
        for [rows, many] in [[3, 4099], [2, 50_257], [2, 51_204]] {
            let mut e = Equations::new(half);
            let [r, c] = [("r", rows), ("c", many)].map(|(name, size)| e.g.dims.add(name, size));
            e.entropy(r, c);
            cases +=
                e.are_the_same(&format!("{rows} rows of {many} logits, {half:?}"), &ways(r, c), &mut devices);
        }
    }
    crate::report(&format!("{what}: {cases} cases"));
}

#[test]
fn steps_along_rows_are_the_same_on_the_host() {
    are_the_same(Devices::default(), "along rows, native", true);
    are_the_same(Devices::of(meshwright_burn::device()), "along rows, plain operations", false);
}

#[test]
fn steps_along_rows_are_the_same_as_a_gpu_launches_them() {
    are_the_same(Devices::of(meshwright_burn::reference()), "along rows, launches of a GPU", true);
}

/// Cross-entropy with its gradient of long rows, more than twice as many as a GPU has multiprocessors: the kernel copies a row
/// ahead. Matmuls write the logits and read their gradient, so both have gaps between rows, and gradients of `f32` lie where
/// logits were.
#[cfg(feature = "cuda")]
fn rows_in_turn(devices: &mut Devices) -> usize {
    let said = std::env::var("FAKE_CUDA_MULTIPROCESSORS").ok();
    let many = said.and_then(|said| said.parse().ok()).unwrap_or(150);
    let mut cases = 0;
    for half in [None, Some(DType::BF16)] {
        // All threads have equally many vectors, and not.
        for classes in [32_768, 30_522, 50_257] {
            let mut e = Equations::new(half);
            let dims = [("r", 2 * many + 1), ("c", classes), ("k", 8)];
            let [r, c, k] = dims.map(|(name, size)| e.g.dims.add(name, size));
            let factors = [e.input("x", &[r, k]), e.input("word", &[k, c])];
            let logits = e.g.contract_to(&factors, &[r, c]);
            let [each, grad] = e.entropy_of(logits, r, c);
            let of_rows = e.g.contract_to(&[grad, factors[1]], &[r, k]);
            e.outputs.extend([("each", each), ("grad", of_rows)]);
            let name = format!("rows of {classes} logits in turn, {half:?}");
            cases += e.are_the_same(&name, &[way(&[], vec![])], devices);
        }
    }
    cases
}

#[cfg(feature = "cuda")]
#[test]
fn steps_along_rows_are_the_same_on_a_gpu() {
    if !crate::engines::gpu() {
        return;
    }
    let several = crate::engines::has_gpu(2).is_ok();
    let ((), launches) = crate::engines::counted(|| {
        are_the_same(Devices::of(meshwright_cuda::gpu(0)), "along rows, GPU", several);
        let cases = rows_in_turn(&mut Devices::of(meshwright_cuda::gpu(0)));
        crate::report(&format!("rows in turn, GPU: {cases} cases"));
    });
    let launches = launches("AlongRows");
    // Of each case the norm, its gradient, or cross-entropy with its gradient, and softmaxes; split too where there are several
    // GPUs.
    assert!(launches >= if several { 2 * 28 } else { 28 }, "{launches}");
}
