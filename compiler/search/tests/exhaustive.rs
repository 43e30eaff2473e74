//! The answer of a search against all candidates one by one, and winners that were planted.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use meshwright_core::training_step;
use meshwright_cost::machine::Machine;
use meshwright_search::space::{FixedRules, SearchChoices, Space};
use support::{exhaustive, machine, program, random_machine, searched, space, subject, work_of};

/// A search in a space that kept lines and named axes make small enough to list.
#[derive(Clone, Copy)]
struct ListedSpace<'a> {
    model: &'a str,
    /// A preset and sizes.
    of: (Option<&'a str>, &'a [(&'a str, usize)]),
    kept: &'a str,
    /// Names of axes, which say how many there are at most.
    axes: &'a [&'a str],
}

/// With all that may be chosen.
const MLP: ListedSpace<'_> = ListedSpace { model: "mlp", of: (None, &[("batch", 8)]), kept: "", axes: &[] };
const MNIST: ListedSpace<'_> = ListedSpace { model: "mnist_mlp", ..MLP };
/// On two axes at most, without parts of the batch.
const FLAT_MLP: ListedSpace<'_> = ListedSpace { kept: "microbatches 1", axes: &["a", "b"], ..MLP };
const FLAT_MNIST: ListedSpace<'_> = ListedSpace { model: "mnist_mlp", ..FLAT_MLP };
const MNIST_ON_ONE: ListedSpace<'_> = ListedSpace { axes: &["a"], ..FLAT_MNIST };
/// BERT on one axis with all that may be stored over it and traded, and without parts.
const BERT: ListedSpace<'_> =
    ListedSpace { model: "bert", of: (Some("tiny"), &[]), kept: "microbatches 2", axes: &["data"] };
const FLAT_BERT: ListedSpace<'_> = ListedSpace { kept: "microbatches 1\nrecompute layers.*", ..BERT };
/// Beside an axis that the kept lines have.
const BERT_BESIDE: ListedSpace<'_> = ListedSpace {
    kept: "batch -> data\nmoments: * -> data\nmicrobatches 1\nrecompute layers.*",
    axes: &["data", "model"],
    ..BERT
};

/// Searches such a space and lists it: the answer is the fastest of all, and proven. Gives the number of candidates.
fn listed(of: &ListedSpace<'_>, devices: usize, machine: &Machine) -> u64 {
    let p = program(of.model, of.of.0, of.of.1);
    let step = training_step(&p).unwrap();
    let s = subject(&p, &step, machine);
    let kept = FixedRules::of(of.kept, &p).unwrap();
    let axes = of.axes.iter().map(ToString::to_string).collect();
    let choices = SearchChoices { devices, kept, axes, ..SearchChoices::default() };
    let work = s.work(&choices).unwrap();
    let space = Space::of(&p, &step, &work, choices);
    let times = exhaustive(&s, &space);
    let least = times.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    let found = searched(&space, &work, &s, 2);
    let (best, what) = (&found.found[0], format!("{} on {devices} of {}", of.model, machine.name));
    assert!(found.bound >= least, "{what}: proven");
    assert!(times.iter().any(|t| t.1 == best.written), "{what}: {:?} among {times:?}", best.written);
    let fastest = found.found.iter().map(|f| f.estimate.seconds).fold(f64::INFINITY, f64::min);
    assert!((fastest / least - 1.0).abs() < 1e-12, "{what}: {fastest} s, and {least} s of all");
    space.count()
}

/// True where long tests are asked for.
fn long() -> bool {
    std::env::var("LONG").is_ok_and(|v| v == "1")
}

#[test]
fn a_search_is_as_good_as_a_list_on_any_number_of_devices() {
    let cases: [(&str, [&[ListedSpace<'_>]; 5]); 2] = [
        ("dgx-h100", [&[MLP], &[MLP], &[FLAT_MLP], &[FLAT_MLP], &[FLAT_MLP]]),
        (
            "cpu",
            [
                &[MNIST, FLAT_BERT],
                &[MNIST, FLAT_BERT],
                &[FLAT_MNIST, FLAT_BERT, BERT_BESIDE],
                &[MNIST_ON_ONE, FLAT_BERT],
                &[MNIST_ON_ONE, BERT],
            ],
        ),
    ];
    let mut candidates = 0;
    for (base, of) in cases {
        for (devices, of) in [2, 3, 4, 6, 8].into_iter().zip(of) {
            for of in of {
                candidates += listed(of, devices, &machine(base, &[]));
            }
        }
    }
    assert!(candidates > 4000, "{candidates}");
    // With all that may be chosen.
    let large = [(MLP, 4), (MLP, 6), (MLP, 8), (MNIST, 4), (BERT, 2), (BERT, 3), (BERT, 4), (BERT_BESIDE, 8)];
    for (of, devices) in large.into_iter().filter(|_| long()) {
        listed(&of, devices, &machine("dgx-h100", &[]));
    }
}

#[test]
fn a_search_is_as_good_as_a_list_on_random_machines() {
    let cases = [
        (FLAT_BERT, 2),
        (MLP, 2),
        (BERT_BESIDE, 4),
        (MNIST_ON_ONE, 4),
        (FLAT_BERT, 3),
        (FLAT_MLP, 4),
        (MNIST, 3),
        (FLAT_MLP, 6),
        (MNIST, 2),
        (FLAT_MLP, 8),
    ];
    for (seed, (of, devices)) in cases.into_iter().enumerate() {
        let mut bases = vec!["cpu", "dgx-h100"];
        bases.swap(0, seed % 2);
        bases.truncate(if long() { 2 } else { 1 });
        for base in bases {
            listed(&of, devices, &random_machine(base, seed as u64));
        }
    }
}

/// A GPU whose memory is slow, and all else free.
fn slow_memory() -> Machine {
    let mut m = machine("dgx-h100", &["device.kernel=1e-12".into()]);
    m.device.matrix.values_mut().for_each(|x| (x.peak, x.best) = (1e24, 1e24));
    m.device.attention.values_mut().for_each(|a| (a.forward.0, a.backward.0) = (1e24, 1e24));
    m.device.stream.rates = vec![(1e6, 1e9)];
    for tier in &mut m.tier {
        (tier.hop, tier.p2p_latency, tier.cap) = (0.0, 0.0, None);
        tier.line.iter_mut().for_each(|l| (l.latency, l.per_member, l.rate) = (0.0, 0.0, 1e18));
    }
    m
}

/// The rules and the mesh of the best layout.
fn best(
    model: &str,
    preset: Option<&str>,
    dims: &[(&str, usize)],
    (devices, machine): (usize, &Machine),
) -> String {
    let p = program(model, preset, dims);
    let step = training_step(&p).unwrap();
    let s = subject(&p, &step, machine);
    let work = work_of(&s, devices);
    let space = space(&p, &step, &work, devices);
    let found = searched(&space, &work, &s, 2);
    let best = &found.found[0];
    assert!(found.bound >= best.estimate.seconds, "{model}: proven");
    format!("{} on {}", best.written.rules(), best.written.mesh)
}

#[test]
fn planted_winners_are_found() {
    let m = slow_memory();
    // A single example cannot be split, and all weights have one dim: what reads them a part each is fastest.
    for devices in [2, 4] {
        let of = |model, preset, dims: &[(&str, usize)]| best(model, preset, dims, (devices, &m));
        assert_eq!(
            of("mlp", None, &[("batch", 1), ("hidden", 1 << 18)]),
            format!("hidden -> model on model={devices}")
        );
        let sizes = [("batch", 1), ("seq", 2), ("d_head", 128)];
        assert_eq!(of("bert", Some("tiny"), &sizes), format!("d_model -> model on model={devices}"));
    }
    // So many examples that all time goes into what is computed of each, and all of that has the dim `batch`.
    for devices in [2, 4] {
        let found = best("mnist_mlp", None, &[("batch", 1 << 20)], (devices, &m));
        assert_eq!(found, format!("batch -> data on data={devices}"));
    }
}
