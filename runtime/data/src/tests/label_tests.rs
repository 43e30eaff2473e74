//! Tests of labels: names of classes, numbers that stand for none, texts that are told apart.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::test_case::{DataCase, floats, ints, npy, raw, values};
use crate::BatchSampler;
use crate::tokens::words;
use meshwright_plan::DType;

fn longs(values: &[i64]) -> Vec<u8> {
    npy(
        "<i8",
        "False",
        &format!("({},)", values.len()),
        &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>(),
    )
}

#[test]
fn columns_of_tables_may_have_names_of_classes() {
    let mut case = DataCase::new()
        .input("size", DType::F32, &[])
        .input("kind", DType::I32, &[])
        .file("a.csv", b"size,kind\n1.5,dog\n2,cat\n3,1\n");
    let classes = case.dims.add("classes", 2);
    case.inputs[1].range = Some(classes);
    let toml = |of: &str| format!("[train]\nsize = 'a.csv'\nkind = {of}\n");
    let set = case.load(&toml("{ file = 'a.csv', classes = ['cat', 'dog'] }")).unwrap();
    assert_eq!((values(&set, "kind", &[0, 1, 2]), floats(&set, "size", &[1])), (vec![1, 0, 1], vec![2.0]));
    for (of, code, why) in [
        (
            "{ file = 'a.csv', classes = ['cat', 'cow'] }",
            "E0502",
            "line 2 has `dog` in the column `kind`, which is none of the `classes`",
        ),
        ("'a.csv'", "E0502", "which is not a value of `i32`; names of classes are listed in `classes`"),
        ("{ file = 'a.csv', classes = ['cat', 'cat'] }", "E0507", "is not a list of different names"),
        ("{ file = 'a.npy', classes = ['cat', 'dog'] }", "E0507", "is not a CSV file"),
    ] {
        let said = case.message(&toml(of));
        assert!(said.0 == code && said.1.contains(why), "{said:?}");
    }
    let found = case.found(&toml("{ file = 'a.csv', classes = ['cat', 'dog'] }")).unwrap();
    assert_eq!(found.classes("kind").unwrap(), ["cat", "dog"]);
    assert_eq!(found.classes("size"), None);
}

#[test]
fn what_is_wrong_with_a_table_has_a_line_and_a_way_out() {
    let case = || DataCase::new().input("size", DType::F32, &[]).input("kind", DType::I32, &[]);
    let toml = "[train]\nsize = 'a.csv'\nkind = 'a.csv'\n";
    for (table, why, help) in [
        ("size;kind\n1.5;1\n", "line 1 separates its cells by `;`", "`tr ';' ',' < "),
        ("size;kind\n1,5;1\n2,5;0\n", "line 1 separates its cells by `;`", "sep=\";\", decimal=\",\""),
        ("size\tkind\n1.5\t1\n", "line 1 separates its cells by `\\t`", "`tr '\\t' ',' < "),
        (
            "size,kind\n1.5,1\n\"2.5,1\n3,0\n4,0\n",
            "line 3 opens a quote (`\"`) that goes on to line 5",
            "close it",
        ),
        (
            "size,kind\n1.5,1\n\"2.5\n3\",1\n3,0\n",
            "line 3 opens a quote (`\"`) that goes on to line 4",
            "close it",
        ),
        (
            "size,kind\n1.5,1\n2,5,1\n",
            "line 3 has 3 cells, the header 2",
            "a comma inside of a cell needs quotes",
        ),
        (
            "size,kind\n1.5,1\n\"2,5\",1\n",
            "line 3 has `2,5` in the column `size`",
            "write numbers with a point",
        ),
        ("size,kind\n,1\n", "line 2 has nothing in the column `size`", "leave the line out"),
        ("sise,kind\n1,1\n", "it has no column `size`", "a.csv:sise`"),
        ("1.5,1\n2,0\n", "it has no column `size`", "`c1,c2`"),
        ("", "it has no column `size`", "write the names of the columns in line 1"),
    ] {
        let said = case().file("a.csv", table.as_bytes()).load(toml).unwrap_err();
        assert_eq!(said.code.id, "E0502");
        assert!(said.message.contains(why) && said.helps[0].contains(help), "{table}: {said:?}");
    }
    let latin = case().file("a.csv", b"size,kind\n1.5,1\n\xe4,1\n").load(toml).unwrap_err();
    assert!(latin.message.contains("line 3 is not text") && latin.helps[0].contains("UTF-8"), "{latin:?}");
    let units = "size,kind\n1.5,1\n".encode_utf16();
    let marked: Vec<u8> = [0xfeff].into_iter().chain(units).flat_map(u16::to_le_bytes).collect();
    let wide = case().file("a.csv", &marked).load(toml).unwrap_err();
    assert!(wide.helps[0].contains("`iconv -f UTF-16 -t UTF-8 "), "{wide:?}");
}

/// The shell commands of helps make files that are read.
#[test]
fn commands_that_mend_tables_do() {
    let case = DataCase::new().input("size", DType::F32, &[]).file("a.csv", b"size;kind\n1.5;1\n2;0\n");
    let wrong = case.load("[train]\nsize = 'a.csv'\n").unwrap_err();
    let command = wrong.helps[0].split('`').nth(1).unwrap();
    let ended = std::process::Command::new("sh").args(["-c", command]).current_dir(case.path()).status();
    assert!(ended.unwrap().success(), "{command}");
    let set = case.load("[train]\nsize = 'commas.csv'\n").unwrap();
    assert_eq!(floats(&set, "size", &[0, 1]), [1.5, 2.0]);
}

#[test]
fn numbers_that_stand_for_no_label_become_a_mask() {
    let mut case = DataCase::new()
        .input("label", DType::I32, &[])
        .input("counted", DType::F32, &[])
        .file("l.npy", &longs(&[2, -100, 0, -1]))
        .file("l.csv", b"label\n2\n-100\n0\n");
    let classes = case.dims.add("classes", 3);
    case.inputs[0].range = Some(classes);
    let toml = |label: &str| format!("[train]\nlabel = {label}\ncounted = {{ mask_of = 'label' }}\n");
    let of = |label: &str| {
        let set = case.load(&toml(label)).unwrap();
        let all: Vec<usize> = (0..set.records()).collect();
        (values(&set, "label", &all), floats(&set, "counted", &all))
    };
    assert_eq!(of("'l.csv'"), (vec![2, 0, 0], vec![1.0, 0.0, 1.0]));
    let said = case.message(&toml("'l.npy'"));
    assert!(said.0 == "E0506" && said.1.contains("record 3 of `label` has the value -1"), "{said:?}");
    let case = case.file("l.npy", &longs(&[2, -1, 0, -1]));
    let set = case.load(&toml("{ file = 'l.npy', ignore = -1 }")).unwrap();
    assert_eq!(
        (values(&set, "label", &[0, 1, 2, 3]), floats(&set, "counted", &[0, 1, 2, 3])),
        (vec![2, 0, 0, 0], vec![1.0, 0.0, 1.0, 0.0])
    );
    // It has no class, so that it weighs nothing and is not drawn.
    let weighs = DataCase::new()
        .input("label", DType::I32, &[])
        .input("counted", DType::F32, &[])
        .input("weight", DType::F32, &[])
        .file("l.npy", &longs(&[2, -1, 0, -1]));
    let set = weighs
        .load(&format!(
            "{}weight = {{ by = 'label', weights = [1, 2, 3] }}\nsampling = {{ by = 'label', weights = [1, 1, 5] }}\n",
            toml("{ file = 'l.npy', ignore = -1 }")
        ))
        .unwrap();
    assert_eq!(floats(&set, "weight", &[0, 1, 2, 3]), [3.0, 0.0, 1.0, 0.0]);
    let drawn = BatchSampler::of(1, &set, 4).unwrap();
    assert!((0..50).flat_map(|epoch| drawn.records(epoch, 0..4)).all(|r| r == 0 || r == 2));
    // Without a mask nothing would say that they are no labels.
    let mut alone = DataCase::new().input("label", DType::I32, &[]).file("l.npy", &longs(&[2, -1]));
    let classes = alone.dims.add("classes", 3);
    alone.inputs[0].range = Some(classes);
    let said = alone.message("[train]\nlabel = { file = 'l.npy', ignore = -1 }\n");
    assert!(said.0 == "E0506" && said.1.contains("mask_of = \"label\""), "{said:?}");
    let said = alone.message("[train]\nlabel = { file = 'l.npy', ignore = 'none' }\n");
    assert!(said.0 == "E0507" && said.1.contains("`ignore` of `label` is not a whole number"), "{said:?}");
    let lone = DataCase::new().input("counted", DType::F32, &[]);
    let said = lone.message("[train]\ncounted = { mask_of = 'label' }\n");
    assert!(said.0 == "E0503" && said.1.contains("is a mask of `label`, which names no files"), "{said:?}");
}

#[test]
fn integers_of_0_and_1_are_truth_values() {
    let case = DataCase::new().input("real", DType::Bool, &[]).file("r.npy", &longs(&[1, 0, 1]));
    let set = case.load("[train]\nreal = 'r.npy'\n").unwrap();
    assert_eq!(raw(&set, "real", &[0, 1, 2]), [1, 0, 1]);
    for odd in [2, -1] {
        let said = DataCase::new()
            .input("real", DType::Bool, &[])
            .file("r.npy", &longs(&[1, odd]))
            .message("[train]\nreal = 'r.npy'\n");
        assert!(
            said.0 == "E0506" && said.1.contains(&format!("has the value {odd}, which `bool` cannot hold")),
            "{said:?}"
        );
    }
    let four = ints([1, 0]).into_iter().collect::<Vec<u8>>();
    let case =
        DataCase::new().input("real", DType::Bool, &[]).file("r.npy", &npy("<i4", "False", "(2,)", &four));
    assert_eq!(raw(&case.load("[train]\nreal = 'r.npy'\n").unwrap(), "real", &[0, 1]), [1, 0]);
}

#[test]
fn each_text_is_an_example_with_a_class() {
    let inputs = ["token", "real", "segment"];
    let mut case = inputs.iter().fold(words(), |c, i| c.input(i, DType::I32, &[("seq", 6)]));
    case = case
        .input("label", DType::I32, &[])
        .file("a.csv", b"label,text\nsea,\"a b\"\nland,\nsea,a b c d e f\n")
        .file("a.jsonl", b"{\"text\": \"a b\", \"label\": \"sea\"}\n\n{\"text\": \"\", \"label\": 0}\n{\"text\": \"a b c d e f\", \"label\": \"sea\"}\n")
        .file("a.txt", b"a b\n\na b c d e f\n")
        .file("labels.csv", b"label\n1\n0\n1\n")
        .file("tabs.csv", b"label\ttext\nsea\ta\n")
        .file("open.csv", b"label,text\nsea,a\n\"land,b\nsea,c\n");
    let classes = case.dims.add("classes", 2);
    case.inputs[3].range = Some(classes);
    let toml = |settings: &str, label: &str| {
        let fields: Vec<String> = inputs.iter().map(|i| format!("{i} = {{ field = \"{i}\" }}")).collect();
        let tokens = format!("tokens = {{ {settings}, tokenizer = \"trained.json\", task = \"classify\" }}");
        format!("[train]\n{tokens}\n{}\nlabel = {label}\n", fields.join("\n"))
    };
    let field = "{ field = \"label\" }";
    let names = "classes = [\"land\", \"sea\"]";
    let mut seen = Vec::new();
    for (settings, label) in [
        (format!("text = \"a.csv\", {names}"), field),
        (format!("text = \"a.jsonl\", {names}"), field),
        ("text = \"a.txt\", documents = \"lines\", packed = false".into(), "\"labels.csv\""),
    ] {
        let set = case.load(&toml(&settings, label)).unwrap();
        assert_eq!((set.records(), values(&set, "label", &[0, 1, 2])), (3, vec![1, 0, 1]), "{settings}");
        let real: Vec<i32> = values(&set, "real", &[0, 1, 2]);
        assert_eq!(real, [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1; 6]].concat(), "{settings}");
        seen.push(values(&set, "token", &[0, 1, 2]));
        assert_eq!(values(&set, "segment", &[0, 1, 2]), [0; 18]);
    }
    assert!(seen[0] == seen[1] && seen[1] == seen[2], "{seen:?}");
    // The first is what BERT begins with, the last what it ends with; a longer text is cut.
    let (first, empty, long) = (&seen[0][..6], &seen[0][6..12], &seen[0][12..]);
    assert_eq!((first[0], first[3], empty[1]), (long[0], long[5], long[5]));
    assert_eq!((first[1], first[2]), (long[1], long[2]));
    for (settings, label, code, why) in [
        (
            "text = \"a.csv\", classes = [\"land\", \"lake\"]",
            field,
            "E0502",
            "line 2 has the class `sea`, which is none of the `classes` `land`, `lake`",
        ),
        ("text = \"a.csv\"", field, "E0502", "name the classes"),
        ("text = \"tabs.csv\"", field, "E0502", "line 1 separates its cells by `\\t`"),
        ("text = \"open.csv\", classes = [\"land\", \"sea\"]", field, "E0502", "line 3 opens a quote"),
        (
            "text = \"a.csv\", column = \"txt\"",
            field,
            "E0502",
            "it has no column `txt`; ; it has `label`, `text`",
        ),
        ("text = \"a.jsonl\", label = \"class\"", field, "E0502", "line 1 has no field `class`"),
        ("text = \"a.txt\"", field, "E0502", "plain text does not say of which class"),
        ("text = \"a.csv\", packed = true", field, "E0507", "each text is classified by itself"),
        ("text = \"a.csv\", classes = [\"a\", \"a\"]", field, "E0507", "is not a list of different names"),
    ] {
        let said = case.message(&toml(settings, label));
        assert!(said.0 == code && said.1.contains(why), "{said:?}");
    }
    let said = case
        .message(&toml("index = \"tokens/index.json\"", field).replace(", tokenizer = \"trained.json\"", ""));
    assert!(said.0 == "E0508" && said.1.contains("has tokens, and no classes of its documents"), "{said:?}");
}

const PAIRS: &str = "text = \"a.csv\", column = \"first\", second = \"second\"";
const ROWS: [(&str, &str, &str); 4] =
    [("a b", "c", "yes"), ("", "d", "no"), ("a b c d e f", "g h", "yes"), ("a b c", "d e f g", "no")];

/// A case with pairs of texts in CSV and in JSON lines.
fn pairs() -> DataCase {
    let inputs = ["token", "segment", "real"];
    let case = inputs.iter().fold(words(), |c, i| c.input(i, DType::I32, &[("seq", 8)]));
    let csv: String = ROWS.iter().map(|(a, b, c)| format!("{a},{b},{c}\n")).collect();
    let object =
        |(a, b, c): &(&str, &str, &str)| serde_json::json!({"first": a, "second": b, "label": c, "n": 1});
    let jsonl: String = ROWS.iter().map(|row| format!("{}\n", object(row))).collect();
    let mut case = case
        .input("label", DType::I32, &[])
        .file("a.csv", format!("first,second,label\n{csv}").as_bytes())
        .file("a.jsonl", jsonl.as_bytes())
        .file("a.txt", b"a\nb\n");
    let classes = case.dims.add("classes", 2);
    case.inputs[3].range = Some(classes);
    case
}

fn pairs_toml(settings: &str, tokenizer: &str) -> String {
    let fields: String = ["token", "segment", "real", "label"]
        .iter()
        .map(|i| format!("{i} = {{ field = \"{i}\" }}\n"))
        .collect();
    let task = "task = \"classify\", classes = [\"no\", \"yes\"]";
    format!("[train]\ntokens = {{ {settings}, tokenizer = \"{tokenizer}\", {task} }}\n{fields}")
}

#[test]
fn pairs_of_texts_are_joined_as_their_tokenizer_has_it() {
    let case = pairs();
    let trained: serde_json::Value =
        serde_json::from_slice(&std::fs::read(case.path().join("trained.json")).unwrap()).unwrap();
    let id = |token: &str| trained["model"]["vocab"][token].as_i64().unwrap() as i32;
    let [pad, cls, sep] = ["[PAD]", "[CLS]", "[SEP]"].map(id);
    // The same tokenizer with other rules for pairs: RoBERTa's, and none.
    let roberta = serde_json::json!({
        "type": "RobertaProcessing", "sep": ["[SEP]", sep], "cls": ["[CLS]", cls], "trim_offsets": true, "add_prefix_space": false,
    });
    for (name, processor) in [("roberta.json", roberta), ("silent.json", serde_json::Value::Null)] {
        let mut other = trained.clone();
        other["post_processor"] = processor;
        std::fs::write(case.path().join(name), other.to_string()).unwrap();
    }
    let token = |c| match c {
        '^' => cls,
        '|' => sep,
        '_' => pad,
        c => id(&c.to_string()),
    };
    let jsonl = PAIRS.replace("a.csv", "a.jsonl").replace("column", "json_field");
    let berts = ("^ab|c|__^|d|____^abc|gh|^ab|def|", "00001100001100000000011100001111");
    let robertas = ("^ab||c|_^||d|___^ab||gh|^ab||de|", "00000000000000000000000000000000");
    for (settings, tokenizer, (want, segments)) in
        [(PAIRS, "trained.json", berts), (&jsonl, "silent.json", berts), (PAIRS, "roberta.json", robertas)]
    {
        let set = case.load(&pairs_toml(settings, tokenizer)).unwrap();
        let of = |input| values(&set, input, &[0, 1, 2, 3]);
        assert_eq!((set.records(), of("label")), (4, vec![1, 0, 1, 0]), "{tokenizer}");
        assert_eq!(of("token"), want.chars().map(token).collect::<Vec<_>>(), "{tokenizer}");
        let truth = |text: &str, is: fn(char) -> bool| -> Vec<i32> {
            text.chars().map(|c| i32::from(is(c))).collect()
        };
        assert_eq!(of("segment"), truth(segments, |c| c == '1'), "{tokenizer}");
        assert_eq!(of("real"), truth(want, |c| c != '_'), "{tokenizer}");
    }
}

#[test]
fn what_is_no_pair_of_texts_is_said() {
    let case = pairs();
    for (settings, code, why) in [
        (
            "text = \"a.csv\", column = \"first\", second = \"b\"",
            "E0502",
            "it has no column `b`; ; it has `first`, `second`, `label`: choose one with `second`",
        ),
        ("text = \"a.jsonl\", json_field = \"first\", second = \"b\"", "E0502", "line 1 has no field `b`"),
        (
            "text = \"a.jsonl\", json_field = \"first\", second = \"n\"",
            "E0502",
            "line 1 has no text in the field `n`",
        ),
        (
            "text = \"a.csv\", column = \"first\", second = \"first\"",
            "E0507",
            "both texts of a pair are `first`",
        ),
        ("text = \"a.txt\", second = \"b\"", "E0502", "plain text has no second text beside each"),
    ] {
        let said = case.message(&pairs_toml(settings, "trained.json"));
        assert!(said.0 == code && said.1.contains(why), "{said:?}");
    }
    let masked = pairs_toml("text = \"a.csv\", second = \"second\"", "trained.json");
    let said = case.message(&masked.replace("\"classify\", classes = [\"no\", \"yes\"]", "\"masked\""));
    assert!(
        said.0 == "E0507" && said.1.contains("`second` is not a setting of the task `masked`"),
        "{said:?}"
    );
    let inputs = ["token", "segment"];
    let short = inputs.iter().fold(words(), |c, i| c.input(i, DType::I32, &[("seq", 4)]));
    let short = short.file("a.csv", b"first,second\na,b\n");
    let said = short.message(
        &pairs_toml(PAIRS, "trained.json")
            .replace("real = { field = \"real\" }\nlabel = { field = \"label\" }\n", ""),
    );
    assert!(
        said.0 == "E0504"
            && said.1.contains("a sequence of 4 is too short for a pair of texts: 3 of its tokens"),
        "{said:?}"
    );
}
