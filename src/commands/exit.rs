//! How the process ends. Codes are the same for every verb.

/// The exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// Done; for a serve verb: drained.
    Fine,
    /// Looked, and found problems.
    Problems,
    /// Could not do it, or was called wrongly.
    Failed,
    /// Told to stop at once.
    Interrupted,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(match code {
            ExitCode::Fine => 0,
            ExitCode::Problems => 1,
            ExitCode::Failed => 2,
            ExitCode::Interrupted => 130,
        })
    }
}
