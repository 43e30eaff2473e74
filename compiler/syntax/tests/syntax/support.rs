//! What the tests share.

use meshwright_diag::{Sources, render};

pub(crate) const MODELS: [(&str, &str); 4] = [
    ("mlp.mw", include_str!("../../../../models/mlp.mw")),
    ("mnist_mlp.mw", include_str!("../../../../models/mnist_mlp.mw")),
    ("mnist_conv.mw", include_str!("../../../../models/mnist_conv.mw")),
    ("bert.mw", include_str!("../../../../models/bert.mw")),
];

/// The layouts of layouts.md, by the name in their first line.
pub(crate) fn layouts() -> Vec<(String, String)> {
    let page = include_str!("programs/layouts.md");
    let blocks = page.split("```layout\n").skip(1).map(|b| b.split("```").next().unwrap());
    blocks.map(|b| (b[3..b.find(':').unwrap()].to_string(), b.to_string())).collect()
}

pub(crate) fn model(text: &str) -> (Option<meshwright_syntax::ast::ModelFile>, String) {
    let (tree, diagnostics) = meshwright_syntax::parse_model(meshwright_diag::FileId(0), text);
    let mut sources = Sources::new();
    sources.add("m", text);
    (tree, render::concise_all(&diagnostics, &sources))
}

pub(crate) fn layout(text: &str) -> (Option<meshwright_syntax::ast::LayoutFile>, String) {
    let (tree, diagnostics) = meshwright_syntax::parse_layout(meshwright_diag::FileId(0), text);
    let mut sources = Sources::new();
    sources.add("l", text);
    (tree, render::concise_all(&diagnostics, &sources))
}
