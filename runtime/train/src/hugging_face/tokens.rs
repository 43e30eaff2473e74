//! Tokenizers of checkpoints: the files that come with one, and those that are written with one.

use super::map::HfMap;
use meshwright_data::corpus::TextTokenizer;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::durable::open_regular;
use meshwright_files::folder::Folder;
use meshwright_runs::run_dir::tokenizer_in;
use meshwright_sorted::SortedMap;
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Files on its use.
const BESIDE: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

/// The largest of these files.
const MOST_BYTES: u64 = 1 << 28;

/// The files of a checkpoint's tokenizer, by name, and notes for a model with this number of tokens.
pub(super) fn tokenizer_of(
    from: &Path,
    vocab: Option<usize>,
) -> Checked<(SortedMap<String, String>, Option<String>)> {
    let mut files = SortedMap::new();
    let (tokenizer, text) = match (from.join(TOKENIZER), from.join("vocab.txt")) {
        (json, _) if json.is_file() => TextTokenizer::open_with_text(&json, false)?,
        (_, list) if list.is_file() => TextTokenizer::open_with_text(&list, cased(from))?,
        _ => {
            let place = from.display();
            let note = format!("`{place}` has no `{TOKENIZER}`: give one to `generate` with `--tokenizer`");
            return Ok((files, Some(note)));
        }
    };
    files.insert(TOKENIZER.into(), text.map_or_else(|| tokenizer.json(), Ok)?);
    for name in BESIDE {
        if let Some(text) = text_of(from, name)? {
            files.insert(name.into(), text);
        }
    }
    let known = tokenizer.vocab();
    let few = vocab.filter(|n| *n < known);
    Ok((files, few.map(|n| format!("the tokenizer has {known} tokens, and the model {n}"))))
}

/// Whether a list of word pieces is case-sensitive.
fn cased(folder: &Path) -> bool {
    let config = text_of(folder, BESIDE[0]).ok().flatten();
    let value: Option<Value> = config.and_then(|c| serde_json::from_str(&c).ok());
    value.and_then(|v| v.get("do_lower_case")?.as_bool()) == Some(false)
}

/// The text of a file of a checkpoint, if it is there.
fn text_of(folder: &Path, name: &str) -> Checked<Option<String>> {
    let path = folder.join(name);
    text(open_regular(&path), &path)
}

/// The text of a file, if it is there.
fn text(opened: io::Result<File>, path: &Path) -> Checked<Option<String>> {
    let failed = |why: &dyn std::fmt::Display| {
        let message = format!("`{}` cannot be read: {why}", path.display());
        Box::new(Diagnostic::error(codes::E0529, message))
    };
    let mut file = match opened {
        Ok(file) => file.take(MOST_BYTES + 1),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
    };
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(n) if n as u64 > MOST_BYTES => Err(failed(&format!("it has more than {MOST_BYTES} bytes"))),
        Ok(_) => Ok(Some(text)),
        Err(e) => Err(failed(&e)),
    }
}

/// The files of a tokenizer in their written form: the run's own, or generated ones.
pub(super) struct TokenizerFiles {
    /// By name.
    pub(super) files: SortedMap<String, String>,
    /// Ids of special tokens, by the keys that a configuration has for them.
    pub(super) ids: SortedMap<String, u32>,
}

impl TokenizerFiles {
    /// Those of a run: the one that is given, the one that was imported with it, or else that of its data.
    pub(super) fn of(
        map: &HfMap,
        run: &Path,
        given: Option<&Path>,
        data: Option<TextTokenizer>,
    ) -> Checked<Option<TokenizerFiles>> {
        let own = if given.is_none() { tokenizer_in(run)? } else { None };
        let (tokenizer, text_as_given) = match (given.or(own.as_deref()), data) {
            (Some(path), _) => TextTokenizer::open_with_text(path, false)?,
            (None, Some(tokenizer)) => (tokenizer, None),
            (None, None) => return Ok(None),
        };
        let mut files = SortedMap::new();
        files.insert(TOKENIZER.into(), text_as_given.map_or_else(|| tokenizer.json(), Ok)?);
        let mut ids = SortedMap::new();
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": map.inputs,
            "clean_up_tokenization_spaces": false,
        });
        for (key, names) in &map.tokens {
            let known = names.iter().find_map(|n| Some((n, tokenizer.id(n)?)));
            let Some((name, id)) = known else { continue };
            if key.ends_with("_id") {
                ids.insert(key.clone(), id);
            }
            let token = key.strip_suffix("_id").unwrap_or(key);
            if token != "decoder_start_token" {
                settings[token] = name.as_str().into();
            }
        }
        let settings = serde_json::to_string_pretty(&settings).unwrap_or_default() + "\n";
        files.insert(BESIDE[0].into(), settings);
        for name in BESIDE.iter().filter(|_| own.is_some()) {
            let opened = Folder::at(run).file(name, OFlags::RDONLY);
            if let Some(text) = text(opened, &run.join(name))? {
                files.insert(name.to_string(), text);
            }
        }
        Ok(Some(TokenizerFiles { files, ids }))
    }
}
