//! Where a Snapshot comes from: manifests on disk, later a live cluster.
