//! How runs begin: several at once, and under a shell that has them ignore signals.

use crate::support::folder;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

fn command(at: &Path, program: &str) -> Command {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/data").canonicalize().unwrap();
    let mut c = Command::new(program);
    c.env("MESHWRIGHT_DATA", data).current_dir(at).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

#[test]
fn runs_that_begin_at_the_same_time_take_folders_of_their_own() {
    let at = folder("parallel-starts");
    let args = ["train", "mlp", "--steps", "1", "--no-eval", "--cores", "1", "--dim", "hidden=8"];
    let start = || command(&at, env!("CARGO_BIN_EXE_meshwright")).args(args).spawn().unwrap();
    let children: Vec<_> = (0..6).map(|_| start()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for n in 1..=6 {
        assert!(at.join(format!("runs/mlp-{n}/run.toml")).is_file(), "{n}");
    }
    // A start that fails leaves nothing behind.
    let wrong = folder("failed-start");
    let mut c = command(&wrong, env!("CARGO_BIN_EXE_meshwright"));
    let output = c.args(["train", "mlp", "--data", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&wrong).unwrap().count(), 0);
}

/// Sends signals to a training whose shell has ignored some of them, and gives its exit code and whether it took all steps.
fn signaled(at: &Path, ignored: &str, sent: &[&str]) -> (Option<i32>, bool) {
    let train = format!(
        "exec env --default-signal=TERM '{}' train mlp --steps 60 --no-eval --no-save --format json --dim hidden=8",
        env!("CARGO_BIN_EXE_meshwright")
    );
    let trap = if ignored.is_empty() { String::new() } else { format!("trap '' {ignored}; ") };
    let mut child =
        command(at, "env").args(["--default-signal=INT,HUP", "sh", "-c", &(trap + &train)]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    for signal in sent {
        assert!(Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap().success());
    }
    let done = out.lines().map_while(Result::ok).any(|l| l.contains("\"event\":\"done\""));
    (child.wait().unwrap().code(), done)
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    let at = folder("signals");
    assert_eq!(signaled(&at, "HUP", &["-HUP", "-HUP"]), (Some(0), true), "as under nohup");
    assert_eq!(signaled(&at, "INT HUP", &["-INT", "-INT", "-HUP"]), (Some(0), true));
    assert_eq!(signaled(&at, "INT", &["-HUP"]), (Some(130), false), "others are heard");
    assert_eq!(signaled(&at, "", &["-INT"]), (Some(130), false));
}

/// What is compiled for long is ended by a signal at once: there is nothing that a checkpoint would keep.
#[test]
fn a_signal_ends_a_command_that_has_not_begun_to_train() {
    let at = folder("signal-before-steps");
    let loops: String = (0..1_800).map(|i| format!("    repeat k {{ y = dn(y) as a{i} }}\n")).collect();
    let model = format!(
        "dim batch = 4, d = 3, k = 2\nlayer dn(x) {{\n    param w[d] = 1\n    return tanh(x * w)\n}}\nmodel m {{\n    input x[batch, d]: float\n    let y = x\n{loops}    loss l = mean[batch, d](y * y)\n}}\ntrain m {{\n    minimize l\n    optimizer sgd(lr = 0.1)\n}}\n"
    );
    std::fs::write(at.join("m.mw"), model).unwrap();
    std::fs::write(at.join("x.csv"), "a,b,c\n1,2,3\n4,5,6\n7,8,9\n1,2,3\n").unwrap();
    let data = "[train]\nx = { file = \"x.csv\", columns = [\"a\", \"b\", \"c\"] }\n";
    std::fs::write(at.join("data.toml"), data).unwrap();
    let train = [
        "train",
        "m.mw",
        "--data",
        ".",
        "--no-eval",
        "--steps",
        "100000",
        "--run",
        "run",
        "--format",
        "json",
    ];
    // It is as large as a model may be, and takes seconds to compile for several devices.
    let split = ["--mesh", "a=2,b=2", "--layout", "batch -> a; d -> b"];
    // Long before such a model is compiled.
    let child_of = |args: &[&str]| {
        command(&at, "env")
            .arg("--default-signal=TERM")
            .arg(env!("CARGO_BIN_EXE_meshwright"))
            .args(args)
            .spawn()
    };
    for args in [&train[..], &["explain", "m.mw"], &["check", "m.mw"]] {
        let args = &[args, &split].concat();
        let child = child_of(args).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        // By the signal itself, or by whoever hears it.
        assert!(matches!(output.status.code(), None | Some(130)), "{args:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("\"step\""), "{args:?}");
        assert!(
            !at.join("run/checkpoints").exists()
                || std::fs::read_dir(at.join("run/checkpoints")).unwrap().count() == 0
        );
    }
}

/// Few examples, of which the usual share is none.
#[test]
fn the_share_that_is_suggested_can_be_held_out() {
    let at = folder("held-out");
    let model = "dim batch = 1, d = 2\nmodel m {\n    input x[batch, d]: float\n    param w[d] = 1\n    \
        loss l = mean[batch](sum[d](x * w))\n}\ntrain m { minimize l optimizer sgd(lr = 0.1) }\n";
    std::fs::write(at.join("m.mw"), model).unwrap();
    let train = |examples: usize, share: &str| {
        crate::support::npy(&at.join("x.npy"), "<f4", &format!("({examples}, 2)"), &vec![0; examples * 8]);
        let args = ["train", "m.mw", "--data", "x=x.npy", "--steps", "1", "--no-save", "--validation", share];
        let output = command(&at, env!("CARGO_BIN_EXE_meshwright")).args(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for examples in [2, 3, 4, 5, 40] {
        let (code, err) = train(examples, "0.0001");
        let said = format!("error[E0516]: a share of 0.0001 of {examples} examples cannot be held out");
        assert!(code == 1 && err.contains(&said), "{err}");
        let share = err.split("such as `--validation ").nth(1).unwrap().split('`').next().unwrap();
        let (code, err) = train(examples, share);
        assert_eq!(code, 0, "{share} of {examples}: {err}");
    }
    let (code, err) = train(1, "0.5");
    assert!(code == 1 && err.contains("0.5 of 1 example cannot be held out"), "{err}");
    assert!(err.contains("help: leave `--validation` out") && !err.contains("such as"), "{err}");
}
