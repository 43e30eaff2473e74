//! First values from another run or from a file: `train --init`.
//!
//! Parameters and states take the tensor of their own path, or that which a rule of `--init-map` names; all others are drawn, as
//! without a file. Moments are not taken: another training begins.

mod choose;
mod name_map;
mod region;
mod rename;
mod reverse;
mod rule;
mod target;
mod view;

pub use name_map::NameMap;
pub use rename::rename_tensors;
pub(crate) use reverse::{TensorGroup, tensor_groups};
pub(crate) use rule::{alternatives, matched};
pub(crate) use target::{Target, targets};

use crate::devices::consensus::agree_on_result;
use crate::devices::host_tensor::{host_of, raw_of};
use crate::devices::in_dtype;
use crate::failure::Failure;
use crate::project::Project;
pub(crate) use choose::TakenBy;
use choose::{Ingredients, Taken, TensorPlace, choose};
use meshwright_data::converted;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_exec::{Cluster, HostTensor, StateInfo};
use meshwright_files::text::listed;
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::DType;
use meshwright_runs::checkpoint::{Loaded, Skipped, Store, TensorSource, one_only};
use meshwright_runs::run_dir::checkpoints_in;
use meshwright_runs::settings::InitFrom;
use meshwright_sorted::SortedSet;
use region::{cover, shown};
use view::runs;

/// Values that are taken from a file.
#[derive(Debug)]
pub(crate) struct Initializer {
    source: TensorSource,
    /// Its place, in words.
    place: String,
    taken: Taken,
    /// Taken and drawn parameters, in words.
    notes: Vec<String>,
}

impl Initializer {
    /// Opens what first values are taken from, and says which.
    ///
    /// # Errors
    ///
    /// E0512 where there is no such file, E0513 where a tensor does not fit or nothing is taken, E0516 for rules that are none
    /// or that no parameter matches.
    pub(crate) fn of(from: &InitFrom, project: &Project) -> Result<Initializer, Failure> {
        let map = NameMap::read(&from.map)?;
        let (source, place, skipped) = opened(from)?;
        let mut taken = Initializer::with(source, (place, TakenBy::Init), &map, &targets(project))?;
        taken.notes.splice(0..0, skipped.iter().map(ToString::to_string));
        Ok(taken)
    }

    /// Of tensors that are open, by the rules of a map.
    ///
    /// # Errors
    ///
    /// E0513.
    pub(crate) fn with(
        source: TensorSource,
        (place, by): (String, TakenBy),
        map: &NameMap,
        targets: &[Target],
    ) -> Result<Initializer, Failure> {
        let mut found = unused_rules(map, targets);
        let (taken, errors) = choose(&source, TensorPlace { place: &place, by }, map, targets);
        found.extend(errors);
        if !found.is_empty() {
            return Err(Failure::Diagnostics(found));
        }
        if taken.is_empty() {
            return Err(nothing(&source, TensorPlace { place: &place, by }, targets).into());
        }
        let notes = vec![report(&place, &taken, targets)];
        Ok(Initializer { source, place, taken, notes })
    }

    /// The paths that get their values.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.taken.keys().cloned().collect()
    }

    /// Taken and drawn parameters.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Whether all of a parameter or state comes from the file.
    pub(crate) fn is_whole(&self, t: &Target) -> bool {
        self.taken.get(&t.path).is_some_and(|of| whole(of, &t.shape))
    }

    /// The paths that are taken in part.
    fn in_part(&self, states: &[StateInfo]) -> Vec<String> {
        let part = |s: &&StateInfo| self.taken.get(&s.name).is_some_and(|of| !whole(of, &s.shape));
        states.iter().filter(part).map(|s| s.name.clone()).collect()
    }

    /// Names of the tensors of the file that are taken.
    pub(crate) fn tensors(&self) -> SortedSet<&str> {
        self.taken.values().flatten().flat_map(|t| &t.names).map(String::as_str).collect()
    }

    /// The first value of a parameter or state, of `dtype` and `shape`; none where it is drawn. Of one that is drawn in part, the
    /// rest is that of `drawn`.
    ///
    /// # Errors
    ///
    /// E0512 where the file cannot be read, E0513 where a value is none of its dtype.
    pub(crate) fn tensor(
        &self,
        path: &str,
        (dtype, shape): (DType, &[usize]),
        drawn: Option<RawTensor>,
    ) -> Checked<Option<RawTensor>> {
        let Some(parts) = self.taken.get(path) else { return Ok(None) };
        if let ([one], None) = (parts.as_slice(), &drawn) {
            return self.piece(one, dtype);
        }
        let width = dtype.bytes();
        let empty = || vec![0; shape.iter().product::<usize>() * width];
        let mut all = drawn.map_or_else(empty, |d| d.data);
        // If parts share positions, the first counts.
        for part in parts.iter().rev() {
            let Some(RawTensor { data, .. }) = self.piece(part, dtype)? else { return Ok(None) };
            let mut from = 0;
            for run in runs(shape, &part.region) {
                let to = run.start * width..run.end * width;
                let length = to.len();
                all[to].copy_from_slice(&data[from..from + length]);
                from += length;
            }
        }
        Ok(Some(RawTensor { dtype, shape: shape.to_vec(), data: all }))
    }

    /// Values of a part.
    fn piece(&self, part: &Ingredients, dtype: DType) -> Checked<Option<RawTensor>> {
        let Ingredients { region, names, view, stacked } = part;
        let shape: Vec<usize> = region.iter().map(std::ops::Range::len).collect();
        let each = if *stacked { &shape[1..] } else { &shape[..] };
        let mut all = RawTensor { dtype, shape: shape.clone(), data: Vec::new() };
        for name in names {
            let failed = |code, why: String| {
                Diagnostic::error(code, format!("`{name}` of {} cannot be taken: {why}", self.place))
            };
            let data = self.source.bytes(name).map_err(|e| failed(codes::E0512, e.to_string()))?;
            let (Some(data), Some((of, has))) = (data, self.source.info(name)) else { return Ok(None) };
            let data = converted(of, &data, dtype).map_err(|e| {
                let d = failed(codes::E0513, e.why);
                match e.help {
                    Some(help) => d.help(help),
                    None => d,
                }
            })?;
            let turned = view.of(RawTensor { dtype, shape: has.to_vec(), data }, each);
            match names.len() {
                1 => all.data = turned.data,
                _ => all.data.extend(turned.data),
            }
        }
        Ok(Some(all))
    }

    fn value(&self, state: &StateInfo, drawn: Option<HostTensor>) -> Checked<Option<HostTensor>> {
        // Files have more types than parameters: f32 holds what half types do.
        let wide = state.dtype.wide();
        let drawn = drawn.and_then(|d| raw_of(&in_dtype(d, wide)));
        let raw = self.tensor(&state.name, (wide, &state.shape), drawn)?;
        Ok(raw.and_then(host_of).map(|t| in_dtype(t, state.dtype)))
    }
}

/// Sets the devices' parameters and states of these paths to the first process's values.
pub(crate) fn initialize(
    cluster: &Cluster,
    from: Option<&Initializer>,
    paths: &[String],
) -> Result<(), Failure> {
    let states: Vec<StateInfo> = cluster.states().filter(|s| paths.contains(&s.name)).cloned().collect();
    let processes = cluster.processes();
    let mine = from.map(|i| i.in_part(&states)).unwrap_or_default();
    let in_part = processes.broadcast("what is drawn in part".into(), mine)?;
    for s in &states {
        let drawn = if in_part.contains(&s.name) { cluster.gathered_state(&s.name)? } else { None };
        let value = from.map_or(Ok(None), |i| i.value(s, drawn)).map_err(Failure::from);
        let value = agree_on_result(cluster.processes(), "the first values", value)?;
        cluster.spread_state(&s.name, value.as_ref())?;
    }
    Ok(())
}

/// The tensors, where they are, in words, and checkpoints of the run that could not be used.
fn opened(from: &InitFrom) -> Result<(TensorSource, String, Vec<Skipped>), Failure> {
    let shown = from.path.display();
    let refused = |why: String| {
        let d =
            Diagnostic::error(codes::E0512, format!("no first values can be taken from `{shown}`: {why}"));
        d.help("`--init` takes the folder of a run, or a `.safetensors` file")
    };
    if !from.path.is_dir() {
        one_only(&from.path, from.which)?;
        let source = TensorSource::open(&from.path).map_err(refused)?;
        return Ok((source, format!("`{shown}`"), Vec::new()));
    }
    if matches!(checkpoints_in(&from.path).exists(), Ok(false)) && from.path.join("config.json").is_file() {
        let message = format!(
            "no first values can be taken from `{shown}`: it is a checkpoint of Hugging Face, and no run"
        );
        let d = Diagnostic::error(codes::E0512, message);
        return Err(d
            .help(format!("`meshwright import hf {shown}` makes a run of it, which `--init` takes"))
            .into());
    }
    let store = Store::read_only(checkpoints_in(&from.path));
    let Some(Loaded { checkpoint, skipped }) = store.find(from.which)? else {
        return Err(refused("it holds no checkpoint".into()).into());
    };
    let place = format!("`{shown}` (step {} of `{}`)", checkpoint.meta.step, checkpoint.meta.model);
    Ok((checkpoint.into_source(), place, skipped))
}

/// Rules for what the model does not have.
fn unused_rules(map: &NameMap, targets: &[Target]) -> Vec<Diagnostic> {
    let unused = map.rules.iter().filter(|r| !r.optional && !targets.iter().any(|t| r.matches(&t.path)));
    let told = unused.map(|r| {
        let message = format!("no parameter is named `{}`, as the rule `{}` has it", r.new, r.text);
        let d = Diagnostic::error(codes::E0513, message);
        let near = nearest(&r.new, targets.iter().map(|t| t.path.as_str()));
        let d = near.map_or(d.clone(), |n| d.help(format!("did you mean `{n}`?")));
        d.help("before `=` stands the name in the model, behind it that in the file")
    });
    told.collect()
}

/// Nothing has a name in common.
fn nothing(
    source: &TensorSource,
    TensorPlace { place, by }: TensorPlace<'_>,
    targets: &[Target],
) -> Diagnostic {
    let d = Diagnostic::error(codes::E0513, format!("{place} has nothing that the model has"));
    let names = source.names();
    let plain: Vec<&str> = names.iter().map(String::as_str).collect();
    let paths: Vec<&str> = targets.iter().map(|t| t.path.as_str()).collect();
    let d = d.note(format!("it has {}", listed(&plain))).note(format!("the model has {}", listed(&paths)));
    d.help(match by {
        TakenBy::Init => "say which is which: `--init-map 'encoder.* = enc.*'`, the model's name first",
        TakenBy::Import => "name a map that has rules for them: `--map FILE`",
    })
}

/// Whether parts are all of a tensor of that shape.
fn whole(parts: &[Ingredients], shape: &[usize]) -> bool {
    cover(&parts.iter().map(|p| p.region.clone()).collect::<Vec<_>>(), shape)
}

fn report(place: &str, taken: &Taken, targets: &[Target]) -> String {
    let of = |params: bool| targets.iter().filter(move |t| t.is_param == params);
    let has = |t: &&Target| taken.contains_key(&t.path);
    let count = |params: bool| (of(params).filter(has).count(), of(params).count());
    let ((params, all), (states, all_states)) = (count(true), count(false));
    let noun = |n: usize, one: &str| if n == 1 { one.to_string() } else { format!("{one}s") };
    let mut text = format!("from {place}: took {params} of {all} {}", noun(all, "parameter"));
    if all_states > 0 {
        text += &format!(" and {states} of {all_states} {}", noun(all_states, "state"));
    }
    let drawn: Vec<&str> = of(true).filter(|t| !has(t)).map(|t| t.path.as_str()).collect();
    if !drawn.is_empty() {
        text += &format!(", drew {}", drawn.join(", "));
    }
    for t in targets {
        let Some(parts) = taken.get(&t.path).filter(|parts| !whole(parts, &t.shape)) else { continue };
        let parts: Vec<String> = parts.iter().map(|p| shown(&p.region, &t.shape)).collect();
        text += &format!("; of {} took {}, drew the rest", t.path, parts.join(" and "));
    }
    text
}
