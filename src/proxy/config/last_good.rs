//! The last configuration that was pushed, kept on disk for a restart while the controller is away (X15). Encrypted, because
//! it may hold keys, and bound to its Gateway, so that another one's volume is of no use.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use super::{Envelope, MAX_DOCUMENT, Token};

const FILE: &str = "last-good-config";
/// Format of the file: these bytes, the nonce, the ciphertext with its tag.
const MAGIC: &[u8] = b"cftunnel-last-good-1\n";
const SALT: &[u8] = b"cftunnel last good configuration";

/// Why there is no stored configuration to serve by.
#[derive(Debug, thiserror::Error)]
pub enum LastGoodError {
    /// The file cannot be read or written.
    #[error("{path}: cannot {action} the stored configuration; check that the state directory is writable")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// `read` or `write`.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Not the format of this version, or too large for it.
    #[error("{path}: not a stored configuration of this version; it is ignored")]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// Another token, another Gateway, or changed bytes. Which one cannot be told, and that is the purpose.
    #[error("{path}: the stored configuration was changed or belongs to another gateway or token; it is ignored")]
    Sealed {
        /// The file.
        path: PathBuf,
    },
}

/// Where the last good configuration of one Gateway is kept.
#[derive(Clone, Debug)]
pub struct LastGood {
    path: PathBuf,
    gateway_uid: String,
}

impl LastGood {
    /// In `directory`, which must exist; for the Gateway with this UID.
    pub fn new(directory: &Path, gateway_uid: &str) -> Self {
        Self { path: directory.join(FILE), gateway_uid: gateway_uid.to_owned() }
    }

    /// Replaces what is stored, at once or not at all.
    ///
    /// # Errors
    /// [`LastGoodError::Io`].
    pub(super) fn save(&self, token: &Token, envelope: &Envelope) -> Result<(), LastGoodError> {
        self.write(token, envelope).map_err(|source| LastGoodError::Io { path: self.path.clone(), action: "write", source })
    }

    /// What is stored; `None` when nothing is.
    ///
    /// # Errors
    /// Anything that is not a whole document of this Gateway.
    pub(super) fn load(&self, token: &Token) -> Result<Option<Envelope>, LastGoodError> {
        let path = || self.path.clone();
        let read = |source| LastGoodError::Io { path: path(), action: "read", source };
        let length = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(read(e)),
        };
        if length > 2 * MAX_DOCUMENT as u64 {
            return Err(LastGoodError::Format { path: path() });
        }
        let mut file = Zeroizing::new(std::fs::read(&self.path).map_err(read)?);
        let sealed = file.strip_prefix(MAGIC).ok_or_else(|| LastGoodError::Format { path: path() })?.len();
        let start = file.len() - sealed;
        let (nonce, sealed) =
            file[start..].split_first_chunk_mut::<NONCE_LEN>().ok_or_else(|| LastGoodError::Format { path: path() })?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let json = self
            .key(token)
            .and_then(|key| key.open_in_place(nonce, self.aad(), sealed).ok())
            .ok_or_else(|| LastGoodError::Sealed { path: path() })?;
        serde_json::from_slice(json).map(Some).map_err(|_| LastGoodError::Format { path: path() })
    }

    fn write(&self, token: &Token, envelope: &Envelope) -> io::Result<()> {
        let mut text = Zeroizing::new(serde_json::to_vec(envelope)?);
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| io::Error::other("no random numbers"))?;
        let key = self.key(token).ok_or_else(|| io::Error::other("no key can be derived from the token"))?;
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), self.aad(), &mut *text)
            .map_err(|_| io::Error::other("the configuration cannot be encrypted"))?;
        let temporary = self.path.with_extension("tmp");
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        for part in [MAGIC, &nonce, &text] {
            file.write_all(part)?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)
    }

    /// A key that only the token gives, and for this Gateway only.
    fn key(&self, token: &Token) -> Option<LessSafeKey> {
        let info = [self.gateway_uid.as_bytes()];
        let prk = Salt::new(HKDF_SHA256, SALT).extract(token.expose());
        let key = UnboundKey::from(prk.expand(&info, &AES_256_GCM).ok()?);
        Some(LessSafeKey::new(key))
    }

    fn aad(&self) -> Aad<&[u8]> {
        Aad::from(self.gateway_uid.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::gateway::ir::RouteConfig;

    fn envelope() -> Envelope {
        Envelope { gateway_uid: "uid-1".into(), lease_transitions: 7, config: RouteConfig::empty() }
    }

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn what_was_saved_is_loaded_and_readable_by_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let store = LastGood::new(directory.path(), "uid-1");
        assert!(store.load(&token("secret")).unwrap().is_none());
        store.save(&token("secret"), &envelope()).unwrap();
        store.save(&token("secret"), &envelope()).unwrap();
        assert_eq!(store.load(&token("secret")).unwrap(), Some(envelope()));
        let mode = std::fs::metadata(&store.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let bytes = std::fs::read(&store.path).unwrap();
        assert!(!bytes.windows(9).any(|w| w == b"listeners"), "plain text on disk");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file stays");
    }

    #[test]
    fn another_token_another_gateway_and_changed_bytes_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = LastGood::new(directory.path(), "uid-1");
        store.save(&token("secret"), &envelope()).unwrap();
        assert!(matches!(store.load(&token("other")), Err(LastGoodError::Sealed { .. })));
        let other = LastGood::new(directory.path(), "uid-2");
        assert!(matches!(other.load(&token("secret")), Err(LastGoodError::Sealed { .. })));

        let good = std::fs::read(&store.path).unwrap();
        for at in [0, MAGIC.len(), MAGIC.len() + NONCE_LEN, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&store.path, bad).unwrap();
            assert!(store.load(&token("secret")).is_err(), "byte {at}");
        }
        for length in [0, MAGIC.len(), MAGIC.len() + 3, good.len() - 1] {
            std::fs::write(&store.path, &good[..length]).unwrap();
            assert!(store.load(&token("secret")).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_that_names_it() {
        let store = LastGood::new(Path::new("/nonexistent"), "uid-1");
        let error = store.save(&token("secret"), &envelope()).unwrap_err().to_string();
        assert!(error.contains("/nonexistent") && !error.contains("secret"), "{error}");
    }
}
