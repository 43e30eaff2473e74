//! Collectives in flight: the same bits as without, something to compute meanwhile, and devices that fail in between.

use crate::support::{SMALL, SMALL_DIMS, folder, options, run, trained};
use meshwright_comm::{FaultInjector, InjectedFault, Timeouts, Transport, World};
use meshwright_core::lowering::{fuse, lifetimes, lower, overlap};
use meshwright_core::training_step;
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{DType, Phase, Plan, Prim, Step, StepLoop};
use meshwright_train::{Project, ProjectOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After which a device is missed: what ends in less misses none.
const TIMEOUT: Duration = Duration::from_secs(60);

const LAYOUTS: &[(&str, &str)] = &[
    ("r=2,c=2", "batch -> r; hidden -> c; params: rows -> r"),
    ("r=2,c=2", "batch -> r, c; params: rows -> c"),
    ("data=4", "zero1"),
    ("data=2", "zero3"),
];

/// A small decoder of several layers.
const DEEP: &[(&str, usize)] =
    &[("batch", 4), ("seq", 6), ("places", 6), ("vocab", 13), ("layers", 4), ("heads", 2), ("d_head", 4)];

fn of(mesh: &str, layout: &str, no_overlap: bool) -> ProjectOptions {
    let dims = [SMALL_DIMS, &[("hidden", 11)]].concat();
    ProjectOptions { no_overlap, ..options("mlp", mesh, layout, &dims) }
}

fn plan(options: &ProjectOptions) -> Plan {
    let loaded = Project::load(options);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
}

/// Steps that start a collective, and its bytes in order.
fn flights(plan: &Plan) -> (usize, Vec<usize>) {
    let collectives = plan.steps.iter().filter(|s| s.collective().is_some());
    let all: Vec<(bool, usize)> =
        collectives.map(|s| (s.async_id.is_some(), s.collective_bytes(plan).iter().sum())).collect();
    (all.iter().filter(|c| c.0).count(), all.iter().map(|c| c.1).collect())
}

#[test]
fn the_same_bits_with_and_without() {
    let dir = folder(SMALL);
    for (i, (mesh, layout)) in LAYOUTS.iter().enumerate() {
        let (with, without) = (of(mesh, layout, false), of(mesh, layout, true));
        let [(flying, mut bytes), (none, mut others)] = [&with, &without].map(|o| flights(&plan(o)));
        assert!(flying > 0 && none == 0, "{layout}: {flying} and {none} of {}", bytes.len());
        bytes.sort_unstable();
        others.sort_unstable();
        assert_eq!(bytes, others, "{layout}: other collectives");
        let one = trained(&with, dir.path(), &format!("with-{i}"), 5);
        let other = trained(&without, dir.path(), &format!("without-{i}"), 5);
        assert_eq!(one.losses.map_bits(), other.losses.map_bits(), "{layout}");
        assert_eq!(one.tensors, other.tensors, "{layout}");
    }
}

/// Programs in which gathers, scatters and all-reduces share buckets give what they give with a collective for each value.
#[test]
fn buckets_change_no_bit() {
    let runs: [(&str, &str, Option<DType>); 5] = [
        ("data=2", "zero3", None),
        ("data=3", "zero3", Some(DType::BF16)),
        ("data=4", "zero1", None),
        ("data=4", "zero2", Some(DType::F64)),
        ("r=2,c=2", "batch -> r, c; params: rows -> c", None),
    ];
    for (mesh, layout, precision) in runs {
        let options = ProjectOptions { precision: precision.map(DType::into), ..of(mesh, layout, false) };
        let loaded = Project::load(&options);
        let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        let step = training_step(&project.program).unwrap();
        let together = project.compile(&step, &loaded.sources).0.unwrap();
        let apart = lifetimes(overlap(fuse(lower(&together.spmd, &|_| 0))));
        let count = |p: &Plan| p.steps.iter().filter(|s| s.collective().is_some()).count();
        let [few, many] = [&together.plan, &apart].map(count);
        assert!(few < many, "{layout}: {few} of {many} collectives");
        let [one, other] = [together.plan, apart].map(|plan| after_steps(Arc::new(plan)));
        assert_eq!(one, other, "{layout}");
    }
}

/// What a program gives in three steps, and its state after them.
fn after_steps(plan: Arc<Plan>) -> Vec<(String, HostTensor)> {
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(plan).unwrap();
    cluster.init_state(id, 7).unwrap();
    let inputs: Provider = Arc::new(|step, leaves: &[LocalInput]| {
        let value = |i: usize, l: &LocalInput| match l.dtype.is_float() {
            true => ((i * 37 + step) % 23) as f64 / 11.0 - 1.0,
            false => ((i + step) % 2) as f64,
        };
        let one = |l: &LocalInput| {
            let values = (0..l.shape().iter().product()).map(|i| value(i, l)).collect();
            HostTensor::new(l.shape(), HostData::from_f64(l.dtype, values)).unwrap()
        };
        Ok(leaves.iter().map(one).collect())
    });
    let mut out = vec![];
    for step in 1..=3 {
        out.extend(cluster.run(id, step, &inputs).unwrap().outputs);
    }
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    out.extend(names.into_iter().map(|n| (n.clone(), cluster.state(&n).unwrap())));
    cluster.shutdown();
    out
}

trait MapBits {
    fn map_bits(&self) -> Vec<u64>;
}

impl MapBits for Vec<f64> {
    fn map_bits(&self) -> Vec<u64> {
        self.iter().map(|v| v.to_bits()).collect()
    }
}

/// The buckets of a wide model fly while the gradients of its first layers are computed.
#[test]
fn gradients_of_the_last_layers_fly_while_those_of_the_first_are_computed() {
    let wide = &[("hidden1", 2048), ("hidden2", 2048)];
    let plan = plan(&options("mnist_mlp", "data=2", "batch -> data", wide));
    let reduced = |i: &usize| plan.steps[*i].name() == "all_reduce";
    let sums: Vec<usize> = (0..plan.steps.len()).filter(reduced).collect();
    assert!((2..=5).contains(&sums.len()), "{} all-reduces", sums.len());
    let gradient = |s: &Step| s.phase == Phase::Backward && s.prim == Prim::Contract;
    let beneath = plan.steps[sums[0]..plan.end_of(sums[0])].iter().filter(|s| gradient(s)).count();
    assert!(beneath >= 2, "{beneath} products while the first bucket is in flight");
    let small = super::overlap::plan(&of("data=2", "batch -> data", false));
    assert_eq!(small.steps.iter().filter(|s| s.name() == "all_reduce").count(), 1);
}

/// With parameters split, a loop gathers the weights of the next iteration and scatters the gradients of the one before while it
/// computes: one bucket each, no collective more than without, and at most an eighth more memory.
#[test]
fn loops_gather_an_iteration_ahead_and_reduce_one_behind() {
    let of = |no_overlap| ProjectOptions { no_overlap, ..options("gpt", "data=2", "zero3", DEEP) };
    let [with, without] = [of(false), of(true)].map(|o| plan(&o));
    assert!(without.steps.iter().all(|s| s.lag == 0), "lags without overlap");
    let loops = with.loops();
    let [forward, backward] = loops[..] else { panic!("{} loops", loops.len()) };
    let lags = |of: &StepLoop, name: &str| -> Vec<u8> {
        (of.begin..of.end).filter(|s| with.steps[*s].name() == name).map(|s| with.steps[s].lag).collect()
    };
    for (of, gathered, reduced) in [(forward, vec![0], vec![]), (backward, vec![0], vec![2])] {
        assert_eq!(lags(&of, "all_gather"), gathered);
        assert_eq!(lags(&of, "reduce_scatter"), reduced);
        let products = lags(&of, "contract");
        assert!(products.len() >= 6 && products.iter().all(|lag| *lag == 1), "{products:?}");
        for start in (of.begin..of.end).filter(|s| with.steps[*s].collective().is_some()) {
            let meanwhile = with.steps[start..with.end_of(start)].iter().filter(|s| s.prim == Prim::Contract);
            assert!(meanwhile.count() >= 3, "what hides step {start}");
        }
    }
    let bytes = |p: &Plan| p.summary.collective_bytes;
    assert_eq!(bytes(&with), bytes(&without));
    let [more, less] = [&with, &without].map(|p| p.summary.peak_bytes);
    assert!(more - less <= (less / 8).max(4 << 20), "{more} bytes instead of {less}");
    let [one, other] = [with, without].map(|plan| after_steps(Arc::new(plan)));
    assert_eq!(one, other);
}

/// Wherever a device fails, with whatever in flight, the run ends soon and its error names a rank and a line.
#[test]
fn a_device_that_fails_while_others_are_in_flight_ends_the_run() {
    for (mesh, layout) in &LAYOUTS[..2] {
        let plan = Arc::new(plan(&of(mesh, layout, false)));
        let calls = plan.steps.iter().filter(|s| s.collective().is_some()).count() as u64;
        for call in 0..calls {
            for fault in [InjectedFault::Fail, InjectedFault::Panic] {
                // Two calls compare the hash of the Plan before anything runs; the first step goes well.
                let at = 2 + calls + call;
                let ends = World::new(4, Timeouts::all(TIMEOUT)).into_iter();
                let ends = ends.map(|t| -> Box<dyn Transport> {
                    if t.rank() == 2 {
                        Box::new(FaultInjector::new(t).with_fault(at, fault.clone()))
                    } else {
                        Box::new(t)
                    }
                });
                let mut cluster = Cluster::with_transports(
                    &plan.mesh,
                    ends.collect(),
                    &ClusterOptions::on(meshwright_cpu::device()),
                )
                .unwrap();
                let id = cluster.load(plan.clone()).unwrap();
                cluster.init_state(id, 1).unwrap();
                let zeros: Provider = Arc::new(|_, leaves: &[LocalInput]| {
                    Ok(leaves.iter().map(|l| HostTensor::zeros(l.dtype, l.shape())).collect())
                });
                let begin = Instant::now();
                cluster.run(id, 1, &zeros).unwrap();
                let error = cluster.run(id, 2, &zeros).unwrap_err().to_string();
                cluster.shutdown();
                assert!(begin.elapsed() < TIMEOUT, "{layout}: {fault:?} in call {call}");
                for part in ["rank 2", "step 2", "at line "] {
                    assert!(error.contains(part), "{layout}: {fault:?} in call {call}: {error}");
                }
            }
        }
    }
}

#[test]
fn explain_shows_where_collectives_start_and_are_waited_for() {
    let args = ["explain", "mlp", "--mesh", "data=4", "--layout", "zero1", "--format", "json"];
    let read = |more: &[&str]| {
        let said = run(&[&args[..], more].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        report["collectives"].as_array().unwrap().clone()
    };
    let flies = |c: &serde_json::Value| c["wait"].as_u64() > c["start"].as_u64();
    let (with, without) = (read(&[]), read(&["--no-overlap"]));
    assert_eq!(with.len(), without.len());
    assert!(with.iter().any(|c| flies(c) && c["meanwhile"].as_u64() > Some(0)), "{with:?}");
    assert!(!without.iter().any(flies), "{without:?}");
    let all = run(&[&args[..6], &["--all"]].concat()).out;
    assert!(all.contains("collectives start and are waited for"), "{all}");
}
