//! Facit: `store` (see ARCHITECTURE.md).
