//! Sets that are more than a file for each input: several files, large ones, windows, weights, orders, parts.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::test_case::{DataCase, array, floats, ints, npy, raw, values};
use crate::*;
use meshwright_plan::DType;
use std::io::{Seek, SeekFrom, Write};

#[test]
fn several_files_are_one_input() {
    let case = DataCase::new()
        .input("x", DType::I32, &[])
        .file("a-10.npy", &array([30, 31]))
        .file("a-2.npy", &array([]))
        .file("a-1.npy", &array([10]))
        .file("b.npy", &array([5, 6, 7]));
    let set = case.load("[train]\nx = 'a-*.npy'\n").unwrap();
    assert_eq!((set.records(), values(&set, "x", &[0, 1, 2])), (3, vec![10, 30, 31]));
    let set = case.load("[train]\nx = ['b.npy', 'a-{1..2}.npy']\n").unwrap();
    assert_eq!(values(&set, "x", &[3, 0, 2]), [10, 5, 7]);
    let given = format!("x={}/a-{{1,10}}.npy", case.path().display());
    let source = find(Some(&given), &[], &case.inputs).unwrap();
    let places = Places::new();
    let binding =
        InputBinding { inputs: &case.inputs, dims: &case.dims, places: &places, allow_nonfinite: false };
    assert_eq!(load(&source, "train", &binding).unwrap().records(), 3);
    let (code, message) = case.message("[train]\nx = 'c-*.npy'\n");
    assert!(code == "E0502" && message.contains("no file matches"), "{message}");
}

/// A file of 3 GB of which all is a hole but for some records. Resident memory is measured by `tests/runs/training/datasets.rs`.
#[test]
fn what_is_larger_than_memory_is_read_where_it_is() {
    let case = DataCase::new().input("x", DType::F32, &[("n", 1 << 18)]);
    let header = npy("<f4", "False", &format!("(3000, {})", 1 << 18), &[]);
    let path = case.path().join("x.npy");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&header).unwrap();
    let width = 4 << 18;
    let at = |record: u64, k: u64| header.len() as u64 + record * width + 4 * k;
    for (record, k, value) in [(0, 0, 1.5f32), (2999, 7, -2.5), (1234, 5, f32::NAN)] {
        file.seek(SeekFrom::Start(at(record, k))).unwrap();
        file.write_all(&value.to_le_bytes()).unwrap();
    }
    file.set_len(at(3000, 0)).unwrap();
    let set = case.load("[train]\nx = 'x.npy'\n").unwrap();
    assert_eq!(set.records(), 3000);
    let mut out = [0; 16];
    let wanted = 6..8;
    set.read(0, (&[2999, 0], EpochSeed::default()), std::slice::from_ref(&wanted), &mut out).unwrap();
    assert_eq!(out, *[0.0f32, -2.5, 0.0, 0.0].map(f32::to_le_bytes).concat());
    let eight = 0..8;
    let bad = set
        .read(0, (&[0, 1234], EpochSeed::default()), std::slice::from_ref(&eight), &mut [0; 64])
        .unwrap_err();
    assert_eq!(bad.message, "record 1234 of `x` has the value NaN, which is not finite");
    assert!(bad.helps[0].contains("--allow-nonfinite"));
    let lenient = DataCase { allow_nonfinite: true, ..case };
    let set = lenient.load("[train]\nx = 'x.npy'\n").unwrap();
    assert!(set.read(0, (&[1234], EpochSeed::default()), std::slice::from_ref(&eight), &mut [0; 32]).is_ok());
    file.set_len(at(2000, 0)).unwrap();
    let gone =
        set.read(0, (&[2500], EpochSeed::default()), std::slice::from_ref(&eight), &mut [0; 32]).unwrap_err();
    assert!(gone.code.id == "E0502" && gone.message.contains("bytes from"), "{}", gone.message);
}

#[test]
fn what_is_read_in_place_is_what_memory_has() {
    let n = 9_000_000u32;
    let data: Vec<u8> = (0..n).flat_map(|i| i.wrapping_mul(2654435761).to_le_bytes()).collect();
    // 34 MB each: one is read at once, two stay where they are.
    let one = npy("<i4", "False", "(90000, 20, 5)", &data);
    let case = DataCase::new().input("x", DType::I32, &[("rows", 20), ("cols", 5)]).file("a.npy", &one);
    let memory = case.load("[train]\nx = 'a.npy'\n").unwrap();
    let place = case.load("[train]\nx = ['a.npy', 'a.npy']\n").unwrap();
    assert_eq!((memory.records(), place.records()), (90_000, 180_000));
    for ranges in [[0..20, 0..5], [3..4, 1..4], [0..20, 2..3], [7..7, 0..5]] {
        let size: usize = ranges.iter().map(ExactSizeIterator::len).product();
        let [mut a, mut b] = [vec![0; 3 * size * 4], vec![1; 3 * size * 4]];
        memory.read(0, (&[0, 89_999, 77], EpochSeed::default()), &ranges, &mut a).unwrap();
        place.read(0, (&[90_000, 89_999, 90_077], EpochSeed::default()), &ranges, &mut b).unwrap();
        assert_eq!(a, b, "{ranges:?}");
    }
}

#[test]
fn fortran_order_and_columns() {
    // Element (i, j, k) is 100 i + 10 j + k.
    let shape = (4, 3, 2);
    let fortran = (0..shape.2)
        .flat_map(|k| (0..shape.1).flat_map(move |j| (0..shape.0).map(move |i| 100 * i + 10 * j + k)));
    let case = DataCase::new()
        .input("x", DType::I32, &[("j", 3), ("k", 2)])
        .file("x.npy", &npy("<i4", "True", "(4, 3, 2)", &ints(fortran)));
    let set = case.load("[train]\nx = 'x.npy'\n").unwrap();
    assert_eq!(values(&set, "x", &[2]), [200, 201, 210, 211, 220, 221]);
    let column =
        DataCase::new().input("y", DType::I32, &[]).file("y.npy", &npy("<i4", "False", "(3, 1)", &[0; 12]));
    let (code, message) = column.message("[train]\ny = 'y.npy'\n");
    assert!(code == "E0504" && message.contains("`dim one = 1` and `input y[batch, one]`"), "{message}");
    assert!(message.contains("`y[:, 0]`"), "{message}");
}

#[test]
fn tables_of_text() {
    let text = "width, height,kind,ok\n1.5,2,0,true\n-1e3, 4 ,2,0\n";
    let case = DataCase::new()
        .input("size", DType::F32, &[("two", 2)])
        .input("kind", DType::I32, &[])
        .input("ok", DType::Bool, &[])
        .file("t.csv", text.as_bytes())
        .file("bad.csv", b"kind,ok\n1,1\nx,1\n")
        .file("short.csv", b"kind,ok\n1,1\n2\n");
    let toml = |kind: &str| {
        format!(
            "[train]\nsize = {{ file = 't.csv', columns = ['?i*th', 'height'] }}\nkind = '{kind}'\nok = 't.csv'\n"
        )
    };
    let set = case.load(&toml("t.csv")).unwrap();
    assert_eq!(floats(&set, "size", &[1, 0]), [-1000.0, 4.0, 1.5, 2.0]);
    assert_eq!(values(&set, "kind", &[0, 1]), [0, 2]);
    assert_eq!(raw(&set, "ok", &[0, 1]), [1, 0]);
    for (file, part) in [
        ("bad.csv", "line 3 has `x` in the column `kind`, which is not a value of `i32`"),
        ("short.csv", "line 3 has 1 cell, the header 2"),
        ("t.csv:colour", "it has no column `colour`; it has the columns `width`, `height`, `kind`, `ok`"),
    ] {
        let (code, message) = case.message(&toml(file));
        assert!(code == "E0502" && message.contains(part), "{message}");
    }
    let twice =
        "[train]\nsize = { file = 't.csv', columns = ['width', 'w*'] }\nkind = 't.csv'\nok = 't.csv'\n";
    assert!(case.message(twice).1.contains("its column `width` is named twice"));
}

#[test]
fn archives_of_arrays() {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, method) in [("x", zip::CompressionMethod::Stored), ("y", zip::CompressionMethod::Deflated)] {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(&array([1, 2, 3])).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    let case =
        DataCase::new().input("x", DType::I32, &[]).file("a.npz", &bytes).file("cut.npz", &bytes[..90]);
    for name in ["x", "y"] {
        let set = case.load(&format!("[train]\nx = 'a.npz:{name}'\n")).unwrap();
        assert_eq!(values(&set, "x", &[2, 0]), [3, 1], "{name}");
    }
    for (file, part) in [
        ("a.npz", "it has the arrays `x`, `y`; write `FILE:NAME`"),
        ("a.npz:z", "it has no array `z`"),
        ("cut.npz:x", "it is not a whole .npz file"),
    ] {
        let (code, message) = case.message(&format!("[train]\nx = '{file}'\n"));
        assert!(code == "E0502" && message.contains(part), "{message}");
    }
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x41;
        std::fs::write(case.path().join("bad.npz"), bad).unwrap();
        // What still loads is of that size; nothing panics.
        for name in ["x", "y"] {
            if let Ok(set) = case.load(&format!("[train]\nx = 'bad.npz:{name}'\n")) {
                assert_eq!(set.records(), 3);
            }
        }
    }
}

#[test]
fn windows_over_a_stream() {
    let case = DataCase::new()
        .input("token", DType::I32, &[("seq", 4)])
        .input("next", DType::I32, &[("seq", 4)])
        .file("a.npy", &array(0..6))
        .file("b.npy", &array(6..15));
    let toml = |more: &str| {
        format!(
            "[train]\ntoken = {{ file = ['a.npy', 'b.npy'], window = 'seq'{more} }}\nnext = {{ file = '[ab].npy', window = 'seq', shift = 1{more} }}\n"
        )
    };
    // 15 positions: the last of which is a target alone.
    let set = case.load(&toml("")).unwrap();
    assert_eq!(set.records(), 3);
    assert_eq!(values(&set, "token", &[1, 2]), [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(values(&set, "next", &[1]), [5, 6, 7, 8]);
    let mut part = [0; 8];
    set.read(0, (&[1], EpochSeed::default()), std::slice::from_ref(&(1..3)), &mut part).unwrap();
    assert_eq!(part, *ints([5, 6]));
    let set = case.load(&toml(", stride = 3")).unwrap();
    assert_eq!((set.records(), values(&set, "next", &[3])), (4, vec![10, 11, 12, 13]));
    let set = case.load(&toml(", stride = 1")).unwrap();
    assert_eq!((set.records(), values(&set, "next", &[10])), (11, vec![11, 12, 13, 14]));
    let long = DataCase::new().input("token", DType::I32, &[("seq", 16)]).file("a.npy", &array(0..9));
    let (code, message) = long.message("[train]\ntoken = { file = 'a.npy', window = 'seq', shift = 1 }\n");
    assert!(
        code == "E0504" && message.contains("9 positions") && message.contains("`--dim seq=8`"),
        "{message}"
    );
    // The input that reaches further says it, once.
    let pair = DataCase::new()
        .input("token", DType::I32, &[("seq", 9)])
        .input("next", DType::I32, &[("seq", 9)])
        .file("a.npy", &array(0..9));
    let both = "[train]\ntoken = { file = 'a.npy', window = 'seq' }\nnext = { file = 'a.npy', window = 'seq', shift = 1 }\n";
    let errors = pair.errors(both);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let text = "`next` has 9 positions, too few for one window of `seq` = 9 moved by 1";
    assert_eq!((errors[0].message.as_str(), errors[0].helps.len()), (text, 1));
    let (code, message) = long.message("[train]\ntoken = { file = 'a.npy', window = 'time' }\n");
    assert!(code == "E0504" && message.contains("`window = \"seq\"`"), "{message}");
}

#[test]
fn weights_of_classes_and_of_examples() {
    let case = DataCase::new()
        .input("label", DType::I32, &[])
        .input("weight", DType::F32, &[])
        .file("l.npy", &array([2, 0, 1, 2]))
        .file("s.npy", &npy("<f4", "False", "(4,)", &[0.0f32, 1.0, 0.0, 0.0].map(f32::to_le_bytes).concat()));
    let toml = |more: &str| {
        format!("[train]\nlabel = 'l.npy'\nweight = {{ by = 'label', weights = [1, 0.5, 3.0] }}\n{more}\n")
    };
    let set = case.load(&toml("")).unwrap();
    assert_eq!(floats(&set, "weight", &[0, 1, 2, 3]), [3.0, 1.0, 0.5, 3.0]);
    let set = case.load(&toml("sampling = 's.npy'")).unwrap();
    let sampler = BatchSampler::of(1, &set, 4).unwrap();
    assert_eq!([sampler.records(0, 0..4), sampler.records(9, 0..4)], [[1; 4], [1; 4]]);
    let by_class = case.load(&toml("sampling = { by = 'label', weights = [0, 1, 0] }")).unwrap();
    assert_eq!(BatchSampler::of(1, &by_class, 4).unwrap().records(3, 1..3), [2, 2]);
    assert_ne!(set.fingerprint(), by_class.fingerprint());
    let plain = case.load(&toml("")).unwrap();
    let usual = case.load(&toml("shuffle = true")).unwrap();
    assert_eq!(plain.fingerprint(), usual.fingerprint());
    for (more, code, part) in [
        ("sampling = { by = 'label', weights = [0, 1] }", "E0506", "has 2 `weights`, for 0 to 1"),
        ("sampling = { by = 'label', weights = [0, 0, 0] }", "E0506", "no example can be drawn"),
        ("sampling = { by = 'lable', weights = [1] }", "E0503", "did you mean `label`?"),
        ("sampling = 's.npy'\nshuffle = false", "E0507", "exclude each other"),
        ("sampling = { by = 'label', weights = [-1] }", "E0507", "numbers from 0 on"),
        ("shuffle = 'no'", "E0507", "at line 4"),
        ("limit = 0", "E0507", "at least 1"),
        ("limit = 'l.npy'", "E0507", "`limit` is not a number"),
        ("other = { fil = 'l.npy' }", "E0507", "did you mean `file`?"),
        ("other = { file = 'l.npy', shift = 1 }", "E0507", "add `window"),
        ("other = { file = 'l.npy', columns = ['a'] }", "E0507", "is not a CSV file"),
        ("other = []", "E0507", "names no file"),
    ] {
        let (found, message) = case.message(&toml(more));
        assert!(found == code && message.contains(part), "{more}: {found} {message}");
    }
}

/// The same files are the same data in every precision.
#[test]
fn fingerprints_do_not_depend_on_what_floats_are_read_as() {
    let third = |k: u32| f64::from(k) / 3.0;
    let double: Vec<u8> = (0..8).flat_map(|k| third(k).to_le_bytes()).collect();
    let single: Vec<u8> = (0..8).flat_map(|k| (third(k) as f32).to_le_bytes()).collect();
    let written = |k: u32| format!("{},{}\n", k % 3, third(k));
    let table: String = (0..4).map(written).collect();
    let of = |float: DType, double: &[u8]| {
        let case = DataCase::new()
            .input("label", DType::I32, &[])
            .input("double", float, &[("d", 2)])
            .input("single", float, &[("d", 2)])
            .input("text", float, &[])
            .input("weight", float, &[])
            .file("double.npy", &npy("<f8", "False", "(4, 2)", double))
            .file("single.npy", &npy("<f4", "False", "(4, 2)", &single))
            .file("table.csv", format!("label,text\n{table}").as_bytes());
        let files = "label = 'table.csv:label'\ntext = 'table.csv:text'\ndouble = 'double.npy'\nsingle = 'single.npy'";
        let weights = "weight = { by = 'label', weights = [0.1, 0.2, 0.7] }";
        case.load(&format!("[train]\n{files}\n{weights}\n")).unwrap().fingerprint()
    };
    assert_eq!(of(DType::F64, &double), of(DType::F32, &double));
    let mut other = double.clone();
    other[63] ^= 1;
    assert_ne!(of(DType::F64, &double), of(DType::F64, &other));
}

#[test]
fn limits_orders_and_sets_of_their_own() {
    let case = DataCase::new()
        .input("x", DType::I32, &[])
        .file("a.npy", &array(0..50))
        .file("b.npy", &array(50..100));
    let toml = |more: &str| format!("[train]\nx = '?.npy'\n{more}\n[validation]\nx = 'b.npy'\nlimit = 7\n");
    let set = case.load(&toml("limit = 30\nshuffle = false")).unwrap();
    assert_eq!(set.records(), 30);
    assert_eq!(BatchSampler::of(5, &set, 8).unwrap().records(3, 0..8), (0..8).collect::<Vec<_>>());
    let buffered = case.load(&toml("shuffle = 10")).unwrap();
    let sampler = BatchSampler::of(5, &buffered, 10).unwrap();
    let mut all: Vec<usize> = (0..10).flat_map(|s| sampler.records(s, 0..10)).collect();
    let near = all.chunks(10).filter(|c| c.iter().max().unwrap() - c.iter().min().unwrap() < 20).count();
    assert!(near >= 8, "{all:?}");
    assert_ne!(all, (0..100).collect::<Vec<_>>());
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
    let validation = case.load_split(&toml(""), "validation").unwrap();
    assert_eq!((validation.records(), values(&validation, "x", &[6])), (7, vec![56]));
    let wrong =
        case.load_split("[train]\nx = 'a.npy'\n[test]\nshuffle = false\nx = 'a.npy'\n", "test").unwrap_err();
    assert!(wrong.message.contains("`shuffle` is of the training set"), "{}", wrong.message);
    assert!(case.load_split("[train]\nx = 'a.npy'\n", "validation").is_err());
}

#[test]
fn a_share_is_fixed_by_its_seed_and_apart() {
    let case = DataCase::new().input("x", DType::I32, &[]).file("a.npy", &array(0..100));
    let set = case.load("[train]\nx = 'a.npy'\n").unwrap();
    let all = |set: &Dataset| values(set, "x", &(0..set.records()).collect::<Vec<_>>());
    let (train, validation) = set.split(0.13, 3).unwrap();
    assert_eq!((train.records(), validation.records()), (87, 13));
    let mut both = [all(&train), all(&validation)].concat();
    both.sort_unstable();
    assert_eq!(both, (0..100).collect::<Vec<_>>());
    let again = set.split(0.13, 3).unwrap();
    assert_eq!((all(&again.0), all(&again.1)), (all(&train), all(&validation)));
    assert_eq!(again.0.fingerprint(), train.fingerprint());
    let other = set.split(0.13, 4).unwrap();
    assert_ne!(all(&other.1), all(&validation));
    assert_ne!(other.0.fingerprint(), train.fingerprint());
    assert!([0.0, 0.001, 0.999, 1.0, -1.0, f64::NAN].iter().all(|s| set.split(*s, 3).is_none()));
    let weighted = case.load("[train]\nx = 'a.npy'\nsampling = 'w.npy'\n");
    assert_eq!(weighted.unwrap_err().code.id, "E0502");
}
