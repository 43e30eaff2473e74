//! Faults beneath the Plan: in the transport, and in how devices are run. Another result, a device that prepares the Plan, or
//! the run itself must tell.

use super::run::Conduct;
use super::subjects::planned;
use super::transport_faults::{Lie, Lying};
use super::{By, Row, in_run, judge};
use meshwright_comm::{CollectiveKind, FaultInjector, InjectedFault as Struck, ThreadsTransport, Transport};
use meshwright_plan::Monoid;

/// Faults beneath the Plan: what, who must catch it, the subject, and how it is run.
pub(super) struct Beneath {
    what: &'static str,
    by: &'static [By],
    subject: &'static str,
    conduct: fn() -> Conduct,
}

macro_rules! beneath {
    ($($what:literal, $by:expr, $subject:literal, $($field:ident: $value:expr),+;)*) => {
        &[$(Beneath {
            what: $what,
            by: $by,
            subject: $subject,
            conduct: || Conduct { $($field: $value,)+ ..Conduct::default() },
        },)*]
    };
}

macro_rules! lying {
    ($lie:expr) => {
        |inner| Box::new(Lying { inner, lie: $lie })
    };
}

/// Calls that compare the Plan before the first step.
const BEFORE: u64 = 2;

pub(super) const BENEATH: &[Beneath] = beneath![
    "the transport takes the greatest for the sum", &[By::Result], "dense", transport: lying!(Lie::Folds(Monoid::Max));
    "the transport takes the product for the sum", &[By::Result], "folded", transport: lying!(Lie::Folds(Monoid::Prod));
    "one rank asks for another fold", &[By::Run], "dense", transport: lying!(Lie::OneFoldsOtherwise);
    "sums lack the part of one rank", &[By::Result], "dense", transport: lying!(Lie::WithoutOne);
    "each rank folds its own part first", &[By::Replicas], "dense", transport: lying!(Lie::OwnFirst);
    "the parts of a bucket change places", &[By::Result], "dense", transport: lying!(Lie::BucketTurned);
    "what is gathered is turned by a piece", &[By::Result], "sharded", transport: lying!(Lie::Turned(CollectiveKind::AllGather));
    "a gather counts one too many", &[By::Run], "sharded", transport: lying!(Lie::Miscounted);
    "what is scattered is turned by an element", &[By::Result], "sharded", transport: lying!(Lie::Turned(CollectiveKind::ReduceScatter));
    "what is exchanged is turned by a piece", &[By::Result], "turned", transport: lying!(Lie::Turned(CollectiveKind::AllToAll));
    "what is fetched is turned by an element", &[By::Result], "moving", transport: lying!(Lie::Turned(CollectiveKind::Permute));
    "one rank fetches from other peers", &[By::Run], "moving", transport: lying!(Lie::Peers);
    "one rank leaves a collective out", &[By::Run], "dense",
        transport: skipping;
    "the last bit of a sum is wrong on one rank", &[By::Replicas], "folded", transport: lying!(Lie::Bit);
    "one rank has another order of steps", &[By::Preparation], "dense",
        plan: |rank, plan| if rank == 1 { plan.steps.swap(0, 1) };
    "one rank has another plan that gives the same", &[By::Preparation], "dense",
        plan: |rank, plan| if rank == 1 { plan.summary.flops += 1 };
    "one rank begins from another seed", &[By::Result], "dense", seed: |rank| if rank == 1 { 4 } else { 3 };
    "all ranks begin from another seed", &[By::Result], "dense", seed: |_| 4;
    "the number of the step stands still", &[By::Result], "moving", step: |_, _| 1;
    "one rank is a step ahead", &[By::Result], "moving", step: |rank, step| step + u64::from(rank == 1);
    "a rank reads the inputs of its neighbor", &[By::Result, By::Run], "dense",
        reads_as: |rank, ranks| (rank + 1) % ranks;
    "all ranks read the inputs of the first", &[By::Result, By::Run], "folded", reads_as: |_, _| 0;
];

/// A transport that leaves out, on rank 1, the first collective of the first step.
fn skipping(t: ThreadsTransport) -> Box<dyn Transport> {
    let struck = t.rank() == 1;
    let injector = FaultInjector::new(t);
    Box::new(if struck { injector.with_fault(BEFORE, Struck::Skip) } else { injector })
}

#[test]
fn every_fault_beneath_the_plan_is_caught() {
    let subjects = planned();
    let mut rows = Vec::new();
    for b in BENEATH {
        let subject = subjects.iter().find(|s| s.name == b.subject).unwrap();
        let found = vec![in_run(subject, &subject.plan, &(b.conduct)())];
        rows.push(Row { what: b.what, expected: b.by, found });
    }
    judge("beneath plans", &rows);
}
