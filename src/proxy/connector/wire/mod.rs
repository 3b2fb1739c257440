//! The bytes that a connector and the edge exchange (tunnel-protocol §4.5, §5, §6, §7), for both ends: values, their
//! encoding, and the RPC peers that speak them. Bytes in, values out and back: no sockets, no clocks, no tasks here.
//!
//! The protocol uses a small and fixed part of Cap'n Proto, so the part is written out here instead of generated: every length
//! from outside is checked in one file ([`message`]), and the peers are plain state that can be tested with byte strings.

pub mod headers;
pub mod message;
pub mod registration;
pub mod rpc;
pub mod stream;

#[cfg(test)]
mod vectors;

/// Why bytes from the peer are not what the protocol says. Holds none of the bytes: they can be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message is longer than we take or make.
    #[error("a message of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Bytes that the message has or announces.
        bytes: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// More segments than we take.
    #[error("a message of {0} segments exceeds the limit")]
    TooManySegments(u64),
    /// A pointer leads out of its segment, to a segment that is not there, or to another kind of object.
    #[error("a message is malformed: {0}")]
    Malformed(&'static str),
    /// Pointers that nest too deep, or that lead to the same objects again and again.
    #[error("a message has more objects than its size allows; its pointers loop or repeat")]
    Amplified,
    /// A text that is not UTF-8.
    #[error("the {0} is not valid UTF-8")]
    NotText(&'static str),
    /// A field that is not what it must be.
    #[error("the field {0} is missing or malformed")]
    Field(&'static str),
    /// A stream that starts with something else.
    #[error("a stream does not start with a known signature")]
    Signature,
    /// The peer broke the rules of the RPC protocol.
    #[error("the peer broke the rpc protocol: {0}")]
    Protocol(&'static str),
    /// This end has already given up on the stream.
    #[error("the rpc stream is closed after an earlier error")]
    Closed,
}
