//! A model directory: which family it is, its config, its tensors by name, its tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::deepseek_v41::{self, DeepSeekV41};
use models::kimi_k3::{self, KimiK3};
use models::machine::Stored;
use store::io::{Disk, Real};
use store::safetensors::Index;
use text::{Tokenizer, TokenizerFiles};

use crate::{Digest, Error, files};

/// Largest `config.json` that is read.
pub const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Largest tokenizer file that is read.
pub const MAX_TOKENIZER_BYTES: u64 = text::MAX_FILE_BYTES as u64;

/// The model families whose directories Facit opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Kimi K3.
    KimiK3,
    /// DeepSeek-V4.1.
    DeepseekV41,
}

impl Family {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Family::KimiK3 => "Kimi K3",
            Family::DeepseekV41 => "DeepSeek-V4.1",
        }
    }
}

/// An opened model directory. Only headers and small files have been read.
pub struct Checkpoint {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    family: Family,
    config: Vec<u8>,
    index: Arc<Index>,
}

impl Checkpoint {
    /// Whether `path` looks like a model directory, so that a command line can tell it from a
    /// prompt.
    pub fn is_at(path: &Path) -> bool {
        path.is_dir() && path.join("config.json").exists()
    }

    /// Opens a directory with `config.json` and safetensors shards.
    ///
    /// # Errors
    /// A config of another model; any shard whose header is not in order.
    pub fn open(dir: &Path) -> Result<Checkpoint, Error> {
        Checkpoint::open_on(&Real::shared(), dir)
    }

    /// The same with shards on a given file system.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_on(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Checkpoint, Error> {
        let path = dir.join("config.json");
        // A pipe would be waited for.
        if path.exists() && !path.is_file() {
            return Err(Error::corrupt(show(&path), "it is not a regular file"));
        }
        let config = files::read(&path, MAX_CONFIG_BYTES)?;
        let family = family_of(&config, &show(&path))?;
        let index = Arc::new(Index::open_on(disk, dir)?);
        let (disk, dir) = (Arc::clone(disk), dir.to_owned());
        Ok(Checkpoint { disk, dir, family, config, index })
    }

    /// Which family's model it is.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its shards are read from.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Every tensor by name.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Names the checkpoint: the digest of its config and of every tensor's name, type, shape
    /// and place. (Weights are covered by `verify-model`, which reads all of them.)
    pub fn digest(&self) -> Digest {
        let config = Digest::of(&self.config);
        Digest::of(&[config.0, self.index.digest().0].concat())
    }

    /// The Kimi K3 in this directory.
    ///
    /// # Errors
    /// Every missing or mistyped field; the first tensor that is missing or misshapen.
    pub fn kimi_k3(&self) -> Result<KimiK3, Error> {
        let config = kimi_k3::Config::parse(&self.config).map_err(|e| self.bad_config(&e))?;
        KimiK3::bind(config, |name| self.stored(name)).map_err(|e| self.bad_tensors(&e))
    }

    /// The DeepSeek-V4.1 in this directory. Its engram tables are looked up through a map made
    /// from the tokenizer, so the tokenizer must be there.
    ///
    /// # Errors
    /// As [`Checkpoint::kimi_k3`]; a missing tokenizer.
    pub fn deepseek_v41(&self, options: deepseek_v41::Options) -> Result<DeepSeekV41, Error> {
        let config = self.deepseek_config()?;
        let tokenizer = self.tokenizer()?.ok_or_else(|| {
            Error::corrupt(show(&self.dir), "tokenizer.json is missing: the engram tables need it")
        })?;
        let map = text::engram::token_map(&tokenizer)?;
        let model = DeepSeekV41::bind(config, options, map, |name| self.stored(name));
        model.map_err(|e| self.bad_tensors(&e))
    }

    /// Most positions of a sequence.
    ///
    /// # Errors
    /// A configuration that is refused.
    pub fn max_context(&self) -> Result<usize, Error> {
        match self.family() {
            Family::KimiK3 => Ok(kimi_k3::MAX_CONTEXT),
            Family::DeepseekV41 => Ok(self.deepseek_config()?.max_positions),
        }
    }

    /// The configuration of a DeepSeek-V4.1, without its tensors.
    pub(super) fn deepseek_config(&self) -> Result<deepseek_v41::Config, Error> {
        deepseek_v41::Config::from_json(&self.config).map_err(|e| self.bad_config(&e))
    }

    /// The tokenizer beside the weights; `None` if the directory has no tokenizer file.
    ///
    /// # Errors
    /// A tokenizer file that is damaged or unsupported.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        tokenizer_at(&self.dir)
    }

    fn stored(&self, name: &str) -> Option<Stored> {
        let tensor = self.index.get(name)?;
        Some(Stored {
            dtype: tensor.dtype.name().into(),
            shape: tensor.shape.iter().map(|&d| d as usize).collect(),
        })
    }

    fn bad_config(&self, error: &dyn std::error::Error) -> Error {
        Error::Refused(format!("{}: {error}", show(&self.dir.join("config.json"))))
    }

    fn bad_tensors(&self, error: &dyn std::error::Error) -> Error {
        Error::corrupt(show(&self.dir), error.to_string())
    }
}

/// The tokenizer in a directory; `None` without a tokenizer file.
///
/// # Errors
/// A tokenizer file that is damaged or unsupported.
pub fn tokenizer_at(dir: &Path) -> Result<Option<Tokenizer>, Error> {
    let read = |name: &str| {
        let path = dir.join(name);
        path.exists().then(|| files::read(&path, MAX_TOKENIZER_BYTES)).transpose()
    };
    let tiktoken = read("tiktoken.model")?;
    let config = read("tokenizer_config.json")?;
    let json = read("tokenizer.json")?;
    if tiktoken.is_none() && json.is_none() {
        return Ok(None);
    }
    let files = TokenizerFiles {
        tiktoken: tiktoken.as_deref(),
        config: config.as_deref(),
        tokenizer_json: json.as_deref(),
    };
    let tokenizer = Tokenizer::from_files(&files);
    tokenizer.map(Some).map_err(|e| Error::corrupt(show(dir), e.to_string()))
}

/// The family a config names, by the fields only that family has.
fn family_of(config: &[u8], name: &str) -> Result<Family, Error> {
    let value: serde_json::Value = serde_json::from_slice(config)
        .map_err(|e| Error::corrupt(name, format!("not JSON: {e}")))?;
    let kind = value.get("model_type").and_then(|v| v.as_str()).unwrap_or("");
    let text = value.get("text_config").unwrap_or(&value);
    if kind.starts_with("deepseek") || text.get("compress_ratios").is_some() {
        return Ok(Family::DeepseekV41);
    }
    if text.get("linear_attn_config").is_some() || text.get("kda_num_heads").is_some() {
        return Ok(Family::KimiK3);
    }
    Err(Error::Refused(format!(
        "{name}: model_type is {kind:?}; Facit runs Kimi K3 and DeepSeek-V4.1 directories \
         (llama2.c checkpoints are converted first, with `facit convert`)"
    )))
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
