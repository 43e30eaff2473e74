//! What `explain` and `compare` show, on a terminal and elsewhere; meshes by position; and warnings.

use crate::support::{command, folder, run, said};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A chain of `n` equal layers with a name each, and an output.
fn deep(at: &Path, n: usize) -> String {
    let mut text = "\
dim batch = 8, d = 6, ff = 12

layer block(x) {
    param up[d, ff] = normal(0, 0.1)
    param down[ff, d] = normal(0, 0.1)
    return x + sum[ff](relu(sum[d](x * up)) * down)
}

model deep {
    input x0[batch, d]: float
"
    .to_string();
    (1..=n).for_each(|k| text += &format!("    let x{k} = block(x{}) as b{k}\n", k - 1));
    text += &format!("    output last = x{n}\n    loss l = mean[batch, d](x{n} * x{n})\n}}\n");
    text += "train deep {\n    minimize l\n    optimizer adam(lr = 0.01)\n}\n";
    let path = at.join("deep.mw");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const SPLIT: [&str; 4] = ["--layout", "batch -> data; ff -> model", "--mesh", "2x2"];

#[test]
fn a_big_model_reads_on_one_screen() {
    let at = folder("one_screen");
    let model = deep(&at, 40);
    let explained = |more: &[&str]| {
        let (code, out, err) = run(&[&["explain", &model], &SPLIT[..], more].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{more:?}");
        out
    };
    let text = explained(&[]);
    assert!(text.lines().count() <= 40, "{text}");
    let at_line =
        |what: &str| text.lines().position(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at_line("per step and device") < at_line("  forward"), "{text}");
    assert!(text.contains("b1 … b40, each\n") && text.contains(" b39 … b1, each\n"), "{text}");
    assert_eq!(text.matches("all-reduce model").count(), 2, "{text}");

    let rows = |text: &str| -> Vec<String> {
        let rows =
            text.lines().skip_while(|l| !l.starts_with("  line  value")).filter(|l| l.starts_with("    "));
        rows.map(|l| l[8..].split("  ").next().unwrap().to_string()).collect()
    };
    let all = explained(&["--all"]);
    let every = rows(&all);
    for k in 1..=40 {
        for row in [format!("b{k}.up"), format!("d(b{k}.down)"), format!("new b{k}.up"), format!("b{k}.up/m")]
        {
            assert!(every.contains(&row), "{row}: {every:?}");
        }
    }
    assert!(all.contains("compute in between") && !text.contains("compute in between"));

    let one = rows(&explained(&["--match", "b3.*", "--phase", "update"]));
    let of = |p: &str| ["/m", "/v"].map(|m| format!("b3.{p}{m}")).into_iter().collect::<Vec<_>>();
    assert!(of("up").iter().all(|r| one.contains(r)) && one.contains(&"new b3.down".to_string()), "{one:?}");
    assert!(one.iter().all(|r| r.contains("b3.")), "{one:?}");
    let only = explained(&["--only", "collectives", "--phase", "forward"]);
    assert!(only.starts_with("  line  value") && !only.contains("backward"), "{only}");

    let (code, _, err) = run(&["explain", &model, "--match", "b3x.*"]);
    assert!(code == 1 && err.contains("E0523") && err.contains("no value has a path like `b3x.*`"), "{err}");
    for wrong in
        [&["--all", "--format", "json"][..], &["--match", "b1", "--why", "x1"], &["--phase", "sideways"]]
    {
        assert_eq!(run(&[&["explain", &model][..], wrong].concat()).0, 2, "{wrong:?}");
    }
}

/// Where attention was recognized, and why a softmax that weights a sum is none.
#[test]
fn attention_is_explained() {
    let at = folder("attention");
    let model = at.join("m.mw");
    let text = |score: &str| {
        format!(
            "dim batch = 2, seq = 8, heads = 2, d = 4, key = seq
model m {{
    input x[batch, seq, heads, d]: float
    param w[d] = normal(0, 1)
    param bias[seq, key] = 0
    let q = x * w
    let k = q[seq -> key]
    let plain = sum[key](softmax[key](sum[d](q * k) / 2) * k)
    let other = sum[key](softmax[key]({score}) * k)
    loss l = mean[batch, seq, heads, d](plain * other)
}}
train m {{ minimize l optimizer sgd(lr = 0.1) }}
"
        )
    };
    let explained = |more: &[&str]| {
        let (code, out, err) = run(&[&["explain", model.to_str().unwrap()], more].concat());
        assert_eq!(code, 0, "{err}");
        out
    };
    std::fs::write(&model, text("sum[d](q * k) + bias + tanh(bias)")).unwrap();
    let out = explained(&[]);
    assert!(out.contains("attention  in one step, scores are not stored: `plain` (line 8)\n"), "{out}");
    let why = "not recognized, since `bias` and `other` in its scores have gradients of their own: ";
    assert!(out.contains(why), "{out}");
    let all = json(&explained(&["--format", "json"]));
    assert_eq!(all["attention"][0]["recognized"], true, "{all}");
    let gpu = json(&explained(&["--device", "cuda", "--format", "json"]));
    let why = gpu["attention"][0]["no_kernel"].as_str().unwrap();
    assert!(
        why.starts_with("its queries and keys are 4 wide") && all["attention"][0].get("no_kernel").is_none(),
        "{gpu}"
    );
    let line = format!("attention  without a kernel, scores are stored some at a time, since {why}: `plain`");
    assert!(explained(&["--device", "cuda"]).contains(&line) && !out.contains(why), "{line}");
    let split = explained(&["--layout", "d -> a", "--mesh", "a=2"]);
    assert!(split.contains("attention  by its equations, since a dim"), "{split}");
    for score in ["sum[d](q * k)", "sum[d](q * k) + bias"] {
        std::fs::write(&model, text(score)).unwrap();
        let out = explained(&[]);
        assert!(out.contains("not stored: `plain` (line 8), `other` (line 9)\n"), "{out}");
    }
}

#[test]
fn any_program_of_a_model_is_explained() {
    let at = folder("programs");
    let model = deep(&at, 2);
    let report = |program: &str| {
        let args = [&["explain", &model, "--format", "json", "--program", program], &SPLIT[..]].concat();
        json(&run(&args).1)
    };
    for (program, last) in [("train", "new b2.down"), ("eval", "l"), ("predict", "b2")] {
        let r = report(program);
        assert_eq!(r["program"], program);
        assert_eq!(r["values"].as_array().unwrap().iter().last().unwrap()["value"], last, "{program}");
        let sum =
            |list: &Value| list.as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum(&r["totals"]), sum(&r["collectives"]));
    }
    let none = at.join("none.mw").display().to_string();
    let text = "dim batch = 2\nmodel none {\n    input x[batch]: float\n    loss l = mean[batch](x)\n}\n";
    std::fs::write(&none, text).unwrap();
    let (code, _, err) = run(&["explain", &none, "--program", "predict"]);
    assert!(code == 1 && err.contains("declares no output"), "{err}");
}

/// What a command shows on a terminal, whose line ends are as elsewhere.
#[cfg(unix)]
fn on_terminal(args: &[&str], variables: &[(&str, &str)]) -> String {
    let words: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
    let line = format!("'{}' {}", env!("CARGO_BIN_EXE_meshwright"), words.join(" "));
    let mut c = Command::new("script");
    c.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR").env_remove("PAGER");
    c.env("COLUMNS", "72").env("LINES", "12").envs(variables.iter().copied());
    let (code, out, err) = said(c.output().unwrap());
    assert_eq!(code, 0, "{err}{out}");
    out.replace("\r\n", "\n")
}

#[cfg(unix)]
#[test]
fn a_terminal_gets_lines_of_its_width_color_and_a_pager() {
    let at = folder("terminal");
    let model = deep(&at, 6);
    let args = [&["explain", &model, "--no-pager"], &SPLIT[..]].concat();
    let plain = on_terminal(&args, &[("NO_COLOR", "1")]);
    assert!(plain.contains("all-reduce model") && !plain.contains('\u{1b}'), "{plain}");
    let widest = plain.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 72 && plain.contains('…'), "{widest}: {plain}");
    assert!(run(&args).1.lines().any(|l| l.chars().count() > 72));
    let colored = on_terminal(&args, &[]);
    assert!(colored.contains("\u{1b}[36m"), "{colored}");
    assert!(run(&[&args[..], &["--color", "always"]].concat()).1.contains("\u{1b}[36m"));

    let pages = [("PAGER", "sed s/^/page:/"), ("NO_COLOR", "1")];
    let paged = on_terminal(&[&["explain", &model][..], &SPLIT].concat(), &pages);
    assert!(paged.lines().count() > 12 && paged.lines().all(|l| l.starts_with("page:")), "{paged}");
    assert!(!on_terminal(&args, &pages).contains("page:"));
    // What fits is shown at once; and a pager that is not there hides nothing.
    assert!(
        !on_terminal(
            &[&["explain", &model][..], &SPLIT].concat(),
            &[("PAGER", pages[0].1), ("LINES", "200")]
        )
        .contains("page:")
    );
    let without = on_terminal(&[&["explain", &model][..], &SPLIT].concat(), &[("PAGER", "no_such_pager")]);
    assert!(without.contains("per step and device"), "{without}");
}

const BOTH: [&str; 6] = ["--layout", "dp", "--layout", "zero3", "--mesh", "4"];

#[test]
fn layouts_are_compared_by_cost_and_by_value() {
    let compared = |more: &[&str]| {
        let (code, out, err) = run(&[&["compare", "mlp"], &BOTH[..], more].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{more:?}");
        out
    };
    let report = json(&compared(&["--format", "json"]));
    let variants = report["variants"].as_array().unwrap();
    // The same as `explain` says of each.
    for (v, layout) in variants.iter().zip(["dp", "zero3"]) {
        let one = json(&run(&["explain", "mlp", "--layout", layout, "--format", "json"]).1);
        assert_eq!((v["layout"].as_str(), v["mesh"].as_str()), (Some(layout), Some("data=4")));
        assert_eq!(v["per_device"], one["per_device"]);
        assert_eq!(v["totals"], one["totals"]);
        assert_eq!(v["collectives"].as_u64(), Some(one["collectives"].as_array().unwrap().len() as u64));
    }
    let changes = report["differences"][0]["changes"].as_array().unwrap();
    let found = |change: &str, op: &str, value: &str| {
        changes.iter().any(|c| c["change"] == change && c["op"] == op && c["value"] == value)
    };
    assert!(
        found("vanishes", "all_reduce", "d(h.w)") && found("appears", "reduce_scatter", "d(h.w)"),
        "{report}"
    );
    assert!(found("appears", "all_gather", "h.w") && !found("appears", "all_reduce", "xent"), "{report}");

    let text = compared(&[]);
    assert!(text.contains("zero3 on data=4 against dp on data=4\n"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("  +  forward") && l.contains("all-gather data")), "{text}");
    assert!(text.lines().any(|l| l.starts_with("  -  backward") && l.contains("all-reduce data")), "{text}");
    assert!(!compared(&["--only", "totals"]).contains("against"));
    assert!(!compared(&["--only", "diff"]).contains("per step and device"));

    let csv = compared(&["--format", "csv"]);
    let rows: Vec<Vec<&str>> = csv.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(rows.len(), 3);
    let column = rows[0].iter().position(|t| *t == "collective_bytes").unwrap();
    for (row, v) in rows[1..].iter().zip(variants) {
        assert_eq!(row[column].parse().ok(), v["per_device"]["collective_bytes"].as_u64());
    }
    assert_eq!(compared(&["--format", "csv", "--only", "diff"]).lines().count(), changes.len() + 1);
    let markdown = compared(&["--format", "markdown"]);
    let table: Vec<&str> = markdown.lines().take(4).collect();
    assert!(table.iter().all(|l| l.starts_with("| ") && l.ends_with(" |")), "{markdown}");
    assert_eq!(table[0].matches('|').count(), table[2].matches('|').count());
}

#[test]
fn sizes_and_meshes_are_compared_and_a_variant_that_fails_hides_no_other() {
    let args = [
        "compare",
        "mlp",
        "--layout",
        "dp",
        "--mesh",
        "2",
        "--mesh",
        "4",
        "--dim",
        "batch=8,32",
        "--format",
        "json",
    ];
    let report = json(&run(&args).1);
    let variants: Vec<(u64, &str)> = report["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| (v["dims"]["batch"].as_u64().unwrap(), v["mesh"].as_str().unwrap()))
        .collect();
    assert_eq!(variants, [(8, "data=2"), (8, "data=4"), (32, "data=2"), (32, "data=4")]);

    let args =
        ["compare", "mlp", "--layout", "dp", "--layout", "batch -> data; rows -> data", "--mesh", "data=2"];
    let (code, out, err) = run(&args);
    assert!(code == 1 && err.contains("E0304") && out.lines().any(|l| l.contains("  dp ")), "{out}{err}");
    let (code, _, err) = run(&["compare", "mlp", "--dim", "bach=8,9"]);
    assert!(code == 1 && err.contains("E0201") && err.contains("note: with bach=8:"), "{err}");
    for wrong in [
        &["--dim", "batch=8,x"][..],
        &["--only", "diff", "--format", "json"],
        &["--steps", "3"],
        &["--measure", "--program", "eval"],
    ] {
        assert_eq!(run(&[&["compare", "mlp"][..], wrong].concat()).0, 2, "{wrong:?}");
    }
}

#[test]
fn variants_are_measured() {
    let small = ["--dim", "hidden=8", "--measure", "--steps", "2", "--warmup", "0", "--format", "json"];
    let (code, out, err) = run(&[&["compare", "mlp"], &BOTH[..], &small].concat());
    assert_eq!(code, 0, "{err}");
    for v in json(&out)["variants"].as_array().unwrap() {
        assert!(v["measured"]["median_ms"].as_f64().unwrap() > 0.0 && v["measured"]["samples"] == 2, "{v}");
    }
}

#[test]
fn words_of_the_language_have_pages() {
    for (word, form, says) in [
        ("adam", "optimizer adam(lr, beta1 = 0.9,", "`lr`: a number"),
        ("cosine", "warmup_cosine(peak, warmup, total, floor = 0)", "half a cosine"),
        ("he_normal", "he_normal(fan_in)", "Kaiming"),
        ("freeze", "freeze embed.*", "not trained"),
        ("size", "size(d, e)", "built-in"),
        ("gather", "gather key", "layout keyword"),
    ] {
        let (code, out, err) = run(&["explain", word]);
        assert!(code == 0 && out.contains(form) && out.contains(says), "{word}: {out}{err}");
    }
    let (_, out, _) = run(&["explain", "lion", "--format", "json"]);
    assert_eq!(json(&out)["kind"], "optimizer");
    assert_eq!(json(&out)["settings"].as_array().unwrap().len(), 4);
}

#[test]
fn every_template_trains_as_it_is_on_one_device_and_on_its_layout() {
    let at = folder("templates");
    let here = |args: &[&str]| said(command(args).current_dir(&at).output().unwrap());
    let of_labels = [("mlp", "8"), ("cnn", "6"), ("vit", "6")];
    let of_no_labels = [("lm", "4"), ("bert", "10"), ("autoencoder", "8"), ("diffusion", "10")];
    for (template, epochs) in of_labels.into_iter().chain(of_no_labels) {
        let (code, out, err) = here(&["new", template, "--template", template]);
        assert!(code == 0 && out.contains(&format!("{template}/data/data.toml\n")), "{out}{err}");
        let path = |name: &str| format!("{template}/{name}");
        let (model, layout) = (path(&format!("{template}.mw")), path(&format!("{template}.layout")));
        let (code, out, err) = here(&["fmt", "--check", &model, &layout]);
        assert_eq!((code, err.as_str()), (0, ""), "{template}: {out}");
        let train = |more: &[&str]| {
            let args = [
                "train",
                &model,
                "--data",
                &path("data"),
                "--epochs",
                epochs,
                "--no-save",
                "--format",
                "json",
            ];
            let (code, out, err) = here(&[&args[..], more].concat());
            assert_eq!((code, err.as_str()), (0, ""), "{template}: {out}");
            let events: Vec<Value> = out.lines().map(json).collect();
            let epochs: Vec<&Value> = events.iter().filter(|e| e["event"] == "epoch").collect();
            let loss = |e: &Value| e["eval_loss"].as_f64().unwrap();
            (
                loss(epochs[0]),
                loss(epochs[epochs.len() - 1]),
                epochs[epochs.len() - 1]["eval_accuracy"].as_f64(),
            )
        };
        let (first, last, accuracy) = train(&[]);
        assert!(last < 0.7 * first, "{template}: {first} to {last}");
        assert!(accuracy.is_none_or(|a| a > 0.8), "{template}: {accuracy:?}");
        let (_, split, _) = train(&["--layout", &layout]);
        assert!((split - last).abs() < 0.05 * last, "{template}: {last} and split {split}");
    }
    // Nothing is overwritten.
    let (code, _, err) = here(&["new", "mlp"]);
    assert!(code == 1 && err.contains("E0524"), "{err}");
    assert_eq!(here(&["new", "a-b"]).0, 2);
    assert_eq!(here(&["new", "rnn", "--template", "rnn"]).0, 2);
}

/// What a shell offers after these words.
fn completed(at: &Path, words: &[&str]) -> Vec<String> {
    let mut c = command(&[&["--", "meshwright"], words].concat());
    let (code, out, err) = said(c.env("COMPLETE", "fish").current_dir(at).output().unwrap());
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
    out.lines().map(|l| l.split('\t').next().unwrap().to_string()).collect()
}

#[test]
fn a_shell_completes_names_and_the_dims_of_the_model() {
    let at = folder("completions");
    deep(&at, 2);
    std::fs::write(at.join("own.layout"), "batch -> data\n").unwrap();
    let offers = |words: &[&str], one: &str| {
        let all = completed(&at, words);
        assert!(all.iter().any(|o| o == one), "{words:?}: {all:?}");
    };
    offers(&["train", "mnist_m"], "mnist_mlp");
    offers(&["check", "d"], "deep.mw");
    offers(&["explain", "E031"], "E0310");
    offers(&["explain", "warmup"], "warmup_cosine");
    offers(&["train", "mlp", "--layout", "zer"], "zero3");
    offers(&["compare", "mlp", "--layout", "o"], "own.layout");
    offers(&["train", "deep.mw", "--dim", ""], "ff=");
    offers(&["train", "mlp", "--dim", "hid"], "hidden=");
    offers(&["bench", "model", "mlp", "--set", ""], "lr=");
    offers(&["layouts", "meg"], "megatron_sp");
    offers(&["machines", "sak"], "sakura-one");
    assert!(!completed(&at, &["models", "m"]).contains(&"megatron_sp".to_string()));
    assert_eq!(completed(&at, &["train", "deep.mw", "--dim", "x"]), [""; 0]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, err) = run(&["completions", shell]);
        assert!(code == 0 && out.contains("COMPLETE") && out.contains("meshwright"), "{shell}: {err}");
    }
}

#[test]
fn the_version_names_the_features() {
    let (code, out, _) = run(&["--version"]);
    assert!(code == 0 && out.starts_with("meshwright 0.") && out.contains("features"), "{out}");
    assert_eq!(out.contains("features: mpi"), cfg!(feature = "mpi"), "{out}");
}

#[test]
fn every_command_has_examples_in_its_help() {
    let (_, help, _) = run(&["--help"]);
    let listed = |help: &str| -> Vec<String> {
        let rows = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
        let rows = rows.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
        rows.filter(|c| *c != "help").map(String::from).collect()
    };
    let commands = listed(&help);
    assert!(commands.len() >= 14 && commands.iter().any(|c| c == "compare"), "{commands:?}");
    for command in commands {
        let (_, help, _) = run(&[&command, "--help"]);
        // A command of commands has them below each.
        let below = listed(&help);
        if below.is_empty() {
            assert!(help.contains("Example"), "{command}: {help}");
        }
        for inner in below {
            let (_, help, _) = run(&[&command, &inner, "--help"]);
            assert!(help.contains("Example"), "{command} {inner}: {help}");
        }
    }
}

#[cfg(unix)]
#[test]
fn progress_fits_a_terminal_and_ctrl_c_leaves_nothing_of_it() {
    let at = folder("progress");
    let frames = |text: &str| -> Vec<String> {
        let mut plain = String::new();
        let mut rest = text;
        while let Some(i) = rest.find('\u{1b}') {
            plain += &rest[..i];
            let end = rest[i..].find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |n| i + n + 1);
            // A line that is erased is another frame.
            if rest[i..end].ends_with('K') {
                plain.push('\n');
            }
            rest = &rest[end..];
        }
        (plain + rest).split(['\r', '\n']).map(String::from).collect()
    };
    let train = format!(
        "exec '{}' train mlp --epochs 1000 --run '{}' --no-eval",
        env!("CARGO_BIN_EXE_meshwright"),
        at.join("run").display()
    );
    // Twice: the second one is told that there is no time for a checkpoint.
    for times in [1, 2] {
        let _ = std::fs::remove_dir_all(at.join("run"));
        let stop = "kill -INT \\$!; sleep 0.05; ".repeat(times);
        let script = format!("stty cols 80 rows 24; ({train}) & sleep 4; {stop}wait");
        let mut c = Command::new("timeout");
        c.args(["60", "script", "-qec", &format!("bash -mc \"{script}\""), "/dev/null"])
            .env_remove("NO_COLOR");
        c.env(
            "MESHWRIGHT_DATA",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/data").canonicalize().unwrap(),
        );
        let (_, out, err) = said(c.output().unwrap());
        let all = frames(&out);
        assert!(all.iter().any(|f| f.contains("examples/s") && f.contains('[')), "{out}{err}");
        let bars = all.iter().filter(|f| f.contains("/600000"));
        let widest = bars.map(|f| f.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest}: {all:?}");
        assert!(times == 2 || out.contains("interrupted after step"), "{out}");
        let last = out.rfind("examples/s").unwrap();
        assert!(out[last..].contains("\u{1b}[2K"), "the bar stays: {:?}", &out[last..]);
    }
}

#[test]
fn a_mesh_may_be_given_by_position() {
    let mesh = |layout: &str, mesh: &str| {
        let (code, out, err) =
            run(&["explain", "mlp", "--layout", layout, "--mesh", mesh, "--format", "json"]);
        assert_eq!(code, 0, "{err}");
        let axes = json(&out)["mesh"].as_array().unwrap().clone();
        axes.iter()
            .map(|a| format!("{}={}", a["axis"].as_str().unwrap(), a["size"]))
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_eq!(mesh("dp", "8"), "data=8");
    assert_eq!(mesh("tp", "2"), "model=2");
    assert_eq!(mesh("dp_tp", "2x3"), "data=2,model=3");
    assert_eq!(mesh("rows -> c; batch -> a", "2x3"), "c=2,a=3");
    let (code, _, err) = run(&["check", "mlp", "--layout", "dp_tp", "--mesh", "4"]);
    assert!(code == 1 && err.contains("E0311") && err.contains("`--mesh 4x1`"), "{err}");
    assert!(err.contains("`--mesh data=4,model=1`"), "{err}");
    let (code, _, err) = run(&["bench", "collectives", "--mesh", "4"]);
    assert!(code == 1 && err.contains("E0311"), "{err}");
}

#[test]
fn what_a_shipped_layout_says_of_other_models_is_told_when_asked() {
    let check = |more: &[&str]| run(&[&["check", "mlp", "--layout", "dp_tp"], more].concat()).2;
    assert_eq!(check(&[]), "");
    let told = check(&["-v"]);
    assert!(told.contains("note[E0302]") && told.contains("`heads`"), "{told}");
    // A user's own file may have a mistake in it.
    let at = folder("own_layout").join("own.layout");
    std::fs::write(&at, "mesh data = 2\nbatch, experts -> data\n").unwrap();
    let (code, _, err) = run(&["check", "mlp", "--layout", at.to_str().unwrap()]);
    assert!(code == 0 && err.contains("note[E0302]") && err.contains("`experts`"), "{err}");
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let (code, _, err) = run(&["check", "mlp", "--layout", "classes -> data", "--mesh", "data=16"]);
    assert!(
        code == 0
            && err.contains("warning[E0312]: 6 of 16 devices along `data` hold nothing of `classes` = 10"),
        "{err}"
    );
    let at = folder("warnings");
    let model = run(&["models", "mlp"]).1;
    std::fs::write(at.join("a.mw"), model.replace("    optimizer", "    freeze h.*\n    optimizer")).unwrap();
    let train = |more: &[&str]| {
        let args = [&["train", "a.mw", "--dim", "hidden=8", "--run", "r"], more].concat();
        let (code, _, err) = said(command(&args).current_dir(&at).output().unwrap());
        assert_eq!(code, 0, "{err}");
        err
    };
    let frozen = "warning: the frozen parameters `h.w`, `h.b` keep their initial values";
    let err = train(&["--steps", "1", "--no-eval"]);
    assert!(err.contains(frozen) && !err.contains("nothing measures"), "{err}");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/data/mnist").canonicalize().unwrap();
    let file = |name: &str| data.join(name).display().to_string();
    let given =
        format!("image={},label={}", file("train-images-idx3-ubyte.gz"), file("train-labels-idx1-ubyte.gz"));
    let args = ["train", "a.mw", "--dim", "hidden=8", "--no-save", "--steps", "1", "--data", &given];
    let (code, _, err) = said(command(&args).current_dir(&at).output().unwrap());
    assert!(code == 0 && err.contains("warning: nothing measures the metric `accuracy`"), "{err}");
    // What a checkpoint has set was loaded.
    assert!(!train(&["--steps", "2", "--no-eval", "--resume"]).contains("warning"), "a resumed run");
}

/// Large products that tensor cores do not multiply are named with the reason: those of `f32`, and those of fewer columns than
/// are read at once. An odd vocabulary is none, since such products are cut.
#[test]
fn products_that_no_fast_kernel_of_a_gpu_computes_are_named() {
    let explained = |args: &[&str]| {
        let (code, out, err) = run(&[&["explain"], args].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        out
    };
    let gpt = [
        "gpt",
        "--preset",
        "small",
        "--dim",
        "batch=16",
        "--dim",
        "layers=1",
        "--device",
        "cuda",
        "--precision",
    ];
    let of = |precision| explained(&[&gpt[..], &[precision]].concat());
    let (fast, whole) = (["bf16", "tf32"].map(of), of("f32"));
    assert!(!fast.concat().contains("slow "), "{fast:?}");
    let slow = whole.lines().find(|l| l.starts_with("slow ")).unwrap_or_else(|| panic!("{whole}"));
    assert!(
        slow.contains("tensor cores do not multiply `f32` exactly")
            && slow.contains(" others), a product of "),
        "{slow}"
    );
    let mlp = [
        "mnist_mlp",
        "--dim",
        "batch=16384",
        "--dim",
        "hidden2=65536",
        "--precision",
        "bf16",
        "--device",
        "cuda",
    ];
    let mlp = [&mlp[..], &["--layout", "classes -> c", "--mesh", "c=2", "--format", "json"]].concat();
    let report = json(&explained(&mlp));
    let found = report["slow_products"].as_array().unwrap();
    let because = "it has 5 columns, and tensor cores take 8 at a time";
    assert!(found.iter().any(|p| p["path"] == "logits" && p["because"] == because), "{found:?}");
    let without = json(&explained(&[&mlp[..7], &mlp[9..]].concat()));
    assert!(without.get("slow_products").is_none(), "asked for nothing");
}
