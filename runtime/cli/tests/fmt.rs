//! `meshwright fmt` as users run it.

use crate::support::{folder, said};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const UGLY: &str = "dim a=3 // size\nmodel m{input x[a]:float\n// out\noutput y=x+1}";
const NEAT: &str =
    "dim a = 3  // size\nmodel m {\n    input x[a]: float\n    // out\n    output y = x + 1\n}\n";

/// A folder of its own for a test, empty at the start.
fn command(at: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    c.arg("fmt").args(args).current_dir(at);
    c
}

fn fmt(at: &Path, args: &[&str]) -> (i32, String, String) {
    said(command(at, args).output().unwrap())
}

fn piped(at: &Path, args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut child = command(at, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    said(child.wait_with_output().unwrap())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn what_ships_is_in_style() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (code, out, err) = fmt(&root, &["--check", "models", "layouts"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("0 files differ, ") && !out.contains(", 0 in style"), "{out}");
}

#[test]
fn files_and_folders_are_rewritten_in_place() {
    let at = folder("in_place");
    std::fs::create_dir_all(at.join("sub/.hidden")).unwrap();
    for (name, text) in [
        ("a.mw", UGLY),
        ("sub/b.layout", "mesh  r=2;a->r"),
        ("sub/neat.mw", NEAT),
        ("sub/c.txt", UGLY),
        ("sub/.hidden/d.mw", UGLY),
    ] {
        std::fs::write(at.join(name), text).unwrap();
    }
    let (code, out, err) = fmt(&at, &["--check", "."]);
    assert!(code == 1 && err.starts_with("note: ") && err.contains(" not in the one style"), "{err}");
    let wanted = "--- ./a.mw\n+++ ./a.mw formatted\n@@ -1,4 +1,6 @@\n-dim a=3 // size\n";
    assert!(out.starts_with(wanted) && out.contains("+mesh r = 2\n+a -> r\n"), "{out}");
    assert!(out.ends_with("2 files differ, 1 in style already\n"), "{out}");
    assert_eq!(read(&at.join("a.mw")), UGLY);

    let (code, out, err) = fmt(&at, &["."]);
    let wanted = "formatted ./a.mw\nformatted ./sub/b.layout\n2 files formatted, 1 in style already\n";
    assert_eq!((code, out.as_str(), err.as_str()), (0, wanted, ""));
    assert_eq!(read(&at.join("a.mw")), NEAT);
    assert_eq!(read(&at.join("sub/b.layout")), "mesh r = 2\na -> r\n");
    assert_eq!(read(&at.join("sub/c.txt")), UGLY);
    assert_eq!(read(&at.join("sub/.hidden/d.mw")), UGLY);
    assert_eq!(fmt(&at, &["--check", "a.mw", "sub"]).0, 0);
    let left = std::fs::read_dir(&at).unwrap().count();
    assert_eq!(left, 2, "a file was left behind");

    // Other names need the language.
    let (code, _, err) = fmt(&at, &["sub/c.txt"]);
    assert!(code == 1 && err.contains("E0515") && err.contains("--language model"), "{err}");
    assert_eq!(fmt(&at, &["sub/c.txt", "--language", "model"]).0, 0);
    assert_eq!(read(&at.join("sub/c.txt")), NEAT);
}

#[test]
fn a_file_with_errors_stays_and_others_are_formatted() {
    let at = folder("errors");
    std::fs::write(at.join("bad.mw"), "dim a = \ndim  b = 3").unwrap();
    std::fs::write(at.join("bytes.mw"), b"dim a = 1 // \xff\n").unwrap();
    std::fs::write(at.join("good.mw"), UGLY).unwrap();
    let (code, out, err) = fmt(&at, &["."]);
    assert_eq!(code, 1);
    assert!(out.contains("formatted ./good.mw\n"), "{out}");
    assert!(err.contains("error[E0101]") && err.contains("./bad.mw:2:1"), "{err}");
    assert!(err.contains("cannot read `./bytes.mw`: byte 13 is not UTF-8"), "{err}");
    assert_eq!(read(&at.join("bad.mw")), "dim a = \ndim  b = 3");
    assert_eq!(read(&at.join("good.mw")), NEAT);

    let (code, out, err) = fmt(&at, &["missing.mw"]);
    assert!(code == 1 && out.is_empty() && err.contains("cannot read `missing.mw`"), "{err}");
    std::fs::create_dir(at.join("empty")).unwrap();
    let (code, _, err) = fmt(&at, &["empty"]);
    assert!(code == 1 && err.contains("no model and no layout is below `empty`"), "{err}");
    for usage in [&[][..], &["-", "good.mw"], &["--language", "rust", "good.mw"]] {
        assert_eq!(fmt(&at, usage).0, 2, "{usage:?}");
    }
}

#[test]
fn standard_input_goes_to_standard_output() {
    let at = folder("stdin");
    assert_eq!(piped(&at, &["-"], UGLY.as_bytes()), (0, NEAT.into(), String::new()));
    let layout = ["-", "--language", "layout"];
    assert_eq!(piped(&at, &layout, b"a->r").1, "a -> r\n");
    let (code, out, err) = piped(&at, &["-"], b"dim a = ");
    assert!(code == 1 && out.is_empty() && err.contains("standard input:1:"), "{err}");
    let (code, _, err) = piped(&at, &["-"], b"dim \xfe");
    assert!(code == 1 && err.contains("cannot read standard input: byte 4 is not UTF-8"), "{err}");
    assert_eq!(piped(&at, &["-", "--check"], NEAT.as_bytes()).0, 0);
    let (code, out, _) = piped(&at, &["-", "--check"], UGLY.as_bytes());
    assert!(code == 1 && out.starts_with("--- standard input\n"), "{out}");
}

#[test]
fn line_ends_tabs_and_the_last_line() {
    let at = folder("ends");
    std::fs::write(at.join("a.mw"), NEAT.replace('\n', "\r\n")).unwrap();
    let (code, out, _) = fmt(&at, &["--check", "a.mw"]);
    assert_eq!(code, 1);
    assert_eq!(
        out,
        "a.mw: lines end in CR LF, where LF alone is wanted\n1 file differs, 0 in style already\n"
    );
    assert_eq!(fmt(&at, &["a.mw"]).0, 0);
    assert_eq!(read(&at.join("a.mw")), NEAT);
    let tabs = NEAT.replace("    ", "\t");
    assert_eq!(piped(&at, &["-"], tabs.trim_end().as_bytes()).1, NEAT);
    let (_, out, _) = piped(&at, &["-", "--check"], NEAT.trim_end().as_bytes());
    assert!(out.contains("No newline at end of file"), "{out}");
}

#[test]
fn reports_for_programs() {
    let at = folder("json");
    std::fs::write(at.join("a.mw"), UGLY).unwrap();
    let lines = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let (code, out, _) = fmt(&at, &["--check", "a.mw", "--format", "json"]);
    let line = &lines(&out)[0];
    assert_eq!((code, line["status"].as_str()), (1, Some("differs")));
    assert!(line["diff"].as_str().unwrap().contains("+dim a = 3"));
    assert_eq!(lines(&fmt(&at, &["a.mw", "--format", "json"]).1)[0]["status"], "formatted");
    assert_eq!(lines(&fmt(&at, &["a.mw", "--format", "json"]).1)[0]["status"], "unchanged");
    let (code, out, err) = piped(&at, &["-", "--format", "json"], b"dim");
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(lines(&err)[0]["diagnostic"]["code"], "E0101");
}

#[cfg(unix)]
#[test]
fn permissions_and_links_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let at = folder("unix");
    std::fs::write(at.join("real.mw"), UGLY).unwrap();
    std::fs::set_permissions(at.join("real.mw"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("real.mw", at.join("link.mw")).unwrap();
    assert_eq!(fmt(&at, &["link.mw"]).0, 0);
    assert!(at.join("link.mw").is_symlink());
    assert_eq!(read(&at.join("real.mw")), NEAT);
    assert_eq!(at.join("real.mw").metadata().unwrap().permissions().mode() & 0o777, 0o640);

    std::fs::write(at.join("fixed.mw"), UGLY).unwrap();
    std::fs::set_permissions(at.join("fixed.mw"), PermissionsExt::from_mode(0o444)).unwrap();
    let (code, _, err) = fmt(&at, &["fixed.mw"]);
    assert!(code == 1 && err.contains("E0524") && err.contains("read-only"), "{err}");
    assert_eq!(read(&at.join("fixed.mw")), UGLY);
}
