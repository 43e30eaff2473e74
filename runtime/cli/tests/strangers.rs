//! What comes from strangers: folders of runs with links in them, files of sweeps, and names that would steer a terminal.

use crate::support::{self, MODEL, command, file, prepared, run_in as run, said};
use meshwright_sorted::SortedMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Trains a run of two steps.
fn trained(at: &Path, folder: &str, more: &[&str]) {
    let args = ["train", "sums.mw", "--data", "data", "--steps", "2", "--run", folder];
    let (code, _, err) = run(at, &[&args[..], more].concat());
    assert_eq!(code, 0, "{err}");
}

/// All files below a folder, with what they hold.
fn content(folder: &Path) -> SortedMap<PathBuf, Vec<u8>> {
    let mut all = SortedMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(content(&path)),
            false => drop(all.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all
}

fn instead(path: &Path, target: &Path) {
    match path.is_dir() {
        true => std::fs::remove_dir_all(path).unwrap(),
        false => std::fs::remove_file(path).unwrap(),
    }
    symlink(target, path).unwrap();
}

/// The commands that work on a run.
const ON_A_RUN: [&[&str]; 12] = [
    &["runs", "rm", "evil", "--yes"],
    &["runs", "rm", "evil", "--yes", "--checkpoints"],
    &["train", "--run", "evil", "--resume", "--steps", "4", "--log", "tensorboard", "--log", "csv"],
    &["train", "sums.mw", "--data", "data", "--steps", "1", "--run", "new", "--init", "evil"],
    &["ckpt", "rename", "evil", "v = w"],
    &["ckpt", "repair", "evil"],
    &["ckpt", "list", "evil"],
    &["ckpt", "diff", "evil", "mine"],
    &["ckpt", "export", "evil", "-o", "out.safetensors"],
    &["eval", "evil"],
    &["predict", "evil"],
    &["runs", "show", "evil"],
];

#[test]
fn a_folder_that_is_a_link_leads_nowhere() {
    let at = prepared("strangers-folders");
    trained(&at, "mine", &["--log", "tensorboard"]);
    let mine = content(&at.join("mine"));
    for (folder, only) in [("checkpoints", 0..12), ("tensorboard", 0..3)] {
        let _ = std::fs::remove_dir_all(at.join("evil"));
        trained(&at, "evil", &["--log", "tensorboard"]);
        instead(&at.join("evil").join(folder), Path::new(&format!("../mine/{folder}")));
        let evil = content(&at.join("evil"));
        for args in &ON_A_RUN[only] {
            if folder == "tensorboard" && args.contains(&"--checkpoints") {
                continue;
            }
            let (code, _, err) = run(&at, args);
            assert!(code == 1 && err.contains("it is a symbolic link"), "{args:?}: {code} {err}");
            assert!(content(&at.join("mine")) == mine, "{args:?}");
        }
        assert!(at.join("evil").join(folder).is_symlink());
        assert_eq!(
            content(&at.join("evil/checkpoints")).len(),
            evil.iter().filter(|f| in_checkpoints(f.0)).count()
        );
        let _ = std::fs::remove_dir_all(at.join("new"));
    }
    // Whoever names a link to a run means that run.
    symlink("mine", at.join("latest")).unwrap();
    let (code, _, err) = run(&at, &["train", "--run", "latest", "--resume", "--steps", "4"]);
    assert_eq!(code, 0, "{err}");
}

fn in_checkpoints(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "checkpoints")
}

#[test]
fn a_file_that_is_a_link_leads_nowhere() {
    let at = prepared("strangers-files");
    for name in
        ["run.toml", "model.mw", "rules.layout", "metrics.jsonl", "history.jsonl", "run.lock", "metrics.csv"]
    {
        let _ = std::fs::remove_dir_all(at.join("evil"));
        trained(&at, "evil", &["--log", "csv"]);
        std::fs::copy(at.join("evil").join(name), at.join("victim")).unwrap();
        instead(&at.join("evil").join(name), Path::new("../victim"));
        let victim = file(&at, "victim");
        let resume = ["train", "--run", "evil", "--resume", "--steps", "4", "--log", "csv"];
        let (code, _, err) = run(&at, &resume);
        assert!(
            code == 1 && err.contains(name) && err.contains("it is a symbolic link"),
            "{name}: {code} {err}"
        );
        let (_, out, err) = run(&at, &["runs", "ls", "."]);
        assert!(
            !out.contains("evil") || !["run.toml", "metrics.jsonl"].contains(&name),
            "{name}: {out}{err}"
        );
        run(&at, &["runs", "rm", "evil", "--yes"]);
        assert_eq!(file(&at, "victim"), victim, "{name}");
    }
}

/// A sweep notes what it is in a file of that name, and takes no other for its own.
#[test]
fn a_sweep_does_not_overwrite_the_file_that_describes_it() {
    let at = prepared("strangers-own-file");
    let mine = "# My notes.\nmodel = \"sums.mw\"\ndata = \"data\"\nsteps = 2\nrun = \".\"\n";
    std::fs::write(at.join("sweep.toml"), mine).unwrap();
    let (code, _, err) = run(&at, &["sweep", "sweep.toml"]);
    assert!(code == 1 && err.contains("the one there is of somebody else"), "{err}");
    assert_eq!(file(&at, "sweep.toml"), mine);
    std::fs::rename(at.join("sweep.toml"), at.join("study.toml")).unwrap();
    let (code, _, err) = run(&at, &["sweep", "study.toml"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(file(&at, "study.toml"), mine);
}

#[test]
fn a_sweep_writes_into_its_folder_alone() {
    let at = prepared("strangers-sweep");
    std::fs::write(at.join("victim"), "mine").unwrap();
    std::fs::create_dir(at.join("outside")).unwrap();
    symlink("outside", at.join("out")).unwrap();
    let sweep = |text: &str, args: &[&str]| {
        std::fs::write(at.join("sweep.toml"), format!("data = \"data\"\nsteps = 2\n{text}\n")).unwrap();
        run(&at, &[&["sweep", "sweep.toml"], args].concat())
    };
    for (train, option) in [
        ("\"--trace\", \"victim\"", "--trace"),
        ("\"--trace=victim\"", "--trace"),
        ("\"--keep\", \"1\", \"--metrics-file=v.prom\"", "--metrics-file"),
        ("\"--set\", \"lr=1\"", "--set"),
        ("\"--mesh=1\"", "--mesh"),
        ("\"--color=always\"", "--color"),
        ("\"--expect-devices\", \"1\"", "--expect-devices"),
    ] {
        let (code, _, err) = sweep(&format!("model = \"sums.mw\"\ntrain = [{train}]"), &["--run", "a"]);
        assert!(
            code == 1 && err.contains(&format!("`{option}` is not an argument of `train`")),
            "{train}: {err}"
        );
        assert!(err.contains("`--no-eval`, `--validation`"), "{err}");
    }
    let (code, _, err) = sweep("model = \"--trace=victim\"", &["--run", "a"]);
    assert!(code == 1 && err.contains("has the model `--trace=victim`"), "{err}");
    let absolute = at.with_file_name("strangers-elsewhere").display().to_string();
    for run in ["/", "..", "../x", "a/../../x", &absolute] {
        let (code, _, err) = sweep(&format!("model = \"sums.mw\"\nrun = \"{run}\""), &[]);
        assert!(code == 1 && err.contains("not below the current folder"), "{run}: {err}");
    }
    let (code, _, err) = sweep("model = \"sums.mw\"\nrun = \"out/x\"", &[]);
    assert!(code == 1 && err.contains("it is a symbolic link") && err.contains("`--run` names"), "{err}");
    assert!(!at.join("a").exists() && content(&at.join("outside")).is_empty());
    // The command may name any folder, and what a sweep needs is taken.
    let plain =
        "model = \"sums.mw\"\nrun = \"b/c\"\ntrain = [\"--no-eval\", \"--keep\", \"1\", \"--log=csv\"]";
    assert_eq!(sweep(plain, &["--run", "out/x"]).0, 0);
    let (code, _, err) = sweep(plain, &[]);
    assert_eq!(code, 0, "{err}");
    // The file in the folder of the sweep names that.
    assert_eq!(run(&at, &["sweep", "b/c/sweep.toml"]).0, 0);
    let run_of = at.join("b/c/one-device-seed=0");
    assert!(run_of.join("metrics.csv").is_file());
    // Links in the folder of a sweep.
    trained(&at, "mine", &[]);
    let mine = content(&at.join("mine"));
    instead(&run_of, Path::new("../../mine"));
    let (code, _, err) = run(&at, &["sweep", "b/c"]);
    assert!(code == 1 && err.contains("`one-device-seed=0` in it is a symbolic link"), "{err}");
    std::fs::remove_file(&run_of).unwrap();
    for (name, target) in
        [("logs", "../../mine"), ("sweep.lock", "../../victim"), ("problems.json", "../../victim")]
    {
        let link = at.join("b/c").join(name);
        let _ = std::fs::write(&link, "");
        instead(&link, Path::new(target));
        let (code, _, err) = run(&at, &["sweep", "b/c"]);
        assert!(code == 1 && err.contains("a symbolic link, not"), "{name}: {code} {err}");
        std::fs::remove_file(link).unwrap();
    }
    std::fs::create_dir_all(at.join("b/c/logs")).unwrap();
    symlink("../../../victim", at.join("b/c/logs/one-device-seed=0.log")).unwrap();
    let (code, _, err) = run(&at, &["sweep", "b/c"]);
    assert!(code == 1 && err.contains("it is a symbolic link"), "{err}");
    assert!(content(&at.join("mine")) == mine);
    assert_eq!(file(&at, "victim"), "mine");
}

/// Each character that begins what a terminal obeys, in a TOML text.
const STEERS: &str = "x\\u001b]0;title\\u0007\\u001b[2J\\u009b31m\\u007f\\r\\u202e\\u2066\\u200f";

#[test]
fn names_steer_no_terminal() {
    let at = prepared("strangers-names");
    trained(&at, "a", &["--dim", "batch=20"]);
    trained(&at, "b", &[]);
    for run in ["a", "b"] {
        let line = |line: &str| match line.split_once(" = ") {
            Some(("model", _)) => format!("model = \"{STEERS}\"\nimported = \"{STEERS}\""),
            Some(("file", _)) => format!("file = \"{run}{STEERS}\""),
            _ if line == "[consts]" => format!("[consts]\n\"{STEERS}\" = 1.0"),
            _ => line.to_string(),
        };
        let text: Vec<String> = file(&at, &format!("{run}/run.toml")).lines().map(line).collect();
        assert_eq!(text.join("").matches(STEERS).count(), 4, "{text:?}");
        let text = text.join("\n");
        std::fs::write(at.join(run).join("run.toml"), text).unwrap();
        let json = STEERS;
        let set = format!(
            "{{\"event\":\"evaluation\",\"step\":2,\"set\":\"{json}\",\"eval_loss\":1,\"eval_{json}\":1}}\n"
        );
        let failed = format!("{{\"event\":\"failed\",\"time\":\"{json}\",\"error\":\"{json}\"}}\n");
        for (name, line) in [("metrics.jsonl", set), ("history.jsonl", failed)] {
            let text = file(&at, &format!("{run}/{name}")) + &line;
            std::fs::write(at.join(run).join(name), text).unwrap();
        }
    }
    let folder = "c\u{1b}[2J\u{7}\u{202e}";
    std::fs::rename(at.join("b"), at.join(folder)).unwrap();
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let steers = |c: char| turns(c) || c.is_control() && c != '\n' && c != '\t';
    for args in [
        &["runs", "show", "a"][..],
        &["runs", "show", folder],
        &["runs", "ls", "."],
        &["runs", "ls", ".", "--format", "csv"],
        &["runs", "ls", ".", "--format", "markdown"],
        &["runs", "ls", ".", "--format", "jsonl"],
        &["runs", "stats", "."],
        &["runs", "diff", "a", folder],
        &["runs", "plot", "a", folder],
        &["runs", "rm", folder, "--dry-run"],
        &["ckpt", "list", folder],
        &["ckpt", "diff", "a", folder],
        &["ckpt", "export", folder, "-o", "\u{1b}[2J.safetensors"],
        &["eval", folder],
        &["train", "--run", folder, "--resume", "--steps", "3"],
        &["report", folder, "-o", "page.html"],
    ] {
        for format in [&[][..], &["--format", "json"]] {
            let args = [args, format].concat();
            let (code, out, err) = run(&at, &args);
            assert_ne!(code, 101, "{args:?}: {err}");
            assert!(!out.contains(steers) && !err.contains(steers), "{args:?}: {out:?} {err:?}");
        }
        // In color too, the only sequences are our own: those of styles, each with its end.
        let (_, out, _) = run(&at, &[args, &["--color", "always"]].concat());
        for sequence in out.split('\u{1b}').skip(1) {
            let style = sequence.strip_prefix('[').and_then(|s| s.split_once('m')).map(|s| s.0);
            let ours = style.is_some_and(|s| s.bytes().all(|b| b.is_ascii_digit() || b == b';'));
            assert!(ours, "{args:?}: {sequence:?}");
        }
        assert!(
            !out.contains(['\u{9b}', '\u{7}', '\u{7f}', '\r', '\u{202e}', '\u{2066}', '\u{200f}']),
            "{args:?}: {out:?}"
        );
    }
}

#[test]
fn a_cell_of_csv_is_no_formula() {
    let at = prepared("strangers-csv");
    for name in ["=1+1", "@sum", "plain"] {
        trained(&at, name, &[]);
    }
    trained(&at, "minus", &[]);
    std::fs::rename(at.join("minus"), at.join("-minus")).unwrap();
    let (code, out, err) =
        run(&at, &["runs", "ls", "=1+1", "./@sum", "plain", "./-minus", "--format", "csv"]);
    assert_eq!(code, 0, "{err}");
    let mut first: Vec<&str> = out.lines().skip(1).filter_map(|l| l.split(',').next()).collect();
    first.sort_unstable();
    assert_eq!(first, ["'-minus", "'=1+1", "'@sum", "plain"], "{out}");
    let (code, _, err) = run(&at, &["runs", "export", "=1+1", "plain", "-o", "events.csv"]);
    assert_eq!(code, 0, "{err}");
    let out = file(&at, "events.csv");
    assert!(
        out.contains("\n'=1+1,step,1,") && out.contains("\nplain,step,1,") && !out.contains("\n="),
        "{out}"
    );
}

#[test]
fn names_of_any_length_are_printed() {
    let at = prepared("strangers-long");
    let long = "w".repeat(65_600);
    let text = MODEL.replace("param w[", &format!("param {long}[")).replace("x * w", &format!("x * {long}"));
    let text = text
        .replace("metric max accuracy", &format!("metric max a{long}"))
        .replace("sums", &format!("s{long}"));
    std::fs::write(at.join("sums.mw"), text).unwrap();
    trained(&at, "a", &[]);
    trained(&at, "b", &[]);
    std::fs::create_dir(at.join("t")).unwrap();
    for args in [
        &["explain", "sums.mw", "--all"][..],
        &["explain", "sums.mw", "--all", "--layout", "batch -> r", "--mesh", "r=2"],
        &["compare", "sums.mw", "--layout", "dp", "--mesh", "2"],
        &["train", "sums.mw", "--data", "data", "--epochs", "1", "--run", "c"],
        &["runs", "ls", "."],
        &["runs", "stats", "."],
        &["runs", "diff", "a", "b"],
        &["runs", "show", "a"],
        &["ckpt", "list", "a"],
        &["ckpt", "diff", "a", "b"],
        &["ckpt", "diff", "a", "c"],
        &["eval", "a"],
        &["predict", "a"],
    ] {
        let (code, out, err) = run(&at, args);
        assert!(code == 0, "{args:?}: {code} {}", &err[..err.len().min(500)]);
        // One long name does not widen all rows.
        assert!(out.len() < 4_000_000, "{args:?}: {}", out.len());
    }
}

#[test]
fn no_model_is_written_that_is_refused() {
    let at = support::folder("strangers-new");
    for name in ["let", "model", "train", "param", "repeat", "layer", "use", "dim"] {
        let (code, _, err) = run(&at, &["new", name]);
        assert!(code == 2 && err.contains("cannot be the name of a model"), "{name}: {code} {err}");
        assert!(!at.join(name).exists());
    }
    for template in ["mlp", "cnn", "vit", "lm", "bert", "autoencoder", "diffusion"] {
        for name in ["batch", "float", "softmax", "size", "scan", "x"] {
            let folder = format!("{template}/{name}");
            let (code, _, err) = run(&at, &["new", &folder, "--template", template]);
            if code == 0 {
                let (code, _, err) = run(&at, &["check", &format!("{folder}/{name}.mw")]);
                assert_eq!(code, 0, "{folder}: {err}");
            } else {
                assert!(code == 2 && !at.join(&folder).exists(), "{folder}: {code} {err}");
            }
        }
    }
}

/// Of a folder with very many others below, a hint looks into some.
#[test]
fn a_hint_reads_no_disk() {
    let at = support::folder("strangers-hint");
    for n in 0..2_000 {
        std::fs::create_dir_all(at.join(format!("deep/{}/{n}/x", n % 40))).unwrap();
    }
    let output = command(&["runs", "rm", "deep"]).current_dir(&at).output().unwrap();
    let (code, _, err) = said(output);
    assert!(code == 1 && err.contains("is not the folder of a run"), "{err}");
    std::fs::write(at.join("deep/0/run.toml"), "").unwrap();
    let (_, _, err) = run(&at, &["runs", "rm", "deep"]);
    assert!(err.contains("there are runs below, such as `deep/0`"), "{err}");
}
