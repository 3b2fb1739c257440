//! How long a lost connection waits before its next try. PURE: chance comes in as a number, time never.

use std::time::Duration;

/// Ceiling of the first wait: a lost connection is tried again within a second.
const FIRST: Duration = Duration::from_secs(1);
/// No ceiling grows beyond this.
const CAP: Duration = Duration::from_secs(30);
/// An edge that asks for more than this is not believed: a slot that waits for hours is a lost slot.
const LONGEST_HINT: Duration = Duration::from_secs(300);

/// Waits with full jitter under a ceiling that doubles with each failure in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait before the next try. `chance` is uniform over all of `u64`; `hint` is what the edge asked for, a floor.
    pub fn next(&mut self, chance: u64, hint: Option<Duration>) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.failures.min(16)).min(CAP);
        self.failures = self.failures.saturating_add(1);
        match hint.filter(|h| !h.is_zero()) {
            None => share(ceiling, chance),
            Some(hint) => {
                let hint = hint.min(LONGEST_HINT);
                // The edge spreads its load by the hint; a little jitter keeps refused connectors from coming back as one.
                hint + share((hint / 2).min(Duration::from_secs(5)), chance)
            }
        }
    }

    /// The connection has registered: the next loss starts anew.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row since the last registration.
    pub fn failures(self) -> u32 {
        self.failures
    }
}

/// The part of `whole` that `chance` stands for.
fn share(whole: Duration, chance: u64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    let scaled = (u128::from(nanos) * u128::from(chance)) >> 64;
    Duration::from_nanos(u64::try_from(scaled).unwrap_or(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_double_up_to_the_cap_and_start_anew_after_a_registration() {
        let mut backoff = Backoff::default();
        for ceiling in [1, 2, 4, 8, 16, 30, 30, 30] {
            let wait = backoff.next(u64::MAX, None);
            assert!(wait < Duration::from_secs(ceiling) && wait > Duration::from_secs(ceiling).mul_f64(0.99), "{wait:?}");
        }
        assert_eq!(backoff.failures(), 8);
        backoff.reset();
        assert!(backoff.next(u64::MAX, None) < Duration::from_secs(1));
    }

    #[test]
    fn jitter_covers_the_whole_range() {
        assert_eq!(Backoff::default().next(0, None), Duration::ZERO);
        assert_eq!(Backoff::default().next(1 << 63, None), Duration::from_millis(500));
    }

    #[test]
    fn a_hint_is_a_floor_and_a_mad_one_is_cut() {
        let hint = Duration::from_secs(7);
        assert_eq!(Backoff::default().next(0, Some(hint)), hint);
        assert!(Backoff::default().next(u64::MAX, Some(hint)) < hint.mul_f64(1.5));
        let mad = Duration::from_secs(u64::MAX);
        assert!(Backoff::default().next(u64::MAX, Some(mad)) <= Duration::from_secs(305));
        assert!(Backoff { failures: u32::MAX }.next(u64::MAX, None) <= CAP);
    }
}
