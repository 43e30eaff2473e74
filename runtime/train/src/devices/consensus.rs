//! How processes stay together: each decision that steers the flow of a run is taken by all of them alike.
//!
//! A failure is of one of three kinds. What all processes meet at the same point (a model that does not compile, a loss that
//! is not finite) or what is told at such a point (a full disk under the first process) is agreed on: all learn of it, it is
//! reported once, and all end. What strikes in between ends the others by the transport, as a device that fails does.

use crate::failure::Failure;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::{About, Processes};
use meshwright_sorted::SortedMap;

/// A step that all processes take: what each made of it is told to all. If one failed all do; the failure is kept by the
/// first process that met it, and is [`Failure::Elsewhere`] on the others.
pub fn agree_on_result<T>(
    processes: &Processes,
    about: &str,
    mine: Result<T, Failure>,
) -> Result<T, Failure> {
    if processes.count() == 1 || processes.agreed() {
        return mine;
    }
    let failure: Option<Vec<(String, String)>> = match &mine {
        Ok(_) => None,
        Err(Failure::Diagnostics(found)) => {
            Some(found.iter().map(|d| (d.code.id.to_string(), d.message.clone())).collect())
        }
        // What strikes a device ends the others at once.
        Err(_) => return abort_on_error(processes, mine),
    };
    let all = processes.gather(about.into(), &failure)?;
    if all.iter().all(Option::is_none) {
        return mine;
    }
    processes.agree_to_end();
    let first = all.iter().position(|other| *other == failure);
    match mine {
        Err(failure) if first == Some(processes.position()) => Err(failure),
        _ => Err(Failure::Elsewhere),
    }
}

/// The end of a step: which of two wishes, to stop and to save, some process has. A failure of one ends all, as in
/// [`agree_on_result`].
pub(crate) fn synchronized_stop(
    processes: &Processes,
    about: About,
    wishes: [bool; 2],
    failed: Option<Failure>,
) -> Result<[bool; 2], Failure> {
    if processes.count() == 1 {
        return failed.map_or(Ok(wishes), Err);
    }
    let [stops, saves] = wishes;
    let [any_stops, any_saves, any_failed] = processes.any(about, [stops, saves, failed.is_some()])?;
    if any_failed {
        agree_on_result(processes, about.what, failed.map_or(Ok(()), Err))?;
    }
    Ok([any_stops, any_saves])
}

/// Ends the other processes where this one fails on its own.
pub(crate) fn abort_on_error<T>(processes: &Processes, ended: Result<T, Failure>) -> Result<T, Failure> {
    match &ended {
        Err(Failure::Diagnostics(found)) => {
            let errors = found.iter().filter(|d| d.is_error()).map(|d| d.message.as_str());
            processes.abort(&errors.collect::<Vec<_>>().join("; "));
        }
        Err(Failure::Exec(e)) => processes.abort(&e.to_string()),
        Ok(_) | Err(Failure::Elsewhere) => {}
    }
    ended
}

/// Checks that all processes are asked for the same: `mine` says what by name.
///
/// # Errors
///
/// E0526, the same on all processes, with the first name whose value differs, and by how much.
pub fn check_same_configuration(
    processes: &Processes,
    mine: &SortedMap<String, String>,
) -> Result<(), Failure> {
    if processes.count() == 1 {
        return Ok(());
    }
    let all = processes.gather("the settings".into(), mine)?;
    let found = differences(processes, &all);
    if found.is_empty() {
        Ok(())
    } else {
        agree_on_result(processes, "the settings", Err(Failure::Diagnostics(found)))
    }
}

/// Names that follow from others are left out where another one differs.
const DERIVED: [&str; 1] = ["the plan"];

fn differences(processes: &Processes, all: &[SortedMap<String, String>]) -> Vec<Diagnostic> {
    let mut names: Vec<&String> = all.iter().flat_map(SortedMap::keys).collect();
    names.sort();
    names.dedup();
    let rank = |process: usize| processes.ranks().get(process).map_or(process, |r| r.start);
    let mut found: Vec<(&str, Diagnostic)> = vec![];
    for name in names {
        let value = |of: &SortedMap<String, String>| of.get(name).cloned().unwrap_or_else(|| "none".into());
        let mut holders: SortedMap<String, Vec<usize>> = SortedMap::new();
        for (process, of) in all.iter().enumerate() {
            holders.entry(value(of)).or_default().push(process);
        }
        if holders.len() < 2 {
            continue;
        }
        // Where no value prevails, that of the lowest rank counts as right.
        let usual = holders.iter().max_by_key(|(_, of)| (of.len(), std::cmp::Reverse(of[0])));
        let Some((right, like)) = usual else { continue };
        for (wrong, who) in holders.iter().filter(|h| h.0 != right) {
            let ranks: Vec<String> = who.iter().map(|p| rank(*p).to_string()).collect();
            let (ranks, like) = (ranks.join(", "), rank(like[0]));
            let they = if who.len() == 1 {
                format!("rank {ranks} of the run has")
            } else {
                format!("ranks {ranks} of the run have")
            };
            let message = format!("{they} {name} = {wrong}, rank {like} has {right}");
            let d = Diagnostic::error(codes::E0526, message);
            found.push((
                name,
                d.help("start all ranks with the same command line, on the same files, with the same binary"),
            ));
        }
    }
    if found.iter().any(|f| !DERIVED.contains(&f.0)) {
        found.retain(|f| !DERIVED.contains(&f.0));
    }
    found.into_iter().map(|f| f.1).collect()
}
