//! Facit: `models` (see ARCHITECTURE.md).
