//! Which map is for a checkpoint.

use super::config::HfConfig;
use super::map::HfMap;
use meshwright_diag::{Diagnostic, nearest};
use meshwright_files::Checked;
use meshwright_files::text::listed;
use meshwright_sorted::SortedMap;

/// The map of a configuration: that for its class, among those for the model of this name, where there are any, or else among
/// those for its model type.
///
/// # Errors
///
/// E0529 where no map is for it.
pub(super) fn map_of(config: &HfConfig, model: Option<&str>) -> Checked<HfMap> {
    let all = HfMap::shipped()?;
    let typed = |m: &&HfMap| m.model_type() == config.model_type();
    let mut fit: Vec<&HfMap> = all.iter().filter(|m| Some(m.model.as_str()) == model).collect();
    match (fit.iter().any(&typed), fit.first()) {
        (true, _) => fit.retain(typed),
        // The map says what differs.
        (false, Some(first)) => return Ok((*first).clone()),
        (false, None) => fit = all.iter().filter(typed).collect(),
    }
    let classes = config.classes();
    match fit.iter().find(|m| classes.is_empty() || m.classes().any(|c| classes.contains(&c))) {
        Some(map) => Ok((*map).clone()),
        None if fit.is_empty() => Err(Box::new(unknown_type(config, &all))),
        None => Err(Box::new(unknown_class(config, &fit))),
    }
}

fn unknown_type(config: &HfConfig, all: &[HfMap]) -> Diagnostic {
    let types: SortedMap<&str, ()> = all.iter().filter_map(HfMap::model_type).map(|t| (t, ())).collect();
    let types: Vec<&str> = types.into_keys().collect();
    let class = config.classes().first().map(|c| format!(" (class `{c}`)")).unwrap_or_default();
    let message = match config.model_type() {
        Some(is) => format!("has `model_type` = \"{is}\"{class}, for which no map ships"),
        None => format!("has no `model_type`{class}"),
    };
    let mut d = config.error(message);
    if let Some(near) = config.model_type().and_then(|t| nearest(t, types.iter().copied())) {
        d = d.help(format!("did you mean `{near}`?"));
    }
    d = d.help(format!("maps ship for {}", types.join(", ")));
    d.help("write one (docs/hugging-face.md), and name it: `--model MODEL --map FILE`")
}

fn unknown_class(config: &HfConfig, of_type: &[&HfMap]) -> Diagnostic {
    let (is, kind) = (config.classes().join("`, `"), config.model_type().unwrap_or_default());
    let known: Vec<&str> = of_type.iter().flat_map(|m| m.classes()).collect();
    let d = config.error(format!("is of the class `{is}`; of `{kind}`, maps ship for {}", listed(&known)));
    d.help("to import what one of these has of it, name the map: `--map NAME` (`meshwright maps`)")
        .help("or write one of your own (docs/hugging-face.md): `--model MODEL --map FILE`")
}
