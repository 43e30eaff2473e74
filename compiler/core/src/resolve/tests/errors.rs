//! Every mistake with its code, its places, its numbers and its fix.
use super::*;

#[test]
fn probe() {
    for b in [
        "let y = x + yy",
        "let y = dense(x, [d])",
    ] {
        println!("{b}\n{}", body(b));
    }
}
