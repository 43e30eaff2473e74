//! `config.json`: what it says of a model's dims and consts, by a map, and how it is written.

use super::map::{HfMap, number_of};
use super::product::{dim_and_more, factors, product};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_sorted::SortedMap;
use serde_json::Value;
use std::path::Path;

/// Key that ties tensors.
pub(super) const TIE: &str = "tie_word_embeddings";

/// The names of classes, by number.
pub(super) const LABELS: &str = "id2label";

/// The classes of a configuration that does not name them.
const USUAL_LABELS: usize = 2;

/// A `config.json` that was read.
#[derive(Debug)]
pub(super) struct HfConfig {
    keys: Value,
    place: String,
}

/// Sizes of a model by a configuration.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ModelSizes {
    pub(super) dims: SortedMap<String, usize>,
    /// Dims that are not greater than this.
    pub(super) limits: SortedMap<String, usize>,
    /// Keys that bound a dim, for example a window of attention.
    pub(super) windows: SortedMap<String, (String, usize)>,
    pub(super) consts: SortedMap<String, f64>,
    /// The key that a const is from, with its value.
    pub(super) said: SortedMap<String, String>,
}

impl HfConfig {
    /// Reads the file in a folder.
    ///
    /// # Errors
    ///
    /// E0529.
    pub(super) fn read(folder: &Path) -> Checked<HfConfig> {
        let path = folder.join("config.json");
        let place = path.display().to_string();
        let failed = |why: String| {
            let message = format!("`{place}` cannot be read: {why}");
            let d = Diagnostic::error(codes::E0529, message);
            Box::new(d.help("name the folder of a checkpoint as `save_pretrained` of transformers writes it"))
        };
        let bytes = meshwright_files::durable::read_regular(&path).map_err(|e| failed(e.to_string()))?;
        let keys: Value = serde_json::from_slice(&bytes).map_err(|e| failed(e.to_string()))?;
        match keys.is_object() {
            true => Ok(HfConfig { keys, place }),
            false => Err(failed("it is no object of JSON".into())),
        }
    }

    /// The value of a key, or of the first of its alternatives, which is not null.
    fn get<'a>(&'a self, key: &'a str) -> Option<(&'a str, &'a Value)> {
        key.split('|').find_map(|path| {
            let at = |v: &'a Value, k: &str| v.get(k);
            let value = path.split('.').try_fold(&self.keys, at)?;
            (!value.is_null()).then_some((path, value))
        })
    }

    /// Their name of the model.
    pub(super) fn model_type(&self) -> Option<&str> {
        self.get("model_type")?.1.as_str()
    }

    /// Their classes of the model.
    pub(super) fn classes(&self) -> Vec<&str> {
        let all = self.get("architectures").and_then(|(_, v)| v.as_array());
        all.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Whether tied tensors are. Where the configuration does not say it, the first value that the map knows is what the class
    /// does.
    pub(super) fn ties(&self, map: &HfMap) -> bool {
        let usual = || {
            let choice = map.choices.get(TIE).and_then(|c| c.values.first());
            choice.or_else(|| map.allowed.get(TIE)?.first()).and_then(Value::as_bool)
        };
        self.get(TIE).and_then(|(_, v)| v.as_bool()).or_else(usual).unwrap_or_default()
    }

    /// The key and value that decide about tied tensors, in words.
    pub(super) fn tie_text(&self) -> String {
        match self.get(TIE) {
            Some((key, value)) => format!("`{key}` = {value}"),
            None => format!("the default of `{TIE}`"),
        }
    }

    /// The names of classes that the configuration has, by number.
    pub(super) fn labels(&self) -> Checked<Option<Vec<String>>> {
        let Some((key, value)) = self.get(LABELS) else { return Ok(None) };
        let odd = || {
            Box::new(self.error(format!(
                "has `{key}` = {}, which does not name the classes 0, 1, and so on",
                short(value)
            )))
        };
        let all = value.as_object().ok_or_else(odd)?;
        let named = |i: usize| all.get(&i.to_string()).and_then(Value::as_str).map(String::from);
        (0..all.len())
            .map(named)
            .collect::<Option<Vec<String>>>()
            .filter(|l| !l.is_empty())
            .ok_or_else(odd)
            .map(Some)
    }

    /// Keys with a value that the map does not know.
    pub(super) fn unread(&self, map: &HfMap) -> Vec<String> {
        let mut out = Vec::new();
        for (key, value) in self.keys.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()) {
            if map.knows(key) || key == LABELS {
                continue;
            }
            match value.as_object() {
                Some(inner) if inner.keys().any(|k| map.knows(&format!("{key}.{k}"))) => {
                    let left =
                        inner.iter().filter(|(k, v)| !v.is_null() && !map.knows(&format!("{key}.{k}")));
                    out.extend(left.map(|(k, v)| format!("`{key}.{k}` = {}", short(v))));
                }
                _ => out.push(format!("`{key}` = {}", short(value))),
            }
        }
        out
    }

    pub(super) fn error(&self, message: String) -> Diagnostic {
        Diagnostic::error(codes::E0529, format!("`{}` {message}", self.place))
    }

    /// The whole number of a key; where it is absent, what the map says of that.
    fn number(&self, map: &HfMap, key: &str) -> Checked<Option<usize>> {
        let whole = |key: &str, value: &Value| {
            let n = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            n.ok_or_else(|| Box::new(self.error(format!("has `{key}` = {value}, which is not a size"))))
        };
        if let Some((key, value)) = self.get(key) {
            return whole(key, value).map(Some);
        }
        match map.absent(key) {
            Some(toml::Value::Integer(n)) => Ok(usize::try_from(*n).ok()),
            Some(toml::Value::String(text)) => {
                let of = |name: &str| self.get(name).and_then(|(k, v)| whole(k, v).ok());
                match product(text, of) {
                    Ok(n) => Ok(Some(n)),
                    // It is there and no size, which is said where it is read for itself.
                    Err(name) if self.get(name).is_some() && map.reads(name) => Ok(None),
                    Err(name) => {
                        Err(Box::new(self.error(format!("has no `{name}`, which `{key}` is a multiple of"))))
                    }
                }
            }
            _ => Ok(None),
        }
    }

    /// Sizes by a map.
    ///
    /// # Errors
    ///
    /// E0529 for each setting that the model does not have, and for sizes that contradict each other.
    pub(super) fn sizes(&self, map: &HfMap, given: &[(String, f64)]) -> Result<ModelSizes, Vec<Diagnostic>> {
        let mut errors = self.unsupported(map);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut out = ModelSizes::default();
        let mut equations = Vec::new();
        for (key, text) in map.dims() {
            match self.number(map, key) {
                Ok(Some(n)) => equations.push((key.as_str(), n, text.as_str())),
                Ok(None) => {}
                Err(d) => errors.push(*d),
            }
        }
        let complete = errors.is_empty();
        match self.solved(&equations) {
            Ok(dims) => {
                let wanted = map.dims().iter().filter(|_| complete);
                for (key, text) in wanted.filter(|(_, t)| factors(t).any(|f| unknown(f, &dims))) {
                    errors.push(self.error(format!("has no `{key}`, which says what `{text}` is")));
                }
                out.dims = dims;
            }
            Err(d) => errors.push(*d),
        }
        if let Some(dim) = &map.labels {
            match self.labels() {
                Ok(Some(one)) if one.len() == 1 => {
                    let why = "has one class, which is a regression; the model";
                    errors.push(self.error(format!("{why} `{}` tells two or more apart", map.model)));
                }
                Ok(labels) => drop(out.dims.insert(dim.clone(), labels.map_or(USUAL_LABELS, |l| l.len()))),
                Err(d) => errors.push(*d),
            }
        }
        errors.extend(self.bounds(map, &mut out));
        if let Err(d) = self.consts(map, given, &mut out) {
            errors.push(*d);
        }
        if errors.is_empty() { Ok(out) } else { Err(errors) }
    }

    /// Bounds of dims.
    fn bounds(&self, map: &HfMap, out: &mut ModelSizes) -> Vec<Diagnostic> {
        let mut errors = Vec::new();
        let all = map.limits().iter().map(|l| (l, false)).chain(map.windows().iter().map(|w| (w, true)));
        for ((key, text), window) in all {
            let (dim, more) = dim_and_more(text).unwrap_or((text, 0));
            match self.number(map, key) {
                Ok(Some(n)) => {
                    let most = n.saturating_sub(more).max(1);
                    let there = out.limits.entry(dim.into()).or_insert(most);
                    *there = most.min(*there);
                    if window {
                        out.windows.insert(dim.into(), (format!("`{key}` = {n}"), most));
                    }
                }
                Ok(None) => {}
                Err(d) => errors.push(*d),
            }
        }
        errors
    }

    /// Settings that the model does not have.
    fn unsupported(&self, map: &HfMap) -> Vec<Diagnostic> {
        let mut errors = Vec::new();
        let shown = |all: &[Value]| all.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
        for (key, allowed) in &map.allowed {
            let Some((key, value)) = self.get(key) else { continue };
            if allowed.iter().any(|a| same(a, value)) {
                continue;
            }
            let d = self.error(format!(
                "has `{key}` = {value}; the model `{}` has {}",
                map.model,
                shown(allowed)
            ));
            errors.push(d.help(format!("`meshwright maps {}` shows what is supported", map.model)));
        }
        for (key, allowed) in &map.limited {
            let Some((key, value)) = self.get(key) else { continue };
            let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            if let Some(odd) = all.iter().find(|v| !allowed.iter().any(|a| same(a, v))) {
                let has = shown(allowed);
                errors
                    .push(self.error(format!("has `{key}` with {odd}; the model `{}` has {has}", map.model)));
            }
        }
        for key in map.refused() {
            let Some((key, value)) = self.get(key) else { continue };
            let value = short(value);
            errors
                .push(self.error(format!("has `{key}` = {value}, which the model `{}` has not", map.model)));
        }
        errors
    }

    /// The dims that make all equations `key = dim * …` true.
    fn solved(&self, equations: &[(&str, usize, &str)]) -> Checked<SortedMap<String, usize>> {
        let mut known: SortedMap<String, usize> = SortedMap::new();
        loop {
            let before = known.len();
            for (key, n, text) in equations {
                let open: Vec<&str> = factors(text).filter(|f| unknown(f, &known)).collect();
                let values = factors(text).filter_map(|f| f.parse().ok().or_else(|| known.get(f).copied()));
                let rest = values.fold(1, usize::saturating_mul);
                let wrong = |is: String| {
                    Err(Box::new(self.error(format!("has `{key}` = {n}, and `{text}` is {is}"))))
                };
                match open[..] {
                    [] if rest != *n => return wrong(rest.to_string()),
                    [dim] if !n.is_multiple_of(rest) => {
                        return wrong(format!("a multiple of {rest} for any `{dim}`"));
                    }
                    [dim] => drop(known.insert(dim.into(), n / rest)),
                    _ => {}
                }
            }
            if known.len() == before {
                return Ok(known);
            }
        }
    }

    /// Consts, each from one or several keys.
    fn consts(&self, map: &HfMap, given: &[(String, f64)], out: &mut ModelSizes) -> Checked<()> {
        for (key, choice) in &map.choices {
            let (key, value) = match (self.get(key), choice.values.first()) {
                (Some(here), _) => here,
                (None, Some(first)) => (key.as_str(), first),
                (None, None) => continue,
            };
            let Some(number) = choice.values.iter().position(|v| same(v, value)) else {
                let all: Vec<String> = choice.values.iter().map(Value::to_string).collect();
                let (all, value) = (all.join(" or "), short(value));
                return Err(Box::new(
                    self.error(format!("has `{key}` = {value}; the model `{}` has {all}", map.model)),
                ));
            };
            out.consts.insert(choice.set.clone(), number as f64);
            out.said.insert(choice.set.clone(), format!("`{key}` = {value}"));
        }
        let mut found: SortedMap<&str, (&str, f64)> = SortedMap::new();
        for (key, name) in map.consts() {
            if map.condition(key).is_some_and(|c| out.consts.get(c) == Some(&0.0)) {
                continue;
            }
            let absent = || Some((key.split('|').next()?, number_of(map.absent(key)?)?));
            let here = match self.get(key) {
                Some((key, value)) => {
                    let number = value.as_f64();
                    let odd =
                        || Box::new(self.error(format!("has `{key}` = {value}, which is not a number")));
                    Some((key, number.ok_or_else(odd)?))
                }
                None => absent(),
            };
            let Some((key, value)) = here else { continue };
            match found.get(name.as_str()) {
                Some((other, before)) if *before != value && !given.iter().any(|g| g.0 == *name) => {
                    let message = format!(
                        "has `{other}` = {before} and `{key}` = {value}, which the model `{}` has as one, `{name}`",
                        map.model
                    );
                    return Err(Box::new(
                        self.error(message).help(format!("choose it: `--set {name}={value}`")),
                    ));
                }
                _ => drop(found.insert(name, (key, value))),
            }
        }
        for (name, (key, value)) in found {
            out.consts.insert(name.to_string(), value);
            out.said.insert(name.to_string(), format!("`{key}` = {value}"));
        }
        out.consts.extend(map.set.clone());
        Ok(())
    }
}

/// The beginning of a value.
fn short(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

fn unknown(factor: &str, known: &SortedMap<String, usize>) -> bool {
    factor.parse::<usize>().is_err() && !known.contains_key(factor)
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::choose::map_of;
    use super::super::config_text::bind;
    use super::*;
    use serde_json::json;

    fn config(keys: Value) -> HfConfig {
        HfConfig { keys, place: "config.json".into() }
    }

    fn gpt(more: &[(&str, Value)]) -> HfConfig {
        let mut keys = json!({ "model_type": "gpt2", "vocab_size": 30, "n_positions": 8, "n_layer": 2, "n_head": 3,
                               "n_embd": 12, "n_inner": null, "layer_norm_epsilon": 1e-05 });
        more.iter().for_each(|(k, v)| bind(&mut keys, k, v.clone()));
        config(keys)
    }

    #[test]
    fn sizes_follow_from_what_a_map_says() {
        let map = HfMap::named("gpt").unwrap();
        let sizes = gpt(&[("attn_pdrop", 0.1.into()), ("resid_pdrop", 0.1.into())]).sizes(&map, &[]).unwrap();
        let dims = [("d_ff", 48), ("d_head", 4), ("heads", 3), ("layers", 2), ("places", 8), ("vocab", 30)];
        assert_eq!(sizes.dims, SortedMap::from(dims.map(|(n, s)| (n.to_string(), s))));
        assert_eq!((sizes.limits["seq"], sizes.consts["rate"]), (8, 0.1));
        let odd = gpt(&[("attn_pdrop", 0.1.into()), ("resid_pdrop", 0.0.into())]);
        assert!(odd.sizes(&map, &[("rate".into(), 0.1)]).is_ok());
        let map = HfMap::named("llama").unwrap();
        let keys = json!({ "model_type": "llama", "vocab_size": 30, "num_hidden_layers": 2, "num_attention_heads": 6,
                           "hidden_size": 24, "intermediate_size": 20, "rope_theta": 7.0, "rms_norm_eps": 1e-5 });
        let sizes = config(keys).sizes(&map, &[]).unwrap();
        assert_eq!((sizes.dims["groups"], sizes.dims["queries"], sizes.dims["d_head"]), (6, 1, 4));
        assert_eq!((sizes.consts["base"], sizes.consts["eps"], sizes.consts["tied"]), (7.0, 1e-5, 0.0));
    }

    #[test]
    fn what_the_model_does_not_have_is_named_with_its_value() {
        let map = HfMap::named("gpt").unwrap();
        for (key, value, why) in [
            (
                "activation_function",
                json!("relu"),
                "`activation_function` = \"relu\"; the model `gpt` has \"gelu_new\" or",
            ),
            ("layer_norm_epsilon", json!(1e-6), "`layer_norm_epsilon` = 1e-6; the model `gpt` has 0.00001"),
            ("model_type", json!("llama"), "`model_type` = \"llama\"; the model `gpt` has \"gpt2\""),
            ("n_embd", json!(0), "`n_embd` = 0, which is not a size"),
            ("n_head", json!(5), "`n_embd` = 12, and `heads * d_head` is a multiple of 5 for any `d_head`"),
            ("n_head", json!("three"), "`n_head` = \"three\", which is not a size"),
            ("n_head", json!(0), "`n_head` = 0, which is not a size"),
            ("vocab_size", json!(null), "has no `vocab_size`, which says what `vocab` is"),
            (
                "quantization_config",
                json!({ "bits": 4 }),
                "`quantization_config` = {\"bits\":4}, which the model",
            ),
            ("embd_pdrop", json!("much"), "`embd_pdrop` = \"much\", which is not a number"),
        ] {
            let errors = gpt(&[(key, value)]).sizes(&map, &[]).unwrap_err();
            assert!(
                errors.iter().any(|e| e.code.id == "E0529" && e.message.contains(why)),
                "{why}: {errors:?}"
            );
        }
        let odd = gpt(&[("attn_pdrop", 0.1.into()), ("resid_pdrop", 0.0.into())]);
        let errors = odd.sizes(&map, &[]).unwrap_err();
        assert!(errors[0].message.contains("which the model `gpt` has as one, `rate`"), "{errors:?}");
        let e = map_of(&config(json!({ "model_type": "gpt3" })), Some("my.mw")).unwrap_err();
        assert_eq!(e.helps[0], "did you mean `gpt2`?");
        let map = HfMap::named("llama").unwrap();
        let keys = json!({ "model_type": "llama", "vocab_size": 30, "num_hidden_layers": 2, "num_attention_heads": 6,
                           "hidden_size": 24, "head_dim": 5, "intermediate_size": 20 });
        let errors = config(keys).sizes(&map, &[]).unwrap_err();
        assert!(
            errors[0].message.contains(
                "`hidden_size` = 24, and `groups * queries * d_head` is a multiple of 30 for any `queries`"
            ),
            "{errors:?}"
        );
    }
}
