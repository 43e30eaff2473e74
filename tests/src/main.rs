//! The command, built from `cli` for the tests.
fn main() {}
