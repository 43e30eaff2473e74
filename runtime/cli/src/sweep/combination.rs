//! A combination: what one run of a sweep is made with, and the name that follows.

use meshwright_train::ProjectOptions;

/// The longest number that is written without an exponent.
const DIGITS: usize = 8;

/// A number in few characters, exactly.
fn short(value: f64) -> String {
    let plain = value.to_string();
    if plain.len() <= DIGITS { plain } else { format!("{value:e}") }
}

/// What one run is made with, beside what all have alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Combination {
    /// None for a run on one device.
    pub(crate) layout: Option<String>,
    pub(crate) mesh: Option<String>,
    pub(crate) dims: Vec<(String, usize)>,
    pub(crate) sets: Vec<(String, f64)>,
    pub(crate) seed: u64,
}

impl Combination {
    /// The name of its folder: all that a sweep gives it, in words. Another value somewhere else changes no name.
    pub(crate) fn name(&self) -> String {
        let word = |text: &str| {
            let text = text.strip_suffix(".layout").unwrap_or(text);
            let plain = text.replace(|c: char| !c.is_alphanumeric() && !"=._".contains(c), "-");
            let plain = plain.split('-').filter(|p| !p.is_empty()).collect::<Vec<_>>().join("-");
            // A folder whose name begins with a dot is hidden.
            plain.trim_start_matches(['.', '-']).to_string()
        };
        let mut parts = vec![self.layout.as_deref().map_or("one-device".into(), word)];
        if self.layout.is_none() && self.mesh.is_some() {
            parts.clear();
        }
        parts.extend(self.mesh.as_deref().map(word));
        parts.extend(self.dims.iter().map(|(name, size)| format!("{name}={size}")));
        parts.extend(self.sets.iter().map(|(name, value)| format!("{name}={}", short(*value))));
        parts.push(format!("seed={}", self.seed));
        parts.retain(|p| !p.is_empty());
        parts.join("-")
    }

    /// What a condition compares.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let dim = || self.dims.iter().find(|d| d.0 == name).map(|d| d.1.to_string());
        let set = || self.sets.iter().find(|s| s.0 == name).map(|s| s.1.to_string());
        match name {
            "layout" => self.layout.clone(),
            "mesh" => self.mesh.clone(),
            "seed" => Some(self.seed.to_string()),
            _ => dim().or_else(set),
        }
    }

    /// The same choice of sizes, consts and seed on one device.
    pub(crate) fn on_one_device(&self) -> Combination {
        Combination { layout: None, mesh: None, ..self.clone() }
    }

    /// What to load for it.
    pub(crate) fn options(&self, all: &ProjectOptions) -> ProjectOptions {
        ProjectOptions {
            layout: self.layout.clone(),
            mesh: self.mesh.clone(),
            dims: self.dims.clone(),
            sets: self.sets.clone(),
            ..all.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_is_hidden() {
        let of = |layout: &str| {
            Combination { layout: Some(layout.into()), mesh: Some("2".into()), ..Combination::default() }
                .name()
        };
        assert_eq!(of("./dp.layout"), "dp-2-seed=0");
        assert_eq!(of("../mine/.dp.layout"), "mine-.dp-2-seed=0");
        assert_eq!(of("..."), "2-seed=0");
    }

    #[test]
    fn numbers_in_names_are_short() {
        assert_eq!(
            (short(1e-4), short(1e-7), short(1e300), short(-0.5)),
            ("0.0001".into(), "1e-7".into(), "1e300".into(), "-0.5".into())
        );
    }
}
