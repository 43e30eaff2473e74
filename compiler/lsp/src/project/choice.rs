//! Which layout, mesh, sizes and machine the editor shows a model with: options as the command line has them, in a comment
//! `// meshwright: --layout dp_tp --mesh 2x2` or in the settings.

use std::ops::Range;
use std::path::PathBuf;

/// What a comment begins with that has options.
const MARK: &str = "// meshwright:";
/// The options, as messages list them.
const OPTIONS: &str =
    "`--layout`, `--mesh`, `--preset`, `--dim`, `--set`, `--machine` and, in a layout, `--model`";

/// What was chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ViewOptions {
    /// `--layout`: a file, a layout that ships, or rules.
    pub(crate) layout: Option<String>,
    /// `--mesh`.
    pub(crate) mesh: Option<String>,
    /// `--preset`.
    pub(crate) preset: Option<String>,
    /// `--dim`.
    pub(crate) dims: Vec<(String, usize)>,
    /// `--set`.
    pub(crate) sets: Vec<(String, f64)>,
    /// `--machine`.
    pub(crate) machine: Option<String>,
    /// `--model`: the model that a layout is shown with.
    pub(crate) model: Option<String>,
    /// Where the comment stands, in bytes.
    pub(crate) at: Option<Range<usize>>,
    /// And in which file.
    pub(crate) file: Option<PathBuf>,
    /// What could not be read.
    pub(crate) wrong: Vec<String>,
}

impl ViewOptions {
    /// The options of the first such comment of a text.
    pub(crate) fn of_text(text: &str) -> ViewOptions {
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let content = line.trim_end();
            if let Some(options) = content.trim_start().strip_prefix(MARK) {
                let indent = content.len() - content.trim_start().len();
                let at = Some(start + indent..start + content.len());
                return ViewOptions { at, ..ViewOptions::of_options(options) };
            }
            start += line.len();
        }
        ViewOptions::default()
    }

    /// Options as they are written on a command line.
    pub(crate) fn of_options(options: &str) -> ViewOptions {
        let mut out = ViewOptions::default();
        let mut words = words(options).into_iter();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name.to_string(), Some(value.to_string())),
                _ => (word, None),
            };
            if !name.starts_with("--") {
                out.wrong.push(format!("`{name}` is no option: there are {OPTIONS}"));
                continue;
            }
            match value.or_else(|| words.next()) {
                Some(value) => out.set(&name, value),
                None => out.wrong.push(format!("`{name}` has no value")),
            }
        }
        out
    }

    fn set(&mut self, name: &str, value: String) {
        let pairs = || value.split(',').map(|p| p.split_once('=').unwrap_or((p, "")));
        match name {
            "--layout" => self.layout = Some(value),
            "--mesh" => self.mesh = Some(value),
            "--preset" => self.preset = Some(value),
            "--machine" => self.machine = Some(value),
            "--model" => self.model = Some(value),
            "--dim" => {
                for (dim, size) in pairs() {
                    match size.parse() {
                        Ok(size) => self.dims.push((dim.into(), size)),
                        Err(_) => self.wrong.push(format!("`--dim {dim}={size}`: write `--dim NAME=SIZE`")),
                    }
                }
            }
            "--set" => {
                for (name, number) in pairs() {
                    match number.parse() {
                        Ok(number) => self.sets.push((name.into(), number)),
                        Err(_) => {
                            self.wrong.push(format!("`--set {name}={number}`: write `--set NAME=VALUE`"))
                        }
                    }
                }
            }
            _ => self.wrong.push(format!("there is no option `{name}` here: there are {OPTIONS}")),
        }
    }

    /// These options, and for what they leave open those of `other`.
    pub(crate) fn or(self, other: &ViewOptions) -> ViewOptions {
        let further = |own: Vec<(String, _)>, more: &[(String, usize)]| [more.to_vec(), own].concat();
        ViewOptions {
            layout: self.layout.or_else(|| other.layout.clone()),
            mesh: self.mesh.or_else(|| other.mesh.clone()),
            preset: self.preset.or_else(|| other.preset.clone()),
            dims: further(self.dims, &other.dims),
            sets: [other.sets.clone(), self.sets].concat(),
            machine: self.machine.or_else(|| other.machine.clone()),
            at: self.at.or_else(|| other.at.clone()),
            file: self.file.or_else(|| other.file.clone()),
            ..self
        }
    }
}

/// The words of a command line: blanks separate them, but for those in quotes.
fn words(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => out.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_has_the_options_of_the_command_line() {
        let text = "//! A model.\n\n  // meshwright: --layout 'batch -> r; d -> c' --mesh=r=2,c=2 --dim batch=8,d=4 --set lr=0.5 --preset tiny\ndim a = 1";
        let c = ViewOptions::of_text(text);
        assert_eq!((c.layout.as_deref(), c.mesh.as_deref()), (Some("batch -> r; d -> c"), Some("r=2,c=2")));
        assert_eq!(
            (c.dims.len(), c.sets.as_slice(), c.preset.as_deref()),
            (2, &[("lr".to_string(), 0.5)][..], Some("tiny"))
        );
        assert!(
            c.wrong.is_empty()
                && c.at
                    .is_some_and(|at| text[at.clone()].starts_with("// mesh") && text[at].ends_with("tiny"))
        );
        let wrong = ViewOptions::of_options("--dim batch --fast 2 dp --mesh");
        assert_eq!(wrong.wrong.len(), 4, "{:?}", wrong.wrong);
        let both = ViewOptions::of_options("--mesh 2").or(&ViewOptions::of_options("--mesh 4 --machine cpu"));
        assert_eq!((both.mesh.as_deref(), both.machine.as_deref()), (Some("2"), Some("cpu")));
    }
}
