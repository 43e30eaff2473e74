//! Faults on purpose: a term that is broken, and the identity that must catch it. An identity that catches nothing tests nothing,
//! and so does a fault that changes nothing: it is not caught.

use super::checks::{self, WORK};
use super::numbers::{MachineNumber, NUMBERS};
use super::{Code, EqualStages};
use meshwright_cost::estimate::{Breakdown, Estimate};
use meshwright_cost::machine::Machine;
use meshwright_cost::timeline::Spent;
use meshwright_train::ProjectOptions;

/// Changes a machine, given the one that ships.
type OfMachine = dyn Fn(&mut Machine, &Machine);
/// Changes an estimate, with its name.
type OfEstimate = (&'static str, fn(&mut Estimate));
/// Changes what turns of a loop take, given what a turn less takes; with its name.
type OfTurns = (&'static str, fn(&mut Spent, &Spent));
/// Changes a pipeline, and gives the seconds that it takes longer; with its name.
type OfPipeline = (&'static str, fn(&mut EqualStages) -> f64);
/// An identity, by its function.
type IdentityFn = fn(Code<'_>) -> Result<(), String>;

/// What is wrong with the code.
pub(crate) enum Fault {
    /// It reads other numbers than the machine has; the second machine has those that ship.
    Reads(Box<OfMachine>),
    /// It takes another program.
    Takes(fn(&mut ProjectOptions)),
    /// It gives another estimate.
    Gives(fn(&mut Estimate)),
    /// It multiplies turns otherwise; the second time is that of a turn less.
    Multiplies(fn(&mut Spent, &Spent)),
    /// It plays another pipeline, or takes so much longer.
    Plays(fn(&mut EqualStages) -> f64),
}

/// An identity with what it is asked of.
type Identity = Box<dyn Fn(Code<'_>) -> Result<(), String>>;

/// A fault, and who must catch it.
struct SeededFault {
    what: String,
    by: Identity,
    fault: Fault,
}

fn seeded(
    what: impl Into<String>,
    fault: Fault,
    by: impl Fn(Code<'_>) -> Result<(), String> + 'static,
) -> SeededFault {
    SeededFault { what: what.into(), by: Box::new(by), fault }
}

/// A part of a breakdown.
type Part = fn(&mut Breakdown) -> &mut f64;

fn of_sums() -> Vec<SeededFault> {
    fn left_out(e: &mut Estimate, part: Part) {
        *part(&mut e.breakdown) = 0.0;
    }
    macro_rules! without {
        ($($part:ident),*) => {
            vec![$(seeded(
                concat!(stringify!($part), " is no part of the sum"),
                Fault::Gives(|e| left_out(e, |b| &mut b.$part)),
                checks::sums,
            )),*]
        };
    }
    let mut all = without!(matmul, attention, memory_bound, update, launch, contention, bubble, straggler);
    let more: [OfEstimate; 8] = [
        ("what is exposed is no part of the sum", |e| e.breakdown.exposed.clear()),
        ("what is exposed counts twice", |e| {
            e.seconds += e.breakdown.exposed.values().sum::<f64>();
            e.breakdown.exposed.values_mut().for_each(|s| *s *= 2.0);
        }),
        ("collectives over one of several axes are no part of the sum", |e| {
            if e.breakdown.exposed.len() > 1 {
                e.breakdown.exposed.pop_first();
            }
        }),
        ("a collective of a loop counts once", |e| {
            e.collectives.iter_mut().for_each(|c| c.exposed_seconds /= c.times as f64);
        }),
        ("what a collective hides counts once", |e| {
            e.collectives.iter_mut().for_each(|c| c.seconds /= c.times as f64);
        }),
        ("nothing is hidden", |e| e.hidden.clear()),
        ("the bubble of the pipeline is another one", |e| {
            e.pipe.iter_mut().for_each(|p| p.bubble *= 1.5);
        }),
        ("the bubble is part of the step alone", |e| {
            e.seconds += e.breakdown.bubble;
        }),
    ];
    all.extend(more.into_iter().map(|(what, fault)| seeded(what, Fault::Gives(fault), checks::sums)));
    all
}

/// The number is that of the file, whatever the machine has.
fn is_not_read(number: &'static MachineNumber) -> Fault {
    Fault::Reads(Box::new(|m, shipped| number.change_by(m, shipped, |_, own| own)))
}

/// The number counts the wrong way: more where there is less.
fn is_turned_around(number: &'static MachineNumber) -> Fault {
    Fault::Reads(Box::new(|m, shipped| number.change_by(m, shipped, |now, own| own * (own / now))))
}

fn of_numbers() -> Vec<SeededFault> {
    let mut all = Vec::new();
    for number in NUMBERS.iter() {
        let name = &number.name;
        let catches = move |code: Code<'_>| checks::monotone(code, number);
        all.push(seeded(format!("{name} does not count"), is_not_read(number), catches));
        all.push(seeded(format!("{name} counts the wrong way"), is_turned_around(number), catches));
        if number.has_time() {
            let what = format!("{name} does not count where a machine is faster");
            all.push(seeded(what, is_not_read(number), checks::half));
            // Where a line, or a way through the switches, is slow, others are faster.
            if number.name == "tier.line.cap" || number.name.starts_with("tier.reduce") {
                continue;
            }
            let (what, by): (_, IdentityFn) = if number.network {
                ("counts over links without limits", checks::without_links)
            } else {
                ("counts on devices without limits", checks::without_compute)
            };
            all.push(seeded(format!("{name} {what}"), is_not_read(number), by));
        }
    }
    all
}

fn of_turns() -> Vec<SeededFault> {
    let fields: [OfTurns; 9] = [
        ("families", |s, fewer| s.families.clone_from(&fewer.families)),
        ("launches", |s, fewer| s.launch = fewer.launch),
        ("contention", |s, fewer| s.contention = fewer.contention),
        ("what is exposed", |s, fewer| s.exposed.clone_from(&fewer.exposed)),
        ("what is hidden", |s, fewer| s.hidden.clone_from(&fewer.hidden)),
        ("kernels", |s, fewer| s.moved.0 = fewer.moved.0),
        ("bytes", |s, fewer| s.moved.1 = fewer.moved.1),
        ("numbers of collectives", |s, fewer| {
            s.collectives.iter_mut().for_each(|(step, c)| c.0 = fewer.collectives[step].0);
        }),
        ("seconds of collectives", |s, fewer| {
            s.collectives.iter_mut().for_each(|(step, c)| c.1 = fewer.collectives[step].1);
        }),
    ];
    let of = |(name, fault)| {
        seeded(format!("{name}: a turn of a loop is left out"), Fault::Multiplies(fault), checks::turns)
    };
    fields.into_iter().map(of).collect()
}

fn of_pipelines() -> Vec<SeededFault> {
    let faults: [OfPipeline; 7] = [
        ("the bubble has p passes in place of p - 1", |of| {
            of.times.forward + of.times.backward + of.times.weight
        }),
        ("gradients of weights take no time", |of| {
            of.times.weight = 0.0;
            0.0
        }),
        ("the backward pass takes as long as the forward pass", |of| {
            of.times.backward = of.times.forward;
            0.0
        }),
        ("messages take no time", |of| {
            of.hop = 0.0;
            0.0
        }),
        ("messages are sent one way alone", |of| {
            of.hop /= 2.0;
            0.0
        }),
        ("a microbatch is left out", |of| {
            of.microbatches -= 1;
            0.0
        }),
        ("chunks do not make the bubble smaller", |of| {
            let once = of.times.forward + of.times.backward + of.times.weight;
            (of.chunks - 1) as f64 * (of.stages - 1) as f64 * once
        }),
    ];
    faults.into_iter().map(|(what, fault)| seeded(what, Fault::Plays(fault), checks::pipelines)).collect()
}

fn of_layouts() -> Vec<SeededFault> {
    fn by(e: &mut Estimate, axes: &str, factor: f64) {
        if let Some(waited) = e.breakdown.exposed.get_mut(axes) {
            e.seconds += (factor - 1.0) * *waited;
            *waited *= factor;
        }
    }
    fn sized(o: &mut ProjectOptions, dim: &str, size: usize) {
        o.dims.iter_mut().filter(|d| d.0 == dim).for_each(|d| d.1 = size);
    }
    let mut all = vec![
        seeded("collectives over `a` take no time", Fault::Gives(|e| by(e, "a", 0.0)), checks::equal_axes),
        seeded(
            "collectives over two axes take twice as long",
            Fault::Gives(|e| by(e, "a,b", 2.0)),
            checks::equal_axes,
        ),
        seeded(
            "collectives over two axes send twice as much",
            Fault::Gives(|e| {
                e.collectives.iter_mut().filter(|c| c.axes.len() > 1).for_each(|c| c.bytes *= 2);
            }),
            checks::equal_axes,
        ),
        seeded("time depends on a name", Fault::Gives(|e| by(e, "a", 2.0)), checks::names),
    ];
    let sizes: [fn(&mut ProjectOptions); 4] = [
        |o| sized(o, "batch", 16),
        |o| sized(o, "layers", 4),
        |o| sized(o, "vocab", 4096),
        |o| sized(o, "seq", 64),
    ];
    for (more, fault) in WORK.iter().zip(sizes) {
        let what = format!("the size of {} does not count", more.0);
        all.push(seeded(what, Fault::Takes(fault), |code| checks::more_work(code, more)));
    }
    all
}

fn all_caught(faults: Vec<SeededFault>) {
    let missed = faults.iter().filter(|s| (s.by)(Code { fault: Some(&s.fault) }).is_ok());
    let missed: Vec<&str> = missed.map(|s| s.what.as_str()).collect();
    assert!(missed.is_empty(), "of {} faults nobody notices: {missed:#?}", faults.len());
    // What catches without a fault would catch anything.
    let wrong: Vec<String> = faults.iter().filter_map(|s| (s.by)(Code::default()).err()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_sum_is_caught() {
    all_caught(of_sums());
}

#[test]
fn a_number_that_does_not_count_or_counts_the_wrong_way_is_caught() {
    all_caught(of_numbers());
}

#[test]
fn a_turn_that_is_left_out_is_caught() {
    all_caught(of_turns());
}

#[test]
fn a_wrong_bubble_is_caught() {
    all_caught(of_pipelines());
}

#[test]
fn a_layout_or_a_size_that_is_read_otherwise_is_caught() {
    all_caught(of_layouts());
}
