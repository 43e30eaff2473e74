//! The table of foreign words against the language: a word gives one error, with advice; each fix is applied, and the text
//! compiled again.

use super::*;
use meshwright_diag::foreign::{Advice, TABLE, WordPlace};
use meshwright_diag::has_errors;
use meshwright_ops::families;
use meshwright_ops::signature::Form;

const HEAD: &str = "dim batch = 2, a = 3, b = 4, c = 4, d = 3
model m {
    input x[batch, a]: float
    input y[batch, a]: float
    let p = x > y
";

/// Everything that is found in a text, and whether it compiles.
fn compiled(text: &str) -> Vec<Diagnostic> {
    let (tree, mut found) = parse_model(FileId(0), text);
    if let Some(tree) = tree {
        let (_, more) = resolve(&tree, None, &Settings::default(), &mut |_, _| (None, Vec::new()));
        found.extend(more);
    }
    found
}

/// A text with a word in its place; several where it may stand in several forms.
fn texts(place: WordPlace, word: &str) -> Vec<String> {
    let model = |body: &str| {
        format!("{HEAD}    param w[a, b] = 1\n    {body}\n    loss l = mean[batch, a, b](x * w)\n}}\n")
    };
    let train = |lines: &str| format!("{} train m {{\n    {lines}\n}}\n", model(""));
    match place {
        // Of truth values.
        WordPlace::Call if word.starts_with("reduce_a") => {
            vec![model(&format!("output o = {word}(p)")), model(&format!("output o = {word}[a](p)"))]
        }
        WordPlace::Call => {
            ["(x)", "(x, y)", "[a](x)"].iter().map(|f| model(&format!("output o = {word}{f}"))).collect()
        }
        WordPlace::Statement => vec![
            model(&format!("{word} x > 0:\n        z = x\n        y = z")),
            model(&format!("let z = x {word} y")),
        ],
        WordPlace::Method => {
            vec![model(&format!("let z = x.{word}")), model(&format!("let z = x.{word}(y)"))]
        }
        // Between two values that each of them would fit.
        WordPlace::Sign => vec![model(&match word {
            "=>" => "let z = x[a => d]".to_string(),
            "^" => "let z = x ^ 2".to_string(),
            "&" | "&&" | "|" => format!("let z = p {word} p"),
            _ => format!("let z = x {word} y"),
        })],
        WordPlace::Setting => [" = 3", " 3", ": 3", "(3)"]
            .iter()
            .flat_map(|value| {
                let line = format!("{word}{value}");
                [
                    format!("minimize l\n    optimizer sgd(lr = 0.1)\n    {line}"),
                    format!("{line}\n    minimize l\n    optimizer sgd(lr = 0.1)"),
                ]
            })
            .map(|lines| train(&lines))
            .collect(),
        WordPlace::Argument => {
            let optimizer = format!("minimize l\n    optimizer adam({word} = 0.1)");
            let both = format!("minimize l\n    optimizer adam(lr = 1, {word} = 0.1)");
            vec![
                train(&if word == "learning_rate" { optimizer } else { both }),
                model(&format!("let z = sum[a](x, {word} = 1)")),
                model(&format!("let z = relu(x, {word}=-1)")),
            ]
        }
        WordPlace::Initializer => vec![
            format!("{HEAD} param w[a, b] = {word}()\n output o = x * w }}"),
            format!("{HEAD} param w[a, b, batch] = {word}(0.1)\n output o = x * w }}"),
            format!("{HEAD} param w[a] = {word}(0.1)\n output o = x * w }}"),
        ],
        WordPlace::LearningRate => vec![train(&format!("minimize l\n    optimizer sgd(lr = {word}(0.1))"))],
        // Layouts and the command line have their own tests.
        WordPlace::LayoutSign | WordPlace::Option => Vec::new(),
    }
}

fn text_of(d: &Diagnostic) -> String {
    format!("{} {:?} {:?}", d.message, d.helps, d.fixes.iter().map(|f| &f.replacement).collect::<Vec<_>>())
}

#[test]
fn each_word_gives_one_error_and_no_fix_another() {
    let (mut tried, mut fixed, mut problems) = (0, 0, Vec::new());
    let said = |found: &[Diagnostic]| -> String {
        found.iter().filter(|d| d.is_error()).map(|d| text_of(d) + "\n").collect()
    };
    for (place, words) in TABLE {
        for (word, _) in *words {
            for text in texts(*place, word) {
                tried += 1;
                let found = compiled(&text);
                let wrong: Vec<&Diagnostic> = found.iter().filter(|d| d.is_error()).collect();
                let [one] = wrong[..] else {
                    problems.push(format!(
                        "{place:?} `{word}`: {} errors:\n{text}{}",
                        wrong.len(),
                        said(&found)
                    ));
                    continue;
                };
                if one.helps.is_empty() && one.fixes.is_empty() {
                    problems.push(format!("{place:?} `{word}`: no advice: {}", text_of(one)));
                }
                for fix in &one.fixes {
                    fixed += 1;
                    let mut again = text.clone();
                    again.replace_range(fix.span.start as usize..fix.span.end as usize, &fix.replacement);
                    let found = compiled(&again);
                    if has_errors(&found) {
                        problems.push(format!("{place:?} `{word}`: fixed:\n{again}{}", said(&found)));
                    }
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}:\n{}", problems.len(), problems.join("\n"));
    assert!(tried > 300 && fixed > 40, "{tried} texts, {fixed} fixes");
}

#[test]
fn what_is_advised_is_there() {
    let (_, calls) = TABLE[0];
    for (foreign, here) in calls {
        let spelled = families().any(|f| f.name == *foreign && f.signature.form != Form::Syntax);
        assert!(!spelled, "`{foreign}` is no foreign name");
        if let Advice::Name(here) = here {
            assert!(families().any(|f| f.name == *here), "`{here}` for `{foreign}`");
        }
    }
}

#[test]
fn a_second_spelling_of_sharing() {
    let text = format!(
        "{DENSE} {HEAD} let u = dense(x, [a], [b]) as first let v = dense(y, [a], [b]) as first shared output o = u + v }}"
    );
    let found = compiled(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    let fix = &found[0].fixes[0];
    let mut again = text;
    again.replace_range(fix.span.start as usize..fix.span.end as usize, &fix.replacement);
    assert_eq!(fix.replacement, "sharing first");
    assert!(compiled(&again).is_empty());
}

/// What may stand in place of a call, in models whose values have what it needs.
#[test]
fn what_is_to_be_written_compiles() {
    let heads = |output: &str| {
        let models = [
            "input x[batch, d]: float input y[batch, d]: float input z[batch, d]: float",
            "input x[batch, d]: bool input y[batch, d]: bool",
            "dims input x[batch, a, b]: float",
            "dims input x[batch, c]: float",
            "input a[batch]: float input b[batch]: float input c[batch]: bool",
        ];
        models.map(|inputs| {
            let (dims, inputs) = match inputs.strip_prefix("dims ") {
                Some(inputs) => (", a = 2, b = 2, c = 4", inputs),
                None => ("", inputs),
            };
            format!(
                "dim batch = 2, d = 4, e = 4, k = 2, vocab = 4{dims}\nconst low = 0, high = 1\nmodel m {{\n {inputs}\n \
                 input token[batch]: i32 in vocab\n param table[vocab, e] = 1\n param w[d] = 1\n output o = {output}\n}}\n"
            )
        })
    };
    let (mut checked, mut problems) = (0, Vec::new());
    for (place, words) in TABLE {
        if !matches!(place, WordPlace::Call | WordPlace::Method | WordPlace::Statement) {
            continue;
        }
        for (word, advice) in *words {
            let Advice::Written(form) = advice else { continue };
            if form.starts_with("use ") {
                continue;
            }
            for one in form.split('`').step_by(2) {
                let fits = heads(one).iter().any(|text| !has_errors(&compiled(text)));
                if !fits {
                    problems.push(format!(
                        "`{word}`: `{one}`: {}",
                        heads(one)
                            .map(|t| compiled(&t).first().map_or(String::new(), text_of))
                            .join("\n    ")
                    ));
                }
                checked += 1;
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked > 50, "{checked}");
}

#[test]
fn lines_and_schedules_that_are_to_be_written_compile() {
    let head = "model m {\n input x[batch]: float\n param w[] = 1\n loss l = mean[batch](x * w)\n}\n";
    let train = |lines: &str| format!("dim batch = 2\n{head}train m {{\n minimize l\n {lines}\n}}\n");
    for (place, words) in TABLE {
        for (word, advice) in *words {
            let Advice::Written(form) = advice else { continue };
            let text = match place {
                WordPlace::LearningRate => train(&format!("optimizer sgd(lr = {form})")),
                WordPlace::Setting => train(&format!("optimizer sgd(lr = 0.1)\n {form}")),
                _ => continue,
            };
            let found = compiled(&text);
            assert!(!has_errors(&found), "`{word}`: {form}: {found:?}");
        }
    }
}

#[test]
fn a_sign_in_a_layout_gives_one_error_and_its_fix_none() {
    let (_, signs) = TABLE.iter().find(|t| t.0 == WordPlace::LayoutSign).unwrap();
    for (sign, advice) in *signs {
        let text = match *sign {
            "=>" => "batch => r\n".to_string(),
            "<" => "batch <- r\n".to_string(),
            _ => format!("batch -> r {sign} c\n"),
        };
        let found = meshwright_syntax::parse_layout(FileId(0), &text).1;
        assert_eq!(found.len(), 1, "{sign}: {found:?}");
        match advice {
            Advice::Name(_) => {
                let fix = &found[0].fixes[0];
                let mut again = text;
                again.replace_range(fix.span.start as usize..fix.span.end as usize, &fix.replacement);
                let found = meshwright_syntax::parse_layout(FileId(0), &again).1;
                assert!(found.is_empty(), "{again}: {found:?}");
            }
            _ => assert!(!found[0].helps.is_empty(), "{found:?}"),
        }
    }
}
