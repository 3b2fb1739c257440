//! Errors towards gRPC clients, which cannot read an HTTP status: chosen by the content type of the request, not by the kind
//! of its route (S3 "Unavailable backends return a status", X13).

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::Body;

/// Whether the request is gRPC: content type `application/grpc`, alone or with a subtype (`+proto`) or parameters.
/// `application/grpc-web` is another protocol.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        value.len() >= GRPC.len()
            && value[..GRPC.len()].eq_ignore_ascii_case(GRPC)
            && matches!(value.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
    })
}

/// The gRPC status that stands for an HTTP status: the mapping of the gRPC specification, but UNAVAILABLE for every server
/// error (X13), a timeout of ours included: it is not the deadline that the client set.
fn code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "12",
        _ if status.is_server_error() => "14",
        _ => "13",
    }
}

/// An error as a response without messages ("Trailers-Only"): the status stands in the head, so that it passes through every
/// transport.
pub(super) fn error_response(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code(status)));
    if let Ok(message) = HeaderValue::try_from(encode_message(message)) {
        headers.insert("grpc-message", message);
    }
    response
}

/// Percent-encoding of `grpc-message`: everything outside printable ASCII, and `%` itself.
fn encode_message(message: &str) -> String {
    const SET: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b'%');
    percent_encoding::utf8_percent_encode(message, SET).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content_type(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(value))])
    }

    #[test]
    fn grpc_is_told_by_content_type() {
        for yes in ["application/grpc", "application/grpc+proto", "Application/GRPC", "application/grpc; charset=utf-8"] {
            assert!(is_grpc(&content_type(yes)), "{yes}");
        }
        for no in ["application/grpc-web", "application/grpcx", "application/json", "grpc", ""] {
            assert!(!is_grpc(&content_type(no)), "{no}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn every_server_error_is_unavailable() {
        for status in [500, 502, 503, 504] {
            assert_eq!(code(StatusCode::from_u16(status).unwrap()), "14");
        }
        assert_eq!(code(StatusCode::NOT_FOUND), "12");
        assert_eq!(code(StatusCode::BAD_REQUEST), "13");
    }

    #[test]
    fn the_message_is_percent_encoded() {
        assert_eq!(encode_message("100 % naïve\n"), "100 %25 na%C3%AFve%0A");
    }
}
