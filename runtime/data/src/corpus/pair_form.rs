//! Special tokens around and between two texts of one example, as the tokenizer defines them.

use super::refused;
use super::tokenizer::TextTokenizer;
use crate::catch::catch;
use meshwright_files::Checked;
use tokenizers::{Encoding, Token};

/// A token, and the segment that it is of.
type Placed = (i32, i32);

/// The form of a pair of texts: `[CLS]` a `[SEP]` b `[SEP]` of BERT's, `<s>` a `</s></s>` b `</s>` of RoBERTa's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairForm {
    pub(crate) before: Vec<Placed>,
    pub(crate) between: Vec<Placed>,
    pub(crate) after: Vec<Placed>,
    /// The segments of both texts.
    pub(crate) segments: [i32; 2],
}

impl PairForm {
    /// Number of special tokens besides the texts.
    pub(crate) fn added(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }
}

impl TextTokenizer {
    /// The form that the post-processor of the tokenizer gives to pairs. Where that separates nothing, the token that ends a text
    /// does.
    ///
    /// # Errors
    /// E0508 for a vocabulary that has no such token.
    pub(crate) fn pair_form(&self) -> Checked<PairForm> {
        let text = |segment| Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], segment);
        let joined =
            catch(|| self.inner().post_process(text(0), Some(text(1)), true).map_err(|e| e.to_string()));
        let joined = joined.unwrap_or_else(Err).map_err(|why| {
            refused(
                format!("the tokenizer cannot join two texts: {why}"),
                "mend the `post_processor` of the tokenizer",
            )
        })?;
        let ids = joined.get_ids().iter().zip(joined.get_type_ids());
        let placed: Vec<Placed> = ids.map(|(id, kind)| (*id as i32, *kind as i32)).collect();
        let special = joined.get_special_tokens_mask();
        let texts: Vec<usize> = (0..placed.len()).filter(|at| special[*at] == 0).collect();
        if let [first, second] = texts[..]
            && second > first + 1
        {
            return Ok(PairForm {
                before: placed[..first].to_vec(),
                between: placed[first + 1..second].to_vec(),
                after: placed[second + 1..].to_vec(),
                segments: [placed[first].1, placed[second].1],
            });
        }
        let special = self.special();
        let Some(end) = special.sep.or(special.end) else {
            return Err(refused(
                "the tokenizer has no token that stands between two texts",
                "take one with `[SEP]`, `</s>` or `<|endoftext|>`: `meshwright data tokenize --train wordpiece`",
            ));
        };
        let before = special.cls.map(|cls| (cls as i32, 0)).into_iter().collect();
        let ending = |segment| vec![(end as i32, segment)];
        Ok(PairForm { before, between: ending(0), after: ending(1), segments: [0, 1] })
    }
}
