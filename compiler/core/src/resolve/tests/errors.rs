//! Every mistake with its code, its places, its numbers and its fix.
use super::*;

#[test]
fn probe() {
    for b in [
        "let y = x + labl let z = y * 2 let w = nothing",
        "let y = dense(x, [d]) let z = dense(x, [d], [e], [e]) let u = dense(x, d, out = [e], outt = 3)",
        "let y = max(x) let z = sum(x) let u = relu[d](x) let v = sofmax[d](x) let w = rellu(x) let t = max[d](x, x)",
        "let y = sum[seq](x) let z = mean[sqe](x) let w = sum[d, d](x)",
        "let y = pixel / 255 let z = x + label let w = x and real",
        "let y = x * d let z = x / sqrt(d) let w = sum[x](x) let v = sum[half](x)",
        "let y = x let y = x * 2 let z = y let d = x let half = x",
        "let y = dense(x, [d], [e]) + dense(x, [d], [e]) let z = dense(x, [d], [e]) as y let w = dense(x, [d], [e]) as y",
        "loss l = x metric q = x * 2 metric c = sum[batch](label) loss all = 3",
        "let y = real[seq -> vocab] let z = x[d -> batch] let w = x[seq -> key] let v = x[batch -> d, d -> batch]",
        "let y = x[d = label] let z = x[d = 5] let w = x[d] let v = x[d = 0..2 -> e] let u = x[d -> batch * d] let t = half[d -> e]",
        "let y, z = two(x) let a, b, c = two(x) let f = two(x) + 1 let g, h = dense(x, [d], [e])",
        "let y = x//2 let z = 1 / (2 - 2) let w = sqrt(-1) let v = size(d)//0",
        "let y = dropout(x, 0.1) let z = conv[d by e](x, x, padding = same) let w = concat[d, e -> e](x, x) state s[d] = 0 repeat seq { z = z + 1 } let q = z",
        "param w[d, d] = 0 param v[dd] = 0 param u[d] = norml(0, 1) param t[d] = normal(0) param s[d] = uniform(1, 0) param r[d]: i32 = 0 param q[d] = x",
        "input i: float input j[batch]: i23 input k[batch]: float in vocab input l[batch]: bf16",
        "return x y = x let z = [d] let w = \"a\" let u = cast(x, u8) let v = cast(x, flot) let t = relu(x) as q let s = relu(x = x)",
        "let y = softmax[batch, d](x) let z = one_hot[vocab](x) let w = cross_entropy[d](x, label) let v = where(x, x, 0) let u = not 3 let t = label + 0.5 let s = label + 3000000000",
        "let y = step let z = size() let w = size(x) let v = index(batch, d) let u = index(2) let t = warmup_linear(1, 2, 3)",
        "let y = sum[d by e](x) let z = sum[d; e](x) let q = foo[d](x)",
    ] {
        println!("### {b}\n{}", body(b));
    }
    for t in [
        "dim a = 1, a = 2 const a = 3 dim b = -1, c = 1 / 2, d = nope + 1, e = true layer relu(x) { return x } layer f(x, x) { return x } layer f(y) { return y } model m { input x[a]: float output y = x }",
        "dim a = 2 const c = a * 2 const q = foo(2) const r = sqrt(1, 2) size s { aa = 2, a = 3, a = 4 } size s { a = 1 } model m { input x[a]: float output y = x * c }",
        "dim a = 2", "model a { } model b { }",
        "dim a = 2 layer f(x) { let y = z * 2 } layer g(x) { input q[a]: float loss l = x return x let z = x } layer h(x) { return f(x) + g(x) } model m { input x[a]: float let z = x output y = h(x) output q = h(x * 2) }",
        "dim a = 2 layer f(x, in, out) { param w[in, out] = 0 return sum[in](x * w) } model m { input x[a]: float output y = f(x, [a], [a]) output z = f(x, x, [b]) }",
    ] {
        println!("### {t}\n{}", errors(t));
    }
    let s = Settings { dims: vec![("batsh".into(), 1), ("lr".into(), 2), ("batch".into(), 1 << 40)], consts: vec![("lrr".into(), 1.0), ("batch".into(), 1.0), ("lr".into(), f64::NAN)], size: Some("bigg".into()), float: None };
    println!("{}", errors_with("dim batch = 2 const lr = 1 size big { batch = 2 } model m { input x[batch]: float output y = x }", &s));
    let ((_, f), src) = run_files(&[("m", "dim a = 1 model one { } model two { }")], Some("onee"), &Settings::default());
    println!("{}", show(&f, &src));
}
