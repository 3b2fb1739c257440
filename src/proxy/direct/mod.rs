//! Direct listen mode: HTTP/1.1, h2c by prior knowledge and TLS on ports that the plane binds itself, in front of the same
//! [`Serve`] as the tunnel. What a request means is not known here, only how it comes in and how its connection ends.
//!
//! `activity` watches for peers that hold a place and do nothing with it, `connection` drives one connection, `request` turns
//! hyper's requests into the service's, `tls` makes the settings of TLS.

mod activity;
mod connection;
mod io;
mod request;
pub mod tls;

use std::io as std_io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::Serve;

/// Connections that wait to be accepted, for each socket.
const BACKLOG: i32 = 4096;
/// Pause after a failed accept. Out of file descriptors, most likely: do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once. One more is closed as soon as it is accepted, so that its client can go elsewhere.
    pub connections: usize,
    /// Longest wait for the TLS handshake, and then for a whole head of a request once its first byte is there; a new
    /// connection must send its first head within it.
    pub head: Duration,
    /// Longest time without a request on a connection.
    pub idle: Duration,
    /// Longest time in which a client takes nothing of what is to be sent to it.
    pub stalled: Duration,
    /// How long a connection must have been idle to be closed when draining: one that was used a moment ago may be about to
    /// carry another request, and is told `Connection: close` with the answer to that.
    pub drain_idle: Duration,
}

impl Default for Limits {
    /// 16,384 connections, 10 s for a head, 75 s without a request, 60 s without taking a byte, half a second when draining.
    fn default() -> Self {
        Self {
            connections: 16_384,
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            stalled: Duration::from_secs(60),
            drain_idle: Duration::from_millis(500),
        }
    }
}

/// The direct listeners of a plane: what they share, and their end.
#[derive(Debug)]
pub struct Direct<S> {
    service: Arc<S>,
    limits: Limits,
    connections: Arc<AtomicUsize>,
    tasks: TaskTracker,
    /// No new connections, no new requests on the old ones.
    draining: Signal,
    /// Everything ends now.
    closing: CancellationToken,
}

impl<S: Serve> Direct<S> {
    /// No listener yet.
    pub fn new(service: Arc<S>, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            service,
            limits,
            connections: Arc::default(),
            tasks: TaskTracker::new(),
            draining: Signal::default(),
            closing: CancellationToken::new(),
        })
    }

    /// Accepts connections on the runtime that polls this, and serves them there, until [`Self::drain`]. Without `tls` the
    /// bytes are HTTP/1.1 or, from a client that knows, HTTP/2.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>) {
        let tls = tls.map(TlsAcceptor::from);
        loop {
            let accepted = tokio::select! {
                biased;
                accepted = listener.accept() => accepted,
                () = self.draining.wait() => break,
            };
            match accepted {
                Ok((socket, peer)) => self.admit(socket, peer, tls.clone()),
                Err(error) => {
                    tracing::warn!(%error, "Cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // Who was let in by the kernel is served: closing the socket would reset them.
        let Ok(listener) = listener.into_std() else { return };
        while let Ok((socket, peer)) = listener.accept() {
            let socket = socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket));
            if let Ok(socket) = socket {
                self.admit(socket, peer, tls.clone());
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>) {
        let Some(place) = Place::take(&self.connections, self.limits.connections) else {
            tracing::debug!(%peer, "Connection refused: there are too many");
            return;
        };
        let connection = connection::Connection { direct: Arc::clone(self), place, peer };
        self.tasks.spawn(connection.run(socket, tls));
    }

    /// Connections at this moment, WebSocket sessions included.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Accepts no more connections and asks the clients of the others to go; returns when all have gone. WebSocket sessions
    /// are waited for, too.
    pub async fn drain(&self) {
        self.draining.give();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Cuts what is left.
    pub fn close(&self) {
        self.draining.give();
        self.closing.cancel();
    }
}

/// A signal that is given once. Looking at it is free of locks, unlike looking at a token.
#[derive(Debug, Default)]
struct Signal {
    given: AtomicBool,
    token: CancellationToken,
}

impl Signal {
    fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.token.cancel();
    }

    fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    async fn wait(&self) {
        self.token.cancelled().await;
    }
}

/// One of the connections there may be.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        // Given back by the drop when it is one too many.
        (taken.fetch_add(1, Ordering::Relaxed) < limit).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Binds `count` sockets to one address, between which the kernel spreads new connections. Port 0 takes any that is free, the
/// same for all.
///
/// # Errors
/// When the address cannot be had. One that another process listens on is not shared with it.
pub fn bind(address: SocketAddr, count: usize) -> std_io::Result<Vec<std::net::TcpListener>> {
    // The first asks for the address alone: with SO_REUSEPORT from the start, a second process of the same user would quietly
    // get half of the connections.
    let first = open(address, false)?;
    if count > 1 {
        first.set_reuse_port(true)?;
    }
    let address = first.local_addr()?.as_socket().unwrap_or(address);
    let others = (1..count).map(|_| open(address, true));
    let sockets = std::iter::once(Ok(first)).chain(others).collect::<std_io::Result<Vec<Socket>>>()?;
    for socket in &sockets {
        socket.listen(BACKLOG)?;
    }
    Ok(sockets.into_iter().map(Into::into).collect())
}

/// A socket that is bound and does not listen yet.
fn open(address: SocketAddr, shared: bool) -> std_io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
