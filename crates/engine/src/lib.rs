//! Facit: `engine` (see ARCHITECTURE.md).
