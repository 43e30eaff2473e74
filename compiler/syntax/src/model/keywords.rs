//! The keywords.

/// Keywords that begin a statement. `scan` is one only where a statement begins that assigns to no value of this name.
pub(crate) const STATEMENTS: [&str; 10] =
    ["let", "param", "input", "loss", "metric", "output", "state", "repeat", "scan", "return"];
/// Keywords that begin an item. `size` is one only before `name {`.
pub(crate) const ITEMS: [&str; 7] = ["dim", "const", "size", "use", "layer", "model", "train"];
/// Words that begin a line of a train block.
pub(crate) const SETTINGS: [&str; 8] =
    ["minimize", "optimizer", "clip", "precision", "freeze", "weight_decay", "group", "ema"];
/// Words that may stand between two words.
pub(crate) const JOINING: [&str; 11] =
    ["as", "sharing", "by", "in", "and", "or", "not", "except", "of", "every", "from"];

/// Whether a word is reserved as the beginning of an item or a statement.
pub(crate) fn is_keyword(word: &str) -> bool {
    (STATEMENTS.contains(&word) || ITEMS.contains(&word)) && !["size", "scan"].contains(&word)
}
