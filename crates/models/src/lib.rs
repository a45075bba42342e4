//! Language models as resumable machines: configuration, tensor names, arithmetic and state.
//!
//! What is here: [`machine`], the contract between a model and its host; the models.
//! What is not: reading files, threads of its own, printing, sampling, text.

pub mod compare;
pub mod deepseek_v41;
pub mod kimi_k3;
pub mod machine;
pub mod tensor_file;
