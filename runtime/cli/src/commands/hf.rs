//! `import hf` and `export hf`: checkpoints of Hugging Face.

use super::new_run::claim;
use super::project::data_roots;
use crate::args::{ExportArgs, ExportHfArgs, ExportWhat, ImportArgs, ImportHfArgs, ImportWhat};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::{counted, thousands};
use crate::stop::Stop;
use meshwright_diag::Sources;
use meshwright_runs::run_dir::tokenizer_in;
use meshwright_train::{
    Failure, HfExport, HfExported, HfImport, HfImported, ProjectOptions, export_hf, hf_model, import_hf,
};
use serde_json::json;
use std::path::Path;

/// Runs `import`.
pub(crate) fn import(args: &ImportArgs, console: &mut Console) -> Result<(), Stop> {
    let ImportWhat::Hf(args) = &args.what;
    let model = match &args.model {
        Some(model) => Ok(model.clone()),
        None => hf_model(&args.dir, args.map.as_deref()).map_err(Failure::from),
    };
    let model = model.map_err(|f| console.failed(f, &Sources::new()))?;
    let claimed = match &args.out {
        Some(_) => None,
        None => Some(claim(&model, console.processes()).map_err(|f| console.failed(f, &Sources::new()))?),
    };
    let run = args.out.clone().or_else(|| claimed.as_ref().map(|c| c.folder().into())).unwrap_or_default();
    let options = HfImport {
        from: args.dir.clone(),
        project: ProjectOptions {
            model,
            dims: args.dims.clone(),
            sets: args.sets.clone(),
            precision: args.precision.map(|p| p.arithmetic()),
            ..ProjectOptions::default()
        },
        map: args.map.clone(),
        run: run.clone(),
        folder: std::env::current_dir().ok(),
        arguments: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
    };
    let mut sources = Sources::new();
    let done = import_hf(&options, &mut sources).map_err(|f| console.failed(f, &sources))?;
    done.notes.iter().for_each(|note| console.note(note));
    imported(args, &options.project.model, &run, &done, console)
}

/// Says what was imported, and what can be done with it.
fn imported(
    args: &ImportHfArgs,
    model: &str,
    run: &Path,
    done: &HfImported,
    console: &mut Console,
) -> Result<(), Stop> {
    let run = run.display().to_string();
    if console.json() {
        return console.out_json(&object([
            ("run", run.into()),
            ("model", done.model.clone().into()),
            ("parameters", done.parameters.into()),
            ("dims", json!(done.dims)),
            ("consts", json!(done.consts)),
            ("training", json!(done.training)),
        ]));
    }
    let from = args.dir.display();
    let n = thousands(done.parameters as u64);
    console.out(&format!("imported `{}` with {n} parameters from {from}: {run}\n", done.model))?;
    // All else it takes from the run.
    let sizes: Vec<String> = done.training.iter().map(|(name, n)| format!(" --dim {name}={n}")).collect();
    console
        .out(&format!("train it: meshwright train {model} --init {run} --data DATA{}\n", sizes.concat()))?;
    if !matches!(tokenizer_in(Path::new(&run)), Ok(Some(_))) {
        return Ok(());
    }
    let of_text = "meshwright data tokenize TEXT --tokenizer";
    console.out(&format!("DATA, of a text: {of_text} {run}/tokenizer.json --out DATA\n"))
}

/// Runs `export`.
pub(crate) fn export(args: &ExportArgs, console: &mut Console) -> Result<(), Stop> {
    let ExportWhat::Hf(args) = &args.what;
    let options = HfExport {
        run: args.run.clone(),
        which: args.from.unwrap_or_default(),
        averages: args.averages,
        map: args.map.clone(),
        tokenizer: args.tokenizer.clone(),
        to: args.dir.clone(),
        roots: data_roots(),
        most_bytes: args.max_shard_size,
    };
    let mut sources = Sources::new();
    let done = export_hf(&options, &mut sources).map_err(|f| console.failed(f, &sources))?;
    done.notes.iter().for_each(|note| console.note(note));
    exported(args, &done, console)
}

/// Says what was written.
fn exported(args: &ExportHfArgs, done: &HfExported, console: &mut Console) -> Result<(), Stop> {
    let to = args.dir.display().to_string();
    if console.json() {
        return console.out_json(&object([
            ("step", done.step.into()),
            ("folder", to.into()),
            ("class", done.class.clone().into()),
            ("tensors", done.tensors.into()),
            ("files", json!(done.files)),
        ]));
    }
    let count = counted(done.tensors as u64, "tensor");
    let (step, class, files) = (thousands(done.step), &done.class, done.files.join(", "));
    console.out(&format!("wrote {count} of step {step} as a {class} to {to}: {files}\n"))
}
