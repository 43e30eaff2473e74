//! Paths as URIs, and back.

use lsp_types::Uri;
use std::path::{Path, PathBuf};

/// The path that a URI names. One that is of no file, as of a text that was never saved, stands for itself.
pub(crate) fn path_of(uri: &Uri) -> PathBuf {
    let text = uri.as_str();
    let Some(rest) = text.strip_prefix("file://") else { return PathBuf::from(text) };
    // The host of a file's URI is this one.
    let path = rest.find('/').map_or(rest, |i| &rest[i..]);
    PathBuf::from(decoded(path))
}

/// The URI of a path; `None` where it has none.
pub(crate) fn uri_of(path: &Path) -> Option<Uri> {
    let text = path.to_str()?;
    if !path.is_absolute() {
        return text.parse().ok();
    }
    let mut out = String::from("file://");
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out.parse().ok()
}

fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        let rest = bytes.clone().take(2).collect::<Vec<u8>>();
        let code = (byte == b'%' && rest.len() == 2).then_some(rest);
        let code = code.and_then(|c| String::from_utf8(c).ok()).and_then(|c| u8::from_str_radix(&c, 16).ok());
        match code {
            Some(code) => {
                out.push(code);
                bytes.nth(1);
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_from_its_uri() {
        for path in ["/a/b.mw", "/with blank/ü→%25.layout", "/a+b/#c?d[0].mw"] {
            let uri = uri_of(Path::new(path)).map(|u| path_of(&u));
            assert_eq!(uri.as_deref(), Some(Path::new(path)));
        }
        let written = "file:///a%2fb%3A.mw".parse().map(|u| path_of(&u));
        assert_eq!(written.ok(), Some(PathBuf::from("/a/b:.mw")));
        let unsaved = "untitled:Untitled-1".parse().map(|u| path_of(&u));
        assert_eq!(unsaved.ok(), Some(PathBuf::from("untitled:Untitled-1")));
        assert_eq!(
            uri_of(Path::new("untitled:Untitled-1")).map(|u| u.to_string()),
            Some("untitled:Untitled-1".into())
        );
    }
}
