//! Examples of text: made ready for the inputs of a model, and read as fields.

use super::rng::ExampleRng;
use super::spans::SpanLengths;
use super::stream::TokenStream;
use super::task::{Field, Side, TaskKind, TaskOptions, TokenSource};
use super::windows::{TokenExample, TokenExamples, refused};
use super::{classify, masked_tokens};
use crate::EpochSeed;
use crate::InputBinding;
use crate::corpus::TextTokenizer;
use crate::dataset::convert::BadValue;
use crate::dataset::input_info::InputInfo;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::{DType, InputDecl};

impl TokenExamples {
    /// Those that `source` makes for the inputs that are given fields.
    ///
    /// # Errors
    /// E0504 where sizes do not fit, E0505 dtypes, E0508 where the vocabulary lacks what the task needs, and those of the stream.
    pub(in super::super) fn new(
        source: &TokenSource,
        fields: &[(&InputDecl, Field)],
        binding: &InputBinding,
    ) -> Checked<TokenExamples> {
        let task = source.task;
        let lengths = lengths(fields, task, binding)?;
        let labeled = fields.iter().any(|(_, field)| *field == Field::Label);
        let stream = TokenStream::open(source, labeled, binding)?;
        for (decl, field) in fields {
            fits_vocabulary(decl, *field, &stream, binding)?;
        }
        let takes = match task.kind {
            TaskKind::Next => lengths.0,
            TaskKind::Classify => classify::takes(&stream, lengths.0)?,
            TaskKind::Masked => masked_tokens::takes(&stream, task, lengths.0)?,
            TaskKind::Spans => SpanLengths::fitting(task, lengths, &stream)?.takes,
        };
        let tokenizer =
            |wanted: bool| wanted.then(|| TextTokenizer::open(&stream.tokenizer, false)).transpose();
        let of_bytes = fields.iter().find(|f| f.1 == Field::Bytes);
        let byte_lengths = match (tokenizer(of_bytes.is_some())?, of_bytes) {
            (Some(tokenizer), Some((decl, _))) => tokenizer.byte_lengths().ok_or_else(|| {
                let message = format!(
                    "`{}` counts bytes, but tokens of {} do not say how many they are",
                    decl.name, stream.name
                );
                refused(message, "take a tokenizer of bytes: `meshwright data tokenize --train bpe`")
            })?,
            _ => Vec::new(),
        };
        let continues_word =
            tokenizer(task.whole_words)?.map(|tokenizer| tokenizer.continues_word()).unwrap_or_default();
        let mut out = TokenExamples {
            stream,
            task,
            lengths,
            sequence: fields
                .iter()
                .find_map(|(d, _)| Some(binding.dims.name(*d.dims.get(1)?).into()))
                .unwrap_or_default(),
            takes,
            before: None,
            count: 0,
            continues_word,
            byte_lengths,
        };
        out.count()?;
        Ok(out)
    }

    /// A field of an example of some epoch, as elements of an input.
    pub(in super::super) fn read(
        &self,
        (record, seed): (usize, EpochSeed),
        field: Field,
        described: &InputInfo,
    ) -> Checked<Vec<u8>> {
        let e = self.example(record, seed)?;
        let (follows, label) = ([i32::from(e.follows)], [e.label]);
        let values: &[i32] = match field {
            Field::Token => &e.token,
            Field::Target => &e.target,
            Field::Predicted => &e.predicted,
            Field::Real => &e.real,
            Field::Document => &e.document,
            Field::Position => &e.position,
            Field::Segment => &e.segment,
            Field::Decoder => &e.decoder,
            Field::DecoderReal => &e.decoder_real,
            Field::Bytes => &e.bytes,
            Field::Follows => &follows,
            Field::Label => &label,
        };
        let below = described.range.as_ref().map(|r| r.1).filter(|_| described.dtype.is_int());
        if let Some(odd) = values.iter().find(|v| below.is_some_and(|n| **v as usize >= n)) {
            let bad = BadValue::Outside(i128::from(*odd));
            let mut d = described.bad_member(bad, record, &format!("of {}", self.stream.name));
            if let (Field::Position, Some(most)) = (field, below) {
                // A longer dim is another model, to which no checkpoint fits.
                let dim = &self.sequence;
                d.helps = vec![format!(
                    "positions count up to the length of a sequence: take shorter ones, `--dim {dim}={most}`"
                )];
            }
            return Err(d);
        }
        Ok(match described.dtype {
            DType::Bool => values.iter().map(|v| u8::from(*v != 0)).collect(),
            DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
            DType::F64 => values.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }

    /// An example of some epoch.
    pub(super) fn example(&self, record: usize, seed: EpochSeed) -> Checked<TokenExample> {
        match self.task.kind {
            TaskKind::Next => self.next(record),
            TaskKind::Classify => self.classify(record),
            TaskKind::Masked => self.masked(record, ExampleRng::new("masked tokens", seed, record)),
            TaskKind::Spans => self.spans(record, ExampleRng::new("hidden spans", seed, record)),
        }
    }
}

/// The lengths of the dims that the fields of an example have.
fn lengths(
    fields: &[(&InputDecl, Field)],
    task: TaskOptions,
    binding: &InputBinding,
) -> Checked<(usize, usize)> {
    let dims = binding.dims;
    let kind = task.kind;
    let mut found: [Option<(&InputDecl, usize)>; 2] = [None; 2];
    for (decl, field) in fields {
        let name = &decl.name;
        if !field.is_of(kind) {
            let all: Vec<&str> = Field::ALL.iter().filter(|f| f.is_of(kind)).map(|f| f.name()).collect();
            let message = format!(
                "examples for `{}` have no field `{}`, which `{name}` asks for",
                kind.name(),
                field.name()
            );
            return Err(refused(message, format!("they have {}", listed(&all))));
        }
        if *field == Field::Follows && !task.pairs {
            let message =
                format!("`{name}` says whether a second text follows, but examples are of one text");
            return Err(refused(message, "add `pairs = true` to `tokens`"));
        }
        if !field.fits(decl.dtype) {
            let message = format!(
                "input `{name}` is declared as `{}`, but gets the field `{}` of text",
                decl.dtype,
                field.name()
            );
            let help =
                format!("declare it as `i32`{}", if field.fits(DType::Bool) { " or `bool`" } else { "" });
            return Err(Box::new(Diagnostic::error(codes::E0505, message).help(help)));
        }
        let side = field.side(kind);
        let wanted = if side == Side::Example { 1 } else { 2 };
        if decl.dims.len() != wanted {
            let shown: Vec<&str> = decl.dims.iter().map(|d| dims.name(*d)).collect();
            let message = format!(
                "`{name}` is declared as [{}], but gets the field `{}` of text",
                shown.join(", "),
                field.name()
            );
            let help = match wanted {
                1 => format!("declare one value for each example: `{name}[batch]`"),
                _ => format!("declare the sequence after the dim of examples: `{name}[batch, seq]`"),
            };
            return Err(Box::new(Diagnostic::error(codes::E0504, message).help(help)));
        }
        let Some(dim) = decl.dims.get(1) else { continue };
        let size = dims.size(*dim);
        let slot = &mut found[usize::from(side == Side::Decoder)];
        match slot {
            Some((first, n)) if *n != size => {
                let message = format!(
                    "`{}` has a sequence of {n}, `{name}` one of {size}, but both are of one example",
                    first.name
                );
                return Err(Box::new(
                    Diagnostic::error(codes::E0504, message).help("declare both with one dim"),
                ));
            }
            Some(_) => {}
            None => *slot = Some((decl, size)),
        }
    }
    // What no input has may be as long as it is.
    let [input, decoder] = found.map(|f| f.map(|f| f.1));
    let input = input.or(decoder).unwrap_or(1);
    Ok((input, decoder.unwrap_or(input)))
}

fn fits_vocabulary(
    decl: &InputDecl,
    field: Field,
    stream: &TokenStream,
    binding: &InputBinding,
) -> Checked<()> {
    let Some(range) = decl.range.filter(|_| field.is_tokens()) else { return Ok(()) };
    let (dim, size) = (binding.dims.name(range), binding.dims.size(range));
    if stream.vocab <= size {
        return Ok(());
    }
    let message = format!(
        "`{}` is a position along `{dim}` = {size}, but tokens of {} are up to {}",
        decl.name,
        stream.name,
        stream.vocab - 1
    );
    let help = format!("make the dim as large as the vocabulary: `--dim {dim}={}`", stream.vocab);
    let d = Diagnostic::error(codes::E0506, message).help(help);
    Err(Box::new(d.help(
        "or make tokens with the tokenizer that the model was trained with: `meshwright data tokenize FILE --tokenizer tokenizer.json --out DATA`",
    )))
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}
