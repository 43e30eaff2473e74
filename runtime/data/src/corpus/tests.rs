//! Tests of tokenizing.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::TaskKind;
use meshwright_files::Checked;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// Words of few letters, the same each time; a document in ten lines.
pub(crate) fn prose(documents: usize) -> String {
    let words = [
        "sun", "moon", "runs", "running", "over", "the", "hills", "and", "sees", "Lord", "of", "night's",
        "end",
    ];
    let mut state = 7u32;
    let mut out = String::new();
    for _ in 0..documents {
        for _ in 0..3 {
            for i in 0..9 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let word = words[(state >> 16) as usize % words.len()];
                out += &format!("{}{word}", if i == 0 { "" } else { " " });
            }
            out += ".\n";
        }
        out += "\n";
    }
    out
}

struct Case {
    folder: TempDir,
    options: TokenizeOptions,
}

fn bpe(vocab: usize) -> TokenizerSource {
    TokenizerSource::Train { kind: TokenizerKind::Bpe, vocab, sentinels: 0, cased: false }
}

fn word_pieces(vocab: usize) -> TokenizerSource {
    TokenizerSource::Train { kind: TokenizerKind::WordPiece, vocab, sentinels: 0, cased: false }
}

impl Case {
    fn new(name: &str, text: &[u8], tokenizer: TokenizerSource) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let text = TextFiles {
            paths: vec![path],
            rule: DocumentRule::BlankLines,
            field: "text".into(),
            second: None,
        };
        let out = folder.path().join("out");
        let options =
            TokenizeOptions { text, tokenizer, out, held_out: (0.0, 0.0), shard_tokens: 1 << 26, task: None };
        Case { folder, options }
    }

    fn run(&self) -> Checked<Tokenized> {
        tokenize(&self.options, &mut |_| {})
    }

    fn error(&self) -> String {
        let e = self.run().unwrap_err();
        [e.code.id, &*e.message, &e.helps.join("; ")].join(" | ")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All files of the folder.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = meshwright_files::folder::entries(&self.options.out).unwrap();
        entries
            .iter()
            .map(|e| (e.name.to_string_lossy().into_owned(), std::fs::read(&e.path).unwrap()))
            .collect()
    }

    fn index(&self) -> CorpusIndex {
        CorpusIndex::read(&self.options.out.join("index.json")).unwrap()
    }

    /// Tokens of a set, by document.
    fn documents(&self, set: &str) -> Vec<Vec<u32>> {
        let mut out = Vec::new();
        for shard in &self.index().sets[set].shards {
            let [tokens, starts] =
                [&shard.tokens, &shard.documents].map(|f| std::fs::read(self.options.out.join(f)).unwrap());
            let tokens: Vec<u32> =
                tokens[128..].chunks(2).map(|b| u16::from_le_bytes(b.try_into().unwrap()).into()).collect();
            let starts: Vec<usize> =
                starts[128..].chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as usize).collect();
            assert_eq!([tokens.len() as u64, starts.len() as u64], [shard.token_count, shard.document_count]);
            let ends = starts.iter().skip(1).copied().chain([tokens.len()]);
            out.extend(starts.iter().zip(ends).map(|(a, b)| tokens[*a..b].to_vec()));
        }
        out
    }
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

#[test]
fn text_comes_back_from_byte_pairs() {
    let text = prose(40);
    let case = Case::new("a.txt.gz", &gzipped(text.as_bytes()), bpe(290));
    let made = case.run().unwrap();
    assert_eq!((made.vocab, made.task, made.was_there), (290, TaskKind::Next, false));
    let tokenizer = TextTokenizer::open(&case.options.out.join("tokenizer.json"), false).unwrap();
    let documents: Vec<&str> = text.split("\n\n").map(str::trim_end).filter(|d| !d.is_empty()).collect();
    let tokens = case.documents("train");
    assert_eq!((tokens.len(), documents.len()), (40, 40));
    let end = tokenizer.special().end.unwrap();
    for (tokens, text) in tokens.iter().zip(&documents) {
        assert_eq!(tokens.last(), Some(&end));
        assert_eq!(tokenizer.decode(tokens).unwrap(), *text);
        // Merges were learned: words that come often are one token.
        assert!(tokens.len() < text.len() / 2, "{} of {}", tokens.len(), text.len());
    }
    let bytes: usize = documents.iter().map(|d| d.len()).sum();
    assert_eq!(
        made.sets,
        [("train".to_string(), [tokens.iter().map(|t| t.len() as u64).sum(), 40, bytes as u64])]
    );
    // Each token of bytes knows how many it is.
    let lengths = tokenizer.byte_lengths().unwrap();
    let of = |t: &Vec<u32>| t.iter().map(|t| usize::from(lengths[*t as usize])).sum::<usize>();
    assert_eq!(tokens.iter().map(of).sum::<usize>(), bytes);
}

#[test]
fn text_that_looks_like_a_special_token_is_text() {
    let case = Case::new("a.txt", b"a <|endoftext|> b a <|endoftext|> b", bpe(300));
    case.run().unwrap();
    let end = case.index().special.end.unwrap();
    let tokens = &case.documents("train")[0];
    assert_eq!(tokens.iter().filter(|t| **t == end).count(), 1, "{tokens:?}");
}

#[test]
fn word_pieces_are_bert_s_and_always_the_same() {
    let case = Case::new("a.txt", prose(60).as_bytes(), word_pieces(60));
    let made = case.run().unwrap();
    assert_eq!((made.vocab, made.task), (60, TaskKind::Masked));
    let special = case.index().special;
    assert_eq!([special.pad, special.cls, special.sep, special.mask], [Some(0), Some(2), Some(3), Some(4)]);
    let tokenizer = TextTokenizer::open(&case.options.out.join("tokenizer.json"), false).unwrap();
    // In small letters, and a word that goes on is marked.
    assert_eq!(tokenizer.encode("LORD").unwrap(), tokenizer.encode("lord").unwrap());
    let continues = tokenizer.continues_word();
    let pieces = tokenizer.encode("sunrunning").unwrap();
    assert!(pieces.len() > 1);
    assert!(
        !continues[pieces[0] as usize] && pieces[1..].iter().all(|p| continues[*p as usize]),
        "{pieces:?}"
    );
    // What a hash would order differently each time is in order.
    let first = case.files();
    for _ in 0..3 {
        let again = Case::new("a.txt", prose(60).as_bytes(), word_pieces(60));
        again.run().unwrap();
        assert_eq!(again.files(), first);
    }
}

#[test]
fn a_list_of_word_pieces_is_a_tokenizer() {
    let list = "[PAD]\n[unused0]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nrun\n##ning\nthe\nThe\n.\n";
    let case = Case::new(
        "a.txt",
        b"The running zebra.",
        TokenizerSource::File { path: PathBuf::new(), cased: false },
    );
    let with = |cased: bool, list: &str| {
        let path = case.path("vocab.txt.gz");
        std::fs::write(&path, gzipped(list.as_bytes())).unwrap();
        TextTokenizer::open(&path, cased)
    };
    assert_eq!(with(false, list).unwrap().encode("The running zebra.").unwrap(), [8, 6, 7, 2, 10]);
    assert_eq!(with(true, list).unwrap().encode("The running zebra.").unwrap(), [9, 6, 7, 2, 10]);
    assert_eq!(with(true, list).unwrap().vocab(), 11);
    for (list, why) in
        [("a\nb\n", "no line `[PAD]`"), (&format!("{list}run\n"), "lines 7 and 12 are both `run`")]
    {
        let e = with(false, list).unwrap_err();
        assert!(e.message.contains(why), "{}", e.message);
    }
    std::fs::write(case.path("t.json"), "{}").unwrap();
    let e = TextTokenizer::open(&case.path("t.json"), true).unwrap_err();
    assert!(e.code.id == "E0508" && e.message.contains("is written in it"), "{}", e.message);
    let e = TextTokenizer::open(&case.path("t.json"), false).unwrap_err();
    assert!(e.message.contains("it has no `model`"), "{}", e.message);
}

#[test]
fn a_sign_that_ends_documents_separates_only_where_tokens_are_masked() {
    let special = |more: &[&str]| {
        let tokens = [&["<s>", "</s>", "a", "b"], more].concat();
        let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (*t, i)).collect();
        let added = serde_json::json!({ "id": 1, "content": "</s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true });
        let file = serde_json::json!({ "version": "1.0", "added_tokens": [added],
            "pre_tokenizer": { "type": "Whitespace" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" } });
        let case =
            Case::new("a.txt", b"a b\n\nb", TokenizerSource::File { path: PathBuf::new(), cased: false });
        let path = case.path("tokenizer.json");
        std::fs::write(&path, file.to_string()).unwrap();
        let options = TokenizeOptions {
            tokenizer: TokenizerSource::File { path, cased: false },
            ..case.options.clone()
        };
        let case = Case { options, ..case };
        case.run().unwrap();
        (case.index().special, case.documents("train"))
    };
    // As Llama has them.
    let (llama, documents) = special(&[]);
    assert_eq!((llama.end, llama.cls, llama.sep), (Some(1), None, None));
    assert_eq!(documents, [vec![2, 3, 1], vec![3, 1]]);
    // As RoBERTa has them.
    let (roberta, documents) = special(&["<mask>"]);
    assert_eq!((roberta.cls, roberta.sep, roberta.mask), (Some(0), Some(1), Some(4)));
    assert_eq!(documents, [vec![2, 3], vec![3]]);
}

#[test]
fn documents_end_where_it_is_said() {
    let text = "\u{feff}one\r\ntwo\n\n \nthree\n";
    let mut case = Case::new("a.txt", text.as_bytes(), bpe(300));
    let mut of = |rule| {
        case.options.text.rule = rule;
        case.options.text.documents().collect::<Checked<Vec<_>>>().unwrap()
    };
    assert_eq!(of(DocumentRule::BlankLines), ["one\ntwo", "three"]);
    assert_eq!(of(DocumentRule::Lines), ["one", "two", "three"]);
    assert_eq!(of(DocumentRule::Files), ["one\ntwo\n\n \nthree"]);
    let lines = b"{\"text\": \"one\\n\\ntwo\", \"id\": 1}\n\n{\"text\": \"three\"}\n";
    let case = Case::new("a.jsonl.gz", &gzipped(lines), bpe(300));
    assert_eq!(case.options.text.documents().collect::<Checked<Vec<_>>>().unwrap(), ["one\n\ntwo", "three"]);
}

#[test]
fn bad_text_is_refused_with_its_place() {
    let of = |name: &str, text: &[u8]| Case::new(name, text, bpe(300)).error();
    for (name, text, why) in [
        ("a.txt", &b"good\nb\xe9d\n"[..], "line 2 is not UTF-8 from its byte 1 on"),
        ("a.txt", &b"\xff\xfeg\0"[..], "`iconv -f UTF-16 -t UTF-8`"),
        ("a.jsonl", b"{\"text\": \"a\"}\n{\"text\"}\n", "line 2 is not a JSON object"),
        ("a.jsonl", b"{\"text\": 3}\n", "the field `text` of the object in line 1 is not text"),
        (
            "a.jsonl",
            b"{\"body\": \"a\", \"id\": 3}\n",
            "has no field `text` | it has `body`, `id`: choose one with `--json-field`",
        ),
        ("a.txt.gz", &gzipped(b"some text")[..20], "E0502"),
        ("a.txt", b"\n \n", "E0508 | the files have no text"),
    ] {
        let said = of(name, text);
        assert!(said.contains(why), "{said}");
    }
    let cased = TokenizerSource::Train { kind: TokenizerKind::Bpe, vocab: 300, sentinels: 0, cased: true };
    let cased = Case::new("a.txt", b"abc", cased).error();
    assert!(cased.contains("always tell capitals"), "{cased}");
    let small = Case::new("a.txt", b"abc", bpe(200)).error();
    assert!(
        small.contains("`--vocab 200` is too small: special tokens and single characters alone are 258"),
        "{small}"
    );
    let mut missing = Case::new("a.txt", b"abc", bpe(300));
    missing.options.text.paths = vec![missing.path("none.txt")];
    assert!(missing.error().starts_with("E0502"), "{}", missing.error());
}

#[test]
fn documents_are_held_out_the_same_ones_each_time() {
    let mut case = Case::new("a.txt", prose(200).as_bytes(), bpe(300));
    case.options.held_out = (0.1, 0.2);
    case.run().unwrap();
    let sets = ["train", "validation", "test"].map(|s| case.documents(s));
    let counts = sets.each_ref().map(Vec::len);
    assert_eq!(counts.iter().sum::<usize>(), 200);
    assert!((10..30).contains(&counts[1]) && (25..55).contains(&counts[2]), "{counts:?}");
    let mut few = Case::new("a.txt", prose(2).as_bytes(), bpe(300));
    few.options.held_out = (0.01, 0.0);
    assert!(few.error().contains("of 2 documents none fell to `validation`"), "{}", few.error());
    few.options.held_out = (0.5, 0.5);
    let said = few.error();
    assert!(said.contains("leave nothing to train on"), "{said}");
    // Both shares: the other may be what is too large.
    assert!(said.ends_with("such as `--validation 0.05 --test 0.05`"), "{said}");
}

#[test]
fn what_was_interrupted_goes_on_and_gives_the_same_bytes() {
    let text = prose(300_000 / 180);
    let mut whole = Case::new("a.txt", text.as_bytes(), bpe(300));
    whole.options.shard_tokens = 5000;
    whole.options.held_out = (0.2, 0.0);
    whole.run().unwrap();
    let shards = whole.index().sets["train"].shards.len();
    assert!(shards > 4);
    let mut case = Case::new("a.txt", text.as_bytes(), bpe(300));
    case.options = TokenizeOptions {
        text: case.options.text.clone(),
        out: case.options.out.clone(),
        ..whole.options.clone()
    };
    // As after the second commit: the index is not there, and what was begun after it is.
    case.run().unwrap();
    let partial = |n: usize| {
        let mut index = case.index();
        index.sets.values_mut().for_each(|s| s.shards.truncate(n));
        let documents: u64 = index.sets.values().map(|s| s.totals()[1]).sum();
        let json =
            serde_json::json!({ "recipe": index.made_from, "sets": index.sets, "documents": documents });
        std::fs::remove_file(case.options.out.join("index.json")).unwrap();
        std::fs::write(case.options.out.join("partial.json"), json.to_string()).unwrap();
        std::fs::write(case.options.out.join(format!("train-{n:05}.npy")), "half").unwrap();
        if n == 0 {
            std::fs::remove_file(case.options.out.join("tokenizer.json")).unwrap();
        }
        documents
    };
    for n in [2, 0] {
        let documents = partial(n);
        let mut told = Vec::new();
        tokenize(&case.options, &mut |p| told.push(p)).unwrap();
        assert_eq!(told.contains(&TokenizeProgress::Resumed(documents)), n > 0);
        assert_eq!(case.files(), whole.files(), "{n}");
    }
    // What is complete is left alone; what is of other options is refused.
    assert!(case.run().unwrap().was_there);
    case.options.shard_tokens = 6000;
    assert!(
        case.error()
            .contains("made of other files or with other options | choose another folder with `--out`")
    );
    case.options.shard_tokens = 5000;
    assert!(case.run().unwrap().was_there);
    // Another text of the same size is another text.
    let swapped = text.replace("moon", "noom");
    assert_eq!(swapped.len(), text.len());
    std::fs::write(&case.options.text.paths[0], swapped).unwrap();
    assert!(case.error().contains("made of other files or with other options"));
    let other = Case::new("a.txt", text.as_bytes(), bpe(300));
    std::fs::create_dir(&other.options.out).unwrap();
    std::fs::write(other.options.out.join("tokenizer.json"), "mine").unwrap();
    assert!(other.error().contains("has files that are not tokens"));
    assert_eq!(std::fs::read(other.options.out.join("tokenizer.json")).unwrap(), b"mine");
}

#[test]
fn long_documents_are_cut_at_lines() {
    let line = "the sun runs over the hills\n";
    let text = line.repeat(2_500_000 / line.len());
    let mut case = Case::new("a.txt", text.as_bytes(), bpe(300));
    case.options.text.rule = DocumentRule::Files;
    case.run().unwrap();
    let tokenizer = TextTokenizer::open(&case.options.out.join("tokenizer.json"), false).unwrap();
    let documents = case.documents("train");
    assert_eq!(documents.len(), 1);
    assert_eq!(tokenizer.decode(&documents[0]).unwrap(), text.trim_end_matches('\n'));
}
