//! The identities.

use super::numbers::{MachineNumber, better, faster, without_limits};
use super::{Case, Code, EqualStages, MODELED, PROGRAMS, options};
use meshwright_cost::estimate::Estimate;
use meshwright_cost::machine::Machine;
use meshwright_cost::pipeline::StageTimes;
use meshwright_cost::timeline::Spent;
use meshwright_plan::actions::PipelineSchedule;
use meshwright_sorted::SortedMap;
use meshwright_train::ProjectOptions;

/// Whether an identity holds, and where it does not.
type Held = Result<(), String>;

/// Times by name.
type Times = SortedMap<String, f64>;

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * b.abs().max(f64::MIN_POSITIVE)
}

fn held(holds: bool, why: impl FnOnce() -> String) -> Held {
    if holds { Ok(()) } else { Err(why()) }
}

/// Asks something of each program on each machine.
fn each(of: impl Fn(&ProjectOptions, &Machine) -> Held) -> Held {
    for (machine, precision) in MODELED.iter() {
        for case in PROGRAMS {
            of(&options(case, *precision), machine).map_err(|why| said(case, machine, &why))?;
        }
    }
    Ok(())
}

fn said(case: &Case<'_>, machine: &Machine, why: &str) -> String {
    format!("{case:?} on {}: {why}", machine.name)
}

/// Parts of the time by name, those of one stage of a pipeline without its waiting for others.
fn parts(e: &Estimate) -> Times {
    let b = &e.breakdown;
    let all = [
        ("matmul", b.matmul),
        ("attention", b.attention),
        ("memory_bound", b.memory_bound),
        ("update", b.update),
        ("launch", b.launch),
    ];
    all.into_iter().map(|(name, s)| (name.to_string(), s)).collect()
}

fn exposed(e: &Estimate) -> f64 {
    e.breakdown.exposed.values().sum()
}

/// The same times, but for what is small beside `whole`.
fn same(a: &Times, b: &Times, (tolerance, whole): (f64, f64)) -> Held {
    let names = a.keys().chain(b.keys());
    let of = |times: &Times, name: &String| times.get(name).copied().unwrap_or(0.0);
    let mut apart = names.filter(|name| (of(a, name) - of(b, name)).abs() > tolerance * whole);
    apart.next().map_or(Ok(()), |name| Err(format!("{name}: {} for {}", of(a, name), of(b, name))))
}

/// Parts sum to the step, and collectives to what is exposed and hidden over their axes.
pub(super) fn sums(code: Code<'_>) -> Held {
    each(|options, machine| {
        let e = code.on(options, machine)?;
        let (sum, seconds) = (e.breakdown.sum(), e.seconds);
        held(seconds > 0.0 && seconds.is_finite(), || format!("a step of {seconds} s"))?;
        held(near(sum, seconds, 1e-12), || format!("parts of {sum} s in a step of {seconds} s"))?;
        let mut waited: Times = SortedMap::new();
        let mut whole: Times = SortedMap::new();
        for c in &e.collectives {
            let axes = c.axes.join(",");
            *waited.entry(axes.clone()).or_default() += c.exposed_seconds;
            *whole.entry(axes).or_default() += c.seconds;
        }
        same(&e.breakdown.exposed, &waited, (1e-9, seconds)).map_err(|why| format!("exposed over {why}"))?;
        let mut both = e.breakdown.exposed.clone();
        e.hidden.iter().for_each(|(axes, s)| *both.entry(axes.clone()).or_default() += s);
        same(&both, &whole, (1e-9, seconds)).map_err(|why| format!("exposed and hidden over {why}"))?;
        let more = e.collectives.iter().find(|c| c.exposed_seconds > c.seconds * (1.0 + 1e-9) + 1e-15);
        held(more.is_none(), || format!("more is exposed of a collective than it takes: {more:?}"))?;
        let bubble = e.pipe.as_ref().map_or(0.0, |p| p.bubble);
        held(bubble == e.breakdown.bubble, || format!("a bubble of {bubble} s"))
    })
}

/// A machine twice as fast takes half the time.
pub(super) fn half(code: Code<'_>) -> Held {
    each(|options, machine| {
        let (once, twice) = (code.on(options, machine)?, code.on(options, &faster(machine, 2.0))?);
        held(near(2.0 * twice.seconds, once.seconds, 1e-9), || {
            format!("{} s, twice as fast {} s", once.seconds, twice.seconds)
        })
    })
}

/// A number that is better makes no step slower, and some step faster.
pub(super) fn monotone(code: Code<'_>, number: &MachineNumber) -> Held {
    let mut counts = false;
    for (machine, precision) in MODELED.iter() {
        let other = better(machine, number, 1.3);
        if other == *machine {
            continue;
        }
        for case in PROGRAMS {
            let options = options(case, *precision);
            let (before, after) = (code.on(&options, machine)?.seconds, code.on(&options, &other)?.seconds);
            held(after <= before * (1.0 + 1e-9), || {
                said(case, machine, &format!("{} is better: {after} s after {before} s", number.name))
            })?;
            counts |= after < before * (1.0 - 1e-9);
        }
    }
    held(counts, || format!("no step depends on {}", number.name))
}

/// All that is spent, by name.
fn all_spent(s: &Spent) -> Times {
    let mut all: Times = SortedMap::new();
    let mut put = |name: String, value: f64| *all.entry(name).or_default() = value;
    s.families.iter().for_each(|(f, s)| put(format!("{f:?}"), *s));
    s.exposed.iter().for_each(|(axes, s)| put(format!("exposed over {axes:?}"), *s));
    s.hidden.iter().for_each(|(axes, s)| put(format!("hidden over {axes:?}"), *s));
    put("update".into(), s.update);
    put("launch".into(), s.launch);
    put("contention".into(), s.contention);
    for (step, (_, seconds, exposed)) in &s.collectives {
        put(format!("collective {step}"), *seconds);
        put(format!("collective {step}, exposed"), *exposed);
    }
    all
}

/// What is counted, by name.
fn all_counted(s: &Spent) -> Times {
    let times = s.collectives.iter().map(|(step, (times, ..))| (format!("times of {step}"), *times));
    times.chain([("kernels".into(), s.moved.0), ("bytes".into(), s.moved.1)]).collect()
}

/// Turns of loops that are multiplied are those that are walked, in all that is spent and counted.
pub(super) fn turns(code: Code<'_>) -> Held {
    each(|options, machine| {
        let (multiplied, walked) = code.turns(options, machine);
        let whole = walked.seconds();
        held(near(multiplied.seconds(), whole, 1e-6), || {
            format!("{} s for {whole} s", multiplied.seconds())
        })?;
        same(&all_spent(&multiplied), &all_spent(&walked), (1e-6, whole))?;
        let (a, b) = (all_counted(&multiplied), all_counted(&walked));
        b.keys().try_for_each(|name| {
            let (a, b) = (a.get(name).copied().unwrap_or(0.0), b[name]);
            held(near(a, b, 1e-9), || format!("{name}: {a} for {b}"))
        })
    })
}

/// Pipelines of equal stages take the times of the papers.
pub(super) fn pipelines(code: Code<'_>) -> Held {
    use PipelineSchedule::{Gpipe, OneForwardOneBackward, ZbH1};
    let times = StageTimes { forward: 1.0, backward: 1.5, weight: 0.5 };
    let mut expected: Vec<(EqualStages, f64)> = Vec::new();
    for (p, m) in [(2, 4), (4, 8), (8, 64), (3, 7)] {
        let (n, edge) = (m as f64, (p - 1) as f64);
        let of = |schedule, chunks, times, hop| EqualStages {
            schedule,
            stages: p,
            chunks,
            microbatches: m,
            times,
            hop,
        };
        expected.push((of(Gpipe, 1, times, 0.0), (n + edge) * 3.0));
        expected.push((of(OneForwardOneBackward, 1, times, 0.0), (n + edge) * 3.0));
        // Of each way through the stages the last microbatch, and the first, wait for the messages.
        expected.push((of(Gpipe, 1, times, 0.25), (n + edge) * 3.0 + 2.0 * edge * 0.25));
        if m % p == 0 {
            let half = StageTimes { forward: 0.5, backward: 0.75, weight: 0.25 };
            expected.push((of(OneForwardOneBackward, 2, half, 0.0), n * 3.0 + edge * 1.5));
        }
        if m >= 2 * p {
            let equal = StageTimes { forward: 1.0, backward: 1.0, weight: 1.0 };
            expected.push((of(ZbH1, 1, equal, 0.0), 3.0 * n + edge));
        }
    }
    expected.iter().try_for_each(|(of, seconds)| {
        let found = code.played(of);
        held(near(found, *seconds, 1e-9), || format!("{of:?}: {found} s for {seconds} s"))
    })
}

/// Over links without limits nothing waits for collectives, and what computes takes what it took.
pub(super) fn without_links(code: Code<'_>) -> Held {
    each(|options, machine| {
        let before = code.on(options, machine)?;
        let e = code.on(options, &without_limits(machine, true))?;
        same(&parts(&e), &parts(&before), (1e-12, before.seconds))?;
        let b = &e.breakdown;
        let compute: f64 = parts(&e).values().sum();
        let rest = e.seconds - b.straggler - b.bubble;
        held(near(rest, compute, 1e-9), || {
            format!("{rest} s for {compute} s of compute: {} s exposed, {} s lost", exposed(&e), b.contention)
        })
    })
}

/// On devices without limits a step takes as long as its collectives, one after the other. Stages of a pipeline also wait for
/// messages from each other.
pub(super) fn without_compute(code: Code<'_>) -> Held {
    each(|options, machine| {
        let e = code.on(options, &without_limits(machine, false))?;
        if e.pipe.is_some() {
            return Ok(());
        }
        let wire: f64 = e.collectives.iter().map(|c| c.seconds).sum();
        let rest = e.seconds - e.breakdown.straggler;
        held((rest - wire).abs() <= 1e-9 * wire + 1e-15, || format!("{rest} s for {wire} s of collectives"))
    })
}

/// A model, its preset, sizes of dims, and rules.
type EqualCase = (&'static str, &'static str, &'static [(&'static str, usize)], &'static str);

/// Layouts over `a` and `b` of two devices each, and over an axis of four that is cut in two.
const EQUAL_AXES: [EqualCase; 3] = [
    ("mlp", "", &[("batch", 64)], "batch -> a; hidden -> b"),
    ("gpt", "tiny", &[], "batch -> a; heads, d_ff, vocab -> b; seq -> b when free"),
    ("gpt", "tiny", &[], "batch -> a, b; params: * -> a; microbatches 2"),
];

/// Two equal axes that change places change nothing; nor does an axis that is cut in two, inside a node.
pub(super) fn equal_axes(code: Code<'_>) -> Held {
    let alike = |case: &Case<'_>, machine: &Machine, (a, b): (&Estimate, &Estimate)| {
        let bytes = |e: &Estimate| e.collectives.iter().map(|c| c.bytes * c.times).sum::<u64>();
        let of = |e: &Estimate| {
            let mut all = parts(e);
            all.extend([("exposed".to_string(), exposed(e)), ("step".to_string(), e.seconds)]);
            all
        };
        let times = same(&of(a), &of(b), (1e-9, b.seconds)).map_err(|why| said(case, machine, &why));
        times?;
        held((bytes(a), a.memory.peak_bytes) == (bytes(b), b.memory.peak_bytes), || {
            said(case, machine, &format!("{} bytes for {}", bytes(a), bytes(b)))
        })
    };
    for (machine, precision) in MODELED.iter() {
        let on = |case: &Case<'_>| code.on(&options(case, *precision), machine);
        for (model, preset, sizes, layout) in EQUAL_AXES {
            let turned = layout.replace("> a", "> c").replace("> b", "> a").replace("> c", "> b");
            let turned = turned.replace("> b, b", "> b, a");
            let one: Case<'_> = (model, preset, sizes, layout, "a=2,b=2");
            let other: Case<'_> = (model, preset, sizes, &turned, "a=2,b=2");
            alike(&one, machine, (&on(&one)?, &on(&other)?))?;
        }
        let whole: Case<'_> = ("bert", "tiny", &[], "batch -> a", "a=4");
        let cut: Case<'_> = ("bert", "tiny", &[], "batch -> a, b", "a=2,b=2");
        alike(&cut, machine, (&on(&cut)?, &on(&whole)?))?;
    }
    Ok(())
}

/// Names of axes, and axes of one device, change nothing.
pub(super) fn names(code: Code<'_>) -> Held {
    for (machine, precision) in MODELED.iter() {
        let of = |layout: &str, mesh: &str| {
            code.on(&options(&("gpt", "tiny", &[], layout, mesh), *precision), machine).map(|e| e.seconds)
        };
        let one = of("batch -> a; d_ff -> b", "a=2,b=2")?;
        for other in
            [of("batch -> x; d_ff -> y", "x=2,y=2")?, of("batch -> a; d_ff -> b; heads -> c", "a=2,b=2,c=1")?]
        {
            held(near(one, other, 1e-12), || format!("{}: {one} s, {other} s", machine.name))?;
        }
    }
    Ok(())
}

/// Sizes of a model, and larger ones.
pub(super) const WORK: [(&str, [usize; 2]); 4] =
    [("batch", [16, 32]), ("layers", [4, 8]), ("vocab", [4096, 8192]), ("seq", [64, 128])];

/// More examples, layers, words or positions take longer.
pub(super) fn more_work(code: Code<'_>, more: &(&str, [usize; 2])) -> Held {
    for (machine, precision) in MODELED.iter() {
        let of = |size: usize| {
            let sizes = [(more.0, size)];
            let case = ("gpt", "tiny", &sizes[..], "batch -> data", "data=4");
            code.on(&options(&case, *precision), machine).map(|e| e.seconds)
        };
        let [few, many] = more.1;
        let (less, longer) = (of(few)?, of(many)?);
        held(less < longer, || format!("{}: {longer} s with more {}, {less} s", machine.name, more.0))?;
    }
    Ok(())
}
