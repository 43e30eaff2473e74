//! Under a name there is one run: a folder that holds one which was made with something else is refused.

use crate::sweep::check::Runnable;
use crate::sweep::combination::Combination;
use crate::sweep::spec::SweepSpec;
use meshwright_core::resolve::is_preset;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::given_paths::absolute;
use meshwright_runs::run_dir::read_settings;
use meshwright_sorted::SortedMap;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// What a run was made with, of its `run.toml`.
#[derive(Deserialize)]
struct MadeWith {
    #[serde(alias = "size")]
    preset: Option<String>,
    precision: String,
    mesh: String,
    layout: Vec<String>,
    #[serde(default)]
    layout_settings: Option<Vec<String>>,
    seed: String,
    data: Option<String>,
    folder: Option<PathBuf>,
    #[serde(default)]
    dim: SortedMap<String, usize>,
    set: SortedMap<String, f64>,
}

/// Refuses the run of a folder where the sweep asks for another one. Arguments of `train` are those of the sweep `before`.
pub(super) fn same_run(
    run: &Path,
    before: Option<&SweepSpec>,
    (c, asked, spec): (&Combination, &Runnable, &SweepSpec),
) -> Checked<()> {
    let made: MadeWith = read_settings(run)?;
    let dims: SortedMap<String, usize> = c.dims.iter().cloned().collect();
    let sets: SortedMap<String, f64> = c.sets.iter().cloned().collect();
    // Of a run of an earlier version the rules alone are known.
    let lines = |rules: &[String], settings: &[String]| {
        let known = settings.iter().filter(|_| made.layout_settings.is_some());
        rules.iter().chain(known).map(String::as_str).collect::<Vec<_>>().join("; ")
    };
    let made_settings = made.layout_settings.as_deref().unwrap_or_default();
    let or = |text: &Option<String>, none: &str| text.clone().unwrap_or_else(|| none.into());
    let place = |data: &Option<String>| or(data, "the default place");
    let same_data = made.data == spec.data
        || place_of(&made.data, made.folder.as_deref()) == place_of(&spec.data, spec.folder.as_deref());
    let is_data = if same_data { place(&made.data) } else { place(&spec.data) };
    let train = |spec: &SweepSpec| format!("`{}`", spec.train.join(" "));
    // A short name of a preset means the same.
    let same_preset =
        made.preset.as_deref().zip(spec.preset.as_deref()).is_some_and(|(is, given)| is_preset(is, given));
    let preset = if same_preset { &made.preset } else { &spec.preset };
    let pairs = [
        ("the preset", or(&made.preset, "none"), or(preset, "none")),
        ("the precision", made.precision.clone(), asked.precision.clone()),
        ("the mesh", made.mesh.clone(), asked.mesh.clone()),
        ("the layout", lines(&made.layout, made_settings), lines(&asked.rules, &asked.settings)),
        ("the seed", made.seed.clone(), c.seed.to_string()),
        ("the dims", format!("{:?}", made.dim), format!("{dims:?}")),
        ("the consts", format!("{:?}", made.set), format!("{sets:?}")),
        ("the data", place(&made.data), is_data),
        ("what follows `--`", before.map_or_else(|| train(spec), train), train(spec)),
    ];
    let Some((what, was, is)) = pairs.into_iter().find(|(_, was, is)| was != is) else { return Ok(()) };
    let message = format!(
        "`{}` holds another run than the sweep asks for: {what} was {was}, and is {is}",
        run.display()
    );
    let d = Diagnostic::error(codes::E0510, message);
    Err(Box::new(d.help("give another folder with `--run`").help("or move the folder of that run away")))
}

/// Where the data is, wherever it was named from.
fn place_of(data: &Option<String>, folder: Option<&Path>) -> Option<PathBuf> {
    let named = PathBuf::from(absolute(data.as_deref()?, folder.unwrap_or(Path::new(""))));
    Some(named.canonicalize().unwrap_or(named))
}
