//! The head of a QUIC stream: nothing panics, a head is the same however its bytes arrive, and what is read can be written and
//! read again.

use bytes::BytesMut;
use cftunnel::proxy::connector::wire::message::Limits;
use cftunnel::proxy::connector::wire::stream::{ConnectResponse, Opening};

pub(crate) fn target(data: &[u8]) {
    let mut whole = BytesMut::from(data);
    let request = Opening::take(&mut whole, &Limits::DEFAULT);
    let mut response_bytes = BytesMut::from(data);
    let response = ConnectResponse::take(&mut response_bytes, &Limits::DEFAULT);
    // Byte by byte, the head is there no earlier than its last byte, and it is the same.
    if let (Ok(Some(opening)), true) = (&request, data.len() < 4096) {
        let mut slow = BytesMut::new();
        let taken = data.len() - whole.len();
        for (n, byte) in data.iter().enumerate().take(taken) {
            slow.extend_from_slice(&[*byte]);
            let read = Opening::take(&mut slow, &Limits::DEFAULT).expect("a prefix of a valid head is not invalid");
            assert_eq!(read.is_some(), n + 1 == taken, "a head is there when its last byte is");
            assert!(read.is_none_or(|read| read == *opening));
        }
    }
    if let Ok(Some(Opening::Request(request))) = request
        && let Ok(bytes) = request.encode()
    {
        let again = Opening::take(&mut BytesMut::from(&bytes[..]), &Limits::DEFAULT).expect("our own head");
        assert_eq!(again, Some(Opening::Request(request)));
    }
    if let Ok(Some(response)) = response
        && let Ok(bytes) = response.encode()
    {
        let again = ConnectResponse::take(&mut BytesMut::from(&bytes[..]), &Limits::DEFAULT).expect("our own head");
        assert_eq!(again, Some(response));
    }
}
