//! Products of one shape that share a factor, which a GPU computes as one: with the left one shared and the right one, with
//! biases, and with sums of the other factors.

use crate::devices::Devices;
use crate::oracle::{Bound, walk};
use crate::rng::Rng;
use crate::split::{Within, same_step, way};
use crate::subject::{step, tensors};
use meshwright_ops::{F64Tensor, Graph, Id, InputOp, InputOpKind, Type};
use meshwright_plan::{DType, Dim, Dims, Monoid};

/// Three products of `x`, each with a bias; the products of these with another matrix; and the gradients of three weights in both
/// orders of their dims, each with that of a bias.
fn equations([rows, columns, hidden, out]: [usize; 4]) -> (Graph, Bound, Vec<(&'static str, Id)>) {
    let mut g = Graph::new(Dims::default());
    let [r, c, h, o] =
        [("r", rows), ("c", columns), ("h", hidden), ("o", out)].map(|(n, size)| g.dims.add(n, size));
    let (mut rng, mut bound) = (Rng::new(11), Bound::new());
    let mut input = |g: &mut Graph, name: &str, dims: &[Dim]| {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = g.op(InputOp { input: leaf, ty: Type::new(DType::F32, dims.to_vec()) }, &[]);
        bound.insert(id, F64Tensor::build(&g.dims, dims, |_| f64::from(rng.float(-1.0, 1.0) as f32)));
        id
    };
    let (x, v) = (input(&mut g, "x", &[r, c]), input(&mut g, "v", &[h, o]));
    let weights = ["w1", "w2", "w3"].map(|name| input(&mut g, name, &[c, h]));
    let biases = ["b1", "b2", "b3"].map(|name| input(&mut g, name, &[h]));
    let layers: Vec<Id> = weights
        .into_iter()
        .zip(biases)
        .enumerate()
        .map(|(n, (w, b))| {
            let w = g.scaled(w, 0.5);
            let product = g.contract_to(&[x, w], &[r, h]);
            // A sum in the other order is another form.
            g.sum_of(&if n == 1 && rows % 2 == 0 { [b, product] } else { [product, b] })
        })
        .collect();
    let mut each = |of: &dyn Fn(&mut Graph, Id) -> Id| {
        let all: Vec<Id> = layers.iter().map(|y| of(&mut g, *y)).collect();
        g.product(&all)
    };
    let outputs = vec![
        ("next", each(&|g, y| g.contract_to(&[y, v], &[r, o]))),
        ("weights", each(&|g, y| g.contract_to(&[x, y], &[c, h]))),
        ("sums", each(&|g, y| g.reduce(Monoid::Sum, y, &[r]))),
        ("turned", each(&|g, y| g.contract_to(&[y, x], &[h, c]))),
    ];
    (g, bound, outputs)
}

fn are_the_same(mut devices: Devices, what: &str) {
    let mut cases = 0;
    for sizes in [[3, 4, 8, 12], [8, 8, 16, 4], [1, 8, 8, 8], [5, 3, 6, 7], [70, 16, 32, 8]] {
        let (g, bound, outputs) = equations(sizes);
        let values = walk(&g, &bound);
        let wanted: Vec<_> =
            outputs.iter().map(|(name, id)| (*name, *id, values[id.0 as usize].clone())).collect();
        let step = step(&g, &outputs);
        let within = Within { least: 1.0, narrow: 2e-5, ..Within::default() };
        let whole = vec![way(&[], vec![])];
        cases += same_step("joined", &step, &tensors(&g, &bound), &wanted, within, &whole, &mut devices)
            .unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
    }
    crate::report(&format!("{what}: {cases} cases"));
}

#[test]
fn products_that_share_a_factor_are_the_same_as_a_gpu_launches_them() {
    are_the_same(Devices::default(), "joined, native");
    are_the_same(Devices::of(meshwright_burn::reference()), "joined, launches of a GPU");
}

#[cfg(feature = "cuda")]
#[test]
fn products_that_share_a_factor_are_the_same_on_a_gpu() {
    if crate::engines::gpu() {
        are_the_same(Devices::of(meshwright_cuda::gpu(0)), "joined, GPU");
    }
}
