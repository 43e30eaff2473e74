//! Bounds of candidates: each level is below the next, and all are below the estimate.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use meshwright_core::training_step;
use meshwright_search::axis_bounds::AxesAlone;
use meshwright_search::bound::roofline;
use meshwright_search::compiled::Subject;
use meshwright_search::levels::{Levels, RuleBounds};
use meshwright_search::space::{SearchChoices, Space, Stored};
use meshwright_search::text::Candidate;
use meshwright_search::work::ModelWork;
use support::{estimates, program, random_machine, space, subject, work_of};

/// Compares bounds of candidates, a few of each base, with their estimates, and counts them, and those whose program says more
/// than `B0`.
fn compare(s: &Subject<'_>, space: &Space, work: &ModelWork, every: (usize, usize)) -> (usize, usize) {
    let (mut compared, mut raised, mut alone) = (0, 0, AxesAlone::default());
    for (at, base) in space.bases().iter().enumerate().skip(every.0 % every.1).step_by(every.1) {
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
        let own = match space.stages(&base.mesh) {
            1 => s.base(&text, work).map(|b| b.unwrap().1),
            _ => s.stage(&text, work, base.mesh.iter().product()).map(Result::unwrap),
        };
        let Ok(own) = &own else { continue };
        let mut rules = RuleBounds::new((space, work), (own, &base.mesh), s.machine);
        let of_base: Vec<Candidate> = space.variants(base).collect();
        for c in of_base.iter().skip(at % 5).step_by(of_base.len().div_ceil(4)) {
            let Ok(estimates) = estimates(s, space, c) else { continue };
            let seconds = estimates.iter().map(|(_, e)| e.seconds).fold(f64::INFINITY, f64::min);
            let levels = rules.of(c);
            assert_levels((space, work), c, levels, (one, seconds), &s.machine.name);
            raised += usize::from(levels.b0 < levels.b1);
            compared += 1;
        }
    }
    (compared, raised)
}

/// Bounds rise from the axes of a candidate, one by one, to all of them, to its compiled program and to its estimate, which is
/// above those of each axis alone too.
fn assert_levels(
    (space, work): (&Space, &ModelWork),
    c: &Candidate,
    Levels { b0, b1 }: Levels,
    (one, seconds): (f64, f64),
    machine: &str,
) {
    let first = |axes: usize| {
        let place = (&c.mesh[..], &c.sets[..axes]);
        let parts = space.parts_of(place.0, &[]);
        let of = |stored: &[Stored]| space.roofline(work, place, stored, (0, &parts));
        let most = |s: &usize| if space.sets[*s].sums { Stored::Params } else { Stored::Whole };
        let most: Vec<Stored> = c.sets[..axes].iter().map(most).collect();
        of(&vec![Stored::Whole; axes]).min(of(&most))
    };
    let text = space.written(c);
    let axes: Vec<f64> = (0..=c.sets.len()).map(first).chain([b0]).collect();
    let rise = axes.windows(2).all(|w| w[0] <= w[1] * (1.0 + 1e-9));
    assert!(rise, "{machine}: {text:?}: B0 of its axes: {axes:?}");
    assert!(b0 <= b1, "{machine}: {text:?}: B0 {b0}, B1 {b1}");
    for (name, bound) in [("B1", b1), ("B1 of an axis", one)] {
        assert!(bound <= seconds * (1.0 + 1e-9), "{name} on {machine}: {text:?}: {bound} > {seconds}");
    }
    // Stages begin with what those before them give.
    let (stages, shares) = (space.stages(&c.mesh), space.shares(&c.mesh, &c.sets, &c.stored));
    let even = roofline(work, &shares, c.recompute, &(c.parts..c.parts + 1)) / stages as f64;
    assert!(if stages > 1 { b0 > even } else { b0 == even }, "{machine}: {text:?}: {b0} {even}");
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
    // Where products are most of a step, as `f32` ones are on a GPU, the program of some with split parameters says no more.
    assert!(compared > 500 && raised as f64 > 0.8 * compared as f64, "{raised} of {compared}");
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
    assert!(compared > 50 && raised as f64 > 0.9 * compared as f64, "{raised} of {compared}");
}
