//! Serialised headers: nothing panics, what is read is valid HTTP, and what is written is read back, except what is never passed
//! on.

use cftunnel::proxy::connector::wire::headers::{append_all, is_passed_on, parse};
use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) fn target(data: &[u8]) {
    if let Ok(headers) = parse(data) {
        round_trip(&headers);
    }
    // The same bytes as lines of a header, which is how a backend's response gets here.
    let mut headers = HeaderMap::new();
    for line in data.split(|b| *b == b'\n') {
        let mut halves = line.splitn(2, |b| *b == b':');
        let (Some(name), Some(value)) = (halves.next(), halves.next()) else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    round_trip(&headers);
}

fn round_trip(headers: &HeaderMap) {
    let mut text = Vec::new();
    append_all(&mut text, headers);
    assert!(text.iter().all(|b| b.is_ascii_graphic()), "serialised headers are not printable");
    let Ok(again) = parse(&text) else { panic!("serialised headers cannot be read") };
    let kept: HeaderMap =
        headers.iter().filter(|(name, _)| is_passed_on(name.as_str().as_bytes())).map(|(n, v)| (n.clone(), v.clone())).collect();
    for name in kept.keys() {
        let (was, is): (Vec<_>, Vec<_>) = (headers.get_all(name).iter().collect(), again.get_all(name).iter().collect());
        assert_eq!(was, is, "{name} changes on its way");
    }
    assert!(again.keys().all(|name| kept.contains_key(name)), "a header appears on the way");
}
