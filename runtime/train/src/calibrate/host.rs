//! This host, as a machine file describes it before anything is measured, and what says that the rest was.

use super::ranks::Ranks;
use crate::devices::Devices;
use crate::estimates::machine;
use crate::failure::Failure;
use meshwright_cost::machine::{Device, DeviceKind, Machine, NumberSource, Tier};
use meshwright_cost::shipped_machines::{MACHINES, ShippedMachine};
use meshwright_exec::ExecError;
use meshwright_files::Checked;
use meshwright_gpu::driver::{Driver, DriverError, Properties};
use meshwright_runs::memory::total_bytes;
use meshwright_sorted::SortedMap;
use toml::Value;

/// The shipped file that has the numbers which are not measured.
const BASE: &str = "cpu";
const BASE_OF_GPUS: &str = "dgx-h100";

/// This host, in words: `2 cores of AMD EPYC`.
pub(super) fn described(cores: usize) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |key: &str| {
        info.lines().find_map(|l| l.strip_prefix(key)?.split_once(':').map(|v| v.1.trim().to_string()))
    };
    let model = of("model name").or_else(|| of("Model")).unwrap_or_else(|| std::env::consts::ARCH.into());
    format!("{cores} {} of {model}", if cores == 1 { "core" } else { "cores" })
}

/// A machine with this host's cores or GPUs and their memory, and numbers of the shipped file of that name until they are
/// measured.
///
/// # Errors
/// Where the driver does not say what the GPU is.
pub(super) fn machine_of_host(
    name: Option<&str>,
    ranks: &Ranks,
    devices: &Devices,
) -> Result<(Machine, &'static str), Failure> {
    let Some(gpu) = devices.device.gpu_number() else { return Ok((machine_of_cores(name, ranks)?, BASE)) };
    let properties = Driver::open(&devices.libraries).and_then(|d| d.properties(gpu as u32));
    let failed = |e: DriverError| ExecError::Start { rank: 0, message: e.to_string() };
    let properties = properties.map_err(failed)?;
    Ok((machine_of_gpu(name, &properties)?, shipped_gpu(&properties).unwrap_or(BASE_OF_GPUS)))
}

/// The shipped file of the GPU with this name; of several, that whose memory is nearest.
fn shipped_gpu(of: &Properties) -> Option<&'static str> {
    let read = |m: &ShippedMachine| Some((m.name, Machine::read(m.text).ok()?));
    let all = MACHINES.iter().filter_map(read).filter(|(_, m)| m.device.kind == DeviceKind::Gpu);
    let same = all.filter(|(_, m)| {
        let model = m.device.name.split([' ', ',']).next().unwrap_or_default();
        of.name.split([' ', '-']).any(|word| word == model)
    });
    let apart = |m: &Machine| (m.device.memory - of.memory as f64).abs();
    same.min_by(|a, b| apart(&a.1).total_cmp(&apart(&b.1))).map(|found| found.0)
}

fn machine_of_gpu(name: Option<&str>, of: &Properties) -> Checked<Machine> {
    let shipped = shipped_gpu(of);
    let mut found = machine(shipped.unwrap_or(BASE_OF_GPUS), &[])?;
    // Peaks of another GPU say nothing of this one.
    found.device.matrix.retain(|_, _| shipped.is_some());
    found.name = name.unwrap_or(&of.name).into();
    found.failures = None;
    let device = &mut found.device;
    (device.name, device.memory, device.units) = (of.name.clone(), of.memory as f64, of.units.max(1));
    device.reserve = device.reserve.min(device.memory / 2.0);
    Ok(found)
}

fn machine_of_cores(name: Option<&str>, ranks: &Ranks) -> Checked<Machine> {
    let mut of = machine(BASE, &[])?;
    of.device.name = described(ranks.cores);
    let hosts = if ranks.hosts > 1 { format!("{} hosts, each of ", ranks.hosts) } else { String::new() };
    of.name = name.map_or_else(|| hosts + &of.device.name, String::from);
    of.device.units = ranks.cores as u32;
    if let Some(bytes) = total_bytes() {
        of.device.memory = bytes as f64;
    }
    Ok(of)
}

/// The same with numbers of four digits: more than that is noise.
pub(super) fn rounded(of: &Machine) -> Machine {
    fn round(value: &mut Value) {
        match value {
            Value::Float(x) => *x = format!("{x:.3e}").parse().unwrap_or(*x),
            Value::Array(all) => all.iter_mut().for_each(round),
            Value::Table(table) => table.iter_mut().for_each(|(_, v)| round(v)),
            _ => {}
        }
    }
    let Ok(mut value) = Value::try_from(of) else { return of.clone() };
    round(&mut value);
    value.try_into().unwrap_or_else(|_| of.clone())
}

/// Says of each number that it was measured, when, and by which engine, or that it is the shipped file's. Collectives were
/// measured among `members` devices at most, and perhaps during kernels.
pub(super) fn name_sources(
    of: &mut Machine,
    date: &str,
    engine: &str,
    (members, beside): (usize, bool),
    base_name: &str,
) {
    let measured = format!("measured on {date} by `meshwright calibrate` on {}", of.device.name);
    let all = |what: &str| Some(NumberSource::All(format!("{measured}: {what}")));
    let shipped = || format!("assumed: as in the shipped file `{base_name}`");
    let (cpu, by_driver) = (of.device.kind == DeviceKind::Cpu, || "the driver".to_string());
    let by_key = |keys: &[(&str, String)]| {
        let keys: SortedMap<String, String> = keys.iter().map(|(k, v)| ((*k).into(), v.clone())).collect();
        Some(NumberSource::ByKey(keys))
    };
    let base = machine(base_name, &[]).map(|base| rounded(&base)).ok();
    // A number without a probe is that of the shipped file.
    let told = |own: &str, kept: &dyn Fn(&Machine) -> bool| match base.as_ref().is_some_and(kept) {
        true => shipped(),
        false => format!("{measured}: {own}"),
    };
    let (device, tiers) = (of.device.clone(), &mut of.tier);
    let scalar = format!("{measured}: chains of one function{}", kept(base.as_ref(), &device, base_name));
    let d = &mut of.device;
    let (memory, units) = match cpu {
        true => ("the host's /proc/meminfo".into(), "the cores that the processes on a host may use".into()),
        false => (by_driver(), by_driver()),
    };
    d.source = by_key(&[
        ("memory", memory),
        ("reserve", shipped()),
        ("units", units),
        (
            "kernel",
            told("steps on a few elements, one device at work", &|base| base.device.kernel == device.kernel),
        ),
        ("sustained", format!("{measured}: fitted on plans")),
        ("attention_sustained", format!("{measured}: attention alone")),
        ("threads", format!("{measured}: plans on all cores and on one")),
        ("straggle", shipped()),
        ("scalar", scalar),
        ("families", format!("{measured}: where memory is not what limits them")),
    ]);
    for rates in d.matrix.values_mut() {
        rates.source = all(
            "`best` is the fastest product on one device, `peak` what it would reach without edges, or of a GPU the shipped file's, and of other dtypes as far above `best` as that is",
        );
    }
    d.product.source = all("fitted on products of many shapes; `tiles` have the shapes of the shipped file");
    let stream = told("updates of vectors; `total` by a device for each core", &|base| {
        base.device.stream.rates == device.stream.rates
    });
    d.stream.source = Some(NumberSource::All(stream));
    for (name, rates) in &mut d.attention {
        let same = |base: &Machine| {
            base.device
                .attention
                .get(name)
                .is_some_and(|b| (b.forward, b.backward) == (rates.forward, rates.backward))
        };
        let of = told("numbers of keys, keys of fewer elements, and with dropout", &same);
        rates.source = Some(NumberSource::All(of));
    }
    let mut below = 1;
    for tier in tiers {
        // Groups that a level below connects tell nothing of it.
        match members > below {
            true => sources_of_tier(tier, &format!("{measured} ({engine})"), &shipped(), beside),
            false => tier.source = Some(NumberSource::All(shipped())),
        }
        below = tier.size;
    }
}

/// The functions whose seconds are those of the shipped file, in words.
fn kept(base: Option<&Machine>, device: &Device, base_name: &str) -> String {
    let of = base.into_iter().flat_map(|base| &base.device.scalar);
    let same = of.filter(|(f, s)| device.scalar.get(*f) == Some(*s));
    match &same.map(|(f, _)| f.as_str()).collect::<Vec<_>>()[..] {
        [] => String::new(),
        some => format!(", but {} as in the shipped file `{base_name}`", some.join(", ")),
    }
}

fn sources_of_tier(tier: &mut Tier, measured: &str, shipped: &str, beside: bool) {
    let units = match (beside, tier.units > 0.0) {
        (true, true) => format!("{measured}: a product beside an all-reduce"),
        (true, false) => {
            format!("{measured}: a product beside an all-reduce takes as long as one after the other")
        }
        (false, true) => shipped.to_string(),
        (false, false) => "a device that communicates does nothing else".to_string(),
    };
    let lines = format!("{measured}: fitted on the benchmark of collectives");
    let keys = [
        ("size", "the devices of a host, or as many as anybody starts"),
        ("hop", if tier.hop > 0.0 { shipped } else { "none: the latency of a line has it" }),
        ("p2p", lines.as_str()),
        ("p2p_latency", lines.as_str()),
        ("units", units.as_str()),
        ("line", lines.as_str()),
    ];
    tier.source = Some(NumberSource::ByKey(keys.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// What a source says of a key.
    fn said(source: Option<&NumberSource>, key: &str) -> String {
        match source.unwrap() {
            NumberSource::All(all) => all.clone(),
            NumberSource::ByKey(keys) => keys[key].clone(),
        }
    }

    /// If a probe was left out, or measured nothing, the number is still that of the shipped file.
    #[test]
    fn a_number_that_no_probe_told_is_that_of_the_shipped_file() {
        let shipped = machine_of_cores(Some("Here"), &Ranks { in_host: 4, hosts: 1, cores: 2 }).unwrap();
        let named = |change: &dyn Fn(&mut Machine), members| {
            let mut of = shipped.clone();
            change(&mut of);
            let mut of = rounded(&of);
            name_sources(&mut of, "2026-01-01", "mpi", (members, members > 0), BASE);
            let d = &of.device;
            let attention = d.attention.values().next().unwrap();
            [
                said(d.source.as_ref(), "kernel"),
                said(d.source.as_ref(), "scalar"),
                said(d.stream.source.as_ref(), ""),
                said(attention.source.as_ref(), ""),
                said(of.tier[0].source.as_ref(), "line"),
            ]
        };
        let none = named(&|_| {}, 0);
        for (at, source) in none.iter().enumerate() {
            let shipped = source.starts_with("assumed: as in the shipped file") || at == 1;
            assert!(shipped && source.contains("as in the shipped file `cpu`"), "{source}");
        }
        let all = named(
            &|m| {
                m.device.kernel *= 2.0;
                m.device.scalar.values_mut().for_each(|s| *s *= 2.0);
                m.device.stream.rates[0].1 *= 2.0;
                m.device.attention.values_mut().for_each(|a| a.forward.0 *= 2.0);
            },
            4,
        );
        for source in &all {
            assert!(source.starts_with("measured on 2026-01-01 by `meshwright calibrate`"), "{source}");
            assert!(!source.contains("shipped"), "{source}");
        }
        assert!(all[4].contains("(mpi)"), "{}", all[4]);
        // One function of six.
        let root = |m: &mut Machine| m.device.scalar.extend([("root".to_string(), 1e-9)]);
        let [_, scalar, ..] = named(&root, 4);
        assert!(scalar.contains("but ") && !scalar.contains("root") && scalar.contains("power"), "{scalar}");
    }

    #[test]
    fn a_gpu_begins_with_the_shipped_file_of_its_name() {
        let of = |name: &str, memory: f64| Properties {
            name: name.into(),
            memory: memory as u64,
            capability: (9, 0),
            bus_id: String::new(),
            units: 132,
        };
        for (name, memory, shipped) in [
            ("NVIDIA H200", 150e9, Some("dgx-h200")),
            ("NVIDIA H100 80GB HBM3", 85e9, Some("dgx-h100")),
            ("NVIDIA A100-SXM4-40GB", 42e9, Some("dgx-a100-40g")),
            ("Tesla V100-SXM2-32GB", 34e9, Some("flow-type2-v100")),
            ("NVIDIA GeForce RTX 4090", 25e9, None),
        ] {
            assert_eq!(shipped_gpu(&of(name, memory)), shipped, "{name}");
        }
        let found = machine_of_gpu(None, &of("NVIDIA H200", 150.1e9)).unwrap();
        let text = found.to_toml().unwrap();
        assert_eq!(Machine::read(&text).unwrap().device.kind, DeviceKind::Gpu, "{text}");
        assert_eq!((found.name.as_str(), found.device.units), ("NVIDIA H200", 132));
    }
}
