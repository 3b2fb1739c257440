//! The head of a QUIC stream that the edge opens: which kind it is, and for a request or response everything but the body
//! (tunnel-protocol §5.2 to §5.4). What a metadata key means to a request is not decided here.

use bytes::{Buf as _, Bytes, BytesMut};

use super::WireError;
use super::message::{Builder, Limits, Message, StructAt, StructReader};

/// First bytes of a request or response.
pub const DATA_SIGNATURE: [u8; 6] = [0x0a, 0x36, 0xcd, 0x12, 0xa1, 0x3e];
/// First bytes of an RPC stream.
pub const RPC_SIGNATURE: [u8; 6] = [0x52, 0xbb, 0x82, 0x5c, 0xdb, 0x65];
/// What follows [`DATA_SIGNATURE`]. Written, and read without a look: no other version was ever seen.
pub const VERSION: [u8; 2] = *b"01";

/// Metadata key of the method.
pub const HTTP_METHOD: &str = "HttpMethod";
/// Metadata key of the authority.
pub const HTTP_HOST: &str = "HttpHost";
/// Metadata key of the response's status, decimal.
pub const HTTP_STATUS: &str = "HttpStatus";
/// What a metadata key of a header starts with; the header's name follows.
pub const HTTP_HEADER: &str = "HttpHeader:";

/// Keys and values in order. Values are bytes: header values need not be UTF-8.
pub type Metadata = Vec<(String, Bytes)>;

/// What the edge opens a stream for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A request; its body follows.
    Request(ConnectRequest),
    /// An RPC stream, for [`super::rpc::ConfigurationServer`].
    Rpc,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// A URL or a path for HTTP and WebSocket, an address and port for TCP.
    pub dest: String,
    /// The protocol.
    pub kind: ConnectKind,
    /// Method, host and headers.
    pub metadata: Metadata,
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectKind {
    /// HTTP.
    Http,
    /// A WebSocket handshake, and the stream behind it.
    Websocket,
    /// Bytes to an address of a private network.
    Tcp,
}

/// The head of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Why the connector could not answer; empty when it could.
    pub error: String,
    /// Status and headers.
    pub metadata: Metadata,
}

impl Opening {
    /// Reads what a stream starts with; `None` when it is not all there yet, and then `buffer` is untouched. What follows, body
    /// or RPC messages, stays in `buffer`.
    ///
    /// # Errors
    /// When the stream starts with anything else, or with more than `limits` allow: it is to be reset.
    pub fn take(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Self>, WireError> {
        let known = buffer.len().min(DATA_SIGNATURE.len());
        if buffer[..known] == RPC_SIGNATURE[..known] {
            if known < RPC_SIGNATURE.len() {
                return Ok(None);
            }
            buffer.advance(known);
            return Ok(Some(Self::Rpc));
        }
        let Some(message) = take_signed(buffer, limits)? else { return Ok(None) };
        ConnectRequest::read(&message).map(|request| Some(Self::Request(request)))
    }
}

impl ConnectRequest {
    /// The head as bytes, signature included.
    ///
    /// # Errors
    /// When it is larger than anyone takes.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let (mut b, root) = Builder::new(1, 2);
        b.set_text(root, 0, self.dest.as_bytes());
        b.set_u16(root, 0, self.kind as u16);
        write_metadata(&mut b, root, &self.metadata);
        signed(b)
    }

    fn read(message: &Message) -> Result<Self, WireError> {
        let root = message.root()?;
        let kind = match root.u16(0) {
            0 => ConnectKind::Http,
            1 => ConnectKind::Websocket,
            2 => ConnectKind::Tcp,
            _ => return Err(WireError::Field("type")),
        };
        Ok(Self { dest: root.text(0, "dest")?.to_owned(), kind, metadata: read_metadata(message, &root)? })
    }
}

impl ConnectResponse {
    /// The head as bytes, signature included.
    ///
    /// # Errors
    /// When it is larger than anyone takes.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let (mut b, root) = Builder::new(0, 2);
        if !self.error.is_empty() {
            b.set_text(root, 0, self.error.as_bytes());
        }
        write_metadata(&mut b, root, &self.metadata);
        signed(b)
    }

    /// Reads a response's head; `None` when it is not all there yet, and then `buffer` is untouched. The body stays in `buffer`.
    ///
    /// # Errors
    /// When the stream starts with anything else, or with more than `limits` allow.
    pub fn take(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Self>, WireError> {
        let Some(message) = take_signed(buffer, limits)? else { return Ok(None) };
        let root = message.root()?;
        let error = String::from_utf8_lossy(root.text_bytes(0)?).into_owned();
        Ok(Some(Self { error, metadata: read_metadata(&message, &root)? }))
    }
}

/// Bytes in front of the message.
const HEAD: usize = DATA_SIGNATURE.len() + VERSION.len();

fn signed(b: Builder) -> Result<Vec<u8>, WireError> {
    let message = b.finish()?;
    let mut out = Vec::with_capacity(HEAD + message.len());
    out.extend_from_slice(&DATA_SIGNATURE);
    out.extend_from_slice(&VERSION);
    out.extend_from_slice(&message);
    Ok(out)
}

fn take_signed(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Message>, WireError> {
    let known = buffer.len().min(DATA_SIGNATURE.len());
    // A stream that starts wrong is refused at once, not when it has sent enough.
    if buffer[..known] != DATA_SIGNATURE[..known] {
        return Err(WireError::Signature);
    }
    if buffer.len() < HEAD {
        return Ok(None);
    }
    let head = buffer.split_to(HEAD);
    let message = Message::take(buffer, limits);
    if !matches!(message, Ok(Some(_))) {
        let rest = std::mem::replace(buffer, head);
        buffer.unsplit(rest);
    }
    message
}

fn write_metadata(b: &mut Builder, root: StructAt, metadata: &Metadata) {
    let list = b.init_structs(root, 1, metadata.len(), 0, 2);
    for (i, (key, value)) in metadata.iter().enumerate() {
        let pair = b.element(list, i);
        b.set_text(pair, 0, key.as_bytes());
        b.set_text(pair, 1, value);
    }
}

fn read_metadata(message: &Message, root: &StructReader<'_>) -> Result<Metadata, WireError> {
    let pair = |pair: StructReader<'_>| Ok((pair.text(0, "metadata key")?.to_owned(), message.share(pair.text_bytes(1)?)));
    root.list(1)?.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metadata() -> impl Strategy<Value = Metadata> {
        let value = prop::collection::vec(1u8.., 0..40).prop_map(Bytes::from);
        prop::collection::vec(("[A-Za-z:-]{0,20}", value), 0..20)
    }

    proptest! {
        #[test]
        fn requests_survive_the_trip_in_pieces(dest in ".{0,60}", kind in 0..3, metadata in metadata(), body in "[a-z]{0,9}", cut in 0usize..3000) {
            let kind = [ConnectKind::Http, ConnectKind::Websocket, ConnectKind::Tcp][kind as usize];
            let request = ConnectRequest { dest, kind, metadata };
            let mut bytes = request.encode().unwrap();
            let head = bytes.len();
            bytes.extend_from_slice(body.as_bytes());
            let cut = cut.min(head - 1);
            let mut buffer = BytesMut::from(&bytes[..cut]);
            prop_assert_eq!(Opening::take(&mut buffer, &Limits::DEFAULT).unwrap(), None);
            prop_assert_eq!(&buffer[..], &bytes[..cut], "untouched");
            buffer.extend_from_slice(&bytes[cut..]);
            prop_assert_eq!(Opening::take(&mut buffer, &Limits::DEFAULT).unwrap(), Some(Opening::Request(request)));
            prop_assert_eq!(&buffer[..], body.as_bytes());
        }

        #[test]
        fn responses_survive_the_trip(error in ".{0,60}", metadata in metadata()) {
            let response = ConnectResponse { error, metadata };
            let mut buffer = BytesMut::from(&response.encode().unwrap()[..]);
            prop_assert_eq!(ConnectResponse::take(&mut buffer, &Limits::DEFAULT).unwrap(), Some(response));
            prop_assert!(buffer.is_empty());
        }
    }

    #[test]
    fn other_streams_are_told_at_their_first_byte() {
        let take = |bytes: &[u8]| Opening::take(&mut BytesMut::from(bytes), &Limits::DEFAULT);
        assert_eq!(take(b""), Ok(None));
        assert_eq!(take(b"\x52\xbb"), Ok(None));
        assert_eq!(take(b"\x0a\x36"), Ok(None));
        assert_eq!(take(b"\x52\x36"), Err(WireError::Signature));
        assert_eq!(take(b"GET / HTTP/1.1"), Err(WireError::Signature));
        let mut buffer = BytesMut::from(&b"\x52\xbb\x82\x5c\xdb\x65rest"[..]);
        assert_eq!(Opening::take(&mut buffer, &Limits::DEFAULT), Ok(Some(Opening::Rpc)));
        assert_eq!(&buffer[..], b"rest");
    }

    #[test]
    fn a_head_over_the_limit_is_refused() {
        let request = ConnectRequest { dest: "x".repeat(2 << 20), kind: ConnectKind::Http, metadata: vec![] };
        let bytes = request.encode().unwrap();
        assert!(matches!(Opening::take(&mut BytesMut::from(&bytes[..64]), &Limits::DEFAULT), Err(WireError::TooLarge { .. })));
    }
}
