//! Tests of labels: names of classes, numbers that stand for none, texts that are told apart.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::test_case::{DataCase, floats, ints, npy, raw, values};
use super::tokens::words;
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
        .file("labels.csv", b"label\n1\n0\n1\n");
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
