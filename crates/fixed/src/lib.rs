//! Facit's exact integer core (see ARCHITECTURE.md).
#![cfg_attr(not(feature = "std"), no_std)]

pub mod arith;
