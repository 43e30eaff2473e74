//! Mistakes in the statements of a model: each with its code, its places, its numbers and its fix.

use super::*;

#[test]
fn unknown_values() {
    same(
        &body("let y = x + labl let z = y * 2 let w = nothing"),
        "E0201 nothing is called `labl` here
          ^ `labl`: not declared
          fix: write `label`: `labl` -> `label`
        E0201 nothing is called `nothing` here
          ^ `nothing`: not declared
          help: declare it before: `let nothing = …`",
    );
}

/// A help proposes what its place takes: a `const` in a `train` block, and no dims of a value that has none.
#[test]
fn help_fits_its_place() {
    let train = format!("{HEAD}param w[d] = 1 }} train m {{ minimize all optimizer sgd(lr = rate) }}");
    same(
        &errors(&train),
        "E0201 nothing is called `rate` here
          ^ `rate`: not declared
          help: declare it outside of the blocks: `const rate = …`",
    );
    let of_number = body("let y = sum[batch, d](x) let z = sum[d](y)");
    let help = "help: leave `d` out: a single number has no dims to name";
    assert!(of_number.contains(help) && !of_number.contains("name one of"), "{of_number}");
}

#[test]
fn arguments_of_layers() {
    same(
        &body(
            "let y = dense(x, [d]) let z = dense(x, [d], [e], [e]) let u = dense(x, d, out = [e], outt = 3)",
        ),
        "E0212 `dense` is called without `out`
          ^ `dense(x, [d])`: `out` missing
          - `out`: declared here, without a default
          help: add `out = …`
        E0212 `dense` takes 3 arguments, but 4 are given
          ^ `[e]`: this one is too many
          - `dense`: `dense` takes `x`, `in` and `out`
        E0212 `dense` has no parameter `outt`
          ^ `outt`: no such parameter
          - `dense`: `dense` takes `x`, `in` and `out`
          fix: write `out`: `outt` -> `out`",
    );
}

#[test]
fn the_two_forms_of_ops() {
    same(
        &body(
            "let y = max(x) let z = sum(x) let u = relu[d](x) let v = sofmax[d](x) let w = rellu(x) let t = max[d](x, x)",
        ),
        "E0212 `max` is called without `y`
          ^ `max(x)`: `y` missing
          help: write `max(x, y)`
          help: `max` along dims is written `max[d, e](x)`
        E0212 `sum` works along dims
          ^ `sum`: without dims
          note: `sum[d, e](x)`: the sum along dims. Of a product it is one contraction.
          help: `sum` along dims is written `sum[d, e](x)`
        E0212 `relu` is not an op over dims
          ^ `relu[d](x)`: with dims
          help: it is written `relu(x)`, without brackets
        E0201 there is no op `sofmax` over dims
          ^ `sofmax`: not known
          fix!: write `softmax`: `sofmax` -> `softmax`
        E0201 no layer or function is called `rellu`
          ^ `rellu`: not known
          fix: write `relu`: `rellu` -> `relu`
        E0212 `max[…]` takes 1 argument, but 2 are given
          ^ `x`: this one is too many
          note: it is written `max[d, e](x)`
          help: element by element it is written `max(x, y)`",
    );
}

#[test]
fn dims_that_do_not_fit() {
    same(
        &body("let y = sum[seq](x) let z = mean[sqe](x) let w = sum[d, d](x)"),
        "E0203 `sum[seq]` of a value that has no dim `seq`: it has [batch d]
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: leave `seq` out, or name one of [batch d]
        E0201 there is no dim `sqe`
          ^ `sqe`: not declared
          - `seq`: `seq` is declared here
          fix!: write `seq`: `sqe` -> `seq`
        E0203 `sum[…]` names `d` twice
          ^ `sum[d, d](x)`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: it is written `sum[d, e](x)`",
    );
}

#[test]
fn dtypes_that_do_not_fit() {
    same(
        &body("let y = pixel / 255 let z = x + label let w = x and real"),
        "E0202 `/` takes floats, not u8
          ^ `pixel`: this is u8 [batch d]
          - `255`: this is the number 255
          - `pixel`: `pixel` is declared here
          fix: convert `pixel`: `pixel` -> `cast(pixel, float)`
        E0202 `+` of f32 and i32: they need one dtype
          ^ `x + label`: here
          - `x`: this is f32 [batch d]
          - `label`: this is i32 in vocab [batch]
          - `x`: `x` is declared here
          - `label`: `label` is declared here
          help: convert one of them: `cast(…, float)`
        E0202 `and` takes truth values, not f32
          ^ `x`: this is f32 [batch d]
          - `real`: this is bool [batch seq]
          - `x`: `x` is declared here
          - `real`: `real` is declared here
          help: compare it: `… != 0`",
    );
}

#[test]
fn dims_and_values_are_told_apart() {
    same(
        &body("let y = x * d let z = x / sqrt(d) let w = sum[x](x) let v = sum[half](x)"),
        "E0213 dim `d` stands where a value is needed
          ^ `d`: a dim
          - `d`: declared here, of size 3
          help: `index(d)` is the position along it
          fix: write `size(d)` for 3: `d` -> `size(d)`
        E0213 dim `d` stands where a value is needed
          ^ `d`: a dim
          - `d`: declared here, of size 3
          help: `index(d)` is the position along it
          fix: write `size(d)` for 3: `d` -> `size(d)`
        E0213 `x` stands where a dim is needed
          ^ `x`: a tensor, f32 [batch d]
          - `x`: declared here
          help: name a dim, or pass a list of dims to the layer: `[d, e]`
        E0213 `half` stands where a dim is needed
          ^ `half`: a const
          - `half`: declared here
          help: declare it as a dim: `dim half = …`",
    );
}

#[test]
fn names_are_given_once() {
    same(
        &body("let y = x let y = x * 2 let z = y let d = x let half = x"),
        "E0210 `y` is declared already
          ^ `y`: declared again here
          - `y`: first declared here
          help: give one of them another name
        E0210 `d` is a dim already
          ^ `d`: declared again here
          - `d`: declared here
          help: give one of them another name
        E0210 `half` is a const already
          ^ `half`: declared again here
          - `half`: declared here
          help: give one of them another name",
    );
}

#[test]
fn two_parameters_of_one_path() {
    same(
        &body(
            "let y = dense(x, [d], [e]) + dense(x, [d], [e]) let z = dense(x, [d], [e]) as y let w = dense(x, [d], [e]) as y",
        ),
        "E0215 two parameters have the path `dense.w`
          ^ `dense(x, [d], [e])`: this call of `dense` is `dense` too
          - `dense(x, [d], [e])`: this call is `dense`
          - `w`: the parameter
          help: or give each call a `let` of its own: the parameters are then called as the `let` is
          fix: for parameters of its own, name this call: `as dense2`: `` -> ` as dense2`
          fix: for the parameters of the first call: `sharing dense`: `` -> ` sharing dense`
        E0215 two parameters have the path `y.w`
          ^ `dense(x, [d], [e]) as y`: this call of `dense` is `y` too
          - `dense(x, [d], [e]) as y`: this call is `y`
          - `w`: the parameter
          help: or give each call a `let` of its own: the parameters are then called as the `let` is
          fix: for parameters of its own, name this call: `as y2`: `as y` -> `as y2`
          fix: for the parameters of the first call: `sharing y`: `as y` -> `sharing y`",
    );
}

#[test]
fn losses_and_metrics_are_one_number() {
    same(
        &body("loss l = x metric q = x * 2 metric c = sum[batch](label) loss all = 3"),
        "E0216 loss `l` is not one number: it has the dims `batch` and `d`
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          fix: take the mean over `batch` and `d`: `x` -> `mean[batch, d](x)`
        E0216 metric `q` is not one number: it has the dims `batch` and `d`
          ^ `x * 2`: this is f32 [batch d]
          help: take the mean: `metric q = mean[batch, d](…)`
        E0202 metric `c` is i32, not a float
          ^ `sum[batch](label)`: this is i32 []
          help: convert it: `metric c = cast(…, float)`
        E0210 `all` is declared already
          ^ `all`: declared again here
          - `all`: first declared here
          help: give one of them another name",
    );
}

#[test]
fn renames_that_do_not_fit() {
    same(
        &body(
            "let y = real[seq -> vocab] let z = x[d -> batch] let w = x[seq -> key] let v = x[batch -> d, d -> batch]",
        ),
        "E0204 `seq` = 4 is renamed to `vocab` = 7: the sizes differ
          ^ `seq -> vocab`: needs two dims of one size
          - `seq`: `seq` has size 4
          - `vocab`: `vocab` has size 7
          help: declare `dim vocab = seq`, or rename to a dim that is
        E0204 `d` = 3 is renamed to `batch` = 6: the sizes differ
          ^ `d -> batch`: needs two dims of one size
          - `d`: `d` has size 3
          - `batch`: `batch` has size 6
          help: declare `dim batch = d`, or rename to a dim that is
        E0203 `[seq -> key]` of a value that has no dim `seq`: it has [batch d]
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
        E0204 `batch` = 6 is renamed to `d` = 3: the sizes differ
          ^ `batch -> d`: needs two dims of one size
          - `batch`: `batch` has size 6
          - `d`: `d` has size 3
          help: declare `dim d = batch`, or rename to a dim that is
        E0204 `d` = 3 is renamed to `batch` = 6: the sizes differ
          ^ `d -> batch`: needs two dims of one size
          - `d`: `d` has size 3
          - `batch`: `batch` has size 6
          help: declare `dim batch = d`, or rename to a dim that is",
    );
}

#[test]
fn what_brackets_can_say() {
    same(
        &body(
            "let y = x[d = label] let z = x[d = 5] let w = x[d] let v = x[d = 0..2 -> e] let u = x[d -> batch * d] let t = half[d -> e]",
        ),
        "E0205 the index of `[d = …]` must be an `i32 in d`, not i32 in vocab
          ^ `label`: this is i32 in vocab [batch]
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          - `label`: `label` is declared here
          help: declare it `i32 in d`
        E0205 position 5 along `d`, which has 3
          ^ `5`: must be an integer in 0..3
          - `d`: declared here
        E0212 `[d]` says nothing about the dim `d`
          ^ `d`: a dim alone
          help: rename it `[d -> other]`, or index it `[d = i]`
        E0204 `d = 0..2` has 2 elements, but `e` = 5
          ^ `d = 0..2 -> e`: the sizes differ
          - `e`: `e` has size 5
          help: declare `dim e = 2`
        E0204 `batch * d` = 6 * 3 = 18, but `d` = 3
          ^ `d -> batch * d`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: declare `dim d = batch * d`
        E0213 the number 0.5 has no dims
          ^ `half`: a number
          - `d -> e`: speaks of a dim
          help: leave the brackets out
        E0204 `d` = 3 is renamed to `e` = 5: the sizes differ
          ^ `d -> e`: needs two dims of one size
          - `d`: `d` has size 3
          - `e`: `e` has size 5
          help: declare `dim e = d`, or rename to a dim that is",
    );
}

#[test]
fn several_results() {
    same(
        &body("let y, z = two(x) let a, b, c = two(x) let f = two(x) + 1 let g, h = dense(x, [d], [e])"),
        "E0212 3 names for 2 values
          ^ `a, b, c`: 3 names
          - `two(x)`: 2 values
          - `return x, x * 2`: returned here
          help: write 2 names
        E0213 this layer gives 2 values, where one is needed
          ^ `two(x)`: 2 values
          help: name them first: `let a, b = …`
        E0212 2 names for 1 value
          ^ `g, h`: 2 names
          - `dense(x, [d], [e])`: 1 value
          - `return sum[in](x * w)`: returned here
          help: write one name",
    );
}

#[test]
fn numbers_without_a_value() {
    same(
        &body("let y = x//2 let z = 1 / (2 - 2) let w = sqrt(-1) let v = size(d)//0"),
        "E0214 1 / 0 divides by zero
          ^ `1 / (2 - 2)`: has no value
        E0214 sqrt(-1) is not a number
          ^ `sqrt(-1)`: has no value
        E0214 3 // 0 divides by zero
          ^ `size(d)//0`: has no value",
    );
}

#[test]
fn parameters() {
    same(
        &body(
            "param w[d, d] = 0 param v[dd] = 0 param u[d] = norml(0, 1) param t[d] = normal(0) param s[d] = uniform(1, 0) param r[d]: i32 = 0 param q[d] = x",
        ),
        "E0203 `w` has the dim `d` twice: a tensor never holds one dim twice
          ^ `d`: again
          - `d`: first
          - `d`: the dim is declared here
          help: declare a second name of the same size, `dim d2 = d`, use it for one of the two, and rename: `x[d2 -> d]`
        E0201 there is no dim `dd`
          ^ `dd`: not declared
          - `d`: `d` is declared here
          fix: write `d`: `dd` -> `d`
        E0201 there is no initializer `norml`
          ^ `norml`: not known
          note: initializers: a number, `normal`, `truncated_normal`, `uniform`, `glorot_uniform`, `glorot_normal`, `he_uniform` and `he_normal`
          fix!: write `normal`: `norml` -> `normal`
        E0212 `normal` is called without `std`
          ^ `normal(0)`: `std` missing
          help: add `std = …`
        E0214 `uniform` from 1 to 0: the low end is above the high end
          ^ `0`: this is 0
        E0202 a parameter is a float, not `i32`
          ^ `i32`: `float`, `f32` or `f64`
          help: leave the dtype out: a parameter is `float`
        E0213 the first value of a parameter must be a number known at compile time
          ^ `x`: a tensor, f32 [batch d]
          - `x`: `x` is declared here
          help: numbers, consts and `size(…)` are known at compile time",
    );
}

#[test]
fn inputs() {
    same(
        &body("input i: float input j[batch]: i23 input k[batch]: float in vocab input l[batch]: bf16"),
        "E0203 input `i` has no dim
          ^ `i`: its first dim counts the examples
          help: write `input i[batch]: float`
        E0202 there is no dtype `i23`
          ^ `i23`: not known
          note: dtypes of inputs: `float`, `f32`, `f64`, `i32`, `u8` and `bool`
          fix: write `i32`: `i23` -> `i32`
        E0205 input `k` is f32, but a position `in vocab` is an integer
          ^ `float`: this is f32
          - `vocab`: positions along this dim
          fix!: write `i32`: `float` -> `i32`
        E0190 `bf16` is not implemented yet
          ^ `bf16`: not in this version
          help: write `float` or `f32` until then",
    );
}

#[test]
fn what_does_not_belong_in_a_model() {
    same(
        &body(
            "return x y = x let z = [d] let w = \"a\" let u = cast(x, u8) let v = cast(x, flot) let t = relu(x) as q let s = relu(x = x)",
        ),
        "E0218 `return` stands in model `m`
          ^ `return x`: not here
          help: a layer returns; a model has `loss`, `metric` and `output`
        E0218 `y = …` stands outside of `repeat`
          ^ `y = x`: carries a value to the next iteration of a `repeat`, or a `state` to the next step
          fix: declare a new name: `` -> `let `
        E0213 a list of dims stands where a value is needed
          ^ `[d]`: a list of dims
          help: only layers take lists of dims; their product is `size(…)`
        E0213 a text stands where a value is needed
          ^ `\"a\"`: a text
          help: write a number or a name without quotes
        E0202 `cast` makes `float`, `f32`, `f64`, `i32` and `bool`
          ^ `u8`: only inputs are `u8`
          help: write `i32`
        E0202 `cast` makes `float`, `f32`, `f64`, `i32` and `bool`
          ^ `flot`: not one of them
          fix: write `float`: `flot` -> `float`
        E0212 `relu` is no layer, so `as q` names nothing
          ^ `q`: names the parameters of a layer
          help: leave it out, or put it behind the call of a layer
        E0212 `relu` has no parameter `x`
          ^ `x`: no such parameter
          note: it is written `relu(x)`
          help: its arguments have no names",
    );
}

#[test]
fn operands_of_single_ops() {
    same(
        &body(
            "let y = softmax[batch, d](x) let z = one_hot[vocab](x) let w = cross_entropy[d](x, label) let v = where(x, x, 0) let u = not 3 let t = label + 0.5 let s = label + 3000000000",
        ),
        "E0203 `softmax[…]` takes one dim, not 2
          ^ `softmax[batch, d](x)`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: it is written `softmax[d](x)`
        E0205 `one_hot[vocab]` takes an `i32 in vocab` without that dim, not f32
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: declare it `i32 in vocab`
        E0205 the label of `cross_entropy[d]` must be an `i32 in d`, not i32 in vocab
          ^ `label`: this is i32 in vocab [batch]
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          - `label`: `label` is declared here
          help: declare it `i32 in d`
        E0202 `where` takes a truth value first, not f32
          ^ `x`: this is f32 [batch d]
          - `x`: this is f32 [batch d]
          - `0`: this is the number 0
          - `x`: `x` is declared here
          help: compare it: `x != 0`
        E0202 `not` takes a truth value, not the number 3
          ^ `3`: a number
          help: compare it: `x == 0`
        E0202 0.5 meets a value of i32: it is no integer
          ^ `label + 0.5`: here
          - `label`: this is i32 in vocab [batch]
          - `0.5`: this is the number 0.5
          - `label`: `label` is declared here
          help: write an integer, or cast the value first: `cast(…, float)`
        E0202 `+` of i32 and 3000000000: the number does not fit
          ^ `3000000000`: i32 holds -2147483648 to 2147483647
          - `label`: this is i32 in vocab [batch]
          help: convert the tensor first: `cast(…, float)`",
    );
}

#[test]
fn functions_of_dims_and_steps() {
    same(
        &body(
            "let y = step let z = size() let w = size(x) let v = index(batch, d) let u = index(2) let t = warmup_linear(1, 2, 3)",
        ),
        "E0201 nothing is called `step` here
          ^ `step`: not declared
          help: `step` is the number of the step, only in a `train` block
        E0212 `size` is called without a dim
          ^ `size()`: a dim is missing
          help: write `size(d)`
        E0213 `x` stands where a dim is needed
          ^ `x`: a tensor, f32 [batch d]
          - `x`: declared here
          help: name a dim, or pass a list of dims to the layer: `[d, e]`
        E0212 `index` is the position along one dim, not along [batch d]
          ^ `index(batch, d)`: one dim is needed
        E0213 `index` takes dims
          ^ `2`: no dim
        E0201 `warmup_linear` is a learning-rate schedule
          ^ `warmup_linear`: not known
          help: use it in the `train` block",
    );
}

#[test]
fn brackets_of_ops() {
    same(
        &body("let y = sum[d by e](x) let z = sum[d; e](x) let q = foo[d](x)"),
        "E0203 `sum[…]` takes dims and nothing else
          ^ `d by e`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: rename, index or slice the operand instead: `x[seq -> key]`
        E0203 `sum[…]` takes one list of dims, without `;`
          ^ `e`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: separate dims by commas
        E0201 there is no op `foo` over dims
          ^ `foo`: not known",
    );
}

#[test]
fn names_of_other_libraries_get_what_to_write() {
    same(
        &body(
            "let y = swish(x) let z = reduce_sum(x) let u = reduce_max[d](x) let v = matmul(x, x) let w = transpose(x) let t = maximum(x, x) let s = logical_not(x == 0)",
        ),
        "E0201 no layer or function is called `swish`
          ^ `swish`: not known
          fix!: write `silu`: `swish` -> `silu`
        E0201 no layer or function is called `reduce_sum`
          ^ `reduce_sum`: not known
          help: it is written `sum[d, e](x)` here
        E0201 there is no op `reduce_max` over dims
          ^ `reduce_max`: not known
          fix!: write `max`: `reduce_max` -> `max`
        E0201 no layer or function is called `matmul`
          ^ `matmul`: not known
          help: it is written `sum[d](x * y)` here
        E0201 no layer or function is called `transpose`
          ^ `transpose`: not known
          help: leave it out: dims have names, not an order
        E0201 no layer or function is called `maximum`
          ^ `maximum`: not known
          fix!: write `max`: `maximum` -> `max`
        E0201 no layer or function is called `logical_not`
          ^ `logical_not`: not known
          help: it is written `not x` here",
    );
}

#[test]
fn arguments_of_ops_with_several_forms() {
    same(
        &body(
            "let y = leaky_relu(x, 0.1, 0.2) let z = one_hot[vocab](label, 1) let u = all[d](x) let v = round(index(d))",
        ),
        "E0212 `leaky_relu` takes 2 arguments, but 3 are given
          ^ `0.2`: this one is too many
          note: it is written `leaky_relu(x, slope)`
        E0202 `all` over dims takes truth values, not f32
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: compare it: `x != 0`
        E0202 `round` takes floats, not i32
          ^ `index(d)`: this is i32 in d [d]
          help: convert it: `cast(…, float)`",
    );
}

#[test]
fn brackets_with_an_arrow_and_with_options() {
    same(
        &body(
            "let y = top_k(x) let z = top_k[d](x) let u = top_k[d -> e](x) let v = top_k[d -> batch](x) let w = topk[d -> seq](x) let t = cumsum[d](x, revers = true) let s = cumsum[e](x) let r = cumsum[d](x, reverse = 2)",
        ),
        "E0212 `top_k` works along dims
          ^ `top_k`: without dims
          note: `top_k[d -> k](x)`: the positions of the `size(k)` greatest along `d`, an `i32 in d` with `k` for `d`: greatest first, of equal ones the lowest position first, NaN before all. Their values are `x[d = top_k[d -> k](x)]`. Where `d` is split it is found as that many arg-maxima in turn, so that nothing is gathered.
          help: `top_k` along dims is written `top_k[d -> k](x)`
        E0203 `top_k[…]` does not say what `[d]` becomes
          ^ `d`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: it is written `top_k[d -> k](x)`
        E0204 `top_k[d -> e]`: 5 of 3 positions
          ^ `top_k[d -> e](x)`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: `e` has at least 1 and at most the size of `d`, 3
        E0203 `top_k[… -> batch]` of a value that has the dim `batch` already: [batch d]
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: name another dim behind the arrow
        E0201 there is no op `topk` over dims
          ^ `topk`: not known
          fix!: write `top_k`: `topk` -> `top_k`
        E0212 `cumsum[…]` has no parameter `revers`
          ^ `revers`: no such parameter
          note: it is written `cumsum[d](x, reverse = false, exclusive = false)`
          fix!: write `reverse`: `revers` -> `reverse`
        E0203 `cumsum[e]` of a value that has no dim `e`: it has [batch d]
          ^ `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: leave `e` out, or name one of [batch d]
        E0212 `reverse = 2` of `cumsum`: it is `true` or `false`
          ^ `2`: here
          - `x`: this is f32 [batch d]
          - `x`: `x` is declared here
          help: `reverse`: from the end",
    );
}
