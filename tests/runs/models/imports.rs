//! What becomes of a checkpoint of Hugging Face that is trained here: what is tied stays tied, nothing is passed over in silence,
//! and the line that `import hf` prints has all that a training needs.

use crate::models::hugging_face::{
    MODELS, Tensors, changed, config, fixture, folder, imported, off, refused, succeeded, tensors,
};
use crate::support::root;
use meshwright_sorted::SortedSet;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;

/// A run's training for some steps on tokens of no meaning, from `init`, with all sizes taken from there.
fn trained(init: &str, dir: &Path, name: &str, more: &[&str]) -> String {
    let (file, run) = (folder().join("expected.safetensors").display().to_string(), dir.join(name));
    let inputs = ["token", "target", "document", "predicted", "bytes"];
    let data: Vec<String> = inputs.iter().map(|i| format!("{i}={file}:llama_scaled/input/{i}")).collect();
    let run = run.display().to_string();
    let args = [
        "train",
        "llama",
        "--init",
        init,
        "--data",
        &data.join(","),
        "--run",
        &run,
        "--steps",
        "4",
        "--no-eval",
    ];
    let sizes = ["--dim", "batch=3", "--dim", "seq=7", "--set", "warmup=1", "--set", "lr=0.01"];
    succeeded(&[&args[..], &sizes, more].concat());
    run
}

/// What is one parameter there is one here: the gradient of the embedding has the head's part, and what is exported is tied
/// again.
#[test]
fn tied_heads_stay_tied_through_training() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for model in ["llama_scaled", "qwen2"] {
        let run = imported(&fixture(model), dir.path(), model);
        let said = succeeded(&["ckpt", "list", &run]).out;
        assert!(said.contains("embed.w") && !said.contains("head.w"), "{said}");
        let out = at(&format!("{model}-out"));
        let tuned = trained(&run, dir.path(), &format!("{model}-tuned"), &[]);
        succeeded(&["export", "hf", &tuned, &out.display().to_string()]);
        let (was, is) = (tensors(&folder().join(model)), tensors(&out));
        assert_eq!(was.keys().collect::<Vec<_>>(), is.keys().collect::<Vec<_>>());
        assert!(
            !was.contains_key("lm_head.weight")
                && was["model.embed_tokens.weight"] != is["model.embed_tokens.weight"]
        );
        let (is, was) = (config(&out), config(&folder().join(model)));
        for key in ["tie_word_embeddings", "architectures", "model_type", "rope_parameters"] {
            assert_eq!(is[key], was[key], "{model}: {key}");
        }
        // A step of the embedding alone would leave out the rows that no token chose.
        let rows = |t: &Tensors| {
            t["model.embed_tokens.weight"].1.chunks(24).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let changed = rows(&tensors(&out))
            .iter()
            .zip(rows(&tensors(&folder().join(model))))
            .filter(|(a, b)| **a != *b)
            .count();
        assert_eq!(changed, 40, "{model}: each row is one of the head");
    }
    // A head that is stored all the same must be the embedding.
    let mut twice = tensors(&folder().join("llama_scaled"));
    twice.insert("lm_head.weight".into(), twice["model.embed_tokens.weight"].clone());
    let from = changed("llama_scaled", &at("twice"), &twice, &[]);
    let run = imported(&from, dir.path(), "same");
    assert!(off(&run, "llama_scaled") < 1e-4);
    twice.get_mut("lm_head.weight").unwrap().1[5] += 1.0;
    let from = changed("llama_scaled", &at("other"), &twice, &[]);
    let said = refused(&["import", "hf", &from, "--out", &at("refused").display().to_string()]);
    let why = "1 of 960 elements differ, the first is element 5";
    assert!(
        said.contains("E0513") && said.contains(why) && said.contains("\"tie_word_embeddings\": false"),
        "{said}"
    );
    assert!(!at("refused").exists());
    let from = changed("llama_scaled", &at("untied"), &twice, &[("tie_word_embeddings", false.into())]);
    let run = imported(&from, dir.path(), "untied-run");
    assert!(succeeded(&["ckpt", "list", &run]).out.contains("head.w"));
    // Models without a head of their own have it in no configuration.
    let mut other = tensors(&folder().join("gpt"));
    other.insert("lm_head.weight".into(), (vec![300, 12], vec![0.5; 3600]));
    let out = at("gpt-run").display().to_string();
    let said = refused(&["import", "hf", &changed("gpt", &at("gpt"), &other, &[]), "--out", &out]);
    assert!(said.contains("`lm_head.weight` that is not `transformer.wte.weight`"), "{said}");
    // A model of one's own that has two parameters gets both, and it is said.
    let text = std::fs::read_to_string(root().join("models/llama.mw")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("const tied "));
    let own = lines.collect::<Vec<_>>().join("\n").replace("tied == 1", "1 == 0");
    std::fs::write(at("own.mw"), own).unwrap();
    let own = at("own.mw").display().to_string();
    let out = at("own").display().to_string();
    let args = ["import", "hf", &fixture("llama_scaled"), "--model", &own, "--map", "llama", "--out", &out];
    let said = refused(&args);
    assert!(
        said.contains("has `tie_word_embeddings` = true; the model `llama` has no const `tied` for it"),
        "{said}"
    );
}

/// No key of a configuration is passed over in silence.
#[test]
fn keys_that_no_rule_reads_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (model, ..) in MODELS {
        let said = succeeded(&[
            "import",
            "hf",
            &fixture(model),
            "--out",
            &dir.path().join(model).display().to_string(),
        ]);
        assert!(!said.err.contains("knows nothing"), "{model}: {}", said.err);
    }
    let with = |settings: &[(&str, Value)]| {
        changed("gpt", &dir.path().join("changed"), &tensors(&folder().join("gpt")), settings)
    };
    let from = with(&[("alibi", true.into()), ("use_cache", false.into()), ("summary_type", json!(null))]);
    let said = succeeded(&["import", "hf", &from, "--out", &dir.path().join("run").display().to_string()]);
    assert!(
        said.err.contains("`config.json` has `alibi` = true, of which `models/hf/gpt.toml` knows nothing"),
        "{}",
        said.err
    );
    let scaled = json!({ "rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4 });
    let all = tensors(&folder().join("llama"));
    let from = changed("llama", &dir.path().join("yarn"), &all, &[("rope_parameters", scaled)]);
    let said = refused(&["import", "hf", &from, "--out", "x"]);
    assert!(
        said.contains(
            "`rope_parameters.rope_type` = \"yarn\"; the model `llama` has \"default\" or \"llama3\""
        ),
        "{said}"
    );
    let windows = json!(["full_attention", "sliding_attention"]);
    let all = tensors(&folder().join("qwen2"));
    let from = changed("qwen2", &dir.path().join("window"), &all, &[("layer_types", windows)]);
    let said = refused(&["import", "hf", &from, "--out", "x"]);
    assert!(
        said.contains("`layer_types` with \"sliding_attention\"; the model `llama` has \"full_attention\""),
        "{said}"
    );
}

/// A class is named before any tensor is.
#[test]
fn classes_that_no_map_is_for_are_named_first() {
    let dir = tempfile::tempdir().unwrap();
    let all = tensors(&folder().join("bert"));
    let of = |class: &str, settings: &[(&str, Value)]| {
        let settings = [settings, &[("architectures", json!([class]))]].concat();
        changed("bert", &dir.path().join(class), &all, &settings)
    };
    let said = refused(&["import", "hf", &of("BertForQuestionAnswering", &[]), "--out", "x"]);
    assert!(said.contains("is of the class `BertForQuestionAnswering`; of `bert`, maps ship for"), "{said}");
    assert!(said.contains("`BertForSequenceClassification`") && !said.contains("E0513"), "{said}");
    let said = refused(&[
        "import",
        "hf",
        &of("FalconForCausalLM", &[("model_type", "falcon".into())]),
        "--out",
        "x",
    ]);
    assert!(
        said.contains("`model_type` = \"falcon\" (class `FalconForCausalLM`), for which no map ships"),
        "{said}"
    );
    let pretrained = of("BertForPreTraining", &[]);
    imported(&pretrained, dir.path(), "pretrained");
}

/// Names of classes come with the weights and go with them.
#[test]
fn classes_keep_their_names() {
    let dir = tempfile::tempdir().unwrap();
    for model in ["bert_classify", "roberta_tag"] {
        let run = imported(&fixture(model), dir.path(), model);
        let to = dir.path().join(format!("{model}-out"));
        succeeded(&["export", "hf", &run, &to.display().to_string()]);
        let names = json!({ "0": "history", "1": "poetry", "2": "prophets", "3": "letters" });
        assert_eq!(
            (&config(&to)["id2label"], &config(&to)["label2id"]["letters"]),
            (&names, &json!(3)),
            "{model}"
        );
    }
    let all = tensors(&folder().join("bert_classify"));
    let from =
        changed("bert_classify", &dir.path().join("one"), &all, &[("id2label", json!({ "0": "much" }))]);
    let said = refused(&["import", "hf", &from, "--out", "x"]);
    assert!(said.contains("has one class, which is a regression"), "{said}");
    let odd = json!({ "1": "a", "2": "b" });
    let from = changed("bert_classify", &dir.path().join("odd"), &all, &[("id2label", odd)]);
    assert!(
        refused(&["import", "hf", &from, "--out", "x"]).contains("does not name the classes 0, 1, and so on")
    );
}

/// A window of attention is none as long as sequences are shorter.
#[test]
fn windows_of_attention_limit_the_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    let said = succeeded(&["import", "hf", &fixture("mistral"), "--out", &run]);
    assert!(
        said.err.contains("`sliding_window` = 16, and none here: both are the same up to `seq` = 16"),
        "{}",
        said.err
    );
    assert!(said.out.contains("--dim seq=16"), "{}", said.out);
    let to = dir.path().join("out");
    succeeded(&["export", "hf", &run, &to.display().to_string()]);
    assert_eq!(
        (&config(&to)["architectures"][0], &config(&to)["sliding_window"]),
        (&json!("MistralForCausalLM"), &json!(null))
    );
}

/// What was imported is trained with the line that import prints: it has all that the run does not say.
#[test]
fn the_line_that_import_prints_trains() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let run = at("gpt");
    let said = succeeded(&["import", "hf", &fixture("gpt"), "--out", &run]);
    let line = said.out.lines().find_map(|l| l.strip_prefix("train it: meshwright ")).unwrap();
    assert_eq!(line, format!("train gpt --init {run} --data DATA --dim batch=8 --dim seq=24"));
    let tokens = said.out.lines().find_map(|l| l.strip_prefix("DATA, of a text: meshwright ")).unwrap();
    let text = "In the beginning God created the heaven and the earth.\n\n".repeat(60);
    std::fs::write(at("text.txt"), text).unwrap();
    let (data, text) = (at("data"), at("text.txt"));
    let named = |line: &str| -> Vec<String> {
        let word = |w: &str| match w {
            "DATA" => data.clone(),
            "TEXT" => text.clone(),
            w => w.into(),
        };
        line.split(' ').map(word).collect()
    };
    let tokens = named(tokens);
    succeeded(&tokens.iter().map(String::as_str).collect::<Vec<_>>());
    let (line, tuned) = (named(line), at("tuned"));
    let line: Vec<&str> =
        line.iter().map(String::as_str).chain(["--run", &tuned, "--steps", "2", "--no-eval"]).collect();
    let said = succeeded(&line);
    let note = format!(
        "as `{run}` has it: --dim d_ff=48 --dim d_head=4 --dim heads=3 --dim layers=2 --dim places=24"
    );
    assert!(said.err.contains(&note), "{}", said.err);
    // What is given counts.
    let said = refused(&[&line[..line.len() - 5], &["--dim", "layers=3", "--no-save"]].concat());
    assert!(said.contains("E0513") && said.contains("layers"), "{said}");
    // A sequence that is longer than its places is not mended by more places, which are another model.
    let long: Vec<&str> = line.iter().map(|w| if *w == "seq=24" { "seq=32" } else { w }).collect();
    let said = refused(&[&long[..long.len() - 5], &["--no-save", "--steps", "1"]].concat());
    assert!(
        said.contains("E0506") && said.contains("`--dim seq=24`") && !said.contains("larger `dim places`"),
        "{said}"
    );
}

/// Where no data is named, the corpus that ships is made into tokens by the tokenizer that came with the weights.
#[test]
fn the_corpus_that_ships_is_read_with_the_models_own_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let run = imported(&fixture("gpt"), dir.path(), "gpt");
    let eval = |run: &str| -> Value {
        let said = succeeded(&["eval", run, "--dim", "seq=24", "--dim", "batch=500", "--format", "json"]);
        serde_json::from_str(said.out.lines().last().unwrap()).unwrap()
    };
    let first = eval(&run);
    assert!(
        first["eval_loss"].as_f64().unwrap().is_finite() && first["examples"].as_u64().unwrap() > 100,
        "{first}"
    );
    let tuned = dir.path().join("tuned").display().to_string();
    let args = [
        "train", "gpt", "--init", &run, "--run", &tuned, "--dim", "batch=8", "--dim", "seq=24", "--steps",
        "1",
    ];
    succeeded(&[&args[..], &["--no-eval"]].concat());
    assert_eq!(eval(&tuned)["examples"], first["examples"]);
    succeeded(&["train", "--run", &tuned, "--resume", "--steps", "2", "--no-eval"]);
}

/// What is refused leaves nothing in the way of what comes next.
#[test]
fn a_refused_import_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, run) = (dir.path().join("from"), dir.path().join("run"));
    let text = changed("gpt", &from, &tensors(&folder().join("gpt")), &[]);
    let tokenizer = std::fs::read_to_string(from.join("tokenizer.json")).unwrap();
    let shown = run.display().to_string();
    let odd = tokenizer.replace(
        "\"normalizer\": null",
        "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"\"}",
    );
    for broken in ["{", odd.as_str()] {
        std::fs::write(from.join("tokenizer.json"), broken).unwrap();
        let said = refused(&["import", "hf", &text, "--out", &shown]);
        assert!(said.contains("E0502") && said.contains("tokenizer.json") && !run.exists(), "{said}");
    }
    std::fs::write(from.join("tokenizer.json"), &tokenizer).unwrap();
    std::fs::write(from.join("generation_config.json"), [0xff]).unwrap();
    let said = refused(&["import", "hf", &text, "--out", &shown]);
    assert!(said.contains("generation_config.json") && !run.exists(), "{said}");
    std::fs::remove_file(from.join("generation_config.json")).unwrap();
    // What was there stays.
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("notes.txt"), "mine").unwrap();
    std::fs::write(run.join("history.jsonl"), "").unwrap();
    let folder_in_the_way = run.join("rules.layout");
    std::fs::create_dir_all(&folder_in_the_way).unwrap();
    refused(&["import", "hf", &text, "--out", &shown]);
    let names = std::fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let names: SortedSet<String> = names.collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["history.jsonl", "notes.txt", "rules.layout"]);
    std::fs::remove_dir(folder_in_the_way).unwrap();
    succeeded(&["import", "hf", &text, "--out", &shown]);
}

/// What a stranger's tokenizer says is looked at before a library builds it, and what the library cannot do is a diagnostic.
#[test]
fn tokenizers_of_strangers_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("text.txt"), "see the sea e\n\nthe tree é\n").unwrap();
    let good: Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join("gpt/tokenizer.json")).unwrap()).unwrap();
    let with = |part: &str, value: Value| {
        let mut odd = good.clone();
        odd[part] = value;
        odd
    };
    let map = |text: &str| with("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": text }));
    let replace =
        |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut coupled = good.clone();
    coupled["model"] = json!({ "type": "BPE", "continuing_subword_prefix": "é", "vocab": { "a": 0, "e": 1 }, "merges": ["a e"] });
    let odd = [
        map(""),
        map("////////////"),
        with("normalizer", replace("", "z")),
        coupled,
        with("normalizer", json!({ "type": "Sequence", "normalizers": vec![replace("e", "ee"); 40] })),
        with("normalizer", json!({ "type": "Prepend", "prepend": "x".repeat(10_000_000) })),
        with("pre_tokenizer", json!({ "type": "FixedLength", "length": 0 })),
    ];
    let (text, file, out) = (at("text.txt"), at("tokenizer.json"), at("out"));
    let run = imported(&fixture("gpt"), dir.path(), "run");
    for (i, odd) in odd.iter().enumerate() {
        std::fs::write(&file, odd.to_string()).unwrap();
        for args in [
            &["data", "tokenize", &text, "--tokenizer", &file, "--out", &out][..],
            &["generate", &run, "--prompt", "the", "--tokenizer", &file],
        ] {
            let said = refused(args);
            assert!(said.contains("error[E0502]") && said.contains("tokenizer.json"), "{i}: {said}");
            assert!(!said.contains("internal error") && !said.contains("panicked"), "{i}: {said}");
        }
    }
    // Numbers without a token are no matter, and nothing is printed of them.
    let mut holes = good.clone();
    let vocab = holes["model"]["vocab"].as_object_mut().unwrap();
    let last = vocab.values().map(|v| v.as_u64().unwrap()).max().unwrap();
    vocab.insert("zzz".into(), (last + 5).into());
    std::fs::write(&file, holes.to_string()).unwrap();
    let said = succeeded(&["data", "tokenize", &text, "--tokenizer", &file, "--out", &out]);
    assert!(!format!("{}{}", said.out, said.err).contains("holes"), "{}{}", said.out, said.err);
}

/// Hugging Face's cache has every file of a checkpoint as a link to where its content lies; below a run's folder no link is
/// followed.
#[test]
fn a_snapshot_of_links_is_a_checkpoint_and_a_run_of_links_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots/main"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    let split = dir.path().join("split").display().to_string();
    let run = imported(&fixture("gpt"), dir.path(), "whole");
    succeeded(&["export", "hf", &run, &split, "--max-shard-size", "4096"]);
    for (n, entry) in std::fs::read_dir(&split).unwrap().enumerate() {
        let (name, blob) = (entry.unwrap().file_name(), format!("{n:064x}"));
        std::fs::rename(Path::new(&split).join(&name), blobs.join(&blob)).unwrap();
        symlink(Path::new("../../blobs").join(&blob), snapshot.join(name)).unwrap();
    }
    assert!(snapshot.join("model.safetensors.index.json").is_symlink());
    let run = imported(&snapshot.display().to_string(), dir.path(), "run");
    let run = Path::new(&run);
    assert!(off(&run.display().to_string(), "gpt") < 1e-4);
    let text = |name: &str| std::fs::read_to_string(run.join(name)).unwrap();
    assert_eq!(text("tokenizer.json"), std::fs::read_to_string(snapshot.join("tokenizer.json")).unwrap());

    let out = dir.path().join("out").display().to_string();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let (file, aside) = (run.join(name), dir.path().join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        symlink(&aside, &file).unwrap();
        let said = refused(&["export", "hf", &run.display().to_string(), &out]);
        assert!(said.contains("it is a symbolic link, not a regular file"), "{name}: {said}");
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
    }
}
