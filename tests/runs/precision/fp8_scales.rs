//! Scales of factors in 8 bits: each maximum is taken once, where its value is computed, and copies of the value share it.

use super::fp8::{planned, tiny, training};
use crate::support::options;
use meshwright_core::{StepGraph, training_step};
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::LaunchKind;
use meshwright_device::target::Target;
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::expr::{Scalar, UnaryFn};
use meshwright_plan::{BufId, Collective, Monoid, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Project, ProjectOptions};
use std::sync::Arc;

/// Maxima for scales by the name of their value, each with the dims of the loops that compute it; those of rows, of which another
/// is computed, count as that one.
fn maxima(plan: &Plan) -> Vec<(String, Vec<String>)> {
    let (mut loops, mut found) = (Vec::new(), Vec::new());
    let of_rows = maxima_of_rows(plan);
    for step in &plan.steps {
        match &step.prim {
            Prim::Repeat { dim, .. } => loops.push(plan.dims.name(*dim).to_string()),
            Prim::EndRepeat => drop(loops.pop()),
            Prim::Reduce { monoid: Monoid::Max } => {
                let path = step.origin[0].path.to_string();
                let scales = path.starts_with("e4m3(") || path.starts_with("e5m2(");
                if scales && !of_rows.contains(&step.writes[0].buf) {
                    found.push((path, loops.clone()));
                }
            }
            _ => {}
        }
    }
    found
}

/// The maxima of which another maximum is computed.
fn maxima_of_rows(plan: &Plan) -> SortedSet<BufId> {
    let is_max = |step: &&Step| matches!(step.prim, Prim::Reduce { monoid: Monoid::Max });
    let written: SortedSet<BufId> = plan.steps.iter().filter(is_max).map(|s| s.writes[0].buf).collect();
    let read = plan.steps.iter().filter(is_max).map(|s| s.reads[0].buf);
    read.filter(|buf| written.contains(buf)).collect()
}

/// Weights, activations and cotangents of gpt whose maxima are taken in these loops.
fn of_gpt(mesh: &str, layout: &str) -> SortedMap<String, Vec<String>> {
    let mut all: SortedMap<String, Vec<String>> = SortedMap::new();
    for (name, loops) in maxima(&planned(&tiny("gpt", mesh, layout), training)) {
        all.entry(loops.join(" ")).or_default().push(name);
    }
    all.values_mut().for_each(|names| names.sort());
    all
}

const BLOCK: &str = "layers.block.";

/// The six weights of a layer.
fn weights() -> Vec<String> {
    let names = ["attention.k", "attention.out", "attention.q", "attention.v", "mlp.down", "mlp.up"];
    names.map(|name| format!("e4m3(bf16({BLOCK}{name}.w))")).to_vec()
}

/// Its activations, of which queries, keys and values share one, then its cotangents.
fn others() -> Vec<String> {
    let activations = ["attention.attention", "mlp.up", "norm1", "norm2"];
    let cotangents = ["attention.k", "attention.out", "attention.q", "attention.v", "mlp.down", "mlp.up"];
    let one = activations.map(|name| format!("e4m3({BLOCK}{name})"));
    let two = cotangents.map(|name| format!("e5m2(d({BLOCK}{name}))"));
    one.into_iter().chain(two).collect()
}

#[test]
fn a_maximum_is_taken_once() {
    let pipeline = "layers -> pipe; microbatches 4";
    let zb = "layers -> pipe; microbatches 4; schedule zb_h1";
    for (mesh, layout, loops) in [
        ("", "", "layers"),
        ("", "recompute layers.*", "layers"),
        ("c=2", "heads, d_ff -> c", "layers"),
        ("data=2", "zero3", "layers"),
        ("", "microbatches 2", "microbatch layers"),
        ("d=2", "batch -> d; params: * -> d; microbatches 2; keep params; recompute *", "microbatch layers"),
        ("pipe=2", pipeline, "microbatch layers"),
        ("pipe=2", zb, "microbatch layers"),
    ] {
        let wanted = SortedMap::from([(String::new(), weights()), (loops.to_string(), others())]);
        assert_eq!(of_gpt(mesh, layout), wanted, "{mesh}, {layout}");
    }
}

/// With a history too: what a step adds to the states is computed in the same places.
#[test]
fn a_history_takes_each_maximum_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = super::fp8_history::shipped("gpt", 4, dir.path());
    let o = ProjectOptions { preset: Some("tiny".into()), ..options(&model, "", "", &[]) };
    let plan = planned(&o, training);
    let of_rows = maxima_of_rows(&plan);
    let of = |monoid: Monoid, in_loops: bool| {
        let mut depth = 0;
        let mut count = 0;
        for step in &plan.steps {
            match &step.prim {
                Prim::Repeat { .. } => depth += 1,
                Prim::EndRepeat => depth -= 1,
                Prim::Reduce { monoid: found } if *found == monoid && (depth > 0) == in_loops => {
                    let whole = !of_rows.contains(&step.writes[0].buf);
                    count += usize::from(whole && step.origin[0].path.starts_with("fp8/"));
                }
                _ => {}
            }
        }
        count
    };
    assert_eq!([of(Monoid::Max, false), of(Monoid::Max, true)], [weights().len(), others().len()]);
}

/// On a GPU no kernel reads a value for its maximum alone where a kernel along rows makes the value, or sums it over its rows.
/// What is left are weights, the result of attention, and `gelu`, of which nothing else is stored.
#[test]
fn kernels_along_rows_have_the_maxima() {
    let plan = planned(&tiny("gpt", "", ""), training);
    let device = meshwright_device::compile(&plan, 0, Target::h100()).unwrap();
    // No weight has fewer elements, and there are fewer rows.
    let least = 128 * 128;
    let mut read: SortedMap<String, usize> = SortedMap::new();
    for launch in device.launches.iter() {
        let LaunchKind::Kernel(Kernel::Fold(calls)) = &launch.kind else { continue };
        for call in calls.0.iter().filter(|call| call.monoid == Monoid::Max) {
            let elements: usize = call.sizes.iter().product();
            let at = *launch.steps.last().unwrap();
            if elements >= least {
                read.insert(plan.steps[at].origin[0].path.to_string(), elements);
            }
        }
    }
    let mut wanted = weights();
    wanted.extend(["attention.attention", "mlp.up"].map(|name| format!("e4m3({BLOCK}{name})")));
    wanted.sort();
    assert_eq!(read.keys().cloned().collect::<Vec<_>>(), wanted, "{read:?}");
}

/// `gelu` is stored nowhere: its factors and its gradient compute it of what the layer has before it.
#[test]
fn factors_compute_cheap_values_themselves() {
    let plan = planned(&tiny("gpt", "", ""), training);
    let tanh = |step: &&Step| {
        let Prim::Map { expr, .. } = &step.prim else { return false };
        expr.nodes.iter().any(|n| matches!(n.scalar, Scalar::Unary(UnaryFn::Tanh, _)))
    };
    let made: Vec<String> = plan.steps.iter().filter(tanh).map(|s| s.origin[0].path.to_string()).collect();
    let up = format!("{BLOCK}mlp.up");
    let factor = format!("e4m3({up})");
    // Its magnitudes and the factor in the forward pass, the factor and the gradient in the backward pass.
    assert_eq!(made, [factor.clone(), factor.clone(), factor, format!("d({up})")]);
}

/// Devices agree on the scales of all layers of a weight at once, in front of the loops.
#[test]
fn devices_agree_once_on_the_scales_of_weights() {
    let plan = planned(&tiny("gpt", "d=2", "params: * -> d"), training);
    let mut depth = 0;
    let mut agreed = 0;
    for step in &plan.steps {
        match &step.prim {
            Prim::Repeat { .. } => depth += 1,
            Prim::EndRepeat => depth -= 1,
            Prim::Collective(Collective::AllReduce { monoid: Monoid::Max, .. }) => {
                assert_eq!(depth, 0, "{:?}", step.origin);
                agreed += step.writes.len();
            }
            _ => {}
        }
    }
    assert_eq!(agreed, weights().len());
}

/// A model of three layers, in a loop or written out.
fn layers(looped: bool) -> String {
    let layer = |from: &str, i: &str, to: &str| {
        format!(
            "    param up{i}[d, ff] = normal(0, 0.3)\n    param down{i}[ff, d] = normal(0, 0.3)\n    \
             {to} = {from} + 0.5 * sum[ff](tanh(sum[d]({from} * up{i})) * down{i})\n"
        )
    };
    let (body, end) = match looped {
        true => (format!("    let y = start\n    repeat layers {{\n{}    }}\n", layer("y", "", "y")), "y"),
        false => {
            let all = [("start", "0", "let y0"), ("y0", "1", "let y1"), ("y1", "2", "let y2")];
            (all.map(|(from, i, to)| layer(from, i, to)).concat(), "y2")
        }
    };
    format!(
        "dim batch = 8, inp = 4, d = 16, ff = 32, out = 4, layers = 3\nmodel m {{\n    input x[batch, inp]: float\n    \
         param first[inp, d] = normal(0, 0.3)\n    param last[d, out] = normal(0, 0.3)\n    \
         let start = sum[inp](x * first)\n{body}    \
         let z = sum[d]({end} * last)\n    loss l = mean[batch, out](z * z)\n}}\n\
         train m {{\n    minimize l\n    optimizer sgd(lr = 0.05)\n    precision fp8\n}}\n"
    )
}

/// Losses of four steps, and parameters after them; of parameters `given` for those of the first step.
fn after_steps(
    text: &str,
    (mesh, layout): (&str, &str),
    given: &SortedMap<String, HostTensor>,
) -> [SortedMap<String, HostTensor>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.mw");
    std::fs::write(&file, text).unwrap();
    let loaded = Project::load(&options(file.to_str().unwrap(), mesh, layout, &[]));
    let project = loaded.project.unwrap_or_else(|| panic!("{text}: {:?}", loaded.diagnostics));
    let step: StepGraph = training_step(&project.program).unwrap();
    let plan = project.compile(&step, &loaded.sources).0.unwrap_or_else(|| panic!("{layout}")).plan;
    let dims = plan.dims.clone();
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 7).unwrap();
    for (name, value) in given {
        cluster.set_state(name, value).unwrap();
    }
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    let all = |cluster: &Cluster| -> SortedMap<String, HostTensor> {
        names.iter().map(|n| (n.clone(), cluster.state(n).unwrap())).collect()
    };
    let first = all(&cluster);
    let provider: Provider = Arc::new(move |_, leaves: &[LocalInput]| {
        let whole = |l: &LocalInput| {
            let shape = dims.shape(&l.dims);
            let values = (0..shape.iter().product()).map(|i| ((i * 37) % 23) as f64 / 7.0 - 1.5).collect();
            HostTensor::new(shape, HostData::from_f64(l.dtype, values)).unwrap()
        };
        Ok(leaves.iter().map(|l| whole(l).slice(&l.ranges).unwrap()).collect())
    });
    let mut out = SortedMap::new();
    for step in 1..=4 {
        let losses = cluster.run(id, step, &provider).unwrap().outputs;
        out.extend(losses.into_iter().map(|(name, v)| (format!("{name} {step}"), v)));
    }
    out.extend(all(&cluster));
    cluster.shutdown();
    [first, out]
}

/// The layers of a stack, by the names that they have where they are written out.
fn written_out(all: &SortedMap<String, HostTensor>) -> SortedMap<String, HostTensor> {
    let mut out = SortedMap::new();
    for (name, value) in all {
        let Some(stack) = name.strip_prefix("layers.") else {
            out.insert(name.clone(), value.clone());
            continue;
        };
        for i in 0..3 {
            let range = |(d, n): (usize, &usize)| if d == 0 { i..i + 1 } else { 0..*n };
            let ranges: Vec<_> = value.shape.iter().enumerate().map(range).collect();
            let one = value.slice(&ranges).unwrap();
            let one = HostTensor::new(value.shape[1..].to_vec(), one.data).unwrap();
            out.insert(format!("{stack}{i}"), one);
        }
    }
    out
}

/// A loop has the bits of its layers written out, where nothing is sliced or stacked and each factor has its own scale.
#[test]
fn a_loop_has_the_bits_of_its_layers_written_out() {
    let [first, looped] = after_steps(&layers(true), ("", ""), &SortedMap::new());
    let [_, out] = after_steps(&layers(false), ("", ""), &written_out(&first));
    assert_eq!(written_out(&looped), out);
    assert_ne!(first["layers.up"], looped["layers.up"]);
    for (mesh, layout) in [("", "recompute layers.*"), ("a=2", "params: * -> a"), ("a=3", "layers -> a")] {
        let [_, other] = after_steps(&layers(true), (mesh, layout), &first);
        assert_eq!(looped, other, "{mesh}, {layout}");
    }
}
