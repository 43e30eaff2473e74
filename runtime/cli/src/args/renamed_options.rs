//! Options under the names that they had before, or have in other tools: each is an error that gives the name here.

use super::Cli;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use meshwright_diag::foreign::{WordPlace, advice};
use std::ffi::OsString;

/// The old name of an option and the new one.
const RENAMED: [(&str, &str); 5] = [
    ("devices", "expect-devices"),
    ("threads", "cores"),
    ("size", "preset"),
    ("no-run", "no-save"),
    ("type", "dtype"),
];

/// The error for an option that the command knows under another name; none for any other error.
pub(crate) fn renamed(error: &clap::Error, args: &[OsString]) -> Option<clap::Error> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let given = given.strip_prefix("--")?;
    let mut command = Cli::command();
    let mut words = args.iter().skip(1).filter_map(|a| a.to_str());
    while let Some(inner) =
        words.next().filter(|w| !w.starts_with('-')).and_then(|w| command.find_subcommand(w))
    {
        command = inner.clone();
    }
    // No command is told of an option that it does not have.
    let has = |long: &str| command.get_arguments().any(|a| a.get_long() == Some(long));
    let text = match RENAMED.iter().find(|(old, _)| *old == given) {
        None if given == "model" && takes_run(&command) => {
            let map = if has("map") { ", and `--map NAME` chooses another map than its own" } else { "" };
            format!("there is no option `--model`: the model is that of the run{map}")
        }
        Some((old, new)) => has(new).then(|| format!("`--{old}` is now `--{new}`"))?,
        None => {
            let advice = advice(WordPlace::Option, given)?.text(str::to_string);
            let long = |form: &str| Some(form.strip_prefix("--")?.split([' ', '=']).next()?.to_string());
            let named = advice.split('`').skip(1).step_by(2).filter_map(long);
            named.into_iter().all(|l| has(&l)).then(|| format!("there is no option `--{given}`: {advice}"))?
        }
    };
    let text = format!("{text}\n\nFor more information, try '--help'.\n");
    Some(clap::Error::raw(ErrorKind::UnknownArgument, text))
}

/// Whether a command begins with a run, whose folder says what its model is.
fn takes_run(command: &clap::Command) -> bool {
    command.get_positionals().next().is_some_and(|first| first.get_id() == "run")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use clap::Parser;
    use meshwright_diag::foreign::{Advice, TABLE};

    fn told(line: &str) -> Option<String> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        renamed(&error, &args).map(|e| e.to_string())
    }

    #[test]
    fn an_old_name_is_answered_with_the_new_one() {
        for (line, new) in [
            ("meshwright check mlp --devices 4", "`--devices` is now `--expect-devices`"),
            ("meshwright train mlp --threads=2", "`--threads` is now `--cores`"),
            ("meshwright explain mlp --size large", "`--size` is now `--preset`"),
            ("meshwright train mlp --no-run", "`--no-run` is now `--no-save`"),
            ("meshwright bench collectives --type u8", "`--type` is now `--dtype`"),
            ("meshwright bench model mlp --threads 2", "`--threads` is now `--cores`"),
        ] {
            let text = told(line).unwrap();
            assert!(text.starts_with(&format!("error: {new}\n")), "{line}: {text}");
        }
        // No command is told of an option that it does not have.
        assert!(
            [
                "meshwright check mlp --type u8",
                "meshwright check mlp --nonsense",
                "meshwright predict runs/a --output-dir out",
            ]
            .iter()
            .all(|l| told(l).is_none())
        );
    }

    #[test]
    fn the_model_of_a_run_is_not_named_again() {
        let text = told("meshwright export hf runs/a out --model gpt").unwrap();
        let why =
            "error: there is no option `--model`: the model is that of the run, and `--map NAME` chooses";
        assert!(text.starts_with(why) && !text.contains("mlp"), "{text}");
        let text = told("meshwright ckpt list runs/a --model gpt").unwrap();
        assert!(text.contains("the model is that of the run\n"), "{text}");
        let text = told("meshwright train --model gpt").unwrap();
        assert!(text.contains("the first word behind the command"), "{text}");
    }

    #[test]
    fn an_option_of_another_tool_is_answered_with_what_is_written_here() {
        let (_, options) = TABLE.iter().find(|t| t.0 == WordPlace::Option).unwrap();
        for (word, advice) in *options {
            let text = told(&format!("meshwright train mlp --{word} 4")).unwrap();
            assert!(text.starts_with(&format!("error: there is no option `--{word}`: ")), "{text}");
            let said = match advice {
                Advice::Written(form) => format!("`{form}`"),
                advice => advice.text(str::to_string),
            };
            assert!(text.contains(&said), "{text}");
            // What stands in backticks is taken.
            for form in said.split('`').skip(1).step_by(2).filter(|f| f.starts_with("--")) {
                let args: Vec<&str> =
                    ["meshwright", "train", "mlp"].into_iter().chain(form.split(' ')).collect();
                // A bare option, named in passing, lacks its value.
                let bare = args.len() == 4 && !form.contains('=');
                let known = Cli::try_parse_from(&args).map_err(|e| e.kind());
                assert!(
                    bare && known.as_ref().err() != Some(&ErrorKind::UnknownArgument) || known.is_ok(),
                    "{form}: {known:?}"
                );
            }
        }
    }
}
