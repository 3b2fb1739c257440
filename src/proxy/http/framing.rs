//! How long messages are, and how large their heads may be: checked once on the way in, so that what reaches a backend or a
//! client has exactly one length (request smuggling, RFC 9112 §11.2). Nothing here looks at a body's bytes.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Uri};

use crate::proxy::error::{Error, Kind};

/// Most header fields of a request. nginx has no such limit, Go and Envoy have 100 to 1000; the edge itself adds about 15.
pub(super) const MAX_FIELDS: usize = 200;
/// Most bytes of a request's target and header fields. The edge accepts 128 KB in all.
pub(super) const MAX_HEAD: usize = 128 * 1024;

/// Checks the size of a head.
///
/// # Errors
/// [`Kind::HeadTooLarge`].
pub(super) fn check_size(uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    let target = uri.path().len() + uri.query().map_or(0, str::len);
    let fields: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MAX_FIELDS || target + fields > MAX_HEAD {
        return Err(Kind::HeadTooLarge.into());
    }
    Ok(())
}

/// Checks that a method and a target can be forwarded: a path that starts with `/`, or `*` for OPTIONS. CONNECT asks for a
/// tunnel and never gets one here.
///
/// # Errors
/// [`Kind::BadTarget`].
pub(super) fn check_target(method: &Method, uri: &Uri) -> Result<(), Error> {
    let path = uri.path();
    let valid = *method != Method::CONNECT && (path.starts_with('/') || (path == "*" && *method == Method::OPTIONS));
    if valid { Ok(()) } else { Err(Kind::BadTarget.into()) }
}

/// The declared length of a request's body; reduces repetitions of one value to a single field.
///
/// # Errors
/// [`Kind::BadLength`]: not a number, numbers that differ, or a length beside a transfer coding.
pub(super) fn request_length(headers: &mut HeaderMap) -> Result<Option<u64>, Error> {
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(Kind::BadLength.into());
    }
    single_length(headers).ok_or_else(|| Kind::BadLength.into())
}

/// The declared length of a response; reduces repetitions of one value to a single field. A transfer coding overrides it
/// (RFC 9112 §6.3), and any coding but `chunked` was not undone by the client and cannot be passed on.
///
/// # Errors
/// [`Kind::BadResponse`].
pub(super) fn response_length(headers: &mut HeaderMap) -> Result<Option<u64>, Error> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => single_length(headers).ok_or_else(|| Kind::BadResponse.into()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            headers.remove(CONTENT_LENGTH);
            Ok(None)
        }
        _ => Err(Kind::BadResponse.into()),
    }
}

/// `Some(None)` without the field, `None` when it is no single number.
fn single_length(headers: &mut HeaderMap) -> Option<Option<u64>> {
    let mut length = None;
    let mut listed = 0;
    for value in headers.get_all(CONTENT_LENGTH) {
        for item in value.as_bytes().split(|b| *b == b',') {
            let item = item.trim_ascii();
            // u64's own parser takes a sign, which a length does not have.
            if item.is_empty() || !item.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let number: u64 = std::str::from_utf8(item).ok()?.parse().ok()?;
            if length.is_some_and(|known| known != number) {
                return None;
            }
            length = Some(number);
            listed += 1;
        }
    }
    if let (Some(length), 2..) = (length, listed) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn one_length_or_none_at_all() {
        const CL: &str = "content-length";
        for (pairs, want) in [
            (&[][..], Some(None)),
            (&[(CL, "5")], Some(Some(5))),
            (&[(CL, " 5 ")], Some(Some(5))),
            (&[(CL, "5"), (CL, "5")], Some(Some(5))),
            (&[(CL, "5, 5")], Some(Some(5))),
            (&[(CL, "0")], Some(Some(0))),
            (&[(CL, "5"), (CL, "6")], None),
            (&[(CL, "5,6")], None),
            (&[(CL, "")], None),
            (&[(CL, "+5")], None),
            (&[(CL, "-5")], None),
            (&[(CL, "0x5")], None),
            (&[(CL, "5 5")], None),
            (&[(CL, "18446744073709551616")], None),
            (&[(CL, "5"), ("transfer-encoding", "chunked")], None),
        ] {
            let mut map = headers(pairs);
            assert_eq!(request_length(&mut map).ok(), want, "{pairs:?}");
            if let Some(Some(length)) = want
                && pairs.len() > 1
            {
                assert_eq!(map.get_all(CL).iter().collect::<Vec<_>>(), [&HeaderValue::from(length)]);
            }
        }
    }

    #[test]
    fn a_coding_of_a_response_overrides_its_length_or_makes_it_unusable() {
        let mut both = headers(&[("content-length", "5"), ("transfer-encoding", "Chunked")]);
        assert_eq!(response_length(&mut both).ok(), Some(None));
        assert!(!both.contains_key(CONTENT_LENGTH));
        for bad in ["gzip", "gzip, chunked", "chunked, chunked", "identity"] {
            assert!(response_length(&mut headers(&[("transfer-encoding", bad)])).is_err(), "{bad}");
        }
    }

    #[test]
    fn targets() {
        for (method, target, ok) in [
            (Method::GET, "/", true),
            (Method::GET, "/a//b/../%00?x", true),
            (Method::OPTIONS, "*", true),
            (Method::GET, "*", false),
            (Method::CONNECT, "/", false),
        ] {
            assert_eq!(check_target(&method, &target.parse().unwrap()).is_ok(), ok, "{method} {target}");
        }
    }

    #[test]
    fn a_header_of_60_kb_passes_and_bombs_do_not() {
        let uri = Uri::from_static("/");
        assert!(check_size(&uri, &headers(&[("a", &"x".repeat(60_000))])).is_ok());
        assert!(check_size(&uri, &headers(&[("a", &"x".repeat(MAX_HEAD))])).is_err());
        let many: Vec<_> = (0..=MAX_FIELDS).map(|_| ("a", "1")).collect();
        assert!(check_size(&uri, &headers(&many)).is_err());
        assert!(check_size(&uri, &headers(&many[1..])).is_ok());
    }
}
