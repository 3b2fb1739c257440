//! The binary: installs the one crypto provider, then hands over to the command line. Nothing else lives here.

fn main() -> std::process::ExitCode {
    // Fails only when a provider is installed already, and nothing has run before this line.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    cftunnel::commands::main(std::env::args_os().collect()).into()
}
