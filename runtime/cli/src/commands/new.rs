//! `new`: a folder with a model, a layout and a data set to begin with.

use crate::args::NewArgs;
use crate::output::console::Console;
use crate::output::json::object;
use crate::stop::Stop;
use crate::templates::TEMPLATES;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::{Project, ProjectOptions};
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
    let Some(template) = TEMPLATES.iter().find(|t| t.name == args.template) else {
        return Err(Stop::Usage(format!("there is no template `{}`", args.template)));
    };
    let (file, text) = (format!("{name}.mw"), template.model.replace("NAME", &name));
    if let Some(why) = mistake(&file, &text) {
        return Err(Stop::Usage(format!("`{name}` cannot be the name of a model: {why}")));
    }
    let mut files =
        vec![(file, text.into_bytes()), (format!("{name}.layout"), template.layout.as_bytes().to_vec())];
    files.extend(template.files().into_iter().map(|(file, bytes)| (format!("data/{file}"), bytes)));
    match write(&args.name, &files) {
        Ok(()) => {}
        Err((path, e)) => {
            let found = Diagnostic::error(codes::E0524, format!("cannot write `{}`: {e}", path.display()))
                .help("choose a folder that is not there yet");
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
        "\nTrain it, on one device and on a mesh:\n  cd {}\n  meshwright train {name}.mw --data data\n  meshwright train {name}.mw --data data --layout {name}.layout\n",
        args.name.display()
    ))
}

/// What is wrong with the text of a model: a keyword, say, is no name.
fn mistake(file: &str, text: &str) -> Option<String> {
    let texts = [(file.to_string(), text.to_string())].into();
    let found = Project::load(&ProjectOptions { model: file.into(), texts, ..ProjectOptions::default() });
    found.diagnostics.into_iter().find(Diagnostic::is_error).map(|d| d.message)
}

/// Writes the files of a folder, which must not be there yet.
fn write(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), (PathBuf, std::io::Error)> {
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |e| (path, e)
    };
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).map_err(at(parent))?;
    }
    std::fs::create_dir(folder).map_err(at(folder))?;
    let data = folder.join("data");
    std::fs::create_dir(&data).map_err(at(&data))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(at(&path))?;
    }
    Ok(())
}
