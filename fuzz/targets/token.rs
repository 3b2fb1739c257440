//! Whatever somebody pastes as a tunnel token: nothing panics, what is accepted survives its own encoding, and no error repeats
//! what was pasted.

use cftunnel::gateway::token::TunnelToken;

/// Shorter texts may occur in an error by chance.
const TELLING: usize = 24;

pub(crate) fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for read in [TunnelToken::from_any(text), text.parse::<TunnelToken>(), TunnelToken::from_credentials_json(text)] {
        match read {
            Ok(token) => {
                let again: TunnelToken = token.encode().parse().expect("an encoded token is a token");
                assert!(again == token, "a token changes when it is written and read");
                let shown = format!("{token:?}");
                assert!(!shown.contains(&*token.encode()), "a token shows itself");
            }
            Err(error) => {
                let pasted = text.trim();
                let secret = pasted.len() >= TELLING && !pasted.contains(char::is_whitespace);
                assert!(!secret || !error.to_string().contains(pasted), "an error repeats what was pasted");
            }
        }
    }
}
