//! Costs that are known are found again.

use super::super::probes::{probes, shared, shared_length};
use super::*;
use crate::estimates::machine;
use crate::project::{Project, ProjectOptions};
use meshwright_core::training_step;
use meshwright_cost::engine::EngineKind;

fn plan(options: &ProjectOptions) -> Plan {
    let loaded = Project::load(options);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap().plan
}

/// The kernels of a program with the times that a machine has for them.
fn priced(options: &ProjectOptions, known: &Machine, devices: usize) -> Vec<Sample> {
    let plan = plan(options);
    let engine = EngineKind::of(known);
    let rates = DeviceRates::new(known, devices, &engine.attention());
    let work = program(&plan, &compile_launches(&plan, 0, engine.target()).unwrap());
    let of = |item| match item {
        WorkItem::Work(work) => {
            let of = rates.seconds(&work);
            Some(Sample { work: *work, seconds: of.work + of.launch })
        }
        _ => None,
    };
    work.body.into_iter().filter_map(of).collect()
}

/// A machine with no number of the one that calibration begins with.
fn known() -> Machine {
    let mut known = machine("cpu", &[]).unwrap();
    let d = &mut known.device;
    (d.kernel, d.threads) = (1.1e-6, 0.0);
    d.scalar.values_mut().zip([1.7, 0.8, 1.4, 2.0, 0.9, 2.2]).for_each(|(s, factor)| *s *= factor);
    d.stream.rates = vec![(2e5, 30e9), (1e7, 25e9), (1e8, 21e9)];
    d.stream.total = Some(34e9);
    for (dtype, rate) in [("f32", 130e9), ("f64", 66e9), ("bf16", 110e9)] {
        d.matrix.insert(dtype.into(), MatrixRates { peak: rate * 1.05, best: rate, source: None });
    }
    d.product.fill = 50.0;
    d.product.tiles.iter_mut().zip([1.0, 0.8, 0.4, 0.1]).for_each(|(t, rate)| t.2 = rate);
    d.families =
        [("convolve", 90e9), ("pool", 0.4e9), ("lookup", 0.7e9), ("scatter", 0.6e9), ("scan", 0.5e9)]
            .map(|(name, rate)| (name.into(), rate))
            .into();
    let native = d.attention.get_mut("native").unwrap();
    (native.forward, native.backward) = ((70e9, 90.0), (60e9, 150.0));
    (native.widths, native.dropout) = (vec![(32.0, 0.6), (64.0, 1.0)], 1.4);
    known
}

/// Adds what is further off than 2 %.
fn near(found: f64, known: f64, what: &str, off: &mut Vec<String>) {
    if (found / known - 1.0).abs() > 0.02 {
        off.push(format!("{what}: {found:e} for {known:e}"));
    }
}

#[test]
fn known_costs_are_found_again() {
    let known = known();
    let of: Vec<(ProbeKind, Vec<Sample>)> =
        probes(DeviceKind::Cpu, false).iter().map(|p| (p.kind, priced(&p.options, &known, 1))).collect();
    let mut found = machine("cpu", &[]).unwrap();
    fit(&mut found, &of, "native");
    total(&mut found, 2, &priced(&shared(shared_length(2, false), 2).options, &known, 2));
    let (d, k) = (&found.device, &known.device);
    let mut wrong = vec![];
    near(d.kernel, k.kernel, "kernel", &mut wrong);
    near(d.stream.total.unwrap(), k.stream.total.unwrap(), "total", &mut wrong);
    for (name, seconds) in &k.scalar {
        near(d.scalar[name], *seconds, name, &mut wrong);
    }
    for (name, rate) in &k.families {
        near(d.families[name], *rate, name, &mut wrong);
    }
    let (a, b) = (&d.attention["native"], &k.attention["native"]);
    for (one, other) in [(a.forward, b.forward), (a.backward, b.backward)] {
        near(one.0, other.0, "attention", &mut wrong);
        near(one.1, other.1, "keys of half the rate", &mut wrong);
    }
    near(a.dropout, b.dropout, "dropout", &mut wrong);
    near(a.width_rate(32.0), b.width_rate(32.0), "narrow keys", &mut wrong);
    assert_eq!(a.width_rate(64.0), 1.0);
    // Rates of memory and of products are known by the times of kernels.
    let rates = DeviceRates::new(&found, 1, &["native"]);
    let mut off = vec![];
    for (kind, samples) in &of {
        for s in samples.iter().filter(|_| matches!(kind, ProbeKind::Stream | ProbeKind::Product)) {
            let seconds = rates.seconds(&s.work);
            let error = (seconds.work + seconds.launch) / s.seconds - 1.0;
            off.push((error.abs(), format!("{:?} {}", s.work.products, s.work.bytes)));
        }
    }
    let mean = off.iter().map(|o| o.0).sum::<f64>() / off.len() as f64;
    off.sort_by(|a, b| b.0.total_cmp(&a.0));
    near(1.0 + mean, 1.0, &format!("kernels, such as {:?}", &off[..3]), &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same of a GPU, whose file begins with that of another one.
#[test]
fn known_costs_of_a_gpu_are_found_again() {
    let mut known = machine("dgx-a100-80g", &[]).unwrap();
    let k = &mut known.device;
    (k.kernel, k.sustained, k.product.issue, k.product.fill) = (3.1e-6, 1.0, 0.7, 250.0);
    k.stream.rates = vec![(1e6, 1.1e12), (1e9, 1.4e12)];
    for (dtype, best) in [("bf16", 210e12), ("f32", 15e12), ("f64", 9e12)] {
        let peak = k.matrix.get(dtype).map_or(best, |m| m.peak);
        k.matrix.insert(dtype.into(), MatrixRates { peak, best, source: None });
    }
    let kernel = AttentionRates {
        forward: (150e12, 300.0),
        backward: (110e12, 500.0),
        widths: vec![(64.0, 0.7), (128.0, 1.0)],
        dropout: 1.3,
        source: None,
    };
    k.attention.insert("cuda".into(), kernel.clone());
    let of: Vec<(ProbeKind, Vec<Sample>)> =
        probes(DeviceKind::Gpu, false).iter().map(|p| (p.kind, priced(&p.options, &known, 1))).collect();
    let mut found = machine("dgx-a100-80g", &[]).unwrap();
    fit(&mut found, &of, "cuda");
    let (d, k) = (&found.device, &known.device);
    let mut wrong = vec![];
    near(d.kernel, k.kernel, "kernel", &mut wrong);
    let a = &d.attention["cuda"];
    for (one, other) in [(a.forward, kernel.forward), (a.backward, kernel.backward)] {
        near(one.0, other.0, "attention", &mut wrong);
        near(one.1, other.1, "keys of half the rate", &mut wrong);
    }
    near(a.dropout, kernel.dropout, "dropout", &mut wrong);
    near(a.width_rate(64.0), 0.7, "narrow keys", &mut wrong);
    near(d.matrix["bf16"].peak, k.matrix["bf16"].peak, "a peak that is known", &mut wrong);
    let rates = DeviceRates::new(&found, 1, &["cuda"]);
    for kind in [ProbeKind::Stream, ProbeKind::Product] {
        let all: Vec<f64> = of
            .iter()
            .filter(|(of, _)| *of == kind)
            .flat_map(|(_, samples)| samples)
            .map(|s| {
                let seconds = rates.seconds(&s.work);
                ((seconds.work + seconds.launch) / s.seconds - 1.0).abs()
            })
            .collect();
        // Whole waves make steps in the times of products, which tiles of other rates come near to.
        let most = if kind == ProbeKind::Product { 0.03 } else { 0.02 };
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean < most, "{kind:?}: {mean}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_total_is_written_where_cores_share_it_and_caches_do_not_exceed_it() {
    let samples = priced(&shared(shared_length(2, true), 2).options, &known(), 2);
    let of = |rates: Vec<(f64, f64)>| {
        let mut found = machine("cpu", &[]).unwrap();
        found.device.stream.rates = rates;
        total(&mut found, 2, &samples);
        found.device.stream.total
    };
    assert!(of(vec![(2e5, 30e9), (1e8, 21e9)]).is_some());
    assert_eq!(of(vec![(2e5, 80e9), (1e8, 21e9)]), None);
    assert_eq!(of(vec![(2e5, 30e9), (1e8, 16e9)]), None);
}

#[test]
fn lines_and_saturation_are_found_again() {
    let line = |x: f64| 3e-6 + x / 2e9;
    let (slope, start) = straight([1e3, 1e5, 1e7].into_iter().map(|x| (x, line(x)))).unwrap();
    assert!((slope * 2e9 - 1.0).abs() < 1e-9 && (start / 3e-6 - 1.0).abs() < 1e-9);
    // A start below 0 would give times below 0.
    assert_eq!(straight([(1.0, 0.5), (2.0, 2.0)].into_iter()).unwrap().1, 0.0);
    assert_eq!(straight([(1.0, 0.5)].into_iter()), None);
    let (top, half) = saturation(&[64.0, 128.0, 512.0].map(|k| (k, 8e9 * k / (k + 70.0)))).unwrap();
    assert!((top / 8e9 - 1.0).abs() < 1e-9 && (half - 70.0).abs() < 1e-6);
}
