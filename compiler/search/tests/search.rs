//! Searches on shipped models: certificates, memory, pipelines and what is traded.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use meshwright_core::training_step;
use meshwright_cost::estimate::Fits;
use meshwright_search::best_first::{Limits, Progress, Search, TIE};
use meshwright_search::compiled::{SharedSteps, Subject};
use meshwright_search::neighbors::neighbors;
use meshwright_search::report::SearchReport;
use meshwright_search::space::{FixedRules, SearchChoices, Space, Stored};
use meshwright_search::text::{Candidate, WrittenLayout};
use meshwright_sorted::SortedSet;
use support::{exhaustive, machine, program, searched, space, subject, work_of};

#[test]
fn a_search_finds_what_is_best_of_all_candidates() {
    let cases = [
        ("mlp", 2, "cpu", false),
        ("mlp", 4, "cpu", false),
        ("mnist_mlp", 3, "cpu", false),
        ("mlp", 4, "dgx-h100", true),
    ];
    let mut candidates = Vec::new();
    for (model, devices, base, orders) in cases {
        let p = program(model, None, &[("batch", 8)]);
        let step = training_step(&p).unwrap();
        let machine = machine(base, &[]);
        let s = subject(&p, &step, &machine);
        let work = work_of(&s, devices);
        let choices = SearchChoices { devices, orders, ..SearchChoices::default() };
        let space = Space::of(&p, &step, &work, choices);
        let times = exhaustive(&s, &space);
        let least = times.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
        let fewest = times.iter().map(|t| t.1.lines.len()).min().unwrap();
        let found = searched(&space, &work, &s, 2);
        let best = &found.found[0];
        assert!(found.bound >= least, "{model}: proven");
        assert!(times.iter().any(|t| t.1 == best.written), "{model}: {:?} among {times:?}", best.written);
        assert_eq!(best.written.lines.len(), fewest, "{model}: the simplest");
        let report = SearchReport::new((&space, &s, "here"), &found, (3, false));
        assert!(report.proven && report.gap == Some(0.0) && report.rows.len() == 3);
        assert!(report.rows[0].loses.is_empty() && !report.rows[1].loses.is_empty());
        let (r, estimated) = (report.rejected, report.estimated);
        assert!(r.bound > 0, "{r:?}");
        assert_eq!(r.conflict + r.gather + r.bound + estimated, report.space.candidates, "{r:?} {estimated}");
        candidates.push(report.space.candidates);
    }
    assert!(candidates[3] > candidates[1], "all orders are more: {candidates:?}");
}

/// Stages, what they split, chunks and schedules: the best of all, and no candidate counts twice.
#[test]
fn a_search_finds_the_best_pipeline() {
    let p = program("gpt", Some("tiny"), &[("batch", 4), ("layers", 4), ("vocab", 32)]);
    let step = training_step(&p).unwrap();
    // Gradients cost so much to reduce that stages do not split the batch.
    let machine = machine("dgx-h100", &["tier.nvlink.rate=1e8".into(), "tier.nvlink.p2p=1e12".into()]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 2);
    let kept = FixedRules::of("recompute layers.*", &p).unwrap();
    let choices = SearchChoices { devices: 2, pipes: true, kept, ..SearchChoices::default() };
    let space = Space::of(&p, &step, &work, choices);
    assert_eq!((space.layers.unwrap().1, space.pipes(&[]).len(), space.stages(&[])), (4, 4, 2));
    let times = exhaustive(&s, &space);
    let found = searched(&space, &work, &s, 2);
    let best = &found.found[0];
    assert!(times.iter().any(|t| t.1 == best.written), "{:?} among {times:?}", best.written);
    let pipe = best.candidate.pipe.as_ref().unwrap();
    assert!(pipe.stages == 2 && best.written.rules().contains("microbatches"), "{best:?}");
    assert_eq!(best.estimate.devices, 2);
    let report = SearchReport::new((&space, &s, "here"), &found, (3, false));
    assert!(report.proven && report.rows[0].runnable && report.rows[0].estimate.breakdown.bubble > 0.0);
    assert!(best.written.rules().contains("layers -> pipe") && best.written.mesh == "pipe=2", "{best:?}");
    let (r, estimated) = (report.rejected, report.estimated);
    assert_eq!(r.conflict + r.gather + r.bound + estimated, report.space.candidates, "{r:?} {estimated}");
}

/// Bases whose parameters alone are too large count once, and not as estimated.
#[test]
fn what_is_rejected_unseen_is_not_estimated() {
    let p = program("bert", Some("tiny"), &[]);
    let step = training_step(&p).unwrap();
    let large = machine("cpu", &[]);
    let s = subject(&p, &step, &large);
    let work = work_of(&s, 2);
    // Split states and parameters fit, but for what is computed with them.
    let memory = 0.51 * work.held.values().sum::<f64>();
    let small = machine("cpu", &["device.reserve=0".into(), format!("device.memory={memory}")]);
    let s = Subject { machine: &small, ..s };
    let kept = FixedRules::of("batch -> data", &p).unwrap();
    let space = Space::of(&p, &step, &work, SearchChoices { devices: 2, kept, ..SearchChoices::default() });
    let found = searched(&space, &work, &s, 2);
    let report = SearchReport::new((&space, &s, "here"), &found, (3, false));
    let (r, all) = (report.rejected, report.space.candidates);
    assert!(found.found.is_empty() && (1..r.memory).contains(&found.estimated), "{} {r:?}", found.estimated);
    assert_eq!((r.conflict + r.gather + r.memory, r.bound), (all, 0), "{r:?}");
}

#[test]
fn the_answer_does_not_depend_on_the_number_of_threads() {
    let p = program("mnist_mlp", None, &[]);
    let step = training_step(&p).unwrap();
    let machine = machine("cpu", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 4);
    let space = space(&p, &step, &work, 4);
    let of = |cores| {
        let o = searched(&space, &work, &s, cores);
        let all: Vec<WrittenLayout> = o.found.into_iter().map(|f| f.written).collect();
        (all, o.bound, o.compiled)
    };
    assert_eq!(of(1), of(3));
}

/// What layouts share of their compilations changes no Plan, in whatever order they come.
#[test]
fn what_is_shared_changes_no_plan() {
    let p = program("bert", Some("tiny"), &[("batch", 8)]);
    let step = training_step(&p).unwrap();
    let machine = machine("dgx-h100", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 8);
    let choices = SearchChoices { devices: 8, pipes: true, ..SearchChoices::default() };
    let space = Space::of(&p, &step, &work, choices);
    let all = space.bases().into_iter().flat_map(|b| space.variants(&b).collect::<Vec<_>>());
    let (mut legal, mut refused) = (0, 0);
    for c in all.step_by(9973) {
        let text = space.written(&Candidate { pipe: space.pipes(&c.mesh).pop(), ..c });
        // Of a subject of its own nothing is known yet.
        let own = Subject { shared: SharedSteps::default(), ..s.clone() };
        let (plan, alone) = (s.plan(&text, false), own.plan(&text, true));
        let (plan, alone) = (plan.map(|p| format!("{p:?}")), alone.map(|p| format!("{p:?}")));
        assert!(plan == alone, "{text:?}");
        *(if plan.is_ok() { &mut legal } else { &mut refused }) += 1;
    }
    assert!(legal > 15 && refused > 15, "{legal} {refused}");
}

#[test]
fn a_search_that_is_stopped_gives_the_gap() {
    let p = program("mnist_mlp", None, &[]);
    let step = training_step(&p).unwrap();
    let machine = machine("cpu", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 4);
    let space = space(&p, &step, &work, 4);
    let mut stop = |p: Progress| p.best.is_some();
    let found = Search::new(&space, &work, &s).run(&mut Limits { cores: 1, stop: &mut stop }).unwrap();
    let report = SearchReport::new((&space, &s, "here"), &found, (5, false));
    let (gap, bound) = (report.gap.unwrap(), report.bound.unwrap());
    assert!(!report.proven && gap > 0.0 && report.rejected.bound == 0);
    assert!((report.rows[0].estimate.seconds / bound - 1.0 - gap).abs() < 1e-12);
    // It has begun with what is fast where it fits, and with what fits.
    let all = |stored: Stored| found.found.iter().any(|f| f.candidate.stored.iter().all(|s| *s == stored));
    assert!(all(Stored::Whole) && all(Stored::Params), "{:?}", found.found);
}

/// With fewer examples than devices too: nothing is split over some of them.
#[test]
fn a_search_that_is_stopped_at_once_has_an_answer_with_fewer_examples_than_devices() {
    let p = program("unet", None, &[("batch", 4)]);
    let step = training_step(&p).unwrap();
    let machine = machine("dgx-h100", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 8);
    let space = space(&p, &step, &work, 8);
    let mut asked = 0;
    let mut stop = |_: Progress| {
        asked += 1;
        true
    };
    let found = Search::new(&space, &work, &s).run(&mut Limits { cores: 2, stop: &mut stop }).unwrap();
    assert!(asked == 1 && found.found.iter().any(|f| f.written.mesh.starts_with("idle=")), "{found:?}");
}

/// Wherever it is stopped, also between nodes: what was taken up and is not estimated counts.
#[test]
fn a_search_that_is_stopped_does_not_claim_too_much() {
    let p = program("mnist_conv", None, &[("batch", 8)]);
    let step = training_step(&p).unwrap();
    let machine = machine("dgx-h100", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 8);
    let space = space(&p, &step, &work, 8);
    let best = searched(&space, &work, &s, 2).found[0].estimate.seconds;
    for last in 1..40 {
        let mut asked = 0;
        let mut stop = |_: Progress| {
            asked += 1;
            asked >= last
        };
        let found = Search::new(&space, &work, &s).run(&mut Limits { cores: 2, stop: &mut stop }).unwrap();
        let known = found.found.iter().map(|f| f.estimate.seconds).fold(f64::INFINITY, f64::min);
        assert!(
            found.bound.min(known) <= best * (1.0 + TIE),
            "{last}: {} and {known}, of {best}",
            found.bound
        );
    }
}

/// Copies of parameters and the time of gradients are chosen where parameters are stored split, unless lines that are kept say
/// how.
#[test]
fn what_is_traded_is_part_of_the_space() {
    let p = program("gpt", Some("tiny"), &[("batch", 8)]);
    let step = training_step(&p).unwrap();
    let machine = machine("dgx-h100", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 4);
    let lines = |kept: &str, stored: Stored, parts: usize| {
        let kept = FixedRules::of(kept, &p).unwrap();
        let choices = SearchChoices { devices: 4, kept, ..SearchChoices::default() };
        let space = Space::of(&p, &step, &work, choices);
        let parts = space.parts.iter().position(|n| *n == parts).unwrap();
        let named = |text: &str| (0..space.sets.len()).find(|i| space.set_text(*i) == text);
        let set = named("batch").or(named("")).unwrap();
        let of = |trades| {
            let (mesh, sets, stored) = (vec![4], vec![set], vec![stored]);
            let c = Candidate { mesh, sets, stored, parts, trades, ..Candidate::default() };
            let text = space.written(&c);
            assert!(s.estimate(&text).unwrap().is_ok(), "{text:?}");
            let traded = |l: &&String| l.starts_with("keep") || l.starts_with("reduce");
            text.lines.iter().filter(traded).cloned().collect::<Vec<_>>().join("; ")
        };
        space.trades(&[stored], parts).map(of).collect::<Vec<String>>()
    };
    let all = ["", "keep params", "reduce grads once", "keep params; reduce grads once"];
    assert_eq!(lines("", Stored::Params, 4), all);
    assert_eq!(lines("", Stored::Params, 1), all[..2]);
    assert_eq!(lines("", Stored::Grads, 4), all[..1]);
    assert_eq!(lines("batch -> data; params: * -> data; microbatches 4", Stored::Whole, 1), all);
    assert_eq!(lines("batch -> data; params: * -> data; keep params", Stored::Whole, 1), all[1..2]);
    assert_eq!(lines("batch -> data; moments: * -> data", Stored::Whole, 4), ["", "reduce grads by part"]);
}

/// Steps from neighbor to neighbor stay in the space, and lead from each candidate to all others.
/// All candidates, each once, where more are asked for; otherwise so many, of all meshes and the same each time.
#[test]
fn a_sample_is_drawn_from_the_whole_space() {
    let m = machine("cpu", &[]);
    let p = program("mnist_mlp", None, &[("batch", 8)]);
    let step = training_step(&p).unwrap();
    let work = work_of(&subject(&p, &step, &m), 4);
    let space = space(&p, &step, &work, 4);
    let all = space.sample(u64::MAX, 0);
    assert_eq!(all.len() as u64, space.count());
    let texts: SortedSet<_> = all.iter().map(|c| space.written(c)).collect();
    assert_eq!(texts.len(), all.len(), "each once");
    let some = space.sample(200, 0);
    assert_eq!((some.len(), &some), (200, &space.sample(200, 0)));
    assert_ne!(some, space.sample(200, 1));
    // The mean position of those drawn is the middle.
    let mean = some.iter().map(|c| all.iter().position(|a| a == c).unwrap()).sum::<usize>() / 200;
    assert!((mean as f64 / all.len() as f64 - 0.5).abs() < 0.1, "{mean} of {}", all.len());
    assert!(space.meshes.iter().all(|mesh| some.iter().any(|c| c.mesh == *mesh)), "of all meshes");
}

#[test]
fn neighbors_are_candidates_and_lead_everywhere() {
    let p = program("gpt", Some("tiny"), &[("batch", 4), ("layers", 4)]);
    let step = training_step(&p).unwrap();
    let machine = machine("cpu", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 4);
    let space =
        Space::of(&p, &step, &work, SearchChoices { devices: 4, pipes: true, ..SearchChoices::default() });
    let all: SortedSet<Candidate> =
        space.bases().into_iter().flat_map(|b| space.variants(&b).collect::<Vec<_>>()).collect();
    let first = all.first().unwrap().clone();
    let (mut seen, mut left) = (SortedSet::from([first.clone()]), vec![first]);
    while let Some(c) = left.pop() {
        for next in neighbors(&space, &c) {
            assert!(all.contains(&next), "{next:?} of {c:?}");
            if seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    assert_eq!(seen.len(), all.len());
}

/// By their bounds alone, pipelines and tensor parallelism come first: of 400 programs the best would take 1.4 times as long.
#[test]
fn good_candidates_come_early() {
    let p = program("gpt", Some("tiny"), &[("batch", 256), ("layers", 8)]);
    let step = training_step(&p).unwrap();
    let machine = machine("sakura-one", &[]);
    let s = subject(&p, &step, &machine);
    let work = work_of(&s, 64);
    let choices = SearchChoices { devices: 64, pipes: true, ..SearchChoices::default() };
    let space = Space::of(&p, &step, &work, choices);
    let mut stop = |p: Progress| p.compiled >= 200;
    let found = Search::new(&space, &work, &s).run(&mut Limits { cores: 2, stop: &mut stop }).unwrap();
    let text = WrittenLayout { lines: vec!["batch -> data".into()], mesh: "data=64".into() };
    let simple = s.estimate(&text).unwrap().unwrap().seconds;
    let best = found.found[0].estimate.seconds;
    assert!(best <= simple * (1.0 + TIE), "{best} {simple}");
}

#[test]
fn what_does_not_fit_is_cut_into_parts_or_computed_again() {
    let p = program("bert", Some("tiny"), &[]);
    let step = training_step(&p).unwrap();
    let large = machine("cpu", &[]);
    let s = subject(&p, &step, &large);
    let work = work_of(&s, 2);
    let peak = |name: &str| {
        let text = WrittenLayout { lines: vec!["batch -> data".into(), name.into()], mesh: "data=2".into() };
        s.estimate(&text).unwrap().unwrap().memory.peak_bytes
    };
    let (whole, cut) =
        (peak("params: * -> data"), peak("params: * -> data\nmicrobatches 32\nrecompute layers.*"));
    assert!(cut < whole / 2, "{cut} {whole}");
    let memory = 1.1 * cut as f64;
    let small = machine("cpu", &["device.reserve=0".into(), format!("device.memory={memory}")]);
    let s = Subject { machine: &small, ..s };
    let kept = FixedRules::of("batch -> data", &p).unwrap();
    let space = Space::of(&p, &step, &work, SearchChoices { devices: 2, kept, ..SearchChoices::default() });
    let found = searched(&space, &work, &s, 2);
    let best = &found.found[0];
    let rules = best.written.rules();
    assert!(rules.starts_with("batch -> data") && rules.contains("microbatches"), "{rules}");
    // Of what does not fit most is never compiled, and nothing that fits is lost.
    assert!(found.estimated < found.found.len() as u64 + found.rejected.memory, "{:?}", found.rejected);
    let all = space.bases().into_iter().flat_map(|b| space.variants(&b).collect::<Vec<_>>());
    let fits = all.filter_map(|c| s.estimate(&space.written(&c)).ok()?.ok());
    let fits = fits.filter(|e| !matches!(e.memory.fits, Fits::No { .. }));
    let least = fits.map(|e| e.seconds).fold(f64::INFINITY, f64::min);
    assert!(best.estimate.seconds <= least * (1.0 + TIE), "{} {least}", best.estimate.seconds);
    // Nothing fits into next to nothing; the nearest says by how much it misses.
    let memory = work.held.values().sum::<f64>() / 2.0;
    let tiny = machine("cpu", &["device.reserve=0".into(), format!("device.memory={memory}")]);
    let s = Subject { machine: &tiny, ..s };
    let none = searched(&space, &work, &s, 2);
    let report = SearchReport::new((&space, &s, "here"), &none, (5, false));
    assert!(report.rows.is_empty() && report.nearest.unwrap().missing_bytes > 0);
}

/// What a pipeline of a search is estimated to take, by the Plan that it shares with those of other chunks, is within a hundredth
/// of what its own Plan is; so is its memory.
#[test]
fn a_pipeline_takes_what_its_own_plan_does() {
    let sizes: &[(&str, usize)] =
        &[("batch", 16), ("layers", 6), ("d_model", 256), ("d_ff", 1024), ("vocab", 1024)];
    let few: &[(&str, usize)] = &[("batch", 16), ("layers", 6)];
    let models = [("gpt", sizes), ("llama", few), ("bert", few)];
    for (model, sizes) in models {
        let p = program(model, Some("tiny"), sizes);
        let step = training_step(&p).unwrap();
        for name in ["dgx-h100", "cpu"] {
            let machine = machine(name, &[]);
            let s = subject(&p, &step, &machine);
            let work = work_of(&s, 2);
            for (devices, mesh, sets) in
                [(2, vec![], vec![]), (3, vec![], vec![]), (4, vec![2], vec!["batch"])]
            {
                let choices = SearchChoices { devices, pipes: true, ..SearchChoices::default() };
                let space = Space::of(&p, &step, &work, choices);
                let set = |dim: &&str| (0..space.sets.len()).find(|i| space.set_text(*i) == **dim).unwrap();
                let sets: Vec<usize> = sets.iter().map(set).collect();
                let parts = space.parts.iter().position(|n| *n == 8).unwrap();
                let stored = vec![Stored::Whole; sets.len()];
                let c = Candidate { mesh: mesh.clone(), sets, stored, parts, ..Candidate::default() };
                let shared = s.estimate_pipes(&space, &c).unwrap().unwrap();
                assert_eq!(shared.len(), space.pipes(&mesh).len());
                for (pipe, shared) in shared {
                    let text = space.written(&Candidate { pipe: Some(pipe.clone()), ..c.clone() });
                    let own = s.estimate(&text).unwrap().unwrap();
                    let (of, from) = (own.pipe.as_ref().unwrap(), shared.pipe.as_ref().unwrap());
                    assert_eq!((of.stages, of.chunks, of.microbatches), (pipe.stages, pipe.chunks, 8));
                    assert_eq!((from.projected, own.devices, shared.devices), (false, devices, devices));
                    let apart = |a: f64, b: f64| (a / b - 1.0).abs();
                    let [a, b] = [&own, &shared].map(|e| e.memory.peak_bytes as f64);
                    assert!(apart(shared.seconds, own.seconds) < 0.01, "{name} {text:?}: {shared:?} {own:?}");
                    assert!(apart(a, b) < 0.01, "{name} {text:?}: {a} {b}");
                }
            }
        }
    }
}
