//! How long processes wait for each other's answers.

use std::time::Duration;

/// How long other ranks may take to say where they are: after a timeout, and when this process was asked to terminate (those
/// who ask it kill it soon after).
pub(super) const ANSWER: Duration = Duration::from_secs(1);
pub(super) const LAST_ANSWER: Duration = Duration::from_millis(250);

/// How long a rank of which nothing else is known may take before it counts as stopped or dead: one that answers late may
/// be in a long copy or fold.
pub(super) const DOUBT: Duration = Duration::from_millis(350);
