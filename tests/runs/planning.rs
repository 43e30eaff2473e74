//! Planning: fast, and a function of its input alone.

use crate::support::options;
use meshwright_core::training_step;
use meshwright_plan::Plan;
use meshwright_train::{Project, ProjectOptions};
use std::time::{Duration, Instant};

/// From names on the command line to a Plan: parsing, resolving, differentiating, partitioning, scheduling.
fn plan(o: &ProjectOptions) -> Plan {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap().plan
}

#[test]
fn planning_takes_less_than_50_ms() {
    for (model, mesh, layout) in [
        ("mlp", "", "dp_mp"),
        ("mnist_mlp", "", "dp_mp"),
        ("mnist_mlp", "", "zero3"),
        ("mnist_mlp", "a=2,b=3,c=4", "batch -> a; hidden1 -> b; hidden2 -> c; params: rows -> c"),
    ] {
        let o = options(model, mesh, layout, &[]);
        // The best of some: others share the machine.
        let best = (0..5).map(|_| {
            let t = Instant::now();
            plan(&o);
            t.elapsed()
        });
        let best = best.min().unwrap();
        assert!(best < Duration::from_millis(50), "{model}, {mesh}, {layout}: {best:?}");
    }
}

#[test]
fn a_plan_is_byte_identical_and_survives_its_own_form() {
    for layout in ["dp", "mp", "dp_mp", "zero1", "zero2", "zero3", "folded"] {
        let o = options("mnist_mlp", "", layout, &[]);
        let (a, b) = (plan(&o), plan(&o));
        assert_eq!(a.to_json(), b.to_json(), "{layout}");
        let read = Plan::from_json(&a.to_json()).unwrap();
        assert_eq!(read, a, "{layout}");
        assert_eq!(read.hash(), a.hash());
    }
    let of = |layout| plan(&options("mlp", "", layout, &[])).hash();
    assert_ne!(of("dp"), of("mp"));
}
