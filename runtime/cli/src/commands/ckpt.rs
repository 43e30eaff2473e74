//! `ckpt list`.

use crate::args::{CkptArgs, CkptWhat};
use crate::console::Console;
use crate::json::object;
use crate::stop::Stop;
use crate::table::{Align, Table};
use crate::text::{bytes, counted, thousands};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::checkpoint::Store;
use meshwright_train::run_dir::checkpoints_in;
use serde_json::json;
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &CkptArgs, console: &mut Console) -> Result<(), Stop> {
    match &args.what {
        CkptWhat::List(a) => list(&a.run, console),
        CkptWhat::Repair(a) => repair(&a.run, console),
    }
}

/// Writes manifests that are missing.
fn repair(run: &Path, console: &mut Console) -> Result<(), Stop> {
    let repaired = Store::create(checkpoints_in(run)).and_then(|s| s.repair());
    let (steps, bad) = repaired.map_err(|d| {
        console.diagnostics(&[*d], &Sources::new());
        Stop::Diagnosed
    })?;
    for s in &bad {
        console.note(&s.to_string());
    }
    if console.json() {
        return console.out_json(&object([("repaired", steps.into())]));
    }
    let steps: Vec<String> = steps.iter().map(|s| thousands(*s)).collect();
    console.out(&match steps.is_empty() {
        true => "nothing to repair\n".to_string(),
        false => format!("wrote the manifest of step {}\n", steps.join(", ")),
    })
}

/// Lists checkpoints.
fn list(run: &Path, console: &mut Console) -> Result<(), Stop> {
    let listed = if run.is_dir() {
        Store::read_only(checkpoints_in(run)).list().map_err(|d| *d)
    } else {
        Err(Diagnostic::error(codes::E0512, format!("`{}` is not the folder of a run", run.display())))
    };
    let (entries, skipped) = listed.map_err(|d| {
        console.diagnostics(&[d], &Sources::new());
        Stop::Diagnosed
    })?;
    for s in &skipped {
        console.note(&s.to_string());
    }
    if entries.is_empty() {
        let found = Diagnostic::error(codes::E0512, format!("`{}` holds no checkpoint", run.display()));
        console.diagnostics(&[found], &Sources::new());
        return Err(Stop::Diagnosed);
    }
    for e in &entries {
        if console.json() {
            let m = &e.meta;
            let tensors = e.tensors.iter();
            let tensors: Vec<_> = tensors
                .map(|t| json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape }))
                .collect();
            console.out_json(&object([
                ("step", m.step.into()),
                ("epoch", m.epoch.into()),
                ("model", m.model.clone().into()),
                ("seed", m.seed.into()),
                ("file", e.file.clone().into()),
                ("bytes", e.bytes.into()),
                ("tensors", tensors.into()),
            ]))?;
            continue;
        }
        let m = &e.meta;
        console.out(&format!(
            "step {} of `{}`: {} done, {} in {}\n",
            thousands(m.step),
            m.model,
            counted(u64::from(m.epoch), "epoch"),
            bytes(e.bytes),
            e.file
        ))?;
        let mut table = Table::new(&[Align::Left, Align::Left, Align::Left]);
        for t in &e.tensors {
            let shape: Vec<String> = t.shape.iter().map(usize::to_string).collect();
            table.row([t.name.clone(), t.dtype.name().to_string(), format!("[{}]", shape.join(" "))]);
        }
        console.out(&table.render())?;
    }
    Ok(())
}
