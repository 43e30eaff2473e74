//! The time of day, as files have it.

/// The time, in RFC 3339 to the millisecond.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.3}")
}

/// Milliseconds since 1970 of a time in RFC 3339.
pub fn milliseconds_of(time: &str) -> Option<i64> {
    Some(time.parse::<jiff::Timestamp>().ok()?.as_millisecond())
}

/// Seconds since 1970 of a time in RFC 3339.
pub fn seconds_of(time: &str) -> Option<f64> {
    Some(milliseconds_of(time)? as f64 / 1e3)
}

/// A time in seconds since 1970, in RFC 3339.
pub fn time_of(seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(seconds).ok().map(|t| t.to_string())
}
