//! The deadline for the head of a response (X9, S3 "Interaction with spec.rules[].timeouts"): it starts when the request's
//! body has been sent, and it never cuts a body.

use std::pin::Pin;
use std::time::Duration;

use super::request_body::Sent;
use crate::proxy::error::{Error, Kind};

/// Waits for `head`, after the end of the request's body no longer than `limit`. Without a limit there is no timer.
///
/// # Errors
/// [`Kind::HeadTimeout`]; the caller drops `head` then, which cancels the request.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    sent: &mut Option<Sent>,
    mut head: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Error> {
    let Some(limit) = limit else { return Ok(head.await) };
    if let Some(end) = sent {
        tokio::select! {
            biased;
            head = &mut head => return Ok(head),
            _ = end => *sent = None,
        }
    }
    tokio::time::timeout(limit, head).await.map_err(|elapsed| Error::new(Kind::HeadTimeout, elapsed))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn the_clock_starts_when_the_body_has_been_sent() {
        let (sender, sent) = oneshot::channel::<std::convert::Infallible>();
        let start = Instant::now();
        tokio::spawn(async move {
            sleep(Duration::from_secs(100)).await;
            drop(sender);
        });
        let error = within(Some(LIMIT), &mut Some(sent), pin!(pending::<()>())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::HeadTimeout);
        assert_eq!(start.elapsed(), Duration::from_secs(103));
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_answer_needs_no_clock() {
        let (_sender, sent) = oneshot::channel::<std::convert::Infallible>();
        let head = sleep(Duration::from_secs(50));
        within(Some(LIMIT), &mut Some(sent), pin!(head)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_waits_for_ever() {
        within(None, &mut None, pin!(sleep(Duration::from_secs(1_000_000)))).await.unwrap();
        assert!(within(Some(LIMIT), &mut None, pin!(sleep(Duration::from_secs(4)))).await.is_err());
        assert!(within(Some(LIMIT), &mut None, pin!(sleep(Duration::from_secs(2)))).await.is_ok());
    }
}
