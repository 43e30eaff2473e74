//! `config.json`: what it says of a model's dims and consts, by a map, and how it is written.

use super::map::HfMap;
use super::product::{factors, product};
use crate::Checked;
use crate::project::Project;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_plan::DType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Whether tensors are others under a second name, as their configurations say it.
const TIE: &str = "tie_word_embeddings";

/// A `config.json` that was read.
#[derive(Debug)]
pub(super) struct HfConfig {
    keys: Value,
    place: String,
}

/// What a configuration gives to a model.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ModelSizes {
    pub(super) dims: BTreeMap<String, usize>,
    /// Dims that are not greater than this.
    pub(super) limits: BTreeMap<String, usize>,
    pub(super) consts: BTreeMap<String, f64>,
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
        let bytes = crate::checkpoint::fs::read_regular(&path).map_err(|e| failed(e.to_string()))?;
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

    /// Whether tied tensors are.
    pub(super) fn ties(&self) -> bool {
        self.get(TIE).is_some_and(|(_, v)| *v == Value::Bool(true))
    }

    fn error(&self, message: String) -> Diagnostic {
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

    /// What the configuration says by a map.
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
        for (key, dim) in map.limits() {
            match self.number(map, key) {
                Ok(Some(n)) => drop(out.limits.insert(dim.clone(), n)),
                Ok(None) => {}
                Err(d) => errors.push(*d),
            }
        }
        match self.consts(map, given) {
            Ok(consts) => out.consts = consts,
            Err(d) => errors.push(*d),
        }
        if errors.is_empty() { Ok(out) } else { Err(errors) }
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
        for key in map.refused() {
            let Some((key, value)) = self.get(key) else { continue };
            let value: String = value.to_string().chars().take(60).collect();
            errors
                .push(self.error(format!("has `{key}` = {value}, which the model `{}` has not", map.model)));
        }
        errors
    }

    /// The dims that make all equations `key = dim * …` true.
    fn solved(&self, equations: &[(&str, usize, &str)]) -> Checked<BTreeMap<String, usize>> {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
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

    /// Consts, of which several keys may be one.
    fn consts(&self, map: &HfMap, given: &[(String, f64)]) -> Checked<BTreeMap<String, f64>> {
        let mut found: BTreeMap<&str, (&str, f64)> = BTreeMap::new();
        for (key, name) in map.consts() {
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
        Ok(found.into_iter().map(|(name, (_, value))| (name.to_string(), value)).collect())
    }
}

fn unknown(factor: &str, known: &BTreeMap<String, usize>) -> bool {
    factor.parse::<usize>().is_err() && !known.contains_key(factor)
}

fn number_of(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// The map of a configuration: that of the model of this name or file, where there is one, or else the one for their model type.
///
/// # Errors
///
/// E0529 where no map is for it.
pub(super) fn map_of(config: &HfConfig, model: Option<&str>) -> Checked<HfMap> {
    let mut all = HfMap::shipped()?;
    let named = all.iter().position(|m| Some(m.model.as_str()) == model);
    let typed = || all.iter().position(|m| m.model_type() == config.model_type());
    if let Some(at) = named.or_else(typed) {
        return Ok(all.swap_remove(at));
    }
    let types: Vec<&str> = all.iter().filter_map(HfMap::model_type).collect();
    let message = match config.model_type() {
        Some(is) => format!("has `model_type` = \"{is}\", for which no map ships"),
        None => "has no `model_type`".into(),
    };
    let mut d = config.error(message);
    if let Some(near) = config.model_type().and_then(|t| nearest(t, types.iter().copied())) {
        d = d.help(format!("did you mean `{near}`?"));
    }
    d = d.help(format!("maps ship for {}", types.join(", ")));
    Err(Box::new(d.help("write one (docs/hugging-face.md), and name it: `--model MODEL --map FILE`")))
}

/// What of a configuration does not follow from the model alone.
pub(super) struct ConfigDetails<'a> {
    /// Whether tied tensors are; none where there are none.
    pub(super) ties: Option<bool>,
    /// Ids of special tokens, by key.
    pub(super) tokens: BTreeMap<&'a str, u32>,
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
    for (key, text) in map.limits().iter().chain(map.dims()) {
        let n = product(text, size).map_err(|name| lacks("dim", name, key))?;
        bind(&mut out, key, n.into());
    }
    for (key, name) in map.consts() {
        let value = *program.consts.get(name).ok_or_else(|| lacks("const", name, key))?;
        let whole = matches!(map.absent(key), Some(toml::Value::Integer(_))) && value.fract() == 0.0;
        bind(&mut out, key, if whole { (value as i64).into() } else { value.into() });
    }
    if let Some(ties) = details.ties {
        bind(&mut out, TIE, ties.into());
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

/// Sets a key, which may be a path, under all its names.
fn bind(out: &mut Value, key: &str, value: Value) {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

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
        assert_eq!(sizes.dims, BTreeMap::from(dims.map(|(n, s)| (n.to_string(), s))));
        assert_eq!((sizes.limits["seq"], sizes.consts["rate"]), (8, 0.1));
        let odd = gpt(&[("attn_pdrop", 0.1.into()), ("resid_pdrop", 0.0.into())]);
        assert!(odd.sizes(&map, &[("rate".into(), 0.1)]).is_ok());
        let map = HfMap::named("llama").unwrap();
        let keys = json!({ "model_type": "llama", "vocab_size": 30, "num_hidden_layers": 2, "num_attention_heads": 6,
                           "hidden_size": 24, "intermediate_size": 20, "rope_theta": 7.0, "rms_norm_eps": 1e-5 });
        let sizes = config(keys).sizes(&map, &[]).unwrap();
        assert_eq!((sizes.dims["groups"], sizes.dims["queries"], sizes.dims["d_head"]), (6, 1, 4));
        assert_eq!(sizes.consts, BTreeMap::from([("base".into(), 7.0), ("eps".into(), 1e-5)]));
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
