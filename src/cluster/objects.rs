//! The objects of `--from-file`, typed, each with the place it came from; read again when files change. What the objects mean
//! together is decided in the core, from the [`Snapshot`] made here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::files::{self, FileText, ReadError, Source};
use super::manifest::{self, Place, Problem};
use crate::gateway::id::{Kind, ObjectRef};
use crate::gateway::snapshot::{Coverage, DuplicateObject, InvalidObject, Object, Options, Snapshot, SnapshotBuilder};

/// What all sources hold. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Manifests {
    sources: Arc<[Source]>,
    /// What can be read only once: standard input and pipes.
    fixed: Vec<Arc<FileObjects>>,
    files: BTreeMap<PathBuf, File>,
}

/// A file that can be read again.
#[derive(Clone, Debug)]
struct File {
    /// What it looked like just before it was read; none while that does not tell it from a newer version.
    settled: Option<files::Signature>,
    objects: Arc<FileObjects>,
}

/// What one file holds.
#[derive(Debug)]
struct FileObjects {
    name: Arc<str>,
    /// Bytes of its text.
    length: usize,
    digest: Digest,
    objects: Vec<(Place, Object)>,
    problems: Vec<Problem>,
    skipped: Vec<String>,
    /// The objects are those of an earlier version, since this one is broken.
    kept: bool,
}

type Digest = [u8; 32];

impl Manifests {
    /// Reads every source. What is broken in a file is reported, and the rest of it counts.
    ///
    /// # Errors
    /// When a source is not there, or there is far too much.
    pub fn read(sources: Vec<Source>) -> Result<Self, ReadError> {
        let mut fixed = Vec::new();
        let mut texts = BTreeMap::new();
        for source in &sources {
            match source {
                Source::Stdin => fixed.push(files::read_stream("stdin", std::io::stdin().lock())),
                Source::Path(path) if files::is_stream(path) => fixed.push(files::read_file(path)),
                Source::Path(_) => {
                    texts.extend(files::list(source)?.into_iter().map(|path| (path.clone(), look_and_read(&path))))
                }
            }
        }
        files::check_total(fixed.iter().chain(texts.values().map(|(_, text)| text)).map(FileText::len))?;
        let file = |(settled, text): (_, FileText)| File { settled, objects: Arc::new(typed(&text)) };
        Ok(Self {
            sources: sources.into(),
            fixed: fixed.into_iter().map(|t| Arc::new(typed(&t))).collect(),
            files: texts.into_iter().map(|(path, text)| (path, file(text))).collect(),
        })
    }

    /// Reads the files again that may have changed. A file whose new version is broken keeps the objects of its last good one, and
    /// so does a named file that is gone; a file that has gone from a folder takes its objects with it.
    ///
    /// # Errors
    /// When a source is not there; what was read before is still good.
    pub fn read_again(&self) -> Result<Self, ReadError> {
        let mut paths = Vec::new();
        for source in self.sources.iter() {
            match source {
                Source::Stdin => {}
                Source::Path(path) if files::is_stream(path) => {}
                // A named file that is gone keeps its objects: an editor may be between its two renames.
                Source::Path(path) if self.files.contains_key(path) => paths.push(path.clone()),
                Source::Path(_) => paths.extend(files::list(source)?),
            }
        }
        let mut files = BTreeMap::new();
        let mut changed = Vec::new();
        for path in paths {
            match self.files.get(&path).filter(|file| file.settled.as_ref().is_some_and(|s| *s == files::signature(&path))) {
                Some(same) => _ = files.insert(path, same.clone()),
                None => {
                    let (settled, text) = look_and_read(&path);
                    changed.push((path, settled, text));
                }
            }
        }
        let unchanged = files.values().map(|file| file.objects.length);
        files::check_total(unchanged.chain(changed.iter().map(|(.., text)| text.len())))?;
        for (path, settled, text) in changed {
            let objects = self.files.get(&path).map_or_else(|| Arc::new(typed(&text)), |old| again(&old.objects, &text));
            files.insert(path, File { settled, objects });
        }
        Ok(Self { sources: Arc::clone(&self.sources), fixed: self.fixed.clone(), files })
    }

    /// Whether any source can change.
    pub fn can_change(&self) -> bool {
        self.sources.iter().any(|s| matches!(s, Source::Path(path) if !files::is_stream(path)))
    }

    /// What the files that can change look like from outside, without reading them.
    ///
    /// # Errors
    /// As [`read_again`](Self::read_again).
    pub(super) fn signature(&self) -> Result<Vec<files::Signature>, ReadError> {
        let mut signatures = Vec::new();
        for source in self.sources.iter() {
            match source {
                Source::Path(path) if self.files.contains_key(path) => signatures.push(files::signature(path)),
                Source::Path(path) if !files::is_stream(path) => {
                    signatures.extend(files::list(source)?.iter().map(|p| files::signature(p)));
                }
                _ => {}
            }
        }
        Ok(signatures)
    }

    /// Whether both were read from the same text.
    pub(super) fn same_text(&self, other: &Self) -> bool {
        self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(|((a, x), (b, y))| a == b && x.objects.digest == y.objects.digest)
    }

    /// Files whose last good version counts in place of what they hold now.
    pub fn kept(&self) -> impl Iterator<Item = &str> {
        self.all().filter(|f| f.kept).map(|f| &*f.name)
    }

    /// Everything that could not be used, in the order of the files.
    pub fn problems(&self) -> Vec<Problem> {
        self.all().flat_map(|f| f.problems.iter().cloned()).collect()
    }

    /// Kinds that are not ours to read, with how many objects there are of each.
    pub fn skipped(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for kind in self.all().flat_map(|f| &f.skipped) {
            *kinds.entry(kind.clone()).or_default() += 1;
        }
        kinds
    }

    /// Files that were read, standard input included.
    pub fn file_count(&self) -> usize {
        self.fixed.len() + self.files.len()
    }

    /// All objects in one snapshot. An object that is given twice is a problem; the first counts. Of the `complete` kinds there
    /// are no others, even where none is given.
    pub fn snapshot(&self, now: Timestamp, options: Options, complete: &[Kind]) -> (Snapshot, Vec<Problem>) {
        let mut builder = SnapshotBuilder::new(now, options);
        for kind in complete {
            builder.set_coverage(*kind, Coverage::Complete);
        }
        let mut repeated = Vec::new();
        for (place, object) in self.all().flat_map(|f| &f.objects) {
            if let Err(error) = builder.insert(object.clone()) {
                repeated.push((place, error));
            }
        }
        (builder.finish(), self.repeated(&repeated))
    }

    /// Objects that are given more than once, each with the place that counts.
    fn repeated(&self, repeated: &[(&Place, DuplicateObject)]) -> Vec<Problem> {
        if repeated.is_empty() {
            return Vec::new();
        }
        let mut first: BTreeMap<&ObjectRef, &Place> = BTreeMap::new();
        for (place, object) in self.all().flat_map(|f| &f.objects) {
            first.entry(object.object_ref()).or_insert(place);
        }
        let problem = |(place, error): &(&Place, DuplicateObject)| {
            let first = first.get(&error.0).map(|p| format!(", at {p}")).unwrap_or_default();
            Problem { place: (*place).clone(), reason: format!("{error}{first}") }
        };
        repeated.iter().map(problem).collect()
    }

    /// Where an object was read.
    pub fn place(&self, object: &ObjectRef) -> Option<&Place> {
        self.all().flat_map(|f| &f.objects).find(|(_, o)| o.object_ref() == object).map(|(place, _)| place)
    }

    fn all(&self) -> impl Iterator<Item = &FileObjects> {
        self.fixed.iter().chain(self.files.values().map(|file| &file.objects)).map(|f| &**f)
    }
}

/// Reads a file, after looking at it: what changes it meanwhile makes it look different from then on.
fn look_and_read(path: &Path) -> (Option<files::Signature>, FileText) {
    let seen = files::signature(path);
    let settled = seen.is_settled(Timestamp::now()).then_some(seen);
    (settled, files::read_file(path))
}

/// The objects of a text.
fn typed(text: &FileText) -> FileObjects {
    let mut file = FileObjects {
        name: Arc::clone(&text.name),
        length: text.len(),
        digest: digest(text),
        objects: Vec::new(),
        problems: Vec::new(),
        skipped: Vec::new(),
        kept: false,
    };
    let parsed = match &text.text {
        Ok(text) => manifest::parse(&file.name, text),
        Err(reason) => {
            let place = Place { file: Arc::clone(&file.name), line: 1 };
            file.problems.push(Problem { place, reason: reason.clone() });
            return file;
        }
    };
    file.problems = parsed.problems;
    for document in parsed.documents {
        match Object::from_json(document.value) {
            Ok(object) => file.objects.push((document.place, object)),
            Err(InvalidObject::UnknownKind { api_version, kind }) => file.skipped.push(format!("{kind} ({api_version})")),
            // Kustomize reads this file by its name and does not ask for a kind.
            Err(InvalidObject::NotAnObject(_)) if is_kustomization(&file.name) => file.skipped.push("Kustomization".to_owned()),
            Err(error) => file.problems.push(Problem { place: document.place, reason: error.to_string() }),
        }
    }
    file.problems.sort();
    file
}

/// The objects of a text that may be a new version of `old`.
fn again(old: &Arc<FileObjects>, text: &FileText) -> Arc<FileObjects> {
    if digest(text) == old.digest {
        return Arc::clone(old);
    }
    let mut new = typed(text);
    if !new.problems.is_empty() && !old.objects.is_empty() {
        new.objects.clone_from(&old.objects);
        new.kept = true;
    }
    Arc::new(new)
}

fn digest(text: &FileText) -> Digest {
    match &text.text {
        Ok(text) => Sha256::digest(text.as_bytes()).into(),
        Err(reason) => Sha256::digest(format!("\0{reason}").as_bytes()).into(),
    }
}

fn is_kustomization(name: &str) -> bool {
    Path::new(name).file_stem().is_some_and(|n| n.eq_ignore_ascii_case("kustomization"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n";

    fn read(folder: &Path) -> Manifests {
        Manifests::read(vec![Source::Path(folder.to_owned())]).expect("a folder")
    }

    fn services(manifests: &Manifests) -> usize {
        manifests.snapshot(Timestamp::UNIX_EPOCH, Options::default(), &[]).0.count(Kind::Service)
    }

    #[test]
    fn a_folder_is_read_with_all_below_it_and_what_is_not_ours_is_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("a/b")).expect("folders");
        fs::create_dir_all(folder.path().join(".git")).expect("folders");
        fs::write(folder.path().join("a/b/s.yml"), SERVICE).expect("a file");
        fs::write(folder.path().join(".git/s.yaml"), "{").expect("a file");
        fs::write(folder.path().join("readme.md"), "{").expect("a file");
        fs::write(folder.path().join("kustomization.yaml"), "resources: [a]\n").expect("a file");
        fs::write(
            folder.path().join("d.json"),
            r#"{"apiVersion":"apps/v1","kind":"Deployment"}{"apiVersion":"apps/v1","kind":"Deployment"}"#,
        )
        .expect("a file");
        let manifests = read(folder.path());
        assert_eq!(manifests.problems(), []);
        assert_eq!(services(&manifests), 1);
        let skipped: Vec<_> = manifests.skipped().into_iter().collect();
        assert_eq!(skipped, [("Deployment (apps/v1)".to_owned(), 2), ("Kustomization".to_owned(), 1)]);
    }

    #[test]
    fn links_to_a_folder_above_end() {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(folder.path(), folder.path().join("up")).expect("a link");
        std::os::unix::fs::symlink("/nowhere", folder.path().join("x.yaml")).expect("a link");
        fs::write(folder.path().join("s.yaml"), SERVICE).expect("a file");
        let manifests = read(folder.path());
        assert_eq!((manifests.file_count(), services(&manifests)), (1, 1));
    }

    #[test]
    fn an_object_given_twice_names_both_places() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.yaml"), SERVICE).expect("a file");
        fs::write(folder.path().join("b.yaml"), format!("---\n---\n{SERVICE}")).expect("a file");
        let (_, problems) = read(folder.path()).snapshot(Timestamp::UNIX_EPOCH, Options::default(), &[]);
        assert_eq!(problems.len(), 1);
        let text = problems[0].to_string();
        assert!(text.contains("b.yaml:3") && text.contains("a.yaml:1") && text.contains("service shop/web"), "{text}");
    }

    #[test]
    fn a_broken_new_version_keeps_the_last_good_one_and_a_file_that_goes_takes_its_objects() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs::write(&path, SERVICE).expect("a file");
        let first = read(folder.path());
        fs::write(&path, "kind: [").expect("a file");
        let broken = first.read_again().expect("a folder");
        assert_eq!((services(&broken), broken.kept().count(), broken.problems().len()), (1, 1, 1));
        fs::write(&path, SERVICE.replace("web", "api")).expect("a file");
        let repaired = broken.read_again().expect("a folder");
        assert_eq!((services(&repaired), repaired.kept().count(), repaired.problems().len()), (1, 0, 0));
        fs::remove_file(&path).expect("removed");
        assert_eq!(services(&repaired.read_again().expect("a folder")), 0);
    }

    #[test]
    fn a_named_file_that_is_gone_keeps_its_objects() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs::write(&path, SERVICE).expect("a file");
        let first = read(&path);
        fs::remove_file(&path).expect("removed");
        let gone = first.read_again().expect("still good");
        assert_eq!((services(&gone), gone.kept().count(), gone.problems().len()), (1, 1, 1));
    }

    #[test]
    fn what_is_not_there_is_an_error_that_names_it() {
        let error = Manifests::read(vec![Source::Path("/no/such/folder".into())]).expect_err("nothing there");
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }

    #[test]
    fn only_a_file_that_may_have_changed_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs::write(&path, SERVICE).expect("a file");
        let mut first = read(folder.path());
        assert!(first.files[&path].settled.is_none(), "written just now");
        let seen = files::signature(&path);
        assert!(!seen.is_settled(Timestamp::now()));
        assert!(seen.is_settled(Timestamp::now() + jiff::SignedDuration::from_secs(5)));
        // As if it had been read long after.
        first.files.get_mut(&path).expect("the file").settled = Some(seen);
        let same = first.read_again().expect("a folder");
        assert!(same.files[&path].settled.is_some() && same.same_text(&first));
        fs::write(&path, SERVICE.replace("web", "api")).expect("a file");
        let changed = first.read_again().expect("a folder");
        assert!(changed.files[&path].settled.is_none() && !changed.same_text(&first));
    }
}
