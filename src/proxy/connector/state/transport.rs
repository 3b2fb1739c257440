//! Which transport the next try takes, and whether connections have to change over. PURE, like its parent.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Time;

/// How a connection reaches the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// QUIC: UDP, no trailers.
    Quic,
    /// HTTP/2 over TLS: TCP, trailers.
    Http2,
}

impl Transport {
    /// `quic` or `http2`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Http2 => "http2",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The transport asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// QUIC where it works and no route needs trailers, else HTTP/2.
    #[default]
    Auto,
    /// QUIC, whatever happens.
    Quic,
    /// HTTP/2, whatever happens.
    Http2,
}

/// A text that names no protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown tunnel protocol {0:?}; use auto, quic or http2")]
pub struct InvalidProtocol(String);

impl FromStr for Protocol {
    type Err = InvalidProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "quic" => Ok(Self::Quic),
            "http2" => Ok(Self::Http2),
            _ => Err(InvalidProtocol(text.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Quic => "quic",
            Self::Http2 => "http2",
        })
    }
}

/// Failures in a row, over all slots, after which `auto` turns from QUIC to HTTP/2 (and back, if that fails as well).
const TOO_MANY: u8 = 2;
/// How long QUIC is left alone after that; doubles each time it turns out to be no better.
const FIRST_PAUSE: Duration = Duration::from_secs(5 * 60);
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// How long no route must have needed trailers before connections go back to QUIC: an edit in two steps moves nothing. Doubles
/// with every return, so that a route that comes and goes does not keep the connections moving.
const FIRST_HOLD: Duration = Duration::from_secs(10);
const LONGEST_HOLD: Duration = Duration::from_secs(10 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trailers {
    NotNeeded,
    Needed,
    /// Not needed any more, but HTTP/2 is kept for a while.
    Held {
        until: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quic {
    /// Taken to work; `failures` in a row since it last did.
    Usable { failures: u8, pause: Duration },
    /// Failed; tried again at `until`.
    Suspended { until: Time, pause: Duration },
    /// A handshake is under way to find out.
    Probing { pause: Duration },
}

/// The transport common to all slots.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    protocol: Protocol,
    trailers: Trailers,
    hold: Duration,
    quic: Quic,
    http2_failures: u8,
}

impl Choice {
    pub(super) fn new(protocol: Protocol, needs_trailers: bool) -> Self {
        Self {
            protocol,
            trailers: if needs_trailers { Trailers::Needed } else { Trailers::NotNeeded },
            hold: FIRST_HOLD,
            quic: Quic::Usable { failures: 0, pause: FIRST_PAUSE },
            http2_failures: 0,
        }
    }

    /// What the next try is made over.
    pub(super) fn dial(&self) -> Transport {
        match (self.protocol, self.trailers, self.quic) {
            (Protocol::Quic, ..) | (Protocol::Auto, Trailers::NotNeeded, Quic::Usable { .. }) => Transport::Quic,
            _ => Transport::Http2,
        }
    }

    /// What established connections have to change over to.
    pub(super) fn move_to(&self) -> Option<Transport> {
        match (self.protocol, self.trailers, self.quic) {
            (Protocol::Auto, Trailers::Needed, _) => Some(Transport::Http2),
            (Protocol::Auto, Trailers::NotNeeded, Quic::Usable { failures: 0, .. }) => Some(Transport::Quic),
            _ => None,
        }
    }

    pub(super) fn registered(&mut self, transport: Transport) {
        match (transport, &mut self.quic) {
            (Transport::Http2, _) => self.http2_failures = 0,
            (Transport::Quic, Quic::Usable { failures, pause }) => (*failures, *pause) = (0, FIRST_PAUSE),
            // A late success on one slot does not outweigh the failures that suspended QUIC: the probe decides.
            (Transport::Quic, Quic::Suspended { .. } | Quic::Probing { .. }) => {}
        }
    }

    /// A try over `transport` failed before the edge had answered it. `none_up`: no slot is registered.
    pub(super) fn failed(&mut self, transport: Transport, none_up: bool, now: Time) {
        match (transport, self.quic) {
            (Transport::Quic, Quic::Usable { failures, pause }) if failures + 1 >= TOO_MANY => {
                self.http2_failures = 0;
                self.suspend(pause, now);
            }
            (Transport::Quic, Quic::Usable { failures, pause }) => self.quic = Quic::Usable { failures: failures + 1, pause },
            (Transport::Quic, _) => {}
            (Transport::Http2, quic) => {
                self.http2_failures = self.http2_failures.saturating_add(1);
                if let Quic::Suspended { pause, .. } = quic
                    && none_up
                    && self.http2_failures >= TOO_MANY
                {
                    // Neither works: the network is away, or TCP is what is blocked. Take turns until one succeeds.
                    self.quic = Quic::Usable { failures: 0, pause };
                }
            }
        }
    }

    pub(super) fn probed(&mut self, usable: bool, now: Time) {
        if let Quic::Probing { pause } = self.quic {
            if usable {
                self.quic = Quic::Usable { failures: 0, pause };
            } else {
                self.suspend(pause, now);
            }
        }
    }

    fn suspend(&mut self, pause: Duration, now: Time) {
        self.quic = Quic::Suspended { until: now + pause, pause: (pause * 2).min(LONGEST_PAUSE) };
    }

    pub(super) fn needs_trailers(&mut self, needed: bool, now: Time) {
        self.trailers = match (needed, self.trailers) {
            (true, _) => Trailers::Needed,
            (false, Trailers::Needed) => Trailers::Held { until: now + self.hold },
            (false, other) => other,
        };
    }

    /// Does what is due; true when QUIC has to be probed.
    pub(super) fn settle(&mut self, now: Time) -> bool {
        if let Trailers::Held { until } = self.trailers
            && until <= now
        {
            self.trailers = Trailers::NotNeeded;
            self.hold = (self.hold * 2).min(LONGEST_HOLD);
        }
        match self.quic {
            Quic::Suspended { until, pause } if until <= now && self.may_use_quic() => {
                self.quic = Quic::Probing { pause };
                true
            }
            _ => false,
        }
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        match (self.trailers, self.quic) {
            (Trailers::Held { until }, _) => Some(until),
            (Trailers::NotNeeded, Quic::Suspended { until, .. }) if self.may_use_quic() => Some(until),
            _ => None,
        }
    }

    fn may_use_quic(&self) -> bool {
        self.protocol == Protocol::Auto && self.trailers == Trailers::NotNeeded
    }
}
