//! What a rule does with a request, parsed: filters, redirects, backends with their shares. No matching here.

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode};

use super::{Action, Backend, BackendEntry, Backends, Filter, HeaderEdit, Redirect, Target};
use crate::gateway::ir;
use crate::gateway::pattern::InvalidPattern;

/// Why a rule, or one of its backends, cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidRule {
    #[error("listener {position} does not exist, the document has {count}")]
    Listener { position: usize, count: usize },
    #[error("the rule has no match")]
    NoMatch,
    #[error("a match is of another kind than its route")]
    OtherKind,
    #[error("path {0:?} does not start with '/'")]
    Path(String),
    #[error("path prefix {0:?} has an empty element")]
    Prefix(String),
    #[error("method {0:?} is no HTTP method")]
    Method(String),
    #[error(transparent)]
    Pattern(#[from] InvalidPattern),
    #[error("header name {0:?} is not allowed in HTTP")]
    HeaderName(String),
    // The value may be a secret.
    #[error("the value for header {0:?} has characters that HTTP does not allow")]
    HeaderValue(String),
    #[error("{0:?} is no host name")]
    Host(String),
    #[error("{0:?} is no path")]
    NewPath(String),
    #[error("redirect scheme {0:?} is neither http nor https")]
    Scheme(String),
    #[error("redirect status {0} is none of 301, 302, 303, 307, 308")]
    Status(u16),
    #[error("a redirect cannot be combined with a rewrite or a second redirect")]
    RedirectAndMore,
    #[error("backend {0} is not in the document")]
    UnknownBackend(ir::BackendKey),
}

/// What compiling one rule needs, and what it leaves behind.
pub(super) struct Compiling<'a> {
    /// Backends of the document.
    pub(super) backends: &'a HashMap<&'a ir::BackendKey, &'a Arc<Backend>>,
    /// Why shares of the rule fail closed.
    pub(super) refused: Vec<InvalidRule>,
}

/// The action of a rule and the filters that remain to be applied.
pub(super) fn compile(compiling: &mut Compiling<'_>, rule: &ir::Rule) -> Result<(Action, Vec<Filter>), InvalidRule> {
    let (redirect, filters) = split_filters(&rule.filters)?;
    let action = redirect.map_or_else(|| Action::Forward(shares(compiling, &rule.backends)), Action::Redirect);
    Ok((action, filters))
}

/// A timeout in milliseconds; zero means none (GEP-2257 durations of zero disable a timeout).
pub(super) fn timeout(millis: Option<u64>) -> Option<Duration> {
    millis.filter(|ms| *ms > 0).map(Duration::from_millis)
}

/// Parses a header name.
pub(super) fn header_name(name: &str) -> Result<HeaderName, InvalidRule> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidRule::HeaderName(name.to_owned()))
}

/// Entries without a weight get no request, so that whatever is wrong with them harms none (S3 "Invalid backendRef").
fn shares(compiling: &mut Compiling<'_>, backends: &[ir::WeightedBackend]) -> Backends {
    let mut total = 0_u64;
    let mut entries = Vec::with_capacity(backends.len());
    for backend in backends.iter().filter(|b| b.weight > 0) {
        total = total.saturating_add(u64::from(backend.weight));
        let (target, filters) = entry(compiling, backend).unwrap_or_else(|error| {
            let reason = error.to_string().into();
            compiling.refused.push(error);
            (Target::Refuse(reason), Vec::new())
        });
        entries.push(BackendEntry { index: backend.index, upper: total, target, filters: filters.into() });
    }
    Backends { entries: entries.into(), total }
}

fn entry(compiling: &Compiling<'_>, backend: &ir::WeightedBackend) -> Result<(Target, Vec<Filter>), InvalidRule> {
    let key = match &backend.target {
        ir::Target::Backend(key) => key,
        ir::Target::Invalid(reason) => return Ok((Target::Refuse(reason.as_str().into()), Vec::new())),
    };
    let found = compiling.backends.get(key).copied().ok_or_else(|| InvalidRule::UnknownBackend(key.clone()))?;
    let (redirect, filters) = split_filters(&backend.filters)?;
    Ok((redirect.map_or_else(|| Target::Backend(Arc::clone(found)), Target::Redirect), filters))
}

/// The redirect among the filters, and the others in order.
fn split_filters(filters: &[ir::Filter]) -> Result<(Option<Box<Redirect>>, Vec<Filter>), InvalidRule> {
    let (mut redirect, mut others) = (None, Vec::with_capacity(filters.len()));
    for filter in filters {
        match filter {
            ir::Filter::RequestHeaders(edit) => others.push(Filter::RequestHeaders(header_edit(edit)?)),
            ir::Filter::ResponseHeaders(edit) => others.push(Filter::ResponseHeaders(header_edit(edit)?)),
            ir::Filter::Rewrite(rewrite) => others.push(Filter::Rewrite {
                host: rewrite.hostname.as_deref().map(rewritten_host).transpose()?,
                path: rewrite.path.as_ref().map(new_path).transpose()?,
            }),
            ir::Filter::Redirect(_) if redirect.is_some() => return Err(InvalidRule::RedirectAndMore),
            ir::Filter::Redirect(wanted) => redirect = Some(Box::new(compile_redirect(wanted)?)),
        }
    }
    if redirect.is_some() && others.iter().any(|f| matches!(f, Filter::Rewrite { .. })) {
        return Err(InvalidRule::RedirectAndMore);
    }
    Ok((redirect, others))
}

fn header_edit(edit: &ir::HeaderEdit) -> Result<HeaderEdit, InvalidRule> {
    let pair = |(name, value): &(String, String)| {
        let parsed = HeaderValue::from_str(value).map_err(|_| InvalidRule::HeaderValue(name.clone()))?;
        Ok((header_name(name)?, parsed))
    };
    Ok(HeaderEdit {
        set: edit.set.iter().map(pair).collect::<Result<_, InvalidRule>>()?,
        add: edit.add.iter().map(pair).collect::<Result<_, InvalidRule>>()?,
        remove: edit.remove.iter().map(|name| header_name(name)).collect::<Result<_, InvalidRule>>()?,
    })
}

fn compile_redirect(redirect: &ir::Redirect) -> Result<Redirect, InvalidRule> {
    let status = match redirect.status {
        301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(redirect.status).map_err(|_| InvalidRule::Status(redirect.status))?,
        other => return Err(InvalidRule::Status(other)),
    };
    let scheme = match redirect.scheme.as_deref() {
        None | Some("http" | "https") => redirect.scheme.as_deref().map(Into::into),
        Some(other) => return Err(InvalidRule::Scheme(other.to_owned())),
    };
    let hostname = redirect.hostname.as_deref().map(host).transpose()?.map(Into::into);
    let path = redirect.path.as_ref().map(new_path).transpose()?;
    Ok(Redirect { scheme, hostname, port: redirect.port, path, status })
}

fn rewritten_host(name: &str) -> Result<HeaderValue, InvalidRule> {
    HeaderValue::from_str(host(name)?).map_err(|_| InvalidRule::Host(name.to_owned()))
}

/// A host without user and port.
fn host(name: &str) -> Result<&str, InvalidRule> {
    match name.parse::<Authority>() {
        Ok(authority) if authority.host() == name => Ok(name),
        _ => Err(InvalidRule::Host(name.to_owned())),
    }
}

fn new_path(rewrite: &ir::PathRewrite) -> Result<ir::PathRewrite, InvalidRule> {
    let rooted = |path: &str| ir::request_path(path).ok_or_else(|| InvalidRule::NewPath(path.to_owned()));
    Ok(match rewrite {
        ir::PathRewrite::Full(path) => ir::PathRewrite::Full(rooted(path)?),
        ir::PathRewrite::Prefix(path) => ir::PathRewrite::Prefix(rooted(path)?),
    })
}
