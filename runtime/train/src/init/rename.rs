//! Other names for the tensors of a run's checkpoints: `ckpt rename`.

use super::name_map::NameMap;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_files::durable::Fs;
use meshwright_runs::checkpoint::{NewNames, Store};
use meshwright_sorted::{SortedMap, SortedSet};

/// Gives the tensors of all checkpoints other names, those of moments with their parameters: what rules `NEW = OLD` call
/// `OLD` is `NEW` from now on. Gives the steps, and the names before and after.
///
/// # Errors
///
/// E0512 where a checkpoint cannot be read, E0513 where no tensor has a rule's name or two would have one, E0514 where
/// one cannot be written.
pub fn rename_tensors<F: Fs>(store: &Store<F>, map: &NameMap) -> Checked<(Vec<u64>, NewNames)> {
    store.rename(|entries| {
        let names = entries.iter().map(|e| e.tensors.iter().map(|t| t.name.as_str()));
        let plans = names.clone().map(|names| new_names(names, map)).collect::<Checked<_>>()?;
        unmatched(map, &names.flatten().collect())?;
        Ok(plans)
    })
}

/// The new names of the tensors that get one.
fn new_names<'a>(names: impl Iterator<Item = &'a str> + Clone, map: &NameMap) -> Checked<NewNames> {
    let mut plan = SortedMap::new();
    let mut taken: SortedMap<String, &str> = SortedMap::new();
    for name in names {
        let (path, moment) = name.split_at(name.find('/').unwrap_or(name.len()));
        let new = map.new_of(path).unwrap_or_else(|| path.to_string()) + moment;
        if let Some(other) = taken.insert(new.clone(), name) {
            let message = format!("`{other}` and `{name}` would both be named `{new}`");
            return Err(Box::new(Diagnostic::error(codes::E0513, message).help("give each its own name")));
        }
        if new != name {
            plan.insert(name.to_string(), new);
        }
    }
    Ok(plan)
}

/// A rule for names that no tensor has.
fn unmatched(map: &NameMap, known: &SortedSet<&str>) -> Checked<()> {
    let paths: SortedSet<&str> = known.iter().filter_map(|n| n.split('/').next()).collect();
    let Some(rule) = map.rules.iter().find(|r| !paths.iter().any(|p| r.is_of(p))) else { return Ok(()) };
    let message = format!("no tensor is named `{}`, as the rule `{}` has it", rule.olds[0], rule.text);
    let mut d = Diagnostic::error(codes::E0513, message);
    if paths.iter().any(|p| rule.matches(p)) {
        d = d.help(format!("the new name comes first: `{} = {}`", rule.olds[0], rule.new));
    } else if let Some(near) = nearest(&rule.olds[0], paths.iter().copied()) {
        d = d.help(format!("did you mean `{near}`?"));
    }
    Err(Box::new(d))
}
