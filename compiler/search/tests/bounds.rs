//! Bounds of candidates: each level is below the next, and all are below the estimate.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use meshwright_core::training_step;
use meshwright_search::alone::AxesAlone;
use meshwright_search::base_bound::{BaseBound, BasePlace};
use meshwright_search::bound::roofline;
use meshwright_search::compiled::Subject;
use meshwright_search::space::{SearchChoices, Space, Stored};
use meshwright_search::text::Candidate;
use meshwright_search::work::ModelWork;
use support::{alike, bases, estimates, program, random_machine, space, subject, work_of};

/// Compares bounds of candidates, a few of each base, with their estimates, and counts them, and those whose program says as much as `B0` or more.
fn compare(s: &Subject<'_>, space: &Space, work: &ModelWork, every: (usize, usize)) -> (usize, usize) {
    let (mut compared, mut raised, mut alone) = (0, 0, AxesAlone::default());
    let rates = work.rates.as_ref().unwrap();
    for (at, base) in bases(space).iter().enumerate().skip(every.0 % every.1).step_by(every.1) {
        let text = space.written(base);
        let mut one: f64 = 0.0;
        loop {
            let unknown = alone.unknown(space, base);
            for of in &unknown {
                alone.take(*of, AxesAlone::compiled((space, work, s), *of).map(Result::unwrap));
            }
            one = one.max(alone.least((space, work, s), (&base.mesh, &base.sets)));
            if unknown.is_empty() || base.sets.iter().any(|s| alone.refused.contains_key(s)) {
                break;
            }
        }
        let stages = space.stages(&base.mesh);
        let own = match stages {
            1 => s.base(&text, work).map(|b| b.unwrap().1),
            _ => s.stage(&text, work, base.mesh.iter().product()).map(Result::unwrap),
        };
        let bound = own.as_ref().map(|b| BaseBound::new(b, BasePlace::whole(&base.mesh), rates, s.machine));
        let of_base = alike(space, base);
        for c in of_base.iter().skip(at % 5).step_by(of_base.len().div_ceil(4)) {
            let text = space.written(c);
            let estimates = estimates(s, space, c);
            let (Ok(bound), Ok(estimates)) = (&bound, &estimates) else { continue };
            let seconds = estimates.iter().map(|e| e.seconds).fold(f64::INFINITY, f64::min);
            let axes = space.shares(&c.mesh, &c.sets, &c.stored);
            let (none, again) = (roofline(work, &axes, 0), roofline(work, &axes, c.recompute));
            let least = bound.seconds(&c.stored, c.parts, again - none) / stages as f64;
            let above = again / stages as f64;
            assert_levels(&(space, work), c, [above, least.max(one), seconds], &s.machine.name);
            for (name, bound) in [("B0", above), ("B1", least), ("B1 of an axis", one)] {
                let name = format!("{name} on {}: {text:?}", s.machine.name);
                assert!(bound <= seconds * (1.0 + 1e-9), "{name}: {bound} > {seconds}");
            }
            raised += usize::from(above <= least.max(one) * (1.0 + 1e-9));
            compared += 1;
        }
    }
    (compared, raised)
}

/// Bounds rise from the axes of a candidate, one by one, to all of them, to its compiled program and to its estimate. Of parameters that are stored
/// split, `B0` may say a little more than the program: it knows what the update does of each, and a search takes the larger of the two.
fn assert_levels(
    (space, work): &(&Space, &ModelWork),
    c: &Candidate,
    [b0, b1, seconds]: [f64; 3],
    machine: &str,
) {
    let first = |axes: usize| {
        let of = |stored: &[Stored]| roofline(work, &space.shares(&c.mesh, &c.sets[..axes], stored), 0);
        let most = |s: &usize| if space.sets[*s].sums { Stored::Params } else { Stored::Whole };
        let most: Vec<Stored> = c.sets[..axes].iter().map(most).collect();
        of(&vec![Stored::Whole; axes]).min(of(&most)) / space.stages(&c.mesh) as f64
    };
    let text = space.written(c);
    let axes: Vec<f64> = (0..=c.sets.len()).map(first).chain([b0]).collect();
    let rise = axes.windows(2).all(|w| w[0] <= w[1] * (1.0 + 1e-9));
    assert!(rise, "{machine}: {text:?}: B0 of its axes: {axes:?}");
    assert!(b0.max(b1) <= seconds * (1.0 + 1e-9), "{machine}: {text:?}: {b0} {b1} {seconds}");
    let split = c.stored.contains(&Stored::Params);
    assert!(split || b0 <= b1 * 1.01, "{machine}: {text:?}: {b0} s, of its program {b1} s");
}

#[test]
fn no_candidate_is_faster_than_its_bounds() {
    let cases =
        [("mlp", None, 1), ("mnist_mlp", None, 3), ("bert", Some("tiny"), 131), ("gpt", Some("tiny"), 97)];
    let (mut compared, mut raised) = (0, 0);
    for (model, preset, every) in cases {
        let p = program(model, preset, &[]);
        let step = training_step(&p).unwrap();
        for (seed, devices) in [2, 3, 4, 6, 8].into_iter().enumerate() {
            for (base, seed) in [("cpu", seed as u64), ("dgx-h100", seed as u64 + 5)] {
                let machine = random_machine(base, seed);
                let s = subject(&p, &step, &machine);
                let work = work_of(&s, devices);
                let space = space(&p, &step, &work, devices);
                let (all, more) = compare(&s, &space, &work, (seed as usize, every * devices));
                (compared, raised) = (compared + all, raised + more);
            }
        }
    }
    assert!(compared > 500 && raised as f64 > 0.95 * compared as f64, "{raised} of {compared}");
}

#[test]
fn no_pipeline_is_faster_than_its_bounds() {
    let (mut compared, mut raised) = (0, 0);
    for (model, every) in [("bert", 211), ("gpt", 173)] {
        let p = program(model, Some("tiny"), &[("layers", 4)]);
        let step = training_step(&p).unwrap();
        for (seed, devices) in [4, 6, 8].into_iter().enumerate() {
            for (base, seed) in [("cpu", seed as u64), ("dgx-h100", seed as u64 + 5)] {
                let machine = random_machine(base, seed);
                let s = subject(&p, &step, &machine);
                let work = work_of(&s, devices);
                let choices = SearchChoices { devices, pipes: true, ..SearchChoices::default() };
                let mut space = Space::of(&p, &step, &work, choices);
                space.meshes.retain(|m| m.iter().product::<usize>() < devices);
                let (all, more) = compare(&s, &space, &work, (seed as usize, every));
                (compared, raised) = (compared + all, raised + more);
            }
        }
    }
    assert!(compared > 50 && raised as f64 > 0.95 * compared as f64, "{raised} of {compared}");
}
