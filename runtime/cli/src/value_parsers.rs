//! Values of options: `name=size`, `name=value`, and what `--emit` names.

use crate::output::text::counted;
use clap::builder::{PathBufValueParser, TypedValueParser};
use meshwright_core::PASSES;
use meshwright_diag::nearest;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::policies::SaveEvery;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The file of a page: of a folder, its `index.html`.
pub(crate) fn page() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| {
        let names_a_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if names_a_folder || path.is_dir() { path.join(INDEX) } else { path }
    })
}

/// The page of a folder, as web servers have it.
pub(crate) const INDEX: &str = "index.html";

/// `name=size`.
pub(crate) fn dim(text: &str) -> Result<(String, usize), String> {
    let (name, size) = pair(text, "size")?;
    match size.replace('_', "").parse() {
        Ok(0) => Err(format!("the size of `{name}` must be at least 1")),
        Ok(n) => Ok((name.into(), n)),
        Err(_) => Err(format!("`{size}` is not a size: expected a whole number, such as `{name}=250`")),
    }
}

/// `name=size,size`.
pub(crate) fn dim_sizes(text: &str) -> Result<(String, Vec<usize>), String> {
    let (name, sizes) = pair(text, "size")?;
    let sizes = sizes.split(',').map(|size| Ok(dim(&format!("{name}={size}"))?.1));
    Ok((name.into(), sizes.collect::<Result<_, String>>()?))
}

/// `name=value`.
pub(crate) fn set(text: &str) -> Result<(String, f64), String> {
    let (name, value) = pair(text, "value")?;
    match value.replace('_', "").parse::<f64>() {
        Ok(v) if v.is_finite() => Ok((name.into(), v)),
        _ => Err(format!("`{value}` is not a number; write for example `{name}=3e-4`")),
    }
}

/// When to write checkpoints: a number of steps, or a time.
pub(crate) fn save_every(text: &str) -> Result<String, String> {
    text.parse::<SaveEvery>().map(|_| text.into())
}

/// A share, between 0 and 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|s| (0.0..1.0).contains(s) && *s > 0.0)
        .ok_or_else(|| "expected a share between 0 and 1, such as 0.1".into())
}

/// Cores of this machine to compute with. Some more than it has are allowed, as a command for a larger one gives, but not so many
/// that their threads only hinder each other.
pub(crate) fn cores(text: &str) -> Result<u16, String> {
    let n = text.parse().ok().filter(|n: &u16| *n > 0);
    let n = n.ok_or_else(|| format!("expected a number of cores from 1 to {}", most_cores()))?;
    too_many_cores(n).map_or(Ok(n), Err)
}

/// Why so many cores are not for this machine, if they are not.
pub(crate) fn too_many_cores(n: u16) -> Option<String> {
    let most = most_cores();
    let why = || format!("this machine has {}: take at most {most}", counted(own_cores() as u64, "core"));
    (usize::from(n) > most).then(why)
}

fn own_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn most_cores() -> usize {
    const ANYWHERE: usize = 64;
    (4 * own_cores()).max(ANYWHERE)
}

/// Minutes of work, up to an hour.
pub(crate) fn minutes(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|m: &f64| *m > 0.0 && *m <= 60.0)
        .ok_or_else(|| "expected a number of minutes, above 0 and at most 60".into())
}

/// A name of one line.
pub(crate) fn line(text: &str) -> Result<String, String> {
    let is_line = !text.trim().is_empty() && !text.chars().any(char::is_control);
    is_line.then(|| text.into()).ok_or_else(|| "expected a name on one line".into())
}

/// A temperature.
pub(crate) fn temperature(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|t: &f64| t.is_finite() && *t >= 0.0)
        .ok_or_else(|| "expected a number of at least 0, such as 0.8".into())
}

/// A file that the textfile collector reads.
pub(crate) fn prom(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|e| e == "prom") {
        return Ok(path);
    }
    let name = path.with_extension("prom");
    Err(format!("the node exporter reads only files whose names end in `.prom`: write `{}`", name.display()))
}

/// Operations a second.
pub(crate) fn peak(text: &str) -> Result<f64, String> {
    let number = text.replace('_', "").parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "expected operations a second above 0, such as 989e12".into())
}

/// The exponent of a length penalty.
pub(crate) fn length_penalty(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|a: &f64| a.is_finite() && *a >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0, such as 0.6".into())
}

/// A probability above 0.
pub(crate) fn probability(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|p| *p > 0.0 && *p <= 1.0)
        .ok_or_else(|| "expected a probability above 0 and at most 1, such as 0.9".into())
}

/// Which checkpoint: the step, or `best`.
pub(crate) fn which(text: &str) -> Result<Which, String> {
    match text {
        "best" => Ok(Which::Best),
        _ => text.parse().map(Which::Step).map_err(|_| "expected the number of a step, or `best`".into()),
    }
}

/// A size in bytes: `65536`, `64_000`, `4KiB`, `64 MiB`, `1MB`; units of powers of 1024 have an `i`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, usize); 8] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1000),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let text = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (number, times) = unit.map_or((text, 1), |(unit, n)| (&text[..text.len() - unit.len()], *n));
    match number.trim().replace('_', "").parse::<usize>() {
        Ok(0) => Err("a size must be at least 1 byte".into()),
        Ok(n) => n.checked_mul(times).ok_or_else(|| format!("`{text}` is too large")),
        Err(_) => Err(format!("`{text}` is not a size: expected a whole number with a unit, such as 64KiB")),
    }
}

/// Numbers of steps: `5..8` is from the fifth to the eighth, `5` the fifth alone.
pub(crate) fn steps(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |t: &str| t.trim().replace('_', "").parse::<u64>().ok();
    match (number(first), number(last.trim_start_matches('='))) {
        (Some(0), _) => Err("the first step is 1".into()),
        (Some(a), Some(b)) if a <= b => Ok(a..=b),
        (Some(a), Some(b)) => Err(format!("step {b} comes before step {a}")),
        _ => Err(format!("`{text}` is not a range of steps: write the first and the last, such as `5..8`")),
    }
}

fn pair<'a>(text: &'a str, what: &str) -> Result<(&'a str, &'a str), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: write `name={what}`"))?;
    let (name, value) = (name.trim(), value.trim());
    let mut chars = name.chars();
    let word = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && chars.all(|c| c.is_alphanumeric() || c == '_');
    if word { Ok((name, value)) } else { Err(format!("`{name}` is not a name: write `name={what}`")) }
}

/// What `--emit` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emit {
    /// The program after the pass at this place of [`PASSES`].
    After(usize),
    /// The finished Plan, which also has a JSON form.
    Plan,
    /// What a device launches, which also has a JSON form.
    Device,
    /// The same with every operation of its Burn graphs.
    Burn,
}

/// `graph`, `spmd`, `plan` or `after:PASS`.
pub(crate) fn emit(text: &str) -> Result<Emit, String> {
    let position = |name: &str| PASSES.iter().position(|p| p.name == name);
    let found = match text {
        // What the partitioner is given, and what it makes.
        "graph" => position("partition").and_then(|i| i.checked_sub(1)).map(Emit::After),
        "spmd" => position("partition").map(Emit::After),
        "plan" => Some(Emit::Plan),
        "device" => Some(Emit::Device),
        "burn" => Some(Emit::Burn),
        _ => match text.strip_prefix("after:") {
            Some(name) => {
                let unknown = || match nearest(name, PASSES.iter().map(|p| p.name)) {
                    Some(near) => format!("there is no pass `{name}`; did you mean `{near}`?"),
                    None => {
                        let all: Vec<&str> = PASSES.iter().map(|p| p.name).collect();
                        format!("there is no pass `{name}`: they are {}", all.join(", "))
                    }
                };
                return position(name).map(Emit::After).ok_or_else(unknown);
            }
            None => None,
        },
    };
    found.ok_or_else(|| "it must be `graph`, `spmd`, `plan`, `device`, `burn` or `after:PASS`".into())
}

/// The passes with what they do, for `--help`.
pub(crate) fn passes_help() -> String {
    let width = PASSES.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let lines = PASSES.iter().map(|p| format!("  {:<width$}  {}\n", p.name, p.doc));
    format!("Passes, for --emit after:PASS and --time-passes:\n{}", lines.collect::<String>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_values_are_checked() {
        assert_eq!(dim("batch=250").unwrap(), ("batch".into(), 250));
        assert_eq!(dim("n = 1_000").unwrap(), ("n".into(), 1000));
        assert_eq!(dim_sizes("batch=8,3_2").unwrap(), ("batch".into(), vec![8, 32]));
        assert!(dim_sizes("batch=8,").is_err() && dim_sizes("batch=8,0").unwrap_err().contains("at least 1"));
        assert!(dim("batch=0").unwrap_err().contains("at least 1"));
        assert!(dim("batch=-1").unwrap_err().contains("whole number"));
        assert!(dim("batch=9.5").unwrap_err().contains("`9.5`"));
        assert!(dim("batch").unwrap_err().contains("no `=`"));
        assert!(dim("=3").unwrap_err().contains("not a name"));
        assert_eq!(set("lr=-3e-4").unwrap(), ("lr".into(), -3e-4));
        assert!(
            set("lr=nan").is_err() && set("lr=inf").is_err() && set("1x=2").is_err() && set("lr=").is_err()
        );
    }

    #[test]
    fn sizes_have_units() {
        let of = |t: &str| size(t).unwrap();
        assert_eq!([of("65536"), of("64_000"), of("4KiB"), of("64 MiB")], [65536, 64000, 4096, 64 << 20]);
        assert_eq!([of("1MB"), of("7 B"), of("2GiB"), of("3kB")], [1_000_000, 7, 2 << 30, 3000]);
        assert!(size("0").is_err() && size("KiB").is_err() && size("1.5MiB").is_err() && size("-1").is_err());
        assert!(size("99999999999GiB").unwrap_err().contains("too large"));
    }

    #[test]
    fn stages_are_found_in_the_table_of_passes() {
        let name = |e| match e {
            Emit::After(i) => PASSES[i].name,
            Emit::Plan => "plan",
            Emit::Device => "device",
            Emit::Burn => "burn",
        };
        assert_eq!(name(emit("spmd").unwrap()), "partition");
        assert_ne!(name(emit("graph").unwrap()), "partition");
        for p in PASSES.iter() {
            assert_eq!(name(emit(&format!("after:{}", p.name)).unwrap()), p.name);
            assert!(passes_help().contains(p.doc));
        }
        assert!(emit("after:fuze").unwrap_err().contains("`fuse`"));
        assert!(emit("grph").is_err());
    }
}
