//! Maps: what a model of Hugging Face has to do with one of ours, as a file says it.

use crate::Checked;
use crate::catalog::{MAPS, Shipped, find};
use crate::init::{NameMap, alternatives, matched};
use meshwright_diag::{Diagnostic, codes, nearest};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A map, as its file has it. Keys of `config.json` may be paths (`a.b`) and alternatives (`a|b`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HfMap {
    /// The model of ours.
    pub(super) model: String,
    /// Their class.
    pub(super) class: String,
    /// Keys that must be absent.
    refused: Vec<String>,
    /// Tensors that are not read and lose nothing.
    ignored: Vec<String>,
    /// Tensors that are not read since the model does not have them.
    dropped: Vec<String>,
    /// What their tokenizer gives to the model.
    pub(super) inputs: Vec<String>,
    /// Rules for the tensors.
    weights: String,
    /// Keys with the value that they must have, or all such values; the first is written.
    fixed: toml::Table,
    /// Keys that are products of dims.
    dims: BTreeMap<String, String>,
    /// Keys that a dim is not greater than.
    limits: BTreeMap<String, String>,
    /// Keys that are consts.
    consts: BTreeMap<String, String>,
    /// What keys are that are absent: a number, or a product of other keys.
    #[serde(default)]
    absent: BTreeMap<String, toml::Value>,
    /// Tensors that are others where the configuration ties them.
    #[serde(default)]
    pub(super) tied: BTreeMap<String, String>,
    /// Special tokens, by the names that they may have.
    #[serde(default)]
    pub(super) tokens: BTreeMap<String, Vec<String>>,
    /// `weights`, read.
    #[serde(skip)]
    pub(super) names: NameMap,
    /// `fixed`, with all values that are allowed.
    #[serde(skip)]
    pub(super) allowed: BTreeMap<String, Vec<serde_json::Value>>,
    /// How messages call it.
    #[serde(skip)]
    place: String,
}

impl HfMap {
    /// The map of that name that ships, or the one in that file.
    ///
    /// # Errors
    ///
    /// E0529 where there is none or it is malformed, E0516 for a malformed rule.
    pub(super) fn named(name: &str) -> Checked<HfMap> {
        if let Some(s) = find(MAPS, name) {
            return Self::parse(s.text, s.path);
        }
        if !Path::new(name).exists() {
            let names: Vec<&str> = MAPS.iter().map(|m| m.name).collect();
            let message = format!("no map `{name}` ships, and there is no such file");
            let d = Diagnostic::error(codes::E0529, message);
            let d = match nearest(name, names.iter().copied()) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d,
            };
            return Err(Box::new(d.help(format!("maps ship for {}", names.join(", ")))));
        }
        let bytes = crate::checkpoint::fs::read_regular(Path::new(name)).map_err(|e| broken(name, &e))?;
        let text = String::from_utf8(bytes).map_err(|e| broken(name, &e))?;
        Self::parse(&text, name)
    }

    /// All maps that ship.
    pub(super) fn shipped() -> Checked<Vec<HfMap>> {
        MAPS.iter().map(|s: &Shipped| Self::parse(s.text, s.path)).collect()
    }

    fn parse(text: &str, place: &str) -> Checked<HfMap> {
        let mut map: HfMap = toml::from_str(text).map_err(|e| broken(place, &e.message()))?;
        map.names = NameMap::parse(&map.weights, &format!(" of `{place}`"))?;
        for (key, value) in &map.fixed {
            let values = match value {
                toml::Value::Array(all) => all.clone(),
                one => vec![one.clone()],
            };
            let json = values.into_iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
            let json = json.map_err(|e| broken(place, &e))?;
            if json.is_empty() {
                return Err(broken(place, &format!("`fixed.{key}` allows nothing")));
            }
            map.allowed.insert(key.clone(), json);
        }
        for patterns in [&mut map.ignored, &mut map.dropped] {
            let all = patterns.iter().map(|p| alternatives(p)).collect::<Result<Vec<_>, _>>();
            *patterns = all.map_err(|e| broken(place, &e))?.concat();
        }
        map.place = place.into();
        Ok(map)
    }

    /// Their name of the model.
    pub(super) fn model_type(&self) -> Option<&str> {
        self.allowed.get("model_type")?.first()?.as_str()
    }

    /// How messages call it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    pub(super) fn dims(&self) -> &BTreeMap<String, String> {
        &self.dims
    }

    /// Whether a key, or an alternative of one, says how large a dim is.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.dims.keys().any(|k| k.split('|').any(|one| one == key))
    }

    pub(super) fn limits(&self) -> &BTreeMap<String, String> {
        &self.limits
    }

    pub(super) fn consts(&self) -> &BTreeMap<String, String> {
        &self.consts
    }

    pub(super) fn absent(&self, key: &str) -> Option<&toml::Value> {
        self.absent.get(key)
    }

    /// Whether a tensor of that name is not read, and nothing is lost.
    pub(super) fn ignores(&self, name: &str) -> bool {
        any(&self.ignored, name) || self.tied.contains_key(name)
    }

    /// Whether a tensor of that name has no place in the model.
    pub(super) fn drops(&self, name: &str) -> bool {
        any(&self.dropped, name)
    }
}

fn any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|p| matched(p, name).is_some())
}

fn broken(place: &str, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0529, format!("`{place}` is not a map: {why}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::init::{targets, tensor_groups};
    use crate::{Project, ProjectOptions};

    #[test]
    fn maps_that_ship_make_all_parameters_of_their_models_and_back() {
        for map in HfMap::shipped().unwrap() {
            let options = ProjectOptions { model: map.model.clone(), ..ProjectOptions::default() };
            let project = Project::load(&options).project.unwrap();
            let groups = tensor_groups(&map.names, &targets(&project)).unwrap();
            assert!(groups.len() > 8, "{}", map.place());
            // No name that it writes is one that it would leave out.
            let names: Vec<String> = groups.iter().flat_map(|g| g.names()).collect();
            assert!(!names.iter().any(|n| map.ignores(n) && !map.tied.contains_key(n) || map.drops(n)));
            let dims = &project.program.graph.dims;
            let known = |name: &str| dims.iter().any(|(_, n)| n == name) || name.parse::<usize>().is_ok();
            let all = map.dims.values().chain(map.limits.values());
            assert!(all.flat_map(|p| super::super::product::factors(p)).all(known), "{}", map.place());
            assert!(map.consts.values().all(|c| project.program.consts.contains_key(c)), "{}", map.place());
            assert!(map.model_type().is_some());
        }
    }

    #[test]
    fn broken_maps_are_refused() {
        let good = find(MAPS, "gpt").unwrap().text;
        for (from, to, why) in [
            ("model = ", "modell = ", "unknown field `modell`"),
            ("model_type = \"gpt2\"", "model_type = []", "`fixed.model_type` allows nothing"),
            ("(bias|masked_bias)", "(bias|masked_bias", "its `(` has no `)`"),
            ("reshaped 2 1", "reshaped 2 one", "is not a rule for names"),
        ] {
            let e = HfMap::parse(&good.replacen(from, to, 1), "x.toml").unwrap_err();
            assert!(e.message.contains(why), "{why}: {}", e.message);
        }
        let e = HfMap::named("gtp").unwrap_err();
        assert_eq!((e.code.id, e.helps[0].as_str()), ("E0529", "did you mean `gpt`?"));
    }
}
