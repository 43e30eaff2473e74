//! Trainings in `bf16`: beside `f32`, beside each other on several meshes, and resumed in another precision.

use crate::support::{SMALL, SMALL_DIMS, Trained, apart, folder, idx, options, run, trained};
use meshwright_plan::DType;
use meshwright_train::ProjectOptions;
use std::path::Path;

/// A block of a transformer between a lookup and an output, on tokens.
const BLOCK: &str = r"
dim batch = 12, seq = 6, d = 16, heads = 2, dh = 8, ff = 24, words = 20
dim key = seq

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}

layer norm(x) {
    param scale[d] = 1
    param shift[d] = 0
    let c = x - mean[d](x)
    return c * rsqrt(mean[d](c * c) + 1e-5) * scale + shift
}

layer attention(x) {
    let q = dense(x, [d], [heads, dh])
    let k = dense(x, [d], [heads, dh])[seq -> key]
    let v = dense(x, [d], [heads, dh])[seq -> key]
    let weight = softmax[key](sum[dh](q * k) / sqrt(size(dh)))
    return dense(sum[key](weight * v), [heads, dh], [d]) as out
}

layer feed_forward(x) {
    return dense(gelu(dense(x, [d], [ff]) as up), [ff], [d]) as down
}

model block {
    input token[batch, seq]: i32 in words
    input next [batch, seq]: i32 in words
    param word [words, d] = normal(0, 0.3)
    param start[seq, d]   = normal(0, 0.3)
    let x = word[words = token] + start
    let y = x + attention(norm(x) as before)
    let z = y + feed_forward(norm(y) as between)
    let logits = sum[d]((norm(z) as last) * word)
    loss fit = mean[batch, seq](cross_entropy[words](logits, next))
}

train block {
    minimize fit
    optimizer adamw(lr = 3e-3)
    clip global_norm = 1.0
}
";

/// Shown with --nocapture and on failure.
#[allow(clippy::print_stderr, reason = "a figure of a test")]
pub(crate) fn report(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn precise(o: ProjectOptions, precision: DType) -> ProjectOptions {
    ProjectOptions { precision: Some(precision.into()), ..o }
}

/// Sentences in which a word follows from the one before.
pub(crate) fn write_block(dir: &Path) -> String {
    let (n, seq) = (240, 6);
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let word = |i: usize, at: usize| ((i * 7 + at * (3 + i % 2)) % 20) as u8;
    for (name, ahead) in [("token", 0), ("next", 1)] {
        let bytes: Vec<u8> = (0..n * seq).map(|k| word(k / seq, k % seq + ahead)).collect();
        std::fs::write(data.join(name), idx(&[n, seq], &bytes)).unwrap();
    }
    let split = "token = \"token\"\nnext = \"next\"\n";
    std::fs::write(data.join("data.toml"), format!("[train]\n{split}[test]\n{split}")).unwrap();
    let model = dir.join("block.mw");
    std::fs::write(&model, BLOCK).unwrap();
    model.display().to_string()
}

/// Each loss is near that of the other run, of the first loss; they go down together.
pub(crate) fn near(one: &Trained, other: &Trained, within: f64, name: &str) {
    assert_eq!(one.losses.len(), other.losses.len(), "{name}");
    let first = one.losses[0];
    let off = one.losses.iter().zip(&other.losses).map(|(a, b)| (a - b).abs() / first).fold(0.0, f64::max);
    report(&format!("{name}: losses differ by at most {off:.1e} of the first"));
    assert!(off < within, "{name}: losses differ by {off:e} of the first, {first}");
}

pub(crate) fn falls(t: &Trained, name: &str) {
    let (first, last) = (t.losses[0], t.losses[t.losses.len() - 1]);
    assert!(last < 0.95 * first, "{name}: {first} to {last}");
}

/// Parameters and moments are whole numbers of `f32`, whatever the arithmetic was.
pub(crate) fn kept_in_full(t: &Trained) {
    for (path, tensor) in &t.tensors {
        assert_eq!(tensor.dtype, DType::F32, "{path}");
    }
}

#[test]
fn losses_are_near_those_of_f32() {
    let dir = folder(SMALL);
    for (model, dims) in [("mlp", &[("hidden", 64)][..]), ("mnist_mlp", &[("hidden1", 48), ("hidden2", 32)])]
    {
        let o = options(model, "", "", &[SMALL_DIMS, dims].concat());
        let [wide, narrow] = [DType::F32, DType::BF16]
            .map(|p| trained(&precise(o.clone(), p), dir.path(), &format!("{model}-{p}"), 60));
        falls(&narrow, model);
        kept_in_full(&narrow);
        near(&wide, &narrow, 0.02, model);
        assert_ne!(wide.losses, narrow.losses, "{model}: nothing was rounded");
    }
}

#[test]
fn a_transformer_trains_in_bf16() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_block(dir.path());
    let run = |precision: DType, mesh: &str, layout: &str, name: &str| {
        trained(&precise(options(&model, mesh, layout, &[]), precision), dir.path(), name, 80)
    };
    let wide = run(DType::F32, "", "", "f32");
    let narrow = run(DType::BF16, "", "", "bf16");
    falls(&narrow, "block");
    kept_in_full(&narrow);
    near(&wide, &narrow, 0.05, "block");
    for (mesh, layout) in [
        ("data=3", "batch -> data"),
        ("model=2", "heads, ff -> model"),
        ("data=2,model=2", "batch -> data; heads, ff, words -> model"),
        ("data=4", "zero3"),
        ("data=2", "batch -> data; params: * -> data; keep params"),
        ("t=2", "seq -> t; gather key"),
    ] {
        let split = run(DType::BF16, mesh, layout, &mesh.replace(',', "-"));
        near(&narrow, &split, 0.05, &format!("block on {mesh}"));
    }
}

#[test]
fn layouts_agree_within_what_bf16_rounds() {
    let dir = folder(SMALL);
    let o = |mesh: &str, layout: &str| {
        precise(options("mlp", mesh, layout, &[SMALL_DIMS, &[("hidden", 11)]].concat()), DType::BF16)
    };
    let one = trained(&o("", ""), dir.path(), "one", 40);
    for (name, mesh, layout) in [
        ("dp", "all=4", "batch -> all"),
        ("mp", "all=3", "hidden -> all"),
        ("both", "r=2,c=2", "batch -> r; hidden -> c"),
        ("image", "x=3,y=2", "rows -> x; cols -> y"),
        ("zero3", "data=3", "zero3"),
    ] {
        let other = trained(&o(mesh, layout), dir.path(), name, 40);
        near(&one, &other, 0.01, name);
        for path in one.tensors.keys() {
            let off = apart(&one.values(path), &other.values(path));
            assert!(off < 0.02, "{name}: {path} is {off:e} apart");
        }
    }
}

#[test]
fn a_run_goes_on_in_another_precision() {
    let dir = folder(SMALL);
    let at = dir.path().join("run").display().to_string();
    let data = dir.path().join("data").display().to_string();
    let sizes = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=32"];
    let train =
        |more: &[&str]| run(&[&["train", "mlp", "--data", &data, "--run", &at], &sizes[..], more].concat());
    let said = train(&["--steps", "10", "--precision", "bf16"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for (steps, precision) in [("20", "f32"), ("30", "bf16")] {
        let said = train(&["--steps", steps, "--precision", precision, "--resume"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let told = format!("precision: {precision}");
        assert!(said.err.contains(&told) || said.out.contains(&told), "{}{}", said.out, said.err);
    }
}

#[test]
fn a_misspelled_precision_is_told() {
    let said = run(&["train", "mlp", "--precision", "f23"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(["bf16", "f16", "f32"].iter().all(|p| said.err.contains(p)), "{}", said.err);
}
