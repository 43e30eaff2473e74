//! What resolves, and to what.

use super::*;
use meshwright_ops::{Class, Id, InputOpKind, Kind};
use meshwright_plan::{Arithmetic, DType, Init, Phase};

const MLP: &str = "
//! One hidden layer.
dim batch = 100
dim rows = 28, cols = 28
dim hidden = 1024
dim classes = 10
model mlp {
    input image[batch, rows, cols]: u8
    input label[batch]: i32 in classes
    let x      = cast(image, float) / 255
    let h      = relu(dense(x, [rows, cols], [hidden]))
    let logits = dense(h, [hidden], [classes])
    loss   xent     = mean[batch](cross_entropy[classes](logits, label))
    metric accuracy = mean[batch](argmax[classes](logits) == label)
}
const lr = 0.1
train mlp {
    minimize xent
    optimizer sgd(lr = lr)
}
";

fn mlp() -> String {
    format!("{MLP}{DENSE}")
}

fn shapes(p: &Program) -> Vec<String> {
    p.params.iter().map(|d| format!("{}{}", d.path, p.graph.dims.list(&p.graph.ty(d.id).dims))).collect()
}

/// A value as a term: `contract[batch](x, w)`.
fn term(p: &Program, id: Id) -> String {
    let n = p.graph.node(id);
    let name = match n.op.kind() {
        Kind::Input(InputOpKind::Input { name }) => return name,
        Kind::Input(InputOpKind::Param { path, .. }) => return path,
        _ if n.op.name() == "const" => {
            let text = format!("{:?}", n.op);
            let from = text.find("value: ").unwrap() + 7;
            return text[from..].split(',').next().unwrap().to_string();
        }
        _ => n.op.name(),
    };
    let args: Vec<String> = n.inputs.iter().map(|i| term(p, *i)).collect();
    if args.is_empty() { name.to_string() } else { format!("{name}({})", args.join(", ")) }
}

fn loss_term(body: &str) -> String {
    let p = program(&format!(
        "dim batch = 6, seq = 4, key = seq, d = 3, e = 5, vocab = 7
        model m {{ input a[batch, d]: float param b[d, e] = 0 input s[batch, seq]: float input i[batch]: i32 in vocab
            param t[vocab, d] = 0 input p[batch]: bool
            {body} }}"
    ));
    let last = p.losses.last().or(p.outputs.last()).unwrap().id;
    term(&p, last)
}

#[test]
fn the_mlp_has_the_paths_and_shapes_of_the_design() {
    let p = program(&mlp());
    assert_eq!(
        shapes(&p),
        ["h.w[rows cols hidden]", "h.b[hidden]", "logits.w[hidden classes]", "logits.b[classes]"]
    );
    assert_eq!((p.model.as_str(), p.float, p.losses.len(), p.metrics.len()), ("mlp", Arithmetic::F32, 1, 1));
    assert_eq!(
        term(&p, p.losses[0].id),
        "mean(cross_entropy(add(contract(relu(add(contract(/(cast(image), 255.0), h.w), h.b)), logits.w), logits.b), label))"
    );
    assert!(p.graph.ty(p.losses[0].id).dims.is_empty());
    let image = &p.inputs[0].0;
    assert_eq!((image.name.as_str(), image.dtype, image.dims.len()), ("image", DType::U8, 3));
    assert_eq!(p.inputs[1].0.range.map(|r| p.graph.dims.size(r)), Some(10));
    let Kind::Input(InputOpKind::Param { init, .. }) = p.graph.node(p.params[0].id).op.kind() else {
        panic!()
    };
    assert_eq!(init, Init::Normal { mean: 0.0, std: 1.0 / 28.0 });
    assert_eq!(p.dim_spans.len(), 5);
}

#[test]
fn values_know_where_they_come_from() {
    let text = mlp();
    let p = program(&text);
    let slice = |id: Id| {
        let span = p.graph.node(id).origin.span;
        &text[span.start as usize..span.end as usize]
    };
    let w = p.graph.node(p.params[0].id);
    assert_eq!((w.origin.class, &*w.origin.path, &*w.origin.name), (Class::Param, "h.w", "h.w"));
    let contract = p.graph.ids().find(|i| p.graph.node(*i).op.name() == "contract").unwrap();
    let o = &p.graph.node(contract).origin;
    assert_eq!((o.class, o.phase, &*o.path, &*o.name), (Class::Value, Phase::Forward, "h", "h"));
    assert_eq!(slice(contract), "sum[in](x * w)");
    let relu = p.graph.ids().find(|i| p.graph.node(*i).op.name() == "relu").unwrap();
    assert_eq!((&*p.graph.node(relu).origin.path, &*p.graph.node(relu).origin.name), ("", "h"));
    assert_eq!(slice(relu), "relu(dense(x, [rows, cols], [hidden]))");
    assert_eq!(&*p.graph.node(p.losses[0].id).origin.name, "xent");
}

#[test]
fn dims_follow_what_is_set() {
    let text = "
        dim d_model = heads * d_head, heads = 4, d_head = 8
        dim d_ff = d_model * 8 / 3 * 3
        const scale = 1 / sqrt(size(d_model))
        const gain = 2
        size big { heads = 16, d_head = d_ff//d_ff * 2, gain = 3 }
        model m { input x[heads, d_head]: float output y = x * scale * gain output z = x * size(d_model, d_ff) }";
    let sizes = |s: &Settings| {
        let p = program_with(text, s);
        ["d_model", "heads", "d_head", "d_ff"].map(|d| p.graph.dims.size(p.graph.dims.find(d).unwrap()))
    };
    let set = |dims: &[(&str, usize)], size: Option<&str>| Settings {
        dims: dims.iter().map(|(n, s)| (n.to_string(), *s)).collect(),
        size: size.map(str::to_string),
        ..Settings::default()
    };
    assert_eq!(sizes(&set(&[], None)), [32, 4, 8, 256]);
    assert_eq!(sizes(&set(&[("heads", 3)], None)), [24, 3, 8, 192]);
    assert_eq!(sizes(&set(&[("d_model", 5)], None)), [5, 4, 8, 40]);
    let big = set(&[("d_head", 1)], Some("big"));
    assert_eq!(sizes(&big), [16, 16, 1, 128]);
    let p = program_with(text, &Settings { consts: vec![("gain".into(), 7.0)], ..set(&[], None) });
    assert_eq!(term(&p, p.outputs[0].id), format!("contract(contract(x, {:?}), 7.0)", 1.0 / 32f64.sqrt()));
    assert_eq!(term(&p, p.outputs[1].id), "contract(x, 8192.0)");
}

#[test]
fn a_sum_of_a_product_is_one_contraction() {
    assert_eq!(loss_term("output y = sum[d](a * b)"), "contract(a, b)");
    assert_eq!(loss_term("output y = sum[d, e]((a * (b * a)))"), "contract(a, b, a)");
    assert_eq!(loss_term("output y = sum[d](2 * a * -b / 4)"), "/(contract(contract(a, b), -2.0), 4.0)");
    assert_eq!(loss_term("output y = sum[d](a * b / size(d))"), "/(contract(a, b), 3.0)");
    assert_eq!(loss_term("output y = sum[d](a / b)"), "sum(/(a, b))");
    assert_eq!(loss_term("output y = sum[d](a * 3)"), "contract(sum(a), 3.0)");
    assert_eq!(loss_term("output y = sum[d](a + b)"), "sum(add(a, b))");
    assert_eq!(loss_term("output y = sum[batch](p * a)"), "contract(cast(p), a)");
    assert_eq!(loss_term("output y = sum[d](a * a / b * t)"), "contract(/(contract(a, a), b), t)");
}

#[test]
fn numbers_fold_and_take_the_dtype_they_meet() {
    assert_eq!(loss_term("output y = a * (2 ** 3 - 7//2 + 5 % 3)"), "contract(a, 7.0)");
    assert_eq!(loss_term("let c = max(2, 1 / 4) output y = -a + c"), "add(neg(a), 2.0)");
    assert_eq!(loss_term("output y = i + 1"), "add(i, 1.0)");
    assert_eq!(
        loss_term("output y = where(not (a < 0 or a > 1), a ** 2, exp(a))"),
        "where(not(or(<(a, 0.0), >(a, 1.0))), square(a), exp(a))"
    );
    assert_eq!(loss_term("output y = mean[batch](i == 3)"), "mean(cast(==(i, 3.0)))");
    assert_eq!(loss_term("output y = index(seq) <= index(key)"), "<=(index, index)");
    assert_eq!(loss_term("output y = cast(2.7, i32)"), "2.0");
}

#[test]
fn dims_move() {
    assert_eq!(loss_term("output y = s[seq -> key]"), "rename(s)");
    assert_eq!(loss_term("output y = t[vocab = i]"), "lookup(t, i)");
    assert_eq!(loss_term("output y = t[vocab = 3]"), "lookup(t, 3.0)");
    let p = program("dim a = 2, b = a, c = a model m { input x[a, b]: float output y = x[a -> b, b -> c] }");
    assert_eq!(p.graph.dims.list(&p.graph.ty(p.outputs[0].id).dims), "[b c]");
    let p = program(
        "dim b = 6, v = 7, d = 3, e = 3 model m { param t[v, d] = 0 input i[b]: i32 in v output y = t[v = i, d -> e] }",
    );
    assert_eq!(p.graph.dims.list(&p.graph.ty(p.outputs[0].id).dims), "[b e]");
}

#[test]
fn elements_of_paths_are_labels_lets_and_layers() {
    let text = format!(
        "dim b = 2, d = 3, d2 = d
        {DENSE}
        layer norm(x, over) {{ param scale[over] = 1 return x * scale }}
        layer twice(x) {{ return x * 2 }}
        layer block(x, in, mid, gain = 2) {{
            let up = relu(dense(x, in, mid))
            return twice(norm(dense(up, mid, in) as down, in)) * gain
        }}
        model m {{
            input x[b, d]: float
            param bias[d] = uniform(-1, high = 1)
            let first = block(x, d, [d2])
            let second = twice(block(norm(first, [d]) as pre, d, d2, gain = 3) as main)
            loss l = mean[b, d](dense(second, [d], [d2])[d2 -> d] + bias)
        }}"
    );
    assert_eq!(
        shapes(&program(&text)),
        [
            "bias[d]",
            "first.up.w[d d2]",
            "first.up.b[d2]",
            "first.down.w[d2 d]",
            "first.down.b[d]",
            "first.norm.scale[d]",
            "pre.scale[d]",
            "main.up.w[d d2]",
            "main.up.b[d2]",
            "main.down.w[d2 d]",
            "main.down.b[d]",
            "main.norm.scale[d]",
            "dense.w[d d2]",
            "dense.b[d2]",
        ]
    );
}

#[test]
fn several_results_lists_and_defaults() {
    let text = "
        dim b = 2, d = 3, e = 4
        layer split(x, over, none = []) { let s = mean[over](x) return sum[none](x - s), s, size(over) }
        model m { input x[b, d, e]: float let y, m, n = split(x, [d, e]) output o = y * m / n }";
    let p = program(text);
    assert_eq!(term(&p, p.outputs[0].id), "/(contract(add(x, neg(mean(x))), mean(x)), 12.0)");
}

#[test]
fn files_are_used_once_and_bring_layers_and_dims() {
    let files = [
        (
            "main.mw",
            "use \"a.mw\" use \"b.mw\" model m { input x[b, d]: float let h = dense(x, [d], [e]) output y = h }",
        ),
        ("a.mw", "use \"base.mw\" dim e = d * 2"),
        ("b.mw", "use \"base.mw\" dim b = 2"),
        ("base.mw", "dim d = 3 layer dense(x, in, out) { param w[in, out] = 0 return sum[in](x * w) }"),
    ];
    let ((p, found), sources) = run_files(&files, None, &Settings::default());
    let p = p.unwrap_or_else(|| panic!("{}", show(&found, &sources)));
    assert_eq!(shapes(&p), ["h.w[d e]"]);
    assert_eq!(p.graph.dims.size(p.graph.dims.find("e").unwrap()), 6);
}

#[test]
fn an_unread_input_is_a_warning() {
    let ((p, found), sources) = run(
        "dim b = 2 model m { input x[b]: float input y[b]: float loss l = mean[b](x) }",
        &Settings::default(),
    );
    assert!(p.is_some());
    same(
        &show(&found, &sources),
        "E0221 input `y` is not used
          ^ `y`: read from the data for nothing
          help: leave it out",
    );
}

#[test]
fn shipped_models_resolve_or_say_what_is_not_built() {
    let p = program(include_str!("../../../../../models/mnist_mlp.mw"));
    assert_eq!(
        shapes(&p),
        [
            "h1.w[rows cols hidden1]",
            "h1.b[hidden1]",
            "h2.w[hidden1 hidden2]",
            "h2.b[hidden2]",
            "logits.w[hidden2 classes]",
            "logits.b[classes]",
        ]
    );
    assert!(p.train.is_some());
    assert_eq!(shapes(&program(include_str!("../../../../../models/mlp.mw"))).len(), 4);
    let first_lines = |text: &str| {
        let found = errors(text);
        found.lines().filter(|l| l.starts_with('E')).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(first_lines(include_str!("../../../../../models/bert.mw")), [""; 0]);
    assert_eq!(first_lines(include_str!("../../../../../models/mnist_conv.mw")), [""; 0]);
}

#[test]
fn division_rounding_down_and_ops_with_options() {
    assert_eq!(loss_term("output y = a//2"), "//(a, 2.0)");
    assert_eq!(loss_term("output y = a % b"), "%(a, b)");
    assert_eq!(loss_term("output y = index(seq) % 2 == 0"), "==(%(index, 2.0), 0.0)");
    let one = loss_term("output y = leaky_relu(a)");
    assert_eq!(one, "where(>(a, 0.0), a, contract(a, 0.01))");
    assert_eq!(loss_term("output y = leaky_relu(a, 0.2)"), one.replace("0.01", "0.2"));
    assert_eq!(loss_term("output y = one_hot[vocab](i, 0.9, 0)"), "where(==(i, index), 0.9, 0.0)");
    assert_eq!(loss_term("output y = cumsum[seq](s)"), "cumsum(s)");
    assert_eq!(
        loss_term("output y = all[d](a > 0) or any[batch, d](a < 0)"),
        "or(all(>(a, 0.0)), any(<(a, 0.0)))"
    );
    assert_eq!(loss_term("output y = prod[d](a)"), "prod(a)");
    // Numbers are computed.
    assert_eq!(loss_term("output y = a * floor(7 / 2)"), "contract(a, 3.0)");
}
