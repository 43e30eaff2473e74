//! Names of several files: `part-{000..127}.tar`, `{train,extra}/*.npy`.

use std::path::{Path, PathBuf};

/// The most files that patterns may name together.
const MOST: usize = 1_000_000;
/// Most characters of the name of a file.
const LONGEST_NAME: usize = 255;

/// The most bytes that their names may have.
const MOST_BYTES: usize = 64 << 20;

/// The longest name that the system knows.
const LONGEST: usize = 4096;

/// The most names with `*` that braces may make: each is looked for by itself.
const MOST_STARRED: usize = 10_000;

/// The files that some patterns name together, each with its pattern; an error has its pattern too.
pub(crate) fn files_of<T: AsRef<Path>>(patterns: &[T]) -> Result<Vec<(&T, PathBuf)>, (&T, String)> {
    let (mut out, mut bytes) = (Vec::new(), 0usize);
    for of in patterns {
        for path in files(of.as_ref()).map_err(|why| (of, why))? {
            bytes += path.as_os_str().len();
            if out.len() == MOST || bytes > MOST_BYTES {
                return Err((of, too_many()));
            }
            out.push((of, path));
        }
    }
    Ok(out)
}

/// The files that a pattern names: braces in their order, and for each the files that `*`, `?` and `[…]` match, sorted. A
/// name without any of these is itself, whether there is such a file or not.
pub(crate) fn files(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let Some(text) = pattern.to_str() else { return Ok(vec![pattern.to_path_buf()]) };
    if pattern.exists() {
        return Ok(vec![pattern.to_path_buf()]);
    }
    let (mut out, mut starred) = (Vec::new(), 0);
    // Names of existing folders are taken literally: braces in them are no pattern.
    let known = folder_of(text);
    let names = braces(&text[known.len()..])?;
    if names.len().saturating_mul(known.len()) > MOST_BYTES {
        return Err(too_many());
    }
    for rest in names {
        let name = format!("{known}{rest}");
        if !name.contains(['*', '?', '[']) {
            out.push(PathBuf::from(name));
            continue;
        }
        let folder = folder_of(&name);
        if !name[folder.len()..].contains(['*', '?', '[']) || Path::new(&name).exists() {
            out.push(PathBuf::from(name));
            continue;
        }
        starred += 1;
        if starred > MOST_STARRED {
            return Err(format!("its braces make more than {MOST_STARRED} names with `*`"));
        }
        let before = out.len();
        let pattern = glob::Pattern::escape(folder) + &name[folder.len()..];
        let found = glob::glob(&pattern).map_err(|e| format!("`{name}` is not a pattern of names: {e}"))?;
        for path in found {
            out.push(path.map_err(|e| e.to_string())?);
        }
        // By bytes, so that they do not depend on the machine's language.
        out[before..].sort();
        if out.len() == before {
            return Err(format!("no file matches `{name}`"));
        }
        if out.len() > MOST {
            return Err(too_many());
        }
    }
    Ok(out)
}

/// The folder in which the pattern begins: one that is there by that very name.
fn folder_of(name: &str) -> &str {
    Path::new(name).ancestors().skip(1).find(|f| f.is_dir()).and_then(Path::to_str).unwrap_or_default()
}

fn too_many() -> String {
    format!("it names more than {MOST} files, or their names have more than {} MiB", MOST_BYTES >> 20)
}

/// All texts that `{a,b}` and `{00..12}` stand for, the first brace slowest.
pub(super) fn braces(text: &str) -> Result<Vec<String>, String> {
    let mut out = vec![String::new()];
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}').map(|n| open + n) else {
            return Err("it has `{` without `}`".into());
        };
        let inner = &rest[open + 1..close];
        if inner.contains('{') {
            return Err("it has braces within braces".into());
        }
        let choices = match inner.split_once("..") {
            Some((first, last)) => numbers(first, last)?,
            None => inner.split(',').map(String::from).collect(),
        };
        let before = &rest[..open];
        fits(&out, &choices, before.len())?;
        out =
            out.iter().flat_map(|start| choices.iter().map(move |c| format!("{start}{before}{c}"))).collect();
        rest = &rest[close + 1..];
    }
    fits(&out, &[String::new()], rest.len())?;
    out.iter_mut().for_each(|start| start.push_str(rest));
    Ok(out)
}

/// Checks the length of each of `starts`, followed by `between` bytes and each of `choices`, before these texts are made.
fn fits(starts: &[String], choices: &[String], between: usize) -> Result<(), String> {
    let bytes = |all: &[String]| all.iter().map(String::len).sum::<usize>();
    let longest = |all: &[String]| all.iter().map(String::len).max().unwrap_or(0);
    if longest(starts) + between + longest(choices) > LONGEST {
        return Err(format!("it makes a name of more than {LONGEST} bytes, which no file has"));
    }
    let count = starts.len().saturating_mul(choices.len());
    let of_starts = bytes(starts).saturating_mul(choices.len());
    let of_choices = (bytes(choices) + between * choices.len()).saturating_mul(starts.len());
    if count > MOST || of_starts.saturating_add(of_choices) > MOST_BYTES {
        return Err(too_many());
    }
    Ok(())
}

/// `000` to `127`: as wide as the first.
fn numbers(first: &str, last: &str) -> Result<Vec<String>, String> {
    let number = |s: &str| {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| s.parse::<usize>().ok()).flatten()
    };
    let (Some(from), Some(to)) = (number(first), number(last)) else {
        return Err(format!("`{{{first}..{last}}}` is not a range of numbers"));
    };
    if from > to {
        return Err(format!("`{{{first}..{last}}}` is empty"));
    }
    if first.len() > LONGEST_NAME {
        return Err(format!("a number of {} digits is longer than the name of a file can be", first.len()));
    }
    let width = if first.starts_with('0') { first.len() } else { 1 };
    let count = to - from;
    if count >= MOST || count.saturating_mul(width) > MOST_BYTES {
        return Err(too_many());
    }
    Ok((from..=to).map(|n| format!("{n:0width$}")).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_lists_and_ranges() {
        assert_eq!(braces("a-{08..11}.tar").unwrap(), ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]);
        assert_eq!(braces("{a,b}/{1..2}").unwrap(), ["a/1", "a/2", "b/1", "b/2"]);
        assert_eq!(braces("plain").unwrap(), ["plain"]);
        let long = |n: usize| format!("{}{{0..999999}}", "x".repeat(n));
        assert!(braces(&long(5000)).unwrap_err().contains("more than 4096 bytes"));
        assert!(braces(&long(4000)).unwrap_err().contains("more than 64 MiB"));
        assert!(braces(&format!("{{{}1..999999}}", "0".repeat(4000))).is_err());
        assert_eq!(braces(&long(3)).unwrap().len(), 1_000_000);
        for wrong in ["{1..", "{b..a}", "{3..1}", "{a{b}}", "{0..99999999}", "{0..9999}{0..9999}"] {
            assert!(braces(wrong).is_err(), "{wrong}");
        }
        let zeros = format!("{{{}..9}}", "0".repeat(70_000));
        assert!(braces(&zeros).unwrap_err().contains("70000 digits"));
    }

    #[test]
    fn stars_are_sorted_and_must_match() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("[odd]");
        std::fs::create_dir(&folder).unwrap();
        for name in ["b2.npy", "a1.npy", "b10.npy", "c.txt", "[x].npy"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let of = |p: &str| {
            files(&folder.join(p)).map(|v| {
                v.iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>()
            })
        };
        assert_eq!(of("?1*.npy").unwrap(), ["a1.npy", "b10.npy"]);
        assert_eq!(of("{b,a}*.npy").unwrap(), ["b10.npy", "b2.npy", "a1.npy"]);
        assert_eq!(of("[x].npy").unwrap(), ["[x].npy"], "a file of that very name");
        assert_eq!(of("none.npy").unwrap(), ["none.npy"]);
        assert!(of("z*.npy").unwrap_err().contains("no file matches"));
        assert!(of(&format!("{{{}}}b2*.npy", ",".repeat(10_000))).unwrap_err().contains("more than 10000"));
        let all = vec![folder.join("{0..999999}"); 2];
        assert!(files_of(&all).unwrap_err().1.contains("more than 1000000 files"));
    }
}
