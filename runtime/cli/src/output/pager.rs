//! A long report on a terminal, shown page by page.

use crate::signals;
use std::io::Write;
use std::process::{Command, Stdio};

/// What shows a text page by page where `$PAGER` is not set: it ends at once where the text fits, and shows color.
const DEFAULT: &str = "less -FRX";

/// The command of the user's pager; none where pages are not wanted.
pub(crate) fn command(given: Option<String>) -> Option<String> {
    let command = given.unwrap_or_else(|| DEFAULT.into());
    (!matches!(command.trim(), "" | "cat")).then_some(command)
}

/// Has a pager show a text; false where it cannot be started, and nothing is shown.
pub(crate) fn page(command: &str, text: &str) -> bool {
    let mut shell = Command::new("sh");
    let Ok(mut pager) = shell.args(["-c", command]).stdin(Stdio::piped()).spawn() else { return false };
    // Ctrl-C is meant for the pager.
    let _paging = signals::paging();
    if let Some(mut to) = pager.stdin.take() {
        // Whoever leaves it early has seen enough.
        let _left = to.write_all(text.as_bytes());
    }
    // With these the shell says that it could not start the command.
    pager.wait().is_ok_and(|status| !matches!(status.code(), Some(126 | 127)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_can_be_chosen_and_declined() {
        assert_eq!(command(None).as_deref(), Some("less -FRX"));
        assert_eq!(command(Some("more".into())).as_deref(), Some("more"));
        assert_eq!((command(Some("cat".into())), command(Some(String::new()))), (None, None));
        assert!(!page("no_such_pager_here", "text"));
        assert!(page("exec >/dev/null; cat; exit 1", "text"));
    }
}
