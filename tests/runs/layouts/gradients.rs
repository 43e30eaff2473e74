//! The first step in f32: the loss, and every gradient, on many meshes beside one device.

use crate::support::{Numbers, options};
use meshwright_core::step::autodiff::gradients;
use meshwright_core::{OutputKind, StepGraph, StepOutput};
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::Arithmetic;
use meshwright_sorted::SortedMap;
use meshwright_train::Project;
use std::sync::Arc;

/// A step that gives the loss and the gradients.
fn step(project: &Project) -> StepGraph {
    let p = &project.program;
    let mut graph = p.graph.clone();
    let loss = p.train.as_ref().unwrap().loss().clone();
    let params: Vec<_> = p.params.iter().collect();
    let grads = gradients(&mut graph, loss.id, &params);
    let mut outputs = vec![StepOutput { name: "loss".into(), id: loss.id, kind: OutputKind::Scalar }];
    for (p, id) in params.iter().zip(grads) {
        outputs.push(StepOutput { name: p.path.clone(), id, kind: OutputKind::Output });
    }
    let inputs = p.inputs.iter().map(|i| i.0.clone()).collect();
    StepGraph {
        model: p.model.clone(),
        program: "gradients",
        float: p.float,
        scale_history: None,
        graph,
        inputs,
        outputs,
    }
}

/// Whole inputs that suit the declarations, in which each device finds its part.
fn data(project: &Project) -> Provider {
    let mut numbers = Numbers(11);
    let mut whole: SortedMap<String, HostTensor> = SortedMap::new();
    for (decl, _, _) in &project.program.inputs {
        let dims = &project.program.graph.dims;
        let shape = dims.shape(&decl.dims);
        let high = decl.range.map_or(256, |r| dims.size(r));
        let n = shape.iter().product();
        let values = (0..n).map(|_| numbers.below(high) as f64).collect();
        whole.insert(
            decl.name.clone(),
            HostTensor::new(shape, HostData::from_f64(decl.dtype, values)).unwrap(),
        );
    }
    Arc::new(move |_, leaves: &[LocalInput]| {
        Ok(leaves.iter().map(|l| whole[&l.name].slice(&l.ranges).unwrap()).collect())
    })
}

/// The loss and the gradients by name, each row-major over its dims in one order.
fn first_step(model: &str, mesh: &str, layout: &str) -> SortedMap<String, Vec<f64>> {
    let loaded = Project::load(&options(model, mesh, layout, &[]));
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    assert_eq!(project.program.float, Arithmetic::F32);
    let plan = project.compile(&step(&project), &loaded.sources).0.unwrap().plan;
    let dims: SortedMap<_, _> = plan.outputs.iter().map(|o| (o.name.clone(), o.dims.clone())).collect();
    let mut cluster =
        Cluster::threads(&project.layout.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 5).unwrap();
    let report = cluster.run(id, 1, &data(&project)).unwrap();
    cluster.shutdown();
    report.outputs.iter().map(|(n, t)| (n.clone(), in_order_of_dims(t, &dims[n]))).collect()
}

/// The elements of a tensor row-major over its dims in ascending order, whatever order it is stored in.
fn in_order_of_dims(t: &HostTensor, dims: &[meshwright_plan::Dim]) -> Vec<f64> {
    let data = t.data.to_f64();
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|i| dims[*i]);
    let stride = |i: usize| -> usize { t.shape[i + 1..].iter().product() };
    let mut out = vec![];
    let mut at = vec![0; dims.len()];
    for _ in 0..data.len() {
        out.push(data[(0..dims.len()).map(|i| at[i] * stride(i)).sum::<usize>()]);
        for i in order.iter().rev() {
            at[*i] += 1;
            if at[*i] < t.shape[*i] {
                break;
            }
            at[*i] = 0;
        }
    }
    out
}

fn norm(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn loss_and_gradients_of_the_first_step_agree_in_f32() {
    for (model, hidden) in [("mlp", "hidden"), ("mnist_mlp", "hidden1")] {
        let one = first_step(model, "", "");
        let both = format!("batch -> r; {hidden} -> c");
        let wide = format!("{hidden} -> a");
        let folded = format!("{hidden} -> x, y");
        for (mesh, layout) in [
            ("all=4", "batch -> all"),
            ("a=4", wide.as_str()),
            ("r=2,c=2", both.as_str()),
            ("a=3", "batch -> a"),
            ("a=7", wide.as_str()),
            ("x=2,y=2", folded.as_str()),
            ("r=2,c=2", ""),
            ("data=4", "zero1"),
            ("data=4", "zero2"),
            ("data=4", "zero3"),
        ] {
            let other = first_step(model, mesh, layout);
            assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
            for (name, a) in &one {
                let b = &other[name];
                let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
                let bound = if name == "loss" { 1e-6 } else { 1e-5 };
                let off = norm(&difference) / norm(a);
                assert!(
                    a.len() == b.len() && off <= bound,
                    "{model}, {mesh}, {layout}: {name} is {off:e} apart"
                );
                assert!(norm(a) > 0.0, "{model}: {name} is 0");
            }
        }
    }
}
