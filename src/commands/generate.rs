//! `generate`: files that are made from the command line's definition or from the types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueHint;

use super::exit::ExitCode;
use super::output::Help as _;
use super::{BIN, Context};

/// Generate completions, man pages and CRDs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Completion script of a shell; `kubectl` is the script that kubectl calls for its plugin
    #[command(after_help = "Examples:
  # bash, for this user
  kubectl-cftunnel generate completions bash > ~/.local/share/bash-completion/completions/kubectl-cftunnel

  # `kubectl cftunnel <TAB>`: a script anywhere on PATH
  kubectl-cftunnel generate completions kubectl > ~/.local/bin/kubectl_complete-cftunnel
  chmod +x ~/.local/bin/kubectl_complete-cftunnel")]
    Completions {
        /// The shell; may be left out with --out-dir
        #[arg(value_enum, required_unless_present = "out_dir")]
        shell: Option<Shell>,
        #[command(flatten)]
        to: OutDir,
    },
    /// Man pages
    #[command(after_help = "Examples:
  # Read one
  kubectl-cftunnel generate man kubectl-cftunnel-serve-local | man -l -

  # Write all
  kubectl-cftunnel generate man --out-dir ~/.local/share/man/man1")]
    Man {
        /// One page, such as kubectl-cftunnel-token-parse
        #[arg(value_name = "PAGE", required_unless_present = "out_dir")]
        page: Option<String>,
        #[command(flatten)]
        to: OutDir,
    },
    /// CustomResourceDefinitions of our own kinds, as YAML
    #[command(after_help = "Examples:
  kubectl cftunnel generate crds | kubectl apply --server-side -f -")]
    Crds {
        #[command(flatten)]
        to: OutDir,
    },
}

#[derive(Debug, clap::Args)]
struct OutDir {
    /// Write all of them into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    /// The script kubectl calls to complete `kubectl cftunnel`
    Kubectl,
}

impl Shell {
    const ALL: [Self; 4] = [Self::Bash, Self::Zsh, Self::Fish, Self::Kubectl];

    /// File name, as the shell looks for it.
    fn file(self) -> String {
        match self {
            Self::Bash => format!("{BIN}.bash"),
            Self::Zsh => format!("_{BIN}"),
            Self::Fish => format!("{BIN}.fish"),
            Self::Kubectl => "kubectl_complete-cftunnel".to_owned(),
        }
    }

    fn script(self) -> String {
        let shell = match self {
            Self::Bash => clap_complete::Shell::Bash,
            Self::Zsh => clap_complete::Shell::Zsh,
            Self::Fish => clap_complete::Shell::Fish,
            Self::Kubectl => {
                return format!(
                    "#!/bin/sh\n# kubectl calls this to complete `kubectl cftunnel`; put it on PATH.\nexec {BIN} {} \"$@\"\n",
                    super::complete::VERB
                );
            }
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut super::definition(BIN), BIN, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

pub(crate) fn run(context: Context, args: Args) -> anyhow::Result<ExitCode> {
    let (files, one, to) = match args.what {
        What::Completions { shell, to } => {
            (Shell::ALL.iter().map(|s| (s.file(), s.script())).collect(), shell.map(Shell::file), to)
        }
        What::Man { page, to } => (man_pages()?, page.map(|p| format!("{}.1", p.trim_end_matches(".1"))), to),
        What::Crds { to } => (crds()?, None, to),
    };
    match (to.out_dir, one) {
        (Some(dir), one) => write_all(&dir, files.into_iter().filter(|(name, _)| one.as_ref().is_none_or(|o| o == name)))?,
        (None, Some(name)) => {
            let pages = files.keys().map(|k| k.trim_end_matches(".1")).collect::<Vec<_>>().join("\n");
            let text = files.get(&name).with_context(|| format!("there is no page {name:?}")).help(format!("pages:\n{pages}"))?;
            context.out.raw(text)?;
        }
        (None, None) => {
            let text: Vec<&str> = files.values().map(String::as_str).collect();
            context.out.raw(&text.join("---\n"))?;
        }
    }
    Ok(ExitCode::Fine)
}

type Files = BTreeMap<String, String>;

fn write_all(dir: &Path, files: impl Iterator<Item = (String, String)>) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make folder {}", dir.display()))?;
    for (name, text) in files {
        let path = dir.join(&name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        #[cfg(unix)]
        if name.starts_with("kubectl_complete") {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                .with_context(|| format!("cannot make {} executable", path.display()))?;
        }
    }
    Ok(())
}

/// Every page, by file name. Pages of subcommands are named `PARENT-VERB`.
fn man_pages() -> anyhow::Result<Files> {
    let mut root = super::definition(BIN);
    root.build();
    let mut pages = Files::new();
    man_page(&root, BIN.to_owned(), &mut pages)?;
    Ok(pages)
}

fn man_page(command: &clap::Command, name: String, pages: &mut Files) -> anyhow::Result<()> {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        man_page(sub, format!("{name}-{}", sub.get_name()), pages)?;
    }
    // The examples get a section of their own, as a manual has it.
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let command = command.clone().name(name.clone()).display_name(name.clone()).after_help("");
    let man = clap_mangen::Man::new(command)
        .date("")
        .source(format!("{BIN} {}", env!("CARGO_PKG_VERSION")))
        .manual("Gateway API for Cloudflare Tunnel");
    let mut text = Vec::new();
    man.render(&mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if !examples.is_empty() {
        text = insert_examples(&text, &examples);
    }
    pages.insert(format!("{name}.1"), text);
    Ok(())
}

/// Puts the examples before the version, which ends a page.
fn insert_examples(page: &str, after_help: &str) -> String {
    let (examples, rest) = match after_help.strip_prefix("Examples:\n") {
        Some(text) => text.split_once("\n\nExit codes:").map_or((text, None), |(e, x)| (e, Some(x))),
        None => (after_help, None),
    };
    let body = examples.lines().map(|l| l.strip_prefix("  ").unwrap_or(l).replace('\\', "\\e").replace('-', "\\-"));
    let body: Vec<String> = body.map(|l| if l.starts_with(['.', '\'']) { format!("\\&{l}") } else { l }).collect();
    let mut section = format!(".SH EXAMPLES\n.nf\n{}\n.fi\n", body.join("\n"));
    if let Some(codes) = rest {
        section.push_str(&format!(".SH \"EXIT STATUS\"\n{}\n", codes.trim()));
    }
    match page.find(".SH VERSION") {
        Some(at) => format!("{}{section}{}", &page[..at], &page[at..]),
        None => format!("{page}{section}"),
    }
}

/// Our CRDs, by file name.
fn crds() -> anyhow::Result<Files> {
    let mut files = Files::new();
    for crd in crate::gateway::resource::crds() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        files.insert(format!("{name}.yaml"), super::output::yaml(&crd)?);
    }
    Ok(files)
}
