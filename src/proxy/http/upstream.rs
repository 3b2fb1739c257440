//! A backend's endpoints: which one a request goes to, and when it goes to another (X6). How connections are kept is in
//! `pool`.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body::Body as _;
use tokio::time::error::Elapsed;

use super::h1::{self, Upload};
use super::lease::{Incoming, Lease};
use super::pool::{Connection, Endpoint, SendFailed, Stream};
use super::request_body::RequestBody;
use super::timeout;
use crate::proxy::error::{Error, Kind, Retry};
use crate::proxy::metrics::Metrics;

/// How often a request may go to a backend once more, without a policy (X6).
const RETRIES: usize = 2;
/// How many connections of a request may fail for want of any answer: each takes the whole connect timeout, and a client waits
/// for the sum of them. Refusals are quick and count as retries only.
const MAX_SILENCES: usize = 2;

/// A backend as requests use it.
#[derive(Debug)]
pub(super) struct Upstream {
    endpoints: Box<[Arc<Endpoint>]>,
    /// Whose turn it is.
    turn: AtomicUsize,
}

impl Upstream {
    /// Begins at a random endpoint, so that a fleet of proxies does not march in step.
    pub(super) fn new(endpoints: Vec<Arc<Endpoint>>) -> Self {
        let turn = AtomicUsize::new(if endpoints.len() > 1 { rand::random_range(0..endpoints.len()) } else { 0 });
        Self { endpoints: endpoints.into(), turn }
    }

    /// Sends a request, if need be to more than one endpoint, and waits for the head of the response: after the body no
    /// longer than `limit`.
    ///
    /// # Errors
    /// What the last attempt ended with.
    pub(super) async fn send_h1(
        &self,
        mut upload: Upload,
        limit: Option<Duration>,
        metrics: &Metrics,
    ) -> Result<(Response<Incoming>, Lease), Error> {
        let mut attempts = self.attempts(metrics)?;
        let mut sent = limit.and_then(|_| upload.watch());
        let mut fresh = false;
        loop {
            let connection = attempts.connect_h1(fresh).await?;
            let reused = connection.reused;
            let answer = timeout::within(limit, &mut sent, pin!(connection.send(&mut upload))).await?;
            match answer {
                Ok(answer) => return Ok(answer),
                // Only a connection that was used before can be closed by a peer that is well.
                Err(error) if reused && error.kind().retry() == Retry::Idempotent && upload.rewind() => attempts.next(error)?,
                Err(error) => return Err(error),
            }
            fresh = true;
        }
    }

    /// As [`Self::send_h1`], to a backend that speaks HTTP/2.
    ///
    /// # Errors
    /// What the last attempt ended with.
    pub(super) async fn send_h2(
        &self,
        mut request: Request<RequestBody>,
        limit: Option<Duration>,
        metrics: &Metrics,
    ) -> Result<(Response<Incoming>, Lease), Error> {
        let mut attempts = self.attempts(metrics)?;
        let mut sent = limit.and_then(|_| request.body_mut().watch());
        loop {
            let stream = attempts.connect_h2().await?;
            let spare = if stream.is_reused() { replay(&request) } else { None };
            match timeout::within(limit, &mut sent, pin!(stream.send(request))).await? {
                Ok(answer) => return Ok(answer),
                Err(failed) => request = attempts.again(*failed, spare)?,
            }
        }
    }

    /// A connection for an upgrade, which is sent once and never again.
    ///
    /// # Errors
    /// [`Kind::Connect`] or [`Kind::NoEndpoints`].
    pub(super) async fn connect_upgradable(&self, metrics: &Metrics) -> Result<h1::Connection, Error> {
        let mut attempts = self.attempts(metrics)?;
        loop {
            match attempts.endpoint().open_h1().await {
                Ok(connection) => return Ok(connection),
                Err(error) => attempts.elsewhere(error)?,
            }
        }
    }

    /// Round robin, passing over endpoints that failed a moment ago while there is another one.
    fn attempts<'u>(&'u self, metrics: &'u Metrics) -> Result<Attempts<'u>, Error> {
        let n = self.endpoints.len();
        if n == 0 {
            return Err(Kind::NoEndpoints.into());
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % n;
        let skip = (0..n).find(|i| !self.endpoints[(turn + i) % n].is_suspect()).unwrap_or(0);
        Ok(Attempts { endpoints: &self.endpoints, at: turn + skip, failed: 0, left: RETRIES, silences: MAX_SILENCES, metrics })
    }
}

/// The attempts of one request.
struct Attempts<'u> {
    endpoints: &'u [Arc<Endpoint>],
    /// Whose turn it is, modulo their number.
    at: usize,
    /// Connections that could not be made.
    failed: usize,
    left: usize,
    /// Connections that may still fail by silence.
    silences: usize,
    metrics: &'u Metrics,
}

impl Attempts<'_> {
    fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoints[self.at % self.endpoints.len()]
    }

    async fn connect_h1(&mut self, fresh: bool) -> Result<Connection, Error> {
        loop {
            match self.endpoint().connect_h1(fresh).await {
                Ok(connection) => return Ok(connection),
                Err(error) => self.elsewhere(error)?,
            }
        }
    }

    async fn connect_h2(&mut self) -> Result<Stream, Error> {
        loop {
            match self.endpoint().connect_h2().await {
                Ok(stream) => return Ok(stream),
                Err(error) => self.elsewhere(error)?,
            }
        }
    }

    /// Moves on after a failed connection, while there is an endpoint that has not failed.
    fn elsewhere(&mut self, error: Error) -> Result<(), Error> {
        self.failed += 1;
        if self.failed >= self.endpoints.len() || error.kind().retry() != Retry::Always {
            return Err(error);
        }
        if std::error::Error::source(&error).is_some_and(|cause| cause.is::<Elapsed>()) {
            self.silences -= 1;
            if self.silences == 0 {
                return Err(error);
            }
        }
        self.next(error)
    }

    /// The request to send again: the very same when the connection had not begun to send it, else `spare`. A backend with
    /// one endpoint gets it on a new connection.
    fn again(&mut self, failed: SendFailed, spare: Option<Request<RequestBody>>) -> Result<Request<RequestBody>, Error> {
        let SendFailed { error, unsent } = failed;
        let request = match (unsent, spare) {
            (Some(unsent), _) => unsent,
            (None, Some(spare)) if error.kind().retry() == Retry::Idempotent => spare,
            _ => return Err(error),
        };
        self.next(error)?;
        Ok(request)
    }

    fn next(&mut self, error: Error) -> Result<(), Error> {
        if self.left == 0 {
            return Err(error);
        }
        self.left -= 1;
        // One that failed a moment ago comes last. What closed a connection that was used before may well take a new one.
        let n = self.endpoints.len();
        self.at = (self.at + 1..=self.at + n).find(|at| !self.endpoints[at % n].is_suspect()).unwrap_or(self.at + 1);
        self.metrics.upstream_retries.inc();
        Ok(())
    }
}

/// A copy of a request that may be sent twice: an idempotent method and no body. Only a reused connection needs one, since
/// its peer may be closing it at this moment.
fn replay(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let idempotent = request.method().is_idempotent() && *request.method() != Method::CONNECT;
    if !idempotent || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}
