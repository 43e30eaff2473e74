//! What a run was started with is named by absolute paths: a command goes on with it from any folder, whatever lies there.

use crate::support::{self, events, file, folder, npy, run_in as run, steps};
use std::path::{Path, PathBuf};

const MODEL: &str = "use \"parts/a.mw\"
use \"parts/b.mw\"
dim batch = 2, n = 3
model m {
    input x[batch, n]: float
    param w[n] = 1
    loss l = mean[batch, n](a(x) * b(w))
    output seen = x
}
train m {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

fn floats(from: f32) -> Vec<u8> {
    (0..12).flat_map(|i| (from + i as f32).to_le_bytes()).collect()
}

/// A folder with a model in several files, data in all forms, and values to begin with; `from` tells what it holds from others.
fn place(at: &Path, from: f32) {
    for sub in ["parts", "data", "models/data/set"] {
        std::fs::create_dir_all(at.join(sub)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("m.mw", MODEL);
    write("parts/a.mw", "use \"../shared.mw\"\nlayer a(x) {\n    return same(x)\n}\n");
    write("parts/b.mw", "use \".././shared.mw\"\nlayer b(x) {\n    return same(x)\n}\n");
    write("shared.mw", "layer same(x) {\n    return 1 * x\n}\n");
    write("rules.layout", "batch -> r\n");
    write("names.map", "w = weights\n");
    let toml = "[train]\nx = \"x.npy\"\n";
    write("data/data.toml", toml);
    write("models/data/set/data.toml", toml);
    npy(&at.join("data/x.npy"), "<f4", "(4, 3)", &floats(from));
    npy(&at.join("models/data/set/x.npy"), "<f4", "(4, 3)", &floats(from));
    for half in 0..2 {
        let bytes = &floats(from)[half * 24..][..24];
        npy(&at.join(format!("data/x{half}.npy")), "<f4", "(2, 3)", bytes);
    }
    for (name, tensor, n) in [("data/x.safetensors", "x", 12), ("w.safetensors", "weights", 3)] {
        let shape = if n == 12 { "[4,3]" } else { "[3]" };
        let head = format!(
            "{{\"{tensor}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{}]}}}}",
            n * 4
        );
        let bytes =
            [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &floats(from)[..n * 4]].concat();
        std::fs::write(at.join(name), bytes).unwrap();
    }
    let mut csv = String::from("x\n");
    (0..4).for_each(|i| csv += &format!("{}\n", from + i as f32));
    write("data/x.csv", &csv);
}

/// Two places of the same names and other contents. What stands in lists and patterns is part of the first one's name.
fn places(name: &str) -> [PathBuf; 2] {
    let at = folder(name);
    let all = [at.join("home, {0,1}=[a]"), at.join("away")];
    all.iter().zip([0.0, 100.0]).for_each(|(at, from)| place(at, from));
    all
}

#[test]
fn data_is_that_of_the_run_in_all_forms() {
    let [home, away] = places("kept-data");
    let forms = [
        Some("x=data/x.npy"),
        Some("x=data/x.safetensors:x"),
        Some("x=data/x{0,1}.npy"),
        Some("x=data/x[01].npy"),
        Some("x=./data/../data/x.npy"),
        Some("data"),
        Some("set"),
        None,
    ];
    for (i, form) in forms.iter().enumerate() {
        let dir = format!("run{i}");
        let mut train = vec!["train", "m.mw", "--run", &dir, "--steps", "1", "--no-eval"];
        train.extend(form.iter().flat_map(|f| ["--data", f]));
        // The data set that nobody names is that of the current folder.
        let mut command = support::command(&train);
        let done = command.current_dir(&home).env_remove("MESHWRIGHT_DATA").output().unwrap();
        assert!(done.status.success(), "{form:?}: {}", String::from_utf8_lossy(&done.stderr));
        let at = home.join(&dir).display().to_string();
        let predict = ["predict", at.as_str(), "--split", "train", "--format", "json"];
        let [here, there] = [&home, &away].map(|from| {
            let done =
                support::command(&predict).current_dir(from).env_remove("MESHWRIGHT_DATA").output().unwrap();
            assert!(done.status.success(), "{form:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        });
        assert!(here == there && here.contains("0.0"), "{form:?}: {here}{there}");
        // It goes on in the other place, and from then on as before.
        events(&away, &["train", "--run", &at, "--resume", "--steps", "2", "--no-eval"]);
        events(&home, &["train", "--run", &dir, "--resume", "--steps", "3", "--no-eval"]);
        let kept: toml::Table = file(&home, &format!("{dir}/run.toml")).parse().unwrap();
        let given = kept.get("data").and_then(|d| d.as_str());
        let by_name = matches!(form, Some("set") | None);
        assert_eq!(given.is_none_or(|d| !d.contains('/')), by_name, "{form:?}: {given:?}");
    }
}

#[test]
fn models_layouts_and_first_values_are_those_of_the_run() {
    let [home, away] = places("kept-files");
    let train = ["train", "m.mw", "--data", "data", "--no-eval", "--layout", "rules.layout", "--mesh", "r=2"];
    let init = ["--init", "w.safetensors", "--init-map", "names.map"];
    let whole = [&train[..], &init, &["--run", "whole", "--steps", "4"]].concat();
    let whole = steps(&events(&home, &whole));
    events(&home, &[&train[..], &init, &["--run", "a", "--steps", "2"]].concat());
    let kept: toml::Table = file(&home, "a/run.toml").parse().unwrap();
    let init = kept["init"].as_table().unwrap();
    let used = kept["used"].as_array().unwrap().iter().chain(init["map"].as_array().unwrap());
    let paths = used.chain([&kept["file"], &kept["layout_file"], &kept["data"], &init["path"]]);
    for path in paths {
        assert!(Path::new(path.as_str().unwrap()).is_absolute(), "{path}");
    }
    // Without its files, and where others of their names lie.
    let moved = home.with_file_name("moved");
    std::fs::create_dir(&moved).unwrap();
    for name in ["m.mw", "shared.mw", "parts", "rules.layout"] {
        std::fs::rename(home.join(name), moved.join(name)).unwrap();
    }
    std::fs::write(away.join("shared.mw"), "layer same(x) {\n    return 9 * x\n}\n").unwrap();
    let at = home.join("a").display().to_string();
    let more = events(&away, &["train", "--run", &at, "--resume", "--steps", "4", "--no-eval"]);
    assert_eq!(steps(&more), whole[2..]);
    let again: toml::Table = file(&home, "a/run.toml").parse().unwrap();
    for name in ["file", "used", "layout_file", "data", "init"] {
        assert_eq!(again[name], kept[name], "{name}");
    }
}

#[test]
fn a_sweep_goes_on_where_it_was_started_whichever_way_it_is_named() {
    let [home, away] = places("kept-sweep");
    let sweep = ["sweep", "m.mw", "--data", "x=data/x.safetensors:x", "--steps", "2", "--set", "lr=0.1,0.2"];
    let model = MODEL.replace("dim batch", "const lr = 0.1\ndim batch").replace("lr = 0.1)", "lr = lr)");
    std::fs::write(home.join("m.mw"), model).unwrap();
    let (code, _, err) = run(&home, &[&sweep[..], &["--run", "s", "--", "--no-eval"]].concat());
    assert_eq!(code, 0, "{err}");
    let table = |from: &Path, subject: &str| {
        let (code, out, err) = run(from, &["sweep", subject, "--format", "jsonl"]);
        assert_eq!(code, 0, "{err}");
        support::lines(&out).iter().map(support::lasting).collect::<Vec<_>>()
    };
    let first = table(&home, "s");
    let dir = home.join("s");
    let runs =
        || std::fs::read_dir(&dir).unwrap().filter(|e| e.as_ref().unwrap().path().join("run.toml").is_file());
    for run in runs() {
        std::fs::remove_dir_all(run.unwrap().path()).unwrap();
    }
    // By its file, which has the folder too.
    assert_eq!(table(&away, &dir.join("sweep.toml").display().to_string()), first);
    assert_eq!(runs().count(), 2);
    assert!(!away.join("s").exists() && !away.join("runs").exists());
}
