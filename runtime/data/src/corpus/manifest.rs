//! The `data.toml` of a folder of token shards.

use crate::TaskKind;

/// Its text: all fields that the task has, under their own names.
pub(super) fn manifest<'a>(task: TaskKind, sets: impl Iterator<Item = &'a str>) -> String {
    let mut out = "# Written by `meshwright data tokenize`. Each line `INPUT = { field = \"FIELD\" }` gives an input of the model a\n\
         # field of the task; inputs that the model does not have do no harm.\n"
        .to_string();
    for set in sets {
        out += &format!("\n[{set}]\ntokens = {{ index = \"index.json\", task = \"{}\" }}\n", task.name());
        for field in task.fields() {
            out += &format!("{field} = {{ field = \"{field}\" }}\n");
        }
        if task == TaskKind::Masked {
            // The input of `bert` that says where a prediction counts.
            out += "masked = { field = \"predicted\" }\n";
        }
    }
    out
}
