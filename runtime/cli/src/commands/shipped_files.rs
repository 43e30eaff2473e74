//! `models`, `layouts`, `maps` and `machines`: what ships.

use crate::args::ShippedArgs;
use crate::machines::MACHINES;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::table::{Align, Table};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources, codes, nearest};
use meshwright_runs::catalog::{LAYOUTS, MAPS, MODELS, Shipped, find};

/// Runs `models`.
pub(crate) fn models(args: &ShippedArgs, console: &mut Console) -> Result<(), Stop> {
    run("model", MODELS, args, console)
}

/// Runs `layouts`.
pub(crate) fn layouts(args: &ShippedArgs, console: &mut Console) -> Result<(), Stop> {
    run("layout", LAYOUTS, args, console)
}

/// Runs `maps`.
pub(crate) fn maps(args: &ShippedArgs, console: &mut Console) -> Result<(), Stop> {
    run("map", MAPS, args, console)
}

/// Runs `machines`.
pub(crate) fn machines(args: &ShippedArgs, console: &mut Console) -> Result<(), Stop> {
    run("machine", &MACHINES, args, console)
}

fn run(what: &str, list: &'static [Shipped], args: &ShippedArgs, console: &mut Console) -> Result<(), Stop> {
    if let Some(name) = &args.name {
        return match find(list, name) {
            Some(s) if console.json() => console.out_json(&object([
                ("name", s.name.into()),
                ("path", s.path.into()),
                ("text", s.text.into()),
            ])),
            Some(s) => console.out_styled(s.text),
            None => {
                let mut found = Diagnostic::error(codes::E0515, format!("no {what} `{name}` ships"));
                if let Some(near) = nearest(name, list.iter().map(|s| s.name)) {
                    found = found.help(format!("did you mean `{near}`?"));
                }
                console.diagnostics(&[found], &Sources::new());
                Err(Stop::Diagnosed)
            }
        };
    }
    if console.json() {
        return list.iter().try_for_each(|s| {
            let fields = [("name", s.name.into()), ("path", s.path.into()), ("about", about(s.text).into())];
            console.out_json(&object(fields))
        });
    }
    let mut table = Table::new(&[Align::Left, Align::Left]);
    list.iter().for_each(|s| table.row([s.name.to_string(), about(s.text)]));
    console.out(&table.render())
}

/// The first sentence of the comment that a file begins with, without its end.
fn about(text: &str) -> String {
    let lines = text
        .lines()
        .map(|l| l.strip_prefix("//!").or(l.strip_prefix("//")).or(l.strip_prefix('#')).map(str::trim));
    let words: Vec<&str> = lines.map_while(|l| l).take_while(|l| !l.is_empty()).collect();
    let text = words.join(" ");
    // `et al. 2018` ends no sentence: the next one begins with a capital.
    let ends = text.match_indices(". ").map(|m| m.0);
    let end = ends.into_iter().find(|i| text[i + 2..].starts_with(char::is_uppercase)).unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_file_says_what_it_is() {
        for s in MODELS.iter().chain(LAYOUTS).chain(MAPS).chain(&*MACHINES) {
            assert!(about(s.text).len() > 10, "{} begins without a comment", s.path);
        }
        assert_eq!(
            about("//! One\n//! (Two et al. 2018), two. Three.\n//!\n//! Four\n"),
            "One (Two et al. 2018), two"
        );
        assert_eq!(about("dim x = 1"), "");
    }
}
