//! Level 1 of Cap'n Proto RPC as far as one bootstrap capability on each side needs it: questions, answers, finishes, releases,
//! resolutions, aborts. Knows nothing of what the calls mean.
//!
//! Capabilities beyond the bootstrap one are never kept: results are finished with their capabilities released, and those that
//! come with parameters go back with the return.

use std::collections::BTreeMap;

use super::super::WireError;
use super::super::message::{Builder, Decoder, Message, StructAt, StructReader};

/// Tags of the union `Message`.
mod tag {
    pub(super) const UNIMPLEMENTED: u16 = 0;
    pub(super) const ABORT: u16 = 1;
    pub(super) const CALL: u16 = 2;
    pub(super) const RETURN: u16 = 3;
    pub(super) const FINISH: u16 = 4;
    pub(super) const RESOLVE: u16 = 5;
    pub(super) const RELEASE: u16 = 6;
    pub(super) const BOOTSTRAP: u16 = 8;
    pub(super) const DISEMBARGO: u16 = 13;
}

/// Most questions of the peer that may be open. Real peers have two.
const MAX_ANSWERS: usize = 64;
/// Most bytes of output that may wait. A peer that asks without reading is cut off.
const MAX_OUTPUT: usize = 4 << 20;
/// Most characters of a peer's error text that are kept.
const MAX_REASON: usize = 1024;

/// Names a call of the peer until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(u32);

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Failed,
    Unimplemented,
}

/// What a message of the peer means to the layer above.
#[derive(Debug)]
pub(super) enum Incoming {
    /// The peer calls our bootstrap capability.
    Call(Call),
    /// The peer answers call `question`.
    Return { question: u32, outcome: Outcome },
    /// The peer gives up on the stream.
    Aborted(String),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) interface: u64,
    pub(super) method: u16,
    message: Message,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Results(Box<Message>),
    Exception(String),
}

impl Call {
    /// The struct of arguments.
    pub(super) fn params(&self) -> Result<StructReader<'_>, WireError> {
        self.message.root()?.pointer_to_struct(0)?.pointer_to_struct(1)?.pointer_to_struct(0)
    }
}

/// The struct of results in a `Return` message.
pub(super) fn results(message: &Message) -> Result<StructReader<'_>, WireError> {
    message.root()?.pointer_to_struct(0)?.pointer_to_struct(0)?.pointer_to_struct(0)
}

/// What the peer's bootstrap capability is to us.
#[derive(Clone, Copy, Debug)]
enum Remote {
    /// Not asked for.
    None,
    /// Asked for in this question; calls are pipelined on its answer.
    Promised(u32),
    /// Import number of the capability.
    Imported(u32),
    /// The peer has none for us.
    Broken,
}

/// State of an answer to a question of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Our bootstrap capability, returned.
    Bootstrap,
    /// A call that is not answered yet.
    Open,
    /// As before, but the peer no longer waits.
    Canceled,
    /// Answered, and the peer has not said that it is done with it.
    Returned,
}

/// One end of an RPC stream.
#[derive(Debug)]
pub(super) struct Peer {
    decoder: Decoder,
    output: Vec<u8>,
    /// Whether we have a bootstrap capability to give.
    serves: bool,
    remote: Remote,
    next_question: u32,
    /// Open questions of ours, with whether it is the bootstrap one.
    questions: BTreeMap<u32, bool>,
    answers: BTreeMap<u32, Answer>,
    closed: bool,
}

impl Peer {
    pub(super) fn new(serves: bool) -> Self {
        Self {
            decoder: Decoder::default(),
            output: Vec::new(),
            serves,
            remote: Remote::None,
            next_question: 0,
            questions: BTreeMap::new(),
            answers: BTreeMap::new(),
            closed: false,
        }
    }

    /// Bytes to send now.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Asks for the peer's bootstrap capability.
    pub(super) fn bootstrap(&mut self) -> Result<(), WireError> {
        let question = self.ask(true);
        self.remote = Remote::Promised(question);
        let (mut b, body) = tagged(tag::BOOTSTRAP, 1, 1);
        b.set_u32(body, 0, question);
        self.send(b)
    }

    /// Calls a method of the peer's bootstrap capability; `write` fills the arguments, of `layout` data words and pointers.
    pub(super) fn call(
        &mut self,
        interface: u64,
        method: u16,
        layout: (usize, usize),
        write: impl FnOnce(&mut Builder, StructAt),
    ) -> Result<u32, WireError> {
        if self.closed {
            return Err(WireError::Closed);
        }
        let remote = self.remote;
        if matches!(remote, Remote::None | Remote::Broken) {
            return Err(WireError::Protocol("it has no bootstrap capability"));
        }
        let question = self.ask(false);
        let (mut b, call) = tagged(tag::CALL, 3, 3);
        b.set_u32(call, 0, question);
        b.set_u16(call, 4, method);
        b.set_u64(call, 8, interface);
        let target = b.init_struct(call, 0, 1, 1);
        match remote {
            Remote::Promised(bootstrap) => {
                b.set_u16(target, 4, 1);
                let promised = b.init_struct(target, 0, 1, 1);
                b.set_u32(promised, 0, bootstrap);
            }
            Remote::Imported(import) => b.set_u32(target, 0, import),
            Remote::None | Remote::Broken => {}
        }
        let payload = b.init_struct(call, 1, 0, 2);
        let params = b.init_struct(payload, 0, layout.0, layout.1);
        write(&mut b, params);
        self.send(b)?;
        Ok(question)
    }

    /// Answers a call; `write` fills the results. Nothing is sent when the call is not open.
    pub(super) fn answer(
        &mut self,
        call: CallId,
        layout: (usize, usize),
        write: impl FnOnce(&mut Builder, StructAt),
    ) -> Result<(), WireError> {
        if !self.close_answer(call) {
            return Ok(());
        }
        let (mut b, body) = self.start_return(call);
        let payload = b.init_struct(body, 0, 0, 2);
        let results = b.init_struct(payload, 0, layout.0, layout.1);
        write(&mut b, results);
        self.send(b)
    }

    /// Answers a call with an exception.
    pub(super) fn refuse(&mut self, call: CallId, why: Refusal, reason: &str) -> Result<(), WireError> {
        if !self.close_answer(call) {
            return Ok(());
        }
        let (mut b, body) = self.start_return(call);
        b.set_u16(body, 6, 1);
        exception(&mut b, body, why, reason);
        self.send(b)
    }

    /// Tells the peer that this end gives up on the stream.
    pub(super) fn abort(&mut self, reason: &str) {
        if !self.closed {
            self.closed = true;
            let (mut b, root) = Builder::new(1, 1);
            b.set_u16(root, 0, tag::ABORT);
            exception(&mut b, root, Refusal::Failed, reason);
            self.output.extend(b.finish().unwrap_or_default());
        }
    }

    /// Takes bytes of the peer. After an error the stream is closed and `take_output` has the word of farewell.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<Vec<Incoming>, WireError> {
        if self.closed {
            return Err(WireError::Closed);
        }
        self.decoder.push(bytes);
        let mut incoming = Vec::new();
        let result = self.take_messages(&mut incoming);
        if let Err(error) = result {
            self.abort(&error.to_string());
            return Err(error);
        }
        Ok(incoming)
    }

    fn take_messages(&mut self, incoming: &mut Vec<Incoming>) -> Result<(), WireError> {
        while !self.closed {
            let Some(message) = self.decoder.next_message()? else { break };
            incoming.extend(self.take_message(message)?);
            if self.output.len() > MAX_OUTPUT {
                return Err(WireError::Protocol("it asks without reading the answers"));
            }
        }
        Ok(())
    }

    fn take_message(&mut self, message: Message) -> Result<Option<Incoming>, WireError> {
        let root = message.root()?;
        match root.u16(0) {
            // The peer does not know a kind of message that we sent. All ours are of level 0 but calls on promised answers; a
            // peer without those cannot be talked to.
            tag::UNIMPLEMENTED => {
                let original = root.pointer_to_struct(0)?.u16(0);
                if matches!(original, tag::BOOTSTRAP | tag::CALL) {
                    return Err(WireError::Protocol("it implements no calls"));
                }
                Ok(None)
            }
            tag::ABORT => {
                self.closed = true;
                Ok(Some(Incoming::Aborted(reason(&root.pointer_to_struct(0)?)?)))
            }
            tag::CALL => self.take_call(message),
            tag::RETURN => self.take_return(message),
            tag::FINISH => {
                let question = root.pointer_to_struct(0)?.u32(0);
                match self.answers.get_mut(&question) {
                    Some(answer @ Answer::Open) => *answer = Answer::Canceled,
                    Some(Answer::Canceled) | None => return Err(WireError::Protocol("a finish of a question that is not open")),
                    Some(Answer::Bootstrap | Answer::Returned) => {
                        self.answers.remove(&question);
                    }
                }
                Ok(None)
            }
            tag::RESOLVE => self.take_resolve(&message),
            // Our one capability lives as long as the stream, however often it is released.
            tag::RELEASE => Ok(None),
            tag::BOOTSTRAP => {
                let question = root.pointer_to_struct(0)?.u32(0);
                self.answer_bootstrap(question)?;
                Ok(None)
            }
            tag::DISEMBARGO => {
                self.take_disembargo(&message)?;
                Ok(None)
            }
            _ => {
                self.send_unimplemented(&message)?;
                Ok(None)
            }
        }
    }

    fn take_call(&mut self, message: Message) -> Result<Option<Incoming>, WireError> {
        let call = message.root()?.pointer_to_struct(0)?;
        let (question, interface, method) = (call.u32(0), call.u64(8), call.u16(4));
        let (target, results_to) = (call.pointer_to_struct(0)?, call.u16(6));
        let known = match target.u16(4) {
            0 => self.serves && target.u32(0) == BOOTSTRAP_EXPORT,
            1 => {
                let promised = target.pointer_to_struct(0)?;
                self.answers.get(&promised.u32(0)) == Some(&Answer::Bootstrap) && no_transform(&promised)?
            }
            _ => {
                self.send_unimplemented(&message)?;
                return Ok(None);
            }
        };
        let id = self.open_answer(question, Answer::Open)?;
        if results_to != 0 {
            self.refuse(id, Refusal::Unimplemented, "results go to the caller alone")?;
        } else if !known {
            self.refuse(id, Refusal::Failed, "no such capability")?;
        } else {
            return Ok(Some(Incoming::Call(Call { id, interface, method, message })));
        }
        Ok(None)
    }

    fn take_return(&mut self, message: Message) -> Result<Option<Incoming>, WireError> {
        let body = message.root()?.pointer_to_struct(0)?;
        let question = body.u32(0);
        let bootstrap = self.questions.remove(&question).ok_or(WireError::Protocol("an answer to no question"))?;
        let outcome = match body.u16(6) {
            0 => None,
            1 => Some(reason(&body.pointer_to_struct(0)?)?),
            2 => Some("the peer canceled the call".to_owned()),
            _ => Some("the peer sent the results elsewhere".to_owned()),
        };
        let import = if bootstrap && outcome.is_none() { import(&body.pointer_to_struct(0)?)? } else { None };
        // Bit 32 is releaseResultCaps, stored inverted: what is not the bootstrap capability goes back at once.
        let (mut b, finish) = tagged(tag::FINISH, 1, 0);
        b.set_u32(finish, 0, question);
        b.set_bit(finish, 32, import.is_some());
        self.send(b)?;
        if bootstrap {
            self.remote = import.map_or(Remote::Broken, Remote::Imported);
            return Ok(match (import, outcome) {
                (Some(_), _) => None,
                (None, reason) => {
                    let reason = reason.unwrap_or_else(|| "the peer has no bootstrap capability".to_owned());
                    Some(Incoming::Return { question, outcome: Outcome::Exception(reason) })
                }
            });
        }
        let outcome = outcome.map_or_else(|| Outcome::Results(Box::new(message)), Outcome::Exception);
        Ok(Some(Incoming::Return { question, outcome }))
    }

    /// A promise of the peer has become a capability. If it is the bootstrap one, calls go straight there from now on: they
    /// stay with the same peer, so their order needs no embargo. Anything else is given back.
    fn take_resolve(&mut self, message: &Message) -> Result<Option<Incoming>, WireError> {
        let resolve = message.root()?.pointer_to_struct(0)?;
        let promise = resolve.u32(0);
        let ours = matches!(self.remote, Remote::Imported(import) if import == promise);
        if resolve.u16(4) == 0 {
            let cap = resolve.pointer_to_struct(0)?;
            if let (1 | 2, id) = (cap.u16(0), cap.u32(4)) {
                if ours {
                    self.remote = Remote::Imported(id);
                }
                let release = if ours { promise } else { id };
                let (mut b, body) = tagged(tag::RELEASE, 1, 0);
                b.set_u32(body, 0, release);
                b.set_u32(body, 4, 1);
                self.send(b)?;
            }
        } else if ours {
            self.remote = Remote::Broken;
        }
        Ok(None)
    }

    /// Echoes the end of an embargo, so that a peer that waits for it goes on.
    fn take_disembargo(&mut self, message: &Message) -> Result<(), WireError> {
        let disembargo = message.root()?.pointer_to_struct(0)?;
        match disembargo.u16(4) {
            0 => {
                let (mut b, body) = tagged(tag::DISEMBARGO, 1, 1);
                b.set_u32(body, 0, disembargo.u32(0));
                b.set_u16(body, 4, 1);
                b.copy(body, 0, &disembargo, 0)?;
                self.send(b)
            }
            1 => Ok(()),
            _ => self.send_unimplemented(message),
        }
    }

    fn answer_bootstrap(&mut self, question: u32) -> Result<(), WireError> {
        if !self.serves {
            let id = self.open_answer(question, Answer::Open)?;
            return self.refuse(id, Refusal::Failed, "this end has no bootstrap capability");
        }
        let id = self.open_answer(question, Answer::Bootstrap)?;
        let (mut b, body) = self.start_return(id);
        let payload = b.init_struct(body, 0, 0, 2);
        b.set_capability(payload, 0, 0);
        let table = b.init_structs(payload, 1, 1, 1, 1);
        let cap = b.element(table, 0);
        b.set_u16(cap, 0, 1);
        b.set_u32(cap, 4, BOOTSTRAP_EXPORT);
        self.send(b)
    }

    fn send_unimplemented(&mut self, original: &Message) -> Result<(), WireError> {
        let (mut b, root) = Builder::new(1, 1);
        b.set_u16(root, 0, tag::UNIMPLEMENTED);
        let source = original.root()?;
        let copy = b.init_struct(root, 0, 1, 1);
        b.set_u64(copy, 0, source.u64(0));
        b.copy(copy, 0, &source, 0)?;
        self.send(b)
    }

    fn ask(&mut self, bootstrap: bool) -> u32 {
        let question = self.next_question;
        // Never in use: a stream sees a handful of calls.
        self.next_question = self.next_question.wrapping_add(1);
        self.questions.insert(question, bootstrap);
        question
    }

    fn open_answer(&mut self, question: u32, answer: Answer) -> Result<CallId, WireError> {
        if self.answers.len() >= MAX_ANSWERS {
            return Err(WireError::Protocol("too many open questions"));
        }
        if self.answers.insert(question, answer).is_some() {
            return Err(WireError::Protocol("two questions with one number"));
        }
        Ok(CallId(question))
    }

    /// Marks a call as answered; false when there is nothing to answer.
    fn close_answer(&mut self, call: CallId) -> bool {
        if self.closed {
            return false;
        }
        match self.answers.get_mut(&call.0) {
            Some(answer @ Answer::Open) => {
                *answer = Answer::Returned;
                true
            }
            // A canceled question still gets its answer; then its number is free.
            Some(Answer::Canceled) => {
                self.answers.remove(&call.0);
                true
            }
            _ => false,
        }
    }

    fn start_return(&self, call: CallId) -> (Builder, StructAt) {
        let (mut b, body) = tagged(tag::RETURN, 2, 1);
        b.set_u32(body, 0, call.0);
        (b, body)
    }

    fn send(&mut self, b: Builder) -> Result<(), WireError> {
        if self.closed {
            return Err(WireError::Closed);
        }
        self.output.extend(b.finish()?);
        Ok(())
    }
}

/// Export number of our bootstrap capability.
const BOOTSTRAP_EXPORT: u32 = 0;

/// A `Message` with one body.
fn tagged(tag: u16, data: usize, pointers: usize) -> (Builder, StructAt) {
    let (mut b, root) = Builder::new(1, 1);
    b.set_u16(root, 0, tag);
    let body = b.init_struct(root, 0, data, pointers);
    (b, body)
}

fn exception(b: &mut Builder, holder: StructAt, why: Refusal, reason: &str) {
    let body = b.init_struct(holder, 0, 1, 1);
    b.set_text(body, 0, cut(reason).as_bytes());
    b.set_u16(body, 4, if why == Refusal::Unimplemented { 3 } else { 0 });
}

fn reason(exception: &StructReader<'_>) -> Result<String, WireError> {
    let text = String::from_utf8_lossy(exception.text_bytes(0)?).into_owned();
    Ok(cut(&text).to_owned())
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn no_transform(promised: &StructReader<'_>) -> Result<bool, WireError> {
    // An op of tag 0 does nothing; any other asks for a field of the bootstrap capability, which has none.
    Ok(promised.list(0)?.iter().all(|op| op.u16(0) == 0))
}

/// The import number of the capability that a payload consists of.
fn import(payload: &StructReader<'_>) -> Result<Option<u32>, WireError> {
    let Some(index) = payload.capability(0)? else { return Ok(None) };
    let table = payload.list(1)?;
    let cap = table.get(index as usize);
    // Hosted by the sender, or promised by it: both are called by this number.
    Ok(matches!(cap.u16(0), 1 | 2).then(|| cap.u32(4)))
}
