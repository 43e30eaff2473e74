//! Names that mean built-ins.

use meshwright_ops::families;
use meshwright_ops::signature::Form;

/// Built-ins that are no families of their own: they read dims or dtypes, or draw.
pub(crate) const SPECIAL: [&str; 6] = ["size", "index", "cast", "dropout", "random_uniform", "random_normal"];

/// Whether a call of that name means a built-in.
pub(super) fn is_built_in(name: &str) -> bool {
    SPECIAL.contains(&name) || families().any(|f| f.name == name && f.signature.form == Form::Named)
}
