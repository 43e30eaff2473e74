//! Maps: what a model of Hugging Face has to do with one of ours, as a file says it.

use crate::init::{NameMap, alternatives, matched};
use crate::map_text::merged;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_runs::catalog::{MAPS, Shipped, find};
use meshwright_sorted::SortedMap;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// A map, as its file has it. Keys of `config.json` may be paths (`a.b`) and alternatives (`a|b`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HfMap {
    /// The model of ours.
    pub(super) model: String,
    /// Their class.
    pub(super) class: String,
    /// Other classes of theirs that have the same parameters.
    #[serde(default)]
    other_classes: Vec<String>,
    /// Keys that must be absent.
    refused: Vec<String>,
    /// Keys that change nothing, whatever they say.
    #[serde(default)]
    harmless: Vec<String>,
    /// Tensors that are not read and lose nothing.
    ignored: Vec<String>,
    /// Tensors that are not read since the model does not have them.
    dropped: Vec<String>,
    /// Inputs of the model that their tokenizer makes.
    pub(super) inputs: Vec<String>,
    /// Rules for the tensors.
    weights: String,
    /// Keys with the value that they must have, or all such values; the first is written.
    fixed: toml::Table,
    /// The same of keys that are not written; a list has none but such values.
    #[serde(default)]
    only: toml::Table,
    /// Keys that are products of dims.
    dims: SortedMap<String, String>,
    /// Keys that a dim is not greater than, or a dim and a number: `seq + 2`.
    limits: SortedMap<String, String>,
    /// Keys that are windows of attention: the model has none, and is the same up to them. They are written as null.
    #[serde(default)]
    windows: SortedMap<String, String>,
    /// Keys that are consts.
    consts: SortedMap<String, String>,
    /// Keys whose values are the numbers of a const, from 0 on.
    #[serde(default)]
    pub(super) choices: SortedMap<String, KeyChoice>,
    /// Consts that the model has for this class.
    #[serde(default)]
    pub(super) set: SortedMap<String, f64>,
    /// Defaults of absent keys: a number, or a product of other keys.
    #[serde(default)]
    absent: SortedMap<String, toml::Value>,
    /// The dim that `id2label` names the positions of.
    #[serde(default)]
    pub(super) labels: Option<String>,
    /// Tensors that are others where the configuration ties them.
    #[serde(default)]
    pub(super) tied: SortedMap<String, String>,
    /// Special tokens, by the names that they may have.
    #[serde(default)]
    pub(super) tokens: SortedMap<String, Vec<String>>,
    /// `weights`, read.
    #[serde(skip)]
    pub(super) names: NameMap,
    /// `fixed`, with all values that are allowed.
    #[serde(skip)]
    pub(super) allowed: SortedMap<String, Vec<Value>>,
    /// `only`, likewise.
    #[serde(skip)]
    pub(super) limited: SortedMap<String, Vec<Value>>,
    /// Its name in messages.
    #[serde(skip)]
    place: String,
}

/// A const that is the number of a value among some.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyChoice {
    /// The const.
    pub(super) set: String,
    /// The values for 0, 1, and so on; the first is that of a key that is absent.
    pub(super) values: Vec<Value>,
    /// Keys of consts that say nothing where this one is 0.
    #[serde(default)]
    with: Vec<String>,
}

/// Keys of any configuration that change nothing of what a model computes: how text is generated, what outputs are called, and
/// who wrote the file.
const HARMLESS: &str = "transformers_version architectures dtype torch_dtype use_cache initializer_range initializer_factor _name_or_path \
    name_or_path _commit_hash _attn_implementation attn_implementation _attn_implementation_autoset auto_map tokenizer_class prefix \
    task_specific_params finetuning_task problem_type id2label label2id num_labels output_attentions output_hidden_states output_scores \
    output_past return_dict return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss gradient_checkpointing \
    chunk_size_feed_forward bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id \
    decoder_start_token_id forced_bos_token_id forced_eos_token_id max_length min_length do_sample early_stopping num_beams \
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size \
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty \
    suppress_tokens begin_suppress_tokens tie_encoder_decoder pretraining_tp use_return_dict \
    is_decoder is_encoder_decoder add_cross_attention cross_attention_hidden_size pruned_heads";

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
        let bytes = meshwright_files::durable::read_regular(Path::new(name)).map_err(|e| broken(name, &e))?;
        let text = String::from_utf8(bytes).map_err(|e| broken(name, &e))?;
        Self::parse(&text, name)
    }

    /// All maps that ship.
    pub(super) fn shipped() -> Checked<Vec<HfMap>> {
        MAPS.iter().map(|s: &Shipped| Self::parse(s.text, s.path)).collect()
    }

    fn parse(text: &str, place: &str) -> Checked<HfMap> {
        let table = merged(text).map_err(|why| broken(place, &why))?;
        let mut map: HfMap = table.try_into().map_err(|e: toml::de::Error| broken(place, &e.message()))?;
        map.names = NameMap::parse(&map.weights, &format!(" of `{place}`"))?;
        map.allowed = values(&map.fixed, "fixed").map_err(|why| broken(place, &why))?;
        map.limited = values(&map.only, "only").map_err(|why| broken(place, &why))?;
        for patterns in [&mut map.ignored, &mut map.dropped] {
            let all = patterns.iter().map(|p| alternatives(p)).collect::<Result<Vec<_>, _>>();
            *patterns = all.map_err(|e| broken(place, &e))?.concat();
        }
        for (copy, of) in &map.tied {
            [copy, of]
                .into_iter()
                .try_for_each(|p| alternatives(p).map(drop))
                .map_err(|e| broken(place, &e))?;
        }
        map.place = place.into();
        Ok(map)
    }

    /// Their name of the model.
    pub(super) fn model_type(&self) -> Option<&str> {
        self.allowed.get("model_type")?.first()?.as_str()
    }

    /// All classes of theirs that it is for; the first is written.
    pub(super) fn classes(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.class).chain(&self.other_classes).map(String::as_str)
    }

    /// Its name in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    pub(super) fn dims(&self) -> &SortedMap<String, String> {
        &self.dims
    }

    /// True if a key, or an alternative of one, gives the size of a dim.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.dims.keys().any(|k| k.split('|').any(|one| one == key))
    }

    /// True if the map knows a key, which may be a path.
    pub(super) fn knows(&self, key: &str) -> bool {
        let keys = self.dims.keys().chain(self.limits.keys()).chain(self.windows.keys());
        let keys = keys.chain(self.consts.keys()).chain(self.choices.keys()).chain(self.absent.keys());
        let keys = keys.chain(self.allowed.keys()).chain(self.limited.keys());
        let mut keys = keys.chain(&self.refused).chain(&self.harmless).chain(self.tokens.keys());
        keys.any(|k| k.split('|').any(|one| one == key)) || HARMLESS.split(' ').any(|k| k == key)
    }

    pub(super) fn limits(&self) -> &SortedMap<String, String> {
        &self.limits
    }

    pub(super) fn windows(&self) -> &SortedMap<String, String> {
        &self.windows
    }

    pub(super) fn consts(&self) -> &SortedMap<String, String> {
        &self.consts
    }

    pub(super) fn absent(&self, key: &str) -> Option<&toml::Value> {
        self.absent.get(key)
    }

    /// The const that makes a key of another const say something, by being other than 0.
    pub(super) fn condition(&self, key: &str) -> Option<&str> {
        let choice = self.choices.values().find(|c| c.with.iter().any(|k| k == key))?;
        Some(&choice.set)
    }

    /// The value of a const in a model that does not have it.
    pub(super) fn without(&self, name: &str) -> Option<f64> {
        if self.set.contains_key(name) || self.choices.values().any(|c| c.set == name) {
            return Some(0.0);
        }
        let key = self.consts.iter().find(|(_, n)| *n == name)?.0;
        number_of(self.absent(key)?)
    }

    /// Whether a tensor of that name is not read, and nothing is lost.
    pub(super) fn ignores(&self, name: &str) -> bool {
        any(&self.ignored, name) || self.copies(name)
    }

    /// Whether a tensor of that name is another one where the configuration ties them.
    pub(super) fn copies(&self, name: &str) -> bool {
        self.tied.keys().any(|copy| any(&alternatives(copy).unwrap_or_default(), name))
    }

    /// Whether a tensor of that name has no place in the model.
    pub(super) fn drops(&self, name: &str) -> bool {
        any(&self.dropped, name)
    }
}

/// The values that keys may have, each as a list.
fn values(table: &toml::Table, called: &str) -> Result<SortedMap<String, Vec<Value>>, String> {
    let mut out = SortedMap::new();
    for (key, value) in table {
        let values = match value {
            toml::Value::Array(all) => all.clone(),
            one => vec![one.clone()],
        };
        let json = values.into_iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
        let json = json.map_err(|e| e.to_string())?;
        if json.is_empty() {
            return Err(format!("`{called}.{key}` allows nothing"));
        }
        out.insert(key.clone(), json);
    }
    Ok(out)
}

/// The number that a value of a map is.
pub(super) fn number_of(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
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
            let sets = map.set.iter().map(|(n, v)| (n.clone(), *v)).collect();
            let options = ProjectOptions { model: map.model.clone(), sets, ..ProjectOptions::default() };
            let project = Project::load(&options).project.unwrap();
            let groups = tensor_groups(&map.names, &targets(&project)).unwrap();
            assert!(groups.len() > 8, "{}", map.place());
            // No name that it writes is one that it would leave out.
            let names: Vec<String> = groups.iter().flat_map(|g| g.names()).collect();
            assert!(!names.iter().any(|n| map.ignores(n) && !map.copies(n) || map.drops(n)));
            let dims = &project.program.graph.dims;
            let known = |name: &str| dims.iter().any(|(_, n)| n == name) || name.parse::<usize>().is_ok();
            let all = map.dims.values().chain(map.windows.values()).chain(&map.labels);
            assert!(all.flat_map(|p| super::super::product::factors(p)).all(known), "{}", map.place());
            let limits = map.limits.values().map(|l| super::super::product::dim_and_more(l).unwrap().0);
            assert!(limits.into_iter().all(known), "{}", map.place());
            let consts =
                map.consts.values().chain(map.choices.values().map(|c| &c.set)).chain(map.set.keys());
            for c in consts {
                assert!(
                    project.program.consts.contains_key(c) && map.without(c).is_none_or(f64::is_finite),
                    "{c}"
                );
            }
            assert!(map.model_type().is_some());
        }
    }

    #[test]
    fn broken_maps_are_refused() {
        let good = find(MAPS, "gpt").unwrap().text;
        for (from, to, why) in [
            ("model = ", "modell = ", "unknown field `modell`"),
            ("model = ", "extends = \"gtp\"\nmodel = ", "it extends `gtp`, and no map ships of that name"),
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
