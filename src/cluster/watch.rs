//! Notices when manifests change: polls, since it must work on every file system, over links, and on folders that are replaced
//! as a whole (the mounted ConfigMap). Decides when a change is whole, nothing else.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::files::Signature;
use super::objects::Manifests;

/// Time between two looks. A change counts once two looks saw the same, so that it takes effect after one to two of these.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// Looks after a change at which the text is compared and not only size and times: a second edit within the resolution of the
/// file's clock leaves the same times behind.
const SUSPICIOUS_LOOKS: u32 = 10;

/// The state of the manifests.
#[derive(Clone, Debug)]
pub struct Update {
    /// What counts now.
    pub manifests: Manifests,
    /// Why the sources could not be read again; then `manifests` is what was read last.
    pub error: Option<Arc<str>>,
}

/// Watches the sources of `manifests`, which were just read. The task ends when every receiver is gone.
pub fn spawn(manifests: Manifests) -> watch::Receiver<Update> {
    let (sender, receiver) = watch::channel(Update { manifests: manifests.clone(), error: None });
    if manifests.can_change() {
        tokio::spawn(run(manifests, sender));
    }
    receiver
}

async fn run(manifests: Manifests, sender: watch::Sender<Update>) {
    let mut look = Look { manifests, seen: Seen::Unknown, pending: None, suspicious: SUSPICIOUS_LOOKS, error: None };
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = sender.closed() => return,
        }
        // Reading files blocks; a slow disk must not hold up requests.
        let step = tokio::task::spawn_blocking(move || {
            let update = look.step();
            (look, update)
        });
        let Ok((next, update)) = step.await else { return };
        look = next;
        if let Some(update) = update {
            sender.send_replace(update);
        }
    }
}

/// What was seen of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing yet, or something that does not count.
    Unknown,
    /// Files with their sizes and times.
    Files(Vec<Signature>),
    /// The sources cannot be listed.
    Failed(String),
}

/// The watcher between two looks.
#[derive(Debug)]
struct Look {
    manifests: Manifests,
    /// What `manifests` was read from.
    seen: Seen,
    /// A change that one look saw.
    pending: Option<Seen>,
    suspicious: u32,
    error: Option<Arc<str>>,
}

impl Look {
    /// Looks once; an update when something has changed and stayed so for two looks.
    fn step(&mut self) -> Option<Update> {
        let now = self.look();
        if now == self.seen {
            self.pending = None;
            if self.suspicious > 0 {
                self.suspicious -= 1;
                let same = self.manifests.read_again().is_ok_and(|m| m.same_text(&self.manifests));
                if !same {
                    self.seen = Seen::Unknown;
                }
            }
            return None;
        }
        if self.pending.as_ref() != Some(&now) {
            self.pending = Some(now);
            return None;
        }
        self.pending = None;
        let read = self.manifests.read_again();
        // Written while we read: look again.
        if self.look() != now {
            return None;
        }
        self.seen = now;
        self.suspicious = SUSPICIOUS_LOOKS;
        match read {
            Ok(manifests) => {
                let unchanged = self.error.is_none() && manifests.same_text(&self.manifests);
                self.error = None;
                self.manifests = manifests;
                if unchanged {
                    return None;
                }
            }
            Err(error) => {
                let text = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
                self.error = Some(text.map(ToString::to_string).collect::<Vec<_>>().join(": ").into());
            }
        }
        Some(Update { manifests: self.manifests.clone(), error: self.error.clone() })
    }

    fn look(&self) -> Seen {
        self.manifests.signature().map_or_else(|e| Seen::Failed(e.to_string()), Seen::Files)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use jiff::Timestamp;

    use super::super::files::Source;
    use super::*;
    use crate::gateway::id::Kind;
    use crate::gateway::snapshot::Options;

    fn service(name: &str) -> String {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n")
    }

    fn names(manifests: &Manifests) -> Vec<String> {
        let (snapshot, _) = manifests.snapshot(Timestamp::UNIX_EPOCH, Options::default(), &[]);
        assert_eq!(snapshot.len(), snapshot.count(Kind::Service));
        snapshot.services.iter().map(|(id, _)| id.name().to_owned()).collect()
    }

    fn look(path: &Path) -> Look {
        let manifests = Manifests::read(vec![Source::Path(path.to_owned())]).expect("a folder");
        let mut look = Look { manifests, seen: Seen::Unknown, pending: None, suspicious: 0, error: None };
        assert!(settle(&mut look).is_none(), "nothing has changed");
        look
    }

    /// Looks three times; the update, if there was one.
    fn settle(look: &mut Look) -> Option<Update> {
        (0..3).filter_map(|_| look.step()).last()
    }

    #[test]
    fn a_change_counts_once_it_is_seen_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs::write(&path, service("one")).expect("a file");
        let mut look = look(folder.path());
        fs::write(&path, "apiVersion: v1\nki").expect("half a file");
        assert!(look.step().is_none());
        fs::write(&path, service("two")).expect("a file");
        assert!(look.step().is_none());
        let update = look.step().expect("an update");
        assert_eq!(names(&update.manifests), ["two"]);
        assert!(update.manifests.problems().is_empty());
    }

    #[test]
    fn renames_additions_and_removals_are_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.yaml"), service("one")).expect("a file");
        let mut look = look(folder.path());
        fs::write(folder.path().join("next"), service("two")).expect("a file");
        fs::rename(folder.path().join("next"), folder.path().join("a.yaml")).expect("renamed");
        assert_eq!(names(&settle(&mut look).expect("an update").manifests), ["two"]);
        fs::write(folder.path().join("b.yaml"), service("three")).expect("a file");
        assert_eq!(names(&settle(&mut look).expect("an update").manifests), ["three", "two"]);
        fs::remove_file(folder.path().join("a.yaml")).expect("removed");
        assert_eq!(names(&settle(&mut look).expect("an update").manifests), ["three"]);
    }

    #[test]
    fn a_mounted_config_map_is_followed_through_its_links() {
        let folder = tempfile::tempdir().expect("a folder");
        for (version, name) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(folder.path().join(version)).expect("a folder");
            fs::write(folder.path().join(version).join("a.yaml"), service(name)).expect("a file");
        }
        std::os::unix::fs::symlink("..1", folder.path().join("..data")).expect("a link");
        std::os::unix::fs::symlink("..data/a.yaml", folder.path().join("a.yaml")).expect("a link");
        let mut look = look(folder.path());
        assert_eq!(names(&look.manifests), ["one"]);
        std::os::unix::fs::symlink("..2", folder.path().join("..next")).expect("a link");
        fs::rename(folder.path().join("..next"), folder.path().join("..data")).expect("renamed");
        assert_eq!(names(&settle(&mut look).expect("an update").manifests), ["two"]);
    }

    #[test]
    fn an_edit_that_leaves_size_and_times_is_found_by_its_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.yaml");
        fs::write(&path, service("one")).expect("a file");
        let mut look = look(folder.path());
        fs::write(&path, service("two")).expect("a file");
        // As if the clock of the file system had not moved.
        look.seen = look.look();
        look.suspicious = SUSPICIOUS_LOOKS;
        assert_eq!(names(&settle(&mut look).expect("an update").manifests), ["two"]);
    }

    #[test]
    fn a_folder_that_goes_away_is_said_and_what_it_held_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("in");
        fs::create_dir(&inner).expect("a folder");
        fs::write(inner.join("a.yaml"), service("one")).expect("a file");
        let mut look = look(&inner);
        fs::rename(&inner, folder.path().join("away")).expect("renamed");
        let update = settle(&mut look).expect("an update");
        assert!(update.error.is_some_and(|e| e.contains("cannot read")));
        assert_eq!(names(&update.manifests), ["one"]);
        fs::rename(folder.path().join("away"), &inner).expect("renamed");
        let update = settle(&mut look).expect("an update");
        assert!(update.error.is_none());
    }

    #[tokio::test]
    async fn receivers_get_the_change() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.yaml"), service("one")).expect("a file");
        let mut updates = spawn(Manifests::read(vec![Source::Path(folder.path().to_owned())]).expect("a folder"));
        fs::write(folder.path().join("a.yaml"), service("two")).expect("a file");
        tokio::time::timeout(Duration::from_secs(10), updates.changed()).await.expect("in time").expect("a watcher");
        assert_eq!(names(&updates.borrow().manifests), ["two"]);
    }
}
