//! Folders of Rust files: how many one holds, and where the file of a module lies that has modules of its own.

use super::{files, none, short};
use meshwright_sorted::SortedMap;

/// The most Rust files of a folder whose files are of several kinds.
const MOST_FILES: usize = 20;
/// Folders of more files, which are all of one kind.
const ONE_KIND: [(&str, &str); 6] = [
    ("compiler/ops/src/ops", "an op a file"),
    ("runtime/cli/src/args", "the options of a command a file"),
    ("runtime/cli/tests", "a part of the command a file"),
    ("runtime/cpu/src/kernels", "a kernel a file"),
    ("tests/fake-nccl/src/ptx", "a group of instructions, or a stage of the interpreter, a file"),
    ("tests/laws", "a law a file"),
];

#[test]
fn folders_hold_few_files_or_files_of_one_kind() {
    let mut held: SortedMap<String, usize> = SortedMap::new();
    for path in files("rs") {
        let folder = path.parent().map(short).unwrap_or_default();
        *held.entry(folder).or_default() += 1;
    }
    let listed = |folder: &str| ONE_KIND.iter().any(|(name, _)| *name == folder);
    let full = held.iter().filter(|(folder, n)| **n > MOST_FILES && !listed(folder));
    let full =
        full.map(|(folder, n)| format!("{folder}: {n} Rust files, more than {MOST_FILES}: group them"));
    let small = ONE_KIND.iter().filter(|(name, _)| held.get(*name).is_none_or(|n| *n <= MOST_FILES));
    let small = small.map(|(name, _)| format!("{name} is listed, and holds no more than {MOST_FILES} files"));
    none(full.chain(small).collect());
}

#[test]
fn modules_with_modules_are_folders() {
    let all = files("rs");
    let beside = all.iter().filter(|path| {
        let folder = path.with_extension("");
        all.iter().any(|other| other.parent() == Some(&folder))
    });
    none(beside.map(|p| format!("{}: lies beside its folder, not in it as `mod.rs`", short(p))).collect());
}
