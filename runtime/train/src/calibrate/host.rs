//! This host, as a machine file describes it before anything is measured, and what says that the rest was.

use super::ranks::Ranks;
use crate::estimates::machine;
use meshwright_cost::machine::{Machine, NumberSource, Tier};
use meshwright_files::Checked;
use meshwright_runs::memory::total_bytes;
use std::collections::BTreeMap;
use toml::Value;

/// The shipped file that has the numbers which are not measured.
const BASE: &str = "cpu";

/// This host, in words: `2 cores of AMD EPYC`.
pub(super) fn described(cores: usize) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |key: &str| {
        info.lines().find_map(|l| l.strip_prefix(key)?.split_once(':').map(|v| v.1.trim().to_string()))
    };
    let model = of("model name").or_else(|| of("Model")).unwrap_or_else(|| std::env::consts::ARCH.into());
    format!("{cores} {} of {model}", if cores == 1 { "core" } else { "cores" })
}

/// A machine with this host's cores and memory, and numbers of the shipped file until they are measured.
pub(super) fn machine_of_host(name: Option<&str>, ranks: &Ranks) -> Checked<Machine> {
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

/// Says of each number that it was measured, when, and by which engine, or that it is the shipped file's. Collectives were measured among
/// `members` devices at most.
pub(super) fn name_sources(of: &mut Machine, date: &str, engine: &str, members: usize) {
    let measured = format!("measured on {date} by `meshwright calibrate` on {}", of.device.name);
    let all = |what: &str| Some(NumberSource::All(format!("{measured}: {what}")));
    let shipped = |what: &str| format!("assumed: as in the shipped file `{BASE}`{what}");
    let by_key = |keys: &[(&str, String)]| {
        let keys: BTreeMap<String, String> = keys.iter().map(|(k, v)| ((*k).into(), v.clone())).collect();
        Some(NumberSource::ByKey(keys))
    };
    let base = machine(BASE, &[]).map(|base| rounded(&base)).ok();
    // What no probe told, the shipped file did.
    let told = |own: &str, kept: &dyn Fn(&Machine) -> bool| match base.as_ref().is_some_and(kept) {
        true => shipped(""),
        false => format!("{measured}: {own}"),
    };
    let (device, tiers) = (of.device.clone(), &mut of.tier);
    let kept: Vec<&str> = base
        .iter()
        .flat_map(|base| &base.device.scalar)
        .filter(|(f, s)| device.scalar.get(*f) == Some(*s))
        .map(|(f, _)| f.as_str())
        .collect();
    let scalar = match &kept[..] {
        [] => format!("{measured}: chains of one function"),
        some => format!(
            "{measured}: chains of one function, but {} as in the shipped file `{BASE}`",
            some.join(", ")
        ),
    };
    let d = &mut of.device;
    d.source = by_key(&[
        ("memory", "the host's /proc/meminfo".into()),
        ("reserve", shipped("")),
        ("units", "the cores that the processes on a host may use".into()),
        (
            "kernel",
            told("steps on a few elements, one core at work", &|base| base.device.kernel == device.kernel),
        ),
        ("sustained", format!("{measured}: fitted on plans")),
        ("attention_sustained", shipped("")),
        ("straggle", shipped("")),
        ("scalar", scalar),
        ("families", format!("{measured}: where memory is not what limits them")),
    ]);
    for rates in d.matrix.values_mut() {
        rates.source =
            all("`best` is the fastest product on one core, `peak` what it would reach without edges");
    }
    d.product.source = all("fitted on products of 16 shapes; `tiles` have the shapes of the shipped file");
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
        let of = told("64 to 512 keys of 64 elements, 128 and 256 of 32, and with dropout", &same);
        rates.source = Some(NumberSource::All(of));
    }
    let mut below = 1;
    for tier in tiers {
        // Groups that a level below connects tell nothing of it.
        match members > below {
            true => sources_of_tier(tier, &format!("{measured} ({engine})")),
            false => tier.source = Some(NumberSource::All(shipped(""))),
        }
        below = tier.size;
    }
}

fn sources_of_tier(tier: &mut Tier, measured: &str) {
    let lines = format!("{measured}: fitted on the benchmark of collectives");
    let keys = [
        ("size", "the devices of a host, or as many as anybody starts"),
        ("hop", "none: the latency of a line has it"),
        ("p2p", lines.as_str()),
        ("p2p_latency", lines.as_str()),
        ("units", "a device that communicates does nothing else"),
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

    /// Where a probe was left out, or told nothing, the number is still that of the shipped file.
    #[test]
    fn a_number_that_no_probe_told_is_that_of_the_shipped_file() {
        let shipped = machine_of_host(Some("Here"), &Ranks { in_host: 4, hosts: 1, cores: 2 }).unwrap();
        let named = |change: &dyn Fn(&mut Machine), members| {
            let mut of = shipped.clone();
            change(&mut of);
            let mut of = rounded(&of);
            name_sources(&mut of, "2026-01-01", "mpi", members);
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
}
