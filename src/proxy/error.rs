//! What can go wrong with a request: what it was, whose fault, and what follows from it.
//!
//! [`Kind`] alone decides the status code, whether another attempt is safe and the label in metrics. Errors of configuration
//! and of connections to the edge have their own types where they arise.

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;

type Source = Box<dyn StdError + Send + Sync>;

/// Why a request did not get a backend's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No host, or one that is not a host.
    BadHost,
    /// A path that does not start with `/`, or a method that this proxy cannot forward.
    BadTarget,
    /// Lengths that contradict each other, or are not numbers.
    BadLength,
    /// More headers, or larger ones, than are accepted.
    HeadTooLarge,
    /// The request's body ended early, was too long or was cut off.
    RequestBody,
    /// No rule matches.
    NoRule,
    /// The rule or the backendRef cannot be served as written; it fails closed.
    Refused,
    /// No configuration has arrived yet.
    NoConfig,
    /// The backend has no endpoints.
    NoEndpoints,
    /// No connection to any endpoint that was tried.
    Connect,
    /// The connection to the backend ended before the head of the response.
    Closed,
    /// A response that is not HTTP, or one that cannot be passed on.
    BadResponse,
    /// The backend switched protocols although nobody asked.
    Switched,
    /// The head of the response did not come in time.
    HeadTimeout,
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's, or the edge's.
    Downstream,
    /// The backend's.
    Upstream,
    /// Ours, or the configuration's.
    Internal,
}

/// Whether the same request may be sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The outcome would be the same, or the backend may have acted on the first one.
    Never,
    /// The backend has not seen the request (X6).
    Always,
    /// The backend may have seen it: only when the method is idempotent and the body can be sent again (RFC 9110 §9.2.2).
    Idempotent,
}

impl Kind {
    /// Every kind, in the order of its declaration.
    pub const ALL: [Self; 14] = [
        Self::BadHost,
        Self::BadTarget,
        Self::BadLength,
        Self::HeadTooLarge,
        Self::RequestBody,
        Self::NoRule,
        Self::Refused,
        Self::NoConfig,
        Self::NoEndpoints,
        Self::Connect,
        Self::Closed,
        Self::BadResponse,
        Self::Switched,
        Self::HeadTimeout,
    ];

    /// The status for a client that is not gRPC (S3 "Unavailable backends return a status").
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadHost | Self::BadTarget | Self::BadLength | Self::RequestBody => StatusCode::BAD_REQUEST,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::NoRule => StatusCode::NOT_FOUND,
            Self::Refused => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoConfig | Self::NoEndpoints => StatusCode::SERVICE_UNAVAILABLE,
            Self::Connect | Self::Closed | Self::BadResponse | Self::Switched => StatusCode::BAD_GATEWAY,
            Self::HeadTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Whose fault it is.
    pub fn side(self) -> Side {
        match self {
            Self::BadHost | Self::BadTarget | Self::BadLength | Self::HeadTooLarge | Self::RequestBody => Side::Downstream,
            Self::NoRule | Self::Refused | Self::NoConfig => Side::Internal,
            Self::NoEndpoints | Self::Connect | Self::Closed | Self::BadResponse | Self::Switched | Self::HeadTimeout => {
                Side::Upstream
            }
        }
    }

    /// Whether another attempt is safe.
    pub fn retry(self) -> Retry {
        match self {
            Self::Connect => Retry::Always,
            Self::Closed => Retry::Idempotent,
            _ => Retry::Never,
        }
    }

    /// The value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::BadHost => "bad_host",
            Self::BadTarget => "bad_target",
            Self::BadLength => "bad_length",
            Self::HeadTooLarge => "head_too_large",
            Self::RequestBody => "request_body",
            Self::NoRule => "no_rule",
            Self::Refused => "refused",
            Self::NoConfig => "no_config",
            Self::NoEndpoints => "no_endpoints",
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::BadResponse => "bad_response",
            Self::Switched => "switched",
            Self::HeadTimeout => "head_timeout",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadHost => "the request has no valid host",
            Self::BadTarget => "the request's method or path cannot be forwarded",
            Self::BadLength => "the request's length is contradictory",
            Self::HeadTooLarge => "the request has too many or too large headers",
            Self::RequestBody => "the request's body was cut off or had another length than declared",
            Self::NoRule => "no rule matches the request",
            Self::Refused => "the rule or its backend cannot be served as written",
            Self::NoConfig => "no configuration has arrived yet",
            Self::NoEndpoints => "the backend has no ready endpoints",
            Self::Connect => "no connection to the backend",
            Self::Closed => "the backend closed the connection before its response",
            Self::BadResponse => "the backend's response is malformed",
            Self::Switched => "the backend switched protocols unasked",
            Self::HeadTimeout => "the backend did not respond in time",
        })
    }
}

/// A failed request.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct Error {
    kind: Kind,
    #[source]
    source: Option<Source>,
}

impl Error {
    /// An error with its cause.
    pub fn new(kind: Kind, source: impl Into<Source>) -> Self {
        Self { kind, source: Some(source.into()) }
    }

    /// What it was.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whose fault it is.
    pub fn side(&self) -> Side {
        self.kind.side()
    }

    /// The causes, outermost first, for one line of a log.
    pub fn causes(&self) -> String {
        let mut causes = Vec::new();
        let mut next = StdError::source(self);
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        causes.join(": ")
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Self { kind, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_every_kind_once_in_the_order_of_its_discriminant() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i, "{kind:?}");
        }
        assert_eq!(Kind::ALL.len(), Kind::HeadTimeout as usize + 1);
    }

    #[test]
    fn only_what_the_backend_has_not_seen_is_always_retried() {
        let always: Vec<_> = Kind::ALL.into_iter().filter(|k| k.retry() == Retry::Always).collect();
        assert_eq!(always, [Kind::Connect]);
    }

    #[test]
    fn causes_are_told_in_one_line() {
        let inner = Error::new(Kind::Connect, std::io::Error::other("no route"));
        assert_eq!(Error::new(Kind::Closed, inner).causes(), "no connection to the backend: no route");
        assert_eq!(Error::from(Kind::NoRule).causes(), "");
    }

    #[test]
    fn the_fault_of_a_client_is_never_a_server_error() {
        for kind in Kind::ALL {
            assert_eq!(kind.side() == Side::Downstream, kind != Kind::NoRule && kind.status().is_client_error(), "{kind:?}");
        }
    }
}
