//! What small inputs take: no file under a mebibyte takes two seconds of the processor (four to train a tokenizer), on a machine
//! that is as fast as usual, or 500 MB, and what would is refused by its numbers. What the compiler takes for each construct is
//! measured in `compiler/core/tests/growth`.

use crate::support::{ProcessUse, SMALL, Said, command, folder, idx, measured, write_data};
use flate2::write::GzEncoder;
use meshwright_speed::slowness;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The most processor time on a machine that is as fast as usual, and resident memory in KiB.
const MOST: (Duration, u64) = (Duration::from_secs(2), 500_000_000 / 1024);

/// Runs a command, which takes little.
fn little(what: &str, of: &mut Command) -> Said {
    little_within(what, MOST.0, of)
}

/// Runs a command, which takes no more than this of the processor, and little memory.
pub(crate) fn little_within(what: &str, longest: Duration, of: &mut Command) -> Said {
    least(what, longest, |_| measured(of))
}

/// Runs a command by its turn. Others share the machine and its caches, so the least of some turns counts.
fn least(what: &str, longest: Duration, mut run: impl FnMut(usize) -> (ProcessUse, Said)) -> Said {
    let mut all = Vec::new();
    for turn in 0..4 {
        let (used, said) = run(turn);
        if used.cpu < longest.mul_f64(slowness()) && used.peak_kib < MOST.1 {
            return said;
        }
        all.push((used, said.out + &said.err));
    }
    panic!("{what}: {all:?}");
}

/// Runs a command, which takes little and refuses its input with this code and these words.
fn refused(args: &[&str], code: &str, words: &str) {
    let said = little(&args.join(" "), &mut command(args));
    let ends = if code.is_empty() { 2 } else { 1 };
    assert_eq!(said.code, Some(ends), "{args:?}: {}", said.err);
    assert!(said.err.contains(code) && said.err.contains(words), "{args:?}: {}", said.err);
}

/// Most that time and memory may grow by: the exponent of the size.
const EXPONENT: f64 = 1.3;
/// Seconds and KiB that cannot be told from noise.
const FLOOR: [f64; 2] = [0.1, 40_000.0];

/// Checks how much more a large input takes than a small one. Others share the machine, so the best of some comparisons counts.
fn grows_evenly(what: &str, sizes: [usize; 2], of: impl Fn(usize) -> Command) {
    let exponents = || {
        let [small, large] = sizes.map(|n| {
            let used = measured(&mut of(n)).0;
            [used.cpu.as_secs_f64().max(FLOOR[0]), (used.peak_kib as f64).max(FLOOR[1])]
        });
        let times = sizes[1] as f64 / sizes[0] as f64;
        [0, 1].map(|k| (large[k] / small[k]).ln() / times.ln())
    };
    let mut all = Vec::new();
    while all.len() < 4 {
        all.push(exponents());
        if all.last().is_some_and(|e| e.iter().all(|e| *e <= EXPONENT)) {
            return;
        }
    }
    panic!("{what}: time and memory grow with the size to the powers of {all:?}");
}

#[test]
fn time_and_memory_of_sweeps_patterns_and_tokenizers_grow_with_the_size() {
    let dir = folder(SMALL);
    let data = dir.path().join("data");
    let fresh = |name: &str| {
        let to = dir.path().join(name);
        let _ = std::fs::remove_dir_all(&to);
        to
    };
    grows_evenly("sweep", [1250, 10_000], |n| {
        let values: Vec<String> = (1..=n / 10).map(|i| format!("{}", i as f64 / 1e4)).collect();
        let (lr, to) = (format!("lr={}", values.join(",")), fresh("sweep"));
        let args =
            ["sweep", "mlp", "--data", text(&data), "--set", &lr, "--seeds", "10", "--launch", "slurm"];
        command(&[&args[..], &["--run", text(&to)]].concat())
    });
    for i in 0..4000 {
        std::fs::write(data.join(format!("i{i:04}")), idx(&[4, 5, 4], &[7; 80])).unwrap();
        std::fs::write(data.join(format!("l{i:04}")), idx(&[4], &[1; 4])).unwrap();
    }
    grows_evenly("patterns", [500, 4000], |n| {
        let pattern = |letter| format!("\"{letter}{{0000..{:04}}}\"", n - 1);
        let list = format!("[train]\nimage = {}\nlabel = {}\n", pattern('i'), pattern('l'));
        std::fs::write(data.join("data.toml"), list).unwrap();
        let args = ["train", "mnist_mlp", "--data", text(&data), "--no-save", "--no-eval", "--steps", "1"];
        command(&[&args[..], &["--dim", "batch=4", "--dim", "rows=5", "--dim", "cols=4"]].concat())
    });
    for tokenizer in ["bpe", "wordpiece"] {
        grows_evenly(tokenizer, [100, 800], |n| {
            let mut numbers = crate::support::Numbers(3);
            let mut word =
                |_| (0..1000).map(|_| char::from(b'a' + numbers.below(26) as u8)).collect::<String>();
            let (from, to) = (dir.path().join("words.txt"), fresh("tokens"));
            std::fs::write(&from, (0..n).map(&mut word).collect::<Vec<_>>().join(" ")).unwrap();
            let args = ["data", "tokenize", text(&from), "--train", tokenizer, "--vocab", "1000", "--out"];
            command(&[&args[..], &[text(&to)]].concat())
        });
    }
}

fn text(at: &Path) -> &str {
    at.to_str().unwrap()
}

#[test]
fn lines_of_recompute_are_told_in_little_time() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("many.layout");
    let lines = (0..1000).fold("batch -> r\n".to_string(), |all, i| all + &format!("recompute q{i}.*\n"));
    std::fs::write(&layout, lines).unwrap();
    let args = ["explain", "mnist_conv", "--mesh", "r=2", "--layout", text(&layout)];
    let said = little("recompute", &mut command(&args));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(said.out.matches("saves nothing, adds nothing").count(), 1000);
}

#[test]
fn patterns_are_counted_before_they_are_read() {
    let dir = folder(SMALL);
    let file = dir.path().join("w.safetensors");
    std::fs::write(&file, "").unwrap();
    let many = format!("w = {}", "(a|b)".repeat(40));
    let data = dir.path().join("data");
    let train = [
        "train",
        "mnist_mlp",
        "--data",
        text(&data),
        "--init",
        text(&file),
        "--no-save",
        "--dim",
        "rows=5",
        "--dim",
        "cols=4",
        "--init-map",
        &many,
    ];
    refused(&train, "E0516", "its alternatives are more than 100 names");
    let map = dir.path().join("my.toml");
    let shipped = std::fs::read_to_string(crate::support::root().join("models/hf/gpt.toml")).unwrap();
    let ignored = format!("ignored = [\"{}\", ", "(a|b)".repeat(40));
    std::fs::write(&map, shipped.replacen("ignored = [", &ignored, 1)).unwrap();
    let to = dir.path().join("run");
    let import = ["import", "hf", text(dir.path()), "--map", text(&map), "--out", text(&to)];
    refused(&import, "E0529", "its alternatives are more than 100 names");

    let list = data.join("data.toml");
    let names = format!("{}{{0..999999}}", "x".repeat(5000));
    std::fs::write(&list, format!("[train]\nimage = \"{names}\"\nlabel = \"train-label\"\n")).unwrap();
    let args = ["train", "mnist_mlp", "--data", text(&data), "--no-save", "--steps", "1"];
    refused(&args, "E0502", "a name of more than 4096 bytes");
}

#[test]
fn as_many_cores_are_taken_as_the_machine_can_use() {
    refused(&["train", "mlp", "--cores", "65535", "--no-save"], "", "take at most");
    refused(&["sweep", "mlp", "--cores", "65535", "--seeds", "2"], "", "take at most");
}

#[test]
fn devices_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/proc/kmsg", dir.path().join("data.toml")).unwrap();
    let train = |data| ["train", "mnist_mlp", "--no-save", "--data", data];
    let (files, whole, folder) =
        (train("image=/proc/kmsg,label=/proc/kmsg"), train("/proc/kmsg"), train(text(dir.path())));
    let to = dir.path().join("tokens");
    let tokens = ["data", "tokenize", "/proc/kmsg", "--train", "bpe", "--vocab", "300", "--out", text(&to)];
    for of in [
        &["check", "/proc/kmsg"][..],
        &["check", "mlp", "--layout", "/proc/kmsg"],
        &files,
        &whole,
        &folder,
        &tokens,
    ] {
        let said = little("a device", &mut command(of));
        assert_eq!(said.code, Some(1), "{of:?}: {}", said.err);
    }
    refused(&["generate", "gpt", "--prompts", "/dev/zero"], "E0502", "more bytes than the limit");
}

#[test]
fn small_files_take_little_memory() {
    let dir = folder(SMALL);
    let at = dir.path().join("data");
    // Hundreds of megabytes of one value.
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let (rows, header) = (500_000u32, idx(&[0, 20, 20], &[]));
    packed.write_all(&[&header[..4], &rows.to_be_bytes(), &header[8..]].concat()).unwrap();
    (0..200).for_each(|_| packed.write_all(&vec![0; 1_000_000]).unwrap());
    std::fs::write(at.join("large.idx.gz"), packed.finish().unwrap()).unwrap();
    let model = dir.path().join("m.mw");
    let declare = |rows: usize, cols: usize| {
        format!(
            "dim batch = 1, rows = {rows}, cols = {cols}\nmodel m {{\n input image[batch, rows, cols]: u8\n param w = 1\n loss l = mean[batch, rows, cols](cast(image, float)) * w\n}}\ntrain m {{\n minimize l\n optimizer sgd(lr = 0.1)\n}}\n"
        )
    };
    std::fs::write(&model, declare(20, 20)).unwrap();
    let train = |data: &str| {
        let data = format!("image={data}");
        let args = ["train", text(&model), "--data", &data, "--no-save", "--steps", "1"];
        little(&data, command(&args).current_dir(&at))
    };
    let said = train("large.idx.gz");
    assert!(
        said.code == Some(1) && said.err.contains("E0502") && said.err.contains("unpack it"),
        "{}",
        said.err
    );

    // A name of three gibibytes, in a file that has them nowhere.
    let mut head = [0u8; 512];
    head[..13].copy_from_slice(b"././@LongLink");
    head[100..107].copy_from_slice(b"0000644");
    head[124..135].copy_from_slice(format!("{:011o}", 3u64 << 30).as_bytes());
    head[156] = b'L';
    head[257..265].copy_from_slice(b"ustar  \0");
    head[148..156].fill(b' ');
    let sum: u32 = head.iter().map(|b| u32::from(*b)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let tar = std::fs::File::create(at.join("a.tar")).unwrap();
    (&tar).write_all(&head).unwrap();
    tar.set_len(4 << 30).unwrap();
    std::fs::write(at.join("data.toml"), "[train]\nshards = \"a.tar\"\nimage = { member = \"png\" }\n")
        .unwrap();
    let args = ["train", text(&model), "--data", text(&at), "--no-save", "--steps", "1"];
    refused(&args, "E0502", "the headers of a member have more than 1048576 bytes");

    // An image of 20 by 20 that is declared as one of 60,000 by 60,000.
    std::fs::write(&model, declare(60_000, 60_000)).unwrap();
    write_image(&at.join("a.png"));
    let said = train("a.png");
    assert!(said.code == Some(1) && said.err.contains("E0504"), "{}", said.err);
}

/// A gray image of 1 by 1, which nobody had to encode here.
fn write_image(at: &Path) {
    const PNG: [u8; 67] = [
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0,
        58, 126, 155, 85, 0, 0, 0, 10, 73, 68, 65, 84, 120, 156, 99, 96, 5, 0, 0, 7, 0, 6, 128, 205, 98, 138,
        0, 0, 0, 0, 73, 69, 78, 68, 174, 66, 96, 130,
    ];
    std::fs::write(at, PNG).unwrap();
}

/// A process may have so many files open; of many files of examples each is open when it is read.
#[test]
fn more_files_than_a_process_may_open_are_read() {
    let dir = folder(SMALL);
    let at = dir.path().join("data");
    for i in 0..80 {
        std::fs::write(at.join(format!("i{i:02}")), idx(&[4, 5, 4], &[i; 80])).unwrap();
        std::fs::write(at.join(format!("l{i:02}")), idx(&[4], &[i % 10; 4])).unwrap();
    }
    std::fs::write(at.join("data.toml"), "[train]\nimage = \"i{00..79}\"\nlabel = \"l{00..79}\"\n").unwrap();
    let args = ["train", "mnist_mlp", "--data", text(&at), "--no-save", "--no-eval", "--steps", "2"];
    let dims = ["--dim", "batch=4", "--dim", "rows=5", "--dim", "cols=4"];
    let own = command(&[&args[..], &dims].concat());
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(own.get_program()).args(own.get_args());
    let said = little("files", limited.current_dir(crate::support::root()));
    assert_eq!(said.code, Some(0), "{}", said.err);
}

#[test]
fn a_log_is_plotted_and_exported_line_by_line_whatever_it_says() {
    let dir = folder(SMALL);
    write_data(&dir.path().join("data"), SMALL);
    let (data, run) = (dir.path().join("data"), dir.path().join("run"));
    let dims = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4"];
    let args =
        ["train", "mnist_mlp", "--data", text(&data), "--steps", "1", "--no-eval", "--run", text(&run)];
    let said = crate::support::run(&[&args[..], &dims].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let mut log = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let line = log.lines().find(|l| l.contains("\"event\":\"step\"")).unwrap().to_string();
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    for step in 2..20_000 {
        let mut value = value.clone();
        value["step"] = step.into();
        value["loss"] = if step == 9 { 1e308 } else { f64::from(step) }.into();
        writeln!(log, "{value}").unwrap();
    }
    std::fs::write(run.join("metrics.jsonl"), log).unwrap();
    for more in [&[][..], &["--log"], &["--svg", "x.svg"]] {
        let args = [&["runs", "plot", text(&run)][..], more].concat();
        let said = little("plot", command(&args).current_dir(dir.path()));
        assert_eq!(said.code, Some(0), "{}", said.err);
    }
    let (used, said) =
        measured(command(&["runs", "export", "run", "--output", "x.csv"]).current_dir(dir.path()));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(used.peak_kib < 100_000, "{used:?}");
}

#[test]
fn tokenizers_take_time_and_memory_by_the_length_of_their_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = crate::support::Numbers(3);
    let mut letters =
        |n: usize| (0..n).map(|_| char::from(b'a' + numbers.below(26) as u8)).collect::<String>();
    let words: Vec<String> = (0..400).map(|_| letters(1000)).collect();
    for (name, content) in [("words", words.join(" ")), ("document", letters(1_000_000))] {
        let (from, to) = (dir.path().join(format!("{name}.txt")), dir.path().join(name));
        std::fs::write(&from, content).unwrap();
        for tokenizer in ["bpe", "wordpiece"] {
            // A folder that is complete would not be written again.
            // Trains a tokenizer too: 1.3 s on idle cores, and twice as much beside other work.
            let said = least(name, 2 * MOST.0, |turn| {
                let to = to.with_extension(format!("{tokenizer}{turn}"));
                let args =
                    ["data", "tokenize", text(&from), "--train", tokenizer, "--vocab", "1000", "--out"];
                measured(&mut command(&[&args[..], &[text(&to)]].concat()))
            });
            assert_eq!(said.code, Some(0), "{name} {tokenizer}: {}", said.err);
        }
    }
}

/// Of a document without an end of a line there is a part in memory, however long it is.
#[test]
fn a_document_of_one_long_line_takes_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = crate::support::Numbers(5);
    let words: Vec<String> = (0..500).map(|_| format!("word{}", numbers.below(1000))).collect();
    let peak = |name: &str, times: usize, more: &[&str]| {
        let (from, to) = (dir.path().join(name).with_extension("txt"), dir.path().join(name));
        std::fs::write(&from, (words.join(" ") + " ").repeat(times)).unwrap();
        let args = [&["data", "tokenize", text(&from), "--out", text(&to)], more].concat();
        // Each core has parts of its own.
        let (used, said) = measured(command(&args).env("RAYON_NUM_THREADS", "2"));
        assert_eq!(said.code, Some(0), "{}", said.err);
        used.peak_kib
    };
    // 4 MB, of which a tokenizer is made, and 32.
    peak("short", 1_000, &["--train", "bpe", "--vocab", "500"]);
    let tokenizer = dir.path().join("short/tokenizer.json");
    let peak = peak("long", 8_000, &["--tokenizer", text(&tokenizer)]);
    assert!(peak < 300_000, "{peak} KiB");
}

#[test]
fn sweeps_of_many_runs_are_written_in_little_time() {
    let dir = folder(SMALL);
    let (data, to) = (dir.path().join("data"), dir.path().join("sweep"));
    let values: Vec<String> = (1..=1000).map(|i| format!("{}", f64::from(i) / 1e4)).collect();
    let lr = format!("lr={}", values.join(","));
    let args = ["sweep", "mlp", "--data", text(&data), "--set", &lr, "--seeds", "10", "--run", text(&to)];
    let said = little("sweep", &mut command(&[&args[..], &["--launch", "slurm"]].concat()));
    assert_eq!(said.code, Some(0), "{}", said.err);
    refused(&[&args[..], &["--dim", "hidden=100,200"]].concat(), "E0516", "combinations, more than 10000");
}

/// Memory that the system does not give is a diagnostic, and no signal.
#[test]
fn memory_that_cannot_be_had_is_a_diagnostic() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("a.txt");
    std::fs::write(&text, "words of a text without end ".repeat(4_000_000)).unwrap();
    let to = dir.path().join("tokens");
    let own = command(&["data", "tokenize", super::growth::text(&text), "--train", "bpe", "--vocab", "300"]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -v 120000; exec \"$0\" \"$@\""]).arg(own.get_program()).args(own.get_args());
    let (_, said) = measured(limited.arg("--out").arg(to));
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("error[E0401]: the system has no more memory"), "{}", said.err);
}
