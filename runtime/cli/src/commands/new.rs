//! `new`: a folder with a model, a layout, a data set, a notebook and a check for CI to begin with.

use crate::args::NewArgs;
use crate::output::console::Console;
use crate::output::json::object;
use crate::stop::Stop;
use crate::templates::{TEMPLATES, Template};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::{Project, ProjectOptions};
use std::io::{BufRead, ErrorKind, IsTerminal, stderr, stdin};
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &NewArgs, console: &mut Console) -> Result<(), Stop> {
    let name = args.name.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(word) {
        let text = format!(
            "`{name}` cannot be the name of a model: take letters, digits and `_`, and begin with a letter"
        );
        return Err(Stop::Usage(text));
    }
    let template = match &args.template {
        Some(name) => TEMPLATES.iter().find(|t| t.name == name),
        None if console.json() || !stdin().is_terminal() || !stderr().is_terminal() => TEMPLATES.first(),
        None => asked(&mut stdin().lock(), console),
    };
    let Some(template) = template else {
        return Err(Stop::Usage("no template was chosen: say `--template mlp`, or another".into()));
    };
    if let Some(why) = mistake(&format!("{name}.mw"), &template.model.replace("NAME", &name)) {
        return Err(Stop::Usage(format!("`{name}` cannot be the name of a model: {why}")));
    }
    let files = template.files(&name);
    match write(&args.name, &files) {
        Ok(()) => {}
        Err((path, e)) => {
            let found = Diagnostic::error(codes::E0524, format!("cannot write `{}`: {e}", path.display()))
                .help(match e.kind() {
                    ErrorKind::AlreadyExists => "choose a folder that is not there yet",
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                        "make room there, or choose another folder"
                    }
                    _ => "choose a folder that can be made and written to",
                });
            console.diagnostics(&[found], &Sources::new());
            return Err(Stop::Diagnosed);
        }
    }
    let paths: Vec<String> = files.iter().map(|f| args.name.join(&f.0).display().to_string()).collect();
    if console.json() {
        return console.out_json(&object([("template", template.name.into()), ("files", paths.into())]));
    }
    paths.iter().try_for_each(|p| console.out(&format!("{p}\n")))?;
    console.out(&format!(
        "\nTrain it, on one device and on a mesh:\n  cd {}\n  meshwright train {name}.mw --data data\n  meshwright train {name}.mw --data data --layout {name}.layout\n\
         {name}.ipynb does so in a notebook, and .github/workflows/check.yml at each push.\n",
        args.name.display()
    ))
}

/// The template that somebody at the terminal names, by name or number; none where nothing more comes.
fn asked(input: &mut impl BufRead, console: &mut Console) -> Option<&'static Template> {
    console.err("What is it to begin with?\n");
    for (n, template) in TEMPLATES.iter().enumerate() {
        console.err(&format!("  {}  {:12} {}\n", n + 1, template.name, template.about));
    }
    loop {
        console.err(&format!("Name or number [{}]: ", TEMPLATES[0].name));
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let word = line.trim();
        let at = |n: usize| TEMPLATES.get(n.checked_sub(1)?);
        let found = if word.is_empty() { at(1) } else { word.parse().ok().and_then(at) };
        let found = found.or_else(|| TEMPLATES.iter().find(|t| t.name == word));
        if found.is_some() {
            return found;
        }
    }
}

/// What is wrong with the text of a model: a keyword, say, is no name.
fn mistake(file: &str, text: &str) -> Option<String> {
    let texts = [(file.to_string(), text.to_string())].into();
    let found = Project::load(&ProjectOptions { model: file.into(), texts, ..ProjectOptions::default() });
    found.diagnostics.into_iter().find(Diagnostic::is_error).map(|d| d.message)
}

/// Writes the files of a folder, which must not be there yet: all of them, or none.
fn write(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), (PathBuf, std::io::Error)> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |e| (path, e)
    };
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).map_err(at(parent))?;
    }
    std::fs::create_dir(folder).map_err(at(folder))?;
    fill(folder, files).inspect_err(|_| {
        // What cannot be removed either stays; the first error is the one to report.
        let _left = std::fs::remove_dir_all(folder);
    })
}

fn fill(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), (PathBuf, std::io::Error)> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |e| (path, e)
    };
    for (name, bytes) in files {
        let path = folder.join(name);
        if let Some(below) = path.parent() {
            std::fs::create_dir_all(below).map_err(at(below))?;
        }
        std::fs::write(&path, bytes).map_err(at(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ColorChoice, Format};

    #[test]
    fn a_template_is_asked_for_by_name_or_number() {
        let mut console = Console::new(ColorChoice::Never, Format::Text);
        let mut named = |typed: &str| asked(&mut typed.as_bytes(), &mut console).map(|t| t.name);
        assert_eq!(named("\n"), Some("mlp"));
        assert_eq!(named("vit\n"), Some("vit"));
        assert_eq!(named("rnn\n0\n99\n 7 \n"), Some("diffusion"));
        assert_eq!(named("rnn\n"), None);
    }
}
