//! Tokens of texts that trainings tokenize themselves, kept among the user's caches: tokenizing takes seconds at each start,
//! reading them a few milliseconds.
//!
//! A file is named by a digest of the texts, the tokenizer and this program, so that it is never out of date. It begins with a
//! digest of what follows; a damaged one is made again. Where nothing can be written, each start tokenizes.

use super::tokenize::encode_all;
use super::tokenizer::TextTokenizer;
use meshwright_files::durable::write_durably;
use meshwright_files::folder::Folder;
use meshwright_files::{Checked, cache_folder};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::SystemTime;

/// Shorter texts are tokenized in no time.
const LEAST_TEXT: usize = 256 << 10;
/// Longer ones belong into shards.
const MOST_TEXT: usize = 256 << 20;
/// Files that are kept; of more, the oldest go.
const MOST_FILES: usize = 16;

/// The tokens of each of some texts.
pub(crate) fn encode_kept(tokenizer: &TextTokenizer, texts: &[String]) -> Checked<Vec<Vec<u32>>> {
    let folder = cache_folder().map(|c| c.join("tokens"));
    let size = texts.iter().map(String::len).sum::<usize>();
    match folder.filter(|_| (LEAST_TEXT..=MOST_TEXT).contains(&size)) {
        Some(folder) => encode_in(&folder, tokenizer, texts),
        None => encode_all(tokenizer, texts),
    }
}

fn encode_in(folder: &Path, tokenizer: &TextTokenizer, texts: &[String]) -> Checked<Vec<Vec<u32>>> {
    let name = name(&tokenizer.json()?, texts);
    if let Some(tokens) = std::fs::read(folder.join(&name)).ok().and_then(|b| decoded(&b, texts.len())) {
        return Ok(tokens);
    }
    let tokens = encode_all(tokenizer, texts)?;
    let kept = Folder::at(folder).create().map(|disk| {
        let bytes = encoded(&tokens);
        let digest = Sha256::digest(&bytes);
        write_durably(&disk, &name, &[&digest, &bytes]).map(|()| keep_newest(folder))
    });
    // The texts have their tokens, kept or not.
    drop(kept);
    Ok(tokens)
}

/// The file of some texts.
fn name(tokenizer: &str, texts: &[String]) -> String {
    let mut hash = Sha256::new();
    // Another build may have another tokenizer of the same name.
    let program = std::env::current_exe().and_then(std::fs::metadata);
    let built =
        program.as_ref().ok().and_then(|p| p.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok());
    hash.update(built.map_or(0, |t| t.as_nanos()).to_le_bytes());
    hash.update(program.map_or(0, |p| p.len()).to_le_bytes());
    for text in [tokenizer].into_iter().chain(texts.iter().map(String::as_str)) {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    hash.finalize()[..16].iter().map(|b| format!("{b:02x}")).collect()
}

/// Of each text the number of tokens, then these.
fn encoded(tokens: &[Vec<u32>]) -> Vec<u8> {
    let words = tokens.iter().flat_map(|t| [t.len() as u32].into_iter().chain(t.iter().copied()));
    words.flat_map(u32::to_le_bytes).collect()
}

/// The tokens of so many texts; none if the bytes are damaged.
fn decoded(bytes: &[u8], texts: usize) -> Option<Vec<Vec<u32>>> {
    let (digest, bytes) = bytes.split_at_checked(32)?;
    if Sha256::digest(bytes)[..] != *digest {
        return None;
    }
    let mut words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut next = |_| {
        let count = words.next()? as usize;
        let tokens: Vec<u32> = words.by_ref().take(count).collect();
        (tokens.len() == count).then_some(tokens)
    };
    (0..texts).map(&mut next).collect()
}

/// Removes the oldest files.
fn keep_newest(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
    all.sort();
    let old = all.len().saturating_sub(MOST_FILES);
    all.iter().take(old).for_each(|(_, path)| drop(std::fs::remove_file(path)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::corpus::tests::prose;
    use crate::corpus::{DocumentRule, TextFiles, TokenizerKind, TokenizerSource};

    fn tokenizer(folder: &Path, vocab: usize) -> TextTokenizer {
        let path = folder.join("text.txt");
        std::fs::write(&path, prose(40)).unwrap();
        let text = TextFiles {
            paths: vec![path],
            rule: DocumentRule::BlankLines,
            field: "text".into(),
            second: None,
        };
        let source = TokenizerSource::Train { kind: TokenizerKind::Bpe, vocab, sentinels: 0, cased: false };
        source.tokenizer(&text, &mut |_| {}).unwrap()
    }

    fn files(folder: &Path) -> Vec<std::path::PathBuf> {
        let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }

    #[test]
    fn tokens_are_read_where_they_are_kept_and_made_where_these_are_damaged() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("tokens");
        let of = tokenizer(temporary.path(), 300);
        let texts: Vec<String> = vec!["the moon".into(), String::new(), prose(3)];
        let tokens = encode_all(&of, &texts).unwrap();
        let again = || encode_in(&folder, &of, &texts).unwrap();
        assert_eq!(again(), tokens);
        let [file] = &files(&folder)[..] else { panic!("one file") };
        // What is kept is what is read: another token in it arrives.
        let whole = std::fs::read(file).unwrap();
        let other: Vec<Vec<u32>> = tokens.iter().map(|t| t.iter().map(|x| x + 1).collect()).collect();
        let bytes = encoded(&other);
        std::fs::write(file, [&Sha256::digest(&bytes)[..], &bytes].concat()).unwrap();
        assert_eq!(again(), other);
        // Cut off, or with a wrong bit, it is made again.
        let mut wrong = whole.clone();
        wrong[40] ^= 1;
        for damaged in [&whole[..20], &whole[..whole.len() - 4], &wrong] {
            std::fs::write(file, damaged).unwrap();
            assert_eq!(again(), tokens);
            assert_eq!(std::fs::read(file).unwrap(), whole);
        }
        // Other texts and another tokenizer have files of their own.
        let apart: Vec<String> = vec!["the".into(), " moon".into(), prose(3)];
        assert_eq!(encode_in(&folder, &of, &apart).unwrap(), encode_all(&of, &apart).unwrap());
        let smaller = tokenizer(temporary.path(), 280);
        assert_eq!(encode_in(&folder, &smaller, &texts).unwrap(), encode_all(&smaller, &texts).unwrap());
        assert_eq!(files(&folder).len(), 3);
    }

    #[test]
    fn the_newest_files_stay() {
        let temporary = tempfile::tempdir().unwrap();
        for i in 0..MOST_FILES + 3 {
            let file = std::fs::File::create(temporary.path().join(format!("{i:02}"))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64)).unwrap();
        }
        keep_newest(temporary.path());
        let left = files(temporary.path());
        assert_eq!(left.len(), MOST_FILES);
        assert!(left[0].ends_with("03"), "{left:?}");
    }

    #[test]
    fn where_nothing_can_be_written_texts_are_tokenized() {
        let temporary = tempfile::tempdir().unwrap();
        let of = tokenizer(temporary.path(), 300);
        let file = temporary.path().join("file");
        std::fs::write(&file, "").unwrap();
        let texts = vec![prose(2)];
        assert_eq!(encode_in(&file.join("tokens"), &of, &texts).unwrap(), encode_all(&of, &texts).unwrap());
    }
}
