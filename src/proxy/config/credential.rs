//! The certificate, key and token of the config API, read from files and read again when they change: a renewal needs no
//! restart (X14). A file that turns bad keeps what was read before.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// Largest file that can be a certificate chain, a key or a token.
const MAX_FILE: u64 = 1 << 20;

/// Why a credential cannot be used. Never holds any of it.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not what it should be.
    #[error("{path}: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The key is not that of the certificate, or of a kind that cannot be used.
    #[error("{path}: the key does not fit the certificate")]
    Key {
        /// The key's file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// The files.
#[derive(Clone, Debug)]
pub struct Files {
    /// Certificate chain, PEM, the server's own first.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The bearer token; white space around it does not count.
    pub token: PathBuf,
}

/// A bearer token. Shows itself nowhere.
#[derive(Clone)]
pub struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// `None` when there is nothing but white space: an empty token would admit everybody.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let bytes = Zeroizing::new(bytes);
        let trimmed = bytes.trim_ascii();
        (!trimmed.is_empty()).then(|| Self(Zeroizing::new(trimmed.to_vec())))
    }

    /// Whether `offered` is this token; takes as long for a wrong one, whatever its length.
    pub fn matches(&self, offered: &[u8]) -> bool {
        let (mine, theirs) = (digest(&SHA256, &self.0), digest(&SHA256, offered));
        verify_slices_are_equal(mine.as_ref(), theirs.as_ref()).is_ok()
    }

    pub(super) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

/// The credentials in use.
#[derive(Debug)]
pub struct Credentials {
    files: Files,
    certified: Arc<Certified>,
    token: ArcSwap<Token>,
}

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn read(files: Files) -> Result<Self, CredentialError> {
        let certified = Arc::new(Certified::read(&files.certificate, &files.key)?);
        let token = ArcSwap::from_pointee(read_token(&files.token)?);
        Ok(Self { files, certified, token })
    }

    /// The token at this moment.
    pub fn token(&self) -> Arc<Token> {
        self.token.load_full()
    }

    /// Finds the certificate for every handshake anew.
    pub(super) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.certified) as _
    }

    /// Reads the files again; what cannot be used stays as it was.
    pub fn reload(&self) -> Result<(), CredentialError> {
        let certified = self.certified.reload(&self.files.certificate, &self.files.key);
        let token = read_token(&self.files.token);
        if let Ok(token) = &token
            && token.expose() != self.token.load().expose()
        {
            self.token.store(Arc::new(token.clone()));
            tracing::info!("Token of the config API changed");
        }
        if let Ok(true) = certified {
            tracing::info!("Certificate of the config API changed");
        }
        token.and(certified).map(drop)
    }

    /// Reloads every `period` until dropped. The files are small and the volumes of Secrets are swapped by symbolic links, so
    /// that reading them is simpler and surer than watching them.
    pub(super) async fn follow(&self, period: Duration) {
        let mut failing = false;
        loop {
            tokio::time::sleep(period).await;
            let outcome = self.reload();
            if let Err(error) = &outcome
                && !failing
            {
                tracing::warn!(%error, "Cannot reload credentials of the config API, keeping the old ones");
            }
            failing = outcome.is_err();
        }
    }
}

/// A certificate and its key, to be replaced while handshakes go on.
#[derive(Debug)]
pub(in crate::proxy) struct Certified(ArcSwap<CertifiedKey>);

impl Certified {
    /// Reads both from PEM files.
    pub(in crate::proxy) fn read(certificate: &Path, key: &Path) -> Result<Self, CredentialError> {
        Ok(Self(ArcSwap::from_pointee(read_certified(certificate, key)?)))
    }

    /// Reads them again; says whether they are other ones. What cannot be used changes nothing.
    pub(in crate::proxy) fn reload(&self, certificate: &Path, key: &Path) -> Result<bool, CredentialError> {
        let certified = read_certified(certificate, key)?;
        let changed = certified.cert != self.0.load().cert;
        if changed {
            self.0.store(Arc::new(certified));
        }
        Ok(changed)
    }
}

impl ResolvesServerCert for Certified {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let failed = |source| CredentialError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_FILE {
        return Err(malformed(path, "too large for a credential"));
    }
    std::fs::read(path).map(Zeroizing::new).map_err(failed)
}

fn malformed(path: &Path, what: &'static str) -> CredentialError {
    CredentialError::Malformed { path: path.to_owned(), what }
}

fn read_token(path: &Path) -> Result<Token, CredentialError> {
    Token::new(read(path)?.to_vec()).ok_or_else(|| malformed(path, "the token is empty; write one into the file"))
}

fn read_certified(certificate: &Path, key: &Path) -> Result<CertifiedKey, CredentialError> {
    let pem = read(certificate)?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| malformed(certificate, "no PEM certificate"))?;
    let der = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| malformed(key, "no PEM private key"))?;
    CertifiedKey::from_der(chain, der, &provider()).map_err(|source| CredentialError::Key { path: key.to_owned(), source })
}

pub(in crate::proxy) fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}
