//! The one format of messages between devices and processes: a version, then a serde value in postcard's encoding, then (where
//! a message carries the elements of a buffer) raw bytes.
//!
//! Bytes of another build, or damaged ones, are an error, never a panic.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Goes up with every change of a type that is sent.
const VERSION: u8 = 1;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There is not a single byte.
    #[error("the message is empty")]
    Empty,
    /// Another version of the format.
    #[error(
        "the message has format {theirs}, this build reads format {VERSION}: do all ranks run the same build?"
    )]
    Version {
        /// The version of the message.
        theirs: u8,
    },
    /// The encoding does not fit the type.
    #[error("the message is damaged: {0}")]
    Encoding(String),
    /// There are more bytes than the message has, or fewer than it announces.
    #[error("the message has {found} bytes after its end, not {expected}")]
    Payload {
        /// Bytes that are there.
        found: usize,
        /// Bytes that should be there.
        expected: usize,
    },
}

/// A message as bytes; a payload may be appended.
pub fn encode<T: Serialize + ?Sized>(message: &T) -> Vec<u8> {
    match postcard::to_extend(message, vec![VERSION]) {
        Ok(bytes) => bytes,
        Err(e) => unreachable!("messages are plain data of known lengths: {e}"),
    }
}

/// The message that bytes are.
///
/// # Errors
/// [`Malformed`], also where bytes are left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    match decode_head(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(Malformed::Payload { found: rest.len(), expected: 0 }),
    }
}

/// The message that bytes begin with, and its payload.
///
/// # Errors
/// [`Malformed`].
pub fn decode_head<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    match bytes {
        [] => Err(Malformed::Empty),
        [VERSION, rest @ ..] => {
            postcard::take_from_bytes(rest).map_err(|e| Malformed::Encoding(e.to_string()))
        }
        [theirs, ..] => Err(Malformed::Version { theirs: *theirs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_an_error() {
        let bytes = encode(&(7usize, vec!["a".to_string(), "bc".into()], Some(1.5f64)));
        type Read = (usize, Vec<String>, Option<f64>);
        assert!(decode::<Read>(&bytes).is_ok());
        assert_eq!(decode::<Read>(&[]), Err(Malformed::Empty));
        assert_eq!(decode::<Read>(&[VERSION + 1, 7]), Err(Malformed::Version { theirs: VERSION + 1 }));
        for end in 1..bytes.len() {
            assert!(matches!(decode::<Read>(&bytes[..end]), Err(Malformed::Encoding(_))), "{end}");
        }
        // A length of which nothing is there takes no memory.
        assert!(decode::<Vec<u64>>(&[VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        let (head, rest) = decode_head::<u8>(&[VERSION, 3, 9, 9]).unwrap_or_default();
        assert_eq!((head, rest), (3, &[9, 9][..]));
    }
}
