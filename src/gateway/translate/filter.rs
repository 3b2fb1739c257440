//! Filters: which this version applies, which it refuses, and what their values must be. A filter that cannot be applied never
//! just goes missing: what it covers fails closed (S3 "Unsupported config is surfaced on resource status").

use std::collections::BTreeSet;
use std::mem::discriminant;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue};

use crate::gateway::finding::Code;
use crate::gateway::hostname::Hostname;
use crate::gateway::ir::{self, PathRewrite, RedirectPort};
use crate::gateway::resource::view;

/// Why a filter cannot be applied.
pub(super) struct Refused {
    /// Whether it is of a kind that we do not have, rather than wrong in itself.
    pub(super) unsupported: bool,
    pub(super) message: String,
}

/// What a filter's meaning depends on besides itself.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The port of a redirect that names neither scheme nor port.
    pub(super) listener_port: RedirectPort,
    /// Whether every match of the rule is by path prefix, which `ReplacePrefixMatch` replaces.
    pub(super) prefix_only: bool,
}

/// Turns a list of filters into what a plane applies. One that the list repeats is refused, as its schema does: which of them is
/// meant, nobody knows.
pub(super) fn filters<'f>(
    filters: &'f [view::Filter<'_>],
    place: Place,
) -> impl Iterator<Item = (usize, Result<ir::Filter, Refused>)> + 'f {
    filters.iter().enumerate().map(move |(at, filter)| {
        let same = |other: &view::Filter<'_>| discriminant(other) == discriminant(filter);
        let repeated = !matches!(filter, view::Filter::Other(_)) && filters[..at].iter().any(same);
        let built = if repeated {
            Err(invalid("a filter of the same type comes before it".to_owned()))
        } else {
            self::filter(filter, place)
        };
        (at, built)
    })
}

fn filter(filter: &view::Filter<'_>, place: Place) -> Result<ir::Filter, Refused> {
    let absent = || invalid("the filter has no content".to_owned());
    match filter {
        view::Filter::RequestHeaders(edit) => headers(edit.as_ref().ok_or_else(absent)?).map(ir::Filter::RequestHeaders),
        view::Filter::ResponseHeaders(edit) => headers(edit.as_ref().ok_or_else(absent)?).map(ir::Filter::ResponseHeaders),
        view::Filter::Redirect(redirect) => {
            self::redirect(redirect.as_ref().ok_or_else(absent)?, place).map(ir::Filter::Redirect)
        }
        view::Filter::Rewrite(rewrite) => {
            let rewrite = rewrite.as_ref().ok_or_else(absent)?;
            let hostname = rewrite.hostname.map(hostname).transpose()?;
            let path = rewrite.path.map(|p| path(p, place.prefix_only)).transpose()?;
            Ok(ir::Filter::Rewrite(ir::Rewrite { hostname, path }))
        }
        view::Filter::Other(name) => {
            Err(Refused { unsupported: true, message: format!("a filter {name} is not part of this version") })
        }
    }
}

/// The code of a refused filter of a rule.
pub(super) const fn rule_code(refused: &Refused) -> Code {
    if refused.unsupported { Code::FilterUnsupported } else { Code::FilterInvalid }
}

/// The code of a refused filter of a backendRef.
pub(super) const fn backend_code(refused: &Refused) -> Code {
    if refused.unsupported { Code::BackendFilterUnsupported } else { Code::FilterInvalid }
}

/// Headers that a filter removes although a WebSocket handshake needs them (S3 "ResponseHeaderModifier MUST preserve WebSocket
/// handshake headers"). It is applied all the same.
pub(super) fn removed_handshake_headers(filters: &[ir::Filter]) -> impl Iterator<Item = &str> {
    const NEEDED: [&str; 3] = ["sec-websocket-accept", "upgrade", "connection"];
    let edits = filters.iter().filter_map(|f| match f {
        ir::Filter::ResponseHeaders(edit) => Some(edit),
        _ => None,
    });
    edits.flat_map(|e| &e.remove).map(String::as_str).filter(|name| NEEDED.iter().any(|n| n.eq_ignore_ascii_case(name)))
}

fn headers(edit: &view::HeaderModifier<'_>) -> Result<ir::HeaderEdit, Refused> {
    // Of several with one name only the first counts (Gateway API `HTTPHeader.name`).
    let pairs = |pairs: &[(&str, &str)]| {
        let mut names = BTreeSet::new();
        let firsts = pairs.iter().filter(|(name, _)| names.insert(name.to_ascii_lowercase()));
        firsts.map(|(name, value)| header(name, value)).collect::<Result<_, _>>()
    };
    let removed = edit.remove.iter().map(|name| header_name(name).map(|_| name.clone()));
    Ok(ir::HeaderEdit { set: pairs(&edit.set)?, add: pairs(&edit.add)?, remove: removed.collect::<Result<_, _>>()? })
}

fn header(name: &str, value: &str) -> Result<(String, String), Refused> {
    let parsed = header_name(name)?;
    if parsed == CONTENT_LENGTH || parsed == TRANSFER_ENCODING {
        return Err(invalid(format!("header {name} frames the message and is not a filter's to write")));
    }
    HeaderValue::from_str(value).map_err(|_| invalid(format!("the value of header {name} has bytes that no header may have")))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn header_name(name: &str) -> Result<HeaderName, Refused> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(format!("{name:?} is no header name")))
}

/// S3 "Redirect port": an explicit port is kept, a scheme alone has none, neither means the listener's.
fn redirect(redirect: &view::Redirect<'_>, place: Place) -> Result<ir::Redirect, Refused> {
    let port = match (redirect.port, redirect.scheme) {
        (Some(port), _) => {
            let port = u16::try_from(port).ok().filter(|p| *p > 0);
            RedirectPort::Explicit(port.ok_or_else(|| invalid(format!("{} is no port", redirect.port.unwrap_or(0))))?)
        }
        (None, Some(_)) => RedirectPort::None,
        (None, None) => place.listener_port,
    };
    let status = match redirect.status {
        301 | 302 | 303 | 307 | 308 => redirect.status.unsigned_abs() as u16,
        other => return Err(invalid(format!("a redirect cannot answer {other}"))),
    };
    Ok(ir::Redirect {
        scheme: redirect.scheme.map(str::to_owned),
        hostname: redirect.hostname.map(hostname).transpose()?,
        port,
        path: redirect.path.map(|p| path(p, place.prefix_only)).transpose()?,
        status,
    })
}

fn hostname(text: &str) -> Result<String, Refused> {
    match text.parse::<Hostname>() {
        Ok(hostname) if !hostname.is_wildcard() => Ok(hostname.as_str().to_owned()),
        Ok(_) => Err(invalid(format!("hostname {text} is a pattern, and a host is wanted"))),
        Err(error) => Err(invalid(error.to_string())),
    }
}

fn path(path: view::Path<'_>, prefix_only: bool) -> Result<PathRewrite, Refused> {
    let (field, value) = match path {
        view::Path::ReplaceFullPath(value) => ("replaceFullPath", value),
        view::Path::ReplacePrefixMatch(value) => ("replacePrefixMatch", value),
    };
    let value = value.ok_or_else(|| invalid(format!("the filter has no {field}")))?;
    if ir::request_path(value).is_none() {
        return Err(invalid(format!("{field} has characters that no path may have")));
    }
    match path {
        view::Path::ReplaceFullPath(_) => Ok(PathRewrite::Full(value.to_owned())),
        view::Path::ReplacePrefixMatch(_) if prefix_only => Ok(PathRewrite::Prefix(value.to_owned())),
        view::Path::ReplacePrefixMatch(_) => {
            Err(invalid("replacePrefixMatch needs a rule whose matches are all of type PathPrefix".to_owned()))
        }
    }
}

const fn invalid(message: String) -> Refused {
    Refused { unsupported: false, message }
}
