//! Counter-based random numbers.
