//! First values from another run or from a file: `train --init`.
//!
//! Parameters and states take the tensor of their own path, or that which a rule of `--init-map` names; all others are drawn, as
//! without a file. Moments are not taken: another training begins.

mod arrange;
mod name_map;

pub use name_map::NameMap;

use crate::Checked;
use crate::checkpoint::{Loaded, Skipped, Store, TensorFile, Which, one_only};
use crate::consensus::agree_on_result;
use crate::data::converted;
use crate::devices::in_dtype;
use crate::failure::Failure;
use crate::project::Project;
use crate::run_dir::checkpoints_in;
use crate::tensor::RawTensor;
use crate::text::listed;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_exec::{Cluster, HostTensor, StateInfo};
use name_map::{NameRule, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where first values come from, in the words of the command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitFrom {
    /// `--init`: the folder of a run, or a `.safetensors` file.
    pub path: PathBuf,
    /// `--init-map`.
    #[serde(default)]
    pub map: Vec<String>,
    /// `--from`: which checkpoint of a run.
    #[serde(default)]
    pub which: Which,
}

/// A parameter or a state that wants a first value.
struct Target<'a> {
    path: &'a str,
    shape: Vec<usize>,
    /// `[classes=10 hidden=32]`.
    dims: String,
    is_param: bool,
}

/// What is taken of a file.
#[derive(Debug)]
pub(crate) struct Initializer {
    file: TensorFile,
    /// Where it is, in words.
    place: String,
    /// By path here: the tensor's name there, and how it is turned.
    taken: BTreeMap<String, (String, View)>,
    /// What was taken and what is drawn, in words.
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
        let (file, place, skipped) = opened(from)?;
        let targets = targets(project);
        let mut found = unused_rules(&map, &targets);
        let (taken, errors) = choose(&file, &place, &map, &targets);
        found.extend(errors);
        if !found.is_empty() {
            return Err(Failure::Diagnostics(found));
        }
        if taken.is_empty() {
            return Err(nothing(&file, &place, &targets).into());
        }
        let mut notes: Vec<String> = skipped.iter().map(ToString::to_string).collect();
        notes.push(report(&place, &taken, &targets));
        Ok(Initializer { file, place, taken, notes })
    }

    /// The paths that get their values.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.taken.keys().cloned().collect()
    }

    /// What is taken, and what is drawn.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// The first value of a parameter or state.
    fn value(&self, state: &StateInfo) -> Checked<Option<HostTensor>> {
        let Some((name, view)) = self.taken.get(&state.name) else { return Ok(None) };
        let failed = |code, why: String| {
            Box::new(Diagnostic::error(code, format!("`{name}` of {} cannot be taken: {why}", self.place)))
        };
        let data = self.file.bytes(name).map_err(|e| failed(codes::E0512, e.to_string()))?;
        let (Some(data), Some((dtype, shape))) = (data, self.file.info(name)) else { return Ok(None) };
        // Files have more types than parameters: f32 holds what half types do.
        let to = state.dtype.wide();
        let data = converted(dtype, &data, to).map_err(|why| failed(codes::E0513, why))?;
        let raw = view.of(RawTensor { dtype: to, shape: shape.to_vec(), data }, &state.shape);
        Ok(raw.into_host().map(|t| in_dtype(t, state.dtype)))
    }
}

/// Sets the devices' parameters and states of these paths, of which the first process has the values.
pub(crate) fn initialize(
    cluster: &Cluster,
    from: Option<&Initializer>,
    paths: &[String],
) -> Result<(), Failure> {
    let states: Vec<StateInfo> = cluster.states().filter(|s| paths.contains(&s.name)).cloned().collect();
    for s in &states {
        let value = from.map_or(Ok(None), |i| i.value(s)).map_err(Failure::from);
        let value = agree_on_result(cluster.processes(), "the first values", value)?;
        cluster.spread_state(&s.name, value.as_ref())?;
    }
    Ok(())
}

/// The file of tensors, where it is, in words, and checkpoints of the run that could not be used.
fn opened(from: &InitFrom) -> Result<(TensorFile, String, Vec<Skipped>), Failure> {
    let shown = from.path.display();
    let refused = |why: String| {
        let d =
            Diagnostic::error(codes::E0512, format!("no first values can be taken from `{shown}`: {why}"));
        d.help("`--init` takes the folder of a run, or a `.safetensors` file")
    };
    if !from.path.is_dir() {
        one_only(&from.path, from.which)?;
        let file = TensorFile::open(&from.path).map_err(refused)?;
        return Ok((file, format!("`{shown}`"), Vec::new()));
    }
    let store = Store::read_only(checkpoints_in(&from.path));
    let Some(Loaded { checkpoint, skipped }) = store.find(from.which)? else {
        return Err(refused("it holds no checkpoint".into()).into());
    };
    let place = format!("`{shown}` (step {} of `{}`)", checkpoint.meta.step, checkpoint.meta.model);
    Ok((checkpoint.into_file(), place, skipped))
}

fn targets(project: &Project) -> Vec<Target<'_>> {
    let program = &project.program;
    let params = program.params.iter().map(|p| (&p.path, p.id, true));
    let all = params.chain(program.states.iter().map(|s| (&s.path, s.id, false)));
    all.map(|(path, id, is_param)| {
        let (table, dims) = (&program.graph.dims, &program.graph.ty(id).dims);
        let named: Vec<String> =
            dims.iter().map(|d| format!("{}={}", table.name(*d), table.size(*d))).collect();
        Target { path, shape: table.shape(dims), dims: format!("[{}]", named.join(" ")), is_param }
    })
    .collect()
}

/// Rules for what the model does not have.
fn unused_rules(map: &NameMap, targets: &[Target]) -> Vec<Diagnostic> {
    let unused = map.rules.iter().filter(|r| !targets.iter().any(|t| r.matches(t.path)));
    let told = unused.map(|r| {
        let message = format!("no parameter is named `{}`, as the rule `{}` has it", r.new, r.text);
        let d = Diagnostic::error(codes::E0513, message);
        let near = nearest(&r.new, targets.iter().map(|t| t.path));
        let d = near.map_or(d.clone(), |n| d.help(format!("did you mean `{n}`?")));
        d.help("before `=` stands the name in the model, behind it that in the file")
    });
    told.collect()
}

type Taken = BTreeMap<String, (String, View)>;

/// The tensor of each target that has one, and what does not fit.
fn choose(file: &TensorFile, place: &str, map: &NameMap, targets: &[Target]) -> (Taken, Vec<Diagnostic>) {
    let (mut taken, mut errors) = (Taken::new(), Vec::new());
    let names = file.names();
    // Rules that named tensors, and whether one of these was there.
    let mut used: BTreeMap<&str, bool> = BTreeMap::new();
    for t in targets {
        let (name, rule) = match map.old_of(t.path) {
            Some((name, rule)) => (name, Some(rule)),
            None => (t.path.to_string(), None),
        };
        let view = rule.map_or_else(View::default, |r| r.view.clone());
        if let Some(r) = rule {
            *used.entry(&r.text).or_default() |= file.info(&name).is_some();
        }
        match file.info(&name) {
            Some((_, shape)) if view.gives(shape, &t.shape) => {
                taken.insert(t.path.into(), (name, view));
            }
            Some((_, shape)) => errors.push(misfit(place, &name, shape, t, rule)),
            // A rule for many names may leave some out, and then they are drawn.
            None => {}
        }
    }
    for rule in map.rules.iter().filter(|r| used.get(r.text.as_str()) == Some(&false)) {
        let message = format!("{place} has no `{}`, as the rule `{}` has it", rule.old, rule.text);
        let d = Diagnostic::error(codes::E0513, message);
        let near = nearest(&rule.old, names.iter().map(String::as_str));
        let d = near.map_or(d.clone(), |n| d.help(format!("did you mean `{n}`?")));
        let plain: Vec<&str> = names.iter().map(String::as_str).collect();
        errors.push(d.note(format!("it has {}", listed(&plain))));
    }
    (taken, errors)
}

/// A tensor that does not fit.
fn misfit(place: &str, name: &str, shape: &[usize], t: &Target, rule: Option<&NameRule>) -> Diagnostic {
    let turned = rule.map_or(Ok(shape.to_vec()), |r| r.view.shape(shape));
    let is = match &turned {
        Ok(turned) if turned != shape => format!("{shape:?}, turned {turned:?},"),
        Ok(_) => format!("{shape:?}"),
        Err(_) => format!("{shape:?}"),
    };
    let message = format!("`{name}` is {is} in {place}, and `{}` is {} in the model", t.path, t.dims);
    let d = Diagnostic::error(codes::E0513, message);
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let elements = |s: &[usize]| s.iter().product::<usize>();
    match turned {
        Err(why) => d.note(why),
        Ok(_) if rule.is_none() && reversed == t.shape => {
            d.help(format!("it fits when it is turned: `--init-map '{} = {name} transposed'`", t.path))
        }
        Ok(turned) if elements(&turned) == elements(&t.shape) => d.help(
            "it has as many elements: `permuted …` or `reshaped` behind the rule's name takes it in another form",
        ),
        Ok(_) => d.help(format!(
            "give the `--dim` that it was made with, or take other names: `--init-map '{} = OTHER'`",
            t.path
        )),
    }
}

/// Nothing has a name in common.
fn nothing(file: &TensorFile, place: &str, targets: &[Target]) -> Diagnostic {
    let d = Diagnostic::error(codes::E0513, format!("{place} has nothing that the model has"));
    let names = file.names();
    let plain: Vec<&str> = names.iter().map(String::as_str).collect();
    let paths: Vec<&str> = targets.iter().map(|t| t.path).collect();
    let d = d.note(format!("it has {}", listed(&plain))).note(format!("the model has {}", listed(&paths)));
    d.help("say which is which: `--init-map 'encoder.* = enc.*'`, the model's name first")
}

fn report(place: &str, taken: &Taken, targets: &[Target]) -> String {
    let of = |params: bool| targets.iter().filter(move |t| t.is_param == params);
    let has = |t: &&Target| taken.contains_key(t.path);
    let count = |params: bool| (of(params).filter(has).count(), of(params).count());
    let ((params, all), (states, all_states)) = (count(true), count(false));
    let noun = |n: usize, one: &str| if n == 1 { one.to_string() } else { format!("{one}s") };
    let mut text = format!("from {place}: took {params} of {all} {}", noun(all, "parameter"));
    if all_states > 0 {
        text += &format!(" and {states} of {all_states} {}", noun(all_states, "state"));
    }
    let drawn: Vec<&str> = of(true).filter(|t| !has(t)).map(|t| t.path).collect();
    if !drawn.is_empty() {
        text += &format!(", drew {}", drawn.join(", "));
    }
    text
}
