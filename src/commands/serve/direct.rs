//! Direct listeners of the serve verbs: what their arguments mean, and their start. What they do is in `proxy::direct`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueHint;
use tokio::net::TcpListener;

use crate::commands::output::{Help as _, fail};
use crate::proxy::direct::tls::{Identity, Resumption};
use crate::proxy::direct::{self, Direct, Limits};
use crate::proxy::http::Plane;
use crate::proxy::workers::Workers;

/// Ports that lead to the routes without a tunnel.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Direct")]
pub(super) struct DirectArgs {
    /// Take requests here, too, without the tunnel: HTTP/1.1 and h2c; may be repeated
    #[arg(long = "direct", value_name = "ADDR")]
    plain: Vec<SocketAddr>,
    /// The same over TLS, HTTP/2 and HTTP/1.1; may be repeated
    #[arg(long = "direct-tls", value_name = "ADDR", requires_all = ["direct_tls_cert", "direct_tls_key"])]
    tls: Vec<SocketAddr>,
    /// Certificate chain of --direct-tls (PEM); read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls")]
    direct_tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls")]
    direct_tls_key: Option<PathBuf>,
    /// Have every client of --direct-tls make a full handshake: no session tickets
    #[arg(long, requires = "tls")]
    direct_tls_no_resumption: bool,
}

impl DirectArgs {
    /// Reads what the arguments name. Nothing is bound yet.
    ///
    /// # Errors
    /// When the certificate cannot be used, and for a plane that nothing could reach.
    pub(super) fn read(&self, no_tunnel: bool) -> anyhow::Result<Ports> {
        if no_tunnel && self.plain.is_empty() && self.tls.is_empty() {
            return Err(fail(
                "without a tunnel there is nowhere to take requests",
                "add --direct 127.0.0.1:8080, or leave --no-tunnel out",
            ));
        }
        let identity = match (&self.direct_tls_cert, &self.direct_tls_key) {
            (Some(certificate), Some(key)) => Some(
                Identity::read(certificate.clone(), key.clone())
                    .help("--direct-tls-cert names a PEM certificate chain, --direct-tls-key its PEM key")?,
            ),
            _ => None,
        };
        let resumption = if self.direct_tls_no_resumption { Resumption::Off } else { Resumption::Tickets };
        Ok(Ports { plain: self.plain.clone(), tls: self.tls.clone(), identity, resumption })
    }
}

/// Where to listen, and as whom.
#[derive(Debug)]
pub(super) struct Ports {
    plain: Vec<SocketAddr>,
    tls: Vec<SocketAddr>,
    identity: Option<Identity>,
    resumption: Resumption,
}

impl Ports {
    /// Starts the listeners.
    ///
    /// # Errors
    /// When an address cannot be had.
    pub(super) fn start(self, plane: &Arc<Plane>, workers: &Workers) -> anyhow::Result<Listeners> {
        let direct = Direct::new(Arc::clone(plane), Limits::default());
        let mut listeners = Listeners { direct, addresses: Vec::new() };
        for address in self.plain {
            listeners.listen(address, "--direct", None, workers)?;
        }
        if let Some(identity) = self.identity {
            let config = identity.server_config(self.resumption).context("cannot set up TLS for --direct-tls")?;
            for address in self.tls {
                listeners.listen(address, "--direct-tls", Some(Arc::clone(&config)), workers)?;
            }
            tokio::spawn(async move { identity.follow().await });
        }
        Ok(listeners)
    }
}

/// Listeners that run.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) direct: Arc<Direct<Plane>>,
    addresses: Vec<(SocketAddr, bool)>,
}

impl Listeners {
    /// Where they are, and which of them take TLS.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (SocketAddr, bool)> + '_ {
        self.addresses.iter().copied()
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        flag: &str,
        tls: Option<Arc<rustls::ServerConfig>>,
        workers: &Workers,
    ) -> anyhow::Result<()> {
        let sockets = direct::bind(address, workers.count())
            .with_context(|| format!("cannot listen on {address}"))
            .help(format!("{flag} chooses another address; port 0 takes any that is free"))?;
        if let Some(socket) = sockets.first() {
            self.addresses.push((socket.local_addr()?, tls.is_some()));
        }
        for (socket, worker) in sockets.into_iter().zip(workers.handles()) {
            // The socket belongs to the runtime that it is registered with.
            let _on_worker = worker.enter();
            worker.spawn(Arc::clone(&self.direct).serve(TcpListener::from_std(socket)?, tls.clone()));
        }
        Ok(())
    }
}
