//! The life of the tunnel connections: `(State, Event, now) -> (State, Vec<Effect>)`.
//!
//! PURE: no I/O, no tasks, no clock and no chance but what is passed in. What dials, registers and serves lives in
//! `supervisor`; it may decide nothing that is decided here.
//!
//! Each slot (connection index) has its own life and its own backoff: slots never wait for each other, and no refusal ends
//! anything but one try. Only the choice of the transport is common to all.

mod transport;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use super::backoff::Backoff;
use transport::Choice;
pub use transport::{InvalidProtocol, Protocol, Transport};

/// Time since the connector was started.
pub type Time = Duration;

/// Rest between two moves: the edge spreads the news of a new connection, and a plane must not be without one meanwhile.
const MOVE_REST: Duration = Duration::from_secs(1);

/// Names one try to connect and the connection that came of it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialId(pub u64);

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed; whatever is due is done.
    Tick,
    /// The edge has accepted the registration.
    Registered(DialId),
    /// A try has failed, or a connection is gone.
    Lost(DialId, Loss),
    /// The edge has said that it will close the connection (HTTP/2 GOAWAY).
    Leaving(DialId),
    /// A retired connection gets no new requests any more: its unregistration was answered, or has taken too long.
    Unregistered(DialId),
    /// A retired connection is closed; its last request has ended or was cut. Or a try was given up.
    Closed(DialId),
    /// The outcome of [`Effect::Probe`].
    Probed {
        /// Whether a QUIC handshake with the edge succeeded.
        usable: bool,
    },
    /// Whether any route needs trailers, which QUIC does not carry (tunnel-protocol §5.4).
    NeedsTrailers(bool),
    /// Unregister everything, let the requests in flight end, stop.
    Drain,
}

/// Why a try failed or a connection ended; decides what the next try does differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// There was no address to dial.
    NoAddress,
    /// Connecting, the handshake or the registration call failed or took too long.
    Dial,
    /// The edge answered the registration with an error.
    Refused {
        /// This connector has a connection to that edge server already (`EDUPCONN`).
        duplicate: bool,
        /// How long the edge asks to wait.
        retry_after: Option<Duration>,
    },
    /// The peer fell silent.
    Silent,
    /// Anything else that ends an established connection.
    Ended,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect and register.
    Dial {
        /// The slot: the connection index of the registration.
        slot: u8,
        /// The name of this try.
        dial: DialId,
        /// Over what.
        transport: Transport,
        /// Take another address than last time.
        rotate: bool,
        /// Tries since the last registration.
        attempts: u8,
    },
    /// Unregister, let the requests in flight end, close.
    Retire(DialId),
    /// Give up a try that is under way, unless it is registering already: the edge may send requests before we have read its
    /// answer. Answered by [`Event::Closed`], or by what the registration came to.
    Abort(DialId),
    /// Find out whether a QUIC handshake succeeds, without registering.
    Probe,
    /// The drain is complete.
    Finished,
}

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Waits for its next try.
    Waiting {
        /// When it comes.
        until: Time,
    },
    /// Connects and registers.
    Dialing {
        /// The try.
        dial: DialId,
        /// Over what.
        transport: Transport,
    },
    /// Registered: the edge sends requests.
    Up {
        /// The connection.
        dial: DialId,
        /// Over what.
        transport: Transport,
    },
    /// Unregistering; the slot dials again once the edge has answered.
    Retiring {
        /// The connection.
        dial: DialId,
        /// Over what.
        transport: Transport,
    },
    /// Drained.
    Stopped,
}

#[derive(Clone, Debug)]
struct Slot {
    life: Life,
    backoff: Backoff,
    rotate: bool,
    since: Time,
}

/// What is fixed for the life of a connector.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of connections.
    pub connections: u8,
    /// The transport asked for.
    pub protocol: Protocol,
    /// Whether routes need trailers at the start.
    pub needs_trailers: bool,
    /// Source of all jitter.
    pub seed: u64,
}

/// All connections of a connector.
#[derive(Clone, Debug)]
pub struct State {
    slots: Vec<Slot>,
    choice: Choice,
    /// The slot that was retired in order to change its transport and has not registered again.
    moving: Option<usize>,
    /// No slot is moved before this.
    next_move_at: Time,
    /// Retired connections that still have requests.
    lingering: BTreeSet<DialId>,
    dials: u64,
    chance: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Finished,
}

impl State {
    /// Nothing is connected; the first [`Event::Tick`] dials every slot.
    pub fn new(settings: Settings) -> Self {
        let idle =
            Slot { life: Life::Waiting { until: Time::ZERO }, backoff: Backoff::default(), rotate: false, since: Time::ZERO };
        Self {
            slots: vec![idle; usize::from(settings.connections.max(1))],
            choice: Choice::new(settings.protocol, settings.needs_trailers),
            moving: None,
            next_move_at: Time::ZERO,
            lingering: BTreeSet::new(),
            dials: 0,
            chance: settings.seed,
            phase: Phase::Serving,
        }
    }

    /// Takes in an event. An event that names a connection which is no more is ignored.
    #[must_use]
    pub fn step(mut self, event: Event, now: Time) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        match event {
            Event::Tick => {}
            Event::Registered(dial) => self.registered(dial, now, &mut effects),
            Event::Lost(dial, loss) => self.lost(dial, loss, now),
            Event::Leaving(dial) => self.retire(|life| matches!(life, Life::Up { dial: d, .. } if *d == dial), now, &mut effects),
            Event::Unregistered(dial) => self.unregistered(dial, now),
            Event::Closed(dial) => self.closed(dial, now),
            Event::Probed { usable } => self.choice.probed(usable, now),
            Event::NeedsTrailers(needed) => self.choice.needs_trailers(needed, now),
            Event::Drain => self.drain(now, &mut effects),
        }
        self.settle(now, &mut effects);
        (self, effects)
    }

    /// When the next [`Event::Tick`] is due, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Time> {
        if self.phase != Phase::Serving {
            return None;
        }
        let waits = self.slots.iter().filter_map(|s| match s.life {
            Life::Waiting { until } => Some(until),
            _ => None,
        });
        let next_move = self.next_move().map(|_| self.next_move_at);
        waits.chain(self.choice.wake_at()).chain(next_move).min()
    }

    /// What each slot is doing, since when, and how many failures in a row it has had.
    pub fn slots(&self) -> impl Iterator<Item = (Life, Time, u32)> + '_ {
        self.slots.iter().map(|s| (s.life, s.since, s.backoff.failures()))
    }

    /// Number of registered connections.
    pub fn registered_count(&self) -> usize {
        self.slots.iter().filter(|s| matches!(s.life, Life::Up { .. })).count()
    }

    /// What the next try is made over.
    pub fn transport(&self) -> Transport {
        self.choice.dial()
    }

    fn registered(&mut self, dial: DialId, now: Time, effects: &mut Vec<Effect>) {
        let Some(index) = self.find(dial) else { return };
        let Life::Dialing { transport, .. } = self.slots[index].life else { return };
        let slot = &mut self.slots[index];
        slot.backoff.reset();
        slot.rotate = false;
        slot.enter(Life::Up { dial, transport }, now);
        self.choice.registered(transport);
        if self.moving == Some(index) {
            self.moving = None;
            self.next_move_at = now + MOVE_REST;
        }
        if self.phase != Phase::Serving {
            self.retire(|life| matches!(life, Life::Up { dial: d, .. } if *d == dial), now, effects);
        }
    }

    fn lost(&mut self, dial: DialId, loss: Loss, now: Time) {
        self.lingering.remove(&dial);
        let Some(index) = self.find(dial) else { return };
        let chance = self.draw();
        let none_up = self.registered_count() == 0;
        let slot = &mut self.slots[index];
        match slot.life {
            Life::Retiring { .. } => return self.unregistered(dial, now),
            Life::Dialing { transport, .. } if loss == Loss::Dial || loss == Loss::Silent => {
                self.choice.failed(transport, none_up, now);
            }
            _ => {}
        }
        let hint = match loss {
            Loss::Refused { retry_after, .. } => retry_after,
            _ => None,
        };
        // The same address again is right only when the edge has spoken from it.
        slot.rotate = matches!(loss, Loss::Dial | Loss::Silent | Loss::Refused { duplicate: true, .. });
        let until = now + slot.backoff.next(chance, hint);
        let next = if self.phase == Phase::Serving { Life::Waiting { until } } else { Life::Stopped };
        slot.enter(next, now);
    }

    /// Retires the slots that are up and that `which` picks.
    fn retire(&mut self, which: impl Fn(&Life) -> bool, now: Time, effects: &mut Vec<Effect>) {
        for slot in &mut self.slots {
            if let Life::Up { dial, transport } = slot.life
                && which(&slot.life)
            {
                slot.enter(Life::Retiring { dial, transport }, now);
                self.lingering.insert(dial);
                effects.push(Effect::Retire(dial));
            }
        }
    }

    fn unregistered(&mut self, dial: DialId, now: Time) {
        let Some(index) = self.find(dial) else { return };
        if matches!(self.slots[index].life, Life::Retiring { .. }) {
            let next = if self.phase == Phase::Serving { Life::Waiting { until: now } } else { Life::Stopped };
            self.slots[index].enter(next, now);
        }
    }

    fn closed(&mut self, dial: DialId, now: Time) {
        self.unregistered(dial, now);
        self.lingering.remove(&dial);
        if self.phase == Phase::Draining
            && let Some(index) = self.find(dial)
            && matches!(self.slots[index].life, Life::Dialing { .. })
        {
            self.slots[index].enter(Life::Stopped, now);
        }
    }

    fn drain(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::Draining;
        self.retire(|_| true, now, effects);
        for slot in &mut self.slots {
            match slot.life {
                Life::Waiting { .. } => slot.enter(Life::Stopped, now),
                Life::Dialing { dial, .. } => effects.push(Effect::Abort(dial)),
                Life::Up { .. } | Life::Retiring { .. } | Life::Stopped => {}
            }
        }
    }

    /// Does what is due.
    fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Serving => {}
            Phase::Draining if self.lingering.is_empty() && self.slots.iter().all(|s| s.life == Life::Stopped) => {
                self.phase = Phase::Finished;
                return effects.push(Effect::Finished);
            }
            Phase::Draining | Phase::Finished => return,
        }
        if self.choice.settle(now) {
            effects.push(Effect::Probe);
        }
        for index in 0..self.slots.len() {
            if matches!(self.slots[index].life, Life::Waiting { until } if until <= now) {
                effects.push(self.dial(index, now));
            }
        }
        if let Some(index) = self.next_move().filter(|_| self.next_move_at <= now) {
            self.moving = Some(index);
            let life = self.slots[index].life;
            self.retire(|l| *l == life, now, effects);
        }
    }

    fn dial(&mut self, index: usize, now: Time) -> Effect {
        self.dials += 1;
        let (dial, transport) = (DialId(self.dials), self.choice.dial());
        let slot = &mut self.slots[index];
        slot.enter(Life::Dialing { dial, transport }, now);
        Effect::Dial {
            slot: u8::try_from(index).unwrap_or(u8::MAX),
            dial,
            transport,
            rotate: std::mem::take(&mut slot.rotate),
            attempts: u8::try_from(slot.backoff.failures()).unwrap_or(u8::MAX),
        }
    }

    /// The slot to change over to another transport: one at a time, and only while another one serves.
    fn next_move(&self) -> Option<usize> {
        let to = self.choice.move_to()?;
        let retiring = self.slots.iter().any(|s| matches!(s.life, Life::Retiring { .. }));
        let alone = self.slots.len() > 1 && self.registered_count() < 2;
        if self.moving.is_some() || retiring || alone {
            return None;
        }
        self.slots.iter().position(|s| matches!(s.life, Life::Up { transport, .. } if transport != to))
    }

    fn find(&self, dial: DialId) -> Option<usize> {
        self.slots.iter().position(|s| match s.life {
            Life::Dialing { dial: d, .. } | Life::Up { dial: d, .. } | Life::Retiring { dial: d, .. } => d == dial,
            Life::Waiting { .. } | Life::Stopped => false,
        })
    }

    /// The next number of a splitmix64 sequence: jitter needs spread, not secrecy.
    fn draw(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Slot {
    fn enter(&mut self, life: Life, now: Time) {
        self.life = life;
        self.since = now;
    }
}
