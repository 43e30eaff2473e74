use std::io::Read;
fn main() {
    let mut s = String::new();
    let a = std::env::args().nth(1).unwrap();
    if a == "-m" || a == "-l" { std::io::stdin().read_to_string(&mut s).unwrap(); } else { s = std::fs::read_to_string(&a).unwrap(); }
    let f = meshwright_diag::FileId(0);
    let (o, d) = if a.ends_with("layout") || a == "-l" { meshwright_syntax::format_layout(f, &s) } else { meshwright_syntax::format_model(f, &s) };
    for x in d { eprintln!("{x:?}"); }
    print!("{}", o.unwrap_or_default());
}
