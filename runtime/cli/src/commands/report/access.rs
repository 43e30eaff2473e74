//! Who is answered: on this machine everybody who asks for this machine, beyond it whoever has the token.

use std::net::SocketAddr;

/// Who is answered.
#[derive(Debug)]
pub(super) enum Access {
    /// Requests for this machine by name, at a port: a page of elsewhere whose name leads here sends its own name.
    ThisMachine(u16),
    /// Requests with the token, in the query or in the cookie of that port.
    Token(String, u16),
}

/// What access says of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is answered.
    Admitted,
    /// It is answered, and the browser is to keep the token in a cookie.
    Shown,
    /// It is not.
    Refused,
}

impl Access {
    /// That of a server which listens at an address. The token has 128 bits.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub(super) fn of(address: SocketAddr) -> std::io::Result<Access> {
        if address.ip().is_loopback() {
            return Ok(Access::ThisMachine(address.port()));
        }
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(|e| std::io::Error::other(e.to_string()))?;
        let token = bits.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Access::Token(token, address.port()))
    }

    /// The address to open, at a name of this machine.
    pub(super) fn url(&self, address: SocketAddr) -> String {
        match self {
            Access::ThisMachine(_) => format!("http://{address}/"),
            Access::Token(token, port) if address.ip().is_unspecified() => {
                let machine = rustix::system::uname();
                let name = machine.nodename().to_string_lossy();
                format!("http://{name}:{port}/?token={token}")
            }
            Access::Token(token, _) => format!("http://{address}/?token={token}"),
        }
    }

    /// Whether a request is answered, by its path with the query, its header `Host` and its cookies.
    pub(super) fn admits(&self, path: &str, host: Option<&str>, cookies: &str) -> Admission {
        match self {
            Access::ThisMachine(port) if is_meant(host, *port) => Admission::Admitted,
            Access::ThisMachine(_) => Admission::Refused,
            Access::Token(token, port) => {
                let query = path.split_once('?').map_or("", |(_, query)| query);
                let shown = query.split('&').filter_map(|part| part.strip_prefix("token="));
                let name = format!("{}=", cookie(*port));
                let kept = cookies.split(';').filter_map(|part| part.trim().strip_prefix(&name));
                if kept.into_iter().any(|given| equal(given, token)) {
                    Admission::Admitted
                } else if shown.into_iter().any(|given| equal(given, token)) {
                    Admission::Shown
                } else {
                    Admission::Refused
                }
            }
        }
    }

    /// The cookie in which a browser keeps the token: for this server alone, and for no script.
    pub(super) fn kept(&self) -> Option<String> {
        match self {
            Access::ThisMachine(_) => None,
            Access::Token(token, port) => {
                Some(format!("{}={token}; Path=/; HttpOnly; SameSite=Strict", cookie(*port)))
            }
        }
    }

    /// What is said to those who are refused, with the status of HTTP.
    pub(super) fn refusal(&self) -> (u16, String) {
        match self {
            Access::ThisMachine(port) => {
                (403, format!("this server is 127.0.0.1:{port}, for this machine alone"))
            }
            Access::Token(..) => {
                (401, "open the address that the command printed: it has the access token".into())
            }
        }
    }
}

/// Cookies are those of a machine, whatever the port: several servers have several names.
fn cookie(port: u16) -> String {
    format!("meshwright_{port}")
}

/// Equality in a time that does not depend on where texts differ.
fn equal(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (x, y)| all | (x ^ y)) == 0
}

/// Whether a request is meant for what listens at a port of this machine.
fn is_meant(host: Option<&str>, port: u16) -> bool {
    const HTTP: u16 = 80;
    let Some(host) = host else { return false };
    let address: Option<SocketAddr> = host.parse().ok();
    if address.is_some_and(|a| a.is_ipv6() && a.ip().is_loopback() && a.port() == port) {
        return host == format!("[::1]:{port}");
    }
    let (name, at) = host.split_once(':').map_or((host, None), |(name, at)| (name, Some(at)));
    let at = match at {
        None => port == HTTP,
        Some(at) => at == port.to_string(),
    };
    at && ["127.0.0.1", "localhost"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered() {
        for own in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"] {
            assert!(is_meant(Some(own), 8080), "{own}");
        }
        assert!(is_meant(Some("127.0.0.1"), 80) && is_meant(Some("localhost:80"), 80));
        for other in [
            "example.com",
            "example.com:8080",
            "127.0.0.1.example.com:8080",
            "[::1].example.com",
            "[::1]:8081",
            "[::2]:8080",
            "",
            ":8080",
            "localhost.example.com:8080",
            "localhost",
            "127.0.0.1:80",
            "localhost:",
            "localhost:08080",
            "localhost:+8080",
            "localhost:8080:8080",
            "localhost:8080 ",
            "localhost:8080,example.com",
            "user@localhost:8080",
            "127.1:8080",
        ] {
            assert!(!is_meant(Some(other), 8080), "{other}");
        }
        assert!(!is_meant(None, 8080));
    }

    #[test]
    fn beyond_this_machine_the_token_opens() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(matches!(Access::of(at("127.0.0.1:7")).unwrap(), Access::ThisMachine(7)));
        assert!(matches!(Access::of(at("[::1]:7")).unwrap(), Access::ThisMachine(7)));
        let [one, two] = [0, 1].map(|_| Access::of(at("0.0.0.0:7")).unwrap());
        let Access::Token(token, _) = &one else { panic!("no token") };
        assert!(token.len() == 32 && one.url(at("0.0.0.0:7")) != two.url(at("0.0.0.0:7")));
        assert_eq!(one.url(at("10.0.0.1:7")), format!("http://10.0.0.1:7/?token={token}"));
        let asked = |path: &str, cookies: &str| one.admits(path, Some("any.where:7"), cookies);
        assert_eq!(asked(&format!("/?since=3&token={token}"), ""), Admission::Shown);
        assert_eq!(asked("/", &format!("a=b; meshwright_7={token}")), Admission::Admitted);
        for (path, cookies) in [
            ("/".into(), String::new()),
            ("/?token=".into(), "meshwright_7=".into()),
            (format!("/?token={}", &token[1..]), String::new()),
            (format!("/token={token}"), format!("meshwright_8={token}")),
            (format!("/?Token={token}"), format!("x=meshwright_7={token}")),
        ] {
            assert_eq!(asked(&path, &cookies), Admission::Refused, "{path} {cookies}");
        }
    }
}
