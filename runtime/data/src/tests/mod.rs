//! Files, whole and broken, bound to inputs.
#![allow(clippy::unwrap_used, reason = "tests")]

pub(super) mod label_tests;
pub(super) mod set_tests;
pub(super) mod shard_tests;
pub(super) mod test_case;

use super::*;
use flate2::{Compression, write::GzEncoder};
use meshwright_diag::Diagnostic;
use meshwright_plan::{DType, Dims, InputDecl};
use meshwright_sorted::SortedMap;
use std::io::Write;
use std::path::{Path, PathBuf};

fn mnist() -> PathBuf {
    // This file is built from the workspace; the data lies beside it.
    let mut folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    while !folder.join("models/data/mnist").is_dir() {
        assert!(folder.pop(), "models/data/mnist is not above {}", env!("CARGO_MANIFEST_DIR"));
    }
    folder.join("models/data")
}

/// Inputs by `name: dtype, sizes after the first, range`.
fn model(inputs: &[(&str, DType, &[usize], Option<usize>)]) -> (Vec<InputDecl>, Dims) {
    let mut dims = Dims::default();
    let batch = dims.add("batch", 100);
    let decls = inputs
        .iter()
        .map(|(name, dtype, sizes, range)| {
            let rest: Vec<_> =
                sizes.iter().enumerate().map(|(i, n)| dims.add(format!("{name}{i}"), *n)).collect();
            let range = range.map(|n| dims.add("classes", n));
            InputDecl { name: (*name).into(), dims: [vec![batch], rest].concat(), dtype: *dtype, range }
        })
        .collect();
    (decls, dims)
}

fn digits() -> (Vec<InputDecl>, Dims) {
    model(&[("image", DType::U8, &[28, 28], None), ("label", DType::I32, &[], Some(10))])
}

fn idx(code: u8, sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, code, sizes.len() as u8];
    out.extend(sizes.iter().flat_map(|n| n.to_be_bytes()));
    out.extend(data);
    out
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.bytes());
    out.extend(data);
    out
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    out.write_all(data).unwrap();
    out.finish().unwrap()
}

/// Loads one input from bytes.
fn one(
    bytes: &[u8],
    dtype: DType,
    sizes: &[usize],
    range: Option<usize>,
) -> Result<Dataset, Box<Diagnostic>> {
    one_named("x", "", bytes, dtype, sizes, range)
}

fn one_named(
    file: &str,
    tensor: &str,
    bytes: &[u8],
    dtype: DType,
    sizes: &[usize],
    range: Option<usize>,
) -> Result<Dataset, Box<Diagnostic>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    std::fs::write(&path, bytes).unwrap();
    let (inputs, dims) = model(&[("x", dtype, sizes, range)]);
    let source = find(Some(&format!("x={}{tensor}", path.display())), &[], &inputs).unwrap();
    load(&source, "train", &binding(&inputs, &dims, &Places::new())).map_err(|mut e| {
        assert_eq!(e.len(), 1);
        Box::new(e.remove(0))
    })
}

fn binding<'a>(inputs: &'a [InputDecl], dims: &'a Dims, places: &'a Places) -> InputBinding<'a> {
    InputBinding { inputs, dims, places, allow_nonfinite: false }
}

fn all(dataset: &Dataset) -> Vec<u8> {
    let shape = dataset.inputs().next().unwrap().2.to_vec();
    let records: Vec<usize> = (0..dataset.records()).collect();
    let mut out = vec![0; dataset.bytes()];
    dataset
        .read(0, (&records, EpochSeed::default()), &shape.iter().map(|n| 0..*n).collect::<Vec<_>>(), &mut out)
        .unwrap();
    out
}

#[test]
fn the_shipped_digits_load_from_the_place_they_are_found_in() {
    let (inputs, dims) = digits();
    let source = find(None, &[PathBuf::from("nowhere"), mnist()], &inputs).unwrap();
    assert!(source.place.ends_with("mnist") && source.has("test"));
    assert_eq!(find(Some("mnist"), &[mnist()], &inputs).unwrap(), source);
    for (split, records, first) in [("train", 60_000, [5, 0, 4, 1, 9]), ("test", 10_000, [7, 2, 1, 0, 4])] {
        let data = load(&source, split, &binding(&inputs, &dims, &Places::new())).unwrap();
        assert_eq!((data.records(), data.bytes()), (records, records * (784 + 4)));
        let mut labels = [0; 20];
        data.read(data.find("label").unwrap(), (&[0, 1, 2, 3, 4], EpochSeed::default()), &[], &mut labels)
            .unwrap();
        let labels: Vec<i32> = labels.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(labels, first);
    }
}

#[test]
fn every_format_and_conversion() {
    let i32s = |v: &[i32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let cases: Vec<(Vec<u8>, DType, Vec<u8>)> = vec![
        (idx(0x08, &[2, 2], &[1, 2, 3, 255]), DType::U8, vec![1, 2, 3, 255]),
        (idx(0x08, &[2, 2], &[1, 2, 3, 255]), DType::I32, i32s(&[1, 2, 3, 255])),
        (idx(0x09, &[2, 2], &[1, 2, 3, 255]), DType::I32, i32s(&[1, 2, 3, -1])),
        (idx(0x0b, &[2, 2], &[0, 1, 1, 0, 255, 255, 128, 0]), DType::I32, i32s(&[1, 256, -1, -32768])),
        (
            idx(0x0c, &[2, 2], &[0, 0, 0, 1, 1, 0, 0, 0, 255, 255, 255, 254, 0, 0, 0, 9]),
            DType::I32,
            i32s(&[1, 1 << 24, -2, 9]),
        ),
        (
            idx(0x0d, &[2, 2], &[1f32, -2.5, 0.0, 1e9].map(f32::to_be_bytes).concat()),
            DType::F64,
            [1f64, -2.5, 0.0, 1e9].map(f64::to_le_bytes).concat(),
        ),
        (
            idx(0x0e, &[2, 2], &[1f64, -2.5, 0.1, 1e9].map(f64::to_be_bytes).concat()),
            DType::F32,
            [1f32, -2.5, 0.1, 1e9].map(f32::to_le_bytes).concat(),
        ),
        (
            npy("<i8", "(2, 2)", &[1i64, -2, 3, 4].map(i64::to_le_bytes).concat()),
            DType::I32,
            i32s(&[1, -2, 3, 4]),
        ),
        (
            npy("<f4", "(2, 2)", &[1f32; 4].map(f32::to_le_bytes).concat()),
            DType::F32,
            [1f32; 4].map(f32::to_le_bytes).concat(),
        ),
        (
            npy(">i8", "(2, 2)", &[1i64, -2, 3, 4].map(i64::to_be_bytes).concat()),
            DType::I32,
            i32s(&[1, -2, 3, 4]),
        ),
        (
            npy("<u2", "(2, 2)", &[1u16, 2, 3, 65535].map(u16::to_le_bytes).concat()),
            DType::I32,
            i32s(&[1, 2, 3, 65535]),
        ),
        (
            npy("<u8", "(2, 2)", &[1u64, 2, 3, 4].map(u64::to_le_bytes).concat()),
            DType::I32,
            i32s(&[1, 2, 3, 4]),
        ),
        (
            npy(
                "<f2",
                "(2, 2)",
                &[1.5, -2.0, 0.0, 65504.0].map(|x| half::f16::from_f64(x).to_le_bytes()).concat(),
            ),
            DType::F32,
            [1.5f32, -2.0, 0.0, 65504.0].map(f32::to_le_bytes).concat(),
        ),
        (npy("|b1", "(2, 2)", &[0, 1, 1, 0]), DType::Bool, vec![0, 1, 1, 0]),
        (npy("|u1", "(2, 2,)", &[9; 4]), DType::U8, vec![9; 4]),
    ];
    for (bytes, dtype, expected) in cases {
        for bytes in [gzip(&bytes), bytes] {
            assert_eq!(all(&one(&bytes, dtype, &[2], None).unwrap()), expected, "{dtype}");
        }
    }
    let tensor = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![2, 2], &[0; 32]).unwrap();
    let bytes = safetensors::serialize([("a.b", &tensor)], None).unwrap();
    let wanted = vec![0; 16];
    for name in ["", ":a.b"] {
        assert_eq!(all(&one_named("f.safetensors", name, &bytes, DType::I32, &[2], None).unwrap()), wanted);
    }
    let error = one_named("f.safetensors", ":c", &bytes, DType::I32, &[2], None).unwrap_err();
    assert!(error.message.ends_with("it has no tensor `c`; it has the tensors `a.b`"), "{}", error.message);
}

#[test]
fn no_prefix_of_a_file_and_no_flipped_header_panics_or_passes() {
    let good = [
        idx(0x0c, &[3, 2], &[0; 24]),
        npy("<f4", "(3, 2)", &[0; 24]),
        gzip(&idx(0x08, &[3, 2], &[1, 2, 3, 4, 5, 6])),
    ];
    for (bytes, dtype) in good.iter().zip([DType::I32, DType::F32, DType::U8]) {
        assert!(one(bytes, dtype, &[2], None).is_ok());
        for n in 0..bytes.len() {
            assert_eq!(one(&bytes[..n], dtype, &[2], None).unwrap_err().code.id, "E0502", "{n}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(one(&longer, dtype, &[2], None).unwrap_err().code.id, "E0502");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                // What still loads differs in values alone.
                if let Ok(data) = one(&bad, dtype, &[2], None) {
                    assert_eq!(data.records(), 3);
                }
            }
        }
    }
}

#[test]
fn a_header_that_lies_is_found_before_memory_is_asked_for() {
    let huge = [u32::MAX; 255];
    for sizes in [&huge[..], &[u32::MAX, u32::MAX, 2][..], &[u32::MAX, 100][..]] {
        for bytes in [idx(0x0e, sizes, &[0; 100]), gzip(&idx(0x0e, sizes, &[0; 100]))] {
            let error = one(&bytes, DType::F64, &[2], None).unwrap_err();
            assert_eq!(error.code.id, "E0502", "{}", error.message);
        }
    }
    let error = one(&npy("<f8", "(18446744073709551615, 2)", &[]), DType::F64, &[2], None).unwrap_err();
    assert!(error.message.contains("more than memory can address"), "{}", error.message);
    for (bytes, part) in [
        (vec![0, 0, 0x0a, 1], "0x0a is not an element type"),
        (idx(0x08, &[], &[1]), "without dims"),
        (b"PK\x03\x04abc".to_vec(), "neither IDX"),
        (npy("<c8", "(1,)", &[0; 8]), "its elements are `<c8`"),
        (npy("!f8", "(1,)", &[0; 8]), "whose order of bytes is not known"),
        (npy("<f8", "()", &[0; 8]), "one number without dims"),
        (npy("<f8", "(-1,)", &[0; 8]), "`-1` in its shape"),
        (idx(0x08, &[2], &[1, 2, 3]), "goes on after the last element"),
        (idx(0x08, &[4], &[1, 2, 3]), "should take 4 bytes, 3 are left"),
    ] {
        let error = one(&bytes, DType::U8, &[], None).unwrap_err();
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[test]
fn sizes_dtypes_and_ranges_are_checked_with_numbers_and_a_way_out() {
    let bytes = idx(0x08, &[3, 2], &[0, 1, 2, 3, 9, 1]);
    assert!(one(&bytes, DType::U8, &[1, 2, 1], None).is_ok(), "dims of size 1 may be missing");
    let size = one(&bytes, DType::U8, &[4], None).unwrap_err();
    assert_eq!((size.code.id, size.helps[0].as_str()), ("E0504", "`--dim x0=2` makes it fit"));
    assert_eq!(one(&bytes, DType::U8, &[], None).unwrap_err().code.id, "E0504");
    let dtype = one(&bytes, DType::F32, &[2], None).unwrap_err();
    assert_eq!(dtype.code.id, "E0505");
    assert_eq!(dtype.helps[0], "declare it as `u8` and write `cast(x, float)` where it is used");
    // A position has no other dtype: the file changes, not the model.
    let floats = npy("<f4", "(2,)", &[1f32, 0.0].map(f32::to_le_bytes).concat());
    let position = one(&floats, DType::I32, &[], Some(3)).unwrap_err();
    assert_eq!((position.code.id, position.helps.len()), ("E0505", 1));
    assert_eq!(position.helps[0], "store it as integers: `x` counts positions");
    assert!(one(&bytes, DType::I32, &[2], Some(10)).is_ok());
    let range = one(&bytes, DType::I32, &[2], Some(3)).unwrap_err();
    assert_eq!(range.code.id, "E0506");
    assert_eq!(range.message, "record 1 of `x` has the value 3, outside `classes`, which counts from 0 to 2");
    assert_eq!(range.notes[1], "1 more values are outside");
    let minus = npy("<i4", "(2,)", &[1i32, -1].map(i32::to_le_bytes).concat());
    assert!(
        one(&minus, DType::I32, &[], Some(3))
            .unwrap_err()
            .message
            .starts_with("record 1 of `x` has the value -1")
    );
    for (bytes, dtype) in [
        (npy("<i8", "(2,)", &[1, 1 << 31].map(i64::to_le_bytes).concat()), DType::I32),
        (npy("<i4", "(2,)", &[1, 256].map(i32::to_le_bytes).concat()), DType::U8),
        (npy("<f8", "(2,)", &[1.0, 1e300].map(f64::to_le_bytes).concat()), DType::F32),
        (npy("<f4", "(2,)", &[1.0, f32::NAN].map(f32::to_le_bytes).concat()), DType::F32),
        (npy("<f8", "(2,)", &[1.0, f64::INFINITY].map(f64::to_le_bytes).concat()), DType::F64),
        (npy("<u8", "(2,)", &[1, u64::MAX].map(u64::to_le_bytes).concat()), DType::I32),
        (npy("|u1", "(2,)", &[1, 2]), DType::Bool),
    ] {
        let error = one(&bytes, dtype, &[], None).unwrap_err();
        assert!(error.code.id == "E0506" && error.message.starts_with("record 1 "), "{}", error.message);
        assert!(error.message.len() < 80, "{}", error.message);
    }
    // No size of the dim fits a file without values; and sizes as Python 2 wrote them.
    let empty = one(&npy("|u1", "(3, 0)", &[]), DType::U8, &[2], None).unwrap_err();
    assert_eq!((empty.code.id, empty.helps.len()), ("E0504", 0));
    assert!(one(&npy("|u1", "(3L, 2L)", &[0; 6]), DType::U8, &[2], None).is_ok());
}

fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
    std::fs::create_dir_all(folder).unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
}

#[test]
fn names_and_numbers_of_examples_are_reported_together() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("a", idx(8, &[3], &[0; 3])), ("b", idx(8, &[4], &[0; 4]))]);
    let (inputs, dims) = model(&[("image", DType::U8, &[], None), ("label", DType::U8, &[], None)]);
    let at = |name: &str| folder.path().join(name).display().to_string();
    let errors = |data: String| {
        let source = find(Some(&data), &[], &inputs).unwrap();
        load(&source, "train", &binding(&inputs, &dims, &Places::new())).unwrap_err()
    };
    let count = errors(format!("image={},label={}", at("a"), at("b")));
    assert_eq!(count[0].message, "inputs differ in the number of examples: `image` has 3, `label` has 4");
    let names = errors(format!("imgae={},label={}", at("a"), at("none")));
    let codes: Vec<&str> = names.iter().map(|e| e.code.id).collect();
    assert_eq!(codes, ["E0503", "E0502"]);
    let near =
        |name: &str| format!("`{name}` is there, which is no input of the model; did you mean `image`?");
    assert_eq!(names[0].helps, [near("imgae")]);
    // One of each is one mistake, however the name was misspelled.
    let only = errors(format!("y={},label={}", at("a"), at("a")));
    assert_eq!((only.len(), &only[0].helps), (1, &vec![near("y")]));
    // What has a file already is not proposed.
    let given = errors(format!("image={},label={},imag={}", at("a"), at("a"), at("b")));
    assert!(given.len() == 1 && given[0].helps[0].starts_with("leave `imag` out"), "{given:?}");
    // In a file of data the help is a line of it, and names what nobody reads.
    let file = "[train]\nlabel = 'a'\npicture = 'a'\nsound = 'a'\n";
    std::fs::write(folder.path().join("data.toml"), file).unwrap();
    let source = find(Some(&folder.path().display().to_string()), &[], &inputs).unwrap();
    let toml = load(&source, "train", &binding(&inputs, &dims, &Places::new())).unwrap_err();
    assert_eq!(toml[0].helps, ["add a line `image = \"FILE\"` to its section `[train]`"]);
    assert_eq!(toml[0].notes, ["it has `picture`, `sound`, which the model does not read"]);
    let places = SortedMap::from([("image".to_string(), meshwright_diag::Span::default())]);
    let source = find(Some("label=x"), &[], &inputs).unwrap();
    let placed = load(&source, "train", &binding(&inputs, &dims, &places)).unwrap_err();
    assert_eq!(placed[0].labels.len(), 1);
    let no_set = load(&source, "test", &binding(&inputs, &dims, &places)).unwrap_err();
    assert_eq!(no_set[0].code.id, "E0503");
    assert!(no_set[0].helps[0].contains("`train`") && no_set[0].helps[1].contains("[test]"), "{no_set:?}");
    let other = errors(format!("image={},label={},zzzzzz={}", at("a"), at("a"), at("b")));
    assert!(other[0].code.id == "E0503" && other[0].helps[0].contains("leave `zzzzzz` out"), "{other:?}");
}

#[test]
fn data_is_found_or_all_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let toml = |s: &str| vec![("data.toml", s.as_bytes().to_vec())];
    write(&root.join("one/a"), &toml("[train]\nimage = 'i'\nlabel = 'l'"));
    write(&root.join("one/b"), &toml("[train]\ntext = 't'"));
    write(&root.join("two/a"), &toml("[train]\nimage = 'i'\nlabel = 'l'\nmore = 'm'"));
    write(&root.join("two/c"), &toml("[train]\nimage = 'i'\nlabel = 'l'"));
    write(&root.join("bad"), &toml("[train]\nimage = 3"));
    write(&root.join("odd"), &toml("[tset]\nimage = 'i'"));
    let (inputs, _) = digits();
    let files = |path: &Path| {
        InputSource::Files(vec![FileRef { path: path.to_path_buf(), parts: Vec::new(), classes: Vec::new() }])
    };
    let roots = |names: &[&str]| names.iter().map(|n| root.join(n)).collect::<Vec<_>>();
    let found = find(None, &roots(&["none", "one", "two"]), &inputs).unwrap();
    assert_eq!(found.splits["train"].inputs["image"], files(&root.join("one/a/i")));
    // One that has nothing else is meant, if it is the only one.
    let found = find(None, &roots(&["two"]), &inputs).unwrap();
    assert_eq!(found.splits["train"].inputs["image"], files(&root.join("two/c/i")));
    write(&root.join("three/a"), &toml("[train]\nimage = 'i'\nlabel = 'l'"));
    write(&root.join("three/b"), &toml("[train]\nimage = 'i'\nlabel = 'l'"));
    let two = find(None, &roots(&["three"]), &inputs).unwrap_err();
    assert!(two.message.starts_with("2 data sets"), "{}", two.message);
    assert_eq!(find(None, &roots(&["none", "nor"]), &inputs).unwrap_err().notes.len(), 2);
    assert_eq!(find(Some("nor"), &roots(&["one"]), &inputs).unwrap_err().notes.len(), 2);
    let bad = find(None, &roots(&["bad"]), &inputs).unwrap_err();
    assert!(bad.code.id == "E0507" && bad.message.contains("at line 2"), "{}", bad.message);
    let odd = find(None, &roots(&["odd"]), &inputs).unwrap_err();
    assert_eq!(odd.helps, ["did you mean `test`?"]);
    for wrong in ["image=", "=a", "image=a,b", "image=a,image=b", "tets.image=a"] {
        assert_eq!(find(Some(wrong), &[], &inputs).unwrap_err().code.id, "E0507", "{wrong}");
    }
    let pairs = find(Some("image=a, test.image=b.safetensors:x.y"), &[], &inputs).unwrap();
    let part = FileRef { path: "b.safetensors".into(), parts: vec!["x.y".into()], classes: Vec::new() };
    assert_eq!(part.to_string(), "b.safetensors:x.y");
    assert_eq!(pairs.splits["test"].inputs["image"], InputSource::Files(vec![part]));
    let places = super::roots(Some("e".as_ref()), Path::new("c"), Some(Path::new("p/bin/m")));
    let expected = ["e", "c/models/data", "p/bin/models/data", "p/bin/data", "p/share/meshwright/data"];
    assert_eq!(places, expected.map(PathBuf::from));
}
