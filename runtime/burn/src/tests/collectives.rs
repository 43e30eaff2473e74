//! Every collective along inner and outer dims, with even, uneven and empty pieces.

use super::plans::Builder;
use super::{HostBackend, close, cluster_on, no_inputs, noise_tensor};
use meshwright_exec::{Cluster, HostTensor};
use meshwright_plan::{Axis, Collective, DType, Mesh, Monoid, Plan, Prim, ProgramInputKind};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// Runs a Plan on both backends, which must give the same; of the native one the cluster and the outputs.
fn run(mesh: &Mesh, plan: Plan, x: &HostTensor) -> (Cluster, SortedMap<String, HostTensor>) {
    let [native, burn] = [HostBackend::Native, HostBackend::Burn].map(|b| run_on(b, mesh, plan.clone(), x));
    for (name, value) in &burn.1 {
        close(value, &native.1[name], 1e-12, &format!("{name} by Burn's operations"));
    }
    native
}

fn run_on(
    backend: HostBackend,
    mesh: &Mesh,
    plan: Plan,
    x: &HostTensor,
) -> (Cluster, SortedMap<String, HostTensor>) {
    let mut cluster = cluster_on(mesh, backend);
    let program = cluster.load(Arc::new(plan)).unwrap();
    cluster.set_state("x", x).unwrap();
    cluster.run(program, 1, &no_inputs()).unwrap();
    // Storage is used again in the second step.
    let outputs = cluster.run(program, 2, &no_inputs()).unwrap().outputs;
    (cluster, outputs)
}

/// The meshes; the collective runs over axis `a`.
fn meshes() -> Vec<(Mesh, Axis)> {
    vec![
        (Mesh::new([("a", 2)]), Axis(0)),
        (Mesh::new([("a", 3)]), Axis(0)),
        (Mesh::new([("b", 2), ("a", 2)]), Axis(1)),
        (Mesh::new([("a", 4), ("b", 1)]), Axis(0)),
    ]
}

#[test]
fn all_gather_joins_any_dim() {
    for (mesh, a) in meshes() {
        for at in 0..3 {
            // Also over a dim that another axis splits already.
            for outer in [None, mesh.find("b")] {
                let mut b = Builder::new(&mesh);
                let dims = [b.dim("i", 5), b.dim("j", 3), b.dim("k", 2)];
                let before: Vec<Axis> = outer.into_iter().collect();
                let both: Vec<Axis> = before.iter().copied().chain([a]).collect();
                let place = |axes: &[Axis]| -> Vec<_> {
                    dims.iter()
                        .enumerate()
                        .map(|(i, d)| (*d, if i == at { axes.to_vec() } else { vec![] }))
                        .collect()
                };
                let (split, joined) = (place(&both), place(&before));

                let from = b.split(DType::F64, &split.iter().map(|p| (p.0, &p.1[..])).collect::<Vec<_>>());
                let to = b.split(DType::F64, &joined.iter().map(|p| (p.0, &p.1[..])).collect::<Vec<_>>());
                b.leaf(ProgramInputKind::Param, "x", &from);
                let collective = Collective::AllGather { axis: a, dims: vec![dims[at]] };
                b.step("joined", Prim::Collective(collective), &[&from], &[&to]);
                b.output("y", &to);
                let x = noise_tensor(DType::F64, &[5, 3, 2], 7);
                let (cluster, outputs) = run(&mesh, b.finish(), &x);
                close(&outputs["y"], &x, 0.0, &format!("{} dim {at}", mesh.describe()));
                close(&cluster.state("x").unwrap(), &x, 0.0, "the input is unchanged");
            }
        }
    }
}

#[test]
fn partial_sums_are_reduced_and_scattered_along_any_dim() {
    for (mesh, a) in meshes() {
        for at in 0..3 {
            let mut b = Builder::new(&mesh);
            let s = b.dim("s", 5);
            let dims = [b.dim("i", 4), b.dim("j", 3), b.dim("k", 2)];
            let axes = [a];
            let x = b.split(DType::F64, &[(s, &axes), (dims[0], &[]), (dims[1], &[]), (dims[2], &[])]);
            let partial = b.whole(DType::F64, &dims);
            let place: Vec<(_, &[Axis])> = dims
                .iter()
                .enumerate()
                .map(|(i, d)| (*d, if i == at { &axes[..] } else { &[][..] }))
                .collect();
            let scattered = b.split(DType::F64, &place);
            b.leaf(ProgramInputKind::Param, "x", &x);
            b.reduce("partial", Monoid::Sum, &x, &partial);
            let collective = Collective::ReduceScatter { axis: a, monoid: Monoid::Sum, dims: vec![dims[at]] };
            b.step("scattered", Prim::Collective(collective), &[&partial], &[&scattered]);
            // The same sums by an all-reduce, out of place since `partial` is still needed, then in place.
            let apart = b.all_reduce("apart", Monoid::Sum, &[a], &[&partial]).remove(0);
            let in_place = b.all_reduce("in place", Monoid::Sum, &[a], &[&partial]).remove(0);
            b.output("scattered", &scattered);
            b.output("apart", &apart);
            b.output("in place", &in_place);
            let x = noise_tensor(DType::F64, &[5, 4, 3, 2], 11);
            let sums: Vec<f64> = (0..24).map(|i| x.data.to_f64().iter().skip(i).step_by(24).sum()).collect();
            let want = super::tensor(DType::F64, &[4, 3, 2], sums);
            let (_, outputs) = run(&mesh, b.finish(), &x);
            for name in ["scattered", "apart", "in place"] {
                close(&outputs[name], &want, 1e-13, &format!("{name} {} dim {at}", mesh.describe()));
            }
        }
    }
}

/// Gathers of several buffers in one, each along a dim of its own.
#[test]
fn a_bucket_gathers_what_each_of_its_members_gathers() {
    for (mesh, a) in meshes() {
        for dtype in [DType::F64, DType::F32, DType::I32] {
            let mut b = Builder::new(&mesh);
            let [i, j, k] = [b.dim("i", 5), b.dim("j", 3), b.dim("k", 2)];
            let axes = [a];
            let x = b.split(dtype, &[(i, &[]), (j, &axes), (k, &[])]);
            b.leaf(ProgramInputKind::Param, "x", &x);
            let z = b.split(dtype, &[(j, &[]), (k, &axes)]);
            let first = b.split(dtype, &[(j, &[]), (k, &[]), (i, &axes)]);
            let [joined, last] = [b.whole(dtype, &[i, j, k]), b.whole(dtype, &[j, k])];
            let other = b.whole(dtype, &[j, k, i]);
            // What is split otherwise, by shards of the joined value.
            let alone = b.like(&joined);
            b.step(
                "alone",
                Prim::Collective(Collective::AllGather { axis: a, dims: vec![j] }),
                &[&x],
                &[&alone],
            );
            let sums = b.like(&last);
            b.reduce("sums", Monoid::Sum, &alone, &sums);
            b.step("cut", Prim::Copy, &[&sums], &[&z]);
            b.step("turned", Prim::Copy, &[&alone], &[&first]);
            let bucket = Collective::AllGather { axis: a, dims: vec![j, k, i] };
            b.step("joined", Prim::Collective(bucket), &[&x, &z, &first], &[&joined, &last, &other]);
            for (name, operand) in [("x", &joined), ("sums", &sums), ("z", &last), ("turned", &other)] {
                b.output(name, operand);
            }
            let values = (0..30).map(|n| f64::from(n * 7 % 31)).collect();
            let x = super::tensor(dtype, &[5, 3, 2], values);
            let (_, outputs) = run(&mesh, b.finish(), &x);
            let what = format!("{} of {dtype}", mesh.describe());
            assert_eq!(outputs["x"].data.to_f64(), x.data.to_f64(), "{what}");
            assert_eq!(outputs["z"].data.to_f64(), outputs["sums"].data.to_f64(), "{what}");
            let turned: Vec<f64> = (0..30).map(|n| x.data.to_f64()[n % 5 * 6 + n / 5]).collect();
            assert_eq!(outputs["turned"].data.to_f64(), turned, "{what}");
        }
    }
}

/// The same bits as by a reduce-scatter for each.
#[test]
fn a_bucket_scatters_what_each_of_its_members_scatters() {
    for (mesh, a) in meshes() {
        let mut b = Builder::new(&mesh);
        let s = b.dim("s", 5);
        let [i, j, k] = [b.dim("i", 4), b.dim("j", 3), b.dim("k", 2)];
        let axes = [a];
        let x = b.split(DType::F64, &[(s, &axes), (i, &[]), (j, &[]), (k, &[])]);
        b.leaf(ProgramInputKind::Param, "x", &x);
        let [partial, less] = [b.whole(DType::F64, &[i, j, k]), b.whole(DType::F64, &[j, k])];
        b.reduce("partial", Monoid::Sum, &x, &partial);
        b.reduce("less", Monoid::Sum, &x, &less);
        let mut results = vec![];
        for _ in 0..2 {
            let one = b.split(DType::F64, &[(i, &[]), (j, &axes), (k, &[])]);
            let two = b.split(DType::F64, &[(j, &[]), (k, &axes)]);
            results.push([one, two]);
        }
        let [together, apart] = [&results[0], &results[1]];
        let bucket = Collective::ReduceScatter { axis: a, monoid: Monoid::Sum, dims: vec![j, k] };
        b.step("together", Prim::Collective(bucket), &[&partial, &less], &[&together[0], &together[1]]);
        for (from, to, dim) in [(&partial, &apart[0], j), (&less, &apart[1], k)] {
            let alone = Collective::ReduceScatter { axis: a, monoid: Monoid::Sum, dims: vec![dim] };
            b.step("apart", Prim::Collective(alone), &[from], &[to]);
        }
        for (n, [one, two]) in results.iter().enumerate() {
            b.output(&format!("one {n}"), one);
            b.output(&format!("two {n}"), two);
        }
        let x = noise_tensor(DType::F64, &[5, 4, 3, 2], 13);
        let (_, outputs) = run(&mesh, b.finish(), &x);
        for name in ["one", "two"] {
            let [together, apart] = [0, 1].map(|n| outputs[&format!("{name} {n}")].data.to_f64());
            assert_eq!(together, apart, "{name} {}", mesh.describe());
        }
    }
}

#[test]
fn all_to_all_moves_an_axis_between_any_two_dims() {
    for (mesh, a) in meshes() {
        for (join, split) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let mut b = Builder::new(&mesh);
            let dims = [b.dim("i", 5), b.dim("j", 3), b.dim("k", 7)];
            let axes = [a];
            let place = |at: usize| -> Vec<_> {
                dims.iter()
                    .enumerate()
                    .map(|(i, d)| (*d, if i == at { &axes[..] } else { &[][..] }))
                    .collect()
            };
            let (from, to) = (b.split(DType::F32, &place(join)), b.split(DType::F32, &place(split)));
            b.leaf(ProgramInputKind::Param, "x", &from);
            let (join, split) = (dims[join], dims[split]);
            let collective = Collective::AllToAll { axis: a, join, split };
            b.step("moved", Prim::Collective(collective), &[&from], &[&to]);
            b.output("y", &to);
            let x = noise_tensor(DType::F32, &[5, 3, 7], 3);
            let (_, outputs) = run(&mesh, b.finish(), &x);
            close(&outputs["y"], &x, 0.0, &format!("{} {}->{}", mesh.describe(), join.0, split.0));
        }
    }
}
