//! The threads that carry requests. Each has a single-threaded runtime of its own: a request, the connection that it came on and
//! the connection to its backend stay on one thread, so that waking one another is a push to a local queue and never a system
//! call. What they carry is not known here.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// Turns of a worker between two looks at its sockets: tokio's default. A lower number looks more often, at a system call each.
const EVENT_INTERVAL: u32 = 61;

thread_local! {
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// The index of the worker that runs the caller, from 0; 0 as well on threads that are no workers.
pub fn current() -> usize {
    INDEX.get()
}

/// How many workers this machine has a use for: one per core that the process may use.
pub fn available() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Running worker threads. They end when the last clone is dropped, and cut what still runs on them.
#[derive(Clone, Debug)]
pub struct Workers {
    handles: Arc<[Handle]>,
    _threads: Option<Arc<Threads>>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        let mut threads = Threads { stop: CancellationToken::new(), threads: Vec::with_capacity(count.get()) };
        let mut handles = Vec::with_capacity(count.get());
        for index in 0..count.get() {
            let runtime = Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()?;
            handles.push(runtime.handle().clone());
            let stop = threads.stop.clone();
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                INDEX.set(index);
                runtime.block_on(stop.cancelled());
                // A name lookup under way must not hold up the end.
                runtime.shutdown_background();
            })?;
            threads.threads.push(thread);
        }
        Ok(Self { handles: handles.into(), _threads: Some(Arc::new(threads)) })
    }

    /// The calling task's own runtime as the one worker.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn here() -> Self {
        Self { handles: Arc::new([Handle::current()]), _threads: None }
    }

    /// Where to spawn, by index of the worker. Never empty.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// The worker of the `n`th of something that is spread evenly.
    pub fn nth(&self, n: usize) -> &Handle {
        &self.handles[n % self.handles.len()]
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.handles.len()
    }
}

#[derive(Debug)]
struct Threads {
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker's last task may be what drops the workers; and what a task panicked with has been reported already.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_worker_runs_its_tasks_on_its_own_thread_and_knows_its_index() {
        let workers = Workers::start(NonZeroUsize::new(3).unwrap()).unwrap();
        let mut threads = std::collections::BTreeSet::new();
        for n in 0..6 {
            let (index, thread) = workers
                .nth(n)
                .spawn(async {
                    tokio::task::yield_now().await;
                    (current(), std::thread::current().id())
                })
                .await
                .unwrap();
            assert_eq!(index, n % 3);
            threads.insert(format!("{thread:?}"));
        }
        assert_eq!((workers.count(), threads.len()), (3, 3));
        assert_eq!(current(), 0);
    }

    #[tokio::test]
    async fn a_task_that_panics_costs_no_worker_and_the_end_cuts_what_runs() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        assert!(workers.nth(0).spawn(async { panic!("on purpose") }).await.unwrap_err().is_panic());
        let endless = workers.nth(0).spawn(std::future::pending::<()>());
        assert_eq!(workers.nth(0).spawn(async { 7 }).await.unwrap(), 7);
        drop(workers);
        assert!(endless.await.unwrap_err().is_cancelled());
    }
}
