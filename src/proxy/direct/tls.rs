//! TLS towards clients: certificate and key from files, read again when they change; HTTP/2 and HTTP/1.1 by ALPN.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::NoServerSessionStorage;

use crate::proxy::config::{Certified, CredentialError, provider};

/// How often the files are read again.
const RELOAD: Duration = Duration::from_secs(10);

/// Whether a client may come back without a full handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resumption {
    /// By tickets under a key that changes every six hours and never leaves the process; nothing is kept for each client.
    #[default]
    Tickets,
    /// Every handshake is a full one.
    Off,
}

/// A certificate with its key, as files.
#[derive(Debug)]
pub struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    certified: Arc<Certified>,
}

impl Identity {
    /// Reads the certificate chain, the server's own first, and its key, both PEM.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(certificate: PathBuf, key: PathBuf) -> Result<Self, CredentialError> {
        let certified = Arc::new(Certified::read(&certificate, &key)?);
        Ok(Self { certificate, key, certified })
    }

    /// Settings for [`super::Direct::serve`], which follow the files as far as [`Self::follow`] reads them.
    ///
    /// # Errors
    /// When the provider of cryptography lacks what TLS needs.
    pub fn server_config(&self, resumption: Resumption) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.certified) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match resumption {
            Resumption::Tickets => {
                config.ticketer = Ticketer::new()?;
                // One is used by the next connection, which brings a new one; browsers ask for no more.
                config.send_tls13_tickets = 1;
            }
            Resumption::Off => config.send_tls13_tickets = 0,
        }
        Ok(Arc::new(config))
    }

    /// Reads the files again every few seconds, until dropped. What cannot be used changes nothing.
    pub async fn follow(&self) {
        let mut failing = false;
        loop {
            tokio::time::sleep(RELOAD).await;
            let outcome = self.certified.reload(&self.certificate, &self.key);
            match &outcome {
                Ok(true) => tracing::info!("Certificate of the direct listeners changed"),
                Ok(false) => {}
                Err(error) if !failing => {
                    tracing::warn!(%error, "Cannot reload the certificate of the direct listeners, keeping the old one");
                }
                Err(_) => {}
            }
            failing = outcome.is_err();
        }
    }
}
