//! What texts repeat.

use std::fmt::Write;

/// Which of the two languages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formatter {
    Model,
    Layout,
}

/// A model with a layout, or a text to format.
#[derive(Clone, Default)]
pub(crate) struct Text {
    pub(crate) model: String,
    pub(crate) layout: Option<String>,
    /// Whether the rules are in the form of Mesh TensorFlow, as the command line takes them.
    pub(crate) mtf: bool,
    pub(crate) mesh: Option<String>,
    pub(crate) fmt: Option<Formatter>,
}

/// A construct: a text of each size.
pub(crate) struct Construct {
    pub(crate) name: &'static str,
    pub(crate) text: Box<dyn Fn(usize) -> Text>,
    /// The small size.
    pub(crate) size: usize,
    /// How many times as large the other is.
    pub(crate) times: usize,
}

const HEAD: &str = "dim batch = 8, a = 6, b = 4\n";
const SQUARE: &str = " loss l = mean[batch, a](y * y)\n";
const TRAIN: &str = "\ntrain m {\n minimize l\n optimizer sgd(lr = 0.1)\n}\n";
const DENSE: &str = "layer dense(x, in, out) {\n param w[in, out] = normal(0, 1)\n param b[out] = 0\n return sum[in](x * w) + b\n}\n";

/// `part` for each number below `n`, one after the other.
fn each(n: usize, part: impl Fn(usize) -> String) -> String {
    (0..n).fold(String::new(), |mut out, i| {
        let _ = write!(out, "{}", part(i));
        out
    })
}

/// The same with commas between.
fn list(n: usize, part: impl Fn(usize) -> String) -> String {
    (0..n).map(part).collect::<Vec<_>>().join(", ")
}

/// A model with these statements, and declarations before it.
fn model(before: &str, body: &str) -> String {
    format!("{HEAD}{before}model m {{\n input x[batch, a]: float\n{body}}}\n")
}

fn trained(before: &str, body: &str) -> Text {
    Text { model: model(before, body) + TRAIN, ..Text::default() }
}

fn untrained(before: &str, body: &str) -> Text {
    Text { model: model(before, body), ..Text::default() }
}

/// A small model that is right.
fn base() -> String {
    model("", &format!(" param w[a] = 1\n let y = x * w\n{SQUARE}")) + TRAIN
}

/// The small model, and further items.
fn with(items: String) -> Text {
    Text { model: base() + &items, ..Text::default() }
}

/// The small model under a layout.
fn rules(layout: String) -> Text {
    Text { model: base(), layout: Some(layout), ..Text::default() }
}

fn under(text: Text, mesh: &str, layout: &str) -> Text {
    Text { layout: Some(layout.into()), mesh: Some(mesh.into()), ..text }
}

/// `y0`, made by `next` of each before, from a parameter, with a loss of the last.
fn chain(n: usize, next: impl Fn(usize) -> String) -> Text {
    let steps = each(n, |i| format!(" let y{} = {}\n", i + 1, next(i)));
    trained("", &format!(" param w[a] = 1\n let y0 = x * w\n{steps} loss l = mean[batch, a](y{n} * y{n})\n"))
}

fn params(n: usize, op: char) -> Text {
    let declared = each(n, |i| format!(" param w{i}[a] = normal(0, 1)\n"));
    let steps = each(n, |i| format!(" let y{} = y{i} {op} w{i}\n", i + 1));
    trained("", &format!("{declared} let y0 = x\n{steps} loss l = mean[batch, a](y{n} * y{n})\n"))
}

fn optimized(n: usize, optimizer: &str) -> Text {
    let text = params(n, '*');
    Text { model: text.model.replace("sgd(lr = 0.1)", optimizer), ..text }
}

fn dense(n: usize) -> Text {
    let dims = |i: usize| if i.is_multiple_of(2) { "[a], [b]" } else { "[b], [a]" };
    let layers = each(n, |i| format!(" let y{} = relu(dense(y{i}, {}) as d{i})\n", i + 1, dims(i)));
    trained(DENSE, &format!(" let y0 = x\n{layers} loss l = mean[batch](sum[a](y{n} * y{n}))\n"))
}

fn loops(n: usize) -> Text {
    let layer = "layer dn(x) {\n param w[a, b] = normal(0, 1)\n param v[b, a] = normal(0, 1)\n return sum[b](sum[a](x * w) * v)\n}\n";
    let loops = each(n, |i| format!(" repeat k {{ y = dn(y) as a{i} }}\n"));
    trained(&format!("dim k = 2\n{layer}"), &format!(" let y = x\n{loops}{SQUARE}"))
}

fn fmt(language: Formatter, text: String) -> Text {
    Text { model: text, fmt: Some(language), ..Text::default() }
}

fn construct(
    name: &'static str,
    size: usize,
    times: usize,
    text: impl Fn(usize) -> Text + 'static,
) -> Construct {
    Construct { name, text: Box::new(text), size, times }
}

/// All constructs.
pub(crate) fn constructs() -> Vec<Construct> {
    let mut all = layouts();
    all.extend(recomputes());
    all.extend(meshes());
    all.extend(declarations());
    all.extend(mistakes());
    all.extend(statements());
    all.extend(programs());
    all.extend(splits());
    all.extend(products());
    all.extend(formats());
    all
}

fn layouts() -> Vec<Construct> {
    use construct as c;
    vec![
        c("layout: equal rules", 8000, 8, |n| rules("mesh r = 2\n".to_string() + &"batch -> r\n".repeat(n))),
        c("layout: equal rules, when free", 5000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &"batch -> r when free\n".repeat(n))
        }),
        c("layout: `*` in many rules", 8000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &"* -> r\n".repeat(n))
        }),
        c("layout: a rule of many dims", 16000, 8, |n| {
            rules(format!("mesh r = 2\n{} -> r\n", list(n, |_| "batch".into())))
        }),
        c("layout: a rule of many axes", 32000, 8, |n| {
            rules(format!("mesh r = 2\nbatch -> {}\n", list(n, |_| "r".into())))
        }),
        c("layout: a rule of unknown axes", 16000, 8, |n| {
            rules(format!("mesh r = 2\nbatch -> {}\n", list(n, |i| format!("q{i}"))))
        }),
        c("layout: rules of unknown dims", 8000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &each(n, |i| format!("q{i} -> r\n")))
        }),
        c("layout: dims that are misspelled", 8000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &each(n, |i| format!("batc{} -> r\n", i % 10)))
        }),
        c("layout: scopes", 4000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &each(n, |i| format!("s{i}.*: a -> r\n")))
        }),
        c("layout: equal scopes", 5000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &"w: a -> r when free\n".repeat(n))
        }),
        c("layout: scopes of parameters", 5000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &"params: a -> r\n".repeat(n))
        }),
        c("layout: scopes with a `*` before a name", 4000, 8, |n| {
            rules("mesh r = 2\n".to_string() + &each(n, |i| format!("*q{i}: a -> r\n")))
        }),
        c("layout: gathers", 16000, 8, |n| {
            rules("mesh r = 2\ngather ".to_string() + &list(n, |i| format!("g{i}")) + "\n")
        }),
        c("layout: a scope for each parameter", 100, 8, |n| {
            let text = params(n, '*');
            let scopes = each(n, |i| format!("params w{i}: a -> r\n"));
            Text { layout: Some("mesh r = 2\n".to_string() + &scopes), ..text }
        }),
    ]
}

fn recomputes() -> Vec<Construct> {
    use construct as c;
    const LAYER: &str = "layer q(x) {\n let h = sin(x)\n return h * exp(h)\n}\n";
    let layers = |n: usize| {
        let calls = each(n, |i| format!(" let y{} = q(y{i}) as q{i}\n", i + 1));
        let body =
            format!(" param w[a] = 1\n let y0 = x * w\n{calls} loss l = mean[batch, a](y{n} * y{n})\n");
        trained(LAYER, &body)
    };
    vec![
        c("recompute: paths of nothing", 5000, 8, |n| rules(each(n, |i| format!("recompute q{i}.*\n")))),
        c("recompute: many paths in one", 5000, 8, |n| {
            rules(format!("recompute {}\n", list(n, |i| format!("q{i}.*"))))
        }),
        c("recompute: one path again and again", 8000, 8, |n| rules("recompute w*\n".repeat(n))),
        c("recompute: a line for each layer", 50, 8, move |n| Text {
            layout: Some(each(n, |i| format!("recompute q{i}.*\n"))),
            ..layers(n)
        }),
        c("recompute: all layers", 50, 8, move |n| Text {
            layout: Some("recompute q*\n".into()),
            ..layers(n)
        }),
    ]
}

fn meshes() -> Vec<Construct> {
    use construct as c;
    let given = |mesh: String| Text { model: base(), mesh: Some(mesh), ..Text::default() };
    vec![
        c("mesh: equal axes", 16000, 8, |n| rules(format!("mesh {}\n", list(n, |_| "r = 2".into())))),
        c("mesh: many axes", 10000, 8, |n| rules(format!("mesh {}\n", list(n, |i| format!("r{i} = 1"))))),
        c("mesh: axes without devices", 10000, 8, |n| {
            rules(format!("mesh {}\n", list(n, |i| format!("r{i} = 0"))))
        }),
        c("--mesh: equal axes", 16000, 8, move |n| given(list(n, |_| "r=2".into()))),
        c("--mesh: axes without a size", 16000, 8, move |n| given(list(n, |_| "r".into()))),
        c("--layout: equal rules in the short form", 8000, 8, |n| Text {
            mtf: true,
            ..under(Text { model: base(), ..Text::default() }, "r=2", &"batch:r;".repeat(n))
        }),
    ]
}

fn declarations() -> Vec<Construct> {
    use construct as c;
    vec![
        c("dims", 6000, 8, |n| with(each(n, |i| format!("dim d{i} = 4\n")))),
        c("dims declared twice", 8000, 8, |n| with(each(n, |i| format!("dim d{} = 4\n", i / 2)))),
        c("one dim declared again and again", 10000, 8, |n| with("dim d = 4\n".repeat(n))),
        c("dims that lean on one another", 5000, 8, |n| {
            with("dim d0 = 1\n".to_string() + &each(n, |i| format!("dim d{} = d{i}\n", i + 1)))
        }),
        c("dims in a circle", 5000, 8, |n| with(each(n, |i| format!("dim d{i} = d{}\n", (i + 1) % n)))),
        c("dims of unknown names", 5000, 8, |n| with(each(n, |i| format!("dim d{i} = z{i}\n")))),
        c("consts", 6000, 8, |n| with(each(n, |i| format!("const d{i} = 4\n")))),
        c("sizes", 4000, 8, |n| with(each(n, |i| format!("size s{i} {{ a = 3 }}\n")))),
        c("sizes declared twice", 4000, 8, |n| with(each(n, |i| format!("size s{} {{ a = 3 }}\n", i / 2)))),
        c("entries of a size", 16000, 8, |n| with(format!("size s {{ {}}}\n", "a = 3 ".repeat(n)))),
        c("unknown entries of a size", 10000, 8, |n| {
            with(format!("size s {{ {}}}\n", each(n, |i| format!("z{i} = 3 "))))
        }),
        c("models declared twice", 1500, 8, |n| {
            with("model m {\n input x[batch]: float\n loss l = mean[batch](x)\n}\n".repeat(n))
        }),
        c("models", 1500, 8, |n| {
            with(each(n, |i| {
                format!("model m{i} {{\n input x[batch]: float\n loss l = mean[batch](x)\n}}\n")
            }))
        }),
        c("train blocks", 2500, 8, |n| with("train m {\n minimize l\n optimizer sgd(lr = 1)\n}\n".repeat(n))),
        c("train blocks of unknown models", 2500, 8, |n| {
            with(each(n, |i| format!("train m{i} {{\n minimize l\n optimizer sgd(lr = 1)\n}}\n")))
        }),
        c("layers", 3500, 8, |n| with(each(n, |i| format!("layer q{i}(x) {{\n return x\n}}\n")))),
        c("layers declared twice", 3500, 8, |n| with("layer q(x) {\n return x\n}\n".repeat(n))),
        c("layers in a circle", 3000, 8, |n| {
            with(each(n, |i| format!("layer q{i}(x) {{\n return q{}(x)\n}}\n", (i + 1) % n)))
        }),
        c("parameters of a layer declared twice", 16000, 8, |n| {
            with(format!("layer q(x, {}) {{\n return x\n}}\n", list(n, |i| format!("p{}", i / 2))))
        }),
        c("a file that uses itself", 4000, 8, |n| with("use \"model.mw\"\n".repeat(n))),
        c("files that are missing", 4000, 8, |n| with(each(n, |i| format!("use \"q{i}.mw\"\n")))),
    ]
}

fn mistakes() -> Vec<Construct> {
    use construct as c;
    let body = |part: String| trained("", &format!("{part} let y = x\n{SQUARE}"));
    vec![
        c("unknown names", 4000, 8, move |n| body(each(n, |i| format!(" let q{i} = z{i}\n")))),
        c("names that are nearly right", 3000, 8, move |n| {
            body(each(n, |i| format!(" let value{i} = x\n let z{i} = valeu{i}\n")))
        }),
        c("unknown functions", 3000, 8, move |n| body(each(n, |i| format!(" let q{i} = zoft{i}(x)\n")))),
        c("unknown dims", 3000, 8, move |n| body(each(n, |i| format!(" let q{i} = sum[z{i}](x)\n")))),
        c("names declared twice", 5000, 8, move |n| body(each(n, |i| format!(" let q{} = x\n", i / 2)))),
        c("inputs that nothing reads", 2000, 8, move |n| {
            body(" param w[a] = 1\n".to_string() + &each(n, |i| format!(" input q{i}[batch]: float\n")))
        }),
        c("parameters declared twice", 3000, 8, move |n| body(" param w[a] = normal(0, 1)\n".repeat(n))),
        c("calls with one path", 2000, 8, |n| {
            let calls = each(n, |i| format!(" let y{} = q(y{i}) as s\n", i + 1));
            let layer = "layer q(x) {\n param w[a] = 1\n return x * w\n}\n";
            trained(layer, &format!(" let y0 = x\n{calls} loss l = mean[batch, a](y{n})\n"))
        }),
        c("patterns that match no parameter", 8000, 8, |n| Text {
            model: base()
                .replace("optimizer", &format!("freeze {}\n optimizer", list(n, |i| format!("q{i}.*")))),
            ..Text::default()
        }),
        c("arguments given twice", 6000, 8, |n| {
            let layer = format!("layer q(x, {}) {{\n return x\n}}\n", list(n, |i| format!("p{i}")));
            untrained(&layer, &format!(" let y = q(x, {})\n{SQUARE}", list(n, |i| format!("p{} = 1", i / 2))))
        }),
        c("strings without an end", 64000, 8, |n| Text { model: "\"\n".repeat(n), ..Text::default() }),
        c("keywords without anything", 24000, 8, |n| Text { model: "dim\n".repeat(n), ..Text::default() }),
        c("misspelled keywords", 5000, 8, |n| Text { model: "modle m {\n}\n".repeat(n), ..Text::default() }),
        c("comments that may be divisions", 8000, 8, |n| Text {
            model: "dim a = 4 // 2\n".repeat(n),
            ..Text::default()
        }),
        c("signs that mean nothing", 100_000, 8, |n| Text { model: "$".repeat(n), ..Text::default() }),
        c("one name of a great length", 100_000, 8, move |n| body(format!(" let q = {}\n", "q".repeat(n)))),
        c("mistakes on one line", 8000, 8, |n| Text {
            model: model("", &format!(" let y = [{}]\n", list(n, |i| format!("z{i}")))),
            ..Text::default()
        }),
    ]
}

fn statements() -> Vec<Construct> {
    use construct as c;
    let fine = |part: String| trained("", &format!(" param w[a] = 1\n let y = x * w\n{SQUARE}{part}"));
    vec![
        c("arguments of a layer", 4000, 8, |n| {
            let layer = format!("layer q(x, {}) {{\n return x\n}}\n", list(n, |i| format!("p{i}")));
            untrained(&layer, &format!(" let y = q(x, {})\n{SQUARE}", list(n, |i| format!("p{i} = 1"))))
        }),
        c("results of a layer", 8000, 8, |n| {
            let layer = format!("layer q(x) {{\n return {}\n}}\n", list(n, |_| "x".into()));
            untrained(&layer, &format!(" let {} = q(x)\n let y = x\n{SQUARE}", list(n, |i| format!("q{i}"))))
        }),
        c("states", 250, 8, move |n| fine(each(n, |i| format!(" state q{i}[a] = 0\n q{i} = q{i} + 1\n")))),
        c("states without a next value", 500, 8, move |n| fine(each(n, |i| format!(" state q{i}[a] = 0\n")))),
        c("metrics", 250, 8, move |n| fine(each(n, |i| format!(" metric q{i} = mean[batch, a](x + {i})\n")))),
        c("outputs", 500, 8, move |n| fine(each(n, |i| format!(" output q{i} = x + {i}\n")))),
        c("inputs", 250, 8, |n| {
            let inputs = each(n, |i| format!(" input q{i}[batch]: float\n"));
            let sums = each(n, |i| format!(" let y{} = y{i} + q{i}\n", i + 1));
            untrained("", &format!("{inputs} let y0 = x\n{sums} loss l = mean[batch, a](y{n})\n"))
        }),
        c("values that nothing reads", 2000, 8, move |n| fine(each(n, |i| format!(" let q{i} = x + {i}\n")))),
        c("dims of one tensor", 4000, 8, |n| {
            let declared = each(n, |i| format!("dim d{i} = 1\n"));
            let all = list(n, |i| format!("d{i}"));
            trained(&declared, &format!(" param w[{all}] = 1\n loss l = mean[batch, a, {all}](x * w)\n"))
        }),
        c("parts of a concatenation", 250, 8, |n| {
            let declared = format!("dim all = {}\n", n * 6);
            let (dims, parts) = (list(n, |_| "a".into()), list(n, |_| "y".into()));
            let body = format!(" param w[a] = 1\n let y = x * w\n let z = concat[{dims} -> all]({parts})\n");
            trained(&declared, &format!("{body} loss l = mean[batch, all](z)\n"))
        }),
        c("patterns of parameters", 100, 8, |n| {
            let text = params(n, '*');
            let frozen = list(n / 2, |i| format!("w{}", 2 * i));
            Text { model: text.model.replace("optimizer", &format!("freeze {frozen}\n optimizer")), ..text }
        }),
    ]
}

fn programs() -> Vec<Construct> {
    use construct as c;
    vec![
        c("parameters", 500, 4, |n| params(n, '*')),
        c("parameters, added", 500, 4, |n| params(n, '+')),
        c("dense layers", 200, 4, dense),
        // Optimizers make most of a large step: these are near the limit.
        c("parameters with AdamW", 310, 4, |n| optimized(n, "adamw(lr = 0.1, weight_decay = 0.1)")),
        c("parameters with LAMB", 190, 4, |n| optimized(n, "lamb(lr = 0.1)")),
        c("parameters with Adafactor", 240, 4, |n| optimized(n, "adafactor(lr = 0.1)")),
        c("parameters with LAMB, too many", 3000, 4, |n| optimized(n, "lamb(lr = 0.1)")),
        c("a chain", 1000, 4, |n| chain(n, |i| format!("sin(y{i})"))),
        c("a chain of sums", 2000, 4, |n| chain(n, |i| format!("y{i} + {i}"))),
        c("a chain of residuals", 500, 4, |n| chain(n, |i| format!("y{i} + sin(y{i})"))),
        c("a chain of softmax", 400, 4, |n| chain(n, |i| format!("softmax[a](y{i})"))),
        c("a chain of maxima", 400, 4, |n| chain(n, |i| format!("y{i} + max[a](y{i})"))),
        c("a chain of dropout", 400, 4, |n| chain(n, |i| format!("dropout(y{i}, 0.1)"))),
        c("a chain of shifts", 500, 4, |n| chain(n, |i| format!("shift[a, by = 1](y{i})"))),
        c("a chain with a loss of each value", 100, 4, |n| {
            let steps =
                each(n, |i| format!(" let y{0} = sin(y{i})\n loss l{0} = mean[batch, a](y{0} * w)\n", i + 1));
            trained(
                "",
                &format!(" param w[a] = 1\n let y0 = x * w\n{steps} loss l = mean[batch, a](y{n} * y{n})\n"),
            )
        }),
        c("lines that minimize", 500, 8, |n| {
            let text = trained("", &format!(" param w[a] = 1\n let y = x * w\n{SQUARE}"));
            Text { model: text.model.replacen(" minimize l\n", &" minimize l of w\n".repeat(n), 1), ..text }
        }),
        c("loops", 180, 8, loops),
        c("loops in loops", 220, 8, |n| {
            let nest = " repeat k { repeat j { repeat i { y = sin(y) } } }\n".repeat(n);
            trained("dim k = 2, j = 2, i = 2\n", &format!(" param w[a] = 1\n let y = x * w\n{nest}{SQUARE}"))
        }),
        c("one value with many users", 500, 4, |n| chain(n, |i| format!("y{i} + sin(y0 * {})", i + 2))),
        c("layers without parameters", 1000, 4, |n| {
            let layer = "layer q(x) {\n return sin(x)\n}\n";
            let calls = each(n, |i| format!(" let y{} = q(y{i})\n", i + 1));
            untrained(layer, &format!(" let y0 = x\n{calls} loss l = mean[batch, a](y{n})\n"))
        }),
        c("layers that call layers twice", 512, 4, |n| {
            let levels = n.ilog2();
            let layers =
                each(levels as usize, |i| format!("layer q{i}(x) {{\n return q{0}(q{0}(x))\n}}\n", i + 1));
            let last = format!("layer q{levels}(x) {{\n return sin(x)\n}}\n");
            untrained(&(layers + &last), &format!(" let y = q0(x)\n{SQUARE}"))
        }),
    ]
}

fn splits() -> Vec<Construct> {
    use construct as c;
    const ZERO3: &str = "batch -> data\nmoments: * -> data\ngrads: * -> data\nparams: * -> data\n";
    vec![
        c("parameters under ZeRO-3", 200, 4, |n| under(params(n, '*'), "data=4", ZERO3)),
        c("dense layers under ZeRO-3", 80, 4, |n| under(dense(n), "data=4", ZERO3)),
        c("dense layers, split twice", 80, 4, |n| under(dense(n), "r=2,c=2", "batch -> r; b -> c")),
        c("a chain of softmax, split", 200, 4, |n| {
            under(chain(n, |i| format!("softmax[a](y{i})")), "r=2,c=2", "batch -> r; a -> c")
        }),
        c("a chain of residuals, when free", 400, 4, |n| {
            let text = chain(n, |i| format!("y{i} + sin(y{i})"));
            under(text, "r=2,c=2", "batch -> r; a -> r when free")
        }),
        c("a chain of sums, split", 1000, 4, |n| {
            under(chain(n, |i| format!("y{i} + {i}")), "r=2,c=2", "batch -> r; a -> c")
        }),
        c("loops under ZeRO-3", 50, 8, |n| under(loops(n), "data=2", ZERO3)),
        c("loops, split twice", 110, 8, |n| under(loops(n), "r=2,c=2", "batch -> r; b -> c")),
        c("a chain of shifts, split", 200, 4, |n| {
            under(chain(n, |i| format!("shift[a, by = 1](y{i})")), "r=2,c=2", "batch -> r; a -> c")
        }),
    ]
}

fn products() -> Vec<Construct> {
    use construct as c;
    vec![
        c("a product of many factors", 100, 4, |n| {
            let declared = each(n, |i| format!(" param w{i}[a] = 1\n"));
            let factors = (0..n).map(|i| format!("w{i}")).collect::<Vec<_>>().join(" * ");
            trained("", &format!("{declared} loss l = sum[a]({factors}) + mean[batch, a](x)\n"))
        }),
        c("a product of many matrices", 50, 4, |n| {
            let dims = each(n + 1, |i| format!("dim d{i} = 2\n"));
            let declared = each(n, |i| format!(" param w{i}[d{i}, d{}] = 1\n", i + 1));
            let factors = each(n, |i| format!(" * w{i}"));
            let all = list(n + 1, |i| format!("d{i}"));
            let body = format!("{declared} input z[batch, d0]: float\n let y = sum[{all}](z{factors})\n");
            trained(&dims, &format!("{body} loss l = mean[batch](y) + mean[batch, a](x)\n"))
        }),
    ]
}

fn formats() -> Vec<Construct> {
    use construct as c;
    let layout = |text| fmt(Formatter::Layout, text);
    let text = |text| fmt(Formatter::Model, text);
    vec![
        c("fmt: layers", 3000, 8, move |n| text(each(n, |i| format!("layer q{i}(x) {{\n return x\n}}\n")))),
        c("fmt: statements", 4000, 8, move |n| {
            text(model("", &each(n, |i| format!(" let q{i} = x + {i}\n"))))
        }),
        c("fmt: statements with comments", 3000, 8, move |n| {
            text(model("", &each(n, |i| format!(" let q{i} = x + {i} // one\n"))))
        }),
        c("fmt: strings without an end", 64000, 8, move |n| text("\"\n".repeat(n))),
        c("fmt: comments", 40000, 8, move |n| text(base() + &"//\n".repeat(n))),
        c("fmt: dims", 6000, 8, move |n| text("dim ".to_string() + &list(n, |i| format!("d{i} = 4")) + "\n")),
        c("fmt: entries of a size", 10000, 8, move |n| {
            text(base() + &format!("size s {{ {}}}\n", "a = 3 ".repeat(n)))
        }),
        c("fmt: a long call", 8000, 8, move |n| {
            text(model("", &format!(" let y = q({})\n", list(n, |i| format!("p{i} = 1")))))
        }),
        c("fmt: rules", 10000, 8, move |n| layout("batch -> r\n".repeat(n))),
        c("fmt: rules with scopes", 5000, 8, move |n| layout(each(n, |i| format!("s{i}.*: batch -> r\n")))),
        c("fmt: a rule of many dims", 16000, 8, move |n| layout(list(n, |_| "batch".into()) + " -> r\n")),
    ]
}
