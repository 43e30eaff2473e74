//! The standard library: layers that ship in the binary, which a model has by `use "std:nn"`.

use meshwright_diag::{Diagnostic, FileId, codes, nearest};
use meshwright_runs::catalog::{LIBRARY, STANDARD, Shipped};
use meshwright_syntax::ast::{Item, ItemKind, Layer};
use meshwright_syntax::parse_model;

/// The text of `std:NAME`.
///
/// # Errors
/// E0515 where the library has no such file.
pub fn text(name: &str) -> Result<&'static str, Box<Diagnostic>> {
    let names = || LIBRARY.iter().map(|s| s.name);
    if let Some(s) = LIBRARY.iter().find(|s| s.name == name) {
        return Ok(s.text);
    }
    let d = Diagnostic::error(codes::E0515, format!("the standard library has no `{STANDARD}{name}`"));
    let all: Vec<String> = names().map(|n| format!("`{STANDARD}{n}`")).collect();
    Err(Box::new(match nearest(name, names()) {
        Some(near) => d.help(format!("did you mean `{STANDARD}{near}`?")),
        None => d.help(format!("it has {}", all.join(", "))),
    }))
}

/// A layer of the library, as the reference tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPage {
    /// The file, `std:nn`.
    pub file: String,
    /// Its name.
    pub name: String,
    /// How it is called, with the values of what may be left out.
    pub form: String,
    /// What it computes.
    pub doc: String,
    /// Its text.
    pub text: &'static str,
}

/// Every layer of the library, in the order of the files.
pub fn layers() -> Vec<LayerPage> {
    let mut out = Vec::new();
    for s in LIBRARY {
        let file = parse_model(FileId(0), s.text).0.unwrap_or_default();
        out.extend(file.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Layer(layer) => Some(page(s, item, layer)),
            _ => None,
        }));
    }
    out
}

fn page(s: &'static Shipped, item: &Item, layer: &Layer) -> LayerPage {
    let slice =
        |span: meshwright_diag::Span| s.text.get(span.start as usize..span.end as usize).unwrap_or("");
    let params = layer.params.iter().map(|p| match &p.default {
        None => p.name.text.clone(),
        Some(value) => format!("{} = {}", p.name.text, slice(value.span)),
    });
    LayerPage {
        file: format!("{STANDARD}{}", s.name),
        name: layer.name.text.clone(),
        form: format!("{}({})", layer.name.text, params.collect::<Vec<_>>().join(", ")),
        doc: item.doc.lines().map(str::trim).collect::<Vec<_>>().join(" "),
        text: slice(item.span),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Project, ProjectOptions};
    use meshwright_diag::render::full_all;

    /// What is said of a model, and whether every text comes from a file.
    fn check(text: &str) -> (String, bool) {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m.mw").display().to_string();
        std::fs::write(&model, text).unwrap();
        let loaded = Project::load(&ProjectOptions { model: model.clone(), ..ProjectOptions::default() });
        if let Some(p) = &loaded.project {
            p.with_batch(3).unwrap();
        }
        let said = full_all(&loaded.diagnostics, &loaded.sources, false).replace(&model, "m.mw");
        (said, loaded.files.len() == loaded.sources.len())
    }

    const MODEL: &str = "dim batch = 4, n = 3, out = 2\nmodel m {\n    input x[batch, n]: f32\n    let y = dense(x, n, out)\n    loss l = mean[batch, out](y)\n}\n";

    #[test]
    fn every_layer_is_documented() {
        let all = layers();
        assert!(all.len() > 20, "{}", all.len());
        for l in &all {
            assert!(l.doc.len() > 20 && l.doc.ends_with('.'), "{}: {}", l.name, l.doc);
            assert!(l.text.starts_with(&format!("layer {}(", l.name)), "{}", l.text);
        }
        let dense = all.iter().find(|l| l.name == "dense").unwrap();
        assert_eq!((dense.form.as_str(), dense.file.as_str()), ("dense(x, in, out, gain = 1)", "std:nn"));
    }

    #[test]
    fn a_model_uses_it_without_a_file() {
        assert_eq!(check(&format!("use \"std:nn\"\nuse \"std:nn\"\n{MODEL}")), (String::new(), false));
    }

    #[test]
    fn what_it_has_not_is_said_with_what_it_has() {
        let (said, _) =
            check(&format!("use \"std:mn\"\n{}", MODEL.replace("dense(x, n, out)", "sum[n](x)[out -> out]")));
        assert!(said.contains("error[E0515]: the standard library has no `std:mn`\n --> m.mw:1:5"), "{said}");
        assert!(said.contains("did you mean `std:nn`?"), "{said}");
        let (said, _) = check(&format!("use \"std:transformers\"\n{MODEL}"));
        // That its layers are not known follows from it.
        assert!(said.contains("it has `std:nn`") && said.matches("error[").count() == 1, "{said}");
    }

    #[test]
    fn its_places_have_its_name() {
        let (said, _) =
            check(&format!("use \"std:nn\"\n{}", MODEL.replace("dense(x, n, out)", "dense(x, n, n)")));
        assert!(said.contains("--> std:nn:") && said.contains("in this call of `dense`"), "{said}");
        let own = "layer dense(x, in, out) {\n    return sum[in](x)\n}\n";
        let (said, _) = check(&format!("use \"std:nn\"\n{own}{MODEL}"));
        assert!(
            said.contains("error[E0210]: layer `dense` is declared twice") && said.contains("std:nn:"),
            "{said}"
        );
    }
}
