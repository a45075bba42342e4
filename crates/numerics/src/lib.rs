//! Facit: `numerics` (see ARCHITECTURE.md).
