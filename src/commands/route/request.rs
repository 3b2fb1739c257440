//! The request that is traced, read from `METHOD URL -H …` as a client would send it.

use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

use crate::commands::output::fail;
use crate::proxy::http::Body;
use crate::proxy::table::RequestKey;

/// A request as it arrives at the router.
#[derive(Clone, Debug)]
pub(super) struct TracedRequest {
    pub(super) scheme: &'static str,
    /// Lower case, without port.
    pub(super) host: String,
    pub(super) method: Method,
    /// In origin form.
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) grpc: bool,
}

/// `NAME: VALUE` of `-H`.
#[derive(Clone, Debug)]
pub(super) struct HeaderArg(HeaderName, HeaderValue);

impl FromStr for HeaderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once(':').ok_or("write a header as 'NAME: VALUE'")?;
        let name = name.trim().parse().map_err(|_| format!("{:?} is no header name", name.trim()))?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| "the value has characters that HTTP does not allow")?;
        Ok(Self(name, value))
    }
}

impl TracedRequest {
    /// Reads the request; a URL without scheme is taken for `http://`.
    pub(super) fn new(method: Method, url: &str, headers: Vec<HeaderArg>) -> anyhow::Result<Self> {
        let help = "write it as a client would: http://shop.example.com/cart?x=1";
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let parsed: Uri = full.parse().map_err(|e| fail(format!("{url:?} is no URL: {e}"), help))?;
        let scheme = match parsed.scheme_str() {
            Some("http" | "ws") => "http",
            Some("https" | "wss") => "https",
            other => return Err(fail(format!("scheme {:?} is not served", other.unwrap_or_default()), "use http or https")),
        };
        let mut map = HeaderMap::new();
        for HeaderArg(name, value) in headers {
            map.append(name, value);
        }
        // As with curl, a Host header decides over the URL's host.
        let authority = match map.remove(header::HOST) {
            Some(value) => value.to_str().map_err(|_| fail("the Host header is not plain text", help))?.to_owned(),
            None => parsed.authority().map(|a| a.as_str().to_owned()).unwrap_or_default(),
        };
        let host = host_of(&authority).ok_or_else(|| fail(format!("{authority:?} is no host"), help))?;
        let target = parsed.path_and_query().map_or("/", |p| p.as_str());
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let uri = target.parse().map_err(|e| fail(format!("{url:?} is no URL: {e}"), help))?;
        let grpc = map.get(header::CONTENT_TYPE).is_some_and(|t| {
            let t = t.as_bytes();
            t.strip_prefix(b"application/grpc").is_some_and(|rest| rest.is_empty() || rest[0] == b'+' || rest[0] == b';')
        });
        Ok(Self { scheme, host, method, uri, headers: map, grpc })
    }

    /// The request as it comes through a tunnel: the edge says by which scheme it came.
    pub(super) fn to_http(&self) -> http::Request<Body> {
        let mut request = http::Request::new(Body::Empty);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert("x-forwarded-proto", HeaderValue::from_static(self.scheme));
        request
    }

    /// What it is routed by.
    pub(super) fn key(&self) -> RequestKey<'_> {
        RequestKey {
            host: &self.host,
            path: self.uri.path(),
            query: self.uri.query(),
            method: &self.method,
            headers: &self.headers,
            grpc: self.grpc,
        }
    }
}

/// The host of an authority, lower case, without port.
fn host_of(authority: &str) -> Option<String> {
    let parsed: http::uri::Authority = authority.parse().ok()?;
    (!parsed.host().is_empty() && !authority.contains('@')).then(|| parsed.host().trim_end_matches('.').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str, headers: &[&str]) -> anyhow::Result<TracedRequest> {
        TracedRequest::new(Method::GET, url, headers.iter().map(|h| h.parse().expect("a header")).collect())
    }

    #[test]
    fn urls_are_read_as_a_client_sends_them() {
        let r = request("https://Shop.Example.com:8443/a%2Fb?x=1#y", &[]).expect("a request");
        assert_eq!((r.scheme, &*r.host, r.uri.to_string()), ("https", "shop.example.com", "/a%2Fb?x=1".to_owned()));
        let r =
            request("shop.example.com", &["Host: other.example.com:80", "Content-Type: application/grpc+proto"]).expect("one");
        assert_eq!((&*r.host, r.uri.path(), r.grpc), ("other.example.com", "/", true));
        assert!(!request("h/", &["content-type: application/grpcweb"]).expect("one").grpc);
        assert_eq!(request("http://h?x=1", &[]).expect("one").uri.to_string(), "/?x=1");
    }

    #[test]
    fn what_is_no_request_is_said_to_be_none() {
        for url in ["", "http://", "ftp://h/", "http://a b/", "http://user@h/"] {
            assert!(request(url, &[]).is_err(), "{url}");
        }
        assert!("no colon".parse::<HeaderArg>().is_err() && "a b: c".parse::<HeaderArg>().is_err());
    }
}
