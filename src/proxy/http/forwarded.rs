//! Headers that belong to one hop, and headers that say who the client was (X27). Routing and filters are elsewhere.

use std::net::SocketAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::Via;

/// Hop-by-hop fields that need no mention in `Connection` (RFC 9110 §7.6.1, and what was so before it).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

// As constants: a name that comes as text is copied for each request.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Fields that tell a backend who asks: stay even when a client names them in `Connection` to be rid of them (S3 "Mirror").
fn identifies(name: &HeaderName) -> bool {
    const NAMES: [&str; 5] = ["host", "content-length", "forwarded", "true-client-ip", "x-real-ip"];
    let name = name.as_str();
    NAMES.contains(&name) || name.starts_with("x-forwarded-") || name.starts_with("cf-")
}

/// Takes hop-by-hop fields out of a request, those that `Connection` names included. `TE` stays when it accepts trailers;
/// `Trailer` goes, because trailers of requests are not forwarded.
pub(super) fn strip_request(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(header::TRAILER);
    if headers.contains_key(header::TE) {
        let trailers = headers.get_all(header::TE).iter().any(|te| {
            te.as_bytes().split(|b| *b == b',').any(|t| {
                let coding = t.split(|b| *b == b';').next().unwrap_or_default();
                coding.trim_ascii().eq_ignore_ascii_case(b"trailers")
            })
        });
        if trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        } else {
            headers.remove(header::TE);
        }
    }
}

/// Takes hop-by-hop fields out of a response.
pub(super) fn strip_response(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(header::TE);
}

/// Takes out of a response's trailers what may not stand there: framing, routing and the hop's own fields (RFC 9110 §6.5.1). An
/// HTTP/2 peer takes some of them for a broken stream.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    strip_response(trailers);
    for name in [header::CONTENT_LENGTH, header::HOST, header::TRAILER] {
        trailers.remove(name);
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most heads have none: comparing the few names there are is cheaper than looking for each that could be.
    if headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        strip_named(headers);
        for name in &HOP_BY_HOP {
            headers.remove(name);
        }
    }
}

fn strip_named(headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONNECTION) {
        return;
    }
    let mut named: Vec<HeaderName> = Vec::new();
    for value in headers.get_all(header::CONNECTION) {
        for token in value.as_bytes().split(|b| *b == b',') {
            // `TE` must stand in `Connection` by RFC 9110 §10.1.4; what stays of it is decided by its value.
            match HeaderName::from_bytes(token.trim_ascii()) {
                Ok(name) if !identifies(&name) && name != header::TE => named.push(name),
                _ => {}
            }
        }
    }
    for name in named {
        headers.remove(name);
    }
}

/// Sets the fields that say who the client was, for a client that connects directly and is not believed. Through a tunnel the
/// edge has set them and nothing is touched.
pub(super) fn set_client(headers: &mut HeaderMap, peer: SocketAddr, tls: bool, authority: &HeaderValue) {
    let claimed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with("cf-") || name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "true-client-ip")
        })
        .cloned()
        .collect();
    for name in claimed {
        headers.remove(name);
    }
    if let Ok(client) = HeaderValue::try_from(client_ip(peer)) {
        headers.insert(X_FORWARDED_FOR, client);
    }
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(if tls { "https" } else { "http" }));
    headers.insert(X_FORWARDED_HOST, authority.clone());
}

/// An IPv4 client of a dual-stack socket is written as the IPv4 address it is.
fn client_ip(peer: SocketAddr) -> String {
    peer.ip().to_canonical().to_string()
}

/// The scheme that the client used: as the edge says, or as the direct listener knows.
///
/// Cloudflare always sets `X-Forwarded-Proto`; without it the client came over TLS more likely than not.
pub(super) fn scheme(headers: &HeaderMap, via: Via) -> &'static str {
    match via {
        Via::Direct { tls: true, .. } => "https",
        Via::Direct { tls: false, .. } => "http",
        Via::Tunnel { .. } => forwarded_proto(headers).or_else(|| cf_visitor(headers)).unwrap_or("https"),
    }
}

fn known_scheme(scheme: &str) -> Option<&'static str> {
    ["http", "https"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known))
}

fn forwarded_proto(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get("x-forwarded-proto")?.to_str().ok()?;
    known_scheme(value.split(',').next()?.trim())
}

fn cf_visitor(headers: &HeaderMap) -> Option<&'static str> {
    #[derive(serde::Deserialize)]
    struct Visitor<'a> {
        #[serde(borrow)]
        scheme: std::borrow::Cow<'a, str>,
    }
    let visitor: Visitor<'_> = serde_json::from_slice(headers.get("cf-visitor")?.as_bytes()).ok()?;
    known_scheme(&visitor.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    const TUNNEL: Via = Via::Tunnel { connection: 0, trailers: true };

    #[test]
    fn hop_by_hop_fields_end_here_and_so_do_those_that_connection_names() {
        let mut request = headers(&[
            ("connection", "close, X-Secret , x-forwarded-for, TE"),
            ("connection", "cf-connecting-ip, host, content-length, bad name"),
            ("x-secret", "1"),
            ("x-forwarded-for", "1.2.3.4"),
            ("cf-connecting-ip", "1.2.3.4"),
            ("content-length", "0"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "gzip, trailers;q=0.5"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut request);
        assert_eq!(names(&request), ["accept", "cf-connecting-ip", "content-length", "te", "x-forwarded-for"]);
        assert_eq!(request["te"], "trailers");

        let mut response = headers(&[("connection", "x-a"), ("x-a", "1"), ("x-b", "2"), ("keep-alive", "x"), ("trailer", "t")]);
        strip_response(&mut response);
        assert_eq!(names(&response), ["trailer", "x-b"]);
    }

    #[test]
    fn te_without_trailers_goes() {
        let mut request = headers(&[("te", "gzip")]);
        strip_request(&mut request);
        assert!(request.is_empty());
    }

    #[test]
    fn a_direct_client_is_not_believed() {
        let sent = [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-port", "1"),
            ("forwarded", "for=6.6.6.6"),
            ("cf-connecting-ip", "6.6.6.6"),
            ("true-client-ip", "6.6.6.6"),
            ("accept", "*/*"),
        ];
        let mut direct = headers(&sent);
        let peer = "[::ffff:10.0.0.9]:1234".parse().unwrap();
        set_client(&mut direct, peer, false, &HeaderValue::from_static("a.example"));
        assert_eq!(names(&direct), ["accept", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]);
        assert_eq!(direct["x-forwarded-for"], "10.0.0.9");
        assert_eq!(direct["x-forwarded-proto"], "http");
        assert_eq!(direct["x-forwarded-host"], "a.example");
    }

    #[test]
    fn the_scheme_of_the_client() {
        for (pairs, want) in [
            (&[("x-forwarded-proto", "http")][..], "http"),
            (&[("x-forwarded-proto", "HTTPS, http")], "https"),
            (&[("cf-visitor", "{\"scheme\":\"http\"}")], "http"),
            (&[("x-forwarded-proto", "gopher"), ("cf-visitor", "{\"scheme\":\"http\"}")], "http"),
            (&[("cf-visitor", "{\"scheme\":")], "https"),
            (&[], "https"),
        ] {
            assert_eq!(scheme(&headers(pairs), TUNNEL), want, "{pairs:?}");
        }
        let peer = "10.0.0.9:1".parse().unwrap();
        let lie = headers(&[("x-forwarded-proto", "https")]);
        assert_eq!(scheme(&lie, Via::Direct { peer, tls: false }), "http");
    }
}
