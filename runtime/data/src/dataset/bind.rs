//! Binds files to a model's inputs: names, sizes, dtypes, and every value that is read before step 1 against the input's range.

use super::Dataset;
use super::binding::{InputBinding, Places};
use super::column::{Column, Runs, Scratch, Values};
use super::convert::Ignored;
use super::input_info::{InputInfo, RangeOf};
use super::order::{OrderRule, Weights};
use super::{damaged_records, input_files};
use crate::readers::encoded_records::Encoded;
use crate::readers::folders;
use crate::readers::shards;
use crate::readers::shards::Shards;
use crate::source::{FileRef, InputSource, OrderSource, Source, SplitSource};
use crate::tokens::{Field, TokenExamples};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_files::text::listed;
use meshwright_plan::{DType, Dim, InputDecl};
use std::sync::Arc;

/// Opens the files of one split and checks them against the model's inputs. Small files are read here, whole.
///
/// # Errors
///
/// Everything that is wrong, at once: E0502 for unreadable or malformed files, E0503 names, E0504 sizes, E0505 dtypes,
/// E0506 values.
pub fn load(source: &Source, split: &str, binding: &InputBinding) -> Result<Dataset, Vec<Diagnostic>> {
    let Some(set) = source.splits.get(split) else {
        let message = format!("`{}` has no set of examples named `{split}`", source.place);
        let has: Vec<&str> = source.splits.keys().map(String::as_str).collect();
        let d = Diagnostic::error(codes::E0503, message);
        return Err(vec![match has.is_empty() {
            true => d.help(format!("add a section `[{split}]` with a line `NAME = \"FILE\"` for each input")),
            false => d
                .help(format!("take one of those that are there (`--split`): {}", listed(&has)))
                .help(format!("or add it: `[{split}]` in `data.toml`, or `{split}.NAME=FILE` in `--data`")),
        }]);
    };
    let mut errors = check_names(source, split, set, binding);
    let opening = SetLoader::new(set, binding).map_err(|e| vec![*e])?;
    let mut columns: Vec<(Column, usize)> = Vec::new();
    for decl in binding.inputs {
        let Some(from) = set.inputs.get(&decl.name) else { continue };
        match opening.column(decl, from) {
            Ok(column) => columns.push(column),
            Err(error) => errors.push(label(*error, decl, binding.places)),
        }
    }
    if let Some(((first, records), rest)) = columns.split_first() {
        for (other, n) in rest.iter().filter(|(_, n)| n != records) {
            errors.push(other_count((first, *records), (other, *n)));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let all = columns.first().map_or(0, |c| c.1);
    let set = opening.dataset(columns.into_iter().map(|c| c.0).collect(), all).map_err(|e| vec![*e])?;
    Ok(Dataset { folder: source.folder.clone(), ..set })
}

fn other_count((first, records): (&Column, usize), (other, n): (&Column, usize)) -> Diagnostic {
    let message = format!(
        "inputs differ in the number of examples: `{}` has {records}, `{}` has {n}",
        first.described.name, other.described.name
    );
    let mut error = Diagnostic::error(codes::E0504, message);
    for column in [first, other] {
        error = error.note(format!("`{}` is read from {}", column.described.name, column.values.named()));
    }
    error
}

fn label(error: Diagnostic, decl: &InputDecl, places: &Places) -> Diagnostic {
    match places.get(&decl.name) {
        Some(span) => error.at(*span, "declared here"),
        None => error,
    }
}

fn check_names(source: &Source, split: &str, set: &SplitSource, binding: &InputBinding) -> Vec<Diagnostic> {
    let inputs = binding.inputs;
    // What is declared and not read may have a file too.
    let declared = |name: &str| inputs.iter().any(|i| i.name == name) || binding.places.contains_key(name);
    let missing: Vec<&InputDecl> = inputs.iter().filter(|i| !set.inputs.contains_key(&i.name)).collect();
    let mut unused: Vec<&str> = set.inputs.keys().map(String::as_str).filter(|n| !declared(n)).collect();
    let mut errors = Vec::new();
    for decl in &missing {
        let name = &decl.name;
        let message = format!("input `{name}` has no file in the `{split}` set of `{}`", source.place);
        let error = Diagnostic::error(codes::E0503, message);
        let only = unused.first().copied().filter(|_| (missing.len(), unused.len()) == (1, 1));
        let error = if let Some(near) = nearest(name, unused.iter().copied()).map(|n| n.name).or(only) {
            // One name that is misspelled is one error.
            unused.retain(|n| *n != near);
            error.help(format!("`{near}` is there, which is no input of the model; did you mean `{name}`?"))
        } else if set.tokens.is_some() {
            error.help(format!("add a line `{name} = {{ field = \"FIELD\" }}`"))
        } else if source.exact {
            error.help(format!("add `{name}=FILE`"))
        } else {
            let error = error.help(format!("add a line `{name} = \"FILE\"` to its section `[{split}]`"));
            match unused.is_empty() {
                true => error,
                false => error.note(format!("it has {}, which the model does not read", listed(&unused))),
            }
        };
        errors.push(label(error, decl, binding.places));
    }
    for name in unused.into_iter().filter(|_| source.exact) {
        let error = Diagnostic::error(codes::E0503, format!("the model has no input `{name}`"));
        let all = inputs.iter().map(|i| format!("`{}`", i.name)).collect::<Vec<_>>().join(", ");
        let leave = format!("leave `{name}` out, or declare it in the model: `input {name}[…]: float`");
        errors.push(error.note(format!("it has {all}")).help(leave));
    }
    errors
}

/// What stands for no label where nothing else is said: as PyTorch has it.
const USUALLY_IGNORED: i64 = -100;

/// A set whose files are being opened.
struct SetLoader<'a> {
    set: &'a SplitSource,
    binding: &'a InputBinding<'a>,
    shards: Shards,
    /// The inputs that are members of shards, in the order of `shards.members`.
    members: Vec<&'a str>,
    /// The examples that are made of text.
    examples: Option<Arc<TokenExamples>>,
}

impl<'a> SetLoader<'a> {
    fn new(set: &'a SplitSource, binding: &'a InputBinding<'a>) -> Checked<SetLoader<'a>> {
        let members = set.inputs.iter().filter_map(|(name, from)| match from {
            InputSource::Members(endings) => Some((name.as_str(), endings.as_slice())),
            _ => None,
        });
        let (members, endings): (Vec<&str>, Vec<&[String]>) = members.unzip();
        if let (Some(name), true) = (members.first(), set.shards.is_empty()) {
            let message = format!("`{name}` is a member of shards, but the set has none");
            let help = "name them: `shards = \"part-{000..127}.tar\"`";
            return Err(Box::new(Diagnostic::error(codes::E0507, message).help(help)));
        }
        let shards = match members.is_empty() {
            true => Shards::default(),
            false => shards::list(&set.shards, &endings, set.skip_damaged)?,
        };
        let examples = token_examples(set, binding)?.map(Arc::new);
        Ok(SetLoader { set, binding, shards, members, examples })
    }

    /// The column of one input, and its number of records.
    fn column(&self, decl: &InputDecl, from: &InputSource) -> Checked<(Column, usize)> {
        let dims = self.binding.dims;
        let range = decl.range.map(|d| (RangeOf::Dim(dims.name(d).to_string()), dims.size(d)));
        let ignored = self.ignored(&decl.name).map(Ignored::Zero);
        let described = InputInfo { name: decl.name.clone(), dtype: decl.dtype, range, ignored };
        match from {
            InputSource::Weights { by, weights } => self.weights_of(decl, (by, weights), described),
            from => self.values(decl, from, described),
        }
    }

    /// The column of an input that has values of its own.
    fn values(&self, decl: &InputDecl, from: &InputSource, described: InputInfo) -> Checked<(Column, usize)> {
        let binding = self.binding;
        let shape = binding.dims.shape(decl.dims.get(1..).unwrap_or_default());
        let finite = !binding.allow_nonfinite;
        match from {
            InputSource::Files(files) if folders::are_images(files) => {
                folders::images(files, described, shape, finite)
            }
            InputSource::Files(files) => input_files::records(decl, files, described, binding),
            InputSource::Stream { files, cut } => {
                let longest = self.longest_shift();
                input_files::windows(
                    decl,
                    (files, cut),
                    (longest, self.reports(&decl.name)),
                    described,
                    binding,
                )
            }
            InputSource::Members(_) => {
                let at = self.members.iter().position(|n| *n == decl.name).unwrap_or_default();
                let members = self.shards.members[at].clone();
                let records = members.len();
                let encoded = Encoded::new(self.shards.paths.clone(), members, finite);
                encoded.fits(&described, &shape)?;
                let values = Values::Encoded(encoded);
                Ok((Column { described, shape, first: 0, step: 0, values }, records))
            }
            InputSource::FolderOf { input, classes } => match self.set.inputs.get(input) {
                Some(InputSource::Files(files)) => folders::labels(files, classes, described),
                _ => {
                    let message = format!("`{}` is the folder of `{input}`, which names no files", decl.name);
                    let help = format!("add a line `{input} = \"images/*/*.png\"`");
                    Err(Box::new(Diagnostic::error(codes::E0503, message).help(help)))
                }
            },
            InputSource::Field(field) => {
                // Those of the model's inputs are known; others come here by what is chosen by their values.
                let (Some(examples), Some(field)) = (&self.examples, Field::named(field)) else {
                    let message = format!("`{}` is a field of text, but no input of the model", decl.name);
                    let help = "choose by an input of the model";
                    return Err(Box::new(Diagnostic::error(codes::E0507, message).help(help)));
                };
                let records = examples.len();
                let values = Values::Tokens { examples: examples.clone(), field };
                Ok((Column { described, shape, first: 0, step: 0, values }, records))
            }
            InputSource::MaskOf(input) => self.mask_of(decl, input, described),
            InputSource::Weights { .. } => unreachable!("weights are of other inputs"),
        }
    }

    /// The number that stands for no value of an input, where an input of the model is a mask of it.
    fn ignored(&self, name: &str) -> Option<i64> {
        let masks = |d: &&InputDecl| matches!(self.set.inputs.get(&d.name), Some(InputSource::MaskOf(of)) if of == name);
        let number = || self.set.ignored.get(name).copied().unwrap_or(USUALLY_IGNORED);
        self.binding.inputs.iter().find(masks).map(|_| number())
    }

    /// Where another input has values.
    fn mask_of(&self, decl: &InputDecl, input: &str, described: InputInfo) -> Checked<(Column, usize)> {
        let Some(InputSource::Files(files)) = self.set.inputs.get(input) else {
            let message = format!("`{}` is a mask of `{input}`, which names no files", decl.name);
            let help = format!("add a line `{input} = {{ file = \"FILE\", ignore = {USUALLY_IGNORED} }}`");
            return Err(Box::new(Diagnostic::error(codes::E0503, message).help(help)));
        };
        let ignored = self.set.ignored.get(input).copied().unwrap_or(USUALLY_IGNORED);
        // Without a name of its own, a column is that of the other input.
        let named = |f: &FileRef| match f.is(".csv") && f.parts.is_empty() {
            true => FileRef { parts: vec![input.to_string()], ..f.clone() },
            false => f.clone(),
        };
        let files: Vec<FileRef> = files.iter().map(named).collect();
        let numbers = InputDecl { dtype: DType::I32, ..decl.clone() };
        let described = InputInfo { range: None, ignored: Some(Ignored::Mask(ignored)), ..described };
        input_files::records(&numbers, &files, described, self.binding)
    }

    /// The windows of all inputs are counted by the one that is moved furthest, so that they are equally many.
    fn longest_shift(&self) -> usize {
        let shifts = self.set.inputs.values().map(|s| match s {
            InputSource::Stream { cut, .. } => cut.shift,
            _ => 0,
        });
        shifts.max().unwrap_or(0)
    }

    /// True of the one input that reports a stream with too few positions: of the model's inputs the one that is moved furthest.
    fn reports(&self, name: &str) -> bool {
        let shift = |d: &&InputDecl| match self.set.inputs.get(&d.name) {
            Some(InputSource::Stream { cut, .. }) => Some(cut.shift),
            _ => None,
        };
        let furthest = self.binding.inputs.iter().rev().filter(|d| shift(d).is_some()).max_by_key(shift);
        furthest.is_none_or(|d| d.name == name)
    }

    /// A number for each value of another input.
    fn weights_of(
        &self,
        decl: &InputDecl,
        (by, weights): (&str, &[f64]),
        described: InputInfo,
    ) -> Checked<(Column, usize)> {
        if !matches!(decl.dtype, DType::F32 | DType::F64) {
            let message =
                format!("input `{}` is declared as `{}`, but it has `weights`", decl.name, decl.dtype);
            return Err(Box::new(Diagnostic::error(codes::E0505, message).help("declare it as `float`")));
        }
        let (by, records) = self.chooser(&decl.name, by, weights.len(), &decl.dims)?;
        // What has no label has no class: it weighs nothing, as PyTorch has it, and is never drawn.
        let table = weights
            .iter()
            .chain(&[0.0])
            .flat_map(|w| match decl.dtype {
                DType::F32 => (*w as f32).to_le_bytes().to_vec(),
                _ => w.to_le_bytes().to_vec(),
            })
            .collect();
        let shape = by.shape.clone();
        let values = Values::Chosen { by: Arc::new(by), table };
        Ok((Column { described, shape, first: 0, step: 0, values }, records))
    }

    /// The column that says which of some weights the examples have: of the dims of the input that is weighted. Where there is no
    /// label, it is the position after the last weight.
    fn chooser(&self, name: &str, by: &str, weights: usize, dims: &[Dim]) -> Checked<(Column, usize)> {
        let from = self.set.inputs.get(by).filter(|s| !matches!(s, InputSource::Weights { .. }));
        let Some(from) = from else {
            let message = format!("the weights of `{name}` are chosen by `{by}`, which has no file");
            let d = Diagnostic::error(codes::E0503, message);
            let near = nearest(by, self.set.inputs.keys().map(String::as_str).filter(|n| *n != name));
            return Err(Box::new(match near {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d.help(format!("add a line `{by} = \"FILE\"`")),
            }));
        };
        let dtype = DType::I32;
        let decl = InputDecl { name: by.to_string(), dims: dims.to_vec(), dtype, range: None };
        let range = Some((RangeOf::Weights(name.to_string()), weights));
        let past = |none| Ignored::Past(none, i32::try_from(weights).unwrap_or(i32::MAX));
        let ignored = self.ignored(by).map(past);
        self.values(&decl, from, InputInfo { name: by.to_string(), dtype, range, ignored })
    }

    /// The set of these columns of `all` records.
    fn dataset(&self, columns: Vec<Column>, all: usize) -> Checked<Dataset> {
        let (set, mut damaged) = (self.set, self.shards.skipped.clone());
        let mut kept = None;
        if set.skip_damaged && columns.iter().any(Column::is_encoded) {
            let (good, bad) = damaged_records::undamaged(&columns, all)?;
            kept = (!bad.is_empty()).then_some(good);
            damaged.extend(bad);
        }
        let good = kept.as_ref().map_or(all, Vec::len);
        let records = set.limit.unwrap_or(good).min(good);
        let rule = self.rule(&columns, all, (kept.as_deref(), records))?;
        Dataset::new(records, columns, (kept, damaged), rule)
    }

    /// In which order a set of `all` records, of which the first `records` that are `kept` are used, is seen in training.
    fn rule(
        &self,
        columns: &[Column],
        all: usize,
        (kept, records): (Option<&[u32]>, usize),
    ) -> Checked<OrderRule> {
        Ok(match &self.set.order {
            OrderSource::Shuffled => OrderRule::Shuffled,
            OrderSource::Unshuffled => OrderRule::Unshuffled,
            OrderSource::Buffered(size) => {
                let mut files = columns.first().map_or(vec![0], Column::first_records);
                if let Some(kept) = kept {
                    files.iter_mut().for_each(|f| *f = kept.partition_point(|r| (*r as usize) < *f));
                }
                OrderRule::Buffered { size: *size, files: files.into() }
            }
            OrderSource::Weighted(from) => {
                let (column, n) = self.sampling(from)?;
                if n != all {
                    let message = format!("`sampling` has {n} weights for {all} examples");
                    return Err(Box::new(
                        Diagnostic::error(codes::E0504, message)
                            .note(format!("they are read from {}", column.values.named()))
                            .help("give one weight for each example"),
                    ));
                }
                let record = |i: usize| kept.map_or(i, |k| k[i] as usize);
                OrderRule::Weighted(Arc::new(chances(&column, (0..records).map(record))?))
            }
        })
    }

    /// The weights of the examples: as an input that the model does not have.
    fn sampling(&self, from: &InputSource) -> Checked<(Column, usize)> {
        let batch = self.binding.inputs.first().and_then(|i| i.dims.first()).copied();
        let (name, dtype) = ("sampling".to_string(), DType::F64);
        let decl = InputDecl { name: name.clone(), dims: batch.into_iter().collect(), dtype, range: None };
        // A chance must be a number, whatever else may pass.
        let strict = InputBinding { allow_nonfinite: false, ..*self.binding };
        match from {
            InputSource::Files(files) => input_files::records(
                &decl,
                files,
                InputInfo { name, dtype, range: None, ignored: None },
                &strict,
            ),
            from => self.column(&decl, from),
        }
    }
}

/// The examples that are made of the set's text, where inputs are fields of them.
fn token_examples(set: &SplitSource, binding: &InputBinding) -> Checked<Option<TokenExamples>> {
    let mut fields = Vec::new();
    for decl in binding.inputs {
        let Some(InputSource::Field(name)) = set.inputs.get(&decl.name) else { continue };
        let Some(field) = Field::named(name) else {
            let names = Field::ALL.map(Field::name);
            let message = format!("`{}` is a field `{name}` of text, which there is not", decl.name);
            let help = match nearest(name, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("fields are {}", names.map(|n| format!("`{n}`")).join(", ")),
            };
            return Err(Box::new(label(
                Diagnostic::error(codes::E0507, message).help(help),
                decl,
                binding.places,
            )));
        };
        fields.push((decl, field));
    }
    let Some((first, _)) = fields.first() else { return Ok(None) };
    let Some(source) = &set.tokens else {
        let message = format!("`{}` is a field of text, but the set has none", first.name);
        let help = "name it: `tokens = { index = \"index.json\", task = \"next\" }`";
        return Err(Box::new(Diagnostic::error(codes::E0507, message).help(help)));
    };
    TokenExamples::new(source, &fields, binding).map(Some)
}

fn chances(column: &Column, records: impl Iterator<Item = usize>) -> Checked<Weights> {
    let mut all = Vec::new();
    let (runs, mut scratch) = (Runs::whole(8), Scratch::default());
    for record in records {
        let mut out = [0; 8];
        column.read(record, &runs, &mut out, &mut scratch)?;
        let weight = f64::from_le_bytes(out);
        if weight < 0.0 {
            let message = format!("record {record} has the weight {weight} for `sampling`");
            return Err(Box::new(
                Diagnostic::error(codes::E0506, message).help("give weights from 0 on; 0 is never drawn"),
            ));
        }
        all.push(weight);
    }
    Weights::new(all.into_iter()).ok_or_else(|| {
        let message = "no example can be drawn: the weights for `sampling` have no finite sum above 0";
        Box::new(Diagnostic::error(codes::E0506, message).help("give some example a weight above 0"))
    })
}
