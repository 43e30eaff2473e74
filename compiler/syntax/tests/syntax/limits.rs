//! No text takes long or overflows the stack.

use std::time::{Duration, Instant};

use meshwright_diag::FileId;
use meshwright_syntax::ast::{Expr, ExprKind, ItemKind, MeshOption};
use meshwright_syntax::{MAX_BYTES, MAX_ERRORS, parse_layout, parse_mesh, parse_model, parse_mtf_layout};

fn code_of(expr: &str) -> &'static str {
    let (tree, d) = parse_model(FileId(0), &format!("dim a = {expr}\n"));
    assert_eq!(tree.is_none(), !d.is_empty());
    d.first().map_or("", |d| d.code.id)
}

#[test]
fn deep_trees_are_refused_and_shallow_ones_are_not() {
    let around = |open: &str, close: &str, n: usize| format!("{}x{}", open.repeat(n), close.repeat(n));
    // Half of the stack that threads usually have.
    let small = std::thread::Builder::new().stack_size(1 << 20).spawn(move || each_is_refused(&around));
    small.unwrap().join().unwrap();
}

fn each_is_refused(around: &dyn Fn(&str, &str, usize) -> String) {
    for (shallow, deep) in [
        (around("(", ")", 128), around("(", ")", 129)),
        (around("f(", ")", 128), around("f(", ")", 100_000)),
        (around("sum[d](", ")", 127), around("sum[d](", ")", 10_000)),
        (around("- ", "", 500), around("- ", "", 100_000)),
        (around("not ", "", 500), around("not ", "", 100_000)),
        (around("", " + 1", 500), around("", " + 1", 100_000)),
        (around("", " ** 2", 500), around("", " ** 2", 100_000)),
        (around("", "[a -> b]", 500), around("", "[a -> b]", 50_000)),
        (around("f(", ")[a -> b]", 100), around("1 + (- ", ")", 129)),
    ] {
        assert_eq!(code_of(&shallow), "", "{shallow:.40}");
        assert_eq!(code_of(&deep), "E0102", "{deep:.40}");
    }
    let blocks = |n: usize| format!("model m {{ {} x = 1 {} }}", "repeat d {".repeat(n), "}".repeat(n));
    assert!(parse_model(FileId(0), &blocks(127)).0.is_some());
    assert_eq!(parse_model(FileId(0), &blocks(128)).1[0].code.id, "E0102");
}

#[test]
fn the_depth_of_a_tree_is_bounded_over_all_kinds_of_levels() {
    fn depth(e: &Expr) -> usize {
        1 + match &e.kind {
            ExprKind::Unary { operand, .. } => depth(operand),
            ExprKind::Binary { lhs, rhs, .. } => depth(lhs).max(depth(rhs)),
            ExprKind::Call(c) => c.args.iter().map(|a| depth(&a.value)).max().unwrap_or(0),
            _ => 0,
        }
    }
    // Each bracket holds a chain: together far deeper than either limit alone allows.
    let mut text = "x".to_string();
    for _ in 0..100 {
        text = format!("f({text}{})", " + 1".repeat(4));
    }
    let (tree, _) = parse_model(FileId(0), &format!("dim a = {text}"));
    let ItemKind::Dims(dims) = &tree.unwrap().items[0].kind else { panic!() };
    assert_eq!(depth(&dims[0].value), 501);
    assert_eq!(code_of(&format!("f({text}{})", " + 1".repeat(40))), "E0102");
}

#[test]
fn large_files_are_refused() {
    let text = " ".repeat(MAX_BYTES + 1);
    assert_eq!(parse_model(FileId(0), &text).1[0].code.id, "E0103");
    assert_eq!(parse_layout(FileId(0), &text).1[0].code.id, "E0103");
    assert_eq!(parse_mesh(FileId(0), &text).1[0].code.id, "E0103");
    assert!(parse_model(FileId(0), &text[1..]).0.is_some());
}

#[test]
fn time_is_linear_whatever_the_text() {
    let pieces = [
        "let ",
        "}",
        "{",
        "model m {",
        "a, ",
        "dim a = 1\n",
        "let x = f(f(f(f(f(f(1 ",
        "model m { let x = (",
        "\"",
        "\"\n",
        "// 1\n",
        "1 // 1\n",
        "- ",
        "x = ",
        ")",
        "x[",
        "a -> b;",
        "a -> b\n",
        "mesh a=1,",
        ": ",
        "é",
        "lett x\n",
        "/// a\n",
        "size s {",
        "a:b ",
        " ",
        "gather a, ",
        "params layers.*: ",
        "*",
        "repeat d { x = 1 }\n",
        ".",
        "f(",
    ];
    let heads = ["", "model m { let x = ", "model m { let x = f(", "mesh a = ", "dim a = 1 + "];
    // LONG=1: every head before every piece, and files of the largest size.
    let long = std::env::var_os("LONG").is_some();
    for (i, piece) in pieces.into_iter().enumerate() {
        let some = if long { &heads[..] } else { &heads[i % heads.len()..][..1] };
        for head in some {
            let size = if long { MAX_BYTES } else { MAX_BYTES / 2 };
            let text = (*head).to_string() + &piece.repeat((size - 64) / piece.len());
            // The fastest of three, since the machine may be busy.
            let times = (0..3).map(|_| {
                let start = Instant::now();
                let (_, d) = parse_model(FileId(0), &text);
                assert!(d.len() <= MAX_ERRORS);
                assert!(parse_layout(FileId(0), &text).1.len() <= MAX_ERRORS);
                parse_mtf_layout(FileId(0), &text);
                parse_mesh(FileId(0), &text);
                start.elapsed()
            });
            assert!(times.into_iter().any(|t| t < Duration::from_secs(10)), "{head}{piece:?}… takes long");
        }
    }
}

#[test]
fn nested_calls_do_not_backtrack() {
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(code_of(&format!("{}x{}", "f[a](b, k = g(".repeat(60), "))".repeat(60))), "");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Between pairs, and beside their signs, any blank may stand.
#[test]
fn every_blank_separates_the_axes_of_a_mesh() {
    for blank in ["\u{a0}", "\u{3000}", "\u{2028}", "\u{c}", " \u{a0} ", ",\u{a0}"] {
        for text in
            [format!("r=2{blank}c=3"), format!("r{blank}=2,c={blank}3{blank}"), format!("{blank}r=2,c=3")]
        {
            // `r ,= 2` is a mistake, which is said.
            let (mesh, found) = parse_mesh(FileId(0), &text);
            let axes = mesh.iter().flat_map(|m| match m {
                MeshOption::Named(m) => &m.axes[..],
                MeshOption::Sizes { .. } => &[],
            });
            let sizes: Vec<(String, u64)> = axes.map(|a| (a.name.text.clone(), a.size)).collect();
            let right = [("r".to_string(), 2), ("c".to_string(), 3)];
            assert!(
                sizes == right || blank.contains(',') && !found.is_empty(),
                "{text:?}: {sizes:?} {found:?}"
            );
        }
    }
}
