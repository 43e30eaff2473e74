//! Other sizes by another table: the same as by the text, or the text is asked for.

use super::{program, run};
use crate::passes::rebind::NeedsText;
use crate::program::{Program, Settings};

const HEAD: &str = "
dim batch = 6, seq = 4, key = seq, d = 3, e = 5, vocab = 7, two = 2, three = 3, more = 6
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    return sum[in](x * w)
}
model m {
";

fn sizes(list: &[(&str, usize)]) -> Vec<(String, usize)> {
    list.iter().map(|(n, s)| (n.to_string(), *s)).collect()
}

fn resolved(text: &str, list: &[(&str, usize)]) -> Option<Program> {
    run(text, &Settings { dims: sizes(list), ..Settings::default() }).0.0
}

/// All that makes a program what it is.
fn assert_same(a: &Program, b: &Program) {
    assert_eq!(a.graph.dims, b.graph.dims);
    assert_eq!(a.graph.captured, b.graph.captured);
    assert_eq!(a.consts, b.consts);
    assert_eq!(a.graph.nodes.len(), b.graph.nodes.len());
    for (x, y) in a.graph.nodes.iter().zip(b.graph.nodes.iter()) {
        assert!(*x.op == *y.op, "{:?} and {:?}", x.op, y.op);
        assert_eq!((&x.inputs, &x.ty, &x.origin), (&y.inputs, &y.ty, &y.origin));
    }
}

/// Bodies whose sizes are all in the table, among them one of another `batch` and of a dim that follows another.
#[test]
fn another_table_gives_what_the_text_gives() {
    for body in [
        "input x[batch, d]: f32\n loss l = mean[batch](sum[d](x * x))",
        "input x[batch, d]: f32\n let h = dense(x, d, e)\n output y = softmax[e](h)\n loss l = mean[batch, e](h)",
        "input x[batch, seq, d]: f32\n let s = sum[d](x * x[seq -> key])\n loss l = mean[batch](sum[seq, key](s))",
        "input x[batch, seq]: i32 in vocab\n param t[vocab, d] = normal(0, 1)\n loss l = mean[batch, seq, d](t[vocab = x])",
        // A window along another dim than those that change.
        "input x[batch, seq, d]: f32\n loss l = mean[batch, seq, e](max_pool[d -> e by three](x, stride = 1, padding = 2))",
    ] {
        let text = format!("{HEAD}{body}\n}}\n");
        for list in [&[("batch", 1)][..], &[("batch", 100)], &[("seq", 9)], &[("seq", 2), ("batch", 7)]] {
            let program = program(&text);
            let other = program.rebind(&sizes(list)).unwrap_or_else(|e| panic!("{list:?} {e:?}\n{body}"));
            let expected = resolved(&text, list).unwrap();
            assert_same(&other, &expected);
            assert_eq!(other.graph.dims.size(other.graph.dims.find("key").unwrap()), {
                let d = &expected.graph.dims;
                d.size(d.find("seq").unwrap())
            });
            // And back.
            let sizes: Vec<(String, usize)> =
                program.graph.dims.iter().map(|(d, n)| (n.to_string(), program.graph.dims.size(d))).collect();
            assert_same(&other.rebind(&sizes).unwrap(), &program);
        }
    }
}

/// Wherever a size goes into a value as a number, the text is asked for.
#[test]
fn a_size_that_became_a_number_needs_the_text() {
    for (dim, body) in [
        ("batch", "input x[batch, d]: f32\n loss l = sum[batch, d](x) / size(batch)"),
        ("seq", "input x[batch, seq]: f32\n loss l = mean[batch, seq](x * (1 / sqrt(size(key))))"),
        ("seq", "input x[batch, seq]: f32\n loss l = mean[batch](x[seq = 3])"),
        ("seq", "input x[batch, seq]: f32\n loss l = mean[batch, two](x[seq = 1..3 -> two])"),
        (
            "seq",
            "input x[batch, seq]: f32\n loss l = mean[batch, more](pad[seq -> more, low = 1, high = 1](x))",
        ),
        ("seq", "input x[batch, seq]: f32\n loss l = mean[batch, seq](shift[seq](x, by = 1, wrap = true))"),
        (
            "seq",
            "input x[batch, seq]: f32\n loss l = mean[batch, seq](mean_pool[seq by d](x, stride = 1, padding = same))",
        ),
        (
            "seq",
            "input x[batch, seq]: f32\n param w[d] = normal(0, 1)\n loss l = mean[batch, seq](conv[seq by d](x, w, padding = same))",
        ),
        (
            "d",
            "input x[batch, d]: f32\n param w[d, e] = he_normal(fan_in = d)\n loss l = mean[batch, e](sum[d](x * w))",
        ),
    ] {
        let text = format!("{HEAD}{body}\n}}\n");
        let program = program(&text);
        let size = program.graph.dims.size(program.graph.dims.find(dim).unwrap());
        let found = program.rebind(&sizes(&[(dim, size + 2)]));
        assert!(matches!(found, Err(NeedsText::Captured(_))), "{body}: {found:?}");
        // The same sizes are the same program.
        assert_same(&program.rebind(&sizes(&[(dim, size)])).unwrap(), &program);
    }
    let text = "dim batch = 6\nconst share = 1 / size(batch)\nmodel m {\n input x[batch]: f32\n loss l = sum[batch](x) * share\n}\n";
    let program = program(text);
    assert_eq!(program.rebind(&sizes(&[("batch", 3)])).unwrap_err(), NeedsText::Const("share".into()));
}

/// What the text refuses is not made of a table either.
#[test]
fn sizes_that_do_not_go_together_are_refused() {
    let head = "dim batch = 6, twin = 6, six = 6, a = 2, b = batch//a\nmodel m {\n";
    for (body, list) in [
        ("input x[batch]: f32\n loss l = sum[batch, twin](x * x[batch -> twin])", &[("batch", 5)][..]),
        ("input x[six]: f32\n loss l = sum[a, b](x[six -> a * b])", &[("batch", 8)]),
        ("input x[batch]: f32\n loss l = sum[batch](x)", &[("nobody", 3)]),
        // A dim that is too large, and a value that is.
        ("input x[batch]: f32\n loss l = sum[batch](x)", &[("batch", 1 << 40)]),
        (
            "input x[batch, twin]: f32\n loss l = sum[batch, twin](x)",
            &[("batch", 1 << 30), ("twin", 1 << 30)],
        ),
    ] {
        let text = format!("{head}{body}\n}}\n");
        let program = program(&text);
        assert_eq!(program.rebind(&sizes(list)).unwrap_err(), NeedsText::Refused, "{body} {list:?}");
    }
}
