//! Which tensors of a file become which parameters, and what does not fit.

use super::name_map::NameMap;
use super::region::shown;
use super::rule::{NameRule, layered, of_layer};
use super::target::Target;
use super::view::{Reshape, View};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_files::text::listed;
use meshwright_runs::checkpoint::TensorSource;
use meshwright_sorted::SortedMap;
use std::ops::Range;

/// Source of a parameter, or of a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ingredients {
    /// The positions here, along each dim.
    pub(crate) region: Vec<Range<usize>>,
    /// Names in the file: one, or one of each layer.
    pub(crate) names: Vec<String>,
    /// Transformation of each.
    pub(crate) view: View,
    /// Whether they are stacked along the first dim here.
    pub(crate) stacked: bool,
}

/// The command that takes tensors. Errors name its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBy {
    /// `train --init`, with rules of `--init-map`.
    Init,
    /// `import hf`, with the rules of a map.
    Import,
}

/// The place of tensors, in words, and the command that takes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorPlace<'a> {
    pub(crate) place: &'a str,
    pub(crate) by: TakenBy,
}

/// Parts by path: if parts share positions, the first counts.
pub(crate) type Taken = SortedMap<String, Vec<Ingredients>>;

/// The tensor of each target that has one, and what does not fit.
pub(crate) fn choose(
    source: &TensorSource,
    of: TensorPlace<'_>,
    map: &NameMap,
    targets: &[Target],
) -> (Taken, Vec<Diagnostic>) {
    let (mut taken, mut errors) = (Taken::new(), Vec::new());
    // Rules that named tensors, and whether one of these was there.
    let mut used: SortedMap<&str, bool> = SortedMap::new();
    for t in targets {
        let mut rules: Vec<(Vec<String>, Option<&NameRule>)> =
            map.olds_of(&t.path).map(|(names, rule)| (names, Some(rule))).collect();
        if rules.is_empty() {
            rules.push((vec![t.path.clone()], None));
        }
        for (names, rule) in rules {
            let there = names.iter().find(|n| source.info(&of_layer(n, 0)).is_some());
            if let Some(r) = rule {
                *used.entry(&r.text).or_default() |= there.is_some();
            }
            // A rule for many names may leave some out, and then they are drawn.
            let Some(name) = there else { continue };
            match ingredients(source, of, name, t, rule) {
                Ok(part) => taken.entry(t.path.clone()).or_default().push(part),
                Err(d) => errors.push(*d),
            }
        }
    }
    for rule in map.rules.iter().filter(|r| used.get(r.text.as_str()) == Some(&false)) {
        errors.push(missing(source, of.place, rule));
    }
    (taken, errors)
}

/// Source of a target, if the tensor `name` is there, or that of its first layer.
fn ingredients(
    source: &TensorSource,
    of: TensorPlace<'_>,
    name: &str,
    t: &Target,
    rule: Option<&NameRule>,
) -> Checked<Ingredients> {
    let view = rule.map_or_else(View::default, |r| r.view.clone());
    let region = rule.map(|r| r.region.clone()).unwrap_or_default();
    let region = region.of(t).map_err(|why| {
        let text = rule.map_or("", |r| r.text.as_str());
        let message = format!("the rule `{text}` is for a part that `{}` has not: {why}", t.path);
        Box::new(Diagnostic::error(codes::E0513, message))
    })?;
    let wanted: Vec<usize> = region.iter().map(Range::len).collect();
    let stacked = rule.is_some() && layered(name);
    let Some((layers, each)) = stacked.then(|| wanted.split_first()).flatten() else {
        if stacked {
            let message =
                format!("`{name}` is of many layers, and `{}` has no dim for them in the model", t.path);
            return Err(Box::new(
                Diagnostic::error(codes::E0513, message).help("name one layer in place of `#`"),
            ));
        }
        return match source.info(name) {
            Some((_, shape)) if !view.gives(shape, &wanted) => {
                Err(Box::new(no_fit(of, name, shape, (t, &wanted), rule)))
            }
            _ => Ok(Ingredients { region, names: vec![name.into()], view, stacked }),
        };
    };
    let found = (0..).take_while(|n| source.info(&of_layer(name, *n)).is_some()).count();
    if found != *layers {
        let place = of.place;
        let message =
            format!("{place} has `{name}` for {found} layers, and `{}` is {} in the model", t.path, t.dims);
        let dim = t.names.first().map_or("layers", String::as_str);
        let d = Diagnostic::error(codes::E0513, message).help(format!("give `--dim {dim}={found}`"));
        let part = format!("or take them for some: `{dim}[0..{found}].… = …`, and the rest is drawn");
        let rules = of.by == TakenBy::Init && found < *layers;
        return Err(Box::new(if rules { d.help(part) } else { d }));
    }
    let names: Vec<String> = (0..*layers).map(|n| of_layer(name, n)).collect();
    let misfit =
        names.iter().find_map(|n| source.info(n).filter(|i| !view.gives(i.1, each)).map(|i| (n, i.1)));
    match misfit {
        Some((name, shape)) => Err(Box::new(no_fit(of, name, shape, (t, each), rule))),
        None => Ok(Ingredients { region, names, view, stacked }),
    }
}

/// Error of a rule without a tensor.
fn missing(source: &TensorSource, place: &str, rule: &NameRule) -> Diagnostic {
    let names = source.names();
    let old = of_layer(&rule.olds[0], 0);
    let message = format!("{place} has no `{old}`, as the rule `{}` has it", rule.text);
    let d = Diagnostic::error(codes::E0513, message);
    let near = nearest(&old, names.iter().map(String::as_str));
    let d = near.map_or(d.clone(), |n| d.help(format!("did you mean `{n}`?")));
    let plain: Vec<&str> = names.iter().map(String::as_str).collect();
    d.note(format!("it has {}", listed(&plain)))
}

/// A tensor that does not fit: `wanted` is what is left of the target's shape without layers.
fn no_fit(
    TensorPlace { place, by }: TensorPlace<'_>,
    name: &str,
    shape: &[usize],
    (t, wanted): (&Target, &[usize]),
    rule: Option<&NameRule>,
) -> Diagnostic {
    let turned = rule.map_or(Ok(shape.to_vec()), |r| r.view.shape(shape));
    let is = match &turned {
        Ok(turned) if turned != shape => format!("{shape:?}, turned {turned:?},"),
        _ => format!("{shape:?}"),
    };
    let message = format!("`{name}` is {is} in {place}, and `{}` is {} in the model", t.path, t.dims);
    let d = Diagnostic::error(codes::E0513, message);
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let elements = |s: &[usize]| s.iter().product::<usize>();
    let reshapes = rule.is_some_and(|r| r.view.reshape != Reshape::No);
    let turned = match turned {
        Err(why) => return d.note(why),
        Ok(turned) => turned,
    };
    let sizes = dims_of(t, &turned, wanted);
    if by == TakenBy::Import {
        return d.help(match sizes {
            Some(dims) => format!("give the size of the tensor: `{dims}`, or write it in `config.json`"),
            None => {
                "give the `--dim` that it was made with, or name a map with another rule: `--map FILE`".into()
            }
        });
    }
    if rule.is_none() && reversed == wanted {
        return d.help(format!("it fits when it is turned: `--init-map '{} = {name} transposed'`", t.path));
    }
    if elements(&turned) == elements(wanted) && !reshapes {
        return d.help(
            "it has as many elements: `permuted …` or `reshaped` behind the rule's name takes it in another form",
        );
    }
    let size = sizes.map_or("give the `--dim` that it was made with".into(), |dims| {
        format!("give the size that it was made with: `{dims}`")
    });
    let d = d.help(format!("{size}, or take other names: `--init-map '{} = OTHER'`", t.path));
    let whole = rule.is_none_or(|r| !r.turns());
    match common(shape, wanted).filter(|_| whole) {
        Some(both) => d.help(slices(name, shape, (t, wanted), &both)),
        None => d,
    }
}

/// The options under which the last dims of a target have the sizes of a tensor: `--dim places=128`. None if the tensor has
/// another number of dims, or is for a part of the target.
fn dims_of(t: &Target, has: &[usize], wanted: &[usize]) -> Option<String> {
    let before = t.shape.len().checked_sub(wanted.len())?;
    if has.len() != wanted.len() || t.shape[before..] != *wanted || has.contains(&0) {
        return None;
    }
    let differ = t.names[before..].iter().zip(has).zip(wanted).filter(|((_, has), wants)| has != wants);
    let dims: Vec<String> = differ.map(|((name, has), _)| format!("--dim {name}={has}")).collect();
    Some(dims.join(" ")).filter(|d| !d.is_empty())
}

/// The common positions of two shapes from the first one on; none if they differ in the number of dims.
fn common(has: &[usize], wants: &[usize]) -> Option<Vec<Range<usize>>> {
    let both = has.iter().zip(wants).map(|(a, b)| 0..*a.min(b));
    (has.len() == wants.len() && !has.contains(&0)).then(|| both.collect())
}

/// The rule that takes what a tensor has of a parameter, where it has more or fewer positions.
fn slices(name: &str, has: &[usize], (t, wants): (&Target, &[usize]), both: &[Range<usize>]) -> String {
    let (here, there) = (shown(both, wants), shown(both, has));
    let rest = if here.is_empty() { "" } else { ", and the rest is drawn" };
    format!("to take what both have{rest}: `--init-map '{}{here} = {name}{there}'`", t.path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_plan::DType;

    fn target(path: &str, dims: &[(&str, usize)]) -> Target {
        let named: Vec<String> = dims.iter().map(|(n, size)| format!("{n}={size}")).collect();
        Target {
            path: path.into(),
            dtype: DType::F32,
            shape: dims.iter().map(|d| d.1).collect(),
            names: dims.iter().map(|d| d.0.to_string()).collect(),
            dims: format!("[{}]", named.join(" ")),
            is_param: true,
        }
    }

    /// The helps of all that is wrong with these tensors.
    fn helps(tensors: &[(&str, &[usize])], rules: &str, by: TakenBy, t: Target) -> Vec<String> {
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, shape) in tensors {
            let begin = end;
            end += 4 * shape.iter().product::<usize>();
            let info = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
            header.insert((*name).to_string(), info);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let all = [&(header.len() as u64).to_le_bytes()[..], &header, &vec![0; end]].concat();
        std::fs::write(file.path(), all).unwrap();
        let source = TensorSource::open(file.path()).unwrap();
        let map = NameMap::parse(rules, "").unwrap();
        let (_, errors) = choose(&source, TensorPlace { place: "`x`", by }, &map, &[t]);
        assert!(!errors.is_empty());
        errors.into_iter().flat_map(|d| d.helps).collect()
    }

    #[test]
    fn a_size_is_named_with_its_dim() {
        let places = || target("places", &[("places", 64), ("d_model", 8)]);
        let tensor: [(&str, &[usize]); 1] = [("wpe", &[128, 8])];
        let import = helps(&tensor, "places = wpe", TakenBy::Import, places());
        assert_eq!(import, ["give the size of the tensor: `--dim places=128`, or write it in `config.json`"]);
        let init = helps(&tensor, "places = wpe", TakenBy::Init, places());
        assert_eq!(
            init[0],
            "give the size that it was made with: `--dim places=128`, or take other names: `--init-map 'places = OTHER'`"
        );
        // Below a dim of layers, and turned.
        let up = target("up", &[("layers", 1), ("d_model", 8), ("d_ff", 32)]);
        let tensor: [(&str, &[usize]); 1] = [("h.0.up", &[16, 4])];
        let import = helps(&tensor, "up = h.#.up transposed", TakenBy::Import, up);
        assert!(import[0].contains("`--dim d_model=4 --dim d_ff=16`"), "{import:?}");
    }

    /// `import hf` has neither `--init-map` nor parameters that are drawn.
    #[test]
    fn an_import_names_its_own_options() {
        let layers = |n: usize| target("layers.w", &[("layers", n), ("d", 2)]);
        let two: [(&str, &[usize]); 2] = [("h.0.w", &[2]), ("h.1.w", &[2])];
        let import = helps(&two, "layers.w = h.#.w", TakenBy::Import, layers(3));
        assert_eq!(import, ["give `--dim layers=2`"]);
        assert_eq!(helps(&two, "layers.w = h.#.w", TakenBy::Init, layers(3)).len(), 2);
        let others: [(&[usize], &str); 4] =
            [(&[2, 3], "w = v"), (&[3, 2], "w = w"), (&[6], "w = v"), (&[2, 2, 2], "w = v")];
        for (shape, rule) in others {
            let name = rule.rsplit(' ').next().unwrap();
            let said = helps(&[(name, shape)], rule, TakenBy::Import, target("w", &[("a", 3), ("b", 3)]));
            assert!(!said.is_empty() && !said.concat().contains("init-map"), "{said:?}");
        }
    }
}
