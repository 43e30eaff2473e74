//! `sharing`: calls with the parameters of earlier ones.

use super::*;

const LAYERS: &str = "
dim batch = 6, d = 3, e = 5
layer dense(x, in, out, scale = 1) {
    param w[in, out] = normal(0, scale)
    return sum[in](x * w)
}
layer critic(x) {
    let hidden = dense(x, [d], [e])
    return dense(relu(hidden), [e], [])
}
layer norm(x) {
    state average[d] = 0
    let m = mean[batch](x)
    average = 0.9 * average + 0.1 * m
    return x - where(training, m, average)
}
";

fn paths(p: &Program) -> Vec<&str> {
    p.params.iter().map(|p| p.path.as_str()).collect()
}

fn graph(body: &str) -> Program {
    program(&format!("{LAYERS} model m {{ input x[batch, d]: float input y[batch, d]: float {body} }}"))
}

#[test]
fn a_shared_call_makes_no_parameters() {
    for body in [
        "let real = critic(x) let fake = critic(y) sharing real loss l = mean[batch](fake - real)",
        "let both = critic(y) as real - critic(x) sharing real loss l = mean[batch](both)",
        "let real = critic(x) let both = critic(y) sharing real - real loss l = mean[batch](both)",
    ] {
        assert_eq!(paths(&graph(body)), ["real.hidden.w", "real.dense.w"], "{body}");
    }
    // Both calls read the same leaves, and their values have paths of their own.
    let p = graph("let real = critic(x) let fake = critic(y) sharing real loss l = mean[batch](fake - real)");
    let readers = |id| p.graph.ids().filter(|i| p.graph.node(*i).inputs.contains(&id)).count();
    assert!(p.params.iter().all(|d| readers(d.id) == 2));
    let named = |name: &str| p.graph.ids().any(|i| &*p.graph.node(i).origin.name == name);
    assert!(named("fake") && named("real") && named("real.hidden") && named("real#2.hidden"));
}

#[test]
fn states_go_on_from_call_to_call() {
    let p = graph("let a = norm(x) let b = norm(y) sharing a loss l = mean[batch, d](a + b)");
    assert_eq!(p.states.len(), 1);
    // In training the second call starts from what the first has made of the state; elsewhere nothing changes it.
    let train = crate::specialized(&p, true);
    let next = train.states[0].next.unwrap();
    let mut below = vec![next];
    let mut means = meshwright_sorted::SortedSet::new();
    while let Some(id) = below.pop() {
        let n = train.graph.node(id);
        if n.op.name() == "mean" {
            means.insert(id);
        }
        below.extend(&n.inputs);
    }
    assert_eq!(means.len(), 2, "both batches are in it");
    let eval = crate::specialized(&p, false);
    let loss = eval.losses[0].id;
    let mut below = vec![loss];
    while let Some(id) = below.pop() {
        let n = eval.graph.node(id);
        assert!(id == loss || n.op.name() != "mean", "an evaluation reads the state as it is");
        below.extend(&n.inputs);
    }
}

#[test]
fn a_call_in_a_loop_shares_one_in_front_of_it() {
    let p = |body: &str| {
        program(&format!(
            "dim batch = 6, d = 3, k = 4, j = 2, i = 5
            layer step(x) {{ param w[d] = 1 return tanh(x * w) }}
            layer deep(x) {{ let y = step(x) as low repeat j {{ y = step(y) as high }} return y }}
            model m {{ input x[batch, d]: float {body} loss l = mean[batch, d](y * y) }}"
        ))
    };
    let dims = |p: &Program| -> Vec<String> {
        p.params.iter().map(|d| format!("{} {}", d.path, p.graph.dims.list(&p.graph.ty(d.id).dims))).collect()
    };
    let one = p("let y = step(x) as one repeat k { y = step(y) sharing one }");
    assert_eq!(dims(&one), ["one.w [d]"]);
    // One of each iteration of the loop around, for all of the inner loop; calls inside of what is shared are shared too.
    let nested = p(
        "let y = x repeat k { y = deep(y) as own scan j { y = step(y) as all } repeat i { y = deep(y) sharing own } }",
    );
    assert_eq!(dims(&nested), ["k.own.low.w [k d]", "k.own.j.high.w [k j d]", "k.all.w [k d]"]);
}

#[test]
fn what_cannot_be_shared_in_a_loop() {
    let body = |text: &str| {
        errors(&format!(
            "{LAYERS} dim k = 4 model m {{ input x[batch, d]: float {text} loss l = mean[batch, d](y * y) }}"
        ))
    };
    same(
        &body("let y = x repeat k { y = norm(y) sharing all }"),
        "E0201 no call of `norm` before this one is `all`
          ^ `all`: not known
          - `repeat k`: each of its iterations has a `norm` of its own
          help: write `scan k` and leave `sharing` out: the iterations of a `scan` share its parameters
          help: or call `norm` once in front of the loop, and share that call in it",
    );
    same(
        &body("let y = norm(x) as one repeat k { y = norm(y) sharing one }"),
        "E0218 state `average` is shared in a loop over `k`, which would give it a next value in each iteration
          ^ `average`: assigned here
          - `average`: declared here
          - `norm(y) sharing one`: in this call of `norm`
          help: call the layer outside of the loop, or let each iteration have its own: leave `sharing` out",
    );
}

#[test]
fn what_cannot_be_shared() {
    let body = |text: &str| {
        errors(&format!("{LAYERS} model m {{ input x[batch, d]: float input y[batch, d]: float {text} }}"))
    };
    same(
        &body("let real = critic(x) let fake = critic(y) sharing reel output o = real + fake"),
        "E0201 no call of `critic` before this one is `reel`
          ^ `reel`: not known
          fix: write `real`: `reel` -> `real`",
    );
    same(
        &body("let a = dense(x, [d], [e]) let b = critic(y) sharing a output o = a + b"),
        "E0215 `a` is a call of `dense`: `critic` cannot share its parameters
          ^ `a`: a call of `dense`
          - `dense(x, [d], [e])`: this call
          help: share those of an earlier call of `critic`",
    );
    same(
        &body("let a = dense(x, [d], [e]) let b = dense(a, [e], [d]) sharing a output o = a + b"),
        "E0215 the shared `a.w` is f32 [d e], but this call needs f32 [e d]
          ^ `dense(a, [e], [d]) sharing a`: this call shares it
          - `w`: declared here
          help: give it the dims and numbers of the first call, or parameters of its own: `as NAME`",
    );
    same(
        &body("let a = dense(x, [d], [e]) let b = dense(y, [d], [e], scale = 2) sharing a output o = a + b"),
        "E0215 the shared `a.w` has another initial value in this call
          ^ `dense(y, [d], [e], scale = 2) sharing a`: this call shares it
          - `w`: declared here
          help: give it the dims and numbers of the first call, or parameters of its own: `as NAME`",
    );
    same(
        &body("let a = relu(x) sharing b output o = a"),
        "E0212 `relu` is no layer, so `sharing b` shares nothing
          ^ `b`: shares the parameters of a layer
          help: leave it out, or put it behind the call of a layer",
    );
}

#[test]
fn words_stay_free() {
    // `sharing` is a keyword only behind a call and before a name.
    let p = graph("let sharing = x let z = relu(sharing) state s[d] = 0 s = mean[batch](z) output o = z");
    assert_eq!(p.outputs.len(), 1);
}
