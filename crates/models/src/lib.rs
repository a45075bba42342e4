//! Language models as resumable machines: configuration, tensor names, arithmetic and state.
//!
//! What is not here: reading files, threads of its own, printing, sampling, text.
//!
//! - [`machine`]: the contract between a model and its host, and what all models share
//! - [`kimi_k3`]: Kimi K3
//! - [`deepseek_v41`]: DeepSeek-V4.1 with its draft stages and its attention reference
//! - [`compare`]: a kernel's result against a reference, element by element
//! - [`tensor_file`]: the safetensors format in memory, for saved states and golden data

pub mod compare;
pub mod deepseek_v41;
pub mod kimi_k3;
pub mod machine;
pub mod tensor_file;
