//! Simulated time: a scripted edge answers each effect, no clock runs.

use super::*;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A state with a clock and a record of what it asked for.
struct Sim {
    state: State,
    now: Time,
    asked: Vec<(Time, Effect)>,
    taken: usize,
}

impl Sim {
    fn new(protocol: Protocol, needs_trailers: bool) -> Self {
        Self::with(Settings { connections: 4, protocol, needs_trailers, seed: 7 })
    }

    fn with(settings: Settings) -> Self {
        let mut sim = Self { state: State::new(settings), now: Time::ZERO, asked: Vec::new(), taken: 0 };
        sim.send(Event::Tick);
        sim
    }

    fn send(&mut self, event: Event) {
        let (state, effects) = self.state.clone().step(event, self.now);
        self.state = state;
        self.asked.extend(effects.into_iter().map(|e| (self.now, e)));
    }

    /// Lets time pass, ticking whenever the state has asked for it.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.state.wake_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.send(Event::Tick);
        }
        self.now = end;
    }

    /// The effects since the last call.
    fn take(&mut self) -> Vec<(Time, Effect)> {
        let fresh = self.asked[self.taken..].to_vec();
        self.taken = self.asked.len();
        fresh
    }

    fn dials(&mut self) -> Vec<(u8, DialId, Transport)> {
        let dial = |(_, e)| match e {
            Effect::Dial { slot, dial, transport, .. } => Some((slot, dial, transport)),
            _ => None,
        };
        self.take().into_iter().filter_map(dial).collect()
    }

    /// Registers everything that has been dialed since the last call.
    fn accept(&mut self) -> Vec<(u8, DialId, Transport)> {
        let dials = self.dials();
        for (_, dial, _) in &dials {
            self.send(Event::Registered(*dial));
        }
        dials
    }

    /// Fails everything that has been dialed since the last call, as an edge that does not answer would after 3 s.
    fn fail(&mut self) -> Vec<(u8, DialId, Transport)> {
        let dials = self.dials();
        self.now += secs(3);
        for (_, dial, _) in &dials {
            self.send(Event::Lost(*dial, Loss::Dial));
        }
        dials
    }

    fn up(&self) -> Vec<Transport> {
        let up = |(life, _, _)| match life {
            Life::Up { transport, .. } => Some(transport),
            _ => None,
        };
        self.state.slots().filter_map(up).collect()
    }

    fn dial_of(&self, slot: usize) -> DialId {
        match self.state.slots().nth(slot).expect("a slot").0 {
            Life::Dialing { dial, .. } | Life::Up { dial, .. } | Life::Retiring { dial, .. } => dial,
            other => panic!("slot {slot} is {other:?}"),
        }
    }
}

fn refused(duplicate: bool, seconds: Option<u64>) -> Loss {
    Loss::Refused { duplicate, retry_after: seconds.map(secs) }
}

#[test]
fn every_slot_is_dialed_at_once_at_the_start() {
    let mut sim = Sim::new(Protocol::Auto, false);
    let slots: Vec<_> = sim.accept().into_iter().map(|(slot, _, t)| (slot, t)).collect();
    assert_eq!(slots, [0, 1, 2, 3].map(|s| (s, Transport::Quic)));
    assert_eq!(sim.state.registered_count(), 4);
    assert_eq!(sim.state.wake_at(), None);
}

#[test]
fn a_lost_connection_is_tried_again_within_a_second_and_the_others_stay() {
    let mut sim = Sim::new(Protocol::Http2, false);
    sim.accept();
    let lost = sim.dial_of(2);
    sim.send(Event::Lost(lost, Loss::Ended));
    assert_eq!(sim.state.registered_count(), 3);
    sim.pass(secs(1));
    let dials = sim.accept();
    assert_eq!(dials.len(), 1);
    assert_eq!(dials[0].0, 2);
    assert_eq!(sim.state.registered_count(), 4);
}

#[test]
fn slots_that_are_lost_together_come_back_each_by_itself() {
    let mut sim = Sim::new(Protocol::Http2, false);
    for (_, dial, _) in sim.accept() {
        sim.send(Event::Lost(dial, Loss::Ended));
    }
    sim.pass(secs(1));
    let mut times: Vec<_> = sim.take().into_iter().map(|(at, _)| at).collect();
    assert_eq!(times.len(), 4);
    times.dedup();
    assert_eq!(times.len(), 4, "jitter must spread them: {times:?}");
}

#[test]
fn waits_grow_to_the_cap_and_registration_resets_them() {
    let mut sim = Sim::new(Protocol::Http2, false);
    let mut longest = Duration::ZERO;
    for _ in 0..40 {
        sim.fail();
        let before = sim.now;
        sim.pass(secs(30));
        longest =
            longest.max(sim.asked[sim.taken..].iter().map(|(at, _)| *at - before).max().expect("all are dialed within 30 s"));
    }
    assert!(longest > secs(20) && longest <= secs(30), "{longest:?}");
    sim.accept();
    let dial = sim.dial_of(0);
    sim.send(Event::Lost(dial, Loss::Ended));
    sim.pass(secs(1));
    assert_eq!(sim.dials().len(), 1);
}

#[test]
fn a_refusal_is_retried_for_ever_and_no_sooner_than_its_hint() {
    let mut sim = Sim::with(Settings { connections: 1, protocol: Protocol::Http2, needs_trailers: false, seed: 3 });
    for attempt in 0..50 {
        let dial = sim.dials().pop().expect("it never gives up").1;
        let attempts = sim.asked.last().map(|(_, e)| e.clone());
        assert!(matches!(attempts, Some(Effect::Dial { attempts, rotate: false, .. }) if attempts == attempt));
        let before = sim.now;
        sim.send(Event::Lost(dial, refused(false, Some(7))));
        sim.pass(secs(11));
        assert!(sim.asked.last().expect("a dial").0 >= before + secs(7));
    }
}

#[test]
fn two_refusals_with_a_hint_of_a_second_cost_less_than_five() {
    for seed in 0..200 {
        let mut sim = Sim::with(Settings { connections: 1, protocol: Protocol::Http2, needs_trailers: false, seed });
        sim.accept();
        let mut dial = sim.dial_of(0);
        sim.send(Event::Lost(dial, Loss::Ended));
        for _ in 0..2 {
            sim.pass(sim.state.wake_at().expect("a retry") - sim.now);
            dial = sim.dials()[0].1;
            sim.send(Event::Lost(dial, refused(false, Some(1))));
        }
        assert!(sim.state.wake_at().expect("a retry") < secs(5));
    }
}

#[test]
fn the_address_is_kept_over_a_plain_loss_and_rotated_when_it_is_to_blame() {
    let cases = [
        (Loss::Ended, false),
        (Loss::NoAddress, false),
        (refused(false, None), false),
        (refused(true, None), true),
        (Loss::Silent, true),
        (Loss::Dial, true),
    ];
    for protocol in [Protocol::Http2, Protocol::Quic] {
        for (loss, rotates) in cases {
            let mut sim = Sim::new(protocol, false);
            sim.accept();
            let dial = sim.dial_of(1);
            sim.send(Event::Lost(dial, loss));
            sim.pass(secs(1));
            let (_, effect) = sim.take().pop().expect("a dial");
            assert!(
                matches!(effect, Effect::Dial { rotate, slot: 1, .. } if rotate == rotates),
                "{protocol} {loss:?} {effect:?}"
            );
            sim.send(Event::Registered(sim.dial_of(1)));
            sim.send(Event::Lost(sim.dial_of(1), Loss::Ended));
            sim.pass(secs(1));
            assert!(matches!(sim.take().pop(), Some((_, Effect::Dial { rotate: false, .. }))));
        }
    }
}

#[test]
fn events_of_connections_that_are_no_more_are_ignored() {
    let mut sim = Sim::new(Protocol::Http2, false);
    sim.accept();
    let dial = sim.dial_of(0);
    sim.send(Event::Lost(dial, Loss::Ended));
    let before = format!("{:?}", sim.state);
    for event in [Event::Registered(dial), Event::Lost(dial, Loss::Dial), Event::Closed(dial), Event::Leaving(DialId(99))] {
        sim.send(event);
    }
    assert!(sim.asked.len() == 4 && format!("{:?}", sim.state).contains("Waiting"), "{before}");
    assert_eq!(sim.state.registered_count(), 3);
}

#[test]
fn auto_turns_to_http2_after_the_second_quic_failure_on_any_slot() {
    let mut sim = Sim::new(Protocol::Auto, false);
    let dials = sim.dials();
    sim.now = secs(3);
    sim.send(Event::Lost(dials[0].1, Loss::Dial));
    assert_eq!(sim.state.transport(), Transport::Quic);
    sim.send(Event::Lost(dials[3].1, Loss::Dial));
    assert_eq!(sim.state.transport(), Transport::Http2);
    sim.pass(secs(1));
    assert!(sim.accept().iter().all(|(slot, _, t)| matches!(slot, 0 | 3) && *t == Transport::Http2));
    assert!(sim.now <= secs(8), "the first connection with silent UDP");
}

#[test]
fn refusals_say_nothing_against_quic() {
    let mut sim = Sim::new(Protocol::Auto, false);
    for _ in 0..10 {
        for (_, dial, _) in sim.dials() {
            sim.send(Event::Lost(dial, refused(false, None)));
        }
        sim.pass(secs(30));
    }
    assert_eq!(sim.state.transport(), Transport::Quic);
}

#[test]
fn a_registration_over_quic_clears_earlier_failures() {
    let mut sim = Sim::new(Protocol::Auto, false);
    let dials = sim.dials();
    sim.send(Event::Lost(dials[0].1, Loss::Dial));
    sim.send(Event::Registered(dials[1].1));
    sim.send(Event::Lost(dials[2].1, Loss::Dial));
    assert_eq!(sim.state.transport(), Transport::Quic);
}

#[test]
fn a_probe_goes_first_and_then_slots_move_back_to_quic_one_at_a_time() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.fail();
    sim.pass(secs(2));
    sim.accept();
    assert_eq!(sim.up(), [Transport::Http2; 4]);
    sim.pass(secs(5 * 60));
    assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Probe));
    assert_eq!(sim.state.registered_count(), 4, "a probe costs no connection");
    sim.send(Event::Probed { usable: true });
    for slot in 0..4 {
        let (_, retire) = sim.take().pop().expect("a move");
        assert_eq!(retire, Effect::Retire(sim.dial_of(slot)));
        assert_eq!(sim.state.registered_count(), 3);
        sim.send(Event::Unregistered(sim.dial_of(slot)));
        let dials = sim.dials();
        assert_eq!(dials.len(), 1);
        assert_eq!((usize::from(dials[0].0), dials[0].2), (slot, Transport::Quic));
        sim.pass(secs(2));
        assert!(sim.take().is_empty(), "the next one waits until this one has registered");
        sim.send(Event::Registered(dials[0].1));
        assert!(sim.take().is_empty(), "the edge needs a moment to hear of it");
        sim.pass(MOVE_REST);
    }
    assert_eq!(sim.up(), [Transport::Quic; 4]);
}

#[test]
fn failed_probes_come_ever_more_seldom_up_to_an_hour() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.fail();
    sim.pass(secs(2));
    sim.accept();
    let mut last = sim.now;
    let mut gaps = Vec::new();
    for _ in 0..7 {
        sim.pass(secs(2 * 3600).min(sim.state.wake_at().expect("a probe is planned") - sim.now));
        assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Probe));
        gaps.push((sim.now - last).as_secs() / 60);
        last = sim.now;
        sim.send(Event::Probed { usable: false });
    }
    assert!((4..=5).contains(&gaps[0]), "{gaps:?}");
    assert_eq!(gaps[1..], [10, 20, 40, 60, 60, 60]);
    assert_eq!(sim.up(), [Transport::Http2; 4]);
}

#[test]
fn with_nothing_up_auto_takes_turns() {
    let mut sim = Sim::new(Protocol::Auto, false);
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(sim.fail().first().expect("dials").2);
        sim.pass(secs(30));
    }
    seen.dedup();
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn pinned_transports_never_change() {
    for (protocol, transport) in [(Protocol::Quic, Transport::Quic), (Protocol::Http2, Transport::Http2)] {
        let mut sim = Sim::new(protocol, true);
        for _ in 0..5 {
            assert!(sim.fail().iter().all(|(_, _, t)| *t == transport));
            sim.pass(secs(30));
        }
        sim.accept();
        sim.send(Event::NeedsTrailers(false));
        sim.send(Event::NeedsTrailers(true));
        sim.pass(secs(4 * 3600));
        assert!(sim.take().is_empty());
        assert_eq!(sim.up(), [transport; 4]);
    }
}

#[test]
fn a_route_that_needs_trailers_moves_a_plane_to_http2_one_connection_at_a_time() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.accept();
    sim.send(Event::NeedsTrailers(true));
    for slot in 0..4 {
        assert_eq!(sim.state.registered_count(), 3);
        let dial = sim.dial_of(slot);
        assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Retire(dial)));
        sim.send(Event::Unregistered(dial));
        // Its requests still run; the slot does not wait for them.
        assert_eq!(sim.accept(), [(u8::try_from(slot).expect("small"), sim.dial_of(slot), Transport::Http2)]);
        assert_eq!(sim.state.registered_count(), 4);
        sim.pass(MOVE_REST);
    }
    assert_eq!(sim.up(), [Transport::Http2; 4]);
    assert!(sim.take().is_empty());
}

#[test]
fn a_move_stalls_on_a_slot_that_does_not_come_back() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.accept();
    sim.send(Event::NeedsTrailers(true));
    let dial = sim.dial_of(0);
    sim.take();
    sim.send(Event::Unregistered(dial));
    for _ in 0..10 {
        assert_eq!(sim.fail().len(), 1);
        sim.pass(secs(30));
    }
    assert_eq!(sim.up(), [Transport::Quic; 3]);
    sim.accept();
    sim.pass(MOVE_REST);
    assert!(matches!(sim.take().pop(), Some((_, Effect::Retire(_)))));
}

#[test]
fn planes_go_back_to_quic_only_after_a_while_without_such_a_route() {
    let mut sim = Sim::new(Protocol::Auto, true);
    assert!(sim.accept().iter().all(|(_, _, t)| *t == Transport::Http2));
    sim.send(Event::NeedsTrailers(false));
    sim.pass(secs(9));
    sim.send(Event::NeedsTrailers(true));
    sim.send(Event::NeedsTrailers(false));
    sim.pass(secs(9));
    assert!(sim.take().is_empty(), "a flap moves nothing");
    sim.pass(secs(1));
    assert!(matches!(sim.take()[..], [(_, Effect::Retire(_))]));
}

#[test]
fn a_route_that_comes_and_goes_moves_connections_ever_more_seldom() {
    let mut sim = Sim::new(Protocol::Auto, true);
    let mut holds = Vec::new();
    for _ in 0..8 {
        sim.send(Event::NeedsTrailers(true));
        sim.send(Event::NeedsTrailers(false));
        let before = sim.now;
        while sim.state.transport() == Transport::Http2 {
            sim.pass(secs(1));
        }
        holds.push((sim.now - before).as_secs());
    }
    assert_eq!(holds, [10, 20, 40, 80, 160, 320, 600, 600]);
}

#[test]
fn a_flap_in_the_middle_of_a_move_stops_it() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.accept();
    sim.send(Event::NeedsTrailers(true));
    let dial = sim.dial_of(0);
    sim.send(Event::NeedsTrailers(false));
    sim.send(Event::Unregistered(dial));
    sim.accept();
    sim.pass(secs(5));
    assert_eq!(sim.up(), [Transport::Http2, Transport::Quic, Transport::Quic, Transport::Quic]);
}

#[test]
fn a_single_connection_moves_as_well() {
    let mut sim = Sim::with(Settings { connections: 1, protocol: Protocol::Auto, needs_trailers: false, seed: 1 });
    sim.accept();
    sim.send(Event::NeedsTrailers(true));
    sim.send(Event::Unregistered(sim.dial_of(0)));
    assert_eq!(sim.accept()[0].2, Transport::Http2);
}

#[test]
fn a_connection_that_dies_while_it_unregisters_is_dialed_again_at_once() {
    for event in [|d| Event::Lost(d, Loss::Silent), |d| Event::Closed(d)] {
        let mut sim = Sim::new(Protocol::Auto, false);
        sim.accept();
        sim.send(Event::NeedsTrailers(true));
        sim.take();
        sim.send(event(sim.dial_of(0)));
        assert_eq!(sim.accept()[0].0, 0);
    }
}

#[test]
fn a_goaway_retires_the_connection_and_dials_another() {
    let mut sim = Sim::new(Protocol::Http2, false);
    sim.accept();
    let dial = sim.dial_of(1);
    sim.send(Event::Leaving(dial));
    sim.send(Event::Leaving(dial));
    assert_eq!(sim.take().len(), 1);
    sim.send(Event::Unregistered(dial));
    assert_eq!(sim.accept()[0].0, 1);
    assert_eq!(sim.state.registered_count(), 4);
}

#[test]
fn a_drain_unregisters_all_aborts_tries_and_ends_with_the_last_connection() {
    let mut sim = Sim::new(Protocol::Http2, false);
    let dials = sim.dials();
    sim.send(Event::Registered(dials[0].1));
    sim.send(Event::Registered(dials[1].1));
    sim.send(Event::Lost(dials[3].1, Loss::Dial));
    sim.send(Event::Drain);
    let effects: Vec<_> = sim.take().into_iter().map(|(_, e)| e).collect();
    assert_eq!(effects, [Effect::Retire(dials[0].1), Effect::Retire(dials[1].1), Effect::Abort(dials[2].1)]);
    assert_eq!(sim.state.wake_at(), None);
    sim.send(Event::Unregistered(dials[0].1));
    sim.send(Event::Closed(dials[0].1));
    sim.send(Event::Unregistered(dials[1].1));
    assert!(sim.take().is_empty(), "a request is still in flight");
    sim.send(Event::Closed(dials[1].1));
    assert!(sim.take().is_empty(), "a try has not been given up yet");
    sim.send(Event::Closed(dials[2].1));
    assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Finished));
    sim.send(Event::Drain);
    sim.send(Event::Tick);
    assert!(sim.take().is_empty());
}

#[test]
fn a_registration_that_a_drain_comes_too_late_to_stop_is_unregistered() {
    for registers in [true, false] {
        let mut sim = Sim::new(Protocol::Http2, false);
        let dials = sim.dials();
        for (_, dial, _) in &dials[1..] {
            sim.send(Event::Lost(*dial, Loss::Dial));
        }
        let late = dials[0].1;
        sim.send(Event::Drain);
        assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Abort(late)));
        if registers {
            sim.send(Event::Registered(late));
            assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Retire(late)));
            sim.send(Event::Unregistered(late));
            assert!(sim.take().is_empty());
            sim.send(Event::Closed(late));
        } else {
            sim.send(Event::Lost(late, refused(false, None)));
        }
        assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Finished));
    }
}

#[test]
fn a_drain_waits_for_what_a_move_left_behind_and_for_late_registrations() {
    let mut sim = Sim::new(Protocol::Auto, false);
    sim.accept();
    sim.send(Event::NeedsTrailers(true));
    let moved = sim.dial_of(0);
    sim.send(Event::Unregistered(moved));
    sim.take();
    sim.send(Event::Drain);
    sim.send(Event::Closed(sim.dial_of(0)));
    for slot in 1..4 {
        let dial = sim.dial_of(slot);
        sim.send(Event::Lost(dial, Loss::Ended));
    }
    assert!(!sim.take().iter().any(|(_, e)| *e == Effect::Finished));
    sim.send(Event::Closed(moved));
    assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Finished));
}

#[test]
fn a_drain_with_nothing_connected_ends_at_once() {
    let mut sim = Sim::new(Protocol::Quic, false);
    sim.fail();
    sim.send(Event::Drain);
    assert_eq!(sim.take().pop().map(|(_, e)| e), Some(Effect::Finished));
}

proptest::proptest! {
    /// Whatever order events come in: at most one connection per slot, ever, and no slot is forgotten.
    #[test]
    fn any_order_of_events_keeps_every_slot_alive(script in proptest::collection::vec((0_u8..9, 0_u64..40, 0_u64..40), 0..200)) {
        let mut sim = Sim::new(Protocol::Auto, false);
        for (kind, which, seconds) in script {
            let dial = DialId(which);
            let event = match kind {
                0 => Event::Registered(dial),
                1 => Event::Lost(dial, Loss::Dial),
                2 => Event::Lost(dial, refused(which % 2 == 0, Some(seconds))),
                3 => Event::Lost(dial, Loss::Silent),
                4 => Event::Leaving(dial),
                5 => Event::Unregistered(dial),
                6 => Event::Closed(dial),
                7 => Event::NeedsTrailers(which % 2 == 0),
                _ => Event::Probed { usable: which % 2 == 0 },
            };
            sim.send(event);
            sim.pass(secs(seconds));
            let waiting = sim.state.slots().filter(|(l, _, _)| matches!(l, Life::Waiting { .. })).count();
            proptest::prop_assert!(waiting == 0 || sim.state.wake_at().is_some());
            let stopped = sim.state.slots().any(|(l, _, _)| l == Life::Stopped);
            proptest::prop_assert!(!stopped);
        }
    }
}
