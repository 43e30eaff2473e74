//! Tests of examples that are made of text.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::corpus::{DocumentRule, TextFiles, TokenizeOptions, TokenizerKind, TokenizerSource, tokenize};
use crate::tests::test_case::{DataCase, floats, npy, raw_of, values};
use crate::{BatchSampler, Dataset, EpochSeed};
use meshwright_plan::DType;
use meshwright_sorted::SortedSet;
use std::os::unix::fs::FileExt;

/// Documents of 1 to 9 words, each of which is one token of one letter.
const WORDS: [&str; 6] = ["a b c d e f g h", "i", "j k", "l m n o p q r s t", "u v w", "x y z a b c d"];

/// A case with tokens of these documents, of one letter each: the end of text is 0 for byte pairs.
fn text(kind: TokenizerKind, documents: &[&str], sentinels: usize) -> DataCase {
    let case = DataCase::new();
    let file = |name: &str, text: String| {
        let path = case.path().join(name);
        std::fs::write(&path, text).unwrap();
        TextFiles { paths: vec![path], rule: DocumentRule::Lines, field: "text".into(), second: None }
    };
    let text = file("text.txt", documents.join("\n"));
    // A letter and the space before it become one token, as they come often.
    let letters = ('a'..='z').flat_map(|c| [' ', c]).collect::<String>() + "\n";
    let often = file("often.txt", letters.repeat(9) + &documents.join("\n"));
    let vocab = match kind {
        TokenizerKind::Bpe => 258 + sentinels + 26,
        TokenizerKind::WordPiece => 80,
    };
    let source = TokenizerSource::Train { kind, vocab, sentinels, cased: false };
    let trained = source.tokenizer(&often, &mut |_| {}).unwrap();
    let path = case.path().join("trained.json");
    std::fs::write(&path, trained.json().unwrap()).unwrap();
    let options = TokenizeOptions {
        text,
        tokenizer: TokenizerSource::File { path, cased: false },
        out: case.path().join("tokens"),
        held_out: (0.0, 0.0),
        shard_tokens: 10,
        task: None,
    };
    tokenize(&options, &mut |_| {}).unwrap();
    case
}

/// A case with a tokenizer `trained.json` of BERT's, for which letters are tokens.
pub(crate) fn words() -> DataCase {
    text(TokenizerKind::WordPiece, &WORDS, 0)
}

/// A toml of a set with these settings, and each input the field of its name.
fn toml(settings: &str, inputs: &[&str]) -> String {
    let fields: Vec<String> = inputs.iter().map(|i| format!("{i} = {{ field = \"{i}\" }}")).collect();
    format!("[train]\ntokens = {{ {settings} }}\n{}\n", fields.join("\n"))
}

fn shards(settings: &str, inputs: &[&str]) -> String {
    toml(&format!("index = \"tokens/index.json\", {settings}"), inputs)
}

fn ints(case: DataCase, inputs: &[&str], dims: &[(&str, usize)]) -> DataCase {
    inputs.iter().fold(case, |case, name| case.input(name, DType::I32, dims))
}

fn in_epoch(set: &Dataset, input: &str, records: &[usize], epoch: u32) -> Vec<i32> {
    let seed = EpochSeed { seed: 5, epoch };
    raw_of(set, input, records, seed).chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

const NEXT: [&str; 6] = ["token", "target", "predicted", "real", "document", "position"];

#[test]
fn next_tokens_are_windows_over_all_documents() {
    let case = ints(text(TokenizerKind::Bpe, &WORDS, 0), &NEXT, &[("seq", 6)]);
    let set = case.load(&shards("task = \"next\"", &NEXT)).unwrap();
    // 30 words and 6 ends, of which the last is only a target; shards of 10 tokens are one stream.
    assert_eq!(set.records(), 5);
    let all: Vec<usize> = (0..set.records()).collect();
    let [token, target, predicted, real, document, position] = NEXT.map(|n| values(&set, n, &all));
    // A target is the next token, across examples too.
    assert_eq!(token[1..], target[..target.len() - 1]);
    assert!(real.iter().all(|r| *r == 1));
    for example in 0..set.records() {
        let (mut number, mut at) = (0, 0);
        for i in example * 6..example * 6 + 6 {
            assert_eq!((document[i], position[i]), (number, at), "{i}");
            // What ends a document is its last token: what comes after it cannot be predicted.
            assert_eq!(predicted[i], i32::from(token[i] != 0), "{i}");
            (number, at) = if token[i] == 0 { (number + 1, 0) } else { (number, at + 1) };
        }
    }
}

#[test]
fn documents_by_themselves_are_filled_up() {
    let case = ints(text(TokenizerKind::Bpe, &WORDS, 0), &NEXT, &[("seq", 6)]);
    let set = case.load(&shards("task = \"next\", packed = false", &NEXT)).unwrap();
    let examples: Vec<usize> = WORDS.iter().map(|d| d.split(' ').count().div_ceil(6)).collect();
    assert_eq!(set.records(), examples.iter().sum::<usize>());
    let (mut record, mut ends) = (0, 0);
    for n in examples {
        let all: Vec<usize> = (record..record + n).collect();
        let [token, target, predicted, real, document, _] = NEXT.map(|n| values(&set, n, &all));
        let text = real.iter().filter(|r| **r == 1).count();
        // Only the last example of a document has room left, and it is filled up with 1.
        assert!(real[..text].iter().all(|r| *r == 1) && predicted == real);
        assert!(token[text..].iter().chain(&target[text..]).all(|t| *t == 1));
        assert!(document[text..].iter().all(|d| *d == 1));
        assert_eq!(token[1..text], target[..text - 1]);
        assert_eq!(target[text - 1], 0);
        ends += 1;
        record += n;
    }
    assert_eq!(ends, WORDS.len());
}

#[test]
fn text_is_tokenized_in_place_of_shards_with_the_same_examples() {
    let case = ints(text(TokenizerKind::Bpe, &WORDS, 0), &NEXT, &[("seq", 6)]);
    let of_shards = case.load(&shards("task = \"next\"", &NEXT)).unwrap();
    let settings = "text = [\"text.txt\"], tokenizer = \"tokens/tokenizer.json\", documents = \"lines\", task = \"next\"";
    let of_text = case.load(&toml(settings, &NEXT)).unwrap();
    assert_eq!(of_text.fingerprint(), of_shards.fingerprint());
    assert_eq!(of_text.records(), of_shards.records());
}

#[test]
fn large_shards_are_read_where_they_are() {
    let case = ints(text(TokenizerKind::Bpe, &["a b"], 0), &["token"], &[("seq", 4)]);
    let folder = case.path().join("tokens");
    // More than is read into memory; the file system stores little of it.
    let n: u64 = 36 << 20;
    let header = npy("<u2", "False", &format!("({n},)"), &[]);
    let file = std::fs::File::create(folder.join("train-00000.npy")).unwrap();
    file.write_all_at(&header, 0).unwrap();
    file.set_len(header.len() as u64 + 2 * n).unwrap();
    let tokens = [5u16, 6, 7, 8, 9, 60_000].map(u16::to_le_bytes).concat();
    file.write_all_at(&tokens, header.len() as u64 + 2 * 30_000_000).unwrap();
    let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
    let mut index: serde_json::Value = serde_json::from_str(&index).unwrap();
    index["sets"]["train"]["shards"][0]["token_count"] = n.into();
    std::fs::write(folder.join("index.json"), index.to_string()).unwrap();
    let set = case.load(&shards("task = \"next\"", &["token"])).unwrap();
    assert_eq!(set.records() as u64, (n - 1) / 4);
    assert_eq!(values(&set, "token", &[7_499_998, 7_500_002]), [0; 8]);
    assert_eq!(values(&set, "token", &[7_500_000]), [5, 6, 7, 8]);
    // What is read in place is checked when it is read.
    let one = |record: usize| {
        let whole = 0..4;
        set.read(0, (&[record], EpochSeed::default()), std::slice::from_ref(&whole), &mut [0; 16])
    };
    let bad = one(7_500_001).unwrap_err();
    assert!(bad.code.id == "E0506" && bad.message.contains("has the value 60000"), "{}", bad.message);
    file.set_len(header.len() as u64 + 1000).unwrap();
    assert_eq!(one(7_499_999).unwrap_err().code.id, "E0502");
}

#[test]
fn word_pieces_of_text_may_be_cased() {
    let case = ints(DataCase::new(), &["target"], &[("seq", 6)]);
    std::fs::write(case.path().join("text.txt"), "A a A a").unwrap();
    std::fs::write(case.path().join("list.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nA\n").unwrap();
    let of = |more: &str| {
        let settings = format!("text = \"text.txt\", tokenizer = \"list.txt\", task = \"masked\"{more}");
        values(&case.load(&toml(&settings, &["target"])).unwrap(), "target", &[0])
    };
    assert_eq!(of(""), [2, 5, 5, 5, 5, 3]);
    assert_eq!(of(", cased = true"), [2, 6, 5, 6, 5, 3]);
}

#[test]
fn targets_know_their_bytes() {
    let case = text(TokenizerKind::Bpe, &["ab cd", "e"], 0);
    let case = case.input("bytes", DType::F32, &[("seq", 4)]).input("target", DType::I32, &[("seq", 4)]);
    let set = case.load(&shards("task = \"next\", packed = false", &["bytes", "target"])).unwrap();
    // All of the text but what an example begins with, and nothing for what ends it.
    let all: Vec<usize> = (0..set.records()).collect();
    let (bytes, target) = (floats(&set, "bytes", &all), values(&set, "target", &all));
    assert!(bytes.iter().zip(&target).all(|(b, t)| (*b == 0.0) == (*t < 2)), "{bytes:?} {target:?}");
    assert_eq!(bytes.iter().sum::<f32>(), "b cd".len() as f32);
    let words = text(TokenizerKind::WordPiece, &["ab cd", "e"], 0).input("bytes", DType::F32, &[("seq", 4)]);
    let said = words.message(&shards("task = \"next\"", &["bytes"]));
    assert!(said.0 == "E0508" && said.1.contains("do not say how many they are"), "{said:?}");
}

const MASKED: [&str; 5] = ["token", "target", "predicted", "real", "segment"];

/// Many documents of letters.
fn long_text() -> Vec<String> {
    let letter = |i: usize| char::from(b'a' + (i * i % 25) as u8).to_string();
    (0..40).map(|d| (d * 7..d * 7 + 60).map(letter).collect::<Vec<_>>().join(" ")).collect()
}

fn long(kind: TokenizerKind, sentinels: usize) -> DataCase {
    let documents = long_text();
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    text(kind, &documents, sentinels)
}

#[test]
fn masked_examples_are_those_of_the_paper() {
    let case = ints(long(TokenizerKind::WordPiece, 0), &MASKED, &[("seq", 42)]);
    let set = case.load(&shards("task = \"masked\"", &MASKED)).unwrap();
    assert_eq!(set.records(), 40 * 60 / 40);
    let records: Vec<usize> = (0..set.records()).collect();
    let (mut hidden, mut as_mask, mut kept, mut changed) = (0, 0, 0, 0);
    let mut before: Option<Vec<i32>> = None;
    for epoch in 0..20 {
        let [token, target, predicted, real, segment] = MASKED.map(|n| in_epoch(&set, n, &records, epoch));
        assert!(real.iter().all(|r| *r == 1) && segment.iter().all(|s| *s == 0));
        for (i, (t, was)) in token.iter().zip(&target).enumerate() {
            match (i % 42, predicted[i]) {
                (0, p) => assert_eq!((*t, *was, p), (2, 2, 0)),
                (41, p) => assert_eq!((*t, *was, p), (3, 3, 0)),
                (_, 0) => assert_eq!(t, was),
                (_, _) => {
                    hidden += 1;
                    as_mask += usize::from(*t == 4);
                    kept += usize::from(t == was);
                    changed += usize::from(*t != 4 && t != was);
                    assert!(*t >= 4, "no random token is special: {t}");
                }
            }
        }
        // Six of forty in each example, in each epoch others.
        let each = predicted.chunks(42).map(|e| e.iter().sum::<i32>());
        assert_eq!(each.collect::<SortedSet<_>>(), SortedSet::from([6]));
        assert_ne!(before.as_ref(), Some(&predicted));
        before = Some(predicted);
    }
    let share = |n: usize| n as f64 / hidden as f64;
    assert!((share(as_mask) - 0.8).abs() < 0.02, "{}", share(as_mask));
    assert!(
        (share(kept) - 0.1).abs() < 0.02 && (share(changed) - 0.1).abs() < 0.02,
        "{} {}",
        share(kept),
        share(changed)
    );
}

#[test]
fn what_is_random_depends_on_seed_epoch_and_record_alone() {
    let case = ints(long(TokenizerKind::WordPiece, 0), &MASKED, &[("seq", 42)]);
    for settings in ["task = \"masked\"", "task = \"masked\", pairs = true"] {
        let set = case.load(&shards(settings, &MASKED)).unwrap();
        let together = in_epoch(&set, "token", &[3, 9, 4], 1);
        let alone: Vec<i32> = [3, 9, 4].iter().flat_map(|r| in_epoch(&set, "token", &[*r], 1)).collect();
        assert_eq!(together, alone);
        assert_ne!(together, in_epoch(&set, "token", &[3, 9, 4], 2));
        // A device's part of a sequence is that part of the whole.
        let at = set.find("token").unwrap();
        let mut part = vec![0; 10 * 4];
        set.read(at, (&[9], EpochSeed { seed: 5, epoch: 1 }), std::slice::from_ref(&(20..30)), &mut part)
            .unwrap();
        let part: Vec<i32> = part.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(part, together[42 + 20..42 + 30]);
        // The sampler of a run says the epoch of a step.
        let sampler = BatchSampler::of(5, &set, 7).unwrap();
        let per_epoch = sampler.steps_per_epoch();
        assert_eq!(sampler.epoch_seed(per_epoch + 1), EpochSeed { seed: 5, epoch: 1 });
        assert_eq!(sampler.epoch_seed(per_epoch - 1), EpochSeed { seed: 5, epoch: 0 });
    }
}

#[test]
fn whole_words_are_hidden_or_none_of_them() {
    // Words of three letters that are no token: of rare letters, so that no two of them are joined.
    let rare = |i: usize| char::from(b'a' + (i % 26) as u8);
    let word = |i: usize| [rare(i), rare(i * 5 + 1), rare(i * 11 + i / 26 + 2)].iter().collect::<String>();
    let document = (0..600).map(word).collect::<Vec<_>>().join(" ");
    let case = ints(text(TokenizerKind::WordPiece, &[&document], 0), &MASKED, &[("seq", 62)]);
    let tokenizer =
        crate::corpus::TextTokenizer::open(&case.path().join("tokens/tokenizer.json"), false).unwrap();
    let continues = tokenizer.continues_word();
    let parts = |settings: &str| {
        let set = case.load(&shards(settings, &MASKED)).unwrap();
        let all: Vec<usize> = (0..set.records()).collect();
        let [target, predicted] = ["target", "predicted"].map(|n| in_epoch(&set, n, &all, 0));
        let inside = (1..target.len()).filter(|i| i % 62 > 1 && continues[target[*i] as usize]);
        let (same, apart): (Vec<usize>, Vec<usize>) =
            inside.partition(|i| predicted[*i] == predicted[*i - 1]);
        assert!(same.len() > 300);
        apart.len()
    };
    assert_eq!(parts("task = \"masked\", whole_words = true"), 0);
    assert!(parts("task = \"masked\"") > 100);
}

#[test]
fn half_of_all_pairs_follow() {
    let case =
        ints(long(TokenizerKind::WordPiece, 0), &MASKED, &[("seq", 43)]).input("follows", DType::I32, &[]);
    let inputs = [&MASKED[..], &["follows"]].concat();
    let set = case.load(&shards("task = \"masked\", pairs = true, rate = 0.1", &inputs)).unwrap();
    // Each document of 60 is an example of 40 and one of 20.
    assert_eq!(set.records(), 80);
    let records: Vec<usize> = (0..80).collect();
    let [target, real, segment, follows] =
        ["target", "real", "segment", "follows"].map(|n| in_epoch(&set, n, &records, 0));
    let text = long_text();
    let plain: Vec<Vec<u8>> = text.iter().map(|t| t.bytes().filter(|b| *b != b' ').collect()).collect();
    let tokenizer =
        crate::corpus::TextTokenizer::open(&case.path().join("tokens/tokenizer.json"), false).unwrap();
    for example in 0..80 {
        let of = |list: &[i32]| list[example * 43..example * 43 + 43].to_vec();
        let (target, real, segment) = (of(&target), of(&real), of(&segment));
        let n = real.iter().filter(|r| **r == 1).count();
        assert_eq!(target.iter().filter(|t| **t == 3).count(), 2, "two pieces end");
        let ends: Vec<usize> = (0..43).filter(|i| target[*i] == 3).collect();
        assert_eq!(ends[1], n - 1);
        assert!((0..43).all(|i| segment[i] == i32::from(i > ends[0] && i < n)));
        let letters = |range: std::ops::Range<usize>| {
            let tokens: Vec<u32> = target[range].iter().map(|t| *t as u32).collect();
            tokenizer.decode(&tokens).unwrap().bytes().filter(|b| *b != b' ').collect::<Vec<u8>>()
        };
        let (first, second) = (letters(1..ends[0]), letters(ends[0] + 1..n - 1));
        assert!(!first.is_empty() && !second.is_empty());
        let own = &plain[example / 2];
        let joined = [first, second].concat();
        let follows_in_text = own.windows(joined.len().min(60)).any(|w| w == joined);
        if follows[example] == 1 {
            assert!(follows_in_text, "{example}");
        }
    }
    let many: i32 = (0..10).map(|e| in_epoch(&set, "follows", &records, e).iter().sum::<i32>()).sum();
    assert!((340..460).contains(&many), "{many} of 800");
    let alone = case.message(&shards("task = \"masked\"", &inputs));
    assert!(alone.1.contains("add `pairs = true`"), "{alone:?}");
}

const SPANS: [&str; 6] = ["token", "real", "target", "predicted", "decoder", "decoder_real"];

#[test]
fn hidden_spans_put_the_text_together_again() {
    let case = ints(long(TokenizerKind::Bpe, 8), &SPANS[..2], &[("seq", 40)]);
    let case = ints(case, &SPANS[2..], &[("out", 12)]);
    let set = case.load(&shards("task = \"spans\"", &SPANS)).unwrap();
    let records: Vec<usize> = (0..set.records()).collect();
    let mut all = SortedSet::new();
    for epoch in 0..3 {
        let [token, real, target, predicted, decoder, _] = SPANS.map(|n| in_epoch(&set, n, &records, epoch));
        let mut text = Vec::new();
        for example in 0..set.records() {
            let (token, real) = (&token[example * 40..][..40], &real[example * 40..][..40]);
            let (target, predicted) = (&target[example * 12..][..12], &predicted[example * 12..][..12]);
            let decoder = &decoder[example * 12..][..12];
            // Sentinels are 2 to 9, the end is 0, what fills up 1.
            assert_eq!(decoder[0], 1);
            let said = predicted.iter().filter(|p| **p == 1).count();
            assert_eq!(decoder[1..said], target[..said - 1]);
            assert_eq!(target[said - 1], 0);
            let is_sentinel = |t: &i32| (2..10).contains(t);
            let mut spans = target[..said - 1].split(is_sentinel).skip(1);
            let read = real.iter().filter(|r| **r == 1).count();
            assert_eq!(token[read - 1], 0);
            let mut next = 2;
            for t in &token[..read - 1] {
                if is_sentinel(t) {
                    assert_eq!(*t, next);
                    next += 1;
                    text.extend(spans.next().unwrap());
                } else {
                    text.push(*t);
                }
            }
            assert!(spans.next().is_none() && next > 2);
        }
        all.insert(text);
    }
    // Whatever is hidden, the text is the same.
    assert_eq!(all.len(), 1);
    let short = ints(long(TokenizerKind::Bpe, 1), &["token"], &[("seq", 40)]);
    let said = short.message(&shards("task = \"spans\"", &["token"]));
    assert!(
        said.0 == "E0508" && said.1.contains("needs 2 sentinels") && said.1.contains("index.json` has 1"),
        "{said:?}"
    );
}

#[test]
fn what_does_not_fit_is_said() {
    let case = |dims: &[(&str, usize)]| ints(text(TokenizerKind::Bpe, &WORDS, 0), &["token"], dims);
    let of = |settings: &str| case(&[("seq", 6)]).message(&shards(settings, &["token"]));
    for (settings, code, why) in [
        ("task = \"nxt\"", "E0507", "`nxt` is not a task; ; did you mean `next`?"),
        ("task = \"next\", rate = 0.1", "E0507", "`rate` is not a setting of the task `next`"),
        ("task = \"masked\", rate = 1.5", "E0507", "`rate` of `tokens` is `1.5`"),
        ("task = \"masked\", pairs = true, packed = true", "E0507", "cannot be packed"),
        ("task = \"next\", set = \"dev\"", "E0508", "has no set `dev`; ; it has `train`"),
        ("task = \"masked\"", "E0508", "has no `[CLS]`"),
        ("task = \"next\", documents = \"lines\"", "E0507", "goes with `text`, not with `index`"),
        ("packed = true", "E0507", "does not say what it is for"),
        ("task = \"next\", paked = true", "E0507", "has no setting `paked`; ; did you mean `packed`?"),
    ] {
        let said = of(settings);
        assert!(said.0 == code && said.1.contains(why), "{said:?}");
    }
    let long = case(&[("seq", 600)]).message(&shards("task = \"next\"", &["token"]));
    assert!(long.0 == "E0504" && long.1.contains("too few for one example, which takes 601"), "{long:?}");
    // The vocabulary is larger than the model's dim.
    let mut few = case(&[("seq", 6)]);
    let vocab = few.dims.add("vocab", 100);
    few.inputs[0].range = Some(vocab);
    let said = few.message(&shards("task = \"next\"", &["token"]));
    assert!(
        said.0 == "E0506" && said.1.contains("make the dim as large as the vocabulary: `--dim vocab=284`"),
        "{said:?}"
    );
    let float = text(TokenizerKind::Bpe, &WORDS, 0).input("token", DType::F32, &[("seq", 6)]);
    assert_eq!(float.message(&shards("task = \"next\"", &["token"])).0, "E0505");
    let flat = text(TokenizerKind::Bpe, &WORDS, 0).input("token", DType::I32, &[]);
    assert!(flat.message(&shards("task = \"next\"", &["token"])).1.contains("`token[batch, seq]`"));
    let two = ints(case(&[("seq", 6)]), &["target"], &[("other", 7)]);
    assert!(
        two.message(&shards("task = \"next\"", &["token", "target"])).1.contains("declare both with one dim")
    );
    let lone = case(&[("seq", 6)]).message("[train]\ntoken = { field = \"token\" }\n");
    assert!(lone.0 == "E0507" && lone.1.contains("is a field of text, but the set has none"), "{lone:?}");
    let odd = ints(text(TokenizerKind::Bpe, &WORDS, 0), &["word"], &[("seq", 6)]);
    let said = odd.message(&format!("{}word = {{ field = \"tokn\" }}", shards("task = \"next\"", &[])));
    assert!(said.0 == "E0507" && said.1.contains("did you mean `token`?"), "{said:?}");
}

#[test]
fn damaged_shards_are_found() {
    let of = |file: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let case = ints(text(TokenizerKind::Bpe, &WORDS, 0), &["token"], &[("seq", 6)]);
        let path = case.path().join("tokens").join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        case.message(&shards("task = \"next\"", &["token"]))
    };
    let index = |from: &'static str, to: &'static str| {
        of("index.json", &|b| *b = String::from_utf8(b.clone()).unwrap().replacen(from, to, 1).into_bytes())
    };
    for (said, code, why) in [
        (of("train-00000.npy", &|b| b.truncate(b.len() - 1)), "E0502", "truncated"),
        (
            of("train-00000.npy", &|b| *b.last_mut().unwrap() = 0xff),
            "E0506",
            "but the vocabulary ends at 283",
        ),
        (of("train-00001.documents.npy", &|b| b[128] = 1), "E0502", "is not 0 and ascending"),
        (of("train-00000.documents.npy", &|b| b.truncate(100)), "E0502", "cannot be read as token shards"),
        (of("index.json", &|b| b.truncate(100)), "E0502", "it is damaged"),
        (index("\"format\": 1", "\"format\": 9"), "E0502", "format 9; format 1 is known"),
        (index("train-00000.npy", "../00000.npy"), "E0502", "is not the name of a file in its folder"),
        (index("\"token_count\": 1", "\"token_count\": 9"), "E0502", "but its index says 9"),
        (index("\"pad\": 1", "\"pad\": 1000"), "E0502", "its special token 1000 is not below `vocab`"),
    ] {
        assert!(said.0 == code && said.1.contains(why), "{said:?}");
    }
}
