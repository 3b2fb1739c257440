//! The command line: the only place that prints, prompts, colours or uses anyhow.
