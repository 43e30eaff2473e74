//! Texts as inputs of a model: which of its inputs is what, as the description of its data says.

use super::options::GenerateOptions;
use super::sequence::Sequence;
use crate::project::Project;
use meshwright_core::Decoding;
use meshwright_data::corpus::TextTokenizer;
use meshwright_data::{InputSource, SplitSource};
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::{HostData, HostTensor};
use meshwright_files::Checked;
use meshwright_ops::{Graph, Id, InputOpKind, Kind};
use meshwright_plan::{DType, Dim, Dims, InputDecl};
use meshwright_sorted::SortedMap;

/// The fields of text that are known while it is generated.
const KNOWN: [&str; 4] = ["token", "position", "document", "real"];

/// The prompts as tokens.
pub(super) struct Prompts {
    pub(super) tokens: Vec<Vec<u32>>,
}

impl Prompts {
    pub(super) fn of(
        project: &Project,
        inputs: &TextInputs,
        tokenizer: &TextTokenizer,
        options: &GenerateOptions,
    ) -> Checked<Prompts> {
        let dims = &project.program.graph.dims;
        let context = inputs.context(project);
        let mut tokens = Vec::new();
        for prompt in &options.prompts {
            let refused = |message: String, help: String| {
                Err(Box::new(Diagnostic::error(codes::E0516, message).help(help)))
            };
            let shown: String = prompt.chars().take(40).collect();
            let encoded = tokenizer.encode(prompt).map_err(|why| {
                Box::new(Diagnostic::error(
                    codes::E0508,
                    format!("the prompt `{shown}` has no tokens: {why}"),
                ))
            })?;
            if encoded.is_empty() {
                return refused(
                    format!("the prompt `{shown}` is empty: it has no token"),
                    "give a text to continue: `--prompt \"In the beginning\"`".into(),
                );
            }
            if encoded.len() > context {
                let message = format!(
                    "the prompt `{shown}` has {} tokens, and the model {context} positions",
                    encoded.len()
                );
                return refused(message, inputs.longer(project, encoded.len()));
            }
            let range = inputs.token.range.map(|r| (dims.name(r), dims.size(r)));
            if let Some((dim, size)) = range
                && let Some(odd) = encoded.iter().find(|t| **t as usize >= size)
            {
                let message = format!("token {odd} of the prompt `{shown}` is not below `{dim}` = {size}");
                return refused(
                    message,
                    "name the tokenizer that the model was trained with: `--tokenizer FILE`".into(),
                );
            }
            tokens.push(encoded);
        }
        Ok(Prompts { tokens })
    }

    /// The number of tokens of the longest.
    pub(super) fn longest(&self) -> usize {
        self.tokens.iter().map(Vec::len).max().unwrap_or(1)
    }
}

/// Which inputs of a model are made of text, and how.
pub(super) struct TextInputs {
    /// The set of examples that says so, where there is data.
    set: Option<SplitSource>,
    /// The input that is the tokens.
    token: InputDecl,
    /// The dim of their positions.
    pub(super) seq: Dim,
    /// All inputs, each with its field.
    all: Vec<(InputDecl, String)>,
    /// Sizes of what inputs are positions in.
    below: SortedMap<String, usize>,
}

impl TextInputs {
    pub(super) fn of(project: &Project, options: &GenerateOptions) -> Checked<TextInputs> {
        let program = &project.program;
        let declared: Vec<InputDecl> = program.inputs.iter().map(|i| i.0.clone()).collect();
        let e = &options.eval;
        let set = match meshwright_data::find(e.data.as_deref(), &e.roots, &declared) {
            Ok(source) => {
                let named = source.splits.get(&e.split).filter(|s| s.tokens.is_some());
                named.or_else(|| source.splits.values().find(|s| s.tokens.is_some())).cloned()
            }
            // Without data, names say what inputs are.
            Err(_) if options.tokenizer.is_some() => None,
            Err(why) => {
                return Err(Box::new(why.help("or name the tokenizer: `--tokenizer tokenizer.json`")));
            }
        };
        let field = |decl: &InputDecl| match set.as_ref().and_then(|s| s.inputs.get(&decl.name)) {
            Some(InputSource::Field(field)) => field.clone(),
            _ => decl.name.clone(),
        };
        let all: Vec<(InputDecl, String)> = declared.iter().map(|d| (d.clone(), field(d))).collect();
        let token = all.iter().find(|(decl, field)| field == "token" && decl.dtype == DType::I32);
        let Some((token, seq)) = token.and_then(|t| Some((t.0.clone(), *t.0.dims.get(1)?))) else {
            let message = format!("`{}` has no input of tokens", program.model);
            return Err(Box::new(Diagnostic::error(codes::E0516, message).help(
                "declare one, `input token[batch, seq]: i32 in vocab`, and say so in `data.toml`: `token = { field = \"token\" }`",
            )));
        };
        let dims = &program.graph.dims;
        let below = declared.iter().filter_map(|d| Some((d.name.clone(), dims.size(d.range?)))).collect();
        Ok(TextInputs { set, token, seq, all, below })
    }

    /// What an input of positions counts them in, with the name of the input: the smallest.
    fn table(&self, dims: &Dims) -> Option<(&str, Dim)> {
        let of_positions = self.all.iter().filter(|(_, field)| field == "position");
        let tables = of_positions.filter_map(|(decl, _)| Some((decl.name.as_str(), decl.range?)));
        tables.min_by_key(|(_, table)| dims.size(*table))
    }

    /// Positions that the model has: those along its sequences, as far as its inputs can count them.
    pub(super) fn context(&self, project: &Project) -> usize {
        let dims = &project.program.graph.dims;
        let counted = self.table(dims).map_or(usize::MAX, |(_, table)| dims.size(table));
        dims.size(self.seq).min(counted)
    }

    /// How to continue a prompt of as many tokens, more than there are positions: by sizes that must grow, unless parameters
    /// were trained with them.
    fn longer(&self, project: &Project, tokens: usize) -> String {
        let g = &project.program.graph;
        let short = |d: Dim| g.dims.size(d) < tokens;
        let table = self.table(&g.dims).filter(|(_, table)| short(*table));
        let wanted: Vec<Dim> =
            [self.seq].into_iter().chain(table.map(|t| t.1)).filter(|d| short(*d)).collect();
        let trained = |d: &Dim| g.ids().any(|id| is_param(g, id) && g.ty(id).has(*d));
        let Some(fixed) = wanted.iter().copied().find(trained) else {
            let sizes = wanted.iter().map(|d| format!("--dim {}={tokens}", g.dims.name(*d)));
            let sizes: Vec<String> = sizes.collect();
            return format!("shorten it, or take a model of longer sequences: `{}`", sizes.join(" "));
        };
        let counts = match table {
            Some((input, table)) if table == fixed => format!(", in which `{input}` counts positions"),
            _ => String::new(),
        };
        let (name, size) = (g.dims.name(fixed), g.dims.size(fixed));
        format!(
            "shorten it: parameters were trained with `{name}` = {size}{counts}, so a longer text needs a model that was trained with more"
        )
    }

    /// The tokenizer that is named, or that of the data.
    pub(super) fn tokenizer(&self, options: &GenerateOptions) -> Checked<TextTokenizer> {
        if let Some(path) = &options.tokenizer {
            return TextTokenizer::open(path, false);
        }
        match self.set.as_ref().and_then(|s| s.tokens.as_ref()).map(|t| &t.files) {
            Some(files) => files.tokenizer(),
            None => Err(Box::new(
                Diagnostic::error(
                    codes::E0516,
                    "the data is no text: nothing says which tokenizer the model was trained with",
                )
                .help("name it: `--tokenizer tokenizer.json`"),
            )),
        }
    }

    /// That all inputs that a program reads can be known.
    pub(super) fn all_known(&self, decoding: &Decoding) -> Checked<()> {
        let read = decoding.step.inputs_read();
        let own = [decoding.start.as_str(), decoding.last.as_str()];
        for name in read.into_iter().filter(|n| !own.contains(n)) {
            let field = self.all.iter().find(|(d, _)| d.name == name).map_or(name, |f| f.1.as_str());
            if KNOWN.contains(&field) {
                continue;
            }
            let message = format!(
                "the next token depends on the input `{name}`, which nothing tells while text is generated"
            );
            let names = KNOWN.map(|k| format!("`{k}`")).join(", ");
            return Err(Box::new(Diagnostic::error(codes::E0516, message).help(format!(
                "known are the fields {names}: say in `data.toml` which one it is, `{name} = {{ field = \"FIELD\" }}`"
            ))));
        }
        Ok(())
    }

    /// What the inputs are for `count` positions of each text.
    pub(super) fn given(
        &self,
        sequences: &[Sequence],
        count: usize,
        context: usize,
    ) -> Checked<SortedMap<String, HostTensor>> {
        let mut out = SortedMap::new();
        for (decl, field) in &self.all {
            let most = self.below.get(&decl.name).map_or(f64::MAX, |n| *n as f64 - 1.0);
            let mut values = Vec::with_capacity(sequences.len() * count);
            for s in sequences {
                let pending = s.pending();
                for i in 0..count {
                    let value = match field.as_str() {
                        "token" => pending.get(i).map_or(0.0, |t| f64::from(*t)),
                        "position" => (s.start(context) + i) as f64,
                        "real" => f64::from(u8::from(i < pending.len())),
                        _ => 0.0,
                    };
                    // What fills a text up has no place of its own.
                    values.push(value.min(most));
                }
            }
            let shape = vec![sequences.len(), count];
            let tensor = HostTensor::new(shape, HostData::from_f64(decl.dtype, values));
            out.extend(tensor.map(|t| (decl.name.clone(), t)));
        }
        Ok(out)
    }
}

fn is_param(g: &Graph, id: Id) -> bool {
    matches!(g.node(id).op.kind(), Kind::Input(InputOpKind::Param { .. }))
}

/// Integers as an input.
pub(super) fn integers(values: Vec<usize>) -> HostTensor {
    let data: Vec<i32> = values.iter().map(|v| *v as i32).collect();
    HostTensor { shape: vec![data.len()], data: HostData::I32(data) }
}
