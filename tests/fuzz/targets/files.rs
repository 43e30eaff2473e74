//! Files that are read: data in every format, and what a run has left in its folder.
#![allow(clippy::unwrap_used, reason = "tests")]

use bolero::check;
use meshwright_data::corpus::{
    DocumentRule, TextFiles, TokenizeOptions, TokenizerKind, TokenizerSource, tokenize,
};
use meshwright_data::find;
use meshwright_data::{EpochSeed, InputBinding, Places, load};
use meshwright_diag::Sources;
use meshwright_fuzz::{Edit, edited, time};
use meshwright_plan::{DType, Dim, Dims, InputDecl};
use meshwright_runs::checkpoint::Which;
use meshwright_train::{
    HfExport, HfImport, Project, ProjectOptions, Recorded, TrainOptions, export_hf, import_hf,
    read_checkpoint, train,
};
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const WORDS: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"-1",
    b"99999999999999999999",
    b"18446744073709551615",
    b"'descr': ",
    b"'<f8'",
    b"'>f4'",
    b"'|O'",
    b"'<c8'",
    b"True",
    b"False",
    b"(",
    b")",
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b"\n",
    b"\r\n",
    b"nan",
    b"inf",
    b"1e999",
    b"\"F32\"",
    b"\"I64\"",
    b"\"data_offsets\"",
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"\x93NUMPY",
    b"\x01\x00",
    b"\x03\x00",
    b"\xef\xbb\xbf",
];

/// What the files of Hugging Face and the maps to them are made of.
const HF_WORDS: &[&str] = &[
    "null",
    "0",
    "1000000000",
    "\"../../etc/passwd\"",
    "\"weight_map\"",
    "\"n_layer\"",
    "\"n_embd\"",
    "model_type",
    "layers * d_head",
    "*",
    "#",
    "(weight|gamma)",
    "[part 2 of 3]",
    "[.., 0..64]",
    " transposed",
    " reshaped 3 1",
    " permuted 2 1 0",
    " = ",
    "[dims]",
    "[consts]",
    "[limits]",
];

fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

fn npz(method: zip::CompressionMethod, array: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default().compression_method(method)).unwrap();
    zip.write_all(array).unwrap();
    zip.finish().unwrap().into_inner()
}

/// A valid file of each format, with six floats in rows of two.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let floats: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let array = npy("<f4", "False", "(3, 2)", &floats);
    let header = br#"{"x":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header, &floats].concat();
    let idx = [&[0, 0, 0x0d, 2, 0, 0, 0, 3, 0, 0, 0, 2][..], &floats].concat();
    vec![
        ("x.npy", array.clone()),
        ("f.npy", npy("<f4", "True", "(3, 2)", &floats)),
        ("h.npy", npy("<f2", "False", "(3, 2)", &[0; 12])),
        ("stored.npz", npz(zip::CompressionMethod::Stored, &array)),
        ("packed.npz", npz(zip::CompressionMethod::Deflated, &array)),
        ("x.safetensors", tensors),
        ("x-idx2-float", idx),
        ("x.csv", b"a,x\n1,2\n3,4\n5,6\n".to_vec()),
    ]
}

#[test]
fn data() {
    let dir = tempfile::tempdir().unwrap();
    let seeds = seeds();
    let others: Vec<Vec<u8>> = seeds.iter().map(|s| s.1.clone()).collect();
    let mut dims = Dims::default();
    let (batch, n): (Dim, Dim) = (dims.add("batch", 3), dims.add("n", 2));
    let inputs = [InputDecl { name: "x".into(), dims: vec![batch, n], dtype: DType::F32, range: None }];
    let places = Places::new();
    let binding = InputBinding { inputs: &inputs, dims: &dims, places: &places, allow_nonfinite: false };
    // A table has a column of the input's name.
    let column = [InputDecl { name: "x".into(), dims: vec![batch], dtype: DType::F32, range: None }];
    let read = |path: &Path| {
        let table = path.extension().is_some_and(|e| e == "csv");
        let inputs = if table { &column[..] } else { &inputs[..] };
        let binding = InputBinding { inputs, ..binding };
        let row = 0..2;
        let ranges = if table { &[][..] } else { std::slice::from_ref(&row) };
        let source = find(Some(&format!("x={}", path.display())), &[], inputs).map_err(|e| vec![*e])?;
        let set = load(&source, "train", &binding)?;
        for record in 0..set.records().min(100) {
            set.block(0, (&[record], EpochSeed::default()), ranges).map_err(|e| vec![*e])?;
        }
        Ok::<usize, Vec<meshwright_diag::Diagnostic>>(set.records())
    };
    for (name, bytes) in &seeds {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path).unwrap_or_else(|e| panic!("{name}: {e:?}")), 3);
    }
    let (dir, read) = (AssertUnwindSafe(&dir), AssertUnwindSafe(&read));
    check!().with_type::<(u8, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(seed, edits)| {
            let (name, bytes) = &seeds[usize::from(*seed) % seeds.len()];
            let path = dir.path().join(name);
            std::fs::write(&path, edited(bytes, edits, WORDS, &others)).unwrap();
            let _read_or_refused = read(&path);
        },
    );
}

/// A folder of token shards, and the text that they are of, beside it.
fn token_shards(at: &Path) {
    let path = at.join("text.txt");
    std::fs::write(&path, "the sun runs over the hills.\n\nand the moon sees the sun run\n".repeat(4))
        .unwrap();
    let options = TokenizeOptions {
        text: TextFiles {
            paths: vec![path],
            rule: DocumentRule::BlankLines,
            field: "text".into(),
            second: None,
        },
        tokenizer: TokenizerSource::Train {
            kind: TokenizerKind::WordPiece,
            vocab: 50,
            sentinels: 0,
            cased: false,
        },
        out: at.join("tokens"),
        held_out: (0.0, 0.0),
        shard_tokens: 30,
        task: None,
    };
    tokenize(&options, &mut |_| {}).unwrap();
    let sets = "[train]
tokens = { index = 'index.json', task = 'masked', whole_words = true, pairs = true }
token = { field = 'token' }
[test]
tokens = { text = '../text.txt', tokenizer = 'tokenizer.json', task = 'masked' }
token = { field = 'token' }
";
    std::fs::write(at.join("tokens/data.toml"), sets).unwrap();
}

#[test]
fn tokens() {
    let dir = tempfile::tempdir().unwrap();
    token_shards(dir.path());
    let folder = dir.path().join("tokens");
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let whole: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    let mut dims = Dims::default();
    let (batch, seq): (Dim, Dim) = (dims.add("batch", 2), dims.add("seq", 12));
    let inputs = [InputDecl { name: "token".into(), dims: vec![batch, seq], dtype: DType::I32, range: None }];
    let places = Places::new();
    let binding = InputBinding { inputs: &inputs, dims: &dims, places: &places, allow_nonfinite: false };
    let row = 0..12;
    let read = |split: &str| {
        let source = find(Some(&folder.display().to_string()), &[], binding.inputs).map_err(|e| vec![*e])?;
        let set = load(&source, split, &binding)?;
        for record in 0..set.records().min(100) {
            let one = (&[record][..], EpochSeed::default());
            set.block(0, one, std::slice::from_ref(&row)).map_err(|e| vec![*e])?;
        }
        Ok::<usize, Vec<meshwright_diag::Diagnostic>>(set.records())
    };
    for split in ["train", "test"] {
        assert!(read(split).unwrap_or_else(|e| panic!("{split}: {e:?}")) > 5);
    }
    let read = AssertUnwindSafe(&read);
    check!().with_type::<(u8, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(file, edits)| {
            let k = usize::from(*file) % paths.len();
            std::fs::write(&paths[k], edited(&whole[k], edits, WORDS, &whole)).unwrap();
            for split in ["train", "test"] {
                let _read_or_refused = read(split);
            }
            std::fs::write(&paths[k], &whole[k]).unwrap();
        },
    );
}

const MODEL: &str = "dim batch = 3, n = 2
model m {
    input x[batch, n]: float
    param w[n] = normal(0, 1)
    loss l = mean[batch](sum[n](x * w) ** 2)
}
train m { minimize l optimizer adam(lr = 0.1) }
";

/// A run of three steps in `at`.
fn run(at: &Path) {
    let floats: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    std::fs::write(at.join("x.npy"), npy("<f4", "False", "(3, 2)", &floats)).unwrap();
    std::fs::write(at.join("m.mw"), MODEL).unwrap();
    let model = at.join("m.mw").display().to_string();
    let loaded = Project::load(&ProjectOptions { model, ..ProjectOptions::default() });
    let options = TrainOptions {
        data: Some(format!("x={}", at.join("x.npy").display())),
        run: Some(at.join("run")),
        steps: Some(3),
        ..TrainOptions::default()
    };
    let stop = AtomicBool::new(false);
    train(&loaded.project.unwrap(), &loaded.sources, &options, &stop, &mut |_| {}).unwrap();
}

#[test]
fn folders_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path());
    let folder = dir.path().join("run");
    let mut paths = Vec::new();
    for below in [folder.clone(), folder.join("checkpoints")] {
        paths.extend(std::fs::read_dir(below).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()));
    }
    paths.sort();
    let whole: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    assert!(Recorded::read(&folder).is_ok() && read_checkpoint(&folder, Which::Newest).is_ok());
    check!().with_type::<(u8, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(file, edits)| {
            let k = usize::from(*file) % paths.len();
            std::fs::write(&paths[k], edited(&whole[k], edits, WORDS, &whole)).unwrap();
            if let Ok(recorded) = Recorded::read(&folder)
                && let Ok(options) = recorded.project(&ProjectOptions::default())
            {
                let _loaded = Project::load(&options);
            }
            let _read_or_refused = read_checkpoint(&folder, Which::Newest);
            std::fs::write(&paths[k], &whole[k]).unwrap();
        },
    );
}

/// A checkpoint of Hugging Face in several files in `at/hf`, and the map that it is read by, all of them by their paths.
fn hugging_face(at: &Path) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    let from = root.join("tests/runs/models/hugging_face/gpt");
    let mut sources = Sources::new();
    let import = HfImport { from, run: at.join("run"), ..HfImport::default() };
    import_hf(&import, &mut sources).unwrap();
    let to = at.join("hf");
    let export = HfExport { run: import.run, to: to.clone(), most_bytes: 12_000, ..HfExport::default() };
    assert!(export_hf(&export, &mut sources).unwrap().files.iter().any(|f| f.ends_with(".index.json")));
    let map = at.join("map.toml");
    std::fs::copy(root.join("models/hf/gpt.toml"), &map).unwrap();
    let mut paths: Vec<_> = std::fs::read_dir(to).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.push(map);
    paths
}

#[test]
fn checkpoints_of_hugging_face() {
    let dir = tempfile::tempdir().unwrap();
    let paths = hugging_face(dir.path());
    let whole: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    let words: Vec<&[u8]> = WORDS.iter().copied().chain(HF_WORDS.iter().map(|w| w.as_bytes())).collect();
    let read = || {
        let (from, run) = (dir.path().join("hf"), dir.path().join("again"));
        let map = Some(dir.path().join("map.toml").display().to_string());
        let project = ProjectOptions { model: "gpt".into(), ..ProjectOptions::default() };
        let options = HfImport { from, run: run.clone(), map, project, ..HfImport::default() };
        let read = import_hf(&options, &mut Sources::new()).is_ok();
        if run.exists() {
            std::fs::remove_dir_all(run).unwrap();
        }
        read
    };
    assert!(read());
    let again = AssertUnwindSafe(&read);
    check!().with_type::<(u8, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(file, edits)| {
            let k = usize::from(*file) % paths.len();
            std::fs::write(&paths[k], edited(&whole[k], edits, &words, &whole)).unwrap();
            let _read_or_refused = (*again)();
            std::fs::write(&paths[k], &whole[k]).unwrap();
        },
    );
    assert!(read());
}
