//! Data of many kinds, from the files to a trained model: windows over a stream, shards with a shuffle buffer, files larger than
//! memory, values that are not finite.

use crate::support::{Numbers, SMALL_DIMS, apart, measured, options, run, trained};
use meshwright_runs::checkpoint::Which;
use meshwright_train::{
    EvalOptions, PredictOptions, Project, TrainOptions, evaluate, predict, read_checkpoint, train,
};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

pub(crate) fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.bytes());
    out.extend(data);
    out
}

/// A member of a tar file.
fn member(name: &str, data: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(124, &format!("{:011o}\0", data.len()));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.extend(data);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

const TEXT: &str = "
dim batch = 4, seq = 6, vocab = 11, d = 5

model text {
    input token[batch, seq]: i32 in vocab
    input next[batch, seq]: i32 in vocab
    param word[vocab, d] = normal(0, 0.5)
    param head[d, vocab] = normal(0, 0.5)
    let logits = sum[d](tanh(word[vocab = token]) * head)
    loss xent = mean[batch](mean[seq](cross_entropy[vocab](logits, next)))
    metric hits = sum[batch](sum[seq](argmax[vocab](logits) == next))
}

train text {
    minimize xent
    optimizer sgd(lr = 0.5)
}
";

#[test]
fn the_next_token_of_a_stream_is_learned_alike_on_any_mesh_and_evaluated_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // Each token follows from the one before it, so it can be learned. 8 bytes each, in two files.
    let tokens: Vec<u8> = (0..400i64)
        .scan(1, |t, _| Some(std::mem::replace(t, (*t * 2) % 11)))
        .flat_map(i64::to_le_bytes)
        .collect();
    std::fs::write(data.join("t-0.npy"), npy("<i8", "(150,)", &tokens[..1200])).unwrap();
    std::fs::write(data.join("t-1.npy"), npy("<i8", "(250,)", &tokens[1200..])).unwrap();
    let set = |more: &str| {
        format!(
            "token = {{ file = 't-*.npy', window = 'seq' }}\nnext = {{ file = 't-*.npy', window = 'seq', shift = 1 }}\n{more}\n"
        )
    };
    let toml = format!("[train]\n{}[test]\n{}", set("shuffle = 20"), set("limit = 61"));
    std::fs::write(data.join("data.toml"), toml).unwrap();
    let model = dir.path().join("text.mw");
    std::fs::write(&model, TEXT).unwrap();
    let model = model.display().to_string();
    let whole = trained(&options(&model, "", "", &[]), dir.path(), "one", 60);
    assert!(whole.losses[59] < 0.5 * whole.losses[0], "{:?}", whole.losses);
    let split = trained(&options(&model, "r=2,c=2", "batch -> r; seq -> c", &[]), dir.path(), "four", 60);
    assert!(apart(&whole.losses, &split.losses) < 1e-5);
    // 61 examples: batches of 4 leave one over, batches of 61 none.
    let (data, run_of) = (data.display().to_string(), dir.path().join("one").display().to_string());
    let measured = |batch: &str| {
        let said = run(&[
            "eval",
            &model,
            "--checkpoint",
            &run_of,
            "--data",
            &data,
            "--dim",
            batch,
            "--format",
            "json",
        ]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let line = said.out.lines().last().unwrap().to_string();
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["examples"], 61);
        json["eval_hits"].as_f64().unwrap()
    };
    let hits = measured("batch=4");
    assert_eq!([measured("batch=61"), measured("batch=7")], [hits; 2]);
}

/// Shards of images of 12 x 9 with labels, for `vit`: each an array in a member of its own, as several threads decode them, read
/// through a shuffle buffer.
pub(crate) fn image_shards(data: &Path) {
    std::fs::create_dir_all(data).unwrap();
    let mut numbers = Numbers(3);
    for shard in 0..3 {
        let mut bytes = Vec::new();
        for n in 0..29 {
            let label = numbers.below(10);
            let image: Vec<u8> =
                (0..108).map(|p| ((p * 5 + label * 7) % 10 * 20 + numbers.below(50)) as u8).collect();
            bytes.extend(member(&format!("{n:03}.npy"), &npy("|u1", "(12, 9, 1)", &image)));
            bytes.extend(member(&format!("{n:03}.cls"), label.to_string().as_bytes()));
        }
        bytes.extend([0; 1024]);
        std::fs::write(data.join(format!("s-{shard}.tar")), bytes).unwrap();
    }
    let set = "shards = 's-{0..2}.tar'\nimage = { member = 'npy' }\nlabel = { member = 'cls' }\n";
    std::fs::write(data.join("data.toml"), format!("[train]\n{set}shuffle = 40\n")).unwrap();
}

fn mlp_on_shards(dir: &Path) {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let mut numbers = Numbers(5);
    for shard in 0..4 {
        let mut bytes = Vec::new();
        for n in 0..40 {
            let label = numbers.below(10);
            let image: Vec<u8> =
                (0..20).map(|p| ((p * 7 + label * 3) % 10 * 20 + numbers.below(30)) as u8).collect();
            bytes.extend(member(&format!("{n:03}.npy"), &npy("|u1", "(5, 4)", &image)));
            // Two that cannot be read.
            let label = if (shard, n) == (2, 9) { "?".into() } else { label.to_string() };
            if (shard, n) != (1, 3) {
                bytes.extend(member(&format!("{n:03}.cls"), label.as_bytes()));
            }
        }
        bytes.extend([0; 1024]);
        std::fs::write(data.join(format!("s-{shard}.tar")), bytes).unwrap();
    }
    let set = "shards = 's-{0..3}.tar'\nimage = { member = 'npy' }\nlabel = { member = 'cls' }\n";
    std::fs::write(data.join("data.toml"), format!("[train]\n{set}shuffle = 30\ndamaged = 'skip'\n"))
        .unwrap();
}

#[test]
fn a_run_on_shards_with_a_shuffle_buffer_goes_on_where_it_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    mlp_on_shards(dir.path());
    let of = |name: &str, steps: u64, resume: bool| {
        let loaded = Project::load(&options("mlp", "r=2", "batch -> r", SMALL_DIMS));
        let o = TrainOptions {
            data: Some(dir.path().join("data").display().to_string()),
            steps: Some(steps),
            run: Some(dir.path().join(name)),
            resume,
            ..TrainOptions::default()
        };
        let mut notes = Vec::new();
        let told = &mut |p: meshwright_train::Progress| {
            if let meshwright_train::Progress::Started { notes: n, examples, .. } = p {
                assert_eq!(examples, 158);
                notes = n;
            }
        };
        train(&loaded.project.unwrap(), &loaded.sources, &o, &AtomicBool::new(false), told).unwrap();
        notes.join("\n")
    };
    // 13 steps an epoch: cut in the middle of the second one.
    let notes = of("whole", 31, false);
    assert!(notes.contains("2 damaged examples are left out: `") && notes.contains("s-1.tar"), "{notes}");
    let loaded = Project::load(&options("mlp", "", "", SMALL_DIMS));
    let eval = EvalOptions {
        data: Some(dir.path().join("data").display().to_string()),
        split: "train".into(),
        checkpoint: dir.path().join("whole"),
        ..EvalOptions::default()
    };
    let (project, sources) = (loaded.project.unwrap(), loaded.sources);
    let evaluated = evaluate(&project, &sources, &eval, &mut |_, _| {}).unwrap();
    let asked = PredictOptions { eval, values: vec!["xent".into()], ..PredictOptions::default() };
    let predicted = predict(&project, &sources, &asked, &mut |_, _| {}).unwrap();
    for notes in [evaluated.notes, predicted.notes] {
        assert!(notes.join("\n").starts_with("2 damaged examples are left out: `"), "{notes:?}");
    }
    of("cut", 17, false);
    of("cut", 31, true);
    let [whole, cut] = ["whole", "cut"]
        .map(|n| read_checkpoint(&dir.path().join(n), Which::Newest).unwrap().checkpoint.whole().unwrap());
    assert_eq!(whole, cut);
}

const MEAN: &str = "
dim batch = 8, n = 262_144

model mean {
    input x[batch, n]: float
    param b[] = 0
    loss off = mean[batch](square(mean[n](x) - b - 1))
}

train mean {
    minimize off
    optimizer sgd(lr = 0.1)
}
";

#[test]
fn four_gigabytes_are_trained_on_in_less_than_300_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    let header = npy("<f4", "(4096, 262144)", &[]);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&header).unwrap();
    // A hole of 4 GiB, with something at its end.
    file.seek(SeekFrom::Start(header.len() as u64 + (4 << 30) - 4)).unwrap();
    file.write_all(&1f32.to_le_bytes()).unwrap();
    let model = dir.path().join("mean.mw");
    std::fs::write(&model, MEAN).unwrap();
    let (model, data) = (model.display().to_string(), format!("x={}", path.display()));
    let args = ["train", &model, "--data", &data, "--steps", "100", "--no-save"];
    let (used, said) = measured(&mut crate::support::command(&args));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(used.peak_kib > 10_000 && used.peak_kib < 300_000, "{} KiB", used.peak_kib);
}

#[test]
fn values_that_are_not_finite_need_leave() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    let data: Vec<u8> = [1.0f32, 2.0, 3.0, f32::NAN, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(&path, npy("<f4", "(3, 2)", &data)).unwrap();
    let model = dir.path().join("mean.mw");
    std::fs::write(&model, MEAN).unwrap();
    let (model, data) = (model.display().to_string(), format!("x={0},test.x={0}", path.display()));
    let dims = ["--dim", "n=2", "--dim", "batch=1", "--data", &data];
    let train = [&["train", &model, "--steps", "3", "--no-save"], &dims[..]].concat();
    let refused = run(&train);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("record 1 of `x` has the value NaN"), "{}", refused.err);
    // With leave they pass, and it is the loss that is not finite.
    let passed = run(&[&train[..], &["--allow-nonfinite"]].concat());
    assert!(passed.err.contains("E0517") && !passed.err.contains("E0506"), "{}", passed.err);
}
