//! The connector's end of the control stream (tunnel-protocol §6), over either transport: registers, unregisters, and notices
//! when the edge gives up. What a refusal leads to is decided in [`state`](super::state).

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::state::Loss;
use super::wire::WireError;
use super::wire::registration::{ConnectionResponse, Registration};
use super::wire::rpc::{RegistrationClient, RegistrationClientEvent as Event};
use crate::proxy::http::Duplex;

/// Longest wait for the answer to a call.
pub(super) const RPC_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest text of the edge that is shown.
const MAX_TEXT: usize = 200;

/// Why a control stream failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    /// The stream failed.
    #[error("control stream failed: {0}")]
    Io(#[from] io::Error),
    /// The edge sent something else than the protocol.
    #[error("control stream: {0}")]
    Wire(#[from] WireError),
    /// The edge ended the stream.
    #[error("the edge ended the control stream")]
    Ended,
    /// The edge gave up on the stream.
    #[error("the edge aborted the control stream: {0}")]
    Aborted(String),
    /// The edge did not answer in time.
    #[error("the edge did not answer the {0} within {seconds} s", seconds = .1.as_secs())]
    Timeout(&'static str, Duration),
    /// The edge could not handle the call.
    #[error("the edge failed the {call}: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// The edge's text.
        reason: String,
    },
    /// The edge refused the registration.
    #[error("the edge refused the registration: {cause}{hint}", hint = if *.permanent { " (it says that retrying is useless)" } else { "" })]
    Refused {
        /// The edge's text.
        cause: String,
        /// Whether this connector has a connection to that server already.
        duplicate: bool,
        /// Whether the edge says that retrying is useless. It is retried all the same: tunnels are re-created, tokens rolled.
        permanent: bool,
        /// How long the edge asks to wait.
        retry_after: Option<Duration>,
    },
}

impl ControlError {
    /// What it means for the connection when it happens before the registration is answered.
    pub(super) fn loss(&self) -> Loss {
        match self {
            Self::Refused { duplicate, retry_after, .. } => Loss::Refused { duplicate: *duplicate, retry_after: *retry_after },
            // The edge has spoken, if not clearly: the address and the transport work.
            Self::Failed { .. } | Self::Aborted(_) => Loss::Refused { duplicate: false, retry_after: None },
            Self::Io(_) | Self::Wire(_) | Self::Ended | Self::Timeout(..) => Loss::Dial,
        }
    }
}

/// What the edge says about a registered connection.
#[derive(Clone, Debug)]
pub(super) struct Details {
    /// The edge's id of the connection.
    pub uuid: uuid::Uuid,
    /// Code of the data centre; letters, digits and `-` only.
    pub location: String,
    /// Whether the edge pushes configuration, rather than expects ours.
    pub remotely_managed: bool,
}

/// A registered connection's control stream.
pub(super) struct Control<IO> {
    io: IO,
    client: RegistrationClient,
    input: BytesMut,
    output: BytesMut,
    events: VecDeque<Event>,
}

impl<IO: Duplex> Control<IO> {
    /// Registers the connection.
    ///
    /// # Errors
    /// When the edge refuses it, breaks the protocol, or does not answer in time.
    pub(super) async fn register(io: IO, registration: &Registration) -> Result<(Self, Details), ControlError> {
        let mut control = Self {
            io,
            client: RegistrationClient::new(),
            input: BytesMut::new(),
            output: BytesMut::new(),
            events: VecDeque::new(),
        };
        let bytes = control.client.start(registration)?;
        control.output.extend_from_slice(&bytes);
        let answer = async {
            loop {
                match control.next().await? {
                    Event::Registered(ConnectionResponse::Details { uuid, location, remotely_managed }) => {
                        return Ok(Details { uuid, location: location_code(&location), remotely_managed });
                    }
                    Event::Registered(refusal @ ConnectionResponse::Error { .. }) => return Err(refused(refusal)),
                    Event::RegisterFailed(reason) => {
                        return Err(ControlError::Failed { call: "registration", reason: clean(&reason) });
                    }
                    Event::Unregistered { .. } | Event::LocalConfigurationAnswered { .. } | Event::Aborted(_) => {}
                }
            }
        };
        let details = timeout("registration", RPC_TIMEOUT, answer).await?;
        Ok((control, details))
    }

    /// Has the edge send no new requests, then says goodbye.
    ///
    /// # Errors
    /// When the edge does not confirm it within `limit`.
    pub(super) async fn unregister(&mut self, limit: Duration) -> Result<(), ControlError> {
        let bytes = self.client.unregister()?;
        self.output.extend_from_slice(&bytes);
        let answer = async {
            loop {
                if let Event::Unregistered { error } = self.next().await? {
                    return match error {
                        None => Ok(()),
                        Some(reason) => Err(ControlError::Failed { call: "unregistration", reason: clean(&reason) }),
                    };
                }
            }
        };
        timeout("unregistration", limit, answer).await?;
        let bytes = self.client.abort();
        self.output.extend_from_slice(&bytes);
        timeout("goodbye", RPC_TIMEOUT, async {
            self.flush().await?;
            Ok(self.io.shutdown().await?)
        })
        .await
    }

    /// Tells the edge of a locally managed tunnel what it routes. The answer comes in [`Self::ended`] and is only logged.
    ///
    /// # Errors
    /// When the stream is closed.
    pub(super) fn push_local_configuration(&mut self, json: &[u8]) -> Result<(), ControlError> {
        let bytes = self.client.update_local_configuration(json)?;
        self.output.extend_from_slice(&bytes);
        Ok(())
    }

    /// Answers the edge until the stream ends, which ends the connection (§6.7). Can be dropped and called again.
    pub(super) async fn ended(&mut self) -> ControlError {
        loop {
            match self.next().await {
                Ok(Event::LocalConfigurationAnswered { error: Some(reason) }) => {
                    tracing::warn!(error = clean(&reason), "Edge did not take the local configuration");
                }
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// The next event. Keeps its place when dropped: what is read or written part-way stays in the buffers.
    async fn next(&mut self) -> Result<Event, ControlError> {
        loop {
            match self.events.pop_front() {
                Some(Event::Aborted(reason)) => return Err(ControlError::Aborted(clean(&reason))),
                Some(event) => return Ok(event),
                None => {}
            }
            self.flush().await?;
            if self.io.read_buf(&mut self.input).await? == 0 {
                return Err(ControlError::Ended);
            }
            let events = self.client.receive(&self.input);
            self.input.clear();
            let output = self.client.take_output();
            self.output.extend_from_slice(&output);
            self.events.extend(events?);
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            if self.io.write_buf(&mut self.output).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.io.flush().await
    }
}

async fn timeout<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, ControlError>>,
) -> Result<T, ControlError> {
    tokio::time::timeout(limit, answer).await.unwrap_or(Err(ControlError::Timeout(call, limit)))
}

fn refused(response: ConnectionResponse) -> ControlError {
    let duplicate = response.is_duplicate();
    match response {
        ConnectionResponse::Error { cause, retry_after, should_retry } => {
            ControlError::Refused { cause: clean(&cause), duplicate, permanent: !should_retry && !duplicate, retry_after }
        }
        ConnectionResponse::Details { .. } => ControlError::Ended,
    }
}

/// A text of the edge, fit for a log.
fn clean(text: &str) -> String {
    text.chars().take(MAX_TEXT).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A data centre's code, fit for a metric label.
fn location_code(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::token::TunnelSecret;
    use crate::proxy::connector::wire::registration::ConnectionOptions;
    use crate::proxy::connector::wire::rpc::{RegistrationEvent, RegistrationServer};
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    fn registration() -> Registration {
        Registration {
            account_tag: "acc".into(),
            tunnel_secret: TunnelSecret::new(b"secret".to_vec()),
            tunnel_id: uuid::Uuid::nil(),
            conn_index: 0,
            options: ConnectionOptions::default(),
        }
    }

    /// How long the edge takes to answer an unregistration.
    const BUSY: Duration = Duration::from_secs(8);

    /// Plays the edge until the connector goes: answers registrations with `response`, and unregistrations with
    /// yes when it comes to it.
    async fn edge(mut io: DuplexStream, response: ConnectionResponse) -> bool {
        let (mut server, mut unregistered) = (RegistrationServer::new(), false);
        let mut buffer = BytesMut::new();
        while io.read_buf(&mut buffer).await.is_ok_and(|n| n > 0) {
            for event in server.receive(&buffer.split()).unwrap_or_default() {
                match event {
                    RegistrationEvent::Register { call, .. } => {
                        drop(server.answer_registration(call, &response).map(|b| buffer.extend(b)))
                    }
                    RegistrationEvent::Unregister { call } => {
                        unregistered = true;
                        tokio::time::sleep(BUSY).await;
                        drop(server.acknowledge(call).map(|b| buffer.extend(b)));
                    }
                    _ => {}
                }
            }
            buffer.extend(server.take_output());
            if io.write_all(&buffer.split()).await.is_err() {
                break;
            }
        }
        unregistered
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_registers_and_unregisters_in_the_time_that_it_is_given() {
        for (limit, in_time) in [(BUSY * 2, true), (BUSY / 2, false)] {
            let (ours, theirs) = duplex(4096);
            let details =
                ConnectionResponse::Details { uuid: uuid::Uuid::nil(), location: "ams\n01".into(), remotely_managed: true };
            let edge = tokio::spawn(edge(theirs, details));
            let (mut control, details) = Control::register(ours, &registration()).await.expect("registered");
            assert_eq!(details.location, "ams01");
            assert_eq!(control.unregister(limit).await.is_ok(), in_time);
            drop(control);
            assert!(edge.await.expect("no panic"));
        }
    }

    #[tokio::test]
    async fn a_refusal_keeps_its_hint() {
        for (cause, duplicate, should_retry) in [("EDUPCONN", true, false), ("busy\r\nnow", false, true), ("gone", false, false)]
        {
            let (ours, theirs) = duplex(4096);
            let retry_after = Some(Duration::from_secs(3));
            tokio::spawn(edge(theirs, ConnectionResponse::Error { cause: cause.into(), retry_after, should_retry }));
            let error = Control::register(ours, &registration()).await.map(drop).expect_err("refused");
            assert_eq!(error.loss(), Loss::Refused { duplicate, retry_after });
            let text = error.to_string();
            assert_eq!(text.contains("useless"), cause == "gone", "{text}");
            assert!(!text.contains('\n'));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_garbage_and_an_early_end_are_failed_dials() {
        let (ours, _silent) = duplex(4096);
        let error = Control::register(ours, &registration()).await.map(drop).expect_err("silent");
        assert!(matches!(error, ControlError::Timeout("registration", _)));
        assert_eq!(error.loss(), Loss::Dial);

        let (ours, mut theirs) = duplex(4096);
        theirs.write_all(&[0xff; 64]).await.expect("written");
        let error = Control::register(ours, &registration()).await.map(drop).expect_err("garbage");
        assert!(matches!(error, ControlError::Wire(_)), "{error}");

        let (ours, theirs) = duplex(4096);
        drop(theirs);
        let error = Control::register(ours, &registration()).await.map(drop).expect_err("ended");
        assert_eq!(error.loss(), Loss::Dial);
    }
}
