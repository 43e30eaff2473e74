//! `ckpt`: what checkpoints hold, and work on them.

use crate::args::{CkptArgs, CkptDiffArgs, CkptExportArgs, CkptRenameArgs, CkptWhat};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, thousands};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_files::Checked;
use meshwright_runs::checkpoint::{
    Checkpoint, Difference, Entry, Exported, NAME_A_RUN, Store, TensorInfo, Which, compare, export,
    is_parameter,
};
use meshwright_runs::run_dir::{RunDir, checkpoints_in};
use meshwright_sorted::SortedMap;
use meshwright_train::{NameMap, Project, ProjectOptions, Recorded, read_checkpoint, rename_tensors};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &CkptArgs, console: &mut Console) -> Result<(), Stop> {
    match &args.what {
        CkptWhat::List(a) => list(&a.run, console),
        CkptWhat::Export(a) => exported(a, console),
        CkptWhat::Diff(a) => diff(a, console),
        CkptWhat::Rename(a) => rename(a, console),
        CkptWhat::Repair(a) => repair(&a.run, console),
    }
}

/// What was asked for, or the end with what there is to say.
fn told<T>(result: Checked<T>, console: &mut Console) -> Result<T, Stop> {
    result.map_err(|d| {
        console.diagnostics(&[*d], &Sources::new());
        Stop::Diagnosed
    })
}

/// Writes manifests that are missing.
fn repair(run: &Path, console: &mut Console) -> Result<(), Stop> {
    // Held while its checkpoints change.
    let repaired = RunDir::resume(run).and_then(|run| run.checkpoints()?.repair());
    let (steps, bad) = told(repaired, console)?;
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

/// Writes a checkpoint to one file.
fn exported(args: &CkptExportArgs, console: &mut Console) -> Result<(), Stop> {
    let what = match (args.params_only, args.averages) {
        (_, true) => Exported::Averages,
        (true, _) => Exported::Parameters,
        _ => Exported::Whole,
    };
    let checkpoint = opened(&args.subject, args.from.unwrap_or_default(), console)?;
    let tensors = told(export(&checkpoint, what, &args.output), console)?;
    let (step, file) = (checkpoint.meta.step, args.output.display().to_string());
    if console.json() {
        let fields = [("step", step.into()), ("file", file.into()), ("tensors", tensors.into())];
        return console.out_json(&object(fields));
    }
    let count = counted(tensors as u64, "tensor");
    console.out(&format!("wrote {count} of step {} to {file}\n", thousands(step)))
}

/// Opens a checkpoint, and says where newer ones are damaged.
fn opened(path: &Path, which: Which, console: &mut Console) -> Result<Checkpoint, Stop> {
    let found = read_checkpoint(path, which).map_err(|f| console.failed(f, &Sources::new()))?;
    found.skipped.iter().for_each(|s| console.note(&s.to_string()));
    Ok(found.checkpoint)
}

/// Compares two checkpoints.
fn diff(args: &CkptDiffArgs, console: &mut Console) -> Result<(), Stop> {
    let mut open = |text: &str| {
        let (path, which) = subject(text);
        opened(&path, which, console)
    };
    let (a, b) = (open(&args.a)?, open(&args.b)?);
    let mut rows = told(compare(&a, &b), console)?;
    rows.retain(|r| !args.params_only || is_parameter(&r.0));
    let different = rows.iter().filter(|r| r.1.is_some()).count();
    let mut table = Table::new(&[Align::Left; 3]);
    for (name, difference) in rows.iter().filter_map(|(n, d)| Some((n, d.as_ref()?))) {
        let forms = [a.info(name), b.info(name)];
        if console.json() {
            console.out_json(&object(difference_fields(name, difference, forms)))?;
        }
        let form = forms.map(|f| f.map_or("-".into(), |t| form(t, None)));
        let form = if form[0] == form[1] { form[0].clone() } else { form.join(" -> ") };
        table.row([name.clone(), form, in_words(difference)]);
    }
    let equal = rows.len() - different;
    if console.json() {
        console.out_json(&object([("equal", equal.into()), ("different", different.into())]))?;
    } else {
        let count = |n| counted(n as u64, "tensor");
        let line = match (different, equal) {
            (0, _) => format!("equal, bit for bit: {}\n", count(equal)),
            (_, 0) => format!("different: {}, equal: none\n", count(different)),
            _ => format!("different: {}, equal: {}\n", count(different), count(equal)),
        };
        console.out(&(table.render() + &line))?;
    }
    if args.exit_code && different > 0 { Err(Stop::Diagnosed) } else { Ok(()) }
}

/// `RUN`, `RUN@STEP`, `RUN@best` or a file.
fn subject(text: &str) -> (PathBuf, Which) {
    let named = || {
        let (run, which) = text.rsplit_once('@').filter(|_| !Path::new(text).exists())?;
        Some((run.into(), crate::value_parsers::which(which).ok()?))
    };
    named().unwrap_or((text.into(), Which::Newest))
}

fn in_words(difference: &Difference) -> String {
    match difference {
        Difference::Gone => "only in the first".into(),
        Difference::New => "only in the second".into(),
        Difference::Form => "another form".into(),
        Difference::Values { elements, most, relative } => {
            let n = counted(*elements as u64, "element");
            format!("{n}, by up to {most:.2e}, relative {relative:.2e}")
        }
    }
}

fn difference_fields(
    name: &str,
    difference: &Difference,
    forms: [Option<&TensorInfo>; 2],
) -> Vec<(&'static str, serde_json::Value)> {
    let form = |t: Option<&TensorInfo>| t.map(|t| json!({ "dtype": t.dtype.name(), "shape": t.shape }));
    let mut fields =
        vec![("tensor", name.into()), ("a", form(forms[0]).into()), ("b", form(forms[1]).into())];
    if let Difference::Values { elements, most, relative } = difference {
        fields.extend([
            ("elements", (*elements).into()),
            ("max_difference", (*most).into()),
            ("relative_difference", (*relative).into()),
        ]);
    }
    fields
}

/// Gives tensors other names.
fn rename(args: &CkptRenameArgs, console: &mut Console) -> Result<(), Stop> {
    let renamed = || {
        let map = NameMap::read(&args.rules)?;
        if let Some(rule) = map.turning() {
            let message = format!("`{rule}` changes a tensor; `ckpt rename` changes only names");
            let d = Diagnostic::error(codes::E0516, message);
            return Err(Box::new(d.help("use the rule with `train --init RUN --init-map RULES`")));
        }
        // Held while its checkpoints change.
        let run = RunDir::resume(&args.run)?;
        rename_tensors(&run.checkpoints()?, &map)
    };
    let (steps, names) = told(renamed(), console)?;
    if console.json() {
        return console.out_json(&object([("steps", steps.into()), ("renamed", json!(names))]));
    }
    let mut table = Table::new(&[Align::Left; 3]);
    names.iter().for_each(|(old, new)| table.row([old.clone(), "->".into(), new.clone()]));
    let steps: Vec<String> = steps.iter().map(|s| thousands(*s)).collect();
    let count = counted(names.len() as u64, "tensor");
    console.out(&format!("{}{count} renamed in step {}\n", table.render(), steps.join(", ")))
}

/// Dims of parameters and states by path, from the model of a run; none where it cannot be read.
fn dims(run: &Path) -> Option<SortedMap<String, Vec<(String, usize)>>> {
    let options = Recorded::read(run).ok()?.project(&ProjectOptions::default()).ok()?;
    let Project { program, .. } = Project::load(&options).project?;
    let (graph, table) = (&program.graph, &program.graph.dims);
    let params = program.params.iter().map(|p| (&p.path, p.id));
    let all = params.chain(program.states.iter().map(|s| (&s.path, s.id)));
    let named = |d: &meshwright_plan::Dim| (table.name(*d).to_string(), table.size(*d));
    Some(all.map(|(path, id)| (path.clone(), graph.ty(id).dims.iter().map(named).collect())).collect())
}

/// The names of a tensor's dims: a moment has those of its parameter, where it has its shape.
fn names_of(t: &TensorInfo, dims: &SortedMap<String, Vec<(String, usize)>>) -> Option<Vec<String>> {
    let of = dims.get(t.name.split('/').next()?)?;
    let sizes = of.iter().map(|d| &d.1);
    sizes.eq(&t.shape).then(|| of.iter().map(|d| d.0.clone()).collect())
}

/// `f32 [pixels=784 classes=10]`.
fn form(t: &TensorInfo, names: Option<&[String]>) -> String {
    let sizes = t.shape.iter().map(usize::to_string);
    let dims: Vec<String> = match names {
        Some(names) => names.iter().zip(sizes).map(|(name, size)| format!("{name}={size}")).collect(),
        None => sizes.collect(),
    };
    format!("{} [{}]", t.dtype.name(), dims.join(" "))
}

/// Lists checkpoints.
fn list(run: &Path, console: &mut Console) -> Result<(), Stop> {
    let listed = if run.is_dir() {
        Store::read_only(checkpoints_in(run)).list()
    } else {
        let message = format!("`{}` is not the folder of a run", run.display());
        Err(Box::new(Diagnostic::error(codes::E0512, message).help(NAME_A_RUN)))
    };
    let (entries, skipped) = told(listed, console)?;
    for s in &skipped {
        console.note(&s.to_string());
    }
    if entries.is_empty() {
        let found = Diagnostic::error(codes::E0512, format!("`{}` holds no checkpoint", run.display()));
        return told(Err(Box::new(found.help(NAME_A_RUN))), console);
    }
    let dims = dims(run).unwrap_or_else(|| {
        console.note("the model of the run cannot be read: sizes have no names");
        SortedMap::new()
    });
    for e in &entries {
        let names: Vec<_> = e.tensors.iter().map(|t| names_of(t, &dims)).collect();
        listed_one(e, &names, console)?;
    }
    Ok(())
}

fn listed_one(e: &Entry, names: &[Option<Vec<String>>], console: &mut Console) -> Result<(), Stop> {
    let (m, tensors) = (&e.meta, e.tensors.iter().zip(names));
    if console.json() {
        let tensors = tensors.map(
            |(t, names)| json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape, "dims": names }),
        );
        return console.out_json(&object([
            ("step", m.step.into()),
            ("epoch", m.epoch.into()),
            ("model", m.model.clone().into()),
            ("seed", m.seed.into()),
            ("file", e.file.clone().into()),
            ("bytes", e.bytes.into()),
            ("tensors", tensors.collect()),
        ]));
    }
    console.out(&format!(
        "step {} of `{}`: {} done, {} in {}\n",
        thousands(m.step),
        m.model,
        counted(u64::from(m.epoch), "epoch"),
        bytes(e.bytes),
        e.file
    ))?;
    let mut table = Table::new(&[Align::Left, Align::Left]);
    tensors.for_each(|(t, names)| table.row([t.name.clone(), form(t, names.as_deref())]));
    console.out(&table.render())
}
