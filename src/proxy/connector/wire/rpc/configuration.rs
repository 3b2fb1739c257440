//! Both ends of an RPC stream that the edge opens over QUIC, behind its signature (tunnel-protocol §7).

use super::super::WireError;
use super::peer::{Call, CallId, Incoming, Outcome, Peer, Refusal, results};

const CONFIGURATION: u64 = 0xb48e_dfbd_aa25_db04;
const UPDATE_CONFIGURATION: u16 = 0;

const SESSION: u64 = 0x8394_45a5_9fb0_1686;
const REGISTER_UDP_SESSION: u16 = 0;

/// The connector's end. Answers by itself whatever is not a configuration.
#[derive(Debug)]
pub struct ConfigurationServer {
    peer: Peer,
}

/// What the edge's bytes mean to the connector.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigurationEvent {
    /// A configuration; answer with [`ConfigurationServer::answer`].
    UpdateConfiguration {
        /// Names the call in the answer.
        call: CallId,
        /// Version of the configuration.
        version: i32,
        /// JSON (tunnel-protocol §8.3).
        config: Vec<u8>,
    },
    /// The edge is done with the stream.
    Aborted(String),
}

impl Default for ConfigurationServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigurationServer {
    /// An end that waits for the edge.
    pub fn new() -> Self {
        Self { peer: Peer::new(true) }
    }

    /// Answers a configuration with the version that is in force now, and with why a newer one is not.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn answer(&mut self, call: CallId, latest_applied: i32, error: Option<&str>) -> Result<Vec<u8>, WireError> {
        self.peer.answer(call, (0, 1), |b, answer| {
            let result = b.init_struct(answer, 0, 1, 1);
            b.set_u32(result, 0, latest_applied.cast_unsigned());
            if let Some(error) = error {
                b.set_text(result, 0, error.as_bytes());
            }
        })?;
        Ok(self.take_output())
    }

    /// Takes bytes of the edge. Send what [`Self::take_output`] has afterwards, whatever the result.
    ///
    /// # Errors
    /// When the edge breaks the protocol; this stream is closed then, and nothing else.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<ConfigurationEvent>, WireError> {
        let mut events = Vec::new();
        for incoming in self.peer.receive(bytes)? {
            match incoming {
                Incoming::Aborted(reason) => events.push(ConfigurationEvent::Aborted(reason)),
                Incoming::Return { .. } => {}
                Incoming::Call(call) => events.extend(self.take_call(&call)?),
            }
        }
        Ok(events)
    }

    /// Bytes to send now; empty when there are none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.peer.take_output()
    }

    fn take_call(&mut self, call: &Call) -> Result<Option<ConfigurationEvent>, WireError> {
        match (call.interface, call.method) {
            (CONFIGURATION, UPDATE_CONFIGURATION) => {
                let read = || {
                    let params = call.params()?;
                    Ok::<_, WireError>((params.u32(0).cast_signed(), params.data(0)?.to_vec()))
                };
                match read() {
                    Ok((version, config)) => {
                        return Ok(Some(ConfigurationEvent::UpdateConfiguration { call: call.id, version, config }));
                    }
                    Err(error) => self.peer.refuse(call.id, Refusal::Failed, &error.to_string())?,
                }
            }
            // The result has a place for a refusal, so that the edge can tell it from a broken connector.
            (SESSION, REGISTER_UDP_SESSION) => self.peer.answer(call.id, (0, 1), |b, answer| {
                let result = b.init_struct(answer, 0, 0, 2);
                b.set_text(result, 0, b"udp sessions are not served by this connector");
            })?,
            _ => self.peer.refuse(call.id, Refusal::Unimplemented, "unknown interface or method")?,
        }
        Ok(None)
    }
}

/// The edge's end.
#[derive(Debug)]
pub struct ConfigurationClient {
    peer: Peer,
    answered: bool,
}

/// What the connector's bytes mean to the edge.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigurationClientEvent {
    /// The connector has answered.
    Answered {
        /// Version that it has in force.
        latest_applied: i32,
        /// Why that is not the one that was sent; empty when it is.
        error: String,
    },
    /// The connector could not answer; text of the exception.
    Failed(String),
    /// The connector gives up on the stream.
    Aborted(String),
}

impl Default for ConfigurationClient {
    fn default() -> Self {
        Self::new()
    }
}

impl ConfigurationClient {
    /// An end that has said nothing yet.
    pub fn new() -> Self {
        Self { peer: Peer::new(false), answered: false }
    }

    /// Sends a configuration. To be called once, first; the signature of the stream goes in front.
    ///
    /// # Errors
    /// When the configuration is too large to be sent.
    pub fn start(&mut self, version: i32, config: &[u8]) -> Result<Vec<u8>, WireError> {
        self.peer.bootstrap()?;
        self.peer.call(CONFIGURATION, UPDATE_CONFIGURATION, (1, 1), |b, params| {
            b.set_u32(params, 0, version.cast_unsigned());
            b.set_data(params, 0, config);
        })?;
        Ok(self.peer.take_output())
    }

    /// Takes bytes of the connector. Send what [`Self::take_output`] has afterwards, whatever the result.
    ///
    /// # Errors
    /// When the connector breaks the protocol.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<ConfigurationClientEvent>, WireError> {
        use ConfigurationClientEvent as Event;
        let mut events = Vec::new();
        for incoming in self.peer.receive(bytes)? {
            match incoming {
                Incoming::Aborted(reason) => events.push(Event::Aborted(reason)),
                Incoming::Call(call) => self.peer.refuse(call.id, Refusal::Unimplemented, "the edge serves nothing here")?,
                // The one after the first is that of the call on a capability that was not there.
                Incoming::Return { .. } if self.answered => {}
                Incoming::Return { outcome, .. } => {
                    self.answered = true;
                    events.push(match outcome {
                        Outcome::Exception(reason) => Event::Failed(reason),
                        Outcome::Results(message) => {
                            let result = results(&message)?.pointer_to_struct(0)?;
                            let error = result.text(0, "err")?.to_owned();
                            Event::Answered { latest_applied: result.u32(0).cast_signed(), error }
                        }
                    });
                }
            }
        }
        Ok(events)
    }

    /// Bytes to send now; empty when there are none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.peer.take_output()
    }
}
