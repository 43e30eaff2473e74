//! Checkpoints of Hugging Face's `transformers`, in and out: logits, tokens and texts are theirs, and what is exported again has
//! the same tensors. `hugging_face/make.py` made the checkpoints, and what transformers makes of them.

use crate::models::standard_library::{Given, given};
use crate::support::{Said, root, run};
use half::{bf16, f16};
use meshwright_data::corpus::TextTokenizer;
use meshwright_sorted::SortedMap;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What the logits of an encoder and of a Llama depend on.
const ENCODED: &[&str] = &["token", "segment", "real"];
const OF_LLAMA: &[&str] = &["token", "document"];

/// The checkpoints, with the inputs on which their logits depend and the sizes of their examples; the first four have a
/// tokenizer.
pub(crate) const MODELS: [(&str, &[&str], &[&str]); 14] = [
    ("bert", ENCODED, &["seq=7"]),
    ("gpt", &["token", "position", "document"], &["seq=7"]),
    ("llama", OF_LLAMA, &["seq=7"]),
    ("t5", &["token", "real", "decoder"], &["seq=7", "out=5"]),
    ("llama_scaled", OF_LLAMA, &["seq=7"]),
    ("mistral", OF_LLAMA, &["seq=7"]),
    ("qwen2", OF_LLAMA, &["seq=7"]),
    ("qwen3", OF_LLAMA, &["seq=7"]),
    ("gemma", OF_LLAMA, &["seq=7"]),
    ("roberta", ENCODED, &["seq=7"]),
    ("bert_classify", ENCODED, &["seq=7"]),
    ("roberta_classify", ENCODED, &["seq=7"]),
    ("bert_tag", ENCODED, &["seq=7"]),
    ("roberta_tag", ENCODED, &["seq=7"]),
];

/// How many of them have a tokenizer.
const WITH_TOKENIZER: usize = 4;

pub(crate) fn folder() -> PathBuf {
    root().join("tests/runs/models/hugging_face")
}

pub(crate) fn expected() -> SortedMap<String, Given> {
    given(&folder().join("expected.safetensors"))
}

fn tokens() -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("tokens.json")).unwrap()).unwrap()
}

/// Tensors by name, in f32.
pub(crate) type Tensors = SortedMap<String, (Vec<usize>, Vec<f32>)>;

/// All tensors of a checkpoint.
pub(crate) fn tensors(folder: &Path) -> Tensors {
    let mut out = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        for (name, t) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let values = match t.dtype() {
                Dtype::F32 => t.data().as_chunks().0.iter().map(|w| f32::from_le_bytes(*w)).collect(),
                Dtype::F16 => {
                    t.data().as_chunks().0.iter().map(|w| f16::from_le_bytes(*w).to_f32()).collect()
                }
                Dtype::BF16 => {
                    t.data().as_chunks().0.iter().map(|w| bf16::from_le_bytes(*w).to_f32()).collect()
                }
                other => panic!("{name} is {other:?}"),
            };
            out.insert(name, (t.shape().to_vec(), values));
        }
    }
    out
}

/// A copy of a checkpoint with other tensors and other settings.
pub(crate) fn changed(model: &str, to: &Path, tensors: &Tensors, settings: &[(&str, Value)]) -> String {
    std::fs::create_dir_all(to).unwrap();
    let files = ["tokenizer.json", "tokenizer_config.json"];
    for name in files.into_iter().filter(|n| folder().join(model).join(n).is_file()) {
        std::fs::copy(folder().join(model).join(name), to.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(folder().join(model).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    settings.iter().for_each(|(key, value)| config[*key] = value.clone());
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let bytes: SortedMap<&String, Vec<u8>> =
        tensors.iter().map(|(n, t)| (n, t.1.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
    let views =
        tensors.iter().map(|(n, t)| (n, TensorView::new(Dtype::F32, t.0.clone(), &bytes[n]).unwrap()));
    serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
    to.display().to_string()
}

pub(crate) fn succeeded(args: &[&str]) -> Said {
    let said = run(args);
    assert_eq!(said.code, Some(0), "{args:?}: {}{}", said.out, said.err);
    said
}

pub(crate) fn refused(args: &[&str]) -> String {
    let said = run(args);
    assert_eq!(said.code, Some(1), "{args:?}: {}{}", said.out, said.err);
    said.err
}

/// Imports a checkpoint, and gives the run's folder.
pub(crate) fn imported(from: &str, dir: &Path, name: &str) -> String {
    let run = dir.join(name).display().to_string();
    succeeded(&["import", "hf", from, "--out", &run]);
    run
}

pub(crate) fn fixture(model: &str) -> String {
    folder().join(model).display().to_string()
}

/// All numbers in a value, in order.
fn numbers(v: &Value, out: &mut Vec<f64>) {
    match v {
        Value::Array(all) => all.iter().for_each(|v| numbers(v, out)),
        v => out.push(v.as_f64().unwrap()),
    }
}

/// The greatest difference between the logits of a run and those of transformers.
pub(crate) fn off(run: &str, model: &str) -> f64 {
    let (_, inputs, sizes) = MODELS.into_iter().find(|m| m.0 == model).unwrap();
    let file = folder().join("expected.safetensors").display().to_string();
    let data: Vec<String> = inputs.iter().map(|i| format!("{i}={file}:{model}/input/{i}")).collect();
    let data = data.join(",");
    let dims = sizes.iter().flat_map(|s| ["--dim", s]);
    let args = ["predict", run, "--data", &data, "--value", "logits", "--format", "json"];
    let said = succeeded(&args.into_iter().chain(dims).collect::<Vec<_>>());
    let mut got = Vec::new();
    for line in said.out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()) {
        if line.get("example").is_some() {
            numbers(&line["logits"], &mut got);
        }
    }
    let want = &expected()[model]["logits"].1;
    assert_eq!((got.len(), got.iter().all(|x| x.is_finite())), (want.len(), true), "{model}");
    assert!(want.iter().fold(0f64, |m, x| m.max(x.abs())) > 0.9, "{model}: logits that say something");
    got.iter().zip(want).fold(0f64, |m, (a, b)| m.max((a - b).abs()))
}

#[test]
fn logits_are_those_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    for (model, ..) in MODELS {
        let run = imported(&fixture(model), dir.path(), model);
        let off = off(&run, model);
        assert!(off < 1e-4, "{model}: {off:e}");
    }
}

#[test]
fn tokens_and_texts_are_those_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens();
    for (model, ..) in MODELS.into_iter().take(WITH_TOKENIZER) {
        let run = imported(&fixture(model), dir.path(), model);
        let tokenizer = TextTokenizer::open(&Path::new(&run).join("tokenizer.json"), false).unwrap();
        let texts = tokens[model]["texts"].as_array().unwrap();
        assert!(texts.len() > 3);
        for t in texts {
            let got = tokenizer.encode(t["text"].as_str().unwrap()).unwrap();
            assert_eq!(json!(got), t["tokens"], "{model}: {}", t["text"]);
        }
        if let Some(prompt) = tokens[model]["prompt"].as_str() {
            let args = ["generate", &run, "--prompt", prompt, "--max-tokens", "8", "--format", "json"];
            let made: Value = serde_json::from_str(&succeeded(&args).out).unwrap();
            assert_eq!(made["tokens"], tokens[model]["continued"], "{model}");
        }
    }
}

#[test]
fn what_is_exported_is_what_was_imported() {
    let dir = tempfile::tempdir().unwrap();
    for (model, ..) in MODELS {
        let run = imported(&fixture(model), dir.path(), model);
        let to = dir.path().join(format!("{model}-out"));
        let out = to.display().to_string();
        succeeded(&["export", "hf", &run, &out, "--max-shard-size", "5000"]);
        let (was, is) = (tensors(&folder().join(model)), tensors(&to));
        assert_eq!(was.keys().collect::<Vec<_>>(), is.keys().collect::<Vec<_>>(), "{model}");
        for (name, (shape, values)) in &was {
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!((shape, bits(values)), (&is[name].0, bits(&is[name].1)), "{model}: {name}");
        }
        let read = |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        if folder().join(model).join("tokenizer.json").is_file() {
            assert_eq!(read(&folder().join(model), "tokenizer.json"), read(&to, "tokenizer.json"));
        }
        let config = |folder: &Path| -> Value { serde_json::from_str(&read(folder, "config.json")).unwrap() };
        let (was, is) = (config(&folder().join(model)), config(&to));
        let alike = |key: &String| {
            let same = was[key].as_f64().zip(is[key].as_f64()).is_some_and(|(a, b)| a == b);
            was[key] == is[key] || same
        };
        // What was null is told, the types are f32, what only training reads is left to its default, and a window of attention is
        // the length of sequences.
        let window =
            if model == "mistral" { &["sliding_window", "max_position_embeddings"][..] } else { &[] };
        let other: Vec<&String> = is
            .as_object()
            .unwrap()
            .keys()
            .filter(|k| was.get(*k).is_some_and(|v| !v.is_null()) && !alike(k))
            .filter(|k| !window.contains(&k.as_str()))
            .collect();
        assert_eq!(other.iter().filter(|k| **k != "dtype").count(), 0, "{model}: {other:?}: {is}");
        // Again from what was exported, which is in several files.
        assert!(to.join("model.safetensors.index.json").is_file());
        let again = imported(&out, dir.path(), &format!("{model}-again"));
        assert!(
            succeeded(&["ckpt", "diff", &run, &again, "--exit-code"]).out.starts_with("equal"),
            "{model}"
        );
        assert!(refused(&["export", "hf", &run, &out]).contains("is not empty: there is `config.json`"));
    }
}

#[test]
fn training_begins_with_the_loss_of_transformers() {
    let dir = tempfile::tempdir().unwrap();
    let run_folder = imported(&fixture("gpt"), dir.path(), "gpt");
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let file = folder().join("expected.safetensors").display().to_string();
    let inputs = ["token", "target", "document", "position", "predicted", "bytes"];
    let lines: Vec<String> = inputs.iter().map(|i| format!("{i} = \"{file}:gpt/input/{i}\"\n")).collect();
    std::fs::write(data.join("data.toml"), format!("[train]\n{}", lines.concat())).unwrap();
    let (data, to) = (data.display().to_string(), dir.path().join("tuned").display().to_string());
    let sizes = ["batch=3", "seq=7"];
    let dims: Vec<&str> = sizes.iter().flat_map(|d| ["--dim", d]).collect();
    let args = [
        "train",
        "gpt",
        "--init",
        &run_folder,
        "--data",
        &data,
        "--run",
        &to,
        "--steps",
        "1",
        "--set",
        "rate=0",
    ];
    let said = succeeded(&[&args[..], &["--no-eval", "--format", "json"], &dims].concat());
    let step =
        said.out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).find(|l| l["event"] == "step");
    let loss = step.unwrap()["loss"].as_f64().unwrap();
    let want = expected()["gpt"]["loss"].1[0];
    assert!((loss - want).abs() < 1e-4, "{loss} and {want}");
    let said = refused(&["train", "--run", &run_folder, "--resume", "--data", &data]);
    assert!(said.contains("holds weights that were imported") && said.contains("--init"), "{said}");
}

#[test]
fn names_of_older_checkpoints_and_tied_heads_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut old = Tensors::new();
    for (name, t) in tensors(&folder().join("gpt")) {
        old.insert(name.strip_prefix("transformer.").unwrap().into(), t);
    }
    old.insert("h.0.attn.bias".into(), (vec![1, 1, 2, 2], vec![1.0, 0.0, 1.0, 1.0]));
    old.insert("lm_head.weight".into(), old["wte.weight"].clone());
    let run = imported(&changed("gpt", &at("old"), &old, &[]), dir.path(), "gpt");
    assert!(off(&run, "gpt") < 1e-4);
    let mut old = Tensors::new();
    for (name, t) in tensors(&folder().join("bert")) {
        let gamma =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        old.insert(gamma, t);
    }
    old.insert("bert.pooler.dense.bias".into(), (vec![2], vec![0.0; 2]));
    let from = changed("bert", &at("old-bert"), &old, &[]);
    // A list of word pieces in place of a tokenizer.
    let json = Path::new(&from).join("tokenizer.json");
    let tokenizer: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let pieces = tokenizer["model"]["vocab"].as_object().unwrap();
    let list: SortedMap<u64, &String> =
        pieces.iter().map(|(piece, id)| (id.as_u64().unwrap(), piece)).collect();
    let lines: Vec<&str> = list.values().map(|p| p.as_str()).collect();
    std::fs::write(Path::new(&from).join("vocab.txt"), lines.join("\n")).unwrap();
    std::fs::remove_file(json).unwrap();
    let said = succeeded(&["import", "hf", &from, "--out", &at("bert").display().to_string()]);
    assert!(said.err.contains("the model has no `bert.pooler.dense.bias`: left out"), "{}", said.err);
    assert!(off(&at("bert").display().to_string(), "bert") < 1e-4);
    let tokenizer = TextTokenizer::open(&at("bert").join("tokenizer.json"), false).unwrap();
    for t in tokens()["bert"]["texts"].as_array().unwrap() {
        assert_eq!(json!(tokenizer.encode(t["text"].as_str().unwrap()).unwrap()), t["tokens"]);
    }
    // Without a head of its own, which is then that of the embeddings, and not written again.
    let mut tied = tensors(&folder().join("llama"));
    tied.remove("lm_head.weight");
    let error = refused(&["import", "hf", &changed("llama", &at("no-head"), &tied, &[]), "--out", "x"]);
    assert!(error.contains("has no `lm_head.weight`, as the rule"), "{error}");
    let from = changed("llama", &at("tied"), &tied, &[("tie_word_embeddings", true.into())]);
    let run = imported(&from, dir.path(), "llama");
    succeeded(&["export", "hf", &run, &at("out").display().to_string()]);
    assert_eq!(tensors(&at("out")), tied);
    assert_eq!(config(&at("out"))["tie_word_embeddings"], true);
}

pub(crate) fn config(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn checkpoints_that_are_of_no_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let all = tensors(&folder().join("gpt"));
    let run = dir.path().join("run").display().to_string();
    let mut count = 0;
    let mut refuses = |tensors: &Tensors, settings: &[(&str, Value)], code: &str, parts: &[&str]| {
        count += 1;
        let from = changed("gpt", &dir.path().join(count.to_string()), tensors, settings);
        let said = refused(&["import", "hf", &from, "--out", &run]);
        assert!(said.contains(code) && parts.iter().all(|p| said.contains(p)), "{parts:?}: {said}");
        assert!(!said.contains("--init-map") && !said.contains("is drawn"), "no option of `import`: {said}");
        assert!(!Path::new(&run).exists(), "nothing is written");
    };
    refuses(
        &all,
        &[("activation_function", "relu".into())],
        "E0529",
        &["`activation_function` = \"relu\"", "\"gelu_new\""],
    );
    refuses(
        &all,
        &[("model_type", "gpt_neo".into())],
        "E0529",
        &["`model_type` = \"gpt_neo\" (class `GPT2LMHeadModel`), for which no map ships"],
    );
    refuses(&all, &[("n_head", 5.into())], "E0529", &["`n_embd` = 12"]);
    refuses(&all, &[("n_embd", 0.into())], "E0529", &["`n_embd` = 0, which is not a size", "\n1 error;"]);
    refuses(&all, &[("n_layer", 3.into())], "E0513", &["for 2 layers", "--dim layers=2"]);
    refuses(
        &all,
        &[("vocab_size", 301.into())],
        "E0513",
        &["`transformer.wte.weight` is [300, 12]", "[vocab=301 d_model=12]", "`--dim vocab=300`"],
    );
    let mut more = all.clone();
    more.insert("score.weight".into(), (vec![1], vec![0.0]));
    refuses(&more, &[], "E0513", &["has `score.weight`, which the model `gpt` has not"]);
    let mut less = all.clone();
    let gone = less.remove("transformer.ln_f.weight").unwrap();
    less.insert("transformer.ln_g.weight".into(), gone);
    refuses(
        &less,
        &[],
        "E0513",
        &["has no `transformer.ln_f.weight`", "did you mean `transformer.ln_g.weight`?"],
    );
    let mut odd = all.clone();
    odd.get_mut("transformer.wte.weight").unwrap().1[5] = f32::NAN;
    refuses(&odd, &[], "E0513", &["its element 5 is NaN, and a first value is a finite number", "help: "]);

    let empty = dir.path().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let empty = empty.display().to_string();
    assert!(refused(&["import", "hf", &empty]).contains("E0529"));
    std::fs::copy(folder().join("gpt/config.json"), Path::new(&empty).join("config.json")).unwrap();
    assert!(refused(&["import", "hf", &empty]).contains("there are no weights to import"));
    let index = Path::new(&empty).join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "../gpt/model.safetensors"}}"#).unwrap();
    assert!(refused(&["import", "hf", &empty]).contains("which is not one beside it"));
    std::fs::write(&index, "[").unwrap();
    assert!(refused(&["import", "hf", &empty]).contains("it is not an index of tensors"));
    let taken = imported(&fixture("gpt"), dir.path(), "taken");
    assert!(refused(&["import", "hf", &fixture("gpt"), "--out", &taken]).contains("E0510"));
    assert!(refused(&["export", "hf", &empty, "x"]).contains("is not the folder of a run"));
    assert!(refused(&["export", "hf", &taken, "x", "--averages"]).contains("holds no averages"));
    assert!(refused(&["export", "hf", &taken, "x", "--map", "gtp"]).contains("did you mean `gpt`?"));
    assert!(refused(&["export", "hf", &taken, "x", "--map", "bert"]).contains("no rule of the map is for"));
}

/// A folder of Hugging Face is none of a run, and a run without checkpoints has nothing to give: what to do is said.
#[test]
fn weights_that_are_not_there_are_asked_for_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let train = |init: &str| {
        refused(&[
            "train",
            "gpt",
            "--preset",
            "tiny",
            "--data",
            "king_james_next",
            "--no-save",
            "--init",
            init,
        ])
    };
    let said = train(&fixture("gpt"));
    let help = format!("`meshwright import hf {}` makes a run of it", fixture("gpt"));
    assert!(
        said.contains("E0512") && said.contains("of Hugging Face, and no run") && said.contains(&help),
        "{said}"
    );
    let run = imported(&fixture("gpt"), dir.path(), "run");
    for gone in ["checkpoints/*", "checkpoints"] {
        let all = format!("rm -r {run}/{gone}");
        assert!(std::process::Command::new("sh").args(["-c", &all]).status().unwrap().success());
        let help = "name a run that has saved a checkpoint";
        let said = refused(&["ckpt", "list", &run]);
        assert!(said.contains("E0512") && said.contains(help), "{gone}: {said}");
        let said = refused(&["export", "hf", &run, &path("out")]);
        assert!(said.contains("help: name a run that has saved a checkpoint"), "{gone}: {said}");
        assert!(train(&run).contains("help: "), "{gone}");
    }
}
