//! The time of day, as files have it.

/// The time, in RFC 3339 to the millisecond.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.3}")
}
