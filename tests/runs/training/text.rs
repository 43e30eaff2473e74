//! From text to a trained model: `data tokenize`, its shards as examples, and trainings on them that no mesh and no interruption
//! changes.

use crate::support::{Trained, command, options, root, run, said, tensors, trained};
use meshwright_diag::Sources;
use meshwright_plan::Arithmetic;
use meshwright_runs::metrics::Event;
use meshwright_train::{Progress, Project, ProjectOptions, TrainOptions, train};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Predicts the next token from the one before it and from the mean of those of its document until then.
const NEXT: &str = "
dim batch = 6, seq = 16, vocab = 320, d = 12, past = seq, places = seq, documents = seq

model next_token {
    input token    [batch, seq]: i32 in vocab
    input target   [batch, seq]: i32 in vocab
    input document [batch, seq]: i32 in documents
    input position [batch, seq]: i32 in places
    input predicted[batch, seq]: float
    input bytes    [batch, seq]: float
    param word [vocab, d] = normal(0, 0.3)
    param place[places, d] = normal(0, 0.3)
    param head [d, vocab] = normal(0, 0.3)
    let x      = word[vocab = token] + place[places = position]
    let same   = document == document[seq -> past]
    let seen   = where(same, cast(position >= position[seq -> past], float), 0)
    let mean_x = sum[past](seen * x[seq -> past]) / sum[past](seen)
    let logits = sum[d](tanh(x + mean_x) * head)
    let each   = cross_entropy[vocab](logits, target) * predicted
    loss   xent          = sum[batch, seq](each) / sum[batch, seq](predicted)
    metric perplexity    = exp(sum[batch, seq](each) / sum[batch, seq](predicted))
    metric bits_per_byte = sum[batch, seq](each) / log(2) / sum[batch, seq](bytes)
}

train next_token {
    minimize xent
    optimizer adamw(lr = 0.02)
}
";

/// Predicts hidden tokens from those before and after them.
const HIDDEN: &str = "
dim batch = 6, seq = 24, vocab = 200, segments = 2, d = 12, other = seq

model hidden_token {
    input token  [batch, seq]: i32 in vocab
    input segment[batch, seq]: i32 in segments
    input real   [batch, seq]: bool
    input target [batch, seq]: i32 in vocab
    input masked [batch, seq]: float
    param word [vocab, d]    = normal(0, 0.3)
    param kind [segments, d] = normal(0, 0.3)
    param place[seq, other]  = normal(0, 0.3)
    param bias [vocab]       = 0
    let x      = word[vocab = token] + kind[segments = segment]
    let seen   = where(real[seq -> other], x[seq -> other], 0)
    let h      = tanh(x + sum[other](place * seen))
    let logits = sum[d](h * word) + bias
    let each   = cross_entropy[vocab](logits, target) * masked
    loss   mlm      = sum[batch, seq](each) / sum[batch, seq](masked)
    metric accuracy = sum[batch, seq]((argmax[vocab](logits) == target) * masked) / sum[batch, seq](masked)
}

train hidden_token {
    minimize mlm
    optimizer adamw(lr = 0.02)
}
";

/// Predicts hidden spans from what is hidden already and from the mean of the rest.
const SPANS: &str = "
dim batch = 6, seq = 24, out = 8, vocab = 320, d = 12

model hidden_spans {
    input token    [batch, seq]: i32 in vocab
    input real     [batch, seq]: bool
    input decoder  [batch, out]: i32 in vocab
    input target   [batch, out]: i32 in vocab
    input predicted[batch, out]: float
    param word [vocab, d] = normal(0, 0.3)
    param place[out, d]   = normal(0, 0.3)
    param head [d, vocab] = normal(0, 0.3)
    let seen   = where(real, word[vocab = token], 0)
    let mean_x = sum[seq](seen) / sum[seq](where(real, 1, 0))
    let logits = sum[d](tanh(word[vocab = decoder] + place + mean_x) * head)
    let each   = cross_entropy[vocab](logits, target) * predicted
    loss xent  = sum[batch, out](each) / sum[batch, out](predicted)
}

train hidden_spans {
    minimize xent
    optimizer adamw(lr = 0.02)
}
";

/// Some chapters of the text that ships, tokenized into `data` below a folder.
pub(crate) fn tokenized(folder: &Path, more: &[&str]) {
    let text = folder.join("text.txt");
    let shipped = std::fs::File::open(root().join("models/data/king_james/test.txt.gz")).unwrap();
    let all = std::io::read_to_string(flate2::read::GzDecoder::new(shipped)).unwrap();
    let some: Vec<&str> = all.split("\n\n").take(12).collect();
    std::fs::write(&text, some.join("\n\n")).unwrap();
    let (text, out) = (text.display().to_string(), folder.join("data").display().to_string());
    let args = [&["data", "tokenize", &text, "--out", &out, "--test", "0.2"], more].concat();
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("data.toml makes examples for the task"), "{}", said.out);
    let again = run(&[&args[..], &["--format", "json"]].concat());
    let json: serde_json::Value =
        serde_json::from_str(&again.out).unwrap_or_else(|e| panic!("{e}: {}", again.out));
    assert_eq!(json["was_there"], true);
    assert!(
        json["sets"].as_array().is_some_and(|s| s.len() == 2 && s[1]["tokens"].as_u64() > Some(1000)),
        "{json}"
    );
}

/// The tokens of a text that ships: the second run reads what the first has kept, and learns the same.
#[test]
fn a_second_run_reads_the_tokens_that_the_first_has_kept() {
    let cache = tempfile::tempdir().unwrap();
    let losses = |cache: &Path| {
        let args = "train gpt --preset tiny --data king_james_next --steps 2 --no-eval --no-save --dim batch=2 --dim seq=16 --dim layers=1";
        let mut training = command(&args.split_whitespace().collect::<Vec<_>>());
        let said = said(training.args(["--format", "json"]).env("MESHWRIGHT_CACHE", cache).output().unwrap());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let lines = said.out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        lines.filter_map(|l| l["loss"].as_f64()).collect::<Vec<f64>>()
    };
    let files = || -> Vec<_> {
        let all = std::fs::read_dir(cache.path().join("tokens")).unwrap().map(|f| f.unwrap());
        all.map(|f| (f.path(), f.metadata().unwrap().modified().unwrap())).collect()
    };
    let first = losses(cache.path());
    assert_eq!(first.len(), 2);
    let kept = files();
    assert_eq!(kept.len(), 1);
    assert_eq!(losses(cache.path()), first);
    assert_eq!(files(), kept);
    assert_eq!(losses(Path::new("")), first);
}

fn f64_options(model: &Path, mesh: &str, layout: &str) -> ProjectOptions {
    ProjectOptions {
        precision: Some(Arithmetic::F64),
        ..options(&model.display().to_string(), mesh, layout, &[])
    }
}

/// Trains on one device, and with the same losses on meshes of 3, 4 and 6; `sequence` splits the sequence over `s`.
fn same_on_all_meshes(model: &Path, dir: &Path, steps: u64, sequence: &str) -> Trained {
    let one = trained(&f64_options(model, "", ""), dir, "one", steps);
    for (name, mesh, layout) in [
        ("batch", "data=4", "batch -> data"),
        ("both", "data=2,s=3", &format!("batch -> data; {sequence}")),
        ("vocab", "m=3", "vocab -> m"),
    ] {
        let other = trained(&f64_options(model, mesh, layout), dir, name, steps);
        for (step, (a, b)) in one.losses.iter().zip(&other.losses).enumerate() {
            assert!((a - b).abs() <= 1e-11 * a.abs(), "{name}: step {}: {a} and {b}", step + 1);
        }
    }
    one
}

#[test]
fn next_tokens_are_learned_alike_on_any_mesh() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let model = dir.path().join("next.mw");
    std::fs::write(&model, NEXT).unwrap();
    let one = same_on_all_meshes(&model, dir.path(), 120, "seq -> s; gather past");
    // A vocabulary of 320 has an entropy of at most 5.77.
    let last = one.losses[110..].iter().sum::<f64>() / 10.0;
    assert!(one.losses[0] > 5.5 && last < 4.3, "{} to {last}", one.losses[0]);
    // Over the whole set, whatever the batch is, perplexity is that of the mean loss and bits are per byte.
    let measured = |batch: &str| {
        let (run_of, data) =
            (dir.path().join("one").display().to_string(), dir.path().join("data").display().to_string());
        let said = run(&["eval", &run_of, "--data", &data, "--dim", batch, "--format", "json"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let json: serde_json::Value = serde_json::from_str(said.out.lines().last().unwrap()).unwrap();
        ["eval_loss", "eval_perplexity", "eval_bits_per_byte"]
            .map(|k| json[k].as_f64().unwrap_or_else(|| panic!("{json}")))
    };
    let [loss, perplexity, bits] = measured("batch=6");
    assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity, "{loss} {perplexity}");
    assert!((1.5..4.5).contains(&bits), "{bits} bits a byte");
    let other = measured("batch=5");
    assert!((other[1] - perplexity).abs() < 1e-9 * perplexity && (other[2] - bits).abs() < 1e-9, "{other:?}");
}

#[test]
fn hidden_tokens_are_others_each_epoch_and_the_same_on_any_mesh_and_after_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "wordpiece", "--vocab", "200"]);
    let model = dir.path().join("hidden.mw");
    std::fs::write(&model, HIDDEN).unwrap();
    // Sentence pairs, too: their second texts come from anywhere.
    let toml = dir.path().join("data/data.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    for settings in
        ["task = \"masked\"", "task = \"masked\", whole_words = true", "task = \"masked\", pairs = true"]
    {
        std::fs::write(&toml, text.replace("task = \"masked\"", settings)).unwrap();
        let at = dir.path().join(settings.len().to_string());
        std::fs::create_dir(&at).unwrap();
        std::os::unix::fs::symlink(dir.path().join("data"), at.join("data")).unwrap();
        goes_on_in_the_second_epoch(&model, &at);
        let one = same_on_all_meshes(&model, &at, 100, "seq -> s; gather other");
        let last = one.losses[80..].iter().sum::<f64>() / 20.0;
        assert!(last < 0.97 * one.losses[0], "{settings}: {} to {last}", one.losses[0]);
    }
}

#[test]
fn hidden_spans_are_learned_alike_on_any_mesh_and_after_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320", "--sentinels", "4"]);
    let model = dir.path().join("spans.mw");
    std::fs::write(&model, SPANS).unwrap();
    goes_on_in_the_second_epoch(&model, dir.path());
    let one = same_on_all_meshes(&model, dir.path(), 100, "seq -> s; out -> s");
    let last = one.losses[80..].iter().sum::<f64>() / 20.0;
    assert!(last < 0.8 * one.losses[0], "{} to {last}", one.losses[0]);
}

/// The loss of each step of a training, and the steps of an epoch.
fn losses(project: &Project, sources: &Sources, o: &TrainOptions) -> (Vec<f64>, u64) {
    let (mut losses, mut per_epoch) = (Vec::new(), 0);
    let result = train(project, sources, o, &AtomicBool::new(false), &mut |p| match p {
        Progress::Started { steps_per_epoch, .. } => per_epoch = steps_per_epoch,
        Progress::Event { event: Event::Step(s), .. } => losses.push(s.loss),
        _ => {}
    });
    assert!(result.is_ok(), "{o:?}");
    (losses, per_epoch)
}

/// A run that pauses in its second epoch does as one that does not.
fn goes_on_in_the_second_epoch(model: &Path, at: &Path) {
    let loaded = Project::load(&f64_options(model, "data=2", "batch -> data"));
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let of = |name: &str, steps: u64, resume: bool| {
        let o = TrainOptions {
            data: Some(at.join("data").display().to_string()),
            steps: Some(steps),
            seed: Some(4),
            run: Some(at.join(name)),
            resume,
            ..TrainOptions::default()
        };
        losses(&project, &loaded.sources, &o)
    };
    let (_, per_epoch) = of("short", 1, false);
    let steps = per_epoch * 2;
    let (whole, _) = of("whole", steps, false);
    let (first, _) = of("paused", per_epoch + 2, false);
    let (rest, _) = of("paused", steps, true);
    assert_eq!([first, rest].concat(), whole);
    assert_eq!(tensors(&at.join("paused")), tensors(&at.join("whole")));
}

#[test]
fn the_text_that_ships_is_found_by_models_of_each_task() {
    let dir = tempfile::tempdir().unwrap();
    let of_4096 = |text: &str, vocab: &str| text.replace(vocab, "vocab = 4096");
    for (task, text, examples) in [
        ("next", of_4096(NEXT, "vocab = 320"), 986_387 / 16),
        ("masked", of_4096(HIDDEN, "vocab = 200"), 935_457 / 22),
        ("spans", of_4096(SPANS, "vocab = 320"), 986_388 / 26),
    ] {
        let model = dir.path().join(format!("{task}.mw"));
        std::fs::write(&model, text).unwrap();
        let said = run(&["train", &model.display().to_string(), "--steps", "2", "--no-save"]);
        assert_eq!(said.code, Some(0), "{task}: {}", said.err);
        let shown: String = said.out.chars().filter(|c| *c != ',').collect();
        assert!(shown.contains(&format!(" {examples} examples")), "{task}: {}", said.out);
    }
}

#[test]
fn tokens_that_do_not_go_with_the_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320", "--task", "next"]);
    let model = dir.path().join("next.mw");
    std::fs::write(&model, NEXT).unwrap();
    let (model, data) = (model.display().to_string(), dir.path().join("data").display().to_string());
    let said = run(&["train", &model, "--data", &data, "--dim", "vocab=300", "--no-save"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error[E0506]") && said.err.contains("`--dim vocab=320`"), "{}", said.err);
    let said = run(&["train", &model, "--data", &data, "--dim", "seq=30000", "--no-save"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("error[E0504]") && said.err.contains("too few for one example"),
        "{}",
        said.err
    );
    let masked = std::fs::read_to_string(dir.path().join("data/data.toml")).unwrap();
    std::fs::write(dir.path().join("data/data.toml"), masked.replace("\"next\"", "\"masked\"")).unwrap();
    let said = run(&["train", &model, "--data", &data, "--no-save"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error[E0508]") && said.err.contains("no field `bytes`"), "{}", said.err);
    // Usage: a tokenizer is named or trained, not both.
    let out = dir.path().join("other").display().to_string();
    for more in [&["--train", "bpe"][..], &["--tokenizer", "t.json", "--train", "bpe", "--vocab", "300"], &[]]
    {
        let said = run(&[&["data", "tokenize", "x.txt", "--out", &out], more].concat());
        assert_eq!(said.code, Some(2), "{more:?}: {}", said.err);
    }
    let said = run(&[
        "data", "tokenize", "none.txt", "--out", &out, "--train", "bpe", "--vocab", "300", "--format", "json",
    ]);
    assert!(said.code == Some(1) && said.err.contains("\"E0502\""), "{}", said.err);
}

#[test]
fn each_epoch_hides_other_tokens_of_the_same_text() {
    for (text, more, same) in [
        (NEXT, &["--train", "bpe", "--vocab", "320"][..], true),
        (HIDDEN, &["--train", "wordpiece", "--vocab", "200"], false),
        (SPANS, &["--train", "bpe", "--vocab", "320", "--sentinels", "4"], false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        tokenized(dir.path(), more);
        let toml = dir.path().join("data/data.toml");
        let sets = std::fs::read_to_string(&toml).unwrap();
        std::fs::write(&toml, sets.replace("[train]", "[train]\nshuffle = false")).unwrap();
        let model = dir.path().join("still.mw");
        // Nothing is learned, so what differs is the examples.
        std::fs::write(&model, text.replace("lr = 0.02", "lr = 0")).unwrap();
        let loaded = Project::load(&f64_options(&model, "", ""));
        let o = TrainOptions {
            data: Some(dir.path().join("data").display().to_string()),
            epochs: Some(2),
            ..TrainOptions::default()
        };
        let (losses, per_epoch) = losses(&loaded.project.unwrap(), &loaded.sources, &o);
        assert_eq!(losses[0] == losses[per_epoch as usize], same, "{more:?}: {losses:?}");
    }
}
