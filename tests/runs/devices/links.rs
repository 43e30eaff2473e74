//! Links between the stages of a pipeline: what late messages change, how long stages wait, and what is said of a stage that is
//! gone.

use crate::support::options;
use meshwright_comm::{
    CallMoment, CallWatcher, FaultInjector, Group, InjectedFault, Tag, Timeouts, Transport, World,
};
use meshwright_core::training_step;
use meshwright_exec::{
    Cluster, ClusterOptions, Finiteness, HostData, HostTensor, LocalInput, ProgramId, Provider,
};
use meshwright_plan::Plan;
use meshwright_plan::actions::{Pass, PassRun};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Project, ProjectOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A small GPT of so many layers, with a batch of eight.
fn plan(mesh: &str, layout: &str, layers: usize) -> Plan {
    let sizes = [("layers", layers), ("batch", 8), ("seq", 8), ("vocab", 40), ("d_ff", 8), ("d_head", 4)];
    let of = ProjectOptions { preset: Some("tiny".into()), ..options("gpt", mesh, layout, &sizes) };
    let loaded = Project::load(&of);
    let project = loaded.project.unwrap_or_else(|| panic!("{layout}: {:?}", loaded.diagnostics));
    project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
}

/// Devices whose transports are made of those of threads.
fn cluster(
    plan: &Plan,
    timeouts: Timeouts,
    of: impl Fn(
        FaultInjector<meshwright_comm::ThreadsTransport>,
    ) -> FaultInjector<meshwright_comm::ThreadsTransport>,
) -> (Cluster, ProgramId) {
    let ends = World::new(plan.mesh.devices(), timeouts).into_iter();
    let ends = ends.map(|t| -> Box<dyn Transport> { Box::new(of(FaultInjector::new(t))) });
    let options = ClusterOptions::on(meshwright_cpu::device());
    let mut cluster = Cluster::with_transports(&plan.mesh, ends.collect(), &options).unwrap();
    let id = cluster.load(Arc::new(plan.clone())).unwrap();
    cluster.init_state(id, 1).unwrap();
    (cluster, id)
}

/// A batch of ones.
fn ones() -> Provider {
    let one = |l: &LocalInput| {
        let mut all = HostTensor::zeros(l.dtype, l.shape());
        match &mut all.data {
            HostData::F32(x) => x.fill(1.0),
            HostData::I32(x) => x.fill(1),
            _ => {}
        }
        all
    };
    Arc::new(move |_, leaves: &[LocalInput]| Ok(leaves.iter().map(one).collect()))
}

/// All parameters and moments after two steps.
fn after_two_steps(cluster: &Cluster, id: ProgramId, plan: &Plan) -> Vec<(String, HostTensor)> {
    for step in 1..=2 {
        cluster.run(id, step, &ones()).unwrap();
    }
    let states = plan.program_inputs.iter().filter(|l| l.init.is_some());
    states.map(|l| (l.name.clone(), cluster.state(&l.name).unwrap())).collect()
}

/// Holds the end of each call up until all of its members have posted it.
fn meeting() -> CallWatcher {
    type Posted = SortedMap<(Vec<usize>, u64), usize>;
    let all: Arc<(Mutex<Posted>, Condvar)> = Arc::default();
    Arc::new(move |group: &Group, tag: &Tag, moment: CallMoment| {
        let (posted, changed) = &*all;
        let call = (group.ranks().to_vec(), tag.sequence);
        let mut posted = posted.lock().unwrap();
        match moment {
            CallMoment::Posted => {
                *posted.entry(call).or_default() += 1;
                changed.notify_all();
            }
            CallMoment::Awaited => {
                let there = |posted: &mut Posted| posted[&call] < group.ranks().len();
                let waited = changed.wait_timeout_while(posted, Duration::from_secs(60), there).unwrap();
                assert!(!waited.1.timed_out(), "{call:?} never meets");
            }
            CallMoment::Ended => {}
        }
    })
}

/// As [`meeting`], but it holds a sender up before it posts a message, until the receiver has begun to receive it: nothing is
/// sent ahead.
fn begun() -> impl Fn(usize) -> CallWatcher {
    type Begun = SortedSet<(Vec<usize>, u64)>;
    let all: Arc<(Mutex<Begun>, Condvar)> = Arc::default();
    move |rank| {
        let all = all.clone();
        Arc::new(move |group: &Group, tag: &Tag, moment: CallMoment| {
            if !tag.is_message || moment != CallMoment::Posted {
                return;
            }
            let (begun, changed) = &*all;
            let message = (group.ranks().to_vec(), tag.sequence);
            let mut begun = begun.lock().unwrap();
            if group.ranks()[0] == rank {
                let missing = |begun: &mut Begun| !begun.contains(&message);
                let waited = changed.wait_timeout_while(begun, Duration::from_secs(60), missing).unwrap();
                assert!(!waited.1.timed_out(), "{message:?} is never received");
            } else {
                begun.insert(message);
                changed.notify_all();
            }
        })
    }
}

/// Where a message has not ended for its sender before the receiver is there, or not even begun, and all calls come late by
/// chance, a step ends with the same bits.
#[test]
fn late_messages_that_hold_both_ends_change_no_bit() {
    for (mesh, layout) in [
        ("pipe=2", "layers -> pipe; microbatches 8; schedule gpipe"),
        ("pipe=3", "layers -> pipe; microbatches 4"),
        ("data=2,pipe=2", "batch -> data; layers -> pipe; microbatches 4; schedule zb_h1; params: * -> data"),
        ("pipe=2", "layers -> pipe; microbatches 8; chunks 3"),
        ("pipe=3", "layers -> pipe; microbatches 4; chunks 2; schedule zb_h1"),
        ("pipe=2", "layers -> pipe; microbatches 8; chunks 2; schedule zb_h1; stages 0, 2, 4, 0"),
    ] {
        let plan = plan(mesh, layout, 6);
        let timeouts = || Timeouts::all(Duration::from_secs(120));
        let (plain, id) = cluster(&plan, timeouts(), |t| t);
        let expected = after_two_steps(&plain, id, &plan);
        let numbers = |(_, x): &(String, HostTensor)| Finiteness::of(&x.data) == Finiteness::Finite;
        assert!(expected.iter().all(numbers), "{layout}");
        plain.shutdown();
        for seed in 0..4 {
            let (meets, begun) = (meeting(), begun());
            let (late, id) = cluster(&plan, timeouts(), |t| {
                let (rank, own) = (t.rank(), seed * 100 + t.rank() as u64);
                let watcher = if seed % 2 == 0 { meets.clone() } else { begun(rank) };
                t.with_delays(own, Duration::from_millis(2)).with_watcher(watcher)
            });
            assert!(after_two_steps(&late, id, &plan) == expected, "{layout}, {seed}");
            late.shutdown();
        }
    }
}

/// Passes of a device in order, of which each that has run has slept.
struct SleepingPasses {
    list: Vec<PassRun>,
    stages: usize,
    chunks: usize,
    rank: usize,
    unit: Duration,
    /// The next one of the list.
    next: usize,
    /// The pass that has slept sends what it has made.
    sends: bool,
    slept: Duration,
}

impl SleepingPasses {
    fn stage(&self, run: &PassRun) -> usize {
        run.chunk * self.stages + self.rank
    }

    /// Whether a pass waits for another stage, and whether it sends to one.
    fn messages(&self, run: &PassRun) -> [bool; 2] {
        let (stage, last) = (self.stage(run), self.stages * self.chunks - 1);
        match run.pass {
            Pass::F => [stage > 0, stage < last],
            Pass::B => [stage < last, stage > 0],
            Pass::W => [false, false],
        }
    }

    /// A forward pass of a device takes a unit of time, and its gradients of weights as well as the rest of its backward pass
    /// another one each.
    fn sleep(&mut self, run: &PassRun) {
        let apart = self.list.iter().any(|r| r.pass == Pass::W);
        let units = if run.pass == Pass::B && !apart { 2 } else { 1 };
        let begin = Instant::now();
        std::thread::sleep(self.unit * units / self.chunks as u32);
        self.slept += begin.elapsed();
        self.sends = self.messages(run)[1];
        self.next += 1;
    }

    /// Gradients of weights have no messages: they sleep before the next pass.
    fn weights(&mut self) {
        while let Some(run) = self.list.get(self.next).copied().filter(|run| run.pass == Pass::W) {
            self.sleep(&run);
        }
    }

    fn told(&mut self, group: &Group, tag: &Tag, moment: CallMoment) {
        if !tag.is_message {
            // Behind all passes.
            return self.weights();
        }
        match (group.ranks()[0] == self.rank, moment) {
            (true, CallMoment::Posted) if std::mem::take(&mut self.sends) => {}
            (true, CallMoment::Posted) => {
                self.weights();
                let Some(run) = self.list.get(self.next).copied() else { return };
                assert!(!self.messages(&run)[0], "{run:?} has received nothing");
                self.sleep(&run);
                self.sends = false;
            }
            (false, CallMoment::Awaited) => self.weights(),
            (false, CallMoment::Ended) => {
                let Some(run) = self.list.get(self.next).copied() else { return };
                assert!(self.messages(&run)[0], "{run:?} receives nothing");
                self.sleep(&run);
            }
            _ => {}
        }
    }
}

/// The idle share of devices whose passes of the second step sleep.
fn idle_share(plan: &Plan, (p, v): (usize, usize), unit: Duration) -> f64 {
    let passes = plan.pipeline_passes().unwrap();
    let sleeping: Vec<Arc<Mutex<SleepingPasses>>> = (passes.runs.iter().enumerate())
        .map(|(rank, list)| {
            let (list, slept) = (list.clone(), Duration::ZERO);
            let of = SleepingPasses { list, stages: p, chunks: v, rank, unit, next: 0, sends: false, slept };
            Arc::new(Mutex::new(of))
        })
        .collect();
    let sleeps = Arc::new(AtomicBool::new(false));
    let (cluster, id) = cluster(plan, Timeouts::all(Duration::from_secs(60)), |t| {
        let (of, sleeps) = (sleeping[t.rank()].clone(), sleeps.clone());
        t.with_watcher(Arc::new(move |group: &Group, tag: &Tag, moment: CallMoment| {
            if sleeps.load(Ordering::Relaxed) {
                of.lock().unwrap().told(group, tag, moment);
            }
        }))
    });
    cluster.run(id, 1, &ones()).unwrap();
    sleeps.store(true, Ordering::Relaxed);
    let begin = Instant::now();
    cluster.run(id, 2, &ones()).unwrap();
    let whole = begin.elapsed().as_secs_f64() * p as f64;
    cluster.shutdown();
    let all = sleeping.iter().map(|of| of.lock().unwrap());
    let slept = all.map(|of| {
        assert_eq!(of.next, of.list.len(), "passes that have not slept");
        of.slept.as_secs_f64()
    });
    1.0 - slept.sum::<f64>() / whole
}

/// Devices that sleep in passes wait for each other as long as the formula says: for p - 1 units of time of three, of three
/// shared by chunks, or of one where gradients of weights fill the rest.
#[test]
fn stages_wait_as_long_as_the_formula_says() {
    // What little a pass computes is in the same proportion to what a device waits.
    for (schedule, v, waits, unit) in [
        ("schedule gpipe", 1, 3.0, 120),
        ("schedule 1f1b", 1, 3.0, 120),
        ("chunks 2", 2, 1.5, 240),
        ("schedule zb_h1", 1, 1.0, 360),
    ] {
        for p in [2, 4] {
            let m = if waits == 1.0 { 2 * p } else { 4 };
            let layout = format!("layers -> pipe; microbatches {m}; {schedule}");
            let plan = plan(&format!("pipe={p}"), &layout, p * v);
            let waited = (p - 1) as f64 * waits;
            let formula = waited / (waited + 3.0 * m as f64);
            // A busy machine makes passes longer on some devices: of several tries the one with the least idle time counts.
            let mut least = f64::INFINITY;
            for _ in 0..6 {
                least = least.min(idle_share(&plan, (p, v), Duration::from_millis(unit)));
                if least <= 1.15 * formula {
                    break;
                }
            }
            assert!((0.85..=1.15).contains(&(least / formula)), "{layout}: {least:.3}, not {formula:.3}");
        }
    }
}

/// Three stages.
fn three() -> Plan {
    plan("pipe=3", "layers -> pipe; microbatches 4", 3)
}

/// The calls of the middle one of three stages in the first two steps, each with whether it is a message that is sent or one that
/// is received; and where those of the second step begin.
fn middle_calls() -> (Vec<Option<bool>>, usize) {
    let calls: Arc<Mutex<Vec<Option<bool>>>> = Arc::default();
    let noted: CallWatcher = {
        let calls = calls.clone();
        Arc::new(move |group: &Group, tag: &Tag, moment| {
            if moment == CallMoment::Posted {
                calls.lock().unwrap().push(tag.is_message.then(|| group.ranks()[0] == 1));
            }
        })
    };
    let (cluster, id) = cluster(&three(), Timeouts::all(Duration::from_secs(60)), |t| {
        if t.rank() == 1 { t.with_watcher(noted.clone()) } else { t }
    });
    cluster.run(id, 1, &ones()).unwrap();
    let first = calls.lock().unwrap().len();
    cluster.run(id, 2, &ones()).unwrap();
    cluster.shutdown();
    let all = calls.lock().unwrap().clone();
    (all, first)
}

/// The error of the second step, in which something happens to the middle one of three stages at one of its calls.
fn struck(fault: &InjectedFault, at: usize) -> String {
    let wait = Duration::from_secs(if matches!(fault, InjectedFault::Stall(_)) { 3 } else { 60 });
    let (cluster, id) = cluster(&three(), Timeouts::all(wait), |t| match t.rank() {
        1 => t.with_fault(at as u64, fault.clone()),
        _ => t,
    });
    cluster.run(id, 1, &ones()).unwrap();
    let error = cluster.run(id, 2, &ones()).unwrap_err();
    cluster.shutdown();
    error.to_string()
}

/// Whether an error has the number of a message, its value, and a line of the model.
fn is_named(text: &str) -> bool {
    let number = text.split("message #").nth(1).is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
    let line =
        text.split("at line ").nth(1).is_some_and(|n| n.starts_with(|c: char| ('1'..='9').contains(&c)));
    number && line && text.split(" of `").nth(1).is_some_and(|name| !name.starts_with('`'))
}

/// A stage that is gone is named, with the link over which its neighbors wait for it.
#[test]
fn a_middle_stage_that_is_gone_is_named() {
    let (calls, first) = middle_calls();
    let messages: Vec<usize> = (first..calls.len()).filter(|at| calls[*at].is_some()).collect();
    // Forward and backward, four from each side and four to each.
    assert_eq!(messages.len(), 16);
    let middle = messages[messages.len() / 2];
    for fault in [InjectedFault::Fail, InjectedFault::Panic] {
        let text = struck(&fault, middle);
        assert!(
            text.contains("rank 1") && text.contains("step 2") && text.contains("line "),
            "{fault:?}: {text}"
        );
    }
    let text = struck(&InjectedFault::Stall(Duration::from_secs(9)), middle);
    let ends = ["rank 0 timed out", "rank 2 timed out"].iter().any(|end| text.contains(end));
    assert!(ends && text.contains("waiting for rank 1") && is_named(&text), "{text}");
}

/// Whichever message fails, sent or received, its error has its number, its value and a line.
#[test]
fn every_message_that_fails_is_named() {
    let (calls, first) = middle_calls();
    for at in (first..calls.len()).filter(|at| calls[*at].is_some()) {
        let text = struck(&InjectedFault::Fail, at);
        assert!(text.contains("rank 1") && is_named(&text), "call {at}, sent: {:?}: {text}", calls[at]);
    }
    let of = |sent| calls[first..].iter().filter(|call| **call == Some(sent)).count();
    assert_eq!([of(true), of(false)], [8, 8]);
}
