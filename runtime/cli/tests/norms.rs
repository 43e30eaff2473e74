//! Norms of the library over all magnitudes: their results and gradients are right, or E0517 names them.

use crate::not_finite::{LAYOUTS, failed, first_loss, prepared, train};
use std::path::{Path, PathBuf};

/// The norms of the library, of `x` times a number.
fn norms(name: &str, norm: &str, scale: &str) -> PathBuf {
    let body = format!(
        "    let h = (x + 0 * mean[m](w)) * {scale}\n    let y = {norm}\n    loss l = mean[batch, n](y * y * y * y) + 0 * sum[n, m](w)\n"
    );
    with_groups(name, &body)
}

/// A model that uses the library, with dims for groups of `n`.
fn with_groups(name: &str, body: &str) -> PathBuf {
    let at = prepared(name, body, "    optimizer sgd(lr = 0.1)\n");
    let text = std::fs::read_to_string(at.join("bad.mw")).unwrap();
    let dims = text.replace("m = 3", "m = 3, groups = 2, each = 2, turns = 2");
    std::fs::write(at.join("bad.mw"), format!("use \"std:nn\"\n{dims}")).unwrap();
    at
}

const NORMS: [&str; 4] = [
    "layer_norm(h, n, eps = 1e-4)",
    "rms_norm(h, n, eps = 1e-4)",
    "batch_norm(h, n, batch, eps = 1e-4)",
    "group_norm(h, n, groups, each, [], eps = 1e-4)",
];

/// Squares of what is normalized may be beyond `f16`, since they are `f32`; where they are beyond that, the norm is named.
#[test]
fn norms_of_huge_values_are_right_or_named() {
    for (k, norm) in NORMS.into_iter().enumerate() {
        let fits = |scale| norms(&format!("norm-fits-{k}"), norm, scale);
        let want = first_loss(&fits("1"), &["--precision", "f64"]);
        for layout in LAYOUTS {
            for (scale, precision, tolerance) in [("1e17", "f32", 1e-3), ("9000", "f16", 0.02)] {
                let got = first_loss(&fits(scale), &[&layout[1..], &["--precision", precision]].concat());
                assert!(
                    (got - want).abs() < tolerance * want,
                    "{norm} {layout:?} {precision}: {got}, not {want}"
                );
            }
            let at = norms("norm-named", norm, "1e22");
            for precision in ["f32", "bf16"] {
                let err = failed(&at, &[layout, &["--steps", "2", "--precision", precision]].concat());
                for part in [
                    "error[E0517]: the loss `l` is NaN at step 1: the first value that is not finite is `",
                    "inverse_root",
                ] {
                    assert!(err.contains(part), "{norm} {layout:?} {precision}: {part}: {err}");
                }
            }
        }
    }
}

/// The derivative of what a norm multiplies by is the cube of that: it does not fit in `f32` from elements of 1e13 on, the
/// gradient does up to 1e16. So it is with roots and quotients that are written out.
#[test]
fn gradients_of_norms_of_huge_and_tiny_values_are_right() {
    let written = [
        "h / sqrt(mean[n](h * h))",
        "h * mean[n](h * h) ** -0.5",
        "h * (1 / sqrt(mean[n](h ** 2)))",
        "h * rsqrt(mean[n](h * h))",
    ];
    for (k, norm) in NORMS.into_iter().chain(written).enumerate() {
        let norm = norm.replace("1e-4", "1e-30");
        let after = |scale: &str, more: &[&str]| -> Vec<f64> {
            let body = format!(
                "    let h = x * (mean[m](w) + cast(index(n), float)) * {scale}\n    let y = {norm}\n    loss l = mean[batch](sum[n](y * y * y))\n"
            );
            let at = with_groups(&format!("norm-gradient-{k}"), &body);
            first_loss(&at, more);
            parameter(&at)
        };
        let want = after("1", &["--precision", "f64"]);
        for layout in LAYOUTS {
            for scale in ["1e-9", "1e12", "1e13", "1e15"] {
                let got = after(scale, &[&layout[1..], &["--precision", "f32"]].concat());
                let near = got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 2e-4);
                assert!(near, "{norm} {layout:?} times {scale}: {got:?}, not {want:?}");
            }
        }
    }
}

/// The values of `w` in the newest checkpoint.
fn parameter(at: &Path) -> Vec<f64> {
    let newest = meshwright_runs::checkpoint::Which::Newest;
    let read = meshwright_train::read_checkpoint(&at.join("r"), newest).unwrap();
    read.checkpoint.whole().unwrap()["w"].to_f64().unwrap()
}

/// Norms that are written out, with all that a text may put between the root and the squares.
const WRITTEN: [&str; 8] = [
    "h * rsqrt(mean[n](h * h) + EPS)",
    "h / sqrt(mean[n](h * h) + EPS)",
    "h * (1 / sqrt(EPS + mean[n](h ** 2)))",
    "h * (sum[n](square(h)) / 4 + EPS) ** -0.5",
    "h / (0.25 * sum[n](h * h) + EPS) ** 0.5",
    "h * rsqrt(mean[n](h * h * cast(index(n) < 4, float)) + EPS)",
    "h / sqrt(mean[n]((h / 2) * (h / 2)) + mean[n](h * h) + EPS)",
    "unstacked(h)",
];

/// The same in the body of a loop, which reads what is normalized from around it.
const IN_A_LOOP: &str = "    let s = 0 * h\n    repeat turns { s = s + h * rsqrt(mean[n](h * h) + EPS) }\n";

/// From 1e-30 to 1e30, and closely where squares leave the range of `f32`.
#[test]
fn gradients_of_norms_of_any_magnitude_are_right_or_named() {
    let wide = (-30..=30).step_by(10).map(|e| format!("1e{e}"));
    let edges = ["2e-19", "1e-17", "1e16", "1e17", "1e18", "2e18", "1e19"];
    let scales: Vec<String> = wide.chain(edges.map(String::from)).collect();
    let scales: Vec<&str> = scales.iter().map(String::as_str).collect();
    for (k, norm) in NORMS.into_iter().enumerate() {
        for eps in ["1e-5", "0"] {
            right_or_named((&format!("norm-magnitude-{k}"), norm, "inverse_root"), eps, &scales, 4);
        }
    }
}

/// Each way of writing a norm out with one `eps`.
#[test]
fn gradients_of_written_norms_of_any_magnitude_are_right_or_named() {
    for (k, norm) in WRITTEN.into_iter().enumerate() {
        let scales = ["1e-17", "1e17", "1e18", "1e30"];
        right_or_named((&format!("norm-written-{k}"), norm, ""), ["1e-5", "0"][k % 2], &scales, 2);
    }
}

/// Checks that gradients are those of `f64`, under so many layouts, or the norm is named, with that word.
fn right_or_named((name, norm, word): (&str, &str, &str), eps: &str, scales: &[&str], layouts: usize) {
    let mut named = Vec::new();
    for scale in scales {
        // Of two elements alone a norm makes 1 and -1, whatever they are.
        let norm = norm.replace("1e-4", eps).replace("[]", "batch").replace("EPS", eps);
        let (before, norm) = match norm.as_str() {
            "unstacked(h)" => (IN_A_LOOP.replace("EPS", eps), "s".to_string()),
            _ => (String::new(), norm),
        };
        let body = format!(
            "    let h = (x + mean[m](w) * x * x) * {scale}\n{before}    let y = {norm}\n    loss l = mean[batch](sum[n](y * x * x * cast(index(n), float)))\n"
        );
        let at = with_groups(name, &body);
        let text = std::fs::read_to_string(at.join("bad.mw")).unwrap();
        std::fs::write(at.join("bad.mw"), text.replace("w[n, m] = 1", "w[n, m] = 0")).unwrap();
        let after = |more: &[&str]| {
            let _ = std::fs::remove_dir_all(at.join("r"));
            let output = train(&at, more).args(["--run", "r", "--steps", "1"]).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            let named = err.contains("error[E0517]") && err.contains(word);
            assert_eq!(named, !output.status.success(), "{norm} times {scale}: {err}");
            (!named).then(|| parameter(&at))
        };
        let want = after(&["--precision", "f64"]).expect("all fits in f64");
        let largest = want.iter().fold(0f64, |most, g| most.max(g.abs()));
        for layout in LAYOUTS.iter().take(if scale.ends_with('7') { layouts } else { 1 }) {
            let Some(got) = after(&[&layout[1..], &["--precision", "f32"]].concat()) else {
                named.push(*scale);
                continue;
            };
            let near = got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-4 * largest);
            assert!(near, "{norm} {layout:?} times {scale}: {got:?}, not {want:?}");
        }
    }
    let expected = |scale: &&str| {
        let scale: f64 = scale.parse().unwrap();
        // The largest element is 7 times that.
        scale > 1e18 || (eps == "0" && scale < 1e-17)
    };
    assert!(named.iter().all(expected), "{norm} {eps}: {named:?}");
    assert!(named.contains(&"1e30"), "{norm} {eps}: {named:?}");
}

/// What a norm that is written out makes of constants alone has no gradient that could show it.
#[test]
fn written_norms_of_huge_values_without_a_gradient_are_named() {
    for norm in
        ["y * rsqrt(mean[n](y * y))", "y / sqrt(mean[n](y * y))", "y * min(1, 2 / sqrt(sum[n](y * y)))"]
    {
        let body = format!(
            "    let y = x * 1e22\n    let z = {norm}\n    loss l = mean[batch, n](z * z) + 0 * sum[n, m](w)\n"
        );
        let at = with_groups("norm-of-data", &body);
        let err = failed(&at, &["--steps", "2", "--precision", "f32"]);
        assert!(err.contains("error[E0517]: the loss `l` is NaN at step 1"), "{norm}: {err}");
        first_loss(&at, &["--precision", "f64"]);
    }
}
