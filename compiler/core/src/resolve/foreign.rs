//! Names that other libraries (numpy, TensorFlow, Mesh TensorFlow, PyTorch, JAX) give to what this language has under
//! another, and what to write instead.

use meshwright_diag::{Diagnostic, Span};

/// What to write for a name.
enum Replacement {
    /// Another name in the same place.
    Name(&'static str),
    /// Another construct.
    Written(&'static str),
    /// Nothing: the reason.
    Nothing(&'static str),
}

use Replacement::{Name, Nothing, Written};

const BY_NAME: &str = "operators match dims by name and broadcast over those that one side lacks";

/// Foreign names, sorted.
const NAMES: &[(&str, Replacement)] = &[
    ("absolute", Name("abs")),
    ("add", Written("x + y")),
    ("add_n", Written("x + y + z")),
    ("amax", Name("max")),
    ("amin", Name("min")),
    ("arange", Written("index(d)")),
    ("arg_max", Name("argmax")),
    ("arg_min", Name("argmin")),
    ("astype", Name("cast")),
    ("average", Name("mean")),
    ("bmm", Written("sum[d](x * y)")),
    ("broadcast", Nothing(BY_NAME)),
    ("broadcast_to", Nothing(BY_NAME)),
    ("ceiling", Name("ceil")),
    ("clamp", Written("min(max(x, low), high)")),
    ("clip", Written("min(max(x, low), high)")),
    ("clip_by_value", Written("min(max(x, low), high)")),
    ("cum_sum", Name("cumsum")),
    ("cumulative_sum", Name("cumsum")),
    ("detach", Name("stop_gradient")),
    ("div", Written("x / y")),
    ("divide", Written("x / y")),
    ("dot", Written("sum[d](x * y)")),
    ("einsum", Written("sum[d](x * y)")),
    ("embedding", Written("table[vocab = token]")),
    ("eq", Written("x == y")),
    ("equal", Written("x == y")),
    ("expand", Nothing(BY_NAME)),
    ("expand_dims", Nothing(BY_NAME)),
    ("fabs", Name("abs")),
    ("floor_divide", Written("x//y")),
    ("floordiv", Written("x//y")),
    ("floormod", Written("x % y")),
    ("fmod", Written("x % y")),
    ("gather", Written("table[vocab = token]")),
    ("ge", Written("x >= y")),
    ("greater", Written("x > y")),
    ("greater_equal", Written("x >= y")),
    ("gt", Written("x > y")),
    ("identity", Nothing("a value is used by its name")),
    ("iota", Written("index(d)")),
    ("le", Written("x <= y")),
    ("less", Written("x < y")),
    ("less_equal", Written("x <= y")),
    ("ln", Name("log")),
    ("log_sum_exp", Name("logsumexp")),
    ("logical_and", Written("x and y")),
    ("logical_not", Written("not x")),
    ("logical_or", Written("x or y")),
    ("logical_xor", Written("x != y")),
    ("lt", Written("x < y")),
    ("matmul", Written("sum[d](x * y)")),
    ("maximum", Name("max")),
    ("minimum", Name("min")),
    ("mod", Written("x % y")),
    ("mtf_range", Written("index(d)")),
    ("mul", Written("x * y")),
    ("multiply", Written("x * y")),
    ("ne", Written("x != y")),
    ("negative", Name("neg")),
    ("not_equal", Written("x != y")),
    ("nth_largest_element", Written("top_k[d -> k](x)")),
    ("nth_smallest_element", Written("top_k[d -> k](-x)")),
    ("permute", Nothing("dims have names, not an order")),
    ("power", Name("pow")),
    ("product", Name("prod")),
    ("range", Written("index(d)")),
    ("reciprocal", Name("recip")),
    ("reduce_all", Name("all")),
    ("reduce_any", Name("any")),
    ("reduce_first", Written("x[d = 0]")),
    ("reduce_logsumexp", Name("logsumexp")),
    ("reduce_max", Name("max")),
    ("reduce_mean", Name("mean")),
    ("reduce_min", Name("min")),
    ("reduce_prod", Name("prod")),
    ("reduce_sum", Name("sum")),
    ("remainder", Written("x % y")),
    ("rename_dimension", Written("x[d -> e]")),
    ("replace_dimensions", Written("x[d -> e]")),
    ("rint", Name("round")),
    ("shape", Written("size(d)")),
    ("softmax_cross_entropy_with_logits", Name("cross_entropy")),
    ("squeeze", Nothing("a dim of size 1 is taken out by `x[d = 0]` or `sum[d](x)`")),
    ("sub", Written("x - y")),
    ("subtract", Written("x - y")),
    ("swish", Name("silu")),
    ("take", Written("table[vocab = token]")),
    ("tensordot", Written("sum[d](x * y)")),
    ("to_bfloat16", Written("cast(x, float)")),
    ("to_float", Written("cast(x, float)")),
    ("to_int32", Written("cast(x, i32)")),
    ("top_1", Written("argmax[d](x)` and `max[d](x)")),
    ("topk", Name("top_k")),
    ("transpose", Nothing("dims have names, not an order")),
    ("true_divide", Written("x / y")),
    ("unsqueeze", Nothing(BY_NAME)),
];

/// The diagnostic with what to write for a foreign name, and whether the name is one. A plain name
/// becomes a fix where `fits` says that it can stand in that place, else a hint at the form that `form` gives.
pub(super) fn advised(
    d: Diagnostic,
    name: &str,
    at: Span,
    fits: impl Fn(&str) -> bool,
    form: impl Fn(&str) -> String,
) -> (Diagnostic, bool) {
    let lower = name.to_ascii_lowercase();
    let Ok(found) = NAMES.binary_search_by(|(n, _)| (*n).cmp(lower.as_str())) else {
        return (d, false);
    };
    let d = match &NAMES[found].1 {
        Name(here) if fits(here) => d.fix(format!("write `{here}`"), at, *here, true),
        Name(here) => d.help(format!("it is written `{}` here", form(here))),
        Written(form) => d.help(format!("it is written `{form}` here")),
        Nothing(why) => d.help(format!("leave it out: {why}")),
    };
    (d, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_ops::families;
    use meshwright_ops::signature::Form;

    #[test]
    fn foreign_names_are_sorted_and_name_what_there_is() {
        assert!(NAMES.windows(2).all(|w| w[0].0 < w[1].0), "sorted, each once");
        for (foreign, here) in NAMES {
            let spelled = families().any(|f| f.name == *foreign && f.signature.form != Form::Syntax);
            assert!(!spelled, "`{foreign}` is no foreign name");
            if let Name(here) = here {
                assert!(*here == "cast" || families().any(|f| f.name == *here), "`{here}` for `{foreign}`");
            }
        }
    }
}
