//! Where manifests are: `--from-file` names a file, a folder or `-`. Finds and reads the texts; parses nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;

use super::manifest::MAX_TEXT;

/// Most files that one folder may hold: a wrong path such as `/` must not read a disk.
const MAX_FILES: usize = 10_000;

/// Most bytes that all files together may have.
const MAX_TOTAL: usize = 256 * 1024 * 1024;

/// What `--from-file` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `-`: standard input, read once.
    Stdin,
    /// A file, or a folder read with all below it.
    Path(PathBuf),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "-" { Self::Stdin } else { Self::Path(text.into()) })
    }
}

/// Why a source could not be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The path is not there or may not be read.
    #[error("cannot read {path}")]
    Path {
        /// The path as named.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Too many files.
    #[error("{path} holds more than {MAX_FILES} manifests; name a smaller folder")]
    TooManyFiles {
        /// The path as named.
        path: String,
    },
    /// Too many bytes.
    #[error("the manifests have more than {} MiB together; name fewer files", MAX_TOTAL / 1024 / 1024)]
    TooLarge,
}

/// A file's text, or why it has none.
#[derive(Clone, Debug)]
pub struct FileText {
    /// The name to report it by.
    pub name: Arc<str>,
    /// The text; else the reason.
    pub text: Result<Arc<str>, String>,
}

impl FileText {
    /// Bytes of the text.
    pub(super) fn len(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len())
    }
}

/// Every manifest file of a source, sorted, without those that only hold other things. Standard input has none.
///
/// # Errors
/// When the named path itself is not there, or holds too many.
pub fn list(source: &Source) -> Result<Vec<PathBuf>, ReadError> {
    let Source::Path(path) = source else { return Ok(Vec::new()) };
    let fail = |source| ReadError::Path { path: path.display().to_string(), source };
    let meta = fs::metadata(path).map_err(fail)?;
    if !meta.is_dir() {
        return Ok(vec![path.clone()]);
    }
    fs::read_dir(path).map_err(fail)?;
    let mut walk = Walk::default();
    if walk.folder(path) {
        Ok(walk.found.into_iter().collect())
    } else {
        Err(ReadError::TooManyFiles { path: path.display().to_string() })
    }
}

/// The files found below a folder.
#[derive(Default)]
struct Walk {
    found: BTreeSet<PathBuf>,
    /// Folders seen, by their true paths: a link may lead back up.
    seen: BTreeSet<PathBuf>,
}

impl Walk {
    /// Adds the manifests below `folder`; false when there are too many. What starts with a dot is skipped: `.git`, editors'
    /// files, and the `..data` of a mounted ConfigMap, whose files are reached by their own links.
    fn folder(&mut self, folder: &Path) -> bool {
        let entries = fs::canonicalize(folder).and_then(|real| {
            let entries = fs::read_dir(&real)?;
            Ok(self.seen.insert(real).then_some(entries))
        });
        let entries = match entries {
            Ok(Some(entries)) => entries,
            Ok(None) => return true,
            // Listed as if it were a file, whose reading says why not.
            Err(_) => return self.add(folder.to_owned()),
        };
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            // Follows links; a link to nowhere is an editor's lock or half of a swap.
            let Ok(meta) = fs::metadata(&path) else { continue };
            let fits = if meta.is_dir() { self.folder(&path) } else { !(meta.is_file() && is_manifest(&path)) || self.add(path) };
            if !fits {
                return false;
            }
        }
        true
    }

    fn add(&mut self, path: PathBuf) -> bool {
        self.found.insert(path);
        self.found.len() <= MAX_FILES
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["yaml", "yml", "json"].iter().any(|k| e.eq_ignore_ascii_case(k)))
}

/// Whether the path is a pipe or a device: readable, but once.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// What tells that a file has changed without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    path: PathBuf,
    /// Device, inode, length, and the times of content and inode in nanoseconds; `None` when the file is gone.
    stat: Option<[i128; 5]>,
}

impl Signature {
    /// Whether whoever changes the file from `now` on leaves another signature behind: the last change is longer ago than the clock
    /// of any file system is coarse.
    pub(super) fn is_settled(&self, now: Timestamp) -> bool {
        const COARSE: i128 = 3_000_000_000;
        self.stat.is_some_and(|[.., modified, changed]| now.as_nanosecond() - modified.max(changed) > COARSE)
    }
}

/// Looks at a file from outside; follows links.
pub fn signature(path: &Path) -> Signature {
    use std::os::unix::fs::MetadataExt as _;
    let nanos = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
    let stat = fs::metadata(path).ok().map(|m| {
        [m.dev().into(), m.ino().into(), m.len().into(), nanos(m.mtime(), m.mtime_nsec()), nanos(m.ctime(), m.ctime_nsec())]
    });
    Signature { path: path.to_owned(), stat }
}

/// Reads a file.
pub fn read_file(path: &Path) -> FileText {
    let name = Arc::from(path.display().to_string().as_str());
    let text = fs::File::open(path).map_err(|e| format!("cannot read: {e}")).and_then(read_text);
    FileText { name, text }
}

/// Reads a stream that can be read only once.
pub fn read_stream(name: &str, stream: impl Read) -> FileText {
    FileText { name: Arc::from(name), text: read_text(stream) }
}

/// Reads UTF-8 text up to [`MAX_TEXT`].
fn read_text(stream: impl Read) -> Result<Arc<str>, String> {
    let mut bytes = Vec::new();
    stream.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot read: {e}"))?;
    if bytes.len() > MAX_TEXT {
        return Err(format!("more than {} MiB; split the file", MAX_TEXT / 1024 / 1024));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Arc::from(text)),
        Err(e) => Err(format!("not UTF-8 text (byte {}); save it as UTF-8", e.utf8_error().valid_up_to())),
    }
}

/// Fails when the texts are more than memory should hold.
///
/// # Errors
/// [`ReadError::TooLarge`].
pub fn check_total(lengths: impl IntoIterator<Item = usize>) -> Result<(), ReadError> {
    let total: usize = lengths.into_iter().sum();
    if total > MAX_TOTAL { Err(ReadError::TooLarge) } else { Ok(()) }
}
