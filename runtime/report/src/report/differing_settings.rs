//! Sizes and consts by which runs of a model differ. Options of the command line are not enough: a default in the model may have
//! been edited between two runs, and a size that one run sets may be the default of another.

use meshwright_runs::RunSummary;
use meshwright_sorted::{SortedMap, SortedSet};
use serde_json::{Map, Value};

/// The settings by which runs of a model differ, besides their batch size.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Apart<'a> {
    dims: SortedSet<&'a str>,
    consts: SortedSet<&'a str>,
    /// True if their numbers of training examples differ.
    data: bool,
}

/// A size or a const, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ApartBy<'a> {
    Dim(&'a str),
    Const(&'a str),
    Data,
}

impl ApartBy<'_> {
    /// Its value in a run, in a form that can be compared.
    fn of(self, s: &RunSummary) -> Option<u64> {
        match self {
            ApartBy::Dim(name) => s.dims.get(name).map(|size| *size as u64),
            ApartBy::Const(name) => s.consts.get(name).map(|value| value.to_bits()),
            ApartBy::Data => Some(s.examples as u64),
        }
    }

    fn varies(self, runs: &[&RunSummary]) -> bool {
        runs.windows(2).any(|two| self.of(two[0]) != self.of(two[1]))
    }
}

impl<'a> Apart<'a> {
    /// Of the runs of each model.
    pub(super) fn of_models(runs: impl Iterator<Item = &'a RunSummary>) -> SortedMap<&'a str, Apart<'a>> {
        let mut models: SortedMap<&str, Vec<&RunSummary>> = SortedMap::new();
        for s in runs {
            models.entry(&s.model).or_default().push(s);
        }
        models.into_iter().map(|(model, runs)| (model, Apart::of(&runs))).collect()
    }

    fn of(runs: &[&'a RunSummary]) -> Apart<'a> {
        let asked: SortedSet<ApartBy<'a>> = runs.iter().flat_map(|s| asked(s)).collect();
        let all = runs.iter().flat_map(|s| {
            let dims = s.dims.keys().map(|name| ApartBy::Dim(name));
            dims.chain(s.consts.keys().map(|name| ApartBy::Const(name)))
        });
        let all: SortedSet<ApartBy<'a>> = all.chain([ApartBy::Data]).filter(|s| s.varies(runs)).collect();
        let batch = ApartBy::Dim("batch");
        let mut kept: Vec<ApartBy<'a>> =
            all.iter().filter(|s| asked.contains(*s) && **s != batch).copied().collect();
        // Of the others, what follows from these and the batch size, such as half of it, tells nothing.
        for setting in all {
            let known = |s: &RunSummary| kept.iter().chain([&batch]).map(|k| k.of(s)).collect::<Vec<_>>();
            let mut values = SortedMap::new();
            let differs =
                |s: &&&RunSummary| *values.entry(known(s)).or_insert(setting.of(s)) != setting.of(s);
            if setting != batch && runs.iter().filter(differs).count() > 0 {
                kept.push(setting);
            }
        }
        let mut apart = Apart::default();
        for setting in kept {
            match setting {
                ApartBy::Dim(name) => drop(apart.dims.insert(name)),
                ApartBy::Const(name) => drop(apart.consts.insert(name)),
                ApartBy::Data => apart.data = true,
            }
        }
        apart
    }

    /// What the page is given of a run: its sizes, its consts, and its number of examples where that differs.
    pub(super) fn told(&self, s: &RunSummary) -> [(&'static str, Value); 3] {
        let dims: Map<String, Value> =
            self.dims.iter().filter_map(|n| Some(((*n).to_string(), (*s.dims.get(*n)?).into()))).collect();
        let consts = self.consts.iter().filter_map(|n| Some(((*n).to_string(), (*s.consts.get(*n)?).into())));
        let data = if self.data { s.examples.into() } else { Value::Null };
        [("dims", dims.into()), ("sets", consts.collect::<Map<_, _>>().into()), ("data", data)]
    }
}

fn asked(s: &RunSummary) -> impl Iterator<Item = ApartBy<'_>> {
    let dims = s.dim.keys().map(|name| ApartBy::Dim(name));
    dims.chain(s.set.keys().map(|name| ApartBy::Const(name)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::tests::{folder, read};
    use super::*;
    use std::fs;

    /// Runs with so many sizes and consts: what was asked for, and all.
    fn apart(settings: &[(&str, &str)]) -> (Vec<String>, Vec<String>, bool) {
        let at = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (n, (asked, all)) in settings.iter().enumerate() {
            let path = at.path().join(n.to_string());
            folder(&path, n, 10, 1, 1);
            let text = fs::read_to_string(path.join("run.toml")).unwrap();
            let (head, _) = text.split_once("[set]").unwrap();
            fs::write(path.join("run.toml"), format!("{head}{asked}\n{all}")).unwrap();
            paths.push(path);
        }
        let runs = read(&paths, at.path());
        let found = &Apart::of_models(runs.iter().filter_map(|r| r.row.summary.as_ref()))["m"];
        let names = |all: &SortedSet<&str>| all.iter().map(|n| (*n).to_string()).collect();
        (names(&found.dims), names(&found.consts), found.data)
    }

    #[test]
    fn an_edited_default_tells_runs_apart_and_one_that_was_asked_for_does_not() {
        let none = "[set]\n[dim]";
        let edited = apart(&[
            (none, "[dims]\nbatch = 10\nhidden = 64\n[consts]\nlr = 0.5"),
            (none, "[dims]\nbatch = 10\nhidden = 64\n[consts]\nlr = 0.1"),
        ]);
        assert_eq!(edited, (vec![], vec!["lr".into()], false));
        let same = apart(&[
            ("[set]\n[dim]\nhidden = 64", "[dims]\nbatch = 10\nhidden = 64\n[consts]\nlr = 0.5"),
            (none, "[dims]\nbatch = 10\nhidden = 64\n[consts]\nlr = 0.5"),
        ]);
        assert_eq!(same, (vec![], vec![], false));
    }

    #[test]
    fn what_follows_from_something_else_is_not_told() {
        let all = |batch: usize, hidden: usize, more: &str| {
            format!(
                "[dims]\nbatch = {batch}\nhalf = {}\nhidden = {hidden}\nquarter = {}\n{more}[consts]\nlr = 0.5",
                batch / 2,
                hidden / 4
            )
        };
        let sets = [all(10, 64, ""), all(20, 64, ""), all(10, 128, ""), all(20, 128, "")];
        let settings: Vec<(&str, &str)> =
            sets.iter().map(|s| ("[set]\n[dim]\nhidden = 1", s.as_str())).collect();
        assert_eq!(apart(&settings).0, ["hidden"]);
        // A size that a run lacks differs from any.
        let other = all(20, 128, "more = 3\n");
        let settings = [settings[0], settings[3], ("[set]\n[dim]", other.as_str())];
        assert_eq!(apart(&settings).0, ["hidden", "more"]);
    }
}
