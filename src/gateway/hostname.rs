//! Hostnames as listeners and routes write them: exact, or `*.` before a suffix. The one place that knows how they match,
//! intersect and rank (Gateway API `Hostname`, `PreciseHostname`; GEP-3567 for the reach of a wildcard).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A hostname pattern, lower case, without port and without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hostname(Arc<str>);

/// Why a text is no hostname.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHostname {
    /// Nothing was written.
    #[error("a hostname may not be empty")]
    Empty,
    /// Longer than DNS allows.
    #[error("hostname {0:?} has more than 253 characters")]
    TooLong(String),
    /// A label that DNS does not allow.
    #[error(
        "hostname {0:?} is not a DNS name: each label has 1 to 63 of a-z, 0-9 and '-', not at its ends, and '*' may only be the whole first label"
    )]
    Label(String),
    /// An address where only names are allowed.
    #[error("hostname {0:?} is an IP address; a listener or a route matches names only")]
    Address(String),
}

impl Hostname {
    /// The pattern as written, lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that a wildcard covers, with its dot: `.example.com` of `*.example.com`.
    pub fn wildcard_suffix(&self) -> Option<&str> {
        self.0.strip_prefix('*')
    }

    /// Whether this is `*.…`.
    pub fn is_wildcard(&self) -> bool {
        self.wildcard_suffix().is_some()
    }

    /// Whether a request's host (lower case, without port) is covered. A wildcard covers one label or more.
    pub fn matches(&self, host: &str) -> bool {
        self.wildcard_suffix().map_or_else(
            || &*self.0 == host,
            |suffix| host.len() > suffix.len() && host.ends_with(suffix) && !host.starts_with('.'),
        )
    }

    /// The narrower of two patterns, when every host of the one is a host of the other.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self == other {
            return Some(self.clone());
        }
        match (self.wildcard_suffix(), other.wildcard_suffix()) {
            (None, None) => None,
            (None, Some(_)) => other.matches(&self.0).then(|| self.clone()),
            (Some(_), None) => self.matches(&other.0).then(|| other.clone()),
            (Some(mine), Some(theirs)) => {
                if mine.ends_with(theirs) {
                    Some(self.clone())
                } else {
                    theirs.ends_with(mine).then(|| other.clone())
                }
            }
        }
    }

    /// Whether the two have a host in common; the same question as [`intersect`](Self::intersect), without the answer's text.
    pub fn intersects(&self, other: &Self) -> bool {
        match (self.wildcard_suffix(), other.wildcard_suffix()) {
            (None, None) => self == other,
            (None, Some(_)) => other.matches(&self.0),
            (Some(_), None) => self.matches(&other.0),
            (Some(mine), Some(theirs)) => mine.ends_with(theirs) || theirs.ends_with(mine),
        }
    }

    /// Orders by specificity: exact over wildcard, then more labels over fewer. Equal does not mean the same name.
    pub fn specificity(&self, other: &Self) -> Ordering {
        let rank = |h: &Self| (!h.is_wildcard(), h.0.split('.').count(), h.0.len());
        rank(self).cmp(&rank(other))
    }
}

impl FromStr for Hostname {
    type Err = InvalidHostname;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(InvalidHostname::Empty);
        }
        if text.len() > 253 {
            return Err(InvalidHostname::TooLong(text.chars().take(260).collect()));
        }
        // Only what has no other letters is worth the parsing.
        if text.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.') && text.parse::<std::net::IpAddr>().is_ok() {
            return Err(InvalidHostname::Address(text.to_owned()));
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        let label = |b: &[u8]| match b {
            [b'-', ..] | [.., b'-'] | [] => false,
            _ => b.len() <= 63 && b.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'-'),
        };
        if name.as_bytes().split(|b| *b == b'.').all(label) {
            // Mostly it is lower case as it is.
            Ok(Self(if text.bytes().any(|b| b.is_ascii_uppercase()) { text.to_ascii_lowercase().into() } else { text.into() }))
        } else {
            Err(InvalidHostname::Label(text.to_owned()))
        }
    }
}

impl Serialize for Hostname {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Hostname {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Hostname;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hostname")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hostname, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Ord for Hostname {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Hostname {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Hostname {
        text.parse().expect("a hostname")
    }

    #[test]
    fn a_wildcard_covers_one_label_or_more_but_not_its_own_suffix() {
        let wild = host("*.example.com");
        assert!(wild.matches("a.example.com") && wild.matches("a.b.example.com"));
        assert!(!wild.matches("example.com") && !wild.matches("aexample.com") && !wild.matches(".example.com"));
    }

    #[test]
    fn intersection_is_the_narrower_one() {
        for (a, b, want) in [
            ("a.example.com", "*.example.com", Some("a.example.com")),
            ("*.a.example.com", "*.example.com", Some("*.a.example.com")),
            ("a.example.com", "b.example.com", None),
            ("example.com", "*.example.com", None),
            ("*.com", "*.org", None),
            ("*.xexample.com", "*.example.com", None),
        ] {
            assert_eq!(host(a).intersect(&host(b)), want.map(host), "{a} with {b}");
            assert_eq!(host(b).intersect(&host(a)), want.map(host), "{b} with {a}");
            assert_eq!(host(a).intersects(&host(b)), want.is_some(), "{a} with {b}");
            assert_eq!(host(b).intersects(&host(a)), want.is_some(), "{b} with {a}");
        }
    }

    #[test]
    fn what_dns_does_not_allow_is_refused() {
        for bad in ["", "*", "*.", "a..b", "-a.b", "a-.b", "a.*.b", "a_b.c", "10.0.0.1", "a.b.", "*a.b", "a b"] {
            assert!(bad.parse::<Hostname>().is_err(), "{bad:?}");
        }
        assert_eq!(host("WWW.Example.COM").as_str(), "www.example.com");
    }
}
