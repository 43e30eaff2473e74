//! Which block `size NAME { … }` of a model a preset means.

use crate::resolve::report::{Report, listed, nearest};
use meshwright_diag::{Diagnostic, codes};

/// Whether `given` means the size `name`: it is that name, or what follows its last `_`. So `8b` means `llama3_8b`, for a name
/// does not begin with a digit.
pub fn is_preset(name: &str, given: &str) -> bool {
    name == given || name.rsplit_once('_').is_some_and(|(_, end)| end == given)
}

/// The size that a preset means: that of its name goes before those whose names end with it.
pub(in crate::resolve) fn chosen<'a>(names: &[&'a str], given: &str, report: &mut Report) -> Option<&'a str> {
    if let Some(name) = names.iter().find(|n| **n == given) {
        return Some(name);
    }
    let ending: Vec<&'a str> = names.iter().copied().filter(|n| is_preset(n, given)).collect();
    if let [one] = ending[..] {
        return Some(one);
    }
    let all = names.iter().copied();
    let d = if let [first, second, ..] = ending[..] {
        let message = format!("`{given}` means several sizes: {}", listed(ending.iter().copied()));
        Diagnostic::error(codes::E0201, message)
            .help(format!("write the whole name: `--preset {first}` or `--preset {second}`"))
    } else {
        let d = Diagnostic::error(codes::E0201, format!("there is no size `{given}`"))
            .note(format!("sizes of this model: {}", listed(all.clone())));
        let ends: Vec<&str> = all.clone().filter_map(|n| Some(n.rsplit_once('_')?.1)).collect();
        match nearest(given, all.chain(ends)) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help("declare it in the model file: `size NAME { dim = number }`"),
        }
    };
    let short = names.iter().find_map(|n| {
        let end = n.rsplit_once('_')?.1;
        let alone = !end.is_empty() && names.iter().filter(|n| is_preset(n, end)).count() == 1;
        alone.then(|| format!("`{end}` is short for `{n}`: what follows the last `_` of one name alone"))
    });
    report.push(short.into_iter().fold(d, Diagnostic::help));
    None
}
