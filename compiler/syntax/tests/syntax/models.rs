//! What model files mean.

use meshwright_syntax::ast::{
    At, BinaryOp, Expr, ExprKind, Item, ItemKind, Statement, StatementKind, TrainKind, UnaryOp,
};

use crate::support::{MODELS, model};

/// The tree of an expression in prefix form.
pub(crate) fn prefix(e: &Expr) -> String {
    let args = |args: &[meshwright_syntax::ast::Arg]| {
        let one = |a: &meshwright_syntax::ast::Arg| match &a.name {
            Some(n) => format!("{}={}", n.text, prefix(&a.value)),
            None => prefix(&a.value),
        };
        args.iter().map(one).collect::<Vec<_>>().join(",")
    };
    let names = |n: &[meshwright_syntax::ast::Name], by: &str| {
        n.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join(by)
    };
    let items = |items: &[meshwright_syntax::ast::DimItem]| {
        let one = |i: &meshwright_syntax::ast::DimItem| {
            let at = match &i.at {
                None => String::new(),
                Some(At::Value(e)) => format!("={}", prefix(e)),
                Some(At::Range(l, h)) => format!("={}..{}", prefix(l), prefix(h)),
            };
            let to = if i.to.is_empty() { String::new() } else { format!("->{}", names(&i.to, "*")) };
            let by = i.window.as_ref().map_or(String::new(), |w| format!(" by {}", w.text));
            format!("{}{at}{to}{by}", names(&i.dims, "*"))
        };
        items.iter().map(one).collect::<Vec<_>>().join(",")
    };
    match &e.kind {
        ExprKind::Int(v) => v.to_string(),
        ExprKind::Float(v) => format!("{v:?}"),
        ExprKind::Bool(v) => v.to_string(),
        ExprKind::Str(s) => format!("{s:?}"),
        ExprKind::Name(n) => n.clone(),
        ExprKind::Unary { op, operand } => {
            format!("({} {})", if *op == UnaryOp::Neg { "neg" } else { "not" }, prefix(operand))
        }
        ExprKind::Binary { op, lhs, rhs, .. } => format!("({} {} {})", op.symbol(), prefix(lhs), prefix(rhs)),
        ExprKind::Call(c) => {
            let label = c.label.as_ref().map_or(String::new(), |l| {
                format!(" {} {}", if l.shares { "sharing" } else { "as" }, l.name.text)
            });
            format!("{}({}){label}", c.name.text, args(&c.args))
        }
        ExprKind::DimOp(d) => {
            let groups: Vec<_> = d.groups.iter().map(|g| items(g)).collect();
            format!("{}[{}]({})", d.name.text, groups.join(";"), args(&d.args))
        }
        ExprKind::Index { base, items: i } => format!("{}<{}>", prefix(base), items(i)),
        ExprKind::DimList(d) => format!("[{}]", names(d, ",")),
    }
}

fn items(text: &str) -> Vec<Item> {
    let (tree, errors) = model(text);
    tree.unwrap_or_else(|| panic!("{text}\n{errors}")).items
}

fn body(text: &str) -> Vec<Statement> {
    let items = items(&format!("model m {{ {text} }}"));
    match items.into_iter().next().unwrap().kind {
        ItemKind::Model(m) => m.body,
        other => panic!("{other:?}"),
    }
}

fn expr(text: &str) -> String {
    match &body(&format!("let x = {text}"))[..] {
        [Statement { kind: StatementKind::Let { value, .. }, .. }] => prefix(value),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn calls_name_or_share_parameters() {
    assert_eq!(expr("f(x) as a - f(y) sharing a"), "(- f(x) as a f(y) sharing a)");
    // A keyword only behind a call and before a name.
    assert_eq!(body("let x = f(y) sharing = x sharing, z = g(x)").len(), 3);
}

#[test]
fn shipped_programs_parse() {
    for (name, text) in MODELS {
        let (tree, errors) = model(text);
        assert!(tree.is_some() && errors.is_empty(), "{name}: {errors}");
    }
}

#[test]
fn bert_has_the_right_tree() {
    let items = items(include_str!("programs/bert.mw"));
    let kinds: Vec<_> = items
        .iter()
        .map(|i| match &i.kind {
            ItemKind::Dims(d) => format!("dim {}", d.len()),
            ItemKind::Layer(l) => format!("layer {} {} {}", l.name.text, l.params.len(), l.body.len()),
            ItemKind::Model(m) => format!("model {} {}", m.name.text, m.body.len()),
            ItemKind::Train(t) => format!("train {} {}", t.model.text, t.settings.len()),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "dim 2",
            "dim 2",
            "dim 4",
            "dim 1",
            "dim 2",
            "layer dense 3 3",
            "layer norm 1 4",
            "layer attention 2 6",
            "layer feed_forward 1 2",
            "model bert 17",
            "train bert 4"
        ]
    );
    assert!(items[7].doc.starts_with("Attention of every position") && items[7].doc.ends_with("renames it."));
    assert_eq!(items[5].doc, "");
    let (ItemKind::Model(bert), ItemKind::Train(train)) = (&items[9].kind, &items[10].kind) else { panic!() };
    let StatementKind::Repeat(repeat) = &bert.body[9].kind else { panic!("{:?}", bert.body[9]) };
    assert_eq!((repeat.dim.text.as_str(), &repeat.index, repeat.body.len()), ("layers", &None, 2));
    let StatementKind::Let { value, .. } = &bert.body[8].kind else { panic!() };
    assert_eq!(
        prefix(value),
        "dropout(norm((+ (+ word<vocab=token> position) kind<segments=segment>)) as embed,0.1)"
    );
    let TrainKind::Clip(clip) = &train.settings[2].kind else { panic!() };
    assert_eq!((clip.name.text.as_str(), prefix(&clip.args[0].value)), ("global_norm", "1.0".to_string()));
}

#[test]
fn operators_bind_as_documented() {
    for (text, tree) in [
        ("a + b * c - d", "(- (+ a (* b c)) d)"),
        ("a - b - c", "(- (- a b) c)"),
        ("a / b // c", "(/ a b)"), // `//` with blanks is a comment
        ("a / b//c % 2", "(% (// (/ a b) c) 2)"),
        ("-a ** -b ** c * d", "(* (neg (** a (neg (** b c)))) d)"),
        ("not a == b and c or d", "(or (and (not (== a b)) c) d)"),
        ("!a == b", "(== (not a) b)"),
        ("- - a", "(neg (neg a))"),
        ("(a + b) * (c)", "(* (+ a b) c)"),
        ("1 - -1e-9 + 10_000 + 2.5E+3", "(+ (+ (- 1 (neg 1e-9)) 10000) 2500.0)"),
        ("true and \"a\\\"b\\n\" != x", "(and true (!= \"a\\\"b\\n\" x))"),
        ("note + android + trueish", "(+ (+ note android) trueish)"),
    ] {
        let text = if text.contains(" // ") { format!("{text} words and more\n") } else { text.to_string() };
        assert_eq!(expr(&text), tree, "{text}");
    }
}

#[test]
fn dims_move_as_documented() {
    for text in [
        "conv[rows by kh,cols by kw;in](x,w,padding=same)",
        "conv[rows->r2 by kh](x,stride=2)",
        "concat[a,b->c](x,y)",
        "shift[d,by=1](x)",
        "pad[d->e,low=1,high=1](x)",
        "f(x,[rows,cols],[]) as out",
        "size(a,b)",
    ] {
        assert_eq!(expr(text), text);
    }
    for (text, tree) in [
        ("x[seq -> key]", "x<seq->key>"),
        ("t[vocab = token + 1]", "t<vocab=(+ token 1)>"),
        ("x[seq = 0..64 -> head]", "x<seq=0..64->head>"),
        (
            "x[d_model -> heads * d_head][heads * d_head -> d_model]",
            "x<d_model->heads*d_head><heads*d_head->d_model>",
        ),
        ("f(x)[a -> b]", "f(x)<a->b>"),
        ("(x + y)[a -> b]", "(+ x y)<a->b>"),
        ("t[a = i - 1 -> b]", "t<a=(- i 1)->b>"),
        ("sum[by by as](in * same)", "sum[by by as]((* in same))"),
    ] {
        assert_eq!(expr(text), tree, "{text}");
    }
}

#[test]
fn statements_end_where_the_next_begins() {
    let one_line =
        body("let a, b = f(x) x = a y = b loss l = x metric m = y output o = x state s = 0 return a");
    let kinds: Vec<_> = one_line.iter().map(|s| (s.span.end - s.span.start) as usize).collect();
    assert_eq!(kinds, [15, 5, 5, 10, 12, 12, 11, 8]);
    let lines = body("let a =\n f(\n x\n)\n\n- 1 // comment\n let c = 2");
    assert_eq!(lines.len(), 2);
    let crlf = body("let a = f(x)\r\n// c\r\nlet c = 2\r\n");
    assert_eq!(crlf.len(), 2);
}

#[test]
fn every_item_statement_and_setting_parses() {
    let text = "\u{feff}//! One.\n//! Two.\nuse \"layers.mw\"\nconst a = 1, b = a * 2\n/// Base.\nsize base { layers = 12, heads = 3\n d = 4 }
        layer f(x, in, rate = 0.1,) { param w: f32 = 1 state m[in]: f64 = 0 return x, w }
        model m { input x[batch, t]: i32 in vocab input real: bool
            repeat layers as i { x = f(x) repeat heads { y = x } } }
        train m { minimize l optimizer sgd clip value(1.0, to = 2) precision bf16
            freeze embed.*, *.norm1 weight_decay 0.01 except *.b, norm.* weight_decay except a }";
    let (tree, errors) = model(text);
    let tree = tree.unwrap_or_else(|| panic!("{errors}"));
    assert_eq!((tree.doc.as_str(), tree.items.len()), ("One.\nTwo.", 6));
    assert_eq!(tree.items[2].doc, "Base.");
    let ItemKind::Size(base) = &tree.items[2].kind else { panic!() };
    assert_eq!(base.values.len(), 3);
    let ItemKind::Train(train) = &tree.items[5].kind else { panic!() };
    let TrainKind::Freeze(globs) = &train.settings[4].kind else { panic!() };
    assert_eq!(globs.iter().map(|g| g.text.as_str()).collect::<Vec<_>>(), ["embed.*", "*.norm1"]);
    let TrainKind::WeightDecay { value, except } = &train.settings[5].kind else { panic!() };
    assert_eq!((value.is_some(), except.len()), (true, 2));
}

#[test]
fn spans_cover_what_was_written() {
    let text = "model m {\n  let é_no = 1\n}";
    assert!(model(text).0.is_none());
    let text = "model m {\n  // é\n  let x = f( a ) as b // ü\n  + (1 +  2)[ c -> d ]\n}";
    let (tree, _) = model(text);
    let items = tree.unwrap().items;
    let ItemKind::Model(m) = &items[0].kind else { panic!() };
    let StatementKind::Let { names, value } = &m.body[0].kind else { panic!() };
    let slice = |s: meshwright_diag::Span| &text[s.start as usize..s.end as usize];
    assert_eq!(slice(names[0].span), "x");
    assert_eq!(slice(value.span), "f( a ) as b // ü\n  + (1 +  2)[ c -> d ]");
    let ExprKind::Binary { op: BinaryOp::Add, lhs, rhs, op_span } = &value.kind else { panic!() };
    assert_eq!(
        (slice(lhs.span), slice(*op_span), slice(rhs.span)),
        ("f( a ) as b", "+", "(1 +  2)[ c -> d ]")
    );
    let ExprKind::Index { base, items } = &rhs.kind else { panic!() };
    assert_eq!((slice(base.span), slice(items[0].span)), ("(1 +  2)", "c -> d"));
    assert_eq!(slice(m.body[0].span), slice(names[0].span.to(value.span)).replace("x =", "let x =").as_str());
}

/// `scan` begins a loop only before a dim: elsewhere it is a name.
#[test]
fn a_scan_is_a_loop_and_may_be_a_name() {
    let text = "model m {\n    input scan[batch, seq]: float\n    let h = 0\n    scan seq as i {\n        h = h + scan\n        \
                let all = h\n    }\n    let c = h\n    scan rows {\n        c = c + 1\n    }\n    scan = c\n    output out = all + scan\n}\n";
    let (file, found) = meshwright_syntax::parse_model(meshwright_diag::FileId(0), text);
    let file = file.unwrap_or_else(|| panic!("{found:?}"));
    let ItemKind::Model(m) = &file.items[0].kind else { panic!("{:?}", file.items[0]) };
    let loops = m.body.iter().filter_map(|s| match &s.kind {
        StatementKind::Repeat(r) => Some((r.scan, r.dim.text.as_str(), r.index.is_some())),
        _ => None,
    });
    assert_eq!(loops.collect::<Vec<_>>(), [(true, "seq", true), (true, "rows", false)]);
}

/// Runs are chosen by metrics, so each says which of its values are better.
#[test]
fn each_metric_of_a_shipped_model_has_a_direction() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let (mut models, mut metrics) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "mw") {
            continue;
        }
        let (tree, said) = model(&std::fs::read_to_string(&path).unwrap());
        let items = tree.unwrap_or_else(|| panic!("{path:?}: {said}")).items;
        let bodies =
            items.iter().filter_map(|i| if let ItemKind::Model(m) = &i.kind { Some(&m.body) } else { None });
        for statement in bodies.flatten() {
            let StatementKind::Metric(metric) = &statement.kind else { continue };
            let name = &metric.binding.name.text;
            assert!(metric.better.is_some(), "{path:?}: `metric {name}` lacks `min` or `max`");
            metrics += 1;
        }
        models += 1;
    }
    assert!(models >= 12 && metrics >= 12, "{models} models, {metrics} metrics");
}
