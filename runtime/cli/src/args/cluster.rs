//! Values that Slurm and Kubernetes take: what they would refuse is refused before a file is written.

/// A word of a directive: a blank in it would end the option, a line break would begin another.
pub(crate) fn word(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("expected a word without blanks".into());
    }
    Ok(text.into())
}

/// An option of an `#SBATCH` line, with or without that word before it.
pub(crate) fn directive(text: &str) -> Result<String, String> {
    let option = text.strip_prefix("#SBATCH").unwrap_or(text).trim();
    if !option.starts_with('-') || option.contains(char::is_control) {
        return Err("expected one option of sbatch, such as `--mail-type=END`".into());
    }
    Ok(option.into())
}

/// A time limit as Slurm writes it: minutes, `minutes:seconds`, `hours:minutes:seconds`, or days before a dash.
pub(crate) fn time(text: &str) -> Result<String, String> {
    let numbers = |t: &str, most: usize| {
        let parts: Vec<&str> = t.split(':').collect();
        parts.len() <= most && parts.iter().all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    let known = match text.split_once('-') {
        Some((days, rest)) => numbers(days, 1) && numbers(rest, 3),
        None => numbers(text, 3) || text.eq_ignore_ascii_case("unlimited"),
    };
    if known {
        Ok(text.into())
    } else {
        Err("not a time in Slurm's format: `90` (minutes), `24:00:00`, `2-12` (days-hours), `UNLIMITED`"
            .into())
    }
}

/// A name of Kubernetes: small letters, digits and dashes, a letter first (RFC 1035), at most 63.
pub(crate) fn label(text: &str) -> Result<String, String> {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    if inner && begins && !text.ends_with('-') && text.len() <= 63 {
        Ok(text.into())
    } else {
        Err("Kubernetes names have lowercase letters, digits and dashes, begin with a letter, and have at most 63 characters".into())
    }
}

/// A resource that a device plugin offers, `DOMAIN/NAME`.
pub(crate) fn resource(text: &str) -> Result<String, String> {
    match word(text)?.split_once('/') {
        Some((domain, name)) if !domain.is_empty() && !name.is_empty() => Ok(text.into()),
        _ => Err("a resource is `DOMAIN/NAME`, such as `rdma/hca`".into()),
    }
}

/// `CLAIM:/path`.
pub(crate) fn volume(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((claim, path)) if path.starts_with('/') => Ok((label(claim)?, path.into())),
        _ => Err("expected a claim and an absolute path: `CLAIM:/path`".into()),
    }
}

/// `NAME=VALUE` of the environment.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write `NAME=VALUE`")?;
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(format!("`{name}` is not a valid name of a variable"));
    }
    Ok((name.into(), value.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_cluster_would_refuse_are_refused() {
        assert!(
            ["90", "1:30", "24:00:00", "2-12", "2-12:30:00", "UNLIMITED"].iter().all(|t| time(t).is_ok())
        );
        assert!(["", "24h", "1:2:3:4", "1-", "-1", "1:00\n"].iter().all(|t| time(t).is_err()));
        assert!(word("gpu").is_ok() && ["", "gpu --x", "a\nb"].iter().all(|t| word(t).is_err()));
        assert_eq!(directive("#SBATCH --mail-type=END").unwrap(), "--mail-type=END");
        assert_eq!(directive("-C gpu&ib").unwrap(), "-C gpu&ib");
        assert!(["", "mail", "--a\n#SBATCH --b"].iter().all(|t| directive(t).is_err()));
        assert!(label("my-run-2").is_ok());
        let long = "a".repeat(64);
        assert!(["", "2024-run", "My", "a-", "a_b", &long].iter().all(|t| label(t).is_err()));
        assert!(
            resource("rdma/hca").is_ok() && ["hca", "/hca", "rdma/"].iter().all(|t| resource(t).is_err())
        );
        assert_eq!(volume("runs:/runs").unwrap(), ("runs".into(), "/runs".into()));
        assert!([":/runs", "runs", "runs:here"].iter().all(|t| volume(t).is_err()));
        assert_eq!(variable("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert!(["A", "=b", "1A=b"].iter().all(|t| variable(t).is_err()));
    }
}
