//! Faults on purpose, and who catches them: the test of the tests.
//!
//! A fault is seeded in what an op says of its roles (`roles.rs`), in a partitioned program (`placements.rs`), in a Plan
//! (`plans.rs`), in loops (`loops.rs`), or in the transport and in how devices are run (`runtime_faults.rs`). Each fault names
//! who must catch it; a test fails where a fault goes by unnoticed, and where somebody else than expected notices it. Faults
//! of programs and Plans are seeded at every place where they apply, in all the programs of `subjects.rs`.

mod attention;
mod loops;
mod orders;
mod pipelines;
mod placements;
mod plans;
mod rings;
mod roles;
mod run;
mod runtime_faults;
mod sent_bytes;
mod sites;
mod subjects;
mod transport_faults;

use meshwright_core::lowering::{bucket, fuse, lifetimes, lower, overlap, verify_order, verify_plan};
use meshwright_core::partition::Spmd;
use meshwright_core::verify::verify;
use meshwright_plan::{Plan, Prim};
use meshwright_sorted::SortedMap;
use run::{Conduct, Ended, compared, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use subjects::Planned;
pub(crate) use subjects::loaded;

/// Who caught a fault: the first of these, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    /// The test of claims, with oracles alone.
    Claims,
    /// The verifier of partitioned programs.
    Verifier,
    /// The verifier of Plans.
    PlanVerifier,
    /// A device, while it prepares a Plan.
    Preparation,
    /// A device or its transport, while it runs.
    Run,
    /// Another result than one device's.
    Result,
    /// Devices that hold copies of a value, of which not all bits are the same.
    Replicas,
    /// The right result by other collectives, or by collectives of other sizes: what the cases of communication pin.
    Bytes,
}

/// What was found, in words.
pub(crate) type Found = Option<(By, String)>;

/// Every collective of a Plan with its axes and bytes, in order.
pub(crate) fn communication(plan: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    // How often the loops run whose bodies a step is in.
    let mut times = vec![1];
    for step in &plan.steps {
        match step.prim {
            Prim::Repeat { dim, from, .. } => {
                times.push(times.last().unwrap() * (plan.dims.size(dim) - from));
            }
            Prim::EndRepeat => {
                times.pop();
            }
            _ => {}
        }
        if let Some(c) = step.collective() {
            let (bytes, times) = (step.collective_bytes(plan), times.last().unwrap());
            out.push(format!("{times} times {} over {:?} of {bytes:?} bytes", c.name(), c.axes()));
        }
    }
    out
}

/// What is found in a partitioned program that stands for that of `subject`.
pub(crate) fn in_spmd(subject: &Planned, spmd: &Spmd) -> Found {
    if let Some(v) = verify(spmd).first() {
        return Some((By::Verifier, v.clone()));
    }
    let done = catch_unwind(AssertUnwindSafe(|| lifetimes(overlap(fuse(bucket(lower(spmd, &|_| 0)))))));
    match done {
        Ok(plan) => in_plan(subject, &plan),
        Err(panic) => panic!("a sound program is not lowered: {panic:?}"),
    }
}

/// What `verify_plan` says of buffers that end too early or too late.
const OF_ENDS: [&str; 8] = [
    "not there",
    "storage of",
    "frees buffer",
    "ends buffer",
    "never ends",
    "has ended",
    "ends in its body",
    "in the body of the loop and does not end",
];

/// What is found in a Plan that stands for that of `subject`.
pub(crate) fn in_plan(subject: &Planned, plan: &Plan) -> Found {
    let found = verify_plan(plan);
    // But for what ends too early or too late, a pass before `lifetimes` would have been refused for it.
    let of_ends = |v: &&String| OF_ENDS.iter().any(|w| v.contains(w));
    if let Some(v) = found.iter().find(|v| !of_ends(v)) {
        assert!(verify_order(plan).contains(v), "`verify_order` does not find: {v}");
    }
    if let Some(v) = found.first() {
        return Some((By::PlanVerifier, v.clone()));
    }
    in_run(subject, plan, &Conduct::default())
}

/// What is found in a run of a Plan.
pub(crate) fn in_run(subject: &Planned, plan: &Plan, conduct: &Conduct) -> Found {
    match run(plan, conduct) {
        Err(Ended::Prepared(e)) => Some((By::Preparation, e)),
        Err(Ended::Ran(e)) => Some((By::Run, e)),
        Ok(devices) => compared(&subject.alone, &devices).or_else(|| {
            let (now, before) = (communication(plan), communication(&subject.plan));
            let other = now.iter().zip(&before).find(|(a, b)| a != b);
            let words = other.map_or_else(|| "more or fewer".into(), |(a, b)| format!("{a} instead of {b}"));
            (now != before).then_some((By::Bytes, words))
        }),
    }
}

/// One line of the table: how often each fault was seeded, and who caught it.
pub(crate) struct Row {
    what: &'static str,
    expected: &'static [By],
    found: Vec<Found>,
}

/// Prints a table of faults and fails where one was not caught as expected.
pub(crate) fn judge(kind: &str, rows: &[Row]) {
    let mut wrong = Vec::new();
    let mut total: SortedMap<By, usize> = SortedMap::new();
    let mut text = String::new();
    for row in rows {
        let mut counts: SortedMap<Option<By>, usize> = SortedMap::new();
        for f in &row.found {
            *counts.entry(f.as_ref().map(|f| f.0)).or_default() += 1;
        }
        for by in counts.keys().flatten() {
            *total.entry(*by).or_default() += 1;
        }
        let by: Vec<String> = counts
            .iter()
            .map(|(b, n)| format!("{n} {}", b.map_or("nobody".into(), |b| format!("{b:?}"))))
            .collect();
        let says =
            row.found.iter().flatten().next().map_or(String::new(), |f| f.1.chars().take(110).collect());
        text += &format!("{:<62} {}\n      {}\n", row.what, by.join(", "), says.replace('\n', " "));
        let caught = counts.keys().all(|b| b.is_some_and(|b| row.expected.contains(&b)));
        if row.found.is_empty() || !caught {
            wrong.push(format!("{}: {}, expected of {:?}", row.what, by.join(", "), row.expected));
        }
    }
    let seeded: usize = rows.iter().map(|r| r.found.len()).sum();
    let who: Vec<String> = total.iter().map(|(b, n)| format!("{b:?} {n}")).collect();
    crate::report(&format!(
        "{text}{kind}: {} faults, seeded {seeded} times; caught by: {}",
        rows.len(),
        who.join(", ")
    ));
    assert!(
        wrong.is_empty(),
        "{} of the faults are not caught as they should be:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn there_are_faults_of_every_kind() {
    let (roles, placements, plans) = (
        roles::mutants().len(),
        placements::FAULTS.len(),
        plans::FAULTS.len() + attention::FAULTS.len() + runtime_faults::BENEATH.len(),
    );
    crate::report(&format!(
        "faults: {roles} in roles, {placements} in placements, {plans} in plans and beneath"
    ));
    assert!(roles >= 80 && placements >= 45 && plans >= 60);
}
