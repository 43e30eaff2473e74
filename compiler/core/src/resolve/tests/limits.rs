//! No text hangs the compiler or makes it panic.

use super::*;
use crate::{Accumulate, Layout, compile, evaluation, training_step};
use meshwright_plan::{DType, Mesh, Prim};

#[test]
fn layers_that_multiply_hit_a_limit() {
    for body in ["return f(x) + f(x)", "let a = f(x) let b = f(x) return x"] {
        let mut text = "dim b = 2 layer f0(x) { return x }".to_string();
        for i in 1..40 {
            text += &format!(" layer f{i}(x) {{ {} }}", body.replace("f(", &format!("f{}(", i - 1)));
        }
        text += " model m { input x[b]: float loss l = mean[b](f39(x)) }";
        let found = errors(&text);
        assert!(found.starts_with("E0219 the model is too large: more than "), "{found}");
        assert_eq!(found.matches("E0").count(), 1, "{found}");
    }
}

#[test]
fn a_long_chain_of_layers_hits_a_limit() {
    let mut text = "dim b = 2 layer f0(x) { return x }".to_string();
    for i in 1..5000 {
        text += &format!(" layer f{i}(x) {{ return f{}(x) }}", i - 1);
    }
    text += " model m { input x[b]: float loss l = mean[b](f4999(x)) }";
    let found = errors(&text);
    assert!(found.contains("nested more than 2048 deep"), "{found}");
}

#[test]
fn few_losses_are_minimized_at_once() {
    let text = "dim b = 2 model m { input x[b]: float param w[b] = 1 loss l = mean[b](x * w) } train m {"
        .to_string();
    let found = errors(&(text + &" minimize l of w".repeat(65) + " optimizer sgd(lr = 1) }"));
    assert!(found.starts_with("E0219 a step minimizes 65 losses, more than 64"), "{found}");
}

#[test]
fn a_file_is_read_once_for_each_file_that_uses_it() {
    let mut asked = 0;
    let text = "use \"a.mw\"\n".repeat(1000) + "dim d = 1 model m { input x[d]: float output y = x }";
    let (tree, _) = parse_model(FileId(0), &text);
    let mut load = |_: &str, _| {
        asked += 1;
        parse_model(FileId(1), "dim e = 1")
    };
    let (program, found) = resolve(&tree.unwrap(), None, &Settings::default(), &mut load);
    assert!(program.is_some() && found.is_empty(), "{found:?}");
    assert_eq!(asked, 1);
}

#[test]
fn layers_do_not_call_themselves() {
    same(
        &errors(
            "dim b = 2 layer f(x) { return g(x) } layer g(x) { return f(x) + 1 } model m { input x[b]: float loss l = mean[b](f(x)) }",
        ),
        "E0211 layer `f` calls itself: f -> g -> f
          ^ `g`: called here
          - `f`: called by `g`
          - `f`: declared here
          note: layers are laid out in full when the program is compiled, so a circle of calls would never end
          help: write out as many levels as are needed, each as a layer of its own",
    );
}

#[test]
fn files_do_not_use_themselves() {
    let files = [
        ("a.mw", "use \"b.mw\" dim d = 1 model m { input x[d]: float output y = x }"),
        ("b.mw", "use \"a.mw\" dim e = 1"),
    ];
    let ((p, found), sources) = run_files(&files, None, &Settings::default());
    assert!(p.is_none());
    same(
        &show(&found, &sources),
        "E0211 `a.mw` uses itself
          ^ `\"a.mw\"`: leads back to a file that is being read
          - `\"b.mw\"`: through here
          help: move what both files need into a third one",
    );
}

#[test]
fn a_loader_that_never_repeats_itself_is_stopped() {
    let mut next = 0;
    let text = "use \"again.mw\" dim d = 1";
    let (tree, _) = parse_model(FileId(0), text);
    let mut load = |_: &str, _| {
        next += 1;
        parse_model(FileId(next), text)
    };
    let (_, found) = resolve(&tree.unwrap(), None, &Settings::default(), &mut load);
    assert!(found.iter().any(|d| d.code.id == "E0219"), "{found:?}");
}

/// Of very many mistakes the first are reported; none of the others is looked for.
#[test]
fn very_many_mistakes_are_reported_in_part() {
    let wrong: String = (0..2000).map(|i| format!(" let q{i} = z{i} + sum[zz{i}](x)")).collect();
    let found = errors(&format!("dim b = 2 model m {{ input x[b]: float {wrong} output y = x }}"));
    assert_eq!(found.matches("E0201").count(), meshwright_diag::MAX_REPORTED, "{found}");
    let twice = "dim d = 1 ".repeat(2000);
    let found = errors(&format!("dim b = 2 {twice} model m {{ input x[b]: float output y = x }}"));
    assert_eq!(found.matches("E0210").count(), meshwright_diag::MAX_REPORTED, "{found}");
}

/// No size is 0: in a file, in a block `size`, or given.
#[test]
fn a_size_of_0_is_refused_wherever_it_is_said() {
    let model = "model m { input x[b, d]: float let y = shift[d, by = 1, wrap = true](x) output o = y }";
    for dims in ["dim b = 2, d = 0", "dim b = 2, d = 0 * 3", "dim b = 2, c = 1, d = c//2"] {
        let found = errors(&format!("{dims} {model}"));
        assert!(found.starts_with("E0204 dim `d` has size 0: it has no elements"), "{found}");
    }
    let (text, given) = (format!("dim b = 2, d = 3 size none {{ d = 0 }} {model}"), Settings::default());
    let of = |settings: &Settings| {
        let ((p, found), sources) = run_files(&[("a.mw", &text)], None, settings);
        (p.is_none(), show(&found, &sources))
    };
    let (none, found) = of(&Settings { size: Some("none".into()), ..given.clone() });
    assert!(none && found.starts_with("E0204 dim `d` has size 0"), "{found}");
    let (none, found) = of(&Settings { dims: vec![("d".into(), 0)], ..given });
    assert!(none && found.starts_with("E0204 `--dim d=0`: it has no elements"), "{found}");
    let p = program(&text.replace("size none { d = 0 }", ""));
    assert!(p.rebind(&[("d".into(), 0)]).is_err());
}

/// Together the matrices have more dims than any machine has positions for, but they are multiplied two by two.
#[test]
fn a_long_product_of_small_matrices_compiles() {
    let n = 70;
    let dims: String = (0..=n).map(|i| format!(" dim d{i} = 2")).collect();
    let params: String = (0..n).map(|i| format!(" param w{i}[d{i}, d{}] = 1", i + 1)).collect();
    let factors: String = (0..n).map(|i| format!(" * w{i}")).collect();
    let all = (0..=n).map(|i| format!("d{i}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "dim b = 2 {dims} model m {{ input x[b, d0]: float {params} loss l = mean[b](sum[{all}](x{factors})) }}
        train m {{ minimize l optimizer sgd(lr = 0.1) }}"
    );
    let (compiled, found) =
        compile(&training_step(&program(&text)).unwrap(), &Layout::default(), &|_| 0, &mut |_, _| {});
    assert!(compiled.is_some_and(|c| c.plan.summary.flops < 1_000_000), "{found:?}");
    // One that must be made whole is still refused.
    let found = errors(&text.replace(&format!("sum[{all}]"), "").replace("mean[b]", "sum[b]"));
    assert!(found.starts_with("E0219 a value with more than 64 dims"), "{found}");
}

/// An entry of a table of `bf16` is stored as it is there, whoever reads it: to look up is to copy.
#[test]
fn entries_of_a_table_have_its_dtype() {
    let text = "dim b = 4, v = 10, e = 3 model m { input t[b]: i32 in v param w[v, e] = normal(0, 1)
        loss l = mean[b, e](w[v = t]) } train m { minimize l optimizer sgd(lr = 0.1) precision bf16 }";
    let (compiled, found) =
        compile(&training_step(&program(text)).unwrap(), &Layout::default(), &|_| 0, &mut |_, _| {});
    let plan = compiled.unwrap_or_else(|| panic!("{found:?}")).plan;
    let lookup = plan.steps.iter().position(|s| matches!(s.prim, Prim::Lookup { .. })).unwrap();
    let dtypes: Vec<DType> = plan.steps[lookup].all().map(|o| plan.buffer(o.buf).dtype).collect();
    assert_eq!(dtypes, [DType::BF16, DType::I32, DType::BF16]);
    // The verifier would say so.
    let mut broken = plan.clone();
    broken.buffers[plan.steps[lookup].writes[0].buf.0 as usize].dtype = DType::F32;
    let said = crate::lowering::verify_plan(&broken);
    assert!(said.iter().any(|f| f.contains("of f32 where bf16 is needed")), "{said:?}");
}

#[test]
fn dims_do_not_define_themselves() {
    same(
        &errors("dim a = b + 1, b = c * 2, c = a, free = 2 model m { input x[free]: float output y = x }"),
        "E0211 dim `a` has a cyclic definition: a -> b -> c -> a
          ^ `b + 1`: leads back to itself
          - `c * 2`: through `b`
          - `a`: through `c`
          help: give one of them a number",
    );
    let mut text = String::new();
    for i in 0..30_000 {
        text += &format!("dim a{i} = a{}\n", i + 1);
    }
    let found = errors(&format!("{text} dim a30000 = 1 model m {{ input x[a0]: float output y = x }}"));
    assert!(
        found.starts_with("E0219 more than 1000 dims and consts lean on one another"),
        "{}",
        &found[..200]
    );
}

#[test]
fn huge_sizes_are_refused() {
    same(
        &errors("dim a = 2 ** 200, b = 3000000000, c = 10 ** 400 model m { input x[a]: float output y = x }"),
        "E0204 `dim a = 1.6069380442589903e60`: a dim has at most 2147483647 positions
          ^ `2 ** 200`: too large
          note: positions along a dim are 32-bit integers
          help: split it into two dims
        E0204 `dim b = 3000000000`: a dim has at most 2147483647 positions
          ^ `3000000000`: too large
          note: positions along a dim are 32-bit integers
          help: split it into two dims
        E0214 10 ** 400 is too large: numbers end at about 1.8e308
          ^ `10 ** 400`: here",
    );
    let found = errors(
        "dim a = 2000000000, b = 2000000000 model m { input x[a]: float param y[b] = 0 output z = x * y }",
    );
    assert!(found.starts_with("E0219 a value with more than 2^48"), "{found}");
    let found = errors(
        "dim a = 2000000000, b = a, c = a model m { param x[a, b] = 0 input y[c]: float output z = y }",
    );
    assert!(found.starts_with("E0219 a value with more than 2^48"), "{found}");
}

#[test]
fn windows_and_values_have_limits() {
    let found = errors(
        "dim b = 2, rows = 4, r2 = 1, kh = 2000000000 model m { input x[b, rows]: float
        output o = max_pool[rows -> r2 by kh](x, padding = same) }",
    );
    assert!(found.starts_with("E0204 a window of 2000000000 elements: at most 1048576 are taken"), "{found}");
    let dims: String = (0..65).map(|i| format!(" dim d{i} = 1")).collect();
    let all = (0..65).map(|i| format!("d{i}")).collect::<Vec<_>>().join(", ");
    let found = errors(&format!(
        "dim b = 2 {dims} model m {{ input x[b]: float param w[{all}] = 1 output o = x * w }}"
    ));
    assert!(found.starts_with("E0219 a value with more than 64 dims"), "{found}");
}

#[test]
fn deep_expressions_resolve() {
    let sum = format!("x{}", " + 1".repeat(500));
    let text = format!("dim b = 2 model m {{ input x[b]: float loss l = mean[b]({sum}) }}");
    assert!(program(&text).graph.nodes.len() > 1000);
}

#[test]
fn names_that_lean_on_one_another_share_the_depth() {
    let minus = "-".repeat(500);
    let mut text = String::new();
    for i in 0..990 {
        text += &format!("const c{i} = {minus}c{}\n", i + 1);
    }
    text += "const c990 = 1 dim b = 2 model m { input x[b]: float loss l = mean[b](x * c0) }";
    let found = errors(&text);
    assert!(
        found.contains("E0219 dims and consts that lean on one another are nested more than 2048"),
        "{found}"
    );
    assert_eq!(found.matches("E0219").count(), 1, "{found}");
}

/// Optimizers multiply: a program of few values may have a step that is too large.
#[test]
fn steps_have_a_limit_with_all_updates() {
    let compiled = |params: usize, optimizer: &str| {
        let declared: String = (0..params).map(|i| format!(" param w{i}[b] = 1")).collect();
        let product: String = (0..params).map(|i| format!(" let y{} = y{i} * w{i}", i + 1)).collect();
        let p = program(&format!(
            "dim b = 2 model m {{ input x[b]: float {declared} let y0 = x {product} loss l = mean[b](y{params}) }}
            train m {{ minimize l optimizer {optimizer}(lr = 0.1) }}"
        ));
        let layout = Layout { mesh: Mesh::new([("r", 1)]), ..Layout::default() };
        let (compiled, found) = compile(&training_step(&p).unwrap(), &layout, &|_| 0, &mut |_, _| {});
        assert_eq!(compiled.is_none(), !found.is_empty());
        found.iter().map(|d| format!("{} {}", d.code.id, d.message)).collect::<String>()
    };
    assert_eq!(compiled(2200, "sgd"), "");
    let found = compiled(2200, "adamw");
    assert!(found.starts_with("E0219 the program `train` of `m` has "), "{found}");
    assert!(found.ends_with(" values, more than 50000: it is too large to compile"), "{found}");
}

/// A chain of as many lines as a graph may well have goes through every pass, on the stack of a test.
#[test]
fn long_chains_of_lines_compile() {
    let mut text = "dim b = 4, d = 2 model m { input x[b, d]: float param w[d] = 1 let a0 = w let b0 = x * w"
        .to_string();
    for i in 1..8_000 {
        text += &format!(" let a{i} = neg(a{0}) let b{i} = neg(b{0})", i - 1);
    }
    text += " loss l = mean[b](sum[d](a7999 * b7999)) metric q = a7999[d = 0] }
        train m { minimize l optimizer sgd(lr = 0.1) }";
    let p = program(&text);
    let layout = Layout { mesh: Mesh::new([("r", 2)]), ..Layout::default() };
    let (compiled, found) = compile(&training_step(&p).unwrap(), &layout, &|_| 0, &mut |_, _| {});
    assert!(compiled.is_some(), "{found:?}");
    let e = evaluation(&p).0.unwrap();
    assert!(e.accumulate.contains(&Accumulate::Same), "{:?}", e.accumulate);
}

/// Every word of a program in the place of every other one: whatever comes of it, the resolver answers.
#[test]
fn words_in_wrong_places_do_not_panic() {
    let text = format!(
        "{HEAD} param w [ d , e ] = normal ( 0 , 1 ) let h = sum [ d ] ( x * w / 2 ) let k = softmax [ key ] ( cast ( real [ seq -> key ] , float ) )
        let u , v = two ( dense ( x , [ d ] , e ) as first ) let t = w [ d = 2 ] let a = argmax [ e ] ( h ) let n = index ( seq ) > size ( d )
        metric q = mean [ batch ] ( cross_entropy [ vocab ] ( one_hot [ vocab ] ( label ) , label ) ) output o = where ( n , cast ( h , float ) , half ) }}
        train m {{ minimize all optimizer adam ( lr = warmup_cosine ( 1 , 2 , 30 ) / step ) clip global_norm = 1.0 freeze *.w }}"
    );
    program(&text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let (mut resolved, mut refused) = (0, 0);
    for i in 0..words.len() {
        for j in (i % 11..words.len()).step_by(11) {
            let mut changed = words.clone();
            changed[i] = words[j];
            let (Some(tree), _) = parse_model(FileId(0), &changed.join(" ")) else { continue };
            let mut load = |_: &str, _| (None, Vec::new());
            match resolve(&tree, None, &Settings::default(), &mut load) {
                (Some(_), _) => resolved += 1,
                (None, found) => {
                    assert!(meshwright_diag::has_errors(&found));
                    refused += 1;
                }
            }
        }
    }
    assert!(resolved > 50 && refused > 500, "{resolved} {refused}");
}

/// In `f32` such a number would be infinite; that what fits is rounded is no error.
#[test]
fn numbers_that_f32_does_not_hold() {
    same(
        &body(
            "let a = x * 1e40 let b = where(x < 100, -1e300, x) let c = x + 3.4028235e38 let z = 1e39 repeat d { z = z * 2 } output o = 1e40",
        ),
        "E0202 `*` of f32 and 1e40: the number does not fit
          ^ `1e40`: f32 holds -3.4028235e38 to 3.4028235e38
          - `x`: this is f32 [batch d]
          help: write a number that f32 holds, such as `1e30`; or compute in f64: `--precision f64`
        E0202 `where` of f32 and -1e300: the number does not fit
          ^ `-1e300`: f32 holds -3.4028235e38 to 3.4028235e38
          - `x`: this is f32 [batch d]
          help: write a number that f32 holds, such as `-1e30`; or compute in f64: `--precision f64`
        E0202 `z` is 1e39 and of f32: the number does not fit
          ^ `z`: f32 holds -3.4028235e38 to 3.4028235e38
          help: write a number that f32 holds, such as `1e30`; or compute in f64: `--precision f64`
        E0202 1e40 as a value of f32: the number does not fit
          ^ `1e40`: f32 holds -3.4028235e38 to 3.4028235e38
          help: write a number that f32 holds, such as `1e30`; or compute in f64: `--precision f64`",
    );
    for first in ["1e40", "normal(0, 1e39)", "uniform(-1e300, 0)"] {
        let told = body(&format!("param w[d] = {first}"));
        assert!(told.contains("as a first value of f32: the number does not fit"), "{told}");
    }
    assert!(body("let c = x + 3.4028235e38 let b = x * -1e30").is_empty());
}
