//! A certificate authority for one run, and the certificate that connectors ask for by name (tunnel-protocol §3).

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::EdgeError;

/// Names that connectors ask for: over HTTP/2, over QUIC, and in the probes of some.
const NAMES: [&str; 4] = ["h2.cftunnel.com", "quic.cftunnel.com", "probe.cftunnel.com", "localhost"];

/// A fresh authority and what it has signed.
pub(super) struct Certificates {
    /// The authority, for connectors to trust.
    pub(super) ca_pem: String,
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Certificates {
    pub(super) fn generate() -> Result<Self, rcgen::Error> {
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name.push(DnType::CommonName, "cftunnel built-in edge");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;

        let mut leaf = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?;
        leaf.distinguished_name.push(DnType::CommonName, NAMES[0]);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &Issuer::new(ca, ca_key))?;
        Ok(Self {
            ca_pem: ca_certificate.pem(),
            chain: vec![certificate.der().clone(), ca_certificate.der().clone()],
            key: key.serialize_der(),
        })
    }

    /// For HTTP/2. Connectors offer no protocol by ALPN, or `h2`; both get HTTP/2.
    pub(super) fn acceptor(&self) -> Result<tokio_rustls::TlsAcceptor, EdgeError> {
        Ok(Arc::new(self.tls(rustls::ALL_VERSIONS, b"h2")?).into())
    }

    /// For QUIC.
    pub(super) fn quic(&self) -> Result<quinn::crypto::rustls::QuicServerConfig, EdgeError> {
        Ok(self.tls(&[&rustls::version::TLS13], b"argotunnel")?.try_into()?)
    }

    fn tls(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        protocol: &[u8],
    ) -> Result<ServerConfig, rustls::Error> {
        // Named, so that it works whatever the process has installed.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), key)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}
