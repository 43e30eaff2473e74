//! Mistakes in model files: what is said, where, and that each independent one is said once.

use meshwright_diag::FileId;
use meshwright_syntax::parse_model;

use crate::support::model;

fn check(text: &str, expected: &[&str]) {
    let (tree, errors) = model(text);
    assert!(tree.is_none());
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected, "{text}");
}

#[test]
fn independent_mistakes_are_all_reported() {
    check(
        "modle mlp {\n  let x = a\n  lett y = f(x b)\n  retrun x\n}\ndim a = \nlayer f(x in) {\n  let a = b +\n}\ndim c = 1, d\n",
        &[
            "m:1:1: error[E0101]: there is no keyword `modle`",
            "m:3:3: error[E0101]: there is no keyword `lett`",
            "m:3:16: error[E0101]: expected `,` or `)`, found `b`",
            "m:4:3: error[E0101]: there is no keyword `retrun`",
            "m:7:1: error[E0101]: expected an expression, found `layer`",
            "m:7:11: error[E0101]: expected `,` or `)`, found `in`",
            "m:9:1: error[E0101]: expected an expression, found `}`",
            "m:10:13: error[E0101]: expected `=`, found the end of the file",
        ],
    );
    check(
        "model m {\n let x = a b\n input y[c]: i32 in\n repeat { x = 3 4 }\n let t = x[seq key]\n let u = f(x))\n let z = a < b < c\n}\n}\nlet q = 1\nfoo bar",
        &[
            "m:2:12: error[E0101]: expected the next statement, found `b`",
            "m:4:2: error[E0101]: expected a name, found `repeat`",
            "m:4:9: error[E0101]: expected a name, found `{`",
            "m:4:17: error[E0101]: expected the next statement, found `4`",
            "m:5:16: error[E0101]: expected `,`, `->` or `]`, found `key`",
            "m:6:14: error[E0101]: this `)` closes nothing",
            "m:7:16: error[E0101]: comparisons do not chain",
            "m:9:1: error[E0101]: this `}` closes nothing",
        ],
    );
    check(
        "train m {\n minimse x\n optimizer adam(lr = )\n clip a 1\n}\nuse layers\nuse \"a\ndim n = 99999999999999999999\nconst x = 1e999\nsize s { a = 1 b 3 }",
        &[
            "m:2:2: error[E0101]: there is no keyword `minimse`",
            "m:3:22: error[E0101]: expected an expression, found `)`",
            "m:4:9: error[E0101]: expected `=` or the next setting, found `1`",
            "m:6:5: error[E0101]: expected a file name in quotes, found `layers`",
            "m:7:5: error[E0106]: this string has no closing quote",
            "m:8:9: error[E0105]: this number is too large",
            "m:9:11: error[E0105]: this number is too large",
            "m:10:16: error[E0101]: expected `,` or the next entry, found `b`",
        ],
    );
}

#[test]
fn a_missing_brace_does_not_swallow_the_next_item() {
    check(
        "model m {\n let x = 1\ntrain m {\n minimize x\n",
        &[
            "m:3:1: error[E0101]: expected `}`, found `train`",
            "m:4:12: error[E0101]: expected `}`, found the end of the file",
        ],
    );
}

#[test]
fn open_brackets_and_habits_of_other_languages_are_explained() {
    let (_, d) = parse_model(FileId(0), "model m {\n let x = f(a,\n  b = 3\n let y = 1\n}");
    assert_eq!(d[0].labels[1].text, "this bracket is open");
    for (text, replacement) in [("a && b", "and"), ("a ^ b", "**"), ("a; let b = 1", ""), ("x[a => b]", "->")]
    {
        let (_, d) = parse_model(FileId(0), &format!("model m {{ let x = {text} }}"));
        assert_eq!(d[0].fixes[0].replacement, replacement, "{text}");
    }
}

#[test]
fn a_comment_that_could_be_a_divisor_is_refused() {
    let ambiguous = [
        "768 // heads",
        "768 // 12",
        "(768) // heads * 2",
        "768 // 2, y = 3",
        "768 // (heads)",
        "768 // -heads",
        "768// -12",
        "768 //-12",
        "768 // --12 * heads",
        "768//- heads",
        "768 // !heads",
        "768 // +2",
        "768 //+heads",
        "768 // 2.",
        "768 // .5",
        "768 // -index(heads)",
        "768 // sum[heads](12)",
    ];
    for text in ambiguous {
        let (_, d) = parse_model(FileId(0), &format!("dim heads = 12\ndim d = {text}\n"));
        assert_eq!(d.len(), 1, "{text}: {d:?}");
        assert_eq!(d[0].code.id, "E0107");
        for fix in &d[0].fixes {
            let mut fixed = format!("dim heads = 12\ndim d = {text}\n");
            fixed.replace_range(fix.span.start as usize..fix.span.end as usize, &fix.replacement);
            assert!(parse_model(FileId(0), &fixed).0.is_some(), "{fixed}");
        }
    }
    let clear = [
        "768 // the heads",
        "768 // images",
        "768 // 3 of them",
        "768//heads",
        "768 /// heads",
        "768 //",
        "768 // - the heads",
        "768 //-- the heads",
        "768// -3 of them",
        "768//-heads",
        "768 // 12. Then",
        "768 // ...",
        "768 // -",
        "768//---",
        "768//! the heads",
        "768 // (the) heads",
        "768//--heads",
        "768//!heads",
    ];
    for text in clear {
        let (tree, d) = model(&format!("dim heads = 12\ndim d = {text}\n// heads\n"));
        assert!(tree.is_some(), "{text}: {d}");
    }
}

/// A sign that no operand has, or a point without a digit before it, does not make a comment of a division.
#[test]
fn what_touches_two_operands_divides_whatever_its_sign() {
    for (divisor, at) in [("+2", "2:14"), (".5", "2:14"), ("-+a", "2:15")] {
        let (_, d) = model(&format!("dim a = 3\nconst c = 7//{divisor}\n"));
        assert!(d.contains(&format!("{at}: error[E0101]: expected an expression")), "{divisor}: {d}");
    }
    let text = "dim a = 3\nmodel m {\n input i[a]: i32\n param w[a] = 1\n output q = i // -i\n output r = i // w\n}\n";
    let (_, d) = model(text);
    assert!(d.contains("m:5:15: error[E0107]") && d.contains("m:6:15: error[E0107]"), "{d}");
}

/// Words that also stand in expressions, each used as a dim in five places, beside their own uses.
#[test]
fn a_word_of_expressions_that_is_declared_is_one_mistake() {
    for word in ["return", "true", "false", "and", "or", "not"] {
        let text = format!(
            "dim batch = 4, d = 3, {word} = 8\nlayer f(x) {{\n return (x)\n}}\nmodel m {{\n input x[batch, d]: float\n param w[d, {word}] = 1\n param v[{word}, d] = 1\n let h = sum[d](x * w)[{word} -> e] + size({word})\n let some = (h > 0) and (h < 1) or not (h > 2) and true\n let other = where(false, true, f(x))\n loss l = mean[batch](sum[{word}](h * v))\n}}\n"
        );
        check(
            &text,
            &[&format!("m:1:23: error[E0101]: `{word}` is a reserved word, which cannot be a name")],
        );
    }
    // Where none is declared, they are what they are.
    let text = "model m {\n input x[a]: float\n let y = f(x, true) and (not (x > 1)) or false\n}\n";
    assert!(model(text).0.is_some(), "{}", model(text).1);
}
