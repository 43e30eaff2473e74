//! Models that ship against those of the same papers in Hugging Face's `transformers`, and in plain PyTorch, with the same
//! weights: the loss and every gradient, in f64 and f32, on one device and two. `published/make.py` made what they give.

use crate::models::standard_library::{given, norm, step};
use crate::support::{options, root};
use meshwright_plan::DType;
use meshwright_train::ProjectOptions;

/// Sizes of all models of text.
const TEXT: [(&str, usize); 6] =
    [("batch", 3), ("seq", 7), ("vocab", 13), ("layers", 2), ("d_head", 4), ("d_ff", 10)];

/// A model, more sizes of it, and what is no dim of it.
type Sized = (&'static str, &'static [(&'static str, usize)], &'static [&'static str]);

const SIZES: &[Sized] = &[
    ("bert", &[("heads", 3), ("places", 7)], &[]),
    ("gpt", &[("heads", 3), ("places", 7)], &[]),
    ("llama", &[("groups", 3), ("queries", 2)], &[]),
    ("switch", &[("heads", 3), ("experts", 3)], &[]),
    ("t5", &[("heads", 3), ("out", 5), ("d_model", 12)], &[]),
    (
        "vit",
        &[("heads", 3), ("down", 2), ("across", 2), ("ph", 3), ("pw", 3), ("channels", 2), ("classes", 5)],
        &["seq", "vocab"],
    ),
];

/// Models of which theirs compute norms, and the angles of rotary positions, in f32 whatever the dtype of the model is.
const COARSE: &[&str] = &["llama", "t5"];

/// The model with an optimizer that makes a step of 1 along the gradient, at a path.
fn descending(model: &str, at: &std::path::Path) -> String {
    let text = std::fs::read_to_string(root().join(format!("models/{model}.mw"))).unwrap();
    let (text, train) = text.split_once("\ntrain ").unwrap();
    let loss = train.split_whitespace().skip_while(|w| *w != "minimize").nth(1).unwrap();
    let path = at.join(format!("{model}.mw"));
    let train = format!("train {model} {{ minimize {loss} optimizer sgd(lr = 1) }}");
    std::fs::write(&path, format!("{text}\n{train}\n")).unwrap();
    path.display().to_string()
}

#[test]
fn models_give_what_those_of_hugging_face_give_with_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let all = given(&root().join("tests/runs/models/published/models.safetensors"));
    assert!(all.keys().eq(SIZES.iter().map(|s| s.0)));
    let (mut checked, mut wrong) = (0, Vec::new());
    for (model, more, lacks) in SIZES {
        let given = &all[*model];
        let path = descending(model, dir.path());
        let sizes: Vec<_> = TEXT.iter().filter(|(n, _)| !lacks.contains(n)).chain(*more).copied().collect();
        let gradients = given.iter().filter(|(k, _)| k.starts_with("grad/")).flat_map(|(_, g)| &g.1);
        let whole = norm(gradients.copied());
        // What a step of f32 rounds is a part of the parameter.
        let most = if COARSE.contains(model) { 1e-6 } else { 1e-10 };
        let ways = [(DType::F64, most, 1e-13), (DType::F32, 1e-4, 1e-6)];
        for ((float, most, rounding), (mesh, layout)) in
            ways.into_iter().flat_map(|w| [("", ""), ("a=2", "batch -> a")].map(|m| (w, m)))
        {
            let sets: &[(&str, f64)] = match *model {
                "llama" => &[],
                "switch" => &[("rate", 0.0), ("balance", 0.5), ("z", 0.1)],
                _ => &[("rate", 0.0)],
            };
            let o = ProjectOptions {
                precision: Some(float.into()),
                sets: sets.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
                ..options(&path, mesh, layout, &sizes)
            };
            let got = step(&o, given);
            assert_eq!(got.len(), 1 + given.keys().filter(|k| k.starts_with("param/")).count(), "{model}");
            for (what, values) in &got {
                let (want, after, size) = match what.strip_prefix("param/") {
                    None => (&given["loss"].1, values.clone(), 0.0),
                    Some(path) => {
                        let was = &given[what].1;
                        let gradient = was.iter().zip(values).map(|(p, q)| p - q).collect();
                        (&given[&format!("grad/{path}")].1, gradient, norm(was.iter().copied()))
                    }
                };
                assert_eq!(want.len(), after.len(), "{model} {what}");
                let off = norm(want.iter().zip(&after).map(|(w, g)| w - g));
                let fine = most * norm(want.iter().copied()) + rounding * (whole + size);
                if off.is_nan() || off > fine {
                    wrong.push(format!(
                        "{model}, {float}, {mesh:?}: {what} is {off:e} apart, {fine:e} is fine"
                    ));
                }
                checked += 1;
            }
        }
    }
    assert!(wrong.is_empty() && checked > 400, "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}
