//! Filters applied to one request or response: header edits, redirects, rewrites. Which filters a rule has, and what is
//! refused, was decided when the table was compiled.

use http::header::{CONTENT_LENGTH, HOST, LOCATION, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};

use super::Body;
use crate::gateway::ir::{PathRewrite, RedirectPort};
use crate::proxy::error::{Error, Kind};
use crate::proxy::table::{Filter, HeaderEdit, Redirect};

/// Applies the request filters in their order: header edits to `headers`, the host of a rewrite to the `Host` header, its
/// path to `uri`. `prefix` is what the match covered.
///
/// # Errors
/// [`Kind::Refused`] when a rewrite does not give a path: serving the request's own instead would fail open.
pub(super) fn request<'f>(
    filters: impl Iterator<Item = &'f Filter>,
    headers: &mut HeaderMap,
    uri: &mut Uri,
    prefix: &str,
) -> Result<(), Error> {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(edit) => apply(edit, headers),
            Filter::ResponseHeaders(_) => {}
            Filter::Rewrite { host, path } => {
                if let Some(host) = host {
                    headers.insert(HOST, host.clone());
                }
                if let Some(path) = path {
                    rewrite(uri, path, prefix)?;
                }
            }
        }
    }
    Ok(())
}

/// Applies the response filters in their order. A 101 gets them too (S3 "ResponseHeaderModifier").
pub(super) fn response<'f>(filters: impl Iterator<Item = &'f Filter>, headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(edit) = filter {
            apply(edit, headers);
        }
    }
}

/// Set, add, remove. How long a message is belongs to the hop and not to a filter: such names are passed over, since a
/// changed length would let one request smuggle another.
fn apply(edit: &HeaderEdit, headers: &mut HeaderMap) {
    let framing = |name: &HeaderName| *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING;
    for (name, value) in edit.set.iter().filter(|(name, _)| !framing(name)) {
        headers.insert(name.clone(), value.clone());
    }
    for (name, value) in edit.add.iter().filter(|(name, _)| !framing(name)) {
        headers.append(name.clone(), value.clone());
    }
    for name in edit.remove.iter().filter(|name| !framing(name)) {
        headers.remove(name);
    }
}

/// Replaces the path and keeps the query.
fn rewrite(uri: &mut Uri, rewrite: &PathRewrite, prefix: &str) -> Result<(), Error> {
    if !uri.path().starts_with('/') {
        // `OPTIONS *` has no path to replace.
        return Ok(());
    }
    let mut target = replaced(uri.path(), rewrite, prefix);
    if target.contains(['?', '#']) {
        return Err(Kind::Refused.into());
    }
    if let Some(query) = uri.query() {
        target.push('?');
        target.push_str(query);
    }
    *uri = Uri::from(PathAndQuery::try_from(target).map_err(|e| Error::new(Kind::Refused, e))?);
    Ok(())
}

/// The path after `rewrite` (Gateway API `HTTPPathModifier`, the table at `replacePrefixMatch`).
fn replaced(path: &str, rewrite: &PathRewrite, prefix: &str) -> String {
    let new = match rewrite {
        PathRewrite::Full(full) => full.clone(),
        PathRewrite::Prefix(replacement) => {
            let covered = prefix.strip_suffix('/').unwrap_or(prefix).len();
            let rest = path.get(covered..).unwrap_or("");
            if rest.is_empty() {
                replacement.clone()
            } else {
                let base = replacement.strip_suffix('/').unwrap_or(replacement);
                let mut new = String::with_capacity(base.len() + rest.len());
                new.push_str(base);
                new.push_str(rest);
                new
            }
        }
    };
    if new.starts_with('/') { new } else { format!("/{new}") }
}

/// What a redirect needs to know of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'r> {
    /// `http` or `https`, as the client used it.
    pub(super) scheme: &'r str,
    /// Host without port.
    pub(super) host: &'r str,
    /// Path and query.
    pub(super) uri: &'r Uri,
    /// The path prefix that the match covered.
    pub(super) prefix: &'r str,
}

/// The response of a redirect filter.
pub(super) fn redirect(redirect: &Redirect, origin: Origin<'_>) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = redirect.status;
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    if let Ok(location) = HeaderValue::try_from(location(redirect, origin)) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// `Location`: what the filter does not say is the request's own; the port by S3 "Redirect port".
fn location(redirect: &Redirect, origin: Origin<'_>) -> String {
    let scheme = redirect.scheme.as_deref().unwrap_or(origin.scheme);
    let port = match redirect.port {
        RedirectPort::None => None,
        RedirectPort::Explicit(port) => Some(port),
        RedirectPort::Listener { http, https } => {
            if scheme == "https" {
                https
            } else {
                http
            }
        }
    };
    let well_known = if scheme == "https" { 443 } else { 80 };
    let mut location = format!("{scheme}://{}", redirect.hostname.as_deref().unwrap_or(origin.host));
    if let Some(port) = port.filter(|port| *port != well_known) {
        location.push_str(&format!(":{port}"));
    }
    // `OPTIONS *` has no path.
    let path = if origin.uri.path().starts_with('/') { origin.uri.path() } else { "/" };
    match &redirect.path {
        Some(rewrite) => location.push_str(&replaced(path, rewrite, origin.prefix)),
        None => location.push_str(path),
    }
    if let Some(query) = origin.uri.query() {
        location.push('?');
        location.push_str(query);
    }
    location
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_are_replaced_as_the_table_of_the_specification_says() {
        for (path, prefix, replacement, want) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            // beyond the table
            ("/foo//bar", "/foo", "/xyz", "/xyz//bar"),
            ("/foo/%2e%2e/bar", "/foo", "/xyz", "/xyz/%2e%2e/bar"),
            ("/foo/bar", "/", "/xyz", "/xyz/foo/bar"),
            ("/", "/", "/xyz", "/xyz/"),
            ("/foo", "/foo/", "/xyz", "/xyz"),
        ] {
            assert_eq!(replaced(path, &PathRewrite::Prefix(replacement.into()), prefix), want, "{path} {prefix} {replacement}");
        }
    }

    #[test]
    fn a_rewrite_keeps_the_query_and_the_bytes_it_does_not_replace() {
        for (from, how, want) in [
            ("/a/b?x=1&y=%20", PathRewrite::Full("/new".into()), "/new?x=1&y=%20"),
            ("/a/b?", PathRewrite::Full("/new".into()), "/new?"),
            ("/a/b", PathRewrite::Full(String::new()), "/"),
            ("/a/%C3%A4;p=1?q", PathRewrite::Prefix("/z".into()), "/z/%C3%A4;p=1?q"),
        ] {
            let mut uri: Uri = from.parse().unwrap();
            rewrite(&mut uri, &how, "/a").unwrap();
            assert_eq!(uri.to_string(), want, "{from}");
        }
        for bad in ["/a?b", "/a#b", "/a b"] {
            let mut uri = Uri::from_static("/a");
            let error = rewrite(&mut uri, &PathRewrite::Full(bad.into()), "/").unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_replacement_gives_a_path(path in "/[!-~]{0,20}", prefix in "/[a-z/]{0,8}", new in "[a-z/%]{0,8}", full: bool) {
            let how = if full { PathRewrite::Full(new) } else { PathRewrite::Prefix(new) };
            prop_assert!(replaced(&path, &how, &prefix).starts_with('/'));
        }
    }

    #[test]
    fn the_port_of_a_redirect() {
        let listener = RedirectPort::Listener { http: Some(8080), https: Some(443) };
        for (scheme, port, request_scheme, want) in [
            // an explicit port is honoured, except the well-known one
            (None, RedirectPort::Explicit(8443), "https", "https://a.example:8443/"),
            (None, RedirectPort::Explicit(443), "https", "https://a.example/"),
            (None, RedirectPort::Explicit(80), "https", "https://a.example:80/"),
            (Some("http"), RedirectPort::Explicit(80), "https", "http://a.example/"),
            (Some("https"), RedirectPort::Explicit(80), "http", "https://a.example:80/"),
            // a scheme without a port
            (Some("https"), RedirectPort::None, "http", "https://a.example/"),
            (Some("http"), RedirectPort::None, "https", "http://a.example/"),
            // neither: the port of the listener
            (None, listener, "http", "http://a.example:8080/"),
            (None, listener, "https", "https://a.example/"),
            (None, RedirectPort::Listener { http: None, https: None }, "http", "http://a.example/"),
        ] {
            let filter = Redirect { scheme: scheme.map(Into::into), hostname: None, port, path: None, status: StatusCode::FOUND };
            let origin = Origin { scheme: request_scheme, host: "a.example", uri: &Uri::from_static("/"), prefix: "/" };
            assert_eq!(location(&filter, origin), want, "{scheme:?} {port:?} {request_scheme}");
        }
    }

    #[test]
    fn a_redirect_changes_only_what_it_names() {
        let filter = |hostname: Option<&str>, path| Redirect {
            scheme: None,
            hostname: hostname.map(Into::into),
            port: RedirectPort::None,
            path,
            status: StatusCode::MOVED_PERMANENTLY,
        };
        let uri = Uri::from_static("/old/x?q=1");
        let origin = Origin { scheme: "https", host: "a.example", uri: &uri, prefix: "/old" };
        for (filter, want) in [
            (filter(None, None), "https://a.example/old/x?q=1"),
            (filter(Some("b.example"), None), "https://b.example/old/x?q=1"),
            (filter(None, Some(PathRewrite::Full("/new".into()))), "https://a.example/new?q=1"),
            (filter(None, Some(PathRewrite::Prefix("/new".into()))), "https://a.example/new/x?q=1"),
        ] {
            assert_eq!(location(&filter, origin), want);
        }
        let response = redirect(&filter(None, None), origin);
        assert_eq!(response.status(), StatusCode::MOVED_PERMANENTLY);
        assert_eq!(response.headers()[LOCATION], "https://a.example/old/x?q=1");
    }

    #[test]
    fn headers_are_set_added_then_removed_and_framing_is_left_alone() {
        let value = HeaderValue::from_static;
        let name = HeaderName::from_static;
        let edit = HeaderEdit {
            set: Box::new([(name("a"), value("1")), (CONTENT_LENGTH, value("5"))]),
            add: Box::new([(name("b"), value("2")), (TRANSFER_ENCODING, value("chunked"))]),
            remove: Box::new([name("c"), CONTENT_LENGTH]),
        };
        let mut headers = HeaderMap::new();
        for (n, v) in [("a", "0"), ("a", "00"), ("b", "1"), ("c", "x"), ("c", "y"), ("content-length", "7")] {
            headers.append(name(n), value(v));
        }
        apply(&edit, &mut headers);
        let all = |n: &str| headers.get_all(n).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all("a"), ["1"]);
        assert_eq!(all("b"), ["1", "2"]);
        assert!(all("c").is_empty());
        assert_eq!(all("content-length"), ["7"]);
        assert!(all("transfer-encoding").is_empty());
    }
}
