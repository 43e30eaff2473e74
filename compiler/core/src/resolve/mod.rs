//! Names to a graph.
