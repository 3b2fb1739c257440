//! The built-in edge: the other end of the tunnel, on loopback. For `serve local` and for tests, with faults on demand.
