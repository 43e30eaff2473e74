//! Mistakes in declarations, layers and settings.

use super::*;

#[test]
fn declarations() {
    same(
        &errors(
            "dim a = 1, a = 2 const a = 3 dim b = -1, c = 1 / 2, d = nope + 1, e = true layer relu(x) { return x } layer f(x, x) { return x } layer f(y) { return y } model m { input x[a]: float output y = x }",
        ),
        "E0210 dim `a` is declared twice
          ^ `a`: declared again here
          - `a`: first declared here
          help: leave one of them out, or give one another name
        E0210 `a` is declared as dim and as const
          ^ `a`: a const here
          - `a`: a dim here
          help: give one of them another name
        E0204 dim `b` has size -1: it is negative
          ^ `-1`: this is -1
          help: write a size of 1 or more
        E0204 dim `c` has size 0.5: it is no integer
          ^ `1 / 2`: this is 0.5
          help: `//` divides integers, rounding down
        E0201 no dim or const is called `nope`
          ^ `nope`: not declared
          help: declare it: `dim nope = …`
        E0204 dim `e` is true: a size is a number
          ^ `true`: a truth value
        E0210 layer `relu` has the name of the built-in function `relu`
          ^ `relu`: a call could mean either
          help: rename the layer here and where it is called, for example to `relu_layer`
        E0210 parameter `x` is declared twice
          ^ `x`: declared again here
          - `x`: first declared here
          help: leave one of them out, or give one another name
        E0210 layer `f` is declared twice
          ^ `f`: declared again here
          - `f`: first declared here
          help: leave one of them out, or give one another name",
    );
}

#[test]
fn consts_and_sizes() {
    same(
        &errors(
            "dim a = 2 const c = a * 2 const q = foo(2) const r = sqrt(1, 2) size s { aa = 2, a = 3, a = 4 } size s { a = 1 } model m { input x[a]: float output y = x * c }",
        ),
        "E0213 dim `a` is used as a number
          ^ `a`: a dim
          - `a`: declared here
          fix!: write `size(a)`: `a` -> `size(a)`
        E0201 there is no function of numbers `foo`
          ^ `foo`: not known
          note: functions of numbers: `sqrt`, `rsqrt`, `exp`, `log`, `abs`, `sign`, `tanh`, `sin`, `cos`, `tan`, `log1p`, `expm1`, `floor`, `ceil`, `round`, `square`, `min`, `max`, `pow` and `size`
        E0212 `sqrt` takes 1 number, not 2
          ^ `sqrt`: wrong number of arguments
        E0201 size `s` sets `aa`, which is neither a dim nor a const
          ^ `aa`: not declared
          - `s`: in this size
          fix: write `a`: `aa` -> `a`
        E0210 value `a` is declared twice
          ^ `a`: declared again here
          - `a`: first declared here
          help: leave one of them out, or give one another name
        E0210 size `s` is declared twice
          ^ `s`: declared again here
          - `s`: first declared here
          help: leave one of them out, or give one another name",
    );
}

#[test]
fn a_file_without_a_model() {
    same(
        &errors("dim a = 2"),
        "E0220 the file has no model
          ^ `dim a = 2`: the file ends here, without one
          help: write `model NAME { … }` with inputs and a loss",
    );
}

#[test]
fn a_file_with_two_models() {
    same(
        &errors("model a { } model b { }"),
        "E0220 the file has 2 models: `a` and `b`
          ^ `b`: which one is meant is not said
          - `a`: another model
          help: keep one model in a file, and move the other to a file of its own",
    );
}

#[test]
fn mistakes_in_layers_are_said_once_with_a_call() {
    same(
        &errors(
            "dim a = 2 layer f(x) { let y = z * 2 } layer g(x) { input q[a]: float loss l = x return x let z = x } layer h(x) { return f(x) + g(x) } model m { input x[a]: float let z = x output y = h(x) output q = h(x * 2) }",
        ),
        "E0201 nothing is called `z` here
          ^ `z`: not declared
          - `z`: this one is not visible inside of a layer
          - `f(x)`: in this call of `f`
          - `h(x)`: in this call of `h`
          help: pass it to `f` as an argument
        E0218 `input` stands in layer `g`
          ^ `input q[a]: float`: not here
          - `g(x)`: in this call of `g`
          - `h(x)`: in this call of `h`
          help: declare it in the model and pass it to the layer
        E0218 `loss` stands in layer `g`
          ^ `loss l = x`: not here
          - `g(x)`: in this call of `g`
          - `h(x)`: in this call of `h`
          help: return the value, and declare it in the model
        E0218 a statement follows `return`: it would never be reached
          ^ `let z = x`: behind the end
          - `return x`: ends the layer
          - `g(x)`: in this call of `g`
          - `h(x)`: in this call of `h`
          help: move it before `return`, or leave it out
        E0213 layer `f` returns nothing
          ^ `f(x)`: a value is needed
          - `f`: declared without `return`
          - `h(x)`: in this call of `h`
          help: end its body with `return …`",
    );
}

#[test]
fn dims_of_layers() {
    same(
        &errors(
            "dim a = 2 layer f(x, in, out) { param w[in, out] = 0 return sum[in](x * w) } model m { input x[a]: float output y = f(x, [a], [a]) output z = f(x, x, [b]) }",
        ),
        "E0213 `in` stands where a dim is needed
          ^ `in`: a tensor, f32 [a]
          - `in`: declared here
          - `f(x, x, [b])`: in this call of `f`
          help: name a dim, or pass a list of dims to the layer: `[d, e]`
        E0203 `w` has the dim `a` twice: a tensor never holds one dim twice
          ^ `out`: `out` has `a` too
          - `in`: `in` has `a`
          - `a`: the dim is declared here
          - `f(x, [a], [a])`: in this call of `f`
          help: declare a second name of the same size, `dim a2 = a`, use it for one of the two, and rename: `x[a2 -> a]`
        E0201 there is no dim `b`
          ^ `b`: not declared
          help: declare it: `dim b = SIZE`",
    );
}

#[test]
fn the_command_line_names_what_there_is() {
    let s = Settings {
        dims: vec![("batsh".into(), 1), ("lr".into(), 2), ("batch".into(), 1 << 40)],
        consts: vec![("lrr".into(), 1.0), ("batch".into(), 1.0), ("lr".into(), f64::NAN)],
        size: Some("bigg".into()),
        float: None,
        ..Settings::default()
    };
    let text =
        "dim batch = 2 const lr = 1 size big { batch = 2 } model m { input x[batch]: float output y = x }";
    same(
        &errors_with(text, &s),
        "E0201 there is no size `bigg`
          note: sizes of this model: `big`
          help: did you mean `big`?
        E0201 `--dim batsh=1`: the model has no dim `batsh`
          note: its dims: `batch`
          help: did you mean `batch`?
        E0204 `--dim batch=1099511627776`: a dim has at most 2147483647 positions
          note: positions along a dim are 32-bit integers
          help: split it into two dims
        E0201 `--set lrr=1`: the model has no const `lrr`
          note: its consts: `lr`
          help: did you mean `lr`?
        E0214 `--set lr=NaN`: this is no finite number
        E0213 `--set batch=1`: `batch` is a dim
          - `batch`: declared here
          help: write `--dim batch=…`
        E0213 `--dim lr=2`: `lr` is a const
          - `lr`: declared here
          help: write `--set lr=…`",
    );
    let ((_, found), sources) =
        run_files(&[("m", "dim a = 1 model one { } model two { }")], Some("onee"), &Settings::default());
    same(
        &show(&found, &sources),
        "E0201 the file has no model `onee`
          note: its models: `one` and `two`
          help: did you mean `one`?",
    );
}

const SIZES: &str = "dim batch = 2 const lr = 1 size large_8b { batch = 3 } size large_70b { batch = 4 } size first_x { batch = 5 }
size other_x { batch = 6 } size tiny { batch = 7 } size small_tiny { batch = 8 }
model m { input x[batch]: float output y = x }";

fn chosen_of(size: &str) -> Settings {
    Settings { size: Some(size.into()), ..Settings::default() }
}

#[test]
fn a_preset_is_named_by_what_follows_its_last_underscore() {
    // A whole name goes before one that ends with it.
    for (given, name, batch) in [
        ("8b", "large_8b", 3),
        ("70b", "large_70b", 4),
        ("large_70b", "large_70b", 4),
        ("tiny", "tiny", 7),
        ("small_tiny", "small_tiny", 8),
    ] {
        let p = program_with(SIZES, &chosen_of(given));
        let dim = p.graph.dims.find("batch").unwrap();
        assert_eq!((p.preset(), p.graph.dims.size(dim)), (Some(name), batch), "{given}");
    }
    same(
        &errors_with(SIZES, &chosen_of("x")),
        "E0201 `x` means several sizes: `first_x` and `other_x`
          help: write the whole name: `--preset first_x` or `--preset other_x`
          help: `8b` is short for `large_8b`: what follows the last `_` of one name alone",
    );
    same(
        &errors_with(SIZES, &chosen_of("71b")),
        "E0201 there is no size `71b`
          note: sizes of this model: `large_8b`, `large_70b`, `first_x`, `other_x`, `tiny` and `small_tiny`
          help: did you mean `70b`?
          help: `8b` is short for `large_8b`: what follows the last `_` of one name alone",
    );
}

#[test]
fn a_condition_that_is_known_chooses_what_is_resolved() {
    let text = format!(
        "{DENSE}
        dim batch = 2, a = 3, b = 4
        const biased = 0
        model m {{
            input x[batch, a]: float
            output y = where(biased == 1, dense(x, [a], [b]) as head, where(not true, nothing(x), sum[a](x)))
        }}"
    );
    let paths = |p: &Program| p.params.iter().map(|p| p.path.clone()).collect::<Vec<_>>();
    let dims = |p: &Program| p.graph.dims.list(&p.graph.ty(p.outputs[0].id).dims);
    let plain = program(&text);
    assert_eq!((paths(&plain), dims(&plain)), (Vec::<String>::new(), "[batch]".to_string()));
    let set = Settings { consts: vec![("biased".into(), 1.0)], ..Settings::default() };
    let biased = program_with(&text, &set);
    assert_eq!(
        (paths(&biased), dims(&biased)),
        (vec!["head.w".to_string(), "head.b".into()], "[batch b]".into())
    );
}
