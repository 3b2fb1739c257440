//! Response headers on HTTP/2 travel in one header of the tunnel, so that the edge sees them as the origin sent them
//! (tunnel-protocol §4.5). Also the names of the tunnel's own headers. What is hop-by-hop is the request path's business.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::WireError;

/// Says that a stream is no plain request; one of the `UPGRADE_…` values.
pub const UPGRADE: &str = "cf-cloudflared-proxy-connection-upgrade";
/// Value of [`UPGRADE`] on the control stream.
pub const UPGRADE_CONTROL_STREAM: &str = "control-stream";
/// Value of [`UPGRADE`] on a configuration push.
pub const UPGRADE_CONFIGURATION: &str = "update-configuration";
/// Value of [`UPGRADE`] on a WebSocket.
pub const UPGRADE_WEBSOCKET: &str = "websocket";
/// Present and not empty on a TCP flow of a private network.
pub const PROXY_SRC: &str = "cf-cloudflared-proxy-src";
/// Carries the serialised headers.
pub const RESPONSE_HEADERS: &str = "cf-cloudflared-response-headers";
/// Says who made the response; one of the `META_…` values.
pub const RESPONSE_META: &str = "cf-cloudflared-response-meta";
/// Value of [`RESPONSE_META`] when the origin did.
pub const META_ORIGIN: &str = r#"{"src":"origin"}"#;
/// Value of [`RESPONSE_META`] when the connector did.
pub const META_CONNECTOR: &str = r#"{"src":"cloudflared"}"#;

/// Most bytes of serialised headers that are read.
const MAX_SERIALISED: usize = 1 << 20;

/// Whether a response header is passed on. Names of the tunnel's own headers are not, whatever sends them.
pub fn is_passed_on(name: &[u8]) -> bool {
    const DROPPED: [&[u8]; 4] = [b":", b"cf-int-", b"cf-cloudflared-", b"cf-proxy-"];
    // `sec-websocket-accept`, `connection` and `upgrade` are always kept; none of the prefixes drops them.
    !DROPPED.iter().any(|prefix| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)))
}

/// Appends one header to the serialised ones in `out`, unless it is not passed on.
pub fn append(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if !is_passed_on(name) {
        return;
    }
    if !out.is_empty() {
        out.push(b';');
    }
    append_base64(out, name);
    out.push(b':');
    append_base64(out, value);
}

/// Appends all of `headers`, in their order.
pub fn append_all(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        append(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// Reads serialised headers. Names and values that HTTP does not allow are left out, as a header that no client could be sent.
///
/// # Errors
/// When the text is not of this form.
pub fn parse(text: &[u8]) -> Result<HeaderMap, WireError> {
    const MALFORMED: WireError = WireError::Malformed("the serialised response headers");
    if text.len() > MAX_SERIALISED {
        return Err(WireError::TooLarge { bytes: text.len() as u64, limit: MAX_SERIALISED as u64 });
    }
    let mut headers = HeaderMap::new();
    for pair in text.split(|b| *b == b';').filter(|pair| !pair.is_empty()) {
        let colon = pair.iter().position(|b| *b == b':').ok_or(MALFORMED)?;
        let name = STANDARD_NO_PAD.decode(&pair[..colon]).map_err(|_| MALFORMED)?;
        let value = STANDARD_NO_PAD.decode(&pair[colon + 1..]).map_err(|_| MALFORMED)?;
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&name), HeaderValue::from_maybe_shared(bytes::Bytes::from(value)))
        {
            headers.try_append(name, value).map_err(|_| WireError::Malformed("more response headers than a map holds"))?;
        }
    }
    Ok(headers)
}

fn append_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room above is what padding would need, so this cannot fail; without room nothing would be written.
    let written = STANDARD_NO_PAD.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
    out.truncate(start + written);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_the_tunnel_are_not_passed_on() {
        let mut out = Vec::new();
        for name in [":status", "cf-int-x", "Cf-Int-", "cf-cloudflared-response-meta", "CF-Proxy-Worker"] {
            append(&mut out, name.as_bytes(), b"v");
        }
        assert_eq!(out, b"");
        for name in ["sec-websocket-accept", "connection", "upgrade", "cf-ray", "cf-in", "content-length"] {
            append(&mut out, name.as_bytes(), b"v");
        }
        assert_eq!(parse(&out).unwrap().len(), 6);
    }

    #[test]
    fn what_http_does_not_allow_is_left_out_and_what_is_no_list_refused() {
        let mut out = Vec::new();
        append(&mut out, b"bad name", b"v");
        append(&mut out, b"bad-value", b"a\r\nb: c");
        append(&mut out, b"good", b"caf\xe9");
        let headers = parse(&out).unwrap();
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["good"].as_bytes(), b"caf\xe9");
        assert!(parse(b"").unwrap().is_empty());
        for bad in ["YQ", "YQ:*", "*:YQ", "YQ==:YQ"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn headers_survive_the_trip(pairs in prop::collection::vec(("[a-z]{1,12}", "[ -~]{0,30}"), 0..20)) {
            let mut headers = HeaderMap::new();
            for (name, value) in &pairs {
                headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value.trim()).unwrap());
            }
            let mut out = Vec::new();
            append_all(&mut out, &headers);
            prop_assert_eq!(parse(&out).unwrap(), headers);
        }
    }
}
