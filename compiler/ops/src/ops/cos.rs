//! The cosine of an angle in radians. [`COS`] is defined with the sine, since each is the other's derivative.

use super::sin::COS;
use super::unary::unary_family;

unary_family!("cos", COS, "The cosine of an angle in radians.", -7.0, 7.0);
