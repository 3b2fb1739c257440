//! The tunnel connector: our connections to the edge.
