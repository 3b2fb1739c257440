//! Both ends of the control stream (tunnel-protocol §6).

use super::super::WireError;
use super::super::registration::{ConnectionResponse, PARAMS, Registration};
use super::peer::{Call, CallId, Incoming, Outcome, Peer, Refusal, results};

const INTERFACE: u64 = 0xf716_95ec_7fe8_5497;

const REGISTER: u16 = 0;
const UNREGISTER: u16 = 1;
const UPDATE_LOCAL_CONFIGURATION: u16 = 2;

/// The connector's end.
#[derive(Debug)]
pub struct RegistrationClient {
    peer: Peer,
    /// The question of each call that is not answered yet.
    register: Option<u32>,
    unregister: Option<u32>,
    configuration: Option<u32>,
}

/// What the edge's bytes mean to the connector.
#[derive(Debug, PartialEq, Eq)]
pub enum RegistrationClientEvent {
    /// The edge has answered the registration, with a yes or a no.
    Registered(ConnectionResponse),
    /// The edge could not answer it; text of the exception.
    RegisterFailed(String),
    /// The edge has answered the unregistration: it sends no new requests.
    Unregistered {
        /// Text of the exception, if it answered with one.
        error: Option<String>,
    },
    /// The edge has answered the local configuration.
    LocalConfigurationAnswered {
        /// Text of the exception, if it answered with one.
        error: Option<String>,
    },
    /// The edge gives up on the stream; the connection is over.
    Aborted(String),
}

impl Default for RegistrationClient {
    fn default() -> Self {
        Self::new()
    }
}

impl RegistrationClient {
    /// An end that has said nothing yet.
    pub fn new() -> Self {
        Self { peer: Peer::new(false), register: None, unregister: None, configuration: None }
    }

    /// Asks for the edge's capability and registers without waiting for it. To be called once, first.
    ///
    /// # Errors
    /// When the registration is too large to be sent.
    pub fn start(&mut self, registration: &Registration) -> Result<Vec<u8>, WireError> {
        self.peer.bootstrap()?;
        let question = self.peer.call(INTERFACE, REGISTER, PARAMS, |b, params| registration.write(b, params))?;
        self.register = Some(question);
        Ok(self.take_output())
    }

    /// Asks the edge to send no new requests on this connection.
    ///
    /// # Errors
    /// When the stream is closed, or was not started.
    pub fn unregister(&mut self) -> Result<Vec<u8>, WireError> {
        if self.unregister.is_none() {
            self.unregister = Some(self.peer.call(INTERFACE, UNREGISTER, (0, 0), |_, _| {})?);
        }
        Ok(self.take_output())
    }

    /// Tells the edge the configuration of a locally managed tunnel, as JSON.
    ///
    /// # Errors
    /// When the stream is closed or was not started, or when the text is too large.
    pub fn update_local_configuration(&mut self, json: &[u8]) -> Result<Vec<u8>, WireError> {
        let question = self.peer.call(INTERFACE, UPDATE_LOCAL_CONFIGURATION, (0, 1), |b, params| b.set_data(params, 0, json))?;
        self.configuration = Some(question);
        Ok(self.take_output())
    }

    /// Says goodbye. The stream can be ended afterwards.
    pub fn abort(&mut self) -> Vec<u8> {
        self.peer.abort("rpc: shutdown");
        self.take_output()
    }

    /// Takes bytes of the edge. Send what [`Self::take_output`] has afterwards, whatever the result.
    ///
    /// # Errors
    /// When the edge breaks the protocol; the stream is closed then, and with it the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<RegistrationClientEvent>, WireError> {
        let incoming = self.peer.receive(bytes)?;
        let events = incoming.into_iter().filter_map(|i| self.event(i).transpose()).collect::<Result<_, _>>();
        if let Err(error) = &events {
            self.peer.abort(&error.to_string());
        }
        events
    }

    /// Bytes to send now; empty when there are none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.peer.take_output()
    }

    fn event(&mut self, incoming: Incoming) -> Result<Option<RegistrationClientEvent>, WireError> {
        use RegistrationClientEvent as Event;
        let (question, outcome) = match incoming {
            Incoming::Aborted(reason) => return Ok(Some(Event::Aborted(reason))),
            Incoming::Call(call) => {
                self.peer.refuse(call.id, Refusal::Unimplemented, "the connector serves nothing here")?;
                return Ok(None);
            }
            Incoming::Return { question, outcome } => (Some(question), outcome),
        };
        Ok(if question == self.unregister {
            self.unregister = None;
            Some(Event::Unregistered { error: error(outcome) })
        } else if question == self.configuration {
            self.configuration = None;
            Some(Event::LocalConfigurationAnswered { error: error(outcome) })
        } else if self.register.take().is_some() {
            // The answer to the registration, or the one that there is nobody to register with.
            Some(match outcome {
                Outcome::Exception(reason) => Event::RegisterFailed(reason),
                Outcome::Results(message) => {
                    Event::Registered(ConnectionResponse::read(&results(&message)?.pointer_to_struct(0)?)?)
                }
            })
        } else {
            None
        })
    }
}

fn error(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Results(_) => None,
        Outcome::Exception(reason) => Some(reason),
    }
}

/// The edge's end.
#[derive(Debug)]
pub struct RegistrationServer {
    peer: Peer,
}

/// What the connector's bytes mean to the edge.
#[derive(Debug, PartialEq, Eq)]
pub enum RegistrationEvent {
    /// It wants to register; answer with [`RegistrationServer::answer_registration`].
    Register {
        /// Names the call in the answer.
        call: CallId,
        /// The arguments.
        registration: Box<Registration>,
    },
    /// It wants no new requests; answer with [`RegistrationServer::acknowledge`].
    Unregister {
        /// Names the call in the answer.
        call: CallId,
    },
    /// It tells its configuration; answer with [`RegistrationServer::acknowledge`].
    UpdateLocalConfiguration {
        /// Names the call in the answer.
        call: CallId,
        /// JSON.
        config: Vec<u8>,
    },
    /// It gives up on the stream, as connectors do when they are done.
    Aborted(String),
}

impl Default for RegistrationServer {
    fn default() -> Self {
        Self::new()
    }
}

impl RegistrationServer {
    /// An end that waits for the connector.
    pub fn new() -> Self {
        Self { peer: Peer::new(true) }
    }

    /// Answers a registration.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn answer_registration(&mut self, call: CallId, response: &ConnectionResponse) -> Result<Vec<u8>, WireError> {
        self.peer.answer(call, (0, 1), |b, answer| {
            let (data, pointers) = ConnectionResponse::LAYOUT;
            let at = b.init_struct(answer, 0, data, pointers);
            response.write(b, at);
        })?;
        Ok(self.take_output())
    }

    /// Answers a call that has no results.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn acknowledge(&mut self, call: CallId) -> Result<Vec<u8>, WireError> {
        self.peer.answer(call, (0, 0), |_, _| {})?;
        Ok(self.take_output())
    }

    /// Answers a call with an exception.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn fail(&mut self, call: CallId, reason: &str) -> Result<Vec<u8>, WireError> {
        self.peer.refuse(call, Refusal::Failed, reason)?;
        Ok(self.take_output())
    }

    /// Takes bytes of the connector. Send what [`Self::take_output`] has afterwards, whatever the result.
    ///
    /// # Errors
    /// When the connector breaks the protocol; the stream is closed then.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<RegistrationEvent>, WireError> {
        let mut events = Vec::new();
        for incoming in self.peer.receive(bytes)? {
            match incoming {
                Incoming::Aborted(reason) => events.push(RegistrationEvent::Aborted(reason)),
                Incoming::Return { .. } => {}
                Incoming::Call(call) => match Self::event(&call) {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => self.peer.refuse(call.id, Refusal::Unimplemented, "unknown interface or method")?,
                    Err(error) => self.peer.refuse(call.id, Refusal::Failed, &error.to_string())?,
                },
            }
        }
        Ok(events)
    }

    /// Bytes to send now; empty when there are none.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.peer.take_output()
    }

    fn event(call: &Call) -> Result<Option<RegistrationEvent>, WireError> {
        // The legacy `TunnelServer` extends this interface; its callers name this one all the same.
        if call.interface != INTERFACE {
            return Ok(None);
        }
        Ok(match call.method {
            REGISTER => {
                let registration = Box::new(Registration::read(&call.params()?)?);
                Some(RegistrationEvent::Register { call: call.id, registration })
            }
            UNREGISTER => Some(RegistrationEvent::Unregister { call: call.id }),
            UPDATE_LOCAL_CONFIGURATION => {
                let config = call.params()?.data(0)?.to_vec();
                Some(RegistrationEvent::UpdateLocalConfiguration { call: call.id, config })
            }
            _ => None,
        })
    }
}
