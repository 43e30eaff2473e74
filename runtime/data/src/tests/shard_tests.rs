//! Shards, folders of images, damaged ones, and how fast they are read.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::test_case::{DataCase, npy, raw, values};
use crate::*;
use meshwright_plan::DType;
use std::time::Instant;

/// A gray or colored image.
fn png(cols: u32, rows: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, cols, rows);
    let color =
        if data.len() == (cols * rows) as usize { png::ColorType::Grayscale } else { png::ColorType::Rgb };
    encoder.set_color(color);
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    out
}

fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        out.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    out.into_inner().unwrap()
}

/// An example: a picture of 2 x 3 of its number, and the number as its class.
fn example(n: u8) -> Vec<(String, Vec<u8>)> {
    vec![
        (format!("d/{n:03}.png"), png(3, 2, &[n; 6])),
        (format!("d/{n:03}.json"), b"{}".to_vec()),
        (format!("d/{n:03}.cls"), n.to_string().into_bytes()),
    ]
}

fn shard(numbers: std::ops::Range<u8>) -> Vec<u8> {
    tar(&numbers.flat_map(example).collect::<Vec<_>>())
}

fn case() -> DataCase {
    DataCase::new()
        .input("image", DType::U8, &[("rows", 2), ("cols", 3)])
        .input("label", DType::I32, &[])
        .file("s-0.tar", &shard(0..4))
        .file("s-1.tar", &shard(4..9))
        .file("s-2.tar", &shard(9..11))
}

const SHARDS: &str =
    "[train]\nshards = 's-{0..2}.tar'\nimage = { member = ['jpg', 'png'] }\nlabel = { member = 'cls' }\n";

fn labels(set: &Dataset) -> Vec<i32> {
    values(set, "label", &(0..set.records()).collect::<Vec<_>>())
}

#[test]
fn members_of_one_name_are_an_example() {
    let case = case();
    let set = case.load(SHARDS).unwrap();
    assert_eq!(labels(&set), (0..11).collect::<Vec<_>>());
    assert_eq!(raw(&set, "image", &[7, 10]), [[7; 6], [10; 6]].concat());
    let mut part = [0; 4];
    set.read(0, (&[3, 9], EpochSeed::default()), &[1..2, 1..3], &mut part).unwrap();
    assert_eq!(part, [3, 3, 9, 9]);
    // A buffer of 4: file by file, in another order each epoch.
    let set = case.load(&format!("{SHARDS}shuffle = 4\n")).unwrap();
    let sampler = BatchSampler::of(2, &set, 11).unwrap();
    for epoch in 0..5 {
        let mut order = sampler.records(epoch, 0..11);
        order.sort_unstable();
        assert_eq!(order, (0..11).collect::<Vec<_>>());
    }
    assert_ne!(sampler.records(0, 0..11), sampler.records(1, 0..11));
    for (toml, code, part) in [
        (SHARDS.replace("'cls'", "'class'"), "E0502", "the example `d/000` has no member `.class`"),
        (SHARDS.replace("{0..2}", "{0..3}"), "E0502", "the shard `"),
        (SHARDS.replace("shards", "limit = 3\n#"), "E0507", "is a member of shards, but the set has none"),
    ] {
        let (found, message) = case.message(&toml);
        assert!(found == code && message.contains(part), "{found} {message}");
    }
    let wrong =
        DataCase::new().input("image", DType::U8, &[("rows", 3), ("cols", 3)]).file("s.tar", &shard(0..1));
    let (code, message) = wrong.message("[train]\nshards = 's.tar'\nimage = { member = 'png' }\n");
    assert!(code == "E0504" && message.contains("2 rows, 3 columns and 1 channels"), "{message}");
}

/// An array without dims is the number of one example.
#[test]
fn a_member_may_be_one_number() {
    let one = |n: i32| (format!("{n}.npy"), npy("<i4", "False", "()", &n.to_le_bytes()));
    let case = DataCase::new().input("label", DType::I32, &[]).file("s.tar", &tar(&[one(4), one(7)]));
    let set = case.load("[train]\nshards = 's.tar'\nlabel = { member = 'npy' }\n").unwrap();
    assert_eq!(labels(&set), [4, 7]);
}

#[test]
fn damaged_members_are_errors_with_file_and_byte_or_left_out() {
    let broken: Vec<_> = (0..6u8)
        .flat_map(|n| {
            let mut members = example(n);
            match n {
                1 => members[0].1[20] ^= 0xff,
                3 => members.truncate(1),
                4 => members[2].1 = b"four".to_vec(),
                _ => {}
            }
            members
        })
        .collect();
    let bytes = tar(&broken);
    // Two blocks of zeros end a shard; the member before them is cut off.
    let cut = shard(20..23);
    let case = case().file("s-0.tar", &bytes).file("s-2.tar", &cut[..cut.len() - 1024 - 700]);
    let (code, message) = case.message(SHARDS);
    assert!(
        code == "E0502" && message.contains("at byte") && message.contains("no member `.cls`"),
        "{message}"
    );
    assert!(message.contains("`damaged = \"skip\"`"), "{message}");
    let set = case.load(&format!("{SHARDS}damaged = 'skip'\n")).unwrap();
    assert_eq!(labels(&set), [0, 2, 5, 4, 5, 6, 7, 8, 20, 21]);
    assert_eq!(raw(&set, "image", &[1, 9]), [[2; 6], [21; 6]].concat());
    assert!(set.notes()[0].starts_with("4 damaged examples are left out: `"), "{:?}", set.notes());
    let (train, rest) = set.split(0.3, 1).unwrap();
    let mut both = [labels(&train), labels(&rest)].concat();
    both.sort_unstable();
    assert_eq!(both, [0, 2, 4, 5, 5, 6, 7, 8, 20, 21]);
    // What cannot be decoded is found where it is read.
    let case =
        super::shard_tests::case().file("s-0.tar", &tar(&[example(7), broken[3..6].to_vec()].concat()));
    let set = case.load(SHARDS);
    let (code, message) = (set.as_ref().unwrap_err().code.id, &set.as_ref().unwrap_err().message);
    assert!(code == "E0502" && message.contains("s-0.tar` at byte"), "{message}");
}

#[test]
fn no_bit_of_a_shard_makes_it_panic() {
    let good = shard(0..2);
    let case = case();
    for at in (0..good.len()).step_by(11) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(case.path().join("s-0.tar"), &bad).unwrap();
        for more in ["", "damaged = 'skip'\n"] {
            if let Ok(set) = case.load(&format!("{SHARDS}{more}limit = 2\n")) {
                assert!(set.records() <= 2);
            }
        }
    }
}

#[test]
fn folders_of_images_with_their_names_as_labels() {
    let case = DataCase::new()
        .input("image", DType::U8, &[("rows", 2), ("cols", 3), ("rgb", 3)])
        .input("label", DType::I32, &[])
        .file("p/cat/b.png", &png(3, 2, &[1; 6]))
        .file("p/cat/a.png", &png(3, 2, &[2; 18]))
        .file("p/dog/c.png", &png(3, 2, &[3; 18]));
    let toml = |classes: &str| {
        format!("[train]\nimage = 'p/*/*.png'\nlabel = {{ folder_of = 'image', classes = {classes} }}\n")
    };
    let set = case.load(&toml("['dog', 'cat']")).unwrap();
    assert_eq!(labels(&set), [1, 1, 0]);
    assert_eq!(raw(&set, "image", &[2, 0]), [[3; 18], [2; 18]].concat());
    assert!(set.readers() >= 1);
    let (code, message) = case.message(&toml("['dog', 'cats']"));
    assert!(code == "E0506" && message.contains("`cat`"), "{message}");
    std::fs::write(case.path().join("p/dog/c.png"), b"\x89PNG\r\n\x1a\nno more").unwrap();
    let bad = case.load(&toml("['dog', 'cat']")).unwrap_err();
    assert!(
        bad.code.id == "E0502" && bad.message.contains("c.png` cannot be read as record 2"),
        "{}",
        bad.message
    );
    let set = case.load(&format!("{}damaged = 'skip'\n", toml("['dog', 'cat']"))).unwrap();
    assert_eq!(labels(&set), [1, 1]);
}

/// How many small images one core reads from shards in a second: at least 10,000 on a machine that does nothing else.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stderr, reason = "a measurement is to be seen")]
fn images_a_second() {
    let noise = |n: usize, seed: u32| {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1664525).wrapping_add(1013904223);
            (x >> 26) as u8
        };
        (0..n).map(|i| next().wrapping_add((i / 8) as u8)).collect::<Vec<u8>>()
    };
    let jpeg = |side: u16, seed: u32| {
        let mut out = Vec::new();
        let pixels = noise(usize::from(side).pow(2) * 3, seed);
        jpeg_encoder::Encoder::new(&mut out, 85)
            .encode(&pixels, side, side, jpeg_encoder::ColorType::Rgb)
            .unwrap();
        out
    };
    let gray = |seed| png(28, 28, &noise(784, seed));
    let color = |seed| png(32, 32, &noise(3072, seed));
    type Kind<'a> = (&'a str, &'a [(&'a str, usize)], &'a dyn Fn(u32) -> Vec<u8>);
    let kinds: [Kind; 3] = [
        ("28 x 28 PNG", &[("rows", 28), ("cols", 28)], &gray),
        ("32 x 32 x 3 PNG", &[("rows", 32), ("cols", 32), ("rgb", 3)], &color),
        ("32 x 32 x 3 JPEG", &[("rows", 32), ("cols", 32), ("rgb", 3)], &|seed| jpeg(32, seed)),
    ];
    for (name, dims, make) in kinds {
        let members: Vec<_> = (0..5000u32).map(|n| (format!("{n}.img"), make(n))).collect();
        let case = DataCase::new().input("image", DType::U8, dims).file("s.tar", &tar(&members));
        let set = case.load("[train]\nshards = 's.tar'\nimage = { member = 'img' }\n").unwrap();
        let ranges: Vec<_> = dims.iter().map(|d| 0..d.1).collect();
        let sampler = BatchSampler::of(1, &set, 100).unwrap();
        let began = Instant::now();
        for step in 0..50 {
            set.block(0, (&sampler.records(step, 0..100), EpochSeed::default()), &ranges).unwrap();
        }
        let rate = 5000.0 / began.elapsed().as_secs_f64();
        eprintln!("{name}: {rate:.0} images a second");
        assert!(rate > 10_000.0, "{name}: {rate}");
    }
}
