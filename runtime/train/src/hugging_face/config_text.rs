//! `config.json` as it is written.

use super::config::LABELS;
use super::map::{HfMap, number_of};
use super::product::{dim_and_more, product};
use crate::project::Project;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use serde_json::{Map, Value, json};

/// What of a configuration does not follow from the model alone.
pub(super) struct ConfigDetails<'a> {
    /// Names of classes.
    pub(super) labels: Option<Vec<String>>,
    /// Ids of special tokens, by key.
    pub(super) tokens: SortedMap<&'a str, u32>,
    /// Of the tensors.
    pub(super) dtype: DType,
}

/// The text of a `config.json` for a model.
///
/// # Errors
///
/// E0516 where the model lacks a dim or a const of the map.
pub(super) fn config_text(map: &HfMap, project: &Project, details: &ConfigDetails) -> Checked<String> {
    let program = &project.program;
    let lacks = |kind: &str, name: &str, key: &str| {
        let message =
            format!("`{}` has no {kind} `{name}`, from which `{}` makes `{key}`", program.model, map.place());
        Box::new(Diagnostic::error(codes::E0516, message))
    };
    let dims = &program.graph.dims;
    let size = |name: &str| dims.iter().find(|(_, n)| *n == name).map(|(d, _)| dims.size(d));
    let mut out = json!({ "architectures": [map.class] });
    for (key, allowed) in &map.allowed {
        bind(&mut out, key, allowed[0].clone());
    }
    for (key, text) in map.limits() {
        let (dim, more) = dim_and_more(text).unwrap_or((text, 0));
        let n = size(dim).ok_or_else(|| lacks("dim", dim, key))?;
        bind(&mut out, key, (n + more).into());
    }
    for (key, text) in map.dims() {
        let n = product(text, size).map_err(|name| lacks("dim", name, key))?;
        bind(&mut out, key, n.into());
    }
    map.windows().keys().for_each(|key| bind(&mut out, key, Value::Null));
    let const_of = |name: &str, key: &str| {
        let value = program.consts.get(name).copied().or_else(|| map.without(name));
        value.ok_or_else(|| lacks("const", name, key))
    };
    for (key, name) in map.consts() {
        if map.condition(key).is_some_and(|c| const_of(c, key).is_ok_and(|v| v == 0.0)) {
            continue;
        }
        let value = const_of(name, key)?;
        let whole = matches!(map.absent(key), Some(toml::Value::Integer(_))) && value.fract() == 0.0;
        let json: Value = if whole { (value as i64).into() } else { value.into() };
        let usual = map.absent(key).and_then(number_of) == Some(value) && map.condition(key).is_none();
        bind_where(&mut out, key, json, usual);
    }
    for (key, choice) in &map.choices {
        let number = const_of(&choice.set, key)?;
        let value = choice.values.get(number as usize).filter(|_| number.fract() == 0.0);
        let odd = || {
            let message = format!(
                "`{}` is {number} in `{}`, which `{}` has no `{key}` for",
                choice.set,
                program.model,
                map.place()
            );
            Box::new(Diagnostic::error(codes::E0516, message))
        };
        bind_where(&mut out, key, value.ok_or_else(odd)?.clone(), number == 0.0);
    }
    if let Some(names) = &details.labels {
        let numbered = |(i, name): (usize, &String)| (i.to_string(), Value::from(name.as_str()));
        bind(&mut out, LABELS, Value::Object(names.iter().enumerate().map(numbered).collect()));
        let back = names.iter().enumerate().map(|(i, name)| (name.clone(), Value::from(i)));
        bind(&mut out, "label2id", Value::Object(back.collect()));
    }
    for (key, id) in &details.tokens {
        bind(&mut out, key, (*id).into());
    }
    let dtype = match details.dtype {
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        _ => "float32",
    };
    bind(&mut out, "dtype", dtype.into());
    let text = serde_json::to_string_pretty(&out).unwrap_or_default();
    Ok(text + "\n")
}

/// Sets a key under its first name, and under the others where it says more than they do when absent.
fn bind_where(out: &mut Value, key: &str, value: Value, usual: bool) {
    let first = key.split('|').next().unwrap_or(key);
    bind(out, if usual { first } else { key }, value);
}

/// Sets a key, which may be a path, under all its names.
pub(super) fn bind(out: &mut Value, key: &str, value: Value) {
    for path in key.split('|') {
        let mut at = &mut *out;
        let mut steps = path.split('.').peekable();
        while let Some(step) = steps.next() {
            let Some(object) = at.as_object_mut() else { break };
            if steps.peek().is_none() {
                object.insert(step.into(), value.clone());
                break;
            }
            at = object.entry(step).or_insert_with(|| Value::Object(Map::new()));
        }
    }
}
