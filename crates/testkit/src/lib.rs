//! Facit: `testkit` (see ARCHITECTURE.md).
