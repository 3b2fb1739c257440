//! TLS towards the edge (tunnel-protocol §3): whom we trust, what we offer. No sockets here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};

use super::state::Transport;

/// Authorities that sign the edge's certificates and that no system store holds: Cloudflare Origin SSL, ECC and RSA.
const CLOUDFLARE_ROOTS: &[u8] = include_bytes!("../../../data/cloudflare-origin-roots.pem");

/// The application protocol of QUIC connections. HTTP/2 connections offer none at all.
const QUIC_ALPN: &[u8] = b"argotunnel";

/// The certificate authorities that may vouch for the edge.
#[derive(Clone, Debug)]
pub struct Roots(Arc<RootCertStore>);

/// Why there are no authorities, or no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read the edge's certificate authorities from {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Not PEM, or no certificate that can be an authority.
    #[error("{0} holds no usable certificate; give a PEM file of certificate authorities")]
    NoCertificate(String),
    /// Rustls refuses the combination.
    #[error("cannot set up tls towards the edge: {0}")]
    Config(#[from] rustls::Error),
    /// QUIC needs a cipher suite that the provider lacks.
    #[error("cannot set up tls for quic: the initial cipher suite is missing")]
    NoInitialCipher,
}

impl Roots {
    /// The system's authorities and Cloudflare's own. What of the system's store cannot be read is left out with a warning.
    ///
    /// # Errors
    /// When Cloudflare's own cannot be read, which would be a broken build.
    pub fn system() -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        let (added, ignored) = store.add_parsable_certificates(native.certs);
        if added == 0 {
            tracing::warn!(ignored, errors = native.errors.len(), "The system has no certificate authorities");
        }
        add_pem(&mut store, CLOUDFLARE_ROOTS, "the built-in list")?;
        Ok(Self(Arc::new(store)))
    }

    /// The authorities in a PEM file and no others.
    ///
    /// # Errors
    /// When the file cannot be read or holds no certificate.
    pub fn from_file(path: &Path) -> Result<Self, TlsError> {
        let pem = std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })?;
        Self::from_pem(&pem, &path.display().to_string())
    }

    /// The authorities in a PEM text and no others; `name` is what an error calls it.
    ///
    /// # Errors
    /// When it holds no certificate.
    pub fn from_pem(pem: &[u8], name: &str) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        add_pem(&mut store, pem, name)?;
        Ok(Self(Arc::new(store)))
    }
}

fn add_pem(store: &mut RootCertStore, pem: &[u8], name: &str) -> Result<(), TlsError> {
    let refuse = || TlsError::NoCertificate(name.to_owned());
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| refuse())?;
    for certificate in &certificates {
        store.add(certificate.clone()).map_err(|_| refuse())?;
    }
    if certificates.is_empty() { Err(refuse()) } else { Ok(()) }
}

/// The name that the edge's certificate must carry.
pub fn server_name(transport: Transport) -> ServerName<'static> {
    ServerName::try_from(server_name_text(transport)).expect("both names are valid host names")
}

/// [`server_name`] as text.
pub const fn server_name_text(transport: Transport) -> &'static str {
    match transport {
        Transport::Http2 => "h2.cftunnel.com",
        Transport::Quic => "quic.cftunnel.com",
    }
}

/// The client side of TLS over `transport`. `post_quantum` prefers X25519MLKEM768, whose first flight does not fit into one
/// packet: a path that drops large ones needs it off.
///
/// # Errors
/// When rustls refuses the combination.
pub fn client_config(transport: Transport, roots: &Roots, post_quantum: bool) -> Result<ClientConfig, TlsError> {
    let versions: &[&rustls::SupportedProtocolVersion] = match transport {
        Transport::Http2 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        Transport::Quic => &[&rustls::version::TLS13],
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider(post_quantum)))
        .with_protocol_versions(versions)?
        .with_root_certificates(Arc::clone(&roots.0))
        .with_no_client_auth();
    if transport == Transport::Quic {
        config.alpn_protocols = vec![QUIC_ALPN.to_vec()];
    }
    Ok(config)
}

fn provider(post_quantum: bool) -> CryptoProvider {
    use aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = vec![X25519, SECP256R1, SECP384R1];
    if post_quantum {
        provider.kx_groups.insert(0, X25519MLKEM768);
    }
    provider
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest as _;

    #[test]
    fn the_built_in_roots_are_those_of_the_protocol_notes() {
        let expected = [
            "aa63697a22764b67b2134ce14cb5690ea336940b93986113f495459178 32d80d".replace(' ', ""),
            "d3c7e85c91707fc0a12abc5d8826674 7aa4fa8e7b162f633ffb3c9d989947620".replace(' ', ""),
        ];
        let found: Vec<String> = CertificateDer::pem_slice_iter(CLOUDFLARE_ROOTS)
            .map(|c| sha2::Sha256::digest(c.expect("pem")).iter().map(|b| format!("{b:02x}")).collect())
            .collect();
        assert_eq!(found, expected);
        assert!(Roots::system().is_ok());
    }

    #[test]
    fn a_file_replaces_the_roots_and_must_hold_some() {
        let key = rcgen::generate_simple_self_signed(vec!["ca".into()]).expect("a certificate");
        assert_eq!(Roots::from_pem(key.cert.pem().as_bytes(), "x").expect("one").0.len(), 1);
        for bad in ["", "no pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let error = Roots::from_pem(bad.as_bytes(), "ca.pem").expect_err(bad).to_string();
            assert!(error.starts_with("ca.pem holds no usable certificate"), "{error}");
        }
        let missing = Roots::from_file(Path::new("/nonexistent/ca.pem")).expect_err("no file").to_string();
        assert!(missing.contains("/nonexistent/ca.pem"), "{missing}");
    }

    #[test]
    fn http2_offers_no_alpn_and_quic_its_own() {
        let roots = Roots::system().expect("roots");
        let http2 = client_config(Transport::Http2, &roots, true).expect("a config");
        let quic = client_config(Transport::Quic, &roots, true).expect("a config");
        assert!(http2.alpn_protocols.is_empty());
        assert_eq!(quic.alpn_protocols, [b"argotunnel"]);
    }

    #[test]
    fn the_post_quantum_group_comes_first_and_can_be_switched_off() {
        let first = |pq| provider(pq).kx_groups[0].name();
        assert_eq!(first(true), rustls::NamedGroup::X25519MLKEM768);
        assert_eq!(first(false), rustls::NamedGroup::X25519);
    }
}
