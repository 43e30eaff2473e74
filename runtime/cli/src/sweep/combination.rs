//! A combination: what one run of a sweep is made with, and the name that follows.

use crate::output::text::exact_number;
use meshwright_train::ProjectOptions;
use sha2::Digest;

/// The longest name of a run, and the longest of what it is made of where it would be longer, in bytes.
const LONGEST: usize = 100;
const LONGEST_PART: usize = 32;

/// A text of at most so many bytes: of a longer one its beginning, and digits that depend on all of it.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.into();
    }
    let digits: String = sha2::Sha256::digest(text).iter().take(5).map(|b| format!("{b:02x}")).collect();
    let kept = &text[..text.floor_char_boundary(most - digits.len() - 1)];
    format!("{}-{digits}", kept.trim_end_matches(['-', '.', '=']))
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
    /// The name of its folder: all that a sweep gives it, in words. Another value somewhere else changes no name, so that a sweep
    /// with more of them goes on. Of a long one the ends of what it is made of are digits.
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
        parts.extend(self.sets.iter().map(|(name, value)| format!("{name}={}", exact_number(*value))));
        parts.retain(|p| !p.is_empty());
        let seed = format!("seed={}", self.seed);
        let most = LONGEST - seed.len() - 1;
        let mut name = parts.join("-");
        if name.len() > most {
            name = cut(&parts.iter().map(|p| cut(p, LONGEST_PART)).collect::<Vec<_>>().join("-"), most);
        }
        if name.is_empty() { seed } else { format!("{name}-{seed}") }
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
    use crate::output::text::short_number;

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
    fn long_names_are_cut_and_stay_apart() {
        let of = |layout: &str, n: usize, seed| {
            let dims = (0..n).map(|i| (format!("hidden_size_{i}"), 1024 + i)).collect();
            Combination { layout: Some(layout.into()), dims, seed, ..Combination::default() }.name()
        };
        let rules = "batch -> data; heads, d_ff, vocab -> model; seq -> model when free; params: * -> data";
        // What is short enough is written out.
        assert_eq!(of("batch -> data", 1, 7), "batch-data-hidden_size_0=1024-seed=7");
        let names = [
            of(rules, 1, 0),
            of(&rules.replace("params", "moments"), 1, 0),
            of(rules, 2, 0),
            of(rules, 40, 0),
            of(rules, 41, 0),
            of(rules, 41, u64::MAX),
            of(&"µ".repeat(300), 3, 1),
        ];
        for (n, name) in names.iter().enumerate() {
            assert!(name.len() <= LONGEST && !names[..n].contains(name), "{name}");
            assert!(name.contains("-seed=") && !name.contains("--"), "{name}");
        }
        assert!(
            names[0].starts_with("batch-data-heads-d_ff") && names[0].contains("-hidden_size_0=1024-seed=0")
        );
    }

    #[test]
    fn numbers_in_names_are_those_of_tables() {
        for (value, text) in [
            (1e-4, "0.0001"),
            (2e-5, "0.00002"),
            (1e-7, "1e-7"),
            (1e300, "1e300"),
            (-0.5, "-0.5"),
            (0.123456, "0.123456"),
        ] {
            let sets = vec![("lr".to_string(), value)];
            let name = Combination { sets, ..Combination::default() }.name();
            assert_eq!(name, format!("one-device-lr={text}-seed=0"));
            assert_eq!(short_number(value), text);
        }
        let sets = vec![("lr".to_string(), 0.123456789012)];
        assert_eq!(
            Combination { sets, ..Combination::default() }.name(),
            "one-device-lr=0.123456789012-seed=0"
        );
    }
}
