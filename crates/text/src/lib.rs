//! Facit: `text` (see ARCHITECTURE.md).
