//! The monoids that a reduction folds with.

use serde::{Deserialize, Serialize};

/// An associative, commutative fold with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Monoid {
    /// Sum; identity 0.
    Sum,
    /// Product; identity 1.
    Prod,
    /// Maximum; identity -inf, or the least integer.
    Max,
    /// Minimum; identity +inf, or the greatest integer.
    Min,
    /// The pair of greatest value; of equal values the lowest index. Identity (-inf, greatest index).
    ArgMax,
    /// The pair of least value; of equal values the lowest index. Identity (+inf, greatest index).
    ArgMin,
    /// Conjunction of truth values; identity true.
    And,
    /// Disjunction of truth values; identity false.
    Or,
}

impl Monoid {
    /// Every monoid.
    pub const ALL: [Monoid; 8] = [
        Monoid::Sum,
        Monoid::Prod,
        Monoid::Max,
        Monoid::Min,
        Monoid::ArgMax,
        Monoid::ArgMin,
        Monoid::And,
        Monoid::Or,
    ];

    /// As users see it.
    pub fn name(self) -> &'static str {
        match self {
            Monoid::Sum => "sum",
            Monoid::Prod => "prod",
            Monoid::Max => "max",
            Monoid::Min => "min",
            Monoid::ArgMax => "argmax",
            Monoid::ArgMin => "argmin",
            Monoid::And => "and",
            Monoid::Or => "or",
        }
    }
}

impl std::fmt::Display for Monoid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
