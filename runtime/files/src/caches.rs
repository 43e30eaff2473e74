//! The user's folder of caches.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Keeps what can be made again in a folder from here on, but for a folder that was named before. Without one nothing is kept.
pub fn keep_in(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// The folder in which it is kept.
pub fn cache_folder() -> Option<&'static Path> {
    FOLDER.get().map(PathBuf::as_path)
}

/// Where the user wants what can be made again to be kept, by `variable`, which reads the environment: where `MESHWRIGHT_CACHE`
/// says (nowhere if that is empty), else `meshwright` in the user's folder of caches.
pub fn caches_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable("MESHWRIGHT_CACHE") {
        return Some(PathBuf::from(folder)).filter(|f| !f.as_os_str().is_empty());
    }
    // The XDG specification has relative paths ignored.
    let folder = |name| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    caches.map(|c| c.join("meshwright"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_first_then_the_users_folder() {
        let of = |all: &[(&str, &str)]| {
            let variable = |name: &str| all.iter().find(|v| v.0 == name).map(|v| v.1.into());
            caches_of(variable).map(|p| p.to_string_lossy().into_owned())
        };
        let (own, user, home) = (("MESHWRIGHT_CACHE", "kept"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h"));
        assert_eq!(of(&[own, user, home]).as_deref(), Some("kept"));
        assert_eq!(of(&[("MESHWRIGHT_CACHE", ""), user, home]), None);
        assert_eq!(of(&[user, home]).as_deref(), Some("/c/meshwright"));
        assert_eq!(of(&[("XDG_CACHE_HOME", "relative"), home]).as_deref(), Some("/h/.cache/meshwright"));
        assert_eq!(of(&[]), None);
    }
}
