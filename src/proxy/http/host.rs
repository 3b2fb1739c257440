//! The host of a request, parsed once and strictly. What comes out is safe to route by and to write into a `Location`.
//! Nothing here knows which hosts are served.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The host part of an authority: lower case, no port, no trailing dot; an IPv6 address in its brackets.
pub(super) type Host<'a> = Cow<'a, str>;

/// Longest name that DNS allows.
const MAX_NAME: usize = 253;

/// Reads the host out of `authority` (`Host` or `:authority`); `None` when it is not one: empty, user information, a bad
/// port, characters or labels that no host has.
pub(super) fn parse(authority: &str) -> Option<Host<'_>> {
    if authority.starts_with('[') {
        return parse_v6(authority);
    }
    let (name, port) = authority.split_once(':').map_or((authority, None), |(n, p)| (n, Some(p)));
    if !port.is_none_or(valid_port) {
        return None;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > MAX_NAME || !name.split('.').all(valid_label) {
        return None;
    }
    Some(lower(name))
}

fn parse_v6(authority: &str) -> Option<Host<'_>> {
    let end = authority.find(']')?;
    let port = &authority[end + 1..];
    if !(port.is_empty() || port.strip_prefix(':').is_some_and(valid_port)) {
        return None;
    }
    authority[1..end].parse::<Ipv6Addr>().ok()?;
    Some(lower(&authority[..=end]))
}

/// RFC 3986 allows `host:` with nothing behind the colon.
fn valid_port(port: &str) -> bool {
    port.is_empty() || (port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok())
}

/// Underscores are no part of host names but of names in use (`_dmarc`, `my_app.internal`); they harm nobody.
fn valid_label(label: &str) -> bool {
    !label.is_empty() && label.len() <= 63 && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn lower(name: &str) -> Host<'_> {
    if name.bytes().any(|b| b.is_ascii_uppercase()) { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_are_lower_case_without_port_and_trailing_dot() {
        for (authority, host) in [
            ("example.com", "example.com"),
            ("Example.COM:8080", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:443", "example.com"),
            ("example.com:", "example.com"),
            ("localhost", "localhost"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("my_app.internal", "my_app.internal"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("[::1]:8443", "[::1]"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(parse(authority).as_deref(), Some(host), "{authority}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long = "a.".repeat(127) + "abc";
        for bad in [
            "",
            ".",
            ":80",
            ".example.com",
            "a..b",
            "example.com..",
            "user@example.com",
            "example.com/path",
            "example.com:port",
            "example.com:65536",
            "example.com:80:80",
            "example.com:+80",
            "exa mple.com",
            "example.com,evil.com",
            "exämple.com",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[fe80::1%eth0]",
            "[]",
            "::1",
            "a%2eb",
            &long,
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_to_a_clean_host_or_to_none(text in "\\PC{0,80}") {
            if let Some(host) = parse(&text) {
                prop_assert!(!host.is_empty() && !host.ends_with('.') && !host.contains(['/', '@', ' ', '?', '#', '%', '\\']));
                prop_assert_eq!(&*host, host.to_ascii_lowercase());
                prop_assert_eq!(parse(&host), Some(Cow::Borrowed(&*host)));
            }
        }
    }
}
