//! Infinities and NaN: every sample with some of them among its operands is its oracle, whole, split, and in plain
//! operations. NaN equals NaN, and an infinity only itself.

use crate::devices::{Devices, to};
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Way, Within, same_step, way};
use crate::subject::{Arrival, Built, build, narrow, step, subjects, tensors};
use meshwright_exec::DeviceKind;
use meshwright_ops::{Computes, Graph, Kind};
use meshwright_plan::Dim;
use std::time::Instant;

/// What is put among the numbers of an operand, and into how many of ten elements.
const SPECIAL: [(&[f64], usize); 6] = [
    (&[f64::INFINITY], 2),
    (&[f64::NEG_INFINITY], 4),
    (&[f64::NAN], 2),
    (&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0], 4),
    (&[f64::NEG_INFINITY], 10),
    (&[f64::INFINITY], 10),
];

/// The operands with some of their floats replaced.
fn sprinkled(g: &Graph, bound: &Bound, (values, of_ten): (&[f64], usize), rng: &mut Rng) -> Bound {
    let mut bound = bound.clone();
    for (_, x) in bound.iter_mut().filter(|(id, _)| g.ty(**id).dtype.is_float()) {
        for v in &mut x.data {
            if rng.below(10) < of_ten {
                *v = rng.pick(values);
            }
        }
    }
    bound
}

/// On one device, each dim over three, and pairs of dims over two axes.
fn ways(dims: &[Dim]) -> Vec<Way> {
    let mut ways = vec![way(&[], vec![])];
    ways.extend(dims.iter().map(|d| way(&[3], vec![to(*d, &[0])])));
    ways.extend(dims.windows(2).map(|d| way(&[2, 2], vec![to(d[0], &[0]), to(d[1], &[1])])));
    ways
}

/// Whether it holds a sum of products. Which zero meets which infinity there is up to how a product is computed (a factor
/// that lacks the dim is taken out of the sum, a window's padding is multiplied), in XLA's products too: what is not finite
/// counts as equal there, but nothing finite may come out of it.
fn sums_products(g: &Graph) -> bool {
    let sums = |name: &str| name.starts_with("conv") || name == "indexed_product";
    g.nodes.iter().any(|n| n.op.kind() == Kind::Compute(Computes::Contraction) || sums(n.op.name()))
}

fn law(
    what: &str,
    device: DeviceKind,
    build: &dyn Fn(&crate::subject::Subject) -> Option<Built>,
    least: f64,
) {
    let begin = Instant::now();
    let mut devices = Devices::of(device);
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for subject in subjects() {
        let Some(b) = build(&subject) else { continue };
        for (k, special) in SPECIAL.into_iter().enumerate() {
            let bound = sprinkled(&b.graph, &b.bound, special, &mut Rng::new(k as u64));
            let want = walk(&b.graph, &bound).swap_remove(b.value.0 as usize);
            let name = format!("{} with {:?} in {} of 10", subject.name, special.0, special.1);
            let step = step(&b.graph, &[("y", b.value)]);
            // The gradient of a hidden score is 0 where its tile is skipped, else 0 times what is not finite.
            let skips = subject.name.starts_with("attention, of a bias");
            let within = Within { least, exact: !sums_products(&b.graph), skips, ..Within::default() };
            let (given, outputs) = (tensors(&b.graph, &bound), [("y", b.value, want)]);
            match same_step(&name, &step, &given, &outputs, within, &ways(&b.dims), &mut devices) {
                Ok(n) => cases += n,
                Err(e) => wrong.push(e),
            }
        }
    }
    crate::report(&format!("{what}: {cases} cases with infinities and NaN in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
}

fn wide(subject: &crate::subject::Subject) -> Option<Built> {
    build(subject, &vec![Arrival::Input; subject.inputs.len()], 1).ok()
}

#[test]
fn infinities_and_nan_are_the_same_however_they_are_split() {
    law("f64", meshwright_cpu::device(), &wide, 0.0);
    law("f32", meshwright_cpu::device(), &narrow, 1.0);
}

#[test]
fn infinities_and_nan_are_the_same_in_plain_operations() {
    law("operations of Burn", meshwright_burn::device(), &wide, 0.0);
    law("operations of Burn of f32", meshwright_burn::device(), &narrow, 1.0);
}

/// What is made of exponentials is finite where its operands are, however large they are: the greatest is taken off before.
#[test]
fn exponentials_of_large_numbers_are_finite() {
    let (mut devices, mut wrong, mut names) = (Devices::default(), Vec::new(), Vec::new());
    let folds = ["softmax", "log_softmax", "logsumexp", "cross_entropy,"];
    for subject in subjects().into_iter().filter(|s| folds.iter().any(|f| s.name.starts_with(f))) {
        for (built, largest) in [(wide(&subject), 8e307), (narrow(&subject), 1.6e38)] {
            let Some(mut b) = built else { continue };
            let floats: Vec<_> =
                b.bound.keys().copied().filter(|id| b.graph.ty(*id).dtype.is_float()).collect();
            for id in floats {
                let data = &mut b.bound.get_mut(&id).unwrap().data;
                let most = data.iter().fold(f64::MIN_POSITIVE, |most, x| x.abs().max(most));
                data.iter_mut().for_each(|x| *x *= largest / most);
            }
            let want = walk(&b.graph, &b.bound).swap_remove(b.value.0 as usize);
            assert!(want.data.iter().all(|x| x.is_finite()), "{}", subject.name);
            let step = step(&b.graph, &[("y", b.value)]);
            let within = Within { least: 1.0, exact: true, ..Within::default() };
            let (given, outputs) = (tensors(&b.graph, &b.bound), [("y", b.value, want)]);
            let found =
                same_step(&subject.name, &step, &given, &outputs, within, &ways(&b.dims), &mut devices);
            wrong.extend(found.err());
            names.push(subject.name.clone());
        }
    }
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
    assert!(folds.iter().all(|f| names.iter().any(|n| n.starts_with(f))), "{names:?}");
}
