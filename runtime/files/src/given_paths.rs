//! The paths in what `--data` says. A run keeps them absolute, so that a command that goes on with it reads the same files from
//! any folder.

use std::path::Path;

/// The file of a folder that says what is in it.
pub const MANIFEST: &str = "data.toml";

/// What means something else in a list of files and their patterns: in the path of a folder, a `\` stands before it.
const ESCAPED: [char; 4] = [',', '{', '}', '\\'];

/// Whether a value of `--data` names files one by one (`NAME=FILE,…`). A folder may have a `=` in its path.
pub fn names_files(given: &str) -> bool {
    given.split_once('=').is_some_and(|(name, _)| !name.contains('/'))
}

/// A path without its escapes.
pub fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let escaped = if c == '\\' { rest.next_if(|next| ESCAPED.contains(next)) } else { None };
        out.push(escaped.unwrap_or(c));
    }
    out
}

fn escaped(folder: &Path) -> String {
    let mut out = String::new();
    for c in folder.display().to_string().chars() {
        if ESCAPED.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A value of `--data` that was given in `folder`, with absolute paths: those of files that are named one by one, or that of a
/// folder. The name of a data set that is searched for stays a name.
pub fn absolute(given: &str, folder: &Path) -> String {
    if !names_files(given) {
        let there = folder.join(given);
        return if there.join(MANIFEST).is_file() { there.display().to_string() } else { given.into() };
    }
    let pair = |pair: &str| match pair.split_once('=') {
        Some((name, file)) if Path::new(file.trim()).is_relative() => {
            format!("{}={}/{}", name.trim(), escaped(folder).trim_end_matches('/'), file.trim())
        }
        _ => pair.to_string(),
    };
    split_at_commas(given).into_iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Splits at commas outside of braces; a `\` takes what follows it for a letter.
pub fn split_at_commas(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut depth) = (Vec::new(), 0, 0usize);
    let mut literal = false;
    for (at, c) in text.char_indices() {
        if literal {
            literal = false;
            continue;
        }
        match c {
            '\\' => literal = true,
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_become_absolute() {
        let given = "f=data/g.npz:g,test.f=/x/g.safetensors:g,y=t.csv:a,z=p-{0,1}.npy";
        let all = absolute(given, Path::new("/a"));
        assert_eq!(all, "f=/a/data/g.npz:g,test.f=/x/g.safetensors:g,y=/a/t.csv:a,z=/a/p-{0,1}.npy");
        assert_eq!(absolute(&all, Path::new("/b")), all);
        assert_eq!(absolute("mnist", Path::new("/a")), "mnist");
    }

    #[test]
    fn a_list_is_split_outside_of_braces() {
        assert_eq!(split_at_commas("a=x{1,2},b=y"), ["a=x{1,2}", "b=y"]);
    }

    #[test]
    fn a_folder_may_have_any_name() {
        let all = absolute("f=g.npy,y=p-{0,1}.npy", Path::new("/a,b/{c}/d=e\\"));
        let parts = split_at_commas(&all);
        let paths = parts.iter().filter_map(|p| Some(unescaped(p.split_once('=')?.1)));
        assert_eq!(paths.collect::<Vec<_>>(), ["/a,b/{c}/d=e\\/g.npy", "/a,b/{c}/d=e\\/p-{0,1}.npy"]);
        assert!(!names_files("/a/d=e/data") && names_files("x=/a/d=e"));
    }
}
